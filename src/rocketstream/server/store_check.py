"""The check of a whole store, while it is stopped or beside the broker that runs on it.

Every damage becomes one line of text, and the check goes on behind it.

Law: the check writes nothing.
"""

from __future__ import annotations

import json
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from rocketstream.errors import RocketMQError, StoreError, StoreLockedError
from rocketstream.protocol.bodies import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    KVConfigSerializeWrapper,
    QueueLockTable,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rocketstream.protocol.bodies.files import unsealed
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.server.store import Files, StoreConfig
from rocketstream.server.store.checkpoint import Checkpoint, StoreLock, read_checkpoint
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import ConsumeQueue, is_filler
from rocketstream.server.store.dispatch import (
    DispatchEntry,
    enters_queue,
    is_deletion,
    queue_code,
)
from rocketstream.server.store.log_walk import WalkEnd, find_record_after, walk
from rocketstream.server.store.queue_file import QueueMaps
from rocketstream.server.store.recovery import is_pointed_at
from rocketstream.server.store.units import is_unit_of

_MAPS_MAX = 256
_STEP_BYTES = 1 << 20
_TABLES: dict[str, Callable[[str], object]] = {
    "topics.json": TopicConfigSerializeWrapper.decode_file,
    "subscriptionGroup.json": SubscriptionGroupWrapper.decode_file,
    "consumerOffset.json": ConsumerOffsetTable.decode_file,
    "delayOffset.json": DelayOffsetTable.decode_file,
    "consumerFilter.json": ConsumerFilterTable.decode_file,
    "queueLocks.json": QueueLockTable.decode_file,
    "kvConfig.json": KVConfigSerializeWrapper.decode_file,
}


class StoreCheck:
    """One check of the store in a directory.

    Args:
        root: the store directory.
        bytes_a_second: how much of the log is read in a second at most; None reads as fast as the
            machine does.

    Attributes:
        records: how many records were checked so far.
        is_live: whether a broker runs on the store.
    """

    def __init__(self, root: Path, bytes_a_second: int | None = None) -> None:
        files = Files()
        if not files.is_dir(root / "commitlog"):
            raise StoreError(
                f"{root} has no commitlog/: give the directory of a store, which with several "
                "brokers is that of one of them"
            )
        self.records: int = 0
        self.is_live: bool = False
        self._root = root
        self._rate = bytes_a_second
        self._files = files
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._seen: dict[tuple[str, int], bytearray] = {}
        self._without: dict[tuple[str, int], array[int]] = {}
        """The messages without a unit by queue; of a queue that is missing it is empty."""

    def findings(self) -> Iterator[str]:
        """Check everything; yields a line for each damage found."""
        lock = StoreLock(self._root, self._files)
        try:
            lock.acquire()
        except StoreLockedError:
            self.is_live = True
        try:
            yield from self._state_files()
            yield from self._log_and_queues()
        finally:
            lock.release()

    def _state_files(self) -> Iterator[str]:
        places = [
            (self._root / folder / found, found.removesuffix(".bak"))
            for folder in ("config", "namesrv")
            for found, _, is_file in self._files.entries(self._root / folder)
            if is_file
        ]
        for path, name in places:
            if not name.endswith(".json"):
                continue
            parse: Callable[[str], object] = _TABLES.get(name) or json.loads
            try:
                parse(unsealed(name, self._files.read_bytes(path)).decode())
            except (RocketMQError, ValueError, KeyError, TypeError) as error:
                yield f"condition=FILE_DAMAGED {path}: {error}"

    def _log_and_queues(self) -> Iterator[str]:
        marks = read_checkpoint(self._root / "checkpoint", self._files)
        directory = self._root / "commitlog"
        entries = self._files.entries(directory)
        sizes = [self._files.file_size(directory / name) for name, _, is_file in entries if is_file]
        log = CommitLog(directory, max(sizes, default=1), self._files, self._root / ".checking")
        try:
            yield from self._load_queues()
            try:
                if 0 not in sizes:
                    log.load()
            except RocketMQError as error:
                yield f"condition=LOG_DAMAGED {error.message}"
                return
            if marks.log_min is not None and log.min_offset > marks.log_min:
                yield (
                    f"condition=LOG_BEGINS_LATE {directory} begins at {log.min_offset}, though it "
                    f"was left to begin at {marks.log_min}"
                )
            end = yield from self._walk(log, marks)
            yield from self._messages_without()
            log.set_end(end)
            for queue in self._queues.values():
                yield from self._units(log, queue)
        finally:
            for queue in self._queues.values():
                queue.close()
            log.close()

    def _load_queues(self) -> Iterator[str]:
        root, maps, files = self._root / "consumequeue", QueueMaps(_MAPS_MAX), self._files
        places = [
            (topic, number)
            for topic, is_directory, _ in files.entries(root)
            if is_directory
            for number, is_queue, _ in files.entries(root / topic)
            if is_queue and number.isdigit()
        ]
        for topic, number in places:
            directory = root / topic / number
            paths = [directory / name for name, _, is_file in files.entries(directory) if is_file]
            if not paths:
                continue
            size = files.file_size(paths[0]) or StoreConfig().consume_queue_file_bytes
            via = self._root / ".checking"
            queue = ConsumeQueue(topic, int(number), directory, size, self._files, via, maps)
            try:
                queue.load()
            except RocketMQError as error:
                yield f"condition=QUEUE_DAMAGED {error.message}"
                continue
            self._queues[topic, int(number)] = queue
            self._seen[topic, int(number)] = bytearray(queue.max_offset - queue.first_offset)

    def _walk(self, log: CommitLog, marks: Checkpoint) -> Generator[str, None, int]:
        """Yield the damages of the log, a line each; return where it ends."""
        end = WalkEnd(log.min_offset)
        began_s, read, due = time.monotonic(), 0, _STEP_BYTES
        while True:
            for entry in walk(log, end):
                self.records += 1
                yield from self._unit_of(log, entry, marks)
                read += entry.size
                if self._rate and read >= due:
                    due = read + _STEP_BYTES
                    left_s = began_s + read / self._rate - time.monotonic()
                    threading.Event().wait(max(left_s, 0.0))
            follower = find_record_after(
                log, end.offset, 0, log.last_offset, lambda head: is_pointed_at(self._queues, head)
            )
            if follower is None:
                break
            yield self._damage(log, end, f"up to {follower}, where whole records follow")
            end = WalkEnd(follower)
        if marks.own and end.offset < marks.flushed_offset:
            yield self._damage(log, end, f"though the log was flushed up to {marks.flushed_offset}")
        return end.offset

    def _damage(self, log: CommitLog, end: WalkEnd, behind: str) -> str:
        segment = log.segment_at(end.offset)
        path = segment.path if segment is not None else log.directory
        position = end.offset - segment.base if segment is not None else 0
        return (
            f"condition=RECORD_DAMAGED {path} byte {position} (log offset {end.offset}): "
            f"{end.reason or 'zeros'}, {behind}"
        )

    def _unit_of(self, log: CommitLog, entry: DispatchEntry, marks: Checkpoint) -> Iterator[str]:
        if is_deletion(entry):  # what the topic had before has no units any more
            for key in [key for key in self._without if key[0] == entry.topic]:
                del self._without[key]
        if not enters_queue(entry.sys_flag):
            return
        key, offset = (entry.topic, entry.queue_id), entry.queue_offset
        queue = self._queues.get(key)
        if queue is None:
            self._without.setdefault(key, array("q"))
            return
        at = offset - queue.first_offset
        if not 0 <= at < len(self._seen[key]):
            if not self.is_live:
                self._without.setdefault(key, array("q")).append(offset)
            return
        physical, size, code = queue.unit(offset)
        if (physical, size) == (entry.physical_offset, entry.size):
            self._seen[key][at] = 1
            if marks.own and key[0] != SCHEDULE_TOPIC and code != queue_code(entry, ()):
                yield f"condition=UNIT_DAMAGED the tags of message {offset} of {key[0]}/{key[1]}"
        elif physical <= entry.physical_offset or not is_unit_of(log, queue, offset):
            self._seen[key][at] = 1
            yield (
                f"condition=UNIT_DAMAGED message {offset} of {key[0]}/{key[1]} is at log offset "
                f"{entry.physical_offset}, its unit says {physical}"
            )

    def _messages_without(self) -> Iterator[str]:
        """Yield the queues and units that the messages of the log lack."""
        topics = {topic for topic, _ in self._queues}
        for (topic, queue_id), offsets in self._without.items():
            if (topic, queue_id) not in self._queues and topic in topics:
                yield f"condition=QUEUE_MISSING queue {topic}/{queue_id} has messages and no units"
            for offset in offsets:
                yield f"condition=UNIT_MISSING message {offset} of {topic}/{queue_id} has no unit"

    def _units(self, log: CommitLog, queue: ConsumeQueue) -> Iterator[str]:
        """Yield the units no record has: those of the log's part that was removed are fine."""
        first = queue.first_offset
        for at, is_seen in enumerate(self._seen[queue.topic, queue.queue_id]):
            if is_seen:
                continue
            physical, size, _ = queue.unit(first + at)
            is_removed = 0 <= physical < log.min_offset
            is_repeat = queue.unit(first + at + 1)[:2] == (physical, size)
            if (is_filler(size) and size > 0) or is_removed or is_repeat or self.is_live:
                continue
            yield (
                f"condition=UNIT_POINTS_NOWHERE unit {first + at} of {queue.topic}/"
                f"{queue.queue_id} names {size} bytes at log offset {physical}"
            )

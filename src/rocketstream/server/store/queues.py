"""The consume queues of a store: their directories, and units found by a walk over the log.

Units that lie one after another take 20 bytes each; in any other case, and beyond a bound, the log
must be walked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from rocketstream.errors import StoreError
from rocketstream.server.store.consume_queue import UNIT, ConsumeQueue
from rocketstream.server.store.dispatch import DispatchEntry, enters_queue, queue_code
from rocketstream.server.store.files import Files
from rocketstream.server.store.mapped_file import remove_empty, warn_of_stray
from rocketstream.server.store.queue_file import UNIT_BYTES, QueueMaps

RECORDS_MAX = 2_000_000
"""40 MB of units; further ones are not remembered."""


class ConsumeQueues(dict[tuple[str, int], ConsumeQueue]):
    """The queues that have a directory, by topic and queue id.

    Args:
        root: directory of the store.
        file_bytes: size of a queue's file.
        files: the disk.
        via: the path a new file has until it is complete.
        maps_max: how many files of all queues are mapped at once.
    """

    def __init__(self, root: Path, file_bytes: int, files: Files, via: Path, maps_max: int) -> None:
        super().__init__()
        self._root = root
        self._file_bytes = file_bytes
        self._files = files
        self._via = via
        self._maps = QueueMaps(maps_max)
        self._names_fold = False

    def load(self) -> None:
        """Load the queues there are; the directory of the log exists.

        Raises:
            StoreDamagedError: their files are not such as a broker leaves.
        """
        # Made in lower case: if the other spelling exists too, names are case-insensitive.
        self._names_fold = self._files.exists(self._root / "COMMITLOG")
        root = self._root / "consumequeue"
        for topic, is_directory, _ in self._files.entries(root):
            topic_directory = root / topic
            if not (is_directory and _is_topic(topic)):
                warn_of_stray(topic_directory)
                continue
            for name, is_directory, _ in self._files.entries(topic_directory):
                if name.isdigit() and is_directory:
                    self.make(topic, int(name)).load()
                else:
                    warn_of_stray(topic_directory / name)

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a new queue, which has no file yet.

        Raises:
            StoreError: no directory can have its name, or not beside another topic's.
        """
        if queue_id < 0 or not _is_topic(topic):
            raise StoreError(f"{topic!r}/{queue_id} cannot be the name of a queue's directory")
        if not self._files.can_be_directory(topic):
            raise StoreError(
                f"topic {topic!r} cannot be stored on Windows, which has no directory of that "
                "name: choose another one, or keep the store on another system",
                topic=topic,
            )
        if self._names_fold:
            self._check_case(topic)
        directory = self._root / "consumequeue" / topic / str(queue_id)
        queue = self[topic, queue_id] = ConsumeQueue(
            topic, queue_id, directory, self._file_bytes, self._files, self._via, self._maps
        )
        return queue

    def remove(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Remove queues of a topic with their files, and its directory with the last of them."""
        for queue_id in queue_ids:
            self.pop((topic, queue_id)).remove()
        directory = self._root / "consumequeue" / topic
        if not any(name.isdigit() for name, _, _ in self._files.entries(directory)):
            remove_empty(directory, self._files)

    def _check_case(self, topic: str) -> None:
        folded = topic.lower()
        for other, _ in self:
            if other != topic and other.lower() == folded:
                raise StoreError(
                    f"topic {topic!r} differs from {other!r} only in case, and the disk of "
                    f"{self._root} does not tell them apart: choose another name, or keep the "
                    "store on a disk that does",
                    topic=topic,
                )


def _is_topic(name: str) -> bool:
    return quote(name, safe="%|") == name and name not in ("", ".", "..")


class FoundUnits:
    """The units each queue lacks: consecutive ones from some offset on.

    Args:
        delay_levels_ms: delays by which units of the schedule queues are made.
    """

    def __init__(self, delay_levels_ms: tuple[int, ...]) -> None:
        self._delay_levels_ms = delay_levels_ms
        self._queues: dict[tuple[str, int], tuple[int, bytearray]] = {}
        self._count = 0
        self.is_plain: bool = True
        """Whether every added record is remembered."""

    def add(self, entry: DispatchEntry) -> None:
        """Take the next record of the log."""
        if not self.is_plain or not enters_queue(entry.sys_flag):
            return
        key = entry.topic, entry.queue_id
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = (entry.queue_offset, bytearray())
        first, units = found
        self._count += 1
        if entry.queue_offset * UNIT_BYTES != first * UNIT_BYTES + len(units) or (
            self._count > RECORDS_MAX
        ):
            self.is_plain = False
            self._queues.clear()
            return
        units += UNIT.pack(
            entry.physical_offset, entry.size, queue_code(entry, self._delay_levels_ms)
        )

    def leave_out(self, physical: int) -> None:
        """Forget the last added record, if it begins at or behind a log offset."""
        for _, units in self._queues.values():
            if units and UNIT.unpack_from(units, len(units) - UNIT_BYTES)[0] >= physical:
                del units[-UNIT_BYTES:]

    def leave_out_deleted(self, deleted: Mapping[str, int]) -> None:
        """Forget the records of topics before the log offsets at which they were deleted."""
        for topic, queue_id in list(self._queues):
            physical = deleted.get(topic, 0)
            _, units = self._queues[topic, queue_id]
            if units and UNIT.unpack_from(units)[0] < physical:
                if UNIT.unpack_from(units, len(units) - UNIT_BYTES)[0] > physical:
                    self.is_plain = False
                del self._queues[topic, queue_id]

    def fit(self, queues: dict[tuple[str, int], ConsumeQueue]) -> bool:
        """Return whether the units continue the queues, so that they only need to be appended."""
        ends = {key: queue.max_offset for key, queue in queues.items()}
        return self.is_plain and all(
            ends.get(key, 0) == first for key, (first, _) in self._queues.items()
        )

    def items(self) -> list[tuple[tuple[str, int], bytearray]]:
        """Return topic and queue id of each queue with its units."""
        return [(key, units) for key, (_, units) in self._queues.items() if units]

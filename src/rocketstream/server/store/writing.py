"""Writes of messages into a store: one, a batch, or several that came together.

Law: a message is stored with all its parts or not at all; offsets follow the order of calls. This
is the writing half of :class:`MessageStore`; its files and workers belong to the other half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.errors import StoreError
from rocketstream.protocol.drafts import Draft, draft_parts, draft_size, record_sizes
from rocketstream.protocol.record import stamp_record
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import ConsumeQueue
from rocketstream.server.store.flusher import LogFlusher
from rocketstream.server.store.keeper import Keeper
from rocketstream.server.store.key_index import PENDING_MAX, KeyIndex, Pending
from rocketstream.server.store.put_times import PutTimes
from rocketstream.server.store.results import PutResult
from rocketstream.server.store.run import Place, lay_out

_INDEXED_AT_ONCE = 32
"""Records a put indexes when too many wait: more than it adds, in a twentieth of a ms."""
OnArrival = Callable[[str, int, int, int], None]


class StoreWriter(ABC):
    """Puts messages into the files that a :class:`MessageStore` has open."""

    on_arrival: OnArrival | None
    """Called after a message is stored: topic, queue id, new max offset, tagsCode.

    The message can be read then; with sync flush, once it is flushed.
    """
    put_times: PutTimes
    _clock: Clock
    _flusher: LogFlusher
    _index: KeyIndex | None
    _keeper: Keeper
    _last_timestamp: int
    _log: CommitLog
    _queues: dict[tuple[str, int], ConsumeQueue]
    _takes_writes: bool

    @abstractmethod
    def _writable_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue that may be written to.

        Raises:
            StoreError: nothing may be written now, or such a queue cannot exist.
        """

    def put(
        self,
        topic: str,
        queue_id: int,
        record: bytearray,
        tags_code: int,
        keys: Sequence[str] = (),
    ) -> PutResult:
        """Store one record made by ``new_record``; offsets and timestamp are set in it.

        The record can be read when this returns; :meth:`when_flushed` tells when it is on the disk.

        Raises:
            DiskFullError: there is no room; nothing was stored.
            FlushFailedError: an fsync failed before; the store takes no more writes.
            StoreError: the store is not open, or the record is larger than a commit log file.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or self._flusher.error is not None or not self._takes_writes:
            queue = self._writable_queue(topic, queue_id)
        log = self._log
        size = len(record)
        began_ms = timestamp = self._clock.now_ms()
        if timestamp < self._last_timestamp:
            timestamp = self._set_back(timestamp)
        queue.reserve()
        physical = log.room(size)
        in_queue = not record[39] & 4  # PREPARED and ROLLBACK records get no unit
        offset = queue.max_offset if in_queue else 0
        stamp_record(record, offset, physical, timestamp)
        log.write(record)
        spent_ms = self._clock.now_ms() - began_ms
        if spent_ms > 0:
            self.put_times.slow(spent_ms)
        if in_queue:
            queue.append(physical, size, tags_code)
            if not queue.dirty:
                self._keeper.mark_dirty(queue)
        self._last_timestamp = timestamp
        log.end = end = physical + size  # once its unit is written, the record counts
        self._to_index((physical, timestamp, topic, keys))
        if in_queue and self.on_arrival is not None:
            self.on_arrival(topic, queue_id, offset + 1, tags_code)
        return PutResult(physical, offset, timestamp, size, end)

    def _to_index(self, pending: Pending) -> None:
        index = self._index
        if index is not None:
            index.pending.append(pending)
            if len(index.pending) > PENDING_MAX:
                index.step(_INDEXED_AT_ONCE)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        records: Sequence[bytearray],
        tags_codes: Sequence[int],
        keys: Sequence[Sequence[str]],
    ) -> PutResult:
        """Store all records, with consecutive queue offsets in one file, or none.

        Raises:
            The errors of :meth:`put`; also StoreError for an empty batch.
        """
        if not records:
            raise StoreError("a batch of no records cannot be stored")
        queue = self._writable_queue(topic, queue_id)
        began_ms = timestamp = self._clock.now_ms()
        if timestamp < self._last_timestamp:
            timestamp = self._set_back(timestamp)
        queue.reserve(len(records))
        size = sum(map(len, records))
        first = self._log.room(size)
        offset = queue.max_offset
        physical = first
        physicals = []
        for number, record in enumerate(records):
            stamp_record(record, offset + number, physical, timestamp)
            physicals.append(physical)
            physical += len(record)
        self._log.write(b"".join(records))
        spent_ms = self._clock.now_ms() - began_ms
        if spent_ms > 0:
            self.put_times.slow(spent_ms, len(records))
        for start, record, code, words in zip(physicals, records, tags_codes, keys, strict=True):
            queue.append(start, len(record), code)
            if self._index is not None:
                self._index.pending.append((start, timestamp, topic, words))
        queue.counted_batched += len(records) - 1
        if not queue.dirty:
            self._keeper.mark_dirty(queue)
        self._last_timestamp = timestamp
        self._log.end = physical
        if self.on_arrival is not None:
            for number, code in enumerate(tags_codes):
                self.on_arrival(topic, queue_id, offset + number + 1, code)
        return PutResult(first, offset, timestamp, size, physical, tuple(physicals))

    def put_many(self, drafts: Sequence[Draft]) -> tuple[list[Place], StoreError | None]:
        """Store usual messages of any queues, in one write where one file can hold them.

        They can be read when this returns, as after :meth:`put`.

        Returns:
            The places of the stored messages, which are the first ones, and the error of the
            others, as :meth:`put` would raise it; nothing of those is stored.
        """
        if len(drafts) == 1:
            try:
                return [self._put_draft(drafts[0])], None
            except StoreError as error:
                return [], error
        sizes = record_sizes(drafts)
        if self._log.holds(sum(sizes)):
            try:
                places = self._put_run(drafts, sizes)
            except StoreError as error:
                return [], error
            if places is not None:
                return places, None
        places = []
        for draft in drafts:
            try:
                places.append(self._put_draft(draft))
            except StoreError as error:
                return places, error
        return places, None

    def _put_draft(self, draft: Draft) -> Place:
        """Store one usual message alone, as most sends of a producer come.

        Raises:
            StoreError: the message is not stored.
        """
        key, code, keys = draft[0], draft[8], draft[9]
        queue = self._queues.get(key)
        if queue is None or self._flusher.error is not None or not self._takes_writes:
            queue = self._writable_queue(*key)
        log = self._log
        began_ms = timestamp = self._clock.now_ms()
        if timestamp < self._last_timestamp:
            timestamp = self._set_back(timestamp)
        queue.reserve()
        size = draft_size(draft)
        physical, offset = log.room(size), queue.max_offset
        log.write(b"".join(draft_parts(draft, size, offset, physical, timestamp)))
        spent_ms = self._clock.now_ms() - began_ms
        if spent_ms > 0:
            self.put_times.slow(spent_ms)
        queue.append(physical, size, code)
        if not queue.dirty:
            self._keeper.mark_dirty(queue)
        self._last_timestamp = timestamp
        log.end = physical + size
        self._to_index((physical, timestamp, key[0], keys))
        if self.on_arrival is not None:
            self.on_arrival(*key, offset + 1, code)
        return physical, offset

    def put_together(self, drafts: Sequence[Draft]) -> PutResult:
        """Store all usual messages, with consecutive offsets of one queue in one file, or none.

        Raises:
            The errors of :meth:`put`.
        """
        sizes = record_sizes(drafts)
        places = self._put_run(drafts, sizes)
        assert places, "one queue's files have their places"
        self._queues[drafts[0][0]].counted_batched += len(drafts) - 1
        physicals = tuple([physical for physical, _ in places])
        first, offset = places[0]
        return PutResult(first, offset, self._last_timestamp, sum(sizes), self._log.end, physicals)

    def _put_run(self, drafts: Sequence[Draft], sizes: Sequence[int]) -> list[Place] | None:
        """Write records together; None when too few queue files can be mapped for that.

        Raises:
            StoreError: no record is stored.
        """
        known = self._queues
        if self._flusher.error is not None or not self._takes_writes:
            self._writable_queue(*drafts[0][0])
        queues = [known.get(draft[0]) or self._writable_queue(*draft[0]) for draft in drafts]
        began_ms = timestamp = self._clock.now_ms()
        if timestamp < self._last_timestamp:
            timestamp = self._set_back(timestamp)
        log = self._log
        physical = log.room(sum(sizes))
        places, ends, records = lay_out(drafts, sizes, queues, physical, timestamp)
        for queue, end in ends.items():
            queue.reserve(end - queue.max_offset)
        if len(ends) > 1 and not all(queue.is_ready(end) for queue, end in ends.items()):
            return None  # one queue's map was given up for another's
        log.write(records)
        spent_ms = self._clock.now_ms() - began_ms
        if spent_ms > 0:
            self.put_times.slow(spent_ms, len(drafts))
        index = self._index
        for queue, size, (physical, _), draft in zip(queues, sizes, places, drafts, strict=True):
            queue.append(physical, size, draft[8])
            if index is not None:
                index.pending.append((physical, timestamp, draft[0][0], draft[9]))
        for queue in ends:
            if not queue.dirty:
                self._keeper.mark_dirty(queue)
        self._last_timestamp = timestamp
        log.end = physical + size
        if index is not None and len(index.pending) > PENDING_MAX:
            index.step(2 * len(drafts))
        if self.on_arrival is not None:
            for (topic, queue_id), (_, offset), draft in zip(
                [draft[0] for draft in drafts], places, drafts, strict=True
            ):
                self.on_arrival(topic, queue_id, offset + 1, draft[8])
        return places

    def _set_back(self, timestamp: int) -> int:
        """Return the store timestamp for a record when the clock is behind the last record's.

        A search by time relies on growing timestamps, so a small step back is hidden; but a clock
        that was wrong by more and was corrected must be believed.
        """
        last = self._last_timestamp
        return last if last - timestamp <= limits.STORE_STAMP_HELD_MS_MAX else timestamp

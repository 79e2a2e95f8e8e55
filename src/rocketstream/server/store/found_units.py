"""Units of consume queues that a walk over the log has found, to be written together.

The plain case takes 20 bytes a record; in any other case, and beyond its bound, it reports that the
log must be walked again.
"""

from __future__ import annotations

from rocketstream.server.store.consume_queue import UNIT, ConsumeQueue
from rocketstream.server.store.dispatch import DispatchEntry, enters_queue, queue_code
from rocketstream.server.store.queue_file import UNIT_BYTES

RECORDS_MAX = 2_000_000
"""40 MB of units; further ones are not remembered."""


class FoundUnits:
    """The units each queue lacks: consecutive ones from some offset on.

    Args:
        delay_levels_ms: delays by which units of the schedule queues are made.
    """

    def __init__(self, delay_levels_ms: tuple[int, ...]) -> None:
        self._delay_levels_ms = delay_levels_ms
        self._queues: dict[tuple[str, int], tuple[int, bytearray]] = {}
        self._count = 0
        self.is_plain = True
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

    def fit(self, queues: dict[tuple[str, int], ConsumeQueue]) -> bool:
        """Return whether the units continue the queues, so that they only need to be appended."""
        ends = {key: queue.max_offset for key, queue in queues.items()}
        return self.is_plain and all(
            ends.get(key, 0) == first for key, (first, _) in self._queues.items()
        )

    def items(self) -> list[tuple[tuple[str, int], bytearray]]:
        """Return topic and queue id of each queue with its units."""
        return [(key, units) for key, (_, units) in self._queues.items() if units]

"""Delay levels, and how far each level's queue of delayed messages has been delivered.

Law: pure. Upstream: ScheduleMessageService (C-403 to C-411, W 5.8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.bodies import DelayOffsetTable

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 64
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})(ms|[smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delay in ms of each level, the first being level 1.

    Raises:
        ConfigurationError: not a list like ``1s 5s 10m``.
    """
    parts = text.split()
    found = [_LEVEL.fullmatch(part) for part in parts]
    if not parts or len(parts) > LEVELS_MAX or None in found:
        raise ConfigurationError(
            f"delay levels {text!r} are not accepted: give 1 to {LEVELS_MAX} delays separated by "
            "spaces, each a whole number and ms, s, m, h or d, such as '1s 5s 10m'",
            delay_levels=text,
        )
    return tuple(int(m[1]) * _UNIT_MS[m[2]] for m in found if m)


def queue_of_level(level: int) -> int:
    """The queue of SCHEDULE_TOPIC_XXXX that holds a level."""
    return level - 1


@dataclass(frozen=True, slots=True)
class DelayedEntry:
    """One entry of a level's queue; its tags code is the time it is due."""

    queue_offset: int
    physical_offset: int
    size: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class DueWork:
    """What to deliver now, and when the next entry is due (None: nothing known to wait for)."""

    deliver: Sequence[DelayedEntry]
    next_due_ms: int | None


class DelaySchedule:
    """The delays of the levels and the next undelivered offset of each.

    ``generation`` moves with every delivery, so that a writer knows what it has saved.
    """

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = tuple(delays_ms)
        self._offsets: dict[int, int] = {}
        self.generation = 0

    @property
    def levels(self) -> range:
        """The levels, from 1."""
        return range(1, len(self._delays_ms) + 1)

    def clamp(self, level: int) -> int:
        """A level above the last is the last one (C-403)."""
        return min(level, len(self._delays_ms))

    def delay_ms(self, level: int) -> int:
        """The delay of a level."""
        return self._delays_ms[level - 1]

    def load(self, table: DelayOffsetTable) -> None:
        """Take over what a file holds."""
        self._offsets = dict(table.offset_table)

    def snapshot(self) -> DelayOffsetTable:
        """Return a copy for a file."""
        return DelayOffsetTable(dict(self._offsets))

    def offset(self, level: int) -> int:
        """The next offset to deliver of a level."""
        return self._offsets.get(level, 0)

    def correct(self, level: int, min_offset: int, max_offset: int) -> int:
        """Move an offset that is outside its queue to the nearer end; return it (C-409)."""
        offset = min(max(self.offset(level), min_offset), max_offset)
        if offset != self.offset(level):
            self.delivered(level, offset)
        return offset

    def delivered(self, level: int, next_offset: int) -> None:
        """Everything below ``next_offset`` of the level has been delivered."""
        self._offsets[level] = next_offset
        self.generation += 1

    def due(self, level: int, entries: Sequence[DelayedEntry], now_ms: int) -> DueWork:
        """Split the next entries of a level into those due and the time of the first that is not.

        A due time further away than the level's delay comes from a clock that was ahead: it
        counts as due (C-405).
        """
        latest = now_ms + self.delay_ms(level)
        for index, entry in enumerate(entries):
            if now_ms < entry.due_ms <= latest:
                return DueWork(entries[:index], entry.due_ms)
        return DueWork(entries, None)

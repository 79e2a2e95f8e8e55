"""Delay levels, and how far each level's queue of delayed messages has been delivered.

Pure: times come in. Upstream: ScheduleMessageService (C-403 to C-411).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.bodies import DelayOffsetTable

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 64
CLOCK_SET_MS: Final = 1_000
"""A wall clock that moved this far against the steady clock was set; less is drift."""
_DUE_TOLERANCE_MS: Final = 2 * CLOCK_SET_MS
"""A due time and the time of storing are taken one after the other, of clocks that may drift."""
_RETIRED_DELAY_MS: Final = 7 * 86_400_000
"""The longest wait believed of a message whose level is no longer among those given."""
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})(ms|[smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delay in ms of each level, the first being level 1.

    Raises:
        ConfigurationError: the text is not a list like ``1s 5s 10m``.
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


_DEFAULT_DELAYS_MS: Final = parse_delay_levels(DEFAULT_DELAY_LEVELS)


@dataclass(frozen=True, slots=True)
class DelayedEntry:
    """One entry of a level's queue; its tags code is the time it is due."""

    queue_offset: int
    physical_offset: int
    size: int
    due_ms: int


class PutRight(NamedTuple):
    """An entry whose due time no delay level can have, and the time it is due."""

    entry: DelayedEntry
    due_ms: int


@dataclass(frozen=True, slots=True)
class DueWork:
    """The entries to deliver now, and when the next one is due (None: no known entry).

    ``put_right`` names entries with a wrong due time, each once.
    """

    deliver: Sequence[DelayedEntry]
    next_due_ms: int | None
    put_right: Sequence[PutRight] = ()


class _Era(NamedTuple):
    """From ``first_offset`` on, due times were written by a wall clock ``skew_ms`` ahead."""

    first_offset: int
    skew_ms: int


class _Ahead(NamedTuple):
    """Entries below an offset were stored by ``seen_ms``, and wait no longer from then on."""

    below_offset: int
    seen_ms: int


class DelaySchedule:
    """The delays of the levels and the next undelivered offset of each.

    Due times are written by the wall clock, the only clock that a restart, or Apache's broker on
    the same store, can compare them with. While this broker runs they are compared with the clock
    that only grows: the schedule remembers which of them were written before the wall clock was
    set.

    ``generation`` grows with every delivery, so that a writer knows what it has saved.
    """

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = tuple(delays_ms)
        self._count = len(self._delays_ms)
        self._offsets: dict[int, int] = {}
        self._eras: defaultdict[int, list[_Era]] = defaultdict(list)
        self._ahead: dict[int, _Ahead] = {}
        self._right: dict[int, PutRight] = {}
        self._waited_ms: dict[int, int] = {}
        """How long the last entry examined waits, by level."""
        self.generation: int = 0

    @property
    def levels(self) -> range:
        """The levels to deliver of, from 1: those given, and those that were given before."""
        return range(1, self._count + 1)

    def keep(self, count: int) -> None:
        """Deliver of ``count`` levels at least: an earlier run had as many, and left messages.

        A message of a level that is no longer given is due when it was said to be. Upstream's
        broker leaves it where it is.
        """
        self._count = max(self._count, count)

    def clamp(self, level: int) -> int:
        """Return the level to use: a level above the last is the last one (C-403)."""
        return min(level, len(self._delays_ms))

    def delay_ms(self, level: int) -> int:
        """The delay of a level; of one that is no longer given, the longest it may have had."""
        given = level <= len(self._delays_ms)
        return self._delays_ms[level - 1] if given else _RETIRED_DELAY_MS

    def load(self, table: DelayOffsetTable) -> None:
        """Take over the content of a file."""
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
        """Note that everything below ``next_offset`` of the level has been delivered."""
        self._offsets[level] = next_offset
        self.generation += 1
        eras = self._eras[level]
        while len(eras) > 1 and eras[1].first_offset <= next_offset:
            del eras[0]

    def stamp(self, level: int, offset: int, wall_ms: int, steady_ms: int) -> int:
        """Return the due time to write for a message that is stored now (ms since 1970).

        Args:
            level: its delay level.
            offset: its offset in the level's queue.
            wall_ms: the wall clock.
            steady_ms: the wall clock of this broker's start plus the time since then.
        """
        skew_ms = self._skew_ms(level, offset)
        if abs(wall_ms - steady_ms - skew_ms) >= CLOCK_SET_MS:
            skew_ms = wall_ms - steady_ms
            self._eras[level].append(_Era(offset, skew_ms))
        return steady_ms + skew_ms + self.delay_ms(level)

    def due(
        self,
        level: int,
        entries: Sequence[DelayedEntry],
        now_ms: int,
        max_offset: int,
        stored_ms: Callable[[DelayedEntry], int] = lambda entry: -1,
    ) -> DueWork:
        """Return the entries of a level that are due, and the due time of the first that is not.

        A due time that no delay level can have is put right: it would be delivered too early, or
        hold up all behind it.

        A due time further away than the level's delay comes from a clock, or a level, that was
        ahead. Apache's broker delivers such a message at once (C-405), too early by up to the whole
        delay; here it waits for the level's delay once more.

        Args:
            level: the delay level.
            entries: its next entries, in order.
            now_ms: time by the steady clock, as is ``next_due_ms`` of the result.
            max_offset: end of the level's queue.
            stored_ms: returns when an entry's message was stored, -1 when that is unknown.
        """
        told: list[PutRight] = []
        for index, entry in enumerate(entries):
            wrong = self._wrong(level, entries[index : index + 2], stored_ms)
            if wrong is not None and wrong != self._right.get(level):
                self._right[level] = wrong
                told.append(wrong)
            due_ms = entry.due_ms if wrong is None else wrong.due_ms
            due_ms -= self._skew_ms(level, entry.queue_offset)
            ahead = self._ahead.get(level)
            is_seen = ahead is not None and entry.queue_offset < ahead.below_offset
            longest_ms = self._longest_ms(level, entry, stored_ms)
            if due_ms > now_ms + longest_ms and not is_seen:
                ahead, is_seen = _Ahead(max_offset, now_ms), True
                self._ahead[level] = ahead
            if ahead is not None and is_seen:
                due_ms = min(due_ms, ahead.seen_ms + longest_ms)
            if now_ms < due_ms:
                return DueWork(entries[:index], due_ms, tuple(told))
        return DueWork(entries, None, tuple(told))

    def _longest_ms(
        self, level: int, entry: DelayedEntry, stored_ms: Callable[[DelayedEntry], int]
    ) -> int:
        """Return how long an entry waits at most: of a level no longer given as long as it was to.

        Its due time alone may be hours away: the clock it is by may have been set back meanwhile.
        """
        if level > len(self._delays_ms) and 0 <= (stored := stored_ms(entry)) <= entry.due_ms:
            return entry.due_ms - stored
        return self.delay_ms(level)

    def _wrong(
        self,
        level: int,
        entries: Sequence[DelayedEntry],
        stored_ms: Callable[[DelayedEntry], int],
    ) -> PutRight | None:
        """Return when the first of two entries is due, if its own time cannot be.

        Messages that were stored under other levels are due by those levels: they wait as long as
        their neighbours, or as long as some level. The next entry tells which of two times is right
        where the record, too, may be damaged: the entries of a level are due in their order.
        """
        entry = entries[0]
        stored = stored_ms(entry)
        waits_ms = entry.due_ms - stored
        known = (self.delay_ms(level), *self._delays_ms, *_DEFAULT_DELAYS_MS)
        if stored < 0 or _is_near(waits_ms, (*known, self._waited_ms.get(level, known[0]))):
            return None
        right = PutRight(entry, stored + self.delay_ms(level))
        if len(entries) == 1:
            longest = max(*self._delays_ms, self.delay_ms(level))
            # Times of storing do not go back with the clock; a level no longer given says no more.
            shortest = 0 if level <= len(self._delays_ms) else -math.inf
            return None if shortest <= waits_ms <= longest else right
        following = entries[1]
        if _is_near(waits_ms, (following.due_ms - stored_ms(following),)):
            self._waited_ms[level] = waits_ms
            return None
        latest_ms = following.due_ms + _DUE_TOLERANCE_MS
        is_late = entry.due_ms > right.due_ms
        return (
            right if (entry.due_ms > latest_ms if is_late else right.due_ms <= latest_ms) else None
        )

    def _skew_ms(self, level: int, offset: int) -> int:
        for era in reversed(self._eras[level]):
            if offset >= era.first_offset:
                return era.skew_ms
        return 0


def _is_near(waits_ms: int, delays_ms: Sequence[int]) -> bool:
    return any(abs(waits_ms - each) <= _DUE_TOLERANCE_MS for each in delays_ms)

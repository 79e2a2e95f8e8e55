"""The schedule of looks into groups and their members: which group, and how often.

Pure: windows and times in, a group out. Each look makes members dump their threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rocketstream.admin.core.pinned import HELD_MS
from rocketstream.admin.core.windows import relevant
from rocketstream.admin.state import Cause, GroupState, PinnedMessage, WhyReport

STANDS_MS: Final = HELD_MS
"""A queue that stood still for less is not asked about: its member may simply be working on a
message, and a look that finds nothing delays the next one.
"""
AT_ONCE_MAX: Final = 4
AT_ONCE_MS: Final = 2_000
"""After each sweep this many groups are looked into at most, or as many as take so long."""
AGAIN_MS: Final = 60_000
"""The least time between two looks into the same group."""


class Looks:
    """Keeps the results of looks into groups, one group at a time. Not thread safe."""

    def __init__(self) -> None:
        self._looked_ms: dict[str, int] = {}
        self._found: dict[str, WhyReport] = {}

    def next_group(self, windows: Mapping[str, Sequence[GroupState]], now_ms: int) -> str | None:
        """Return the group to look into now: one with a queue standing still before all others.

        Only groups with members are looked into, each once a minute at most; None for none.
        """
        self._looked_ms = {g: at for g, at in self._looked_ms.items() if g in windows}
        self._found = {g: found for g, found in self._found.items() if g in windows}
        due = [
            (not has_standing(window), self._looked_ms.get(group, 0), group)
            for group, window in windows.items()
            if abs(now_ms - self._looked_ms.get(group, 0)) >= AGAIN_MS and has_run(window)
        ]
        return min(due)[2] if due else None

    def keep(self, group: str, found: WhyReport | None, now_ms: int) -> None:
        """Keep the result of a look; None where nobody could be asked."""
        self._looked_ms[group] = now_ms
        if found is None:
            self._found.pop(group, None)
        else:
            self._found[group] = found

    def pinned(self, group: str) -> tuple[PinnedMessage, ...]:
        """Return the pinned messages that the last look into a group found."""
        found = self._found.get(group)
        return () if found is None else found.pinned

    def causes(self, group: str) -> tuple[Cause, ...]:
        """Return the causes that the last look into a group found."""
        found = self._found.get(group)
        return () if found is None else found.causes


def has_run(window: Sequence[GroupState]) -> bool:
    """Return whether members have been there for half a minute, which a rebalance takes."""
    if not window or not window[-1].members:
        return False
    now_ms = window[-1].taken_ms
    return any(state.members and now_ms - state.taken_ms >= STANDS_MS for state in window)


def has_standing(window: Sequence[GroupState]) -> bool:
    """Return whether members are there, and a queue of theirs stood still with messages waiting."""
    if not window or not window[-1].members:
        return False
    now = window[-1]
    older = next((s for s in reversed(window) if now.taken_ms - s.taken_ms >= STANDS_MS), None)
    if older is None:
        return False
    before = {queue.key: queue.committed_offset for queue in older.queues}
    return any(
        (queue.waiting or 0) > 0
        and relevant(now, queue)
        and queue.key in before
        and before[queue.key] == queue.committed_offset
        for queue in now.queues
    )

"""The pace of sweeps and looks: when the next sweep begins, and which groups are looked into.

Pure: costs, windows and times in; pauses and groups out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rocketstream.admin.core.held import HELD_MS
from rocketstream.admin.core.windows import relevant
from rocketstream.admin.state import GroupState

SHARE_MAX: Final = 0.25
"""The largest share of the time spent sweeping: at least 15 s of pause follow a sweep of 5 s."""
STRETCH_MAX: Final = 4
"""While some brokers fail, the interval grows to at most this many times its length."""
OUTAGE_INTERVAL_S: Final = 30.0
"""While nothing answers, the interval grows to this, or stays as it is if it is longer."""
BETWEEN_S: Final = 1.0
"""The least time between the beginnings of two sweeps, however often a refresh is asked for."""
STANDS_MS: Final = HELD_MS
"""A queue that stood still for less is not asked about: its member may simply be working on a
message, and a look that finds nothing delays the next one.
"""
AGAIN_MS: Final = 60_000
"""The least time between two looks of the collection's own into the same group: each look makes
members dump their threads.
"""
ROUND_MAX: Final = 40
ROUND_MS: Final = 2_000
"""After each sweep this many groups are looked into at most, or as many as are begun in this time.
"""


def pause_s(
    interval_s: float, took_s: float, *, failed_sweeps: int = 0, failing_sweeps: int = 0
) -> float:
    """Return how long to wait after a sweep until the next begins.

    Args:
        interval_s: the configured time from the beginning of one sweep to that of the next.
        took_s: how long the sweep took.
        failed_sweeps: how many sweeps in a row got no answer at all.
        failing_sweeps: how many sweeps in a row found some brokers that did not answer.
    """
    interval = interval_s
    if failed_sweeps:
        interval = min(interval_s * 2 ** min(failed_sweeps, 10), max(interval_s, OUTAGE_INTERVAL_S))
    elif failing_sweeps:
        interval = interval_s * min(2 ** min(failing_sweeps, 10), STRETCH_MAX)
    resting = took_s / SHARE_MAX - took_s
    return max(interval - took_s, resting, 0.0)


def early_pause_s(since_begin_s: float, took_s: float) -> float:
    """Return how long a requested sweep still has to wait, in seconds: 0 when it may begin now.

    Args:
        since_begin_s: how long ago the last sweep began.
        took_s: how long that sweep took.
    """
    return max(BETWEEN_S - since_begin_s, took_s * 2 - since_begin_s, 0.0)


class LookTimes:
    """When each group was looked into, and which are due; not thread safe."""

    def __init__(self) -> None:
        self._looked_ms: dict[str, int] = {}

    def looked(self, group: str, now_ms: int) -> None:
        """Note a look, whether it found anything or not."""
        self._looked_ms[group] = now_ms

    def due(self, windows: Mapping[str, Sequence[GroupState]], now_ms: int) -> list[str]:
        """Return the groups to look into now: those with a queue standing still before all others,
        then those whose last look is the oldest.

        Only groups with members are looked into by the collection, each once a minute at most.
        """
        self._looked_ms = {g: at for g, at in self._looked_ms.items() if g in windows}
        due = [
            (not has_standing(window), self._looked_ms.get(group, 0), group)
            for group, window in windows.items()
            if abs(now_ms - self._looked_ms.get(group, 0)) >= AGAIN_MS and has_run(window)
        ]
        return [group for _, _, group in sorted(due)[:ROUND_MAX]]


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

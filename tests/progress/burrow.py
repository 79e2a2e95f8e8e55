"""Burrow's five rules over commits of offsets, to compare verdicts with.

Written from Burrow's wiki and the behaviour of its evaluator. Law: pure. A partition is judged by
the last ten commits once there are ten, a minute apart as its wiki assumes, or as they come; a
group is as bad as its worst partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

OK, WARN, ERR = "OK", "WARN", "ERR"
COMMITS = 10
APART_MS = 60_000
AS_THEY_COME_MS = 5_000
ENDS_MS = 100_000
"""Burrow keeps the ends of a partition of its last ten looks, ten seconds apart."""
ORDER = (OK, WARN, ERR)


@dataclass
class Partition:
    """The commits kept of one partition: when, the offset, and the lag; and its recent ends."""

    apart_ms: int
    commits: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=COMMITS))
    ends: deque[tuple[int, int]] = field(default_factory=deque)

    def commit(self, at_ms: int, offset: int, lag: int) -> None:
        if not self.commits or at_ms - self.commits[-1][0] >= self.apart_ms:
            self.commits.append((at_ms, offset, lag))

    def status(self, end: int, lag: int, now_ms: int) -> str:
        """Return its status where it ends there and so many messages wait now."""
        self.ends.append((now_ms, end))
        while self.ends[0][0] < now_ms - ENDS_MS:
            self.ends.popleft()
        found = list(self.commits)
        if len(found) < COMMITS or lag <= 0:
            return OK
        offsets, lags = [each[1] for each in found], [each[2] for each in found]
        stopped = now_ms - found[-1][0] > found[-1][0] - found[0][0]
        if stopped and all(each > offsets[-1] for _, each in self.ends):
            return ERR  # no commit for as long as the window is
        if 0 in lags:
            return OK  # it was done with everything within the window
        if any(later < earlier for earlier, later in pairwise(offsets)):
            return ERR  # rewound
        if len(set(offsets)) == 1:
            return ERR  # stalled: commits that do not move
        return WARN if lags == sorted(lags) else OK  # it moves, and its lag never falls


class Burrow:
    """The partitions of one group, with their commits so far apart."""

    def __init__(self, apart_ms: int = APART_MS) -> None:
        self._apart_ms = apart_ms
        self._partitions: dict[object, Partition] = {}

    def commit(self, partition: object, at_ms: int, offset: int, lag: int) -> None:
        if partition not in self._partitions:
            self._partitions[partition] = Partition(self._apart_ms)
        self._partitions[partition].commit(at_ms, offset, lag)

    def status(self, ends: Iterable[tuple[object, int, int]], now_ms: int) -> str:
        """Return the group's status, of the end of each partition and what waits there."""
        found = [
            self._partitions[at].status(end, lag, now_ms)
            for at, end, lag in ends
            if at in self._partitions
        ]
        return max(found, key=ORDER.index, default=OK)

"""Messages behind a group, and when they are worth an event.

Pure: offsets and the time go in, events come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rocketstream.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Position:
    """How far a group is in one queue.

    Attributes:
        low: offset of the oldest message kept.
        committed: the group's offset, None where it has none.
        end: offset the next message will get.
    """

    low: int
    committed: int | None
    end: int

    @property
    def next(self) -> int:
        """The first offset the group has not consumed.

        An offset beyond the end is of a queue that was made anew: nothing of it counts as consumed.
        """
        if self.committed is None or self.committed > self.end:
            return self.low
        return max(self.low, self.committed)

    @property
    def behind(self) -> int:
        """How many messages the group has not consumed."""
        return max(0, self.end - self.next)


class Backlog:
    """Decides when messages behind a group are told; keeps in mind what was told last.

    Messages are told once, and no others until the group has come past those: a run that takes long
    would otherwise have a queue of runs behind it, one for each time messages came meanwhile. Where
    the group does not come past them (the run failed, or the event met a paused DAG) they are told
    again after a while. Nothing is lost with this object: a new one tells whatever is behind.

    Args:
        repeat_after_ms: how long after they were told the same messages are told again.
    """

    def __init__(self, repeat_after_ms: float) -> None:
        self._repeat_after_ms = repeat_after_ms
        self._told: Mapping[MessageQueue, int] = {}
        self._told_ms = float("-inf")

    def look(
        self, positions: Mapping[MessageQueue, Position], now_ms: float
    ) -> dict[str, int] | None:
        """Return how many messages of each topic are to be told now, None for no event.

        Args:
            positions: all queues watched; one left out counts as one without messages behind.
            now_ms: a time that never goes back.
        """
        behind = {queue: position for queue, position in positions.items() if position.behind}
        waits = any(
            queue in behind and behind[queue].next < end for queue, end in self._told.items()
        )
        if not behind or (waits and now_ms - self._told_ms < self._repeat_after_ms):
            return None
        self._told = {queue: position.end for queue, position in behind.items()}
        self._told_ms = now_ms
        told: Counter[str] = Counter()
        for queue, position in sorted(behind.items()):
            told[queue.topic] += position.behind
        return dict(told)

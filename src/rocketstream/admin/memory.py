"""The memory of an ``Admin`` from sweep to sweep, so that the next costs less and misses less.

Law: lent to one sweep at a time; bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketstream import limits

if TYPE_CHECKING:  # topics are listed without them
    from rocketstream.admin.core.joining import BrokerAnswers, Times
    from rocketstream.admin.state import QueueState

Spot = tuple[str, int, int]
"""Topic, queue and offset."""


@dataclass(slots=True)
class BrokerMemory:
    """The remembered answers of one broker.

    Attributes:
        delayed: the group of each message waiting for its delay, by delay level and offset; blank
            where the message is not a group's retry.
        ahead_ms: by how much its clock was ahead of ours when it was last asked.
    """

    delayed: dict[int, dict[int, str]] = field(default_factory=dict)
    ahead_ms: int | None = None
    _times: dict[Spot, Times] = field(default_factory=dict)
    _used: dict[Spot, Times] = field(default_factory=dict)
    _ends: dict[tuple[str, int], int] = field(default_factory=dict)

    def times_at(self, queue: QueueState) -> Times | None:
        """Return the store times at a group's place; they do not change while it stands there."""
        times = self._times.get(spot(queue))
        if times is not None:
            self._used[spot(queue)] = times
        return times

    def keep_times(self, queue: QueueState, times: Times) -> None:
        """Remember store times that were answered."""
        if times[0] is not None:
            self._used[spot(queue)] = times

    def compare_ends(self, broker: BrokerAnswers) -> None:
        """Forget queues that have fewer messages than before: they were deleted and made again."""
        renewed: set[tuple[str, int]] = set()
        for topic, ends in broker.ends.items():
            for queue_id, held in ends.items():
                if held.max_offset < self._ends.get((topic, queue_id), 0):
                    renewed.add((topic, queue_id))
                self._ends[topic, queue_id] = held.max_offset
        if renewed:
            self._times = {at: t for at, t in self._times.items() if at[:2] not in renewed}

    def end_sweep(self, everything: bool) -> None:
        """Keep the used answers; of the rest keep those a smaller sweep did not look at."""
        kept = {} if everything else self._times
        if len(kept) + len(self._used) > limits.ADMIN_STORE_TIMES_MAX:
            kept = {}
        self._times = {**kept, **self._used}
        self._used = {}

    def forget_delivered(self, level: int, first: int) -> range:
        """Forget delivered messages; return the known offsets from ``first`` on."""
        known = self.delayed.setdefault(level, {})
        if sum(map(len, self.delayed.values())) > limits.ADMIN_DELAYED_KEPT_MAX:
            known.clear()
        for offset in [offset for offset in known if offset < first]:
            del known[offset]
        return range(first, max(known, default=first - 1) + 1)

    def delayed_by_topic(self) -> dict[str, int]:
        """Return how many messages wait for their delay, by the topic they will go to."""
        found: dict[str, int] = {}
        for known in self.delayed.values():
            for topic in known.values():
                found[topic] = found.get(topic, 0) + 1
        return found


@dataclass(slots=True)
class SweepMemory:
    """The memory of one ``Admin`` of its cluster.

    Attributes:
        brokers: the answers of each broker, by its name.
        seen: cluster, and when it was last registered, of each broker by its name: one may vanish.
        queues: the queues each broker reported of each group, in case it falls silent.
    """

    brokers: dict[str, BrokerMemory] = field(default_factory=dict)
    seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    queues: dict[str, dict[str, frozenset[tuple[str, int]]]] = field(default_factory=dict)


def spot(queue: QueueState) -> Spot:
    """Return where a group's next message is: deleted ones will not be consumed."""
    following = max(queue.committed_offset or 0, queue.min_offset or 0)
    return queue.topic, queue.queue_id, following

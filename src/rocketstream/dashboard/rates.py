"""Messages a second that arrive, by topic and queue, from the queues' ends in two sweeps.

Pure: arithmetic over the given states; bounded by the cluster's own queues.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from rocketstream.admin.state import ClusterState

SPAN_MS: Final = 60_000
STATES_MAX: Final = 8
Ends = dict[tuple[str, str, int], int]


class TopicRates:
    """Rates over the last minute, or as far back as sweeps reach.

    One thread adds and others read; the values they read are replaced as a whole.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Ends]] = deque()
        self._queues: dict[tuple[str, str, int], float] = {}
        self._topics: dict[str, float] = {}

    def add(self, state: ClusterState) -> None:
        """Add the result of a sweep."""
        ends = {
            (queue.topic, queue.broker_name, queue.queue_id): queue.max_offset
            for topic in state.topics.values()
            for queue in topic.queues
        }
        if self._seen and state.taken_ms <= self._seen[-1][0]:
            self._seen.clear()  # the clock went back: earlier states give no rate
        self._seen.append((state.taken_ms, ends))
        while len(self._seen) > 2 and (
            len(self._seen) > STATES_MAX or state.taken_ms - self._seen[1][0] >= SPAN_MS
        ):
            self._seen.popleft()
        self._count(ends)

    def rate(self, topic: str) -> float | None:
        """Return messages a second of a topic; None after one sweep, or for a topic made since."""
        return self._topics.get(topic)

    def queue_rate(self, topic: str, broker_name: str, queue_id: int) -> float | None:
        """Return messages a second of one queue."""
        return self._queues.get((topic, broker_name, queue_id))

    def total(self) -> float | None:
        """Return messages a second of all topics together; None after one sweep."""
        return sum(self._topics.values()) if len(self._seen) > 1 else None

    def _count(self, ends: Ends) -> None:
        began_ms, first = self._seen[0]
        seconds = (self._seen[-1][0] - began_ms) / 1_000
        if seconds <= 0:
            self._queues, self._topics = {}, {}
            return
        queues: dict[tuple[str, str, int], float] = {}
        topics: dict[str, float] = {}
        for queue, high in ends.items():
            low = first.get(queue)
            if low is None:
                continue
            # The ends of a topic that was deleted and made again begin at 0.
            rate = max(high - low, 0) / seconds
            queues[queue] = rate
            topics[queue[0]] = topics.get(queue[0], 0.0) + rate
        self._queues, self._topics = queues, topics

"""Which brokers are slow or failing, and for how long to send elsewhere (MQFaultStrategy).

Law: pure; time comes in as a number. One table per producer (C-465, C-466, C-603).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketstream.late import dataclass
from rocketstream.model import MessageQueue

LATENCY_MAX_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
ISOLATION_LATENCY_MS = 10_000
"""A failure counts as this latency: 10 s away by the table, never the ten minutes of C-603."""


@dataclass(frozen=True, slots=True)
class FaultItem:
    """What is known of one broker.

    Attributes:
        latency_ms: how long its last try took.
        available_at_ms: from when on it may be chosen again.
        reachable: False after a failure of the network, until a try or a probe succeeds.
    """

    broker_name: str
    latency_ms: float
    available_at_ms: float
    reachable: bool


class FaultTable:
    """The brokers something bad was noticed of; safe to share, since items are replaced whole.

    Args:
        latency_max: bounds in ms, ascending.
        not_available_duration: how long a broker is avoided that took at least that bound.
    """

    def __init__(
        self,
        latency_max: Sequence[int] = LATENCY_MAX_MS,
        not_available_duration: Sequence[int] = NOT_AVAILABLE_DURATION_MS,
    ) -> None:
        self._steps = tuple(zip(latency_max, not_available_duration, strict=True))
        self._items: dict[str, FaultItem] = {}

    def duration_ms(self, latency_ms: float) -> float:
        """Return for how long a broker with that latency is avoided (C-465)."""
        for bound, duration in reversed(self._steps):
            if latency_ms >= bound:
                return duration
        return 0.0

    def update(
        self,
        broker_name: str,
        latency_ms: float,
        now_ms: float,
        *,
        isolate: bool = False,
        reachable: bool = True,
    ) -> None:
        """Take in how a try went.

        Args:
            broker_name: whom it went to.
            latency_ms: how long it took.
            now_ms: monotonic time.
            isolate: it failed.
            reachable: False when it was the network that failed.
        """
        duration = self.duration_ms(ISOLATION_LATENCY_MS if isolate else latency_ms)
        if not duration and not isolate and reachable:
            self._items.pop(broker_name, None)  # nothing to remember of a healthy broker
            return
        item = FaultItem(broker_name, latency_ms, now_ms + duration, reachable)
        self._items[broker_name] = item

    def recovered(self, broker_name: str) -> None:
        """Take in that a probe reached the broker: it may be chosen again at once."""
        self._items.pop(broker_name, None)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """Whether the broker may be chosen."""
        item = self._items.get(broker_name)
        return item is None or (item.reachable and now_ms >= item.available_at_ms)

    def unreachable(self) -> list[str]:
        """Return the brokers the network failed for: those worth a probe."""
        return [item.broker_name for item in list(self._items.values()) if not item.reachable]

    def ranked(self, now_ms: float) -> list[str]:
        """Return the listed brokers, the most promising first (C-466)."""
        items = sorted(
            self._items.values(),
            key=lambda item: (
                not self.is_available(item.broker_name, now_ms),
                not item.reachable,
                item.latency_ms,
                item.available_at_ms,
            ),
        )
        return [item.broker_name for item in items]

    def choose(
        self, queues: Sequence[MessageQueue], next_index: Callable[[], int], now_ms: float
    ) -> MessageQueue | None:
        """Return the next queue on an available broker, or None (C-466)."""
        for _ in queues:
            queue = queues[next_index() % len(queues)]
            if self.is_available(queue.broker_name, now_ms):
                return queue
        return None

    def least_bad(
        self, queues: Sequence[MessageQueue], next_index: Callable[[], int], now_ms: float
    ) -> MessageQueue | None:
        """Return a queue on one of the better half of the listed brokers (pickOneAtLeast)."""
        of_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            of_broker.setdefault(queue.broker_name, []).append(queue)
        names = [name for name in self.ranked(now_ms) if name in of_broker]
        if not names:
            return None
        index = next_index()
        better = names[: max(1, len(names) // 2)]
        mine = of_broker[better[index % len(better)]]
        return mine[index // len(better) % len(mine)]

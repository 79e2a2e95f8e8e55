"""The postscript of a run: a few messages more when all is calm, which nothing may hold up.

While faults happen any delay has an excuse: a wake-up that is lost shows only here.
"""

from __future__ import annotations

from rocketstream.testing.history.events import CalmBegan
from rocketstream.testing.sim.producing import Habits, SimPostman
from rocketstream.testing.sim.world import World

CALM_MS = 45_000.0
"""By then clients have noticed each connection that has gone silent, though nothing closed it."""
LATEST_MS = 100_000.0
"""A run that needs longer to recover has none: its time would not do."""


class Postscript:
    """A producer that begins some time after the last fault, in some of the runs.

    Args:
        world: the world everything lives in.
        topic: where it sends.
        share: share of the runs that have one.

    Attributes:
        producers: the producer, once it has begun.
    """

    def __init__(self, world: World, topic: str, share: float) -> None:
        self.producers: list[SimPostman] = []
        self._world = world
        self._topic = topic
        self._is_due = world.random("postscript").random() < share
        self._healed_ms: float | None = None

    def is_over(self) -> bool:
        """Whether it is sent, or there is none; asked when everything before it is consumed."""
        now = self._world.now_ms
        if self._healed_ms is None:
            self._healed_ms = now
            self._is_due = self._is_due and self._is_in_time(now)
        if not self._is_due or self.producers:
            return True
        if now - self._healed_ms >= CALM_MS:
            self._world.history.append(CalmBegan(now))
            habits = Habits(self._topic, 12, 1_000.0)
            self.producers.append(SimPostman(self._world, "postman", habits))
            self.producers[0].node.start()
        return False

    def _is_in_time(self, now: float) -> bool:
        return now <= self._world.options.fault_ms + LATEST_MS

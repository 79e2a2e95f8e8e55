"""The existing queues and their ends, asked for no more often than needed.

The cluster's answers are kept for a moment; ``continuity`` decides what they mean for a stream.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from rocketstream._util.clock import Clock
from rocketstream.errors import RocketMQError, TransportError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster

logger = logging.getLogger("rocketstream.spark")

ENDS_LIFETIME_MS: Final = 100
"""How old the known ends of queues may be."""


class QueueEnds:
    """The queues of a stream's topics and their ends; used by one thread.

    Args:
        cluster: the cluster to ask.
        refresh_ms: how old the list of queues may be.
        clock: measures the age of answers.
    """

    def __init__(self, cluster: Cluster, refresh_ms: float, clock: Clock) -> None:
        self._cluster = cluster
        self._refresh_ms = refresh_ms
        self._clock = clock
        self.last: dict[MessageQueue, int] = {}
        """The ends as last seen."""
        self._ends_at = float("-inf")
        self._queues: list[MessageQueue] = []
        self._queues_at = float("-inf")

    def recent(self, held: Collection[str]) -> dict[MessageQueue, int]:
        """Return ends at most 100 ms old; blocks, and raises the errors of the cluster's answers.

        Args:
            held: topics with known offsets; such a topic may have no route.
        """
        if self._clock.monotonic_ms() - self._ends_at > ENDS_LIFETIME_MS:
            self.fresh(held)
        return self.last

    def are_younger(self, age_ms: float, held: Collection[str]) -> bool:
        """Whether the ends are that young, and of the existing queues; blocks as ``queues``."""
        if self._clock.monotonic_ms() - self._ends_at > age_ms:
            return False
        try:
            return self.last.keys() == set(self.queues(held))
        except RocketMQError:
            return False  # the caller that asks for the ends gets the error again, and handles it

    def fresh(self, held: Collection[str]) -> dict[MessageQueue, int]:
        """Return newly asked ends."""
        self.last = self._cluster.max_offsets(self.queues(held))
        self._ends_at = self._clock.monotonic_ms()
        return self.last

    def queues(self, held: Collection[str]) -> list[MessageQueue]:
        """Return the queues of the route, at most ``refresh_ms`` old."""
        now = self._clock.monotonic_ms()
        if now - self._queues_at > self._refresh_ms:
            try:
                self._queues = self._cluster.queues(refresh=True, held=held)
            except TransportError as error:
                if not self._queues:
                    raise
                logger.warning("queues not looked up anew: %s", error)
            self._queues_at = now
        return self._queues

    def forget_ends(self) -> None:
        """Ask for the ends again with the next question."""
        self._ends_at = float("-inf")

    def forget_queues(self) -> None:
        """Ask for queues and ends again with the next question."""
        self._queues_at = self._ends_at = float("-inf")

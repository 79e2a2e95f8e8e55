"""The groups that live in one client instance, what it needs of each and does with all of them.

On the instance's loop (C-116, C-143, C-149 to C-153, C-446).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from rocketstream.errors import ClientStateError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProducerData,
)
from rocketstream.protocol.headers import CheckTransactionStateRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import CLIENT_INNER_PRODUCER_GROUP

logger: logging.Logger = logging.getLogger("rocketstream.client")

UNBALANCED_RETRY_MS = 1_000
"""Pause before a rebalance that could not take all its queues is repeated (C-153)."""
_UNBALANCED_DOUBLINGS = 4


class ConsumerInner(ABC):
    """A consumer as the instance sees it; names are those the servers know.

    Attributes:
        group: the consumer group.
        consume_type: CONSUME_PASSIVELY for push, CONSUME_ACTIVELY for the pulling kinds (C-144).
        message_model: how the group shares a topic.
    """

    group: str
    consume_type: str
    message_model: MessageModel

    @abstractmethod
    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are wanted."""

    @abstractmethod
    def heartbeat_data(self) -> ConsumerData:
        """The consumer's part of a heartbeat."""

    @abstractmethod
    async def rebalance(self) -> bool:
        """Divide the queues again; return whether everything wanted was obtained."""

    @abstractmethod
    async def persist_offsets(self) -> None:
        """Send changed offsets to their brokers."""

    @abstractmethod
    def connection_lost(self, address: str) -> None:
        """A connection to ``address`` is gone: believe nothing that came over it any more."""

    @abstractmethod
    async def running_info(self) -> ConsumerRunningInfo:
        """Return kind, settings and progress of the consumer (307); the instance adds its own."""

    @abstractmethod
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues held, whatever was consumed (220)."""

    # --- not of every kind ------------------------------------------------------------------------

    def connection_made(self, address: str) -> None:  # noqa: B027  (few wait for one)
        """There is a connection to ``address``: what waits for one may go on."""

    def release(self, topics: Collection[str]) -> None:  # noqa: B027  (few use what they pull only)
        """Want no routes of topics that nobody uses, but for those that are subscribed."""

    def lite_topic_taken(self, name: str) -> None:  # noqa: B027  (few have lite topics)
        """Another member of the group has a lite topic from now on."""

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult | None:
        """Give one message to the listener now (309); None where there is no listener."""
        return None

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets noted for a topic (221); empty for kinds without."""
        return {}


CheckTransaction = Callable[
    [str, MessageExt, CheckTransactionStateRequestHeader], Coroutine[Any, Any, None]
]
"""Tells the broker at an address how the transaction of a message went (39)."""


class Groups:
    """Consumers and producers by group, and the topics producers were seen to use.

    Attributes:
        consumers: by group.
        producers: by group; None for one that cannot be asked about a transaction.
        producer_topics: topics sent to, whichever producer did.
    """

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerInner] = {}
        self.producers: dict[str, CheckTransaction | None] = {}
        self.producer_topics: set[str] = set()
        self._named: set[str] = set()
        """Topics that producers named from the start."""
        self._rebalance_wanted = asyncio.Event()

    def add_consumer(self, consumer: ConsumerInner) -> None:
        """Take a consumer in.

        Raises:
            ClientStateError: there is one of the group (C-116).
        """
        if consumer.group in self.consumers:
            raise ClientStateError(
                f"this client instance has a consumer of group {consumer.group!r} already; "
                "give this one another group, or an instance_name of its own"
            )
        self.consumers[consumer.group] = consumer

    def add_producer(
        self, group: str, topics: Iterable[str] = (), check: CheckTransaction | None = None
    ) -> None:
        """Take a producer in and keep the routes of its topics fresh.

        Args:
            group: the group, as the servers know it.
            topics: topics whose routes are wanted from the start.
            check: answers brokers that ask how a transaction went.

        Raises:
            ClientStateError: there is one of the group (C-446).
        """
        if group in self.producers:
            raise ClientStateError(
                f"this client instance has a producer of group {group!r} already; "
                "give this one another group, or an instance_name of its own"
            )
        self.producers[group] = check
        self._named.update(topics)
        self.producer_topics |= self._named

    def wanted_topics(self) -> set[str]:
        """Return the topics whose routes somebody needs."""
        topics = set(self.producer_topics)
        for consumer in self.consumers.values():
            topics.update(consumer.subscribed_topics())
        return topics

    def release(self, topics: Collection[str]) -> set[str]:
        """Want topics no more that nobody uses; return those whose routes nobody needs then.

        What was sent to stays with a producer of transactions: only brokers that know it can ask
        how one ended, and one that is away for long takes the routes of its topics along.
        """
        released = set(topics)
        if any(check is not None for check in self.producers.values()):
            released -= self.producer_topics
        self.producer_topics -= released - self._named
        for consumer in self.consumers.values():
            consumer.release(released)
            released.difference_update(consumer.subscribed_topics())
        return released

    def heartbeat_data(self, client_id: str) -> HeartbeatData | None:
        """Return what a heartbeat says; None when there is nothing to say (C-143)."""
        if not self.consumers and not self.producers:
            return None
        producers = dict.fromkeys((*self.producers, CLIENT_INNER_PRODUCER_GROUP))
        return HeartbeatData(
            client_id=client_id,
            consumer_data_set=[each.heartbeat_data() for each in self.consumers.values()],
            producer_data_set=[ProducerData(group) for group in producers],
        )

    # --- rebalance and offsets --------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance now instead of at the next round (C-150)."""
        self._rebalance_wanted.set()

    async def rebalance_forever(self, interval_ms: int) -> None:
        """Have every consumer rebalance in each interval, and when one is wanted (C-149)."""
        failures = 0
        while True:
            wait_ms = interval_ms
            if failures:
                backoff = UNBALANCED_RETRY_MS << min(failures - 1, _UNBALANCED_DOUBLINGS)
                wait_ms = min(wait_ms, backoff)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._rebalance_wanted.wait()
                    failures = 0
            self._rebalance_wanted.clear()
            failures = 0 if await self.rebalance() else failures + 1

    async def rebalance(self) -> bool:
        """Have every consumer rebalance; return whether all obtained what they wanted."""
        # At once: a group that waits for its listeners does not hold up the others.
        results = await asyncio.gather(*map(_rebalance, list(self.consumers.values())))
        return all(results)

    async def persist_offsets(self) -> None:
        """Have every consumer send its changed offsets."""
        await asyncio.gather(*map(_persist, list(self.consumers.values())))


async def _rebalance(consumer: ConsumerInner) -> bool:
    try:
        return await consumer.rebalance()
    except Exception:
        logger.exception("rebalance of group %s failed", consumer.group)
        return False


async def _persist(consumer: ConsumerInner) -> None:
    try:
        await consumer.persist_offsets()
    except Exception:
        logger.exception("offsets of group %s could not be stored", consumer.group)

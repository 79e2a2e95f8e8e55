"""The groups that live in one client instance, and what the instance needs of each.

Law: a table on the loop; asks nobody and waits for nothing (C-116, C-143, C-446).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

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


class ConsumerInner(Protocol):
    """What the instance needs of a consumer; names are those the servers know."""

    @property
    def group(self) -> str:
        """The consumer group."""
        ...

    @property
    def consume_type(self) -> str:
        """CONSUME_PASSIVELY for push, CONSUME_ACTIVELY for the pulling kinds (C-144)."""
        ...

    @property
    def message_model(self) -> MessageModel:
        """How the group shares a topic."""
        ...

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are wanted."""
        ...

    def heartbeat_data(self) -> ConsumerData:
        """The consumer's part of a heartbeat."""
        ...

    async def rebalance(self) -> bool:
        """Divide the queues anew; return whether everything wanted was obtained."""
        ...

    async def persist_offsets(self) -> None:
        """Send changed offsets to their brokers."""
        ...

    def connection_lost(self, address: str) -> None:
        """A connection to ``address`` is gone: believe nothing that came over it any more."""
        ...

    def connection_made(self, address: str) -> None:
        """There is a connection to ``address``: what waits for one may go on."""
        ...

    async def running_info(self) -> ConsumerRunningInfo:
        """What the consumer is and does (307); the instance adds what is its own."""
        ...

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult | None:
        """Give one message to the listener now (309); None when this kind cannot."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues held, whatever was consumed (220)."""
        ...

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets noted for a topic (221); empty for kinds without."""
        ...


class CallsNoListener:
    """What a consumer answers whose caller takes the messages: it has nobody to give one to."""

    def connection_made(self, address: str) -> None:
        """Nothing waits for a connection."""

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult | None:
        """Return None: there is no listener to be called (309)."""
        return None


class ProducerInner(Protocol):
    """What the instance needs of a producer; names are those the servers know."""

    @property
    def group(self) -> str:
        """The producer group."""
        ...

    def topics(self) -> Iterable[str]:
        """Topics sent to, whose routes are kept fresh."""
        ...

    def is_publish_topic_needs_update(self, topic: str) -> bool:
        """Whether the producer knows no queue to send ``topic`` to."""
        ...

    async def check_transaction_state(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        """Tell the broker at ``address`` how the transaction of ``message`` went (39)."""
        ...


class Groups:
    """Consumers and producers by group, and the topics producers were seen to use.

    Attributes:
        consumers: by group.
        producers: by group; None for one that cannot be asked anything.
        producer_topics: topics sent to, whichever producer did.
    """

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerInner] = {}
        self.producers: dict[str, ProducerInner | None] = {}
        self.producer_topics: set[str] = set()

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

    def add_producer(self, group: str, inner: ProducerInner | None) -> None:
        """Take a producer in.

        Raises:
            ClientStateError: there is one of the group (C-446).
        """
        if group in self.producers:
            raise ClientStateError(
                f"this client instance has a producer of group {group!r} already; "
                "give this one another group, or an instance_name of its own"
            )
        self.producers[group] = inner

    def wanted_topics(self) -> set[str]:
        """Return the topics whose routes somebody needs."""
        topics = set(self.producer_topics)
        for producer in self.producers.values():
            if producer is not None:
                topics.update(producer.topics())
        for consumer in self.consumers.values():
            topics.update(consumer.subscribed_topics())
        return topics

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

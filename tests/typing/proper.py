"""Proper use, in which mypy must find nothing; never imported."""

from __future__ import annotations

from typing import Any, Unpack, assert_type

from rocketstream import (
    AllocateMessageQueueAveragelyByCircle,
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageModel,
    MessageQueue,
    MQPullConsumerScheduleService,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    aio,
)
from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster

SHARED = ClientConfig(namesrv_addr="127.0.0.1:9876", unit_mode=True)


def billing(topic: str, **settings: Unpack[PushConsumerKeywords]) -> PushConsumer:
    """A function of a user's that passes settings on."""
    return PushConsumer("billing", subscription={topic: "*"}, **settings)


def queues_changed(topic: str, every: list[MessageQueue], ours: list[MessageQueue]) -> None:
    """A listener of queues."""


billing("orders", use_tls=True)
from_a_file: dict[str, Any] = {"consume_thread_max": 8}
billing("orders", **from_a_file)
consumer = PushConsumer(
    "g",
    namesrv_addr="127.0.0.1:9876",
    message_model=MessageModel.BROADCASTING,
    allocate_message_queue_strategy=AllocateMessageQueueAveragelyByCircle(),
    consume_timeout_minutes=2,
    enable_msg_trace=True,
    instance_name="one",
)
assert_type(consumer.consume_thread_max, int)
Producer("g", config=SHARED, topics=["orders"], latency_max=[50, 100], retry_response_codes={1})
aio.Producer("g", auto_batch=True, batch_max_delay_ms=5)
TransactionProducer("g", check_request_hold_max=10, send_msg_timeout_ms=100)
PullConsumer("g", register_topics={"orders"}, message_queue_listener=queues_changed)
LitePullConsumer("g", auto_commit=False, message_queue_listener=queues_changed)
aio.LitePullConsumer("g", offset_store=None)
MQPullConsumerScheduleService("g", config=SHARED, pull_thread_nums=2, check_crc=False)
EmbeddedCluster(flush="sync", brokers=3, store_config=SMALL_STORE)

SUCCESS, IN_ORDER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeOrderlyStatus.SUCCESS


def concurrent(batch: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    """Of messages alone; their name is the user's."""
    return SUCCESS


def with_context(
    messages: list[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus | None:
    """Returning nothing has the batch come again."""
    context.ack_index = 0
    return SUCCESS if messages else None


def in_order(messages: list[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """In order."""
    return IN_ORDER


async def coroutine(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    """For the asyncio consumer."""
    return SUCCESS


async def orderly_coroutine(
    messages: list[MessageExt], context: ConsumeOrderlyContext
) -> ConsumeOrderlyStatus:
    """For the asyncio consumer, in order."""
    return IN_ORDER


class Listener(MessageListenerConcurrently):
    """The object form, of ours."""

    def consume_message(
        self, batch: list[MessageExt], told: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        """Consume."""
        return SUCCESS


class Plain:
    """The object form, without a context or a base."""

    def consume_message(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Consume."""
        return SUCCESS


class InOrder(MessageListenerOrderly):
    """The object form, in order."""

    def consume_message(
        self, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Consume."""
        return IN_ORDER


class Callable:
    """An object that is called."""

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Consume."""
        return SUCCESS


PushConsumer("g", listener=concurrent)
PushConsumer("g", listener=with_context)
PushConsumer("g", listener=lambda messages: SUCCESS)
PushConsumer("g", listener=Listener())
PushConsumer("g", listener=Plain())
PushConsumer("g", listener=Callable())
PushConsumer("g", listener=InOrder())
aio.PushConsumer("g", listener=coroutine)
aio.PushConsumer("g", listener=concurrent)
aio.PushConsumer("g", listener=InOrder())
consumer.register_message_listener(concurrent)
consumer.register_message_listener(with_context, orderly=False)
consumer.register_message_listener(lambda messages, context: SUCCESS)
consumer.register_message_listener(in_order, orderly=True)
consumer.register_message_listener(lambda messages: IN_ORDER, orderly=True)
consumer.register_message_listener(InOrder())
consumer.register_message_listener(Listener())
consumer.register_message_listener(Plain())
aio_consumer = aio.PushConsumer("g")
aio_consumer.register_message_listener(coroutine)
aio_consumer.register_message_listener(concurrent)
aio_consumer.register_message_listener(orderly_coroutine, orderly=True)
aio_consumer.register_message_listener(in_order, orderly=True)
aio_consumer.register_message_listener(InOrder())

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
    PullTaskContext,
    PushConsumer,
    TransactionProducer,
    aio,
)
from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.spark import SparkPushConsumer

SHARED = ClientConfig(namesrv_addr="127.0.0.1:9876", unit_mode=True)


def billing(topic: str, **settings: Unpack[PushConsumerKeywords]) -> PushConsumer:
    """A function of a user's that passes settings on."""
    return PushConsumer("billing", subscription={topic: "*"}, **settings)


def queues_changed(topic: str, every: list[MessageQueue], ours: list[MessageQueue]) -> None:
    """A listener of queues."""


def task(mq: MessageQueue, context: PullTaskContext) -> None:
    """A pull task."""
    assert_type(context.pull_consumer, PullConsumer)


async def aio_task(mq: MessageQueue, context: aio.PullTaskContext) -> None:
    """A pull task of asyncio."""
    assert_type(context.pull_consumer, aio.PullConsumer)


class Task:
    """The object form of a pull task."""

    def do_pull_task(self, mq: MessageQueue, context: PullTaskContext) -> None:
        """Pull."""


class OfQueues:
    """The object form of a listener for a topic's queues."""

    def on_changed(self, topic: str, queues: list[MessageQueue]) -> None:
        """See them."""


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
service = MQPullConsumerScheduleService("g", config=SHARED, pull_thread_nums=2, check_crc=False)
service.register_pull_task_callback("orders", task)
service.register_pull_task_callback("orders", Task())
service.register_pull_task_callback("orders", lambda mq, context: context.pull_consumer)
_ = aio.MQPullConsumerScheduleService("g").register_pull_task_callback("orders", aio_task)
LitePullConsumer("g").register_topic_message_queue_change_listener("orders", OfQueues())
LitePullConsumer("g").register_topic_message_queue_change_listener(
    "orders", lambda _, queues: queues
)
EmbeddedCluster(flush="sync", brokers=3, store_config=SMALL_STORE)

SUCCESS, IN_ORDER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeOrderlyStatus.SUCCESS


def concurrent(batch: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    """Of messages alone; their name is the user's."""
    return SUCCESS


def with_context(
    messages: list[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    """Of the first message only."""
    context.ack_index = 0
    return SUCCESS


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
SparkPushConsumer("g", None, "checkpoint", listener=coroutine, consume_thread_max=8)
SparkPushConsumer("g", None, "checkpoint", listener=InOrder()).register_message_listener(concurrent)
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

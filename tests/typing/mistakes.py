"""Mistakes of users, each marked with what mypy must say of its line; never imported."""

from __future__ import annotations

import rocketstream.admin
import rocketstream.aio
import rocketstream.spark
import rocketstream.testing
from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    LitePushConsumer,
    LiteTopicContext,
    Message,
    MessageExt,
    MQPullConsumerScheduleService,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    aio,
)
from rocketstream.server.embedded import EmbeddedCluster, EmbeddedSettings
from rocketstream.spark import SparkPushConsumer


def bill(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    """A proper concurrent listener."""
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def bill_in_order(
    messages: list[MessageExt], context: ConsumeOrderlyContext
) -> ConsumeOrderlyStatus:
    """A proper orderly listener."""
    return ConsumeOrderlyStatus.SUCCESS


async def bill_async(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    """A proper coroutine listener."""
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def says_true(messages: list[MessageExt]) -> bool:
    """What a listener must not return."""
    return True


def one_message(message: MessageExt) -> ConsumeConcurrentlyStatus:
    """A batch is a list, also a batch of one."""
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def three(
    messages: list[MessageExt], context: ConsumeConcurrentlyContext, more: int
) -> ConsumeConcurrentlyStatus:
    """Nobody gives the third."""
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def says_nothing(messages: list[MessageExt]) -> None:
    """Whose messages would all come again."""


async def says_nothing_async(messages: list[MessageExt]) -> None:
    """Whose messages would all come again, too."""


def says_nothing_of_lite_topics(messages: list[MessageExt], context: LiteTopicContext) -> None:
    """Whose messages would all come again, and nothing else of their lite topic."""


class SaysNothing:
    """Whose messages would all come again."""

    def consume_message(self, messages: list[MessageExt]) -> None:
        """Consume."""


class Object:
    """Of no use as a listener."""

    def consume_messages(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Called by nobody."""
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


consumer = PushConsumer("g")
service = MQPullConsumerScheduleService("g")
aio_service = aio.MQPullConsumerScheduleService("g")
pulling = LitePullConsumer("g")
session: object = None
aio_consumer = aio.PushConsumer("g")

# One mistake a line, so that the mark stands where mypy reports it.
# fmt: off
# --- names of nothing ---
rocketstream.PushConsummer("g")  # E: Module has no attribute "PushConsummer"
rocketstream.admin.Administration()  # E: Module has no attribute "Administration"
rocketstream.aio.LitePushConsummer("g", "p")  # E: Module has no attribute "LitePushConsummer"
rocketstream.spark.SparkPullConsumer("g")  # E: Module has no attribute "SparkPullConsumer"
rocketstream.testing.sent_message("orders")  # E: Module has no attribute "sent_message"
# --- names that are no settings ---
Producer("g", retry_timez=5)  # E: Unexpected keyword argument "retry_timez" for "Producer"
aio.Producer("g", retry_timez=5)  # E: Unexpected keyword argument "retry_timez"
TransactionProducer("g", check_pool=5)  # E: Unexpected keyword argument "check_pool"
aio.TransactionProducer("g", check_pool=5)  # E: Unexpected keyword argument "check_pool"
PushConsumer("g", consume_threads=5)  # E: Unexpected keyword argument "consume_threads"
aio.PushConsumer("g", consume_threads=5)  # E: Unexpected keyword argument "consume_threads"
PullConsumer("g", enable_msg_trace=True)  # E: Unexpected keyword argument "enable_msg_trace"
aio.PullConsumer("g", pull_batch=1)  # E: Unexpected keyword argument "pull_batch"
LitePullConsumer("g", autocommit=True)  # E: Unexpected keyword argument "autocommit"
aio.LitePullConsumer("g", autocommit=True)  # E: Unexpected keyword argument "autocommit"
MQPullConsumerScheduleService("g", threads=2)  # E: Unexpected keyword argument "threads"
ClientConfig(namesrv="127.0.0.1:9876")  # E: Unexpected keyword argument "namesrv"
EmbeddedCluster(flushing="sync")  # E: Unexpected keyword argument "flushing"
EmbeddedSettings().changed(broker=2)  # E: Unexpected keyword argument "broker"
Producer("g", namesrv_adr="127.0.0.1:9876")  # E: Unexpected keyword argument "namesrv_adr"
PushConsumer("g", consumer_group="h")  # E: Unexpected keyword argument "consumer_group"
Producer("g").send(Message("T", b"x"), queue=None)  # E: Unexpected keyword argument "queue" for "send"
SparkPushConsumer("g", session, "checkpoint", consume_threads=5)  # E: Unexpected keyword argument "consume_threads"
SparkPushConsumer("g", session, "checkpoint", pull_interval_ms=5)  # E: Unexpected keyword argument "pull_interval_ms"
# --- values of another kind ---
SparkPushConsumer("g", session, "checkpoint", consume_thread_max="lots")  # E: has incompatible type "str"; expected "int"
PushConsumer("g", consume_thread_max="lots")  # E: "consume_thread_max" to "PushConsumer" has incompatible type "str"; expected "int"
aio.PushConsumer("g", consume_thread_max=None)  # E: has incompatible type "None"; expected "int"
PushConsumer("g", message_model="CLUSTERING")  # E: has incompatible type "str"; expected "MessageModel"
PushConsumer("g", allocate_message_queue_strategy="AVG")  # E: expected "AllocateMessageQueueStrategy"
PushConsumer("g", subscription=["T"])  # E: "subscription" to "PushConsumer" has incompatible type
Producer("g", topics="orders")  # E: has incompatible type "str"; expected "list[str] | tuple[str, ...]
Producer("g", send_msg_timeout_ms=1.5)  # E: has incompatible type "float"; expected "int"
Producer("g", secret_key=b"hush")  # E: has incompatible type "bytes"; expected "str | None"
Producer("g", config={"unit_mode": True})  # E: "config" to "Producer" has incompatible type
TransactionProducer("g", check_request_hold_max="1")  # E: has incompatible type "str"; expected "int"
PullConsumer("g", register_topics="orders")  # E: has incompatible type "str"; expected "list[str]
LitePullConsumer("g", message_queue_listener=5)  # E: has incompatible type "int"; expected "MessageQueueListener |
LitePullConsumer("g", offset_store="file")  # E: has incompatible type "str"; expected "OffsetStore | None"
ClientConfig(heartbeat_broker_interval_ms="30s")  # E: has incompatible type "str"; expected "int"
EmbeddedCluster(flush="maybe")  # E: has incompatible type "Literal['maybe']"; expected "Literal['async', 'sync']"
EmbeddedCluster(retention="3d")  # E: has incompatible type "str"; expected "RetentionConfig | None"
# --- listeners ---
PushConsumer("g", listener=says_nothing)  # E: Argument "listener" to "PushConsumer" has incompatible type
PushConsumer("g", listener=SaysNothing())  # E: Argument "listener" to "PushConsumer" has incompatible type
PushConsumer("g", listener=lambda messages: None)  # E: Argument "listener" to "PushConsumer" has incompatible type
aio.PushConsumer("g", listener=says_nothing_async)  # E: Argument "listener" to "AsyncPushConsumer" has incompatible type
LitePushConsumer("g", "p", listener=says_nothing_of_lite_topics)  # E: Argument "listener" to "LitePushConsumer" has incompatible type
aio.LitePushConsumer("g", "p", listener=says_nothing_async)  # E: Argument "listener" to "AsyncLitePushConsumer" has incompatible type
SparkPushConsumer("g", session, "checkpoint", listener=says_nothing)  # E: Argument "listener" to "SparkPushConsumer" has incompatible type
SparkPushConsumer("g", session, "checkpoint", listener=bill_in_order)  # E: Argument "listener" to "SparkPushConsumer" has incompatible type
consumer.register_message_listener(says_nothing)  # E: Argument 1 to "register_message_listener" of
consumer.register_message_listener(says_nothing, orderly=True)  # E: No overload variant of "register_message_listener"
service.register_pull_task_callback("orders", bill)  # E: Argument 2 to "register_pull_task_callback" of
aio_service.register_pull_task_callback("orders", bill)  # E: Argument 2 to "register_pull_task_callback" of
pulling.register_topic_message_queue_change_listener("orders", bill)  # E: Argument 2 has incompatible type
PushConsumer("g", listener=says_true)  # E: Argument "listener" to "PushConsumer" has incompatible type
PushConsumer("g", listener=one_message)  # E: Argument "listener" to "PushConsumer" has incompatible type
PushConsumer("g", listener=bill_in_order)  # E: Argument "listener" to "PushConsumer" has incompatible type
PushConsumer("g", listener=bill_async)  # E: Argument "listener" to "PushConsumer" has incompatible type
PushConsumer("g", listener=Object())  # E: Argument "listener" to "PushConsumer" has incompatible type
aio.PushConsumer("g", listener=says_true)  # E: Argument "listener" to "AsyncPushConsumer" has incompatible type
consumer.register_message_listener(says_true)  # E: Argument 1 to "register_message_listener" of
consumer.register_message_listener(one_message)  # E: Argument 1 to "register_message_listener" of
consumer.register_message_listener(three)  # E: Argument 1 to "register_message_listener" of
consumer.register_message_listener(Object())  # E: No overload variant of "register_message_listener"
consumer.register_message_listener(bill_async)  # E: Argument 1 to "register_message_listener" of
consumer.register_message_listener(bill, orderly=True)  # E: No overload variant of "register_message_listener"
consumer.register_message_listener(bill_in_order)  # E: Argument 1 to "register_message_listener" of
consumer.register_message_listener()  # E: All overload variants of "register_message_listener"
aio_consumer.register_message_listener(bill_async, orderly=True)  # E: No overload variant
aio_consumer.register_message_listener(says_true)  # E: Argument 1 to "register_message_listener" of
aio_consumer.register_message_listener(bill_in_order)  # E: Argument 1 to "register_message_listener" of

"""Proper use, in which mypy must find nothing; never imported."""

from __future__ import annotations

from typing import Any, Unpack, assert_type

from rocketstream import (
    AllocateMessageQueueAveragelyByCircle,
    ClientConfig,
    LitePullConsumer,
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

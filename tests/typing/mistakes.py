"""Mistakes of users, each marked with what mypy must say of its line; never imported."""

from __future__ import annotations

from rocketstream import (
    ClientConfig,
    LitePullConsumer,
    MQPullConsumerScheduleService,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    aio,
)
from rocketstream.server.embedded import EmbeddedCluster, EmbeddedSettings

# One mistake a line, so that the mark stands where mypy reports it.
# fmt: off
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
# --- values of another kind ---
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

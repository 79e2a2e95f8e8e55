"""Bodies between clients and brokers: heartbeats, membership, queue locks.

Pure: values and their JSON.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies.base import Body, bean, body, coded, enumeration, list_of

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_POP = "CONSUME_POP"

CONSUME_TYPE = enumeration(CONSUME_PASSIVELY, CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP)
MESSAGE_MODEL = enumeration("CLUSTERING", "BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = enumeration(
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@body()
class SubscriptionData(Body):
    """The subscription of a group to a topic; ``code_set`` holds the hashes of ``tags_set``."""

    topic: str = ""
    sub_string: str = "*"
    tags_set: set[str] = field(default_factory=set)
    code_set: set[int] = field(default_factory=set)
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@body()
class ProducerData(Body):
    """A producer group of a client."""

    group_name: str = ""


@body()
class ConsumerData(Body):
    """A consumer group of a client."""

    group_name: str = ""
    consume_type: str = field(default=CONSUME_PASSIVELY, metadata=coded(CONSUME_TYPE))
    message_model: str = field(default="CLUSTERING", metadata=coded(MESSAGE_MODEL))
    consume_from_where: str = field(
        default="CONSUME_FROM_LAST_OFFSET", metadata=coded(CONSUME_FROM_WHERE)
    )
    subscription_data_set: list[SubscriptionData] = field(
        default_factory=list, metadata=coded(list_of(bean(SubscriptionData)))
    )
    unit_mode: bool = False


SHARED_ID_FIELD: Final = "clientIdSharedWith"
"""A field of the answer to a heartbeat, of ours alone: where another process of that id is."""


@body(client_id="clientID")
class HeartbeatData(Body):
    """A client's id with all its producer and consumer groups (code 34)."""

    client_id: str = ""
    producer_data_set: list[ProducerData] = field(
        default_factory=list, metadata=coded(list_of(bean(ProducerData)))
    )
    consumer_data_set: list[ConsumerData] = field(
        default_factory=list, metadata=coded(list_of(bean(ConsumerData)))
    )


@body()
class CheckClientRequestBody(Body):
    """Code 46."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData = field(
        default_factory=SubscriptionData, metadata=coded(bean(SubscriptionData))
    )


@body()
class GetConsumerListByGroupResponseBody(Body):
    """Answer to code 38."""

    consumer_id_list: list[str] = field(default_factory=list)


@body()
class LockBatchRequestBody(Body):
    """Code 41."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: set[MessageQueue] = field(default_factory=set)


@body()
class UnlockBatchRequestBody(Body):
    """Code 42."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: set[MessageQueue] = field(default_factory=set)


@body(lock_ok_mq_set="lockOKMQSet")
class LockBatchResponseBody(Body):
    """Answer to code 41: the queues the client holds now."""

    lock_ok_mq_set: set[MessageQueue] = field(default_factory=set)


LITE_ACTIONS = enumeration(
    "PARTIAL_ADD", "PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"
)
LITE_OFFSETS = enumeration("POLICY", "POLICY", "OFFSET", "TAIL_N", "TIMESTAMP")


@body(kind="type")
class LiteOffsetData(Body):
    """Where a group goes on in lite topics; see ``rocketstream.OffsetOption``."""

    kind: str = field(default="POLICY", metadata=coded(LITE_OFFSETS))
    value: int = 0


@body()
class LiteSubscriptionData(Body):
    """Lite topics that a client adds to those it has, takes away, or has from now on.

    ``version`` is read by brokers, and so far for nothing.
    """

    action: str = field(default="PARTIAL_ADD", metadata=coded(LITE_ACTIONS))
    client_id: str = ""
    group: str = ""
    lite_topic_set: set[str] = field(default_factory=set)
    offset_option: LiteOffsetData | None = field(default=None, metadata=coded(bean(LiteOffsetData)))
    topic: str = ""
    version: int = 0


@body()
class LiteSubscriptionCtlRequestBody(Body):
    """Code 200071."""

    subscription_set: list[LiteSubscriptionData] = field(
        default_factory=list, metadata=coded(list_of(bean(LiteSubscriptionData)))
    )

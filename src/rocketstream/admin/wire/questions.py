"""The table of requests that only look: the code, the header and the reading of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from rocketstream.admin.state import TopicQueue, known_ms
from rocketstream.client.instance.questions import Question
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumeStats,
    DelayOffsetTable,
    GetConsumerStatusBody,
    GroupList,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    UnlockBatchRequestBody,
    read_queue_entries,
)
from rocketstream.protocol.codes import RequestCode as Code
from rocketstream.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicStatsInfoRequestHeader,
    Header,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.protocol.message_ext import decode_messages

P = ParamSpec("P")
T = TypeVar("T")

CONSUME_STATS_PATIENCE = 3
"""examineConsumeStats waits three times as long as other questions (C-525)."""
CLIENT_TIMEOUT_MS = 15_000
"""A broker waits up to 10 s for a client it passes a question on to."""


def _properties(data: bytes) -> dict[str, str]:
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, found, value in lines if found}


def _table(name: str) -> Callable[[bytes], dict[str, dict[str, Any]]]:
    """Read one table of a broker's answer as plain values, with nothing left out."""

    def read(data: bytes) -> dict[str, dict[str, Any]]:
        value = fastjson.loads(data)
        table = value.get(name) if isinstance(value, dict) else None
        rows = table.values() if isinstance(table, dict) else [None]
        if not isinstance(table, dict) or not all(isinstance(each, dict) for each in rows):
            raise RemoteProtocolError(f"the answer has no table {name}: {data[:100]!r}")
        return table

    return read


def _topic_queues(data: bytes) -> dict[MessageQueue, TopicQueue]:
    table = TopicStatsTable.decode(data).offset_table
    return {
        queue: TopicQueue(
            *queue,
            min_offset=max(told.min_offset, 0),
            max_offset=max(told.max_offset, 0),
            last_update_ms=known_ms(told.last_update_timestamp),
        )
        for queue, told in table.items()
    }


def _asks(code: Code, read: Callable[[bytes], T]) -> Question[T]:
    return Question(code, None, lambda answer: read(bytes(answer.body)))


def _asks_with(
    code: Code,
    header: Callable[P, Header],
    read: Callable[[bytes], T],
    patience: int = 1,
) -> Callable[P, Question[T]]:
    """Return what makes the question; it takes the header's fields."""

    def ask(*args: P.args, **fields: P.kwargs) -> Question[T]:
        return Question(
            code, header(*args, **fields), lambda answer: read(bytes(answer.body)), patience
        )

    return ask


# --- name servers ---------------------------------------------------------------------------------

CLUSTER = _asks(Code.GET_BROKER_CLUSTER_INFO, ClusterInfo.decode)
TOPIC_NAMES = _asks(
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda b: TopicList.decode(b).topic_list
)
SYSTEM_TOPIC_NAMES = _asks(
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, lambda b: TopicList.decode(b).topic_list
)
"""Cluster and broker names, registered as topics."""
NAMESRV_CONFIG = _asks(Code.GET_NAMESRV_CONFIG, _properties)
namesrv_settings_of: Final = _asks_with(
    Code.GET_KVLIST_BY_NAMESPACE,
    GetKVListByNamespaceRequestHeader,
    lambda b: KVTable.decode(b).table,
)
route_of: Final = _asks_with(
    Code.GET_ROUTEINFO_BY_TOPIC,
    partial(GetRouteInfoRequestHeader, accept_standard_json_only=True),
    TopicRouteData.decode,
)
"""Refused where the topic is not known."""

# --- brokers --------------------------------------------------------------------------------------

TOPICS = _asks(
    Code.GET_ALL_TOPIC_CONFIG, lambda b: TopicConfigSerializeWrapper.decode(b).topic_config_table
)
TOPICS_AS_TOLD = _asks(Code.GET_ALL_TOPIC_CONFIG, _table("topicConfigTable"))
"""Every topic's settings as the broker names them, those of later releases too."""
GROUPS = _asks(
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    lambda b: SubscriptionGroupWrapper.decode(b).subscription_group_table,
)
GROUPS_AS_TOLD = _asks(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _table("subscriptionGroupTable"))
OFFSETS = _asks(Code.GET_ALL_CONSUMER_OFFSET, lambda b: ConsumerOffsetTable.decode(b).offset_table)
"""The content of consumerOffset.json."""
DELAY_OFFSETS = _asks(Code.GET_ALL_DELAY_OFFSET, lambda b: DelayOffsetTable.decode(b).offset_table)
RUNTIME = _asks(Code.GET_BROKER_RUNTIME_INFO, lambda b: KVTable.decode(b).table)
BROKER_CONFIG = _asks(Code.GET_BROKER_CONFIG, _properties)
PRODUCERS = _asks(Code.GET_ALL_PRODUCER_INFO, ProducerTableInfo.decode)
producer_connection_of: Final = _asks_with(
    Code.GET_PRODUCER_CONNECTION_LIST,
    GetProducerConnectionListRequestHeader,
    ProducerConnection.decode,
)
"""Refused where the group has none."""
ends_of: Final = _asks_with(
    Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader, _topic_queues
)
consumers_of: Final = _asks_with(
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    QueryTopicConsumeByWhoRequestHeader,
    lambda b: GroupList.decode(b).group_list,
)
"""Groups with progress in a topic, or members subscribing it."""
connection_of: Final = _asks_with(
    Code.GET_CONSUMER_CONNECTION_LIST,
    GetConsumerConnectionListRequestHeader,
    ConsumerConnection.decode,
)
stats_of: Final = _asks_with(
    Code.GET_CONSUME_STATS,
    GetConsumeStatsRequestHeader,
    ConsumeStats.decode,
    CONSUME_STATS_PATIENCE,
)
span_of: Final = _asks_with(
    Code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader, QueryConsumeTimeSpanBody.decode
)
running_of: Final = _asks_with(
    Code.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, ConsumerRunningInfo.decode
)
"""The broker asks the member itself."""
status_of: Final = _asks_with(
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    GetConsumerStatusRequestHeader,
    lambda b: GetConsumerStatusBody.decode(b).consumer_table,
)
"""Offsets by member, as members report them."""
entries_of: Final = _asks_with(
    Code.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader, read_queue_entries
)
"""Entries of a queue's index, fewer where a file of it ends."""
message_at: Final = _asks_with(
    Code.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader, lambda b: decode_messages(b)[0]
)
"""The message at an offset of the commit log."""


def lock_of(group: str, client_id: str, queues: set[MessageQueue]) -> Question[set[MessageQueue]]:
    """LOCK_BATCH_MQ (41): take or renew queues; answered by those the client holds now (C-354)."""
    body = LockBatchRequestBody(group, client_id, queues).encode()
    ask = _asks(Code.LOCK_BATCH_MQ, lambda b: LockBatchResponseBody.decode(b).lock_ok_mq_set)
    return replace(ask, body=body)


def unlock_of(group: str, client_id: str, queues: set[MessageQueue]) -> Question[None]:
    """UNLOCK_BATCH_MQ (42): give queues back; others' are left alone (C-355)."""
    body = UnlockBatchRequestBody(group, client_id, queues).encode()
    return Question(Code.UNLOCK_BATCH_MQ, None, lambda _: None, body=body)

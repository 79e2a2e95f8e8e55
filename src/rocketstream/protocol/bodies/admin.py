"""Bodies of admin calls: groups, connections, statistics, resets, looking into a consumer.

Pure: values and their JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies.base import (
    INT,
    STR,
    Body,
    Coder,
    bean,
    body,
    coded,
    enumeration,
    list_of,
    map_of,
    queue_map_of,
)
from rocketstream.protocol.bodies.client import (
    CONSUME_FROM_WHERE,
    CONSUME_PASSIVELY,
    CONSUME_TYPE,
    MESSAGE_MODEL,
    SubscriptionData,
)
from rocketstream.protocol.bodies.route import DataVersion


@body()
class SubscriptionGroupConfig(Body):
    """A consumer group as a broker keeps it."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@body()
class SubscriptionGroupWrapper(Body):
    """All groups of a broker (code 201, subscriptionGroup.json)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(
        default_factory=dict, metadata=coded(map_of(STR, bean(SubscriptionGroupConfig)))
    )
    data_version: DataVersion = field(
        default_factory=DataVersion, metadata=coded(bean(DataVersion))
    )

    def file_problem(self) -> str | None:
        """Return a group that is not under its own name; None without."""
        for name, group in self.subscription_group_table.items():
            if name != group.group_name:
                return f"under {name} is group {group.group_name}"
        return None


@body()
class Connection(Body):
    """One connected client."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


@body()
class ConsumerConnection(Body):
    """The members of a group (code 203)."""

    connection_set: list[Connection] = field(
        default_factory=list, metadata=coded(list_of(bean(Connection)))
    )
    subscription_table: dict[str, SubscriptionData] = field(
        default_factory=dict, metadata=coded(map_of(STR, bean(SubscriptionData)))
    )
    consume_type: str = field(default=CONSUME_PASSIVELY, metadata=coded(CONSUME_TYPE))
    message_model: str = field(default="CLUSTERING", metadata=coded(MESSAGE_MODEL))
    consume_from_where: str = field(
        default="CONSUME_FROM_LAST_OFFSET", metadata=coded(CONSUME_FROM_WHERE)
    )


@body()
class ProducerConnection(Body):
    """The clients of a producer group (code 204)."""

    connection_set: list[Connection] = field(
        default_factory=list, metadata=coded(list_of(bean(Connection)))
    )


@body(remote_ip="remoteIP")
class ProducerInfo(Body):
    """One connected producer."""

    client_id: str = ""
    remote_ip: str = ""
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@body()
class ProducerTableInfo(Body):
    """All connected producers by group (code 328)."""

    data: dict[str, list[ProducerInfo]] = field(
        default_factory=dict, metadata=coded(map_of(STR, list_of(bean(ProducerInfo))))
    )


@body()
class OffsetWrapper(Body):
    """Progress of a group in one queue: the broker's end, the group's offset, and the time."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


@body()
class ConsumeStats(Body):
    """Progress of a group by queue (code 208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(
        default_factory=dict, metadata=coded(queue_map_of(bean(OffsetWrapper)))
    )
    consume_tps: float = 0.0


@body()
class ConsumeStatsList(Body):
    """Progress of every group of a broker (code 317)."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(
        default_factory=list, metadata=coded(list_of(map_of(STR, list_of(bean(ConsumeStats)))))
    )
    total_diff: int = 0


@body()
class TopicOffset(Body):
    """Minimum and maximum offset of a queue, and the time of its last update."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@body()
class TopicStatsTable(Body):
    """Offsets of the queues of a topic (code 202)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(
        default_factory=dict, metadata=coded(queue_map_of(bean(TopicOffset)))
    )


@body()
class KVTable(Body):
    """Names and values (codes 28, 103, 219)."""

    table: dict[str, str] = field(default_factory=dict)


@body()
class GroupList(Body):
    """Names of groups (code 300)."""

    group_list: set[str] = field(default_factory=set)


@body()
class TopicList(Body):
    """Names of topics (codes 206, 224, 304, 305)."""

    topic_list: set[str] = field(default_factory=set)
    broker_addr: str | None = None


def _read_reset_table(value: Any) -> dict[MessageQueue, int]:
    # ResetOffsetBodyForC: a list of queues with their offset.
    if not isinstance(value, list):
        table: dict[MessageQueue, int] = _QUEUE_OFFSETS.read(value)
        return table
    offsets: dict[MessageQueue, int] = {}
    for item in value:
        queue = fastjson.as_queue(item)
        if queue is None:
            raise RemoteProtocolError("ResetOffsetBody: an entry of offsetTable names no queue")
        offsets[queue] = INT.read(item.get("offset", 0)) if isinstance(item, dict) else 0
    return offsets


_QUEUE_OFFSETS = queue_map_of(INT)


@body()
class ResetOffsetBody(Body):
    """New offsets of a group by queue (codes 220, 222); the list form for C is read too."""

    offset_table: dict[MessageQueue, int] = field(
        default_factory=dict, metadata=coded(Coder(_read_reset_table, _QUEUE_OFFSETS.write))
    )

    def encode_for_c(self) -> bytes:
        """Return ResetOffsetBodyForC, for admin requests of language CPP."""
        rows = [
            {
                "brokerName": queue.broker_name,
                "offset": offset,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            }
            for queue, offset in self.offset_table.items()
        ]
        return fastjson.dumps({"offsetTable": rows}).encode()


@body()
class GetConsumerStatusBody(Body):
    """Offsets of a consumer (code 221), or of all members of a group by client id (code 223)."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@body()
class QueryCorrectionOffsetBody(Body):
    """Minimum offsets by queue id (code 308)."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


@body()
class QueueTimeSpan(Body):
    """Times of a queue: first message, last message, message at the group's offset, ms."""

    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


@body()
class QueryConsumeTimeSpanBody(Body):
    """Times of all queues of a topic (code 303)."""

    consume_time_span_set: list[QueueTimeSpan] = field(
        default_factory=list, metadata=coded(list_of(bean(QueueTimeSpan)))
    )


@body(cached_msg_size_in_mib="cachedMsgSizeInMiB")
class ProcessQueueInfo(Body):
    """State of one queue in a consumer; ``droped`` is upstream's spelling."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@body(
    pull_rt="pullRT",
    pull_tps="pullTPS",
    consume_rt="consumeRT",
    consume_ok_tps="consumeOKTPS",
    consume_failed_tps="consumeFailedTPS",
)
class ConsumeStatus(Body):
    """Rates of a consumer for one topic."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0


@body()
class ConsumerRunningInfo(Body):
    """The state of a consumer (code 307): settings, subscriptions, queues and rates."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(
        default_factory=list, metadata=coded(list_of(bean(SubscriptionData)))
    )
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(
        default_factory=dict, metadata=coded(queue_map_of(bean(ProcessQueueInfo)))
    )
    status_table: dict[str, ConsumeStatus] = field(
        default_factory=dict, metadata=coded(map_of(STR, bean(ConsumeStatus)))
    )
    jstack: str | None = None


CM_RESULT = enumeration(
    "CR_SUCCESS",
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)


@body()
class ConsumeMessageDirectlyResult(Body):
    """Result of a message consumed on request (code 309)."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = field(default="CR_SUCCESS", metadata=coded(CM_RESULT))
    remark: str | None = None
    spent_time_mills: int = 0


@body()
class ConsumeQueueData(Body):
    """One entry of a consume queue."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@body()
class QueryConsumeQueueResponseBody(Body):
    """Entries of a consume queue (code 321)."""

    subscription_data: SubscriptionData | None = field(
        default=None, metadata=coded(bean(SubscriptionData))
    )
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(
        default_factory=list, metadata=coded(list_of(bean(ConsumeQueueData)))
    )
    max_queue_index: int = 0
    min_queue_index: int = 0

    def encode_with(self, entries: Iterable[tuple[int, int, int]]) -> bytes:
        """Return the text of this body with ``entries``: log offset, size and tagsCode of each.

        The same text as ``encode`` returns, six times faster: an answer may have ten thousand
        entries.
        """
        whole = Body.encode(dataclasses.replace(self, queue_data=[])).decode()
        # Quotes within a text are escaped, so this match can only be the list itself.
        before, _, after = whole.partition('"queueData":[]')
        listed = ",".join(
            f'{{"eval":false,"physicOffset":{offset},"physicSize":{size},"tagsCode":{code}}}'
            for offset, size, code in entries
        )
        return f'{before}"queueData":[{listed}]{after}'.encode()


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Entries of a consume queue, one list for each field.

    Attributes:
        physical: offsets in the commit log.
        sizes: bytes of the messages.
        codes: hashes of the tags, as far as the broker can tell: see ``unknown``.
        unknown: entries whose hash the broker could not find.
    """

    physical: list[int]
    sizes: list[int]
    codes: list[int]
    unknown: int = 0


def read_queue_entries(data: bytes) -> QueueEntries:
    """Return the entries of an answer to code 321; none for an empty one.

    A broker with ``enableConsumeQueueExt`` stores an address instead of the hash, and keeps the
    hash in an extension at that address.

    Raises:
        RemoteProtocolError: the data is not such a body.
    """
    found = fastjson.loads(data) if data else {}
    listed: Any = found.get("queueData") or [] if isinstance(found, dict) else None
    try:
        entries = QueueEntries(
            [entry["physicOffset"] for entry in listed],
            [entry["physicSize"] for entry in listed],
            [entry["tagsCode"] for entry in listed],
        )
        beside = [i for i, entry in enumerate(listed) if "extendDataJson" in entry]
        lost = sum("msg" in entry for entry in listed)
        for i in beside:
            entries.codes[i] = fastjson.loads(listed[i]["extendDataJson"])["tagsCode"]
        numbers = entries.physical + entries.sizes + entries.codes
        if not all(type(number) is int for number in numbers):
            raise TypeError("a field is not a whole number")
    except (TypeError, KeyError, AttributeError) as error:
        raise RemoteProtocolError(
            f"the entries of a consume queue cannot be read: {error!r}"
        ) from error
    return dataclasses.replace(entries, unknown=lost)


@body()
class BrokerStatsItem(Body):
    """One statistic over a span: sum, per second, average per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@body()
class BrokerStatsData(Body):
    """A statistic of the last minute, hour and day (code 315)."""

    stats_minute: BrokerStatsItem = field(
        default_factory=BrokerStatsItem, metadata=coded(bean(BrokerStatsItem))
    )
    stats_hour: BrokerStatsItem = field(
        default_factory=BrokerStatsItem, metadata=coded(bean(BrokerStatsItem))
    )
    stats_day: BrokerStatsItem = field(
        default_factory=BrokerStatsItem, metadata=coded(bean(BrokerStatsItem))
    )


@body()
class OffsetMovedEvent(Body):
    """Body of a message to OFFSET_MOVED_EVENT: a pull asked for an offset that is gone."""

    consumer_group: str = ""
    message_queue: MessageQueue | None = None
    offset_request: int = 0
    offset_new: int = 0

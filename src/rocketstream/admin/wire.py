"""The requests behind the admin operations: one method per request code, typed answers.

Law: no joins, no decisions; a peer's refusal is raised as the error of its code.
"""

from __future__ import annotations

from typing import Any

from rocketstream.client.blocking import BlockingAdminClient
from rocketstream.errors import (
    OffsetNotFoundError,
    RemoteProtocolError,
    RouteNotFoundError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ClusterInfo,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerOffsetTable,
    ConsumerRunningInfo,
    ConsumeStats,
    GetConsumerStatusBody,
    GroupList,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueryConsumeTimeSpanBody,
    ResetOffsetBody,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    CreateTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages

_NO_MESSAGE = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
CLIENT_TIMEOUT_MS = 15_000
"""A broker waits up to 10 s for a client it passes a question on to."""
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
CONSUME_STATS_TIMEOUT_FACTOR = 3
"""examineConsumeStats waits three times as long as other questions (C-525)."""


class AdminWire:
    """Asks one cluster; blocking, thread safe as far as the client below is."""

    def __init__(self, client: BlockingAdminClient, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def cluster_info(self) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO (106) of a name server."""
        return ClusterInfo.decode(self._namesrv(RequestCode.GET_BROKER_CLUSTER_INFO))

    def topic_names(self) -> list[str]:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        body = self._namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode(body).topic_list)

    def system_topic_names(self) -> set[str]:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304): cluster and broker names, registered as topics."""
        body = self._namesrv(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        return set(TopicList.decode(body).topic_list)

    def route(self, topic: str) -> TopicRouteData:
        """The topic's route, asked anew.

        Raises:
            RouteNotFoundError: no name server knows the topic.
        """
        return self._client.route(topic, refresh=True)

    def masters(self) -> dict[str, str]:
        """Address of each broker's master, by broker name."""
        found: dict[str, str] = {}
        for name, data in self.cluster_info().broker_addr_table.items():
            address = data.broker_addrs.get(0)
            if address:
                found[name] = address
        if not found:
            raise RouteNotFoundError(
                "no broker is registered with the name server; start one "
                "(rocketstream serve) or check that it registers with this name server"
            )
        return found

    def topic_configs(self, address: str) -> TopicConfigSerializeWrapper:
        """GET_ALL_TOPIC_CONFIG (21) of one broker."""
        body = self._broker(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigSerializeWrapper.decode(body)

    def create_topic(self, address: str, topic: str, queues: int, perm: int) -> None:
        """UPDATE_AND_CREATE_TOPIC (17) on one broker."""
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        self._broker(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        """GET_TOPIC_STATS_INFO (202) of one broker."""
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        return TopicStatsTable.decode(
            self._broker(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        )

    def group_configs(self, address: str) -> SubscriptionGroupWrapper:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) of one broker."""
        body = self._broker(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroupWrapper.decode(body)

    def all_offsets(self, address: str) -> dict[str, dict[int, int]]:
        """GET_ALL_CONSUMER_OFFSET (43): what consumerOffset.json of one broker holds."""
        body = self._broker(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        return ConsumerOffsetTable.decode(body).offset_table

    def consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """GET_CONSUME_STATS (208) of one broker."""
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        body = self._broker(
            address,
            RequestCode.GET_CONSUME_STATS,
            header,
            timeout_ms=self._timeout_ms * CONSUME_STATS_TIMEOUT_FACTOR,
        )
        return ConsumeStats.decode(body)

    def consumer_connection(self, address: str, group: str) -> ConsumerConnection:
        """GET_CONSUMER_CONNECTION_LIST (203); ConsumerNotOnlineError when nobody is connected."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        body = self._broker(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(body)

    def running_info(
        self,
        address: str,
        group: str,
        client_id: str,
        *,
        stacks: bool = False,
        timeout_ms: int | None = None,
    ) -> ConsumerRunningInfo:
        """GET_CONSUMER_RUNNING_INFO (307), which the broker asks the member itself."""
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return ConsumerRunningInfo.decode(
            self._broker(address, code, header, timeout_ms=timeout_ms)
        )

    def consumer_status(
        self, address: str, group: str, topic: str, client_id: str | None
    ) -> dict[str, dict[MessageQueue, int]]:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): offsets by member, as the members say."""
        header = GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        body = self._broker(address, code, header, timeout_ms=CLIENT_TIMEOUT_MS)
        return GetConsumerStatusBody.decode(body).consumer_table

    def reset_offset(
        self, address: str, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222); ConsumerNotOnlineError when nobody is there."""
        header = ResetOffsetRequestHeader(
            topic=topic, group=group, timestamp=timestamp_ms, is_force=force
        )
        body = self._broker(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return ResetOffsetBody.decode(body).offset_table

    def clone_offsets(self, address: str, source: str, target: str, topic: str) -> None:
        """CLONE_GROUP_OFFSET (314) of one topic on one broker."""
        header = CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=target, topic=topic, offline=True
        )
        self._broker(address, RequestCode.CLONE_GROUP_OFFSET, header)

    def consume_directly(
        self, address: str, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY (309) on the broker that stores the message."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=offset_msg_id
        )
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        body = self._broker(address, code, header, timeout_ms=CLIENT_TIMEOUT_MS)
        return ConsumeMessageDirectlyResult.decode(body)

    def groups_of(self, address: str, topic: str) -> set[str]:
        """QUERY_TOPIC_CONSUME_BY_WHO (300) of one broker."""
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
        body = self._broker(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return GroupList.decode(body).group_list

    def message_at(self, address: str, offset: int) -> MessageExt:
        """VIEW_MESSAGE_BY_ID (33): the message at a commit log offset."""
        header = ViewMessageRequestHeader(offset=offset)
        body = self._broker(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return decode_messages(body)[0]

    def messages_by_key(
        self, address: str, topic: str, key: str, most: int, *, unique: bool = False
    ) -> list[MessageExt]:
        """QUERY_MESSAGE (12) of one broker; empty when it has none.

        ``unique`` searches by the id the sender gave.
        """
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=most,
            begin_timestamp=0,
            end_timestamp=0x7FFF_FFFF_FFFF_FFFF,
        )
        command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
        if unique:
            command.ext_fields = {**(command.ext_fields or {}), UNIQUE_KEY_QUERY: "true"}
        try:
            answer = self._client.request(address, command, self._timeout_ms)
        except OffsetNotFoundError:
            return []
        return list(decode_messages(bytes(answer.body)))

    def pull(
        self, address: str, group: str, queue: MessageQueue, offset: int, most: int
    ) -> tuple[list[MessageExt], int]:
        """PULL_MESSAGE (11): messages from an offset on, and where to go on: behind a gap.

        Raises:
            RemoteProtocolError: there is no message at the offset and none behind it.
        """
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        answer = self._client.request(address, command, self._timeout_ms, also=_NO_MESSAGE)
        at = answer.header(PullMessageResponseHeader).next_begin_offset
        if at <= offset:
            raise RemoteProtocolError(
                f"{address} has no message at offset {offset} of {queue} any more (it says to go "
                f"on at {at}): was the topic deleted meanwhile?"
            )
        found = answer.code == ResponseCode.SUCCESS
        return list(decode_messages(bytes(answer.body))) if found else [], at

    def time_span(self, address: str, topic: str, group: str) -> QueryConsumeTimeSpanBody:
        """QUERY_CONSUME_TIME_SPAN (303) of one broker."""
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        body = self._broker(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        return QueryConsumeTimeSpanBody.decode(body)

    def lock(
        self, address: str, group: str, client_id: str, queues: set[MessageQueue]
    ) -> set[MessageQueue]:
        """LOCK_BATCH_MQ (41): take or renew queues; returns those the client holds now (C-354)."""
        body = LockBatchRequestBody(group, client_id, queues).encode()
        command = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body)
        answer = self._client.request(address, command, self._timeout_ms)
        return LockBatchResponseBody.decode(bytes(answer.body)).lock_ok_mq_set

    def unlock(self, address: str, group: str, client_id: str, queues: set[MessageQueue]) -> None:
        """UNLOCK_BATCH_MQ (42): give queues back; others' are left alone (C-355)."""
        body = UnlockBatchRequestBody(group, client_id, queues).encode()
        command = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=body)
        self._client.request(address, command, self._timeout_ms)

    def _namesrv(self, code: RequestCode) -> bytes:
        answer = self._client.request_namesrv(RemotingCommand.request(code), self._timeout_ms)
        return bytes(answer.body)

    def _broker(
        self, address: str, code: RequestCode, header: Any = None, *, timeout_ms: int | None = None
    ) -> bytes:
        command = RemotingCommand.request(code, header)
        answer = self._client.request(address, command, timeout_ms or self._timeout_ms)
        return bytes(answer.body)

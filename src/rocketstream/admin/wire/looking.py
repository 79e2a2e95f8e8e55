"""The requests behind the admin operations: one method per request code, typed answers.

Law: a peer's refusal is raised as the error of its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocketstream.admin.wire import questions
from rocketstream.admin.wire.asking import CLIENT_TIMEOUT_MS
from rocketstream.admin.wire.brokers import BrokerWire
from rocketstream.errors import (
    BrokerError,
    ConsumerNotOnlineError,
    OffsetNotFoundError,
    RemoteProtocolError,
    RouteNotFoundError,
    TopicNotExistError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueryConsumeTimeSpanBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerStatusRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages

_NO_MESSAGE = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
NO_BROKER = (
    "no broker is registered with the name server; start one (rocketstream serve) or check that "
    "it registers with this name server"
)


class AdminWire(BrokerWire):
    """Asks one cluster; blocking, and as thread safe as its client."""

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
        """Return the topic's route, without a look into the cache.

        Raises:
            RouteNotFoundError: no name server knows the topic.
        """
        return self._client.route(topic, refresh=True)

    def masters(self) -> dict[str, str]:
        """Return the address of each broker's master, by broker name."""
        found: dict[str, str] = {}
        for name, data in self.cluster_info().broker_addr_table.items():
            address = data.broker_addrs.get(0)
            if address:
                found[name] = address
        if not found:
            raise RouteNotFoundError(NO_BROKER)
        return found

    def topic_masters(self, topic: str) -> dict[str, str]:
        """Return the address of the master of each broker that has a topic, by broker name.

        Raises:
            RouteNotFoundError: no name server knows the topic.
        """
        masters = {d.broker_name: d.broker_addrs.get(0) for d in self.route(topic).broker_datas}
        return {name: address for name, address in masters.items() if address}

    def connections(self, group: str, masters: Mapping[str, str]) -> dict[str, ConsumerConnection]:
        """Return each broker's connected members; brokers where nobody is connected are absent."""
        found: dict[str, ConsumerConnection] = {}
        for broker_name, address in masters.items():
            try:
                found[broker_name] = self.consumer_connection(address, group)
            except ConsumerNotOnlineError:
                continue
        return found

    def offset_tables(
        self, masters: Mapping[str, str]
    ) -> dict[str, dict[str, dict[int, int]]] | None:
        """Return every broker's offset table; None when one does not answer code 43."""
        try:
            return {name: self.all_offsets(address) for name, address in masters.items()}
        except BrokerError:
            return None

    def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """GET_ALL_TOPIC_CONFIG (21) of one broker."""
        return self._ask(address, questions.TOPICS)

    def topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        """GET_TOPIC_STATS_INFO (202) of one broker."""
        return self._ask(address, questions.ends_of(topic))

    def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) of one broker."""
        return self._ask(address, questions.GROUPS)

    def all_offsets(self, address: str) -> dict[str, dict[int, int]]:
        """GET_ALL_CONSUMER_OFFSET (43): the content of one broker's consumerOffset.json."""
        return self._ask(address, questions.OFFSETS)

    def consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """GET_CONSUME_STATS (208) of one broker."""
        return self._ask(address, questions.stats_of(group, topic))

    def consumer_connection(self, address: str, group: str) -> ConsumerConnection:
        """GET_CONSUMER_CONNECTION_LIST (203); ConsumerNotOnlineError when nobody is connected."""
        return self._ask(address, questions.connection_of(group))

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
        question = questions.running_of(group, client_id, stacks=stacks)
        return self._ask(address, question, timeout_ms=timeout_ms)

    def consumer_status(
        self, address: str, group: str, topic: str, client_id: str | None
    ) -> dict[str, dict[MessageQueue, int]]:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): offsets by member, as members report them."""
        header = GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        body = self._body(address, code, header, timeout_ms=CLIENT_TIMEOUT_MS)
        return GetConsumerStatusBody.decode(body).consumer_table

    def topic_settings(self, address: str) -> dict[str, dict[str, Any]]:
        """GET_ALL_TOPIC_CONFIG (21): every topic's settings as the broker names them."""
        return _table(self._body(address, RequestCode.GET_ALL_TOPIC_CONFIG), "topicConfigTable")

    def group_settings(self, address: str) -> dict[str, dict[str, Any]]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): every group's settings, as the broker's JSON."""
        body = self._body(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return _table(body, "subscriptionGroupTable")

    def route_at(self, name_server: str, topic: str) -> bool:
        """GET_ROUTEINFO_BY_TOPIC (105) of one name server: whether it knows the topic."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        try:
            self._body(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except TopicNotExistError:
            return False
        return True

    def groups_of(self, address: str, topic: str) -> set[str]:
        """QUERY_TOPIC_CONSUME_BY_WHO (300) of one broker."""
        return self._ask(address, questions.consumers_of(topic))

    def message_at(self, address: str, offset: int) -> MessageExt:
        """VIEW_MESSAGE_BY_ID (33): the message at a commit log offset."""
        return self._ask(address, questions.message_at(offset))

    def messages_by_key(
        self,
        address: str,
        topic: str,
        key: str,
        most: int,
        *,
        unique: bool = False,
        until_ms: int = 0x7FFF_FFFF_FFFF_FFFF,
    ) -> list[MessageExt]:
        """QUERY_MESSAGE (12) of one broker, the newest; empty when it has none.

        ``unique`` searches by the id the sender gave; ``until_ms`` is the last store time.
        """
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=most,
            begin_timestamp=0,
            end_timestamp=until_ms,
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
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        most: int,
        condition: str | None = None,
    ) -> tuple[list[MessageExt], int]:
        """PULL_MESSAGE (11): messages from an offset on, and where to continue after a gap.

        Args:
            condition: an SQL92 condition by which the broker selects; it answers, perhaps without a
                message, after evaluating some hundred.

        Raises:
            RemoteProtocolError: there is no message at the offset or after it.
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
            subscription="*" if condition is None else condition,
            expression_type="TAG" if condition is None else "SQL92",
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
        return self._ask(address, questions.span_of(group, topic))

    def lock(
        self, address: str, group: str, client_id: str, queues: set[MessageQueue]
    ) -> set[MessageQueue]:
        """LOCK_BATCH_MQ (41): take or renew queues; returns those the client holds now (C-354)."""
        body = LockBatchRequestBody(group, client_id, queues).encode()
        answer = self._body(address, RequestCode.LOCK_BATCH_MQ, body=body)
        return LockBatchResponseBody.decode(answer).lock_ok_mq_set

    def unlock(self, address: str, group: str, client_id: str, queues: set[MessageQueue]) -> None:
        """UNLOCK_BATCH_MQ (42): give queues back; others' are left alone (C-355)."""
        body = UnlockBatchRequestBody(group, client_id, queues).encode()
        self._body(address, RequestCode.UNLOCK_BATCH_MQ, body=body)

    def _namesrv(self, code: RequestCode) -> bytes:
        answer = self._client.request_namesrv(RemotingCommand.request(code), self._timeout_ms)
        return bytes(answer.body)


def _table(body: bytes, name: str) -> dict[str, dict[str, Any]]:
    """Return one table of a broker's answer as plain values, with nothing left out.

    Raises:
        RemoteProtocolError: the answer has no such table.
    """
    value = fastjson.loads(body)
    table = value.get(name) if isinstance(value, dict) else None
    if not isinstance(table, dict) or not all(isinstance(each, dict) for each in table.values()):
        raise RemoteProtocolError(f"the answer has no table {name}: {body[:100]!r}")
    return table

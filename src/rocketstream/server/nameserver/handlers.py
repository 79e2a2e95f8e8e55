"""The answers of a name server to each request code."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Generator

from rocketstream._util.clock import Clock
from rocketstream.errors import BrokerError
from rocketstream.protocol.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    TopicList,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode, TopicSysFlag
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rocketstream.protocol.names import ORDER_NAMESPACE
from rocketstream.protocol.record import body_crc
from rocketstream.server.dispatch import Handler, ok, ok_in_parts, refusal
from rocketstream.server.editing import parse_properties, refuse_others
from rocketstream.server.nameserver.core.routes import BrokerIdentity, KeyValueTable, RouteTable
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import Steps

logger: logging.Logger = logging.getLogger("rocketstream.server")

OWN_NAMESPACE = "ROCKETSTREAM_NAMESRV_CONFIG"
"""Namespace of the name server's own settings, kept with those of codes 100 and 102."""
EDITABLE = {"orderMessageEnable": "false"}
"""Settings that may be changed while it runs, with their first values."""
STANDARD_JSON_SINCE = 401
"""Senders from this version (4.9.4) on read quoted map keys."""
REFUSALS_PAUSE_MS = 600_000
"""Refused registrations come again every 30 s; the log tells of one in so long."""
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


class NameServerHandlers:
    """The handlers over one pair of tables.

    Args:
        settings_written: persists the settings and returns whether that was done; None keeps them
            in memory only.
    """

    def __init__(
        self,
        routes: RouteTable,
        settings: KeyValueTable,
        clock: Clock,
        settings_written: Callable[[], asyncio.Future[bool]] | None = None,
    ) -> None:
        self._settings_written = settings_written
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._silent_until_ms = 0.0

    def table(self) -> dict[int, Handler]:
        """The dispatch table; every other code is refused with code 3."""
        return {
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_plain_unit_sub_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            RequestCode.PUT_KV_CONFIG: self.put_setting,
            RequestCode.GET_KV_CONFIG: self.get_setting,
            RequestCode.DELETE_KV_CONFIG: self.delete_setting,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_settings,
        }

    # --- brokers ---------------------------------------------------------------------------------

    def register_broker(self, connection: Connection, request: RemotingCommand) -> Steps:
        """Code 103."""
        header = request.header(RegisterBrokerRequestHeader)
        body = bytes(request.body)
        if header.body_crc32 and header.body_crc32 != body_crc(body):
            raise refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        wrapper, filter_servers = yield from _topics_of(body, bool(header.compressed))
        identity = BrokerIdentity(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        topics = wrapper.topic_config_table if wrapper else None
        now_ms = self._clock.monotonic_ms()
        try:
            result = yield from self._routes.registering(
                identity,
                ha_server_address=header.ha_server_addr,
                topics=topics,
                data_version=wrapper.data_version if wrapper else None,
                filter_servers=filter_servers,
                channel=connection,
                opened=connection.number,
                now_ms=now_ms,
            )
        except BrokerError as error:
            if now_ms >= self._silent_until_ms:
                self._silent_until_ms = now_ms + REFUSALS_PAUSE_MS
                logger.warning("name server: %s", error.remark)
            raise
        order = self._settings.namespace(ORDER_NAMESPACE)
        return ok(
            RegisterBrokerResponseHeader(
                ha_server_addr=result.ha_server_address, master_addr=result.master_address
            ),
            KVTable(order).encode() if order is not None else b"",
        )

    def unregister_broker(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Code 104; a late one, of a broker that has started anew since, changes nothing."""
        header = request.header(UnRegisterBrokerRequestHeader)
        if not self._routes.is_late(header.broker_addr, connection.number):
            self._routes.unregister(
                BrokerIdentity(
                    header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
                )
            )
        return ok()

    def query_data_version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 322: asked before registering; "unchanged" counts as a sign of life."""
        header = request.header(QueryDataVersionRequestHeader)
        version = DataVersion.decode_request(bytes(request.body))
        changed = self._routes.is_changed(header.broker_addr, version)
        if not changed:
            self._routes.refresh(header.broker_addr, self._clock.monotonic_ms())
        known = self._routes.data_version(header.broker_addr)
        return ok(QueryDataVersionResponseHeader(changed=changed), known.encode() if known else b"")

    # --- questions -------------------------------------------------------------------------------

    def get_route(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 105: standard JSON for senders that can read it, else fastjson's own form."""
        header = request.header(GetRouteInfoRequestHeader)
        route = self._routes.route(header.topic)
        if route is None:
            text = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        if self._own("orderMessageEnable") == "true":
            order = self._settings.get(ORDER_NAMESPACE, header.topic)
            route = dataclasses.replace(route, order_topic_conf=order)
        standard = request.version >= STANDARD_JSON_SINCE or bool(header.accept_standard_json_only)
        return ok(body=route.encode(standard=standard))

    def get_cluster_info(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 106: always fastjson's form with bare integer keys."""
        return ok(body=self._routes.cluster_info().encode())

    def get_topics(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 206."""
        return ok_in_parts((yield from TopicList(set(self._routes.topics())).encoding()))

    def get_topics_by_cluster(self, _: Connection, request: RemotingCommand) -> Steps:
        """Code 224."""
        header = request.header(GetTopicsByClusterRequestHeader)
        topics = self._routes.topics_of_cluster(header.cluster)
        return ok_in_parts((yield from TopicList(set(topics)).encoding()))

    def get_system_topics(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 304."""
        names, address = self._routes.system_topics()
        return ok(body=TopicList(set(names), address).encode())

    def get_unit_topics(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 311."""
        return self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT))

    def get_unit_sub_topics(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 312."""
        return self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB))

    def get_plain_unit_sub_topics(self, _: Connection, __: RemotingCommand) -> Steps:
        """Code 313."""
        both = TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB
        return self._by_flag(lambda flag: flag & both == TopicSysFlag.UNIT_SUB)

    def _by_flag(self, is_wanted: Callable[[int], bool]) -> Steps:
        topics = set(self._routes.topics_by_flag(is_wanted))
        return ok_in_parts((yield from TopicList(topics).encoding()))

    # --- administration --------------------------------------------------------------------------

    def update_config(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Code 318: allowed changes take effect at once; answered once they are persisted."""
        given = parse_properties(bytes(request.body).decode(errors="replace"))
        refuse_others(given, EDITABLE, "the name server")
        for name, text in given.items():
            if text not in ("true", "false"):
                text = f"{name}={text} is not accepted: give true or false"
                raise refusal(ResponseCode.SYSTEM_ERROR, text)
        for name, text in given.items():
            problem = self._settings.put(OWN_NAMESPACE, name, text)
            if problem is not None:
                raise refusal(ResponseCode.SYSTEM_ERROR, problem)
        return self._answer_written(connection, request)

    def _own(self, name: str) -> str:
        return self._settings.get(OWN_NAMESPACE, name) or EDITABLE[name]

    def get_config(self, connection: Connection, _: RemotingCommand) -> RemotingCommand:
        """Code 319."""
        lines = {"listenPort": str(connection.local_host[1])}
        lines |= {name: self._own(name) for name in EDITABLE}
        return ok(body="".join(f"{key}={value}\n" for key, value in lines.items()).encode())

    def delete_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 216."""
        header = request.header(DeleteTopicFromNamesrvRequestHeader)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return ok()

    def wipe_write_permission(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 205."""
        header = request.header(WipeWritePermOfBrokerRequestHeader)
        count = self._routes.wipe_write_permission(header.broker_name)
        return ok(WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def add_write_permission(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 327."""
        header = request.header(AddWritePermOfBrokerRequestHeader)
        count = self._routes.add_write_permission(header.broker_name)
        return ok(AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    def put_setting(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Code 100: answered once the change is persisted."""
        header = request.header(PutKVConfigRequestHeader)
        problem = self._settings.put(header.namespace, header.key, header.value)
        if problem is not None:
            raise refusal(ResponseCode.SYSTEM_ERROR, problem)
        return self._answer_written(connection, request)

    def _answer_written(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        if self._settings_written is None:
            return ok()

        def done(written: asyncio.Future[bool]) -> None:
            if not written.cancelled() and written.result():
                connection.reply(request, ok())
                return
            text = "the setting holds until the name server ends: it cannot be written down"
            answer = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, text)
            connection.reply(request, answer)

        self._settings_written().add_done_callback(done)
        return None

    def get_setting(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 101."""
        header = request.header(GetKVConfigRequestHeader)
        value = self._settings.get(header.namespace, header.key)
        if value is None:
            text = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            raise refusal(ResponseCode.QUERY_NOT_FOUND, text)
        return ok(GetKVConfigResponseHeader(value=value))

    def delete_setting(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Code 102: answered once the change is persisted."""
        header = request.header(DeleteKVConfigRequestHeader)
        self._settings.delete(header.namespace, header.key)
        return self._answer_written(connection, request)

    def get_settings(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 219."""
        header = request.header(GetKVListByNamespaceRequestHeader)
        found = self._settings.namespace(header.namespace)
        if found is None:
            text = f"No config item, Namespace: {header.namespace}"
            raise refusal(ResponseCode.QUERY_NOT_FOUND, text)
        return ok(body=KVTable(found).encode())


def _topics_of(
    body: bytes, compressed: bool
) -> Generator[None, None, tuple[TopicConfigSerializeWrapper | None, list[str]]]:
    if not body:
        return None, []
    if compressed:
        decoded = yield from RegisterBrokerBody.decoding_compressed(body)
    else:
        decoded = yield from RegisterBrokerBody.decoding(body)
    return decoded.topic_config_serialize_wrapper, decoded.filter_server_list

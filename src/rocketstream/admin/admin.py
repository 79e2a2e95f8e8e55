"""The admin client: topics, groups and consumption progress of one cluster as typed rows.

Law: joins of what ``admin.wire`` was told; every failure is one of ``rocketstream.errors``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin.lag import (
    GroupFacts,
    QueueProgress,
    groups_of_offsets,
    lag_rows,
    offsets_of_group,
    total_lag,
)
from rocketstream.admin.rows import (
    BrokerRow,
    GroupRow,
    LagRow,
    MemberRow,
    RouteRow,
    TopicRow,
    TopicStatusRow,
)
from rocketstream.admin.wire import AdminWire
from rocketstream.client.blocking import BlockingAdminClient
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConsumerNotOnlineError,
    RequestTimeoutError,
    RouteNotFoundError,
    TopicNotExistError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.codes import Perm

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection, TopicConfig

DEFAULT_TIMEOUT_MS = 5_000
DEFAULT_TOPIC_QUEUES = 8
_ROUTE_POLL_S = 0.02


class Admin:
    """Asks a cluster about its topics and groups; blocking and to be closed.

    Args:
        namesrv_addr: ``host:port``, several separated by ``;``; None takes NAMESRV_ADDR.
        timeout_ms: bound of one request; GET_CONSUME_STATS gets three times that (C-525).
        access_key: ACL user, with ``secret_key``.
        secret_key: ACL secret.
        security_token: token of a temporary ACL user.
        clock: where deadlines come from.

    Example:
        >>> with Admin("127.0.0.1:9876") as admin:          # doctest: +SKIP
        ...     for row in admin.group_lag("orders"):
        ...         print(row.topic, row.queue_id, row.lag)
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        client = BlockingAdminClient(
            namesrv_addr,
            timeout_ms=timeout_ms,
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
        )
        self._client = client
        self._wire = AdminWire(client, timeout_ms)
        self._timeout_ms = timeout_ms
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; calling it again does nothing."""
        self._wire.close()

    # --- cluster and topics ---------------------------------------------------------------------

    def cluster_info(self) -> list[BrokerRow]:
        """Return every broker process registered with the name server."""
        info = self._wire.cluster_info()
        return sorted(
            BrokerRow(data.cluster, name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        )

    def topic_list(self) -> list[TopicRow]:
        """Return every topic of the cluster, system topics included (``kind`` tells them)."""
        system = self._wire.system_topic_names()
        configs: dict[str, list[tuple[str, TopicConfig]]] = {}
        for broker_name, address in self._wire.masters().items():
            table = self._wire.topic_configs(address).topic_config_table
            for topic, config in table.items():
                configs.setdefault(topic, []).append((broker_name, config))
        topics = set(self._wire.topic_names()) | set(configs)
        return [_topic_row(topic, system, configs.get(topic, [])) for topic in sorted(topics)]

    def topic_create(
        self, name: str, queues: int = DEFAULT_TOPIC_QUEUES, perm: int = Perm.READ | Perm.WRITE
    ) -> list[RouteRow]:
        """Create a topic on every broker, or change its queues and permission where it exists.

        Returns when the name server routes to it on every broker, at the latest after the
        timeout of one request.

        Args:
            name: 1 to 127 characters of ``[%|a-zA-Z0-9_-]``.
            queues: read and write queues on each broker, from 1.
            perm: bits of ``Perm`` (4 read, 2 write).

        Raises:
            ConfigurationError: the name, queue count or permission is not acceptable.
            RequestTimeoutError: the brokers took it but the name server does not route to it yet.
        """
        names.check_topic(name)
        if queues < 1:
            raise ConfigurationError(
                f"queues is {queues}; a topic has at least 1 queue on each broker", queues=queues
            )
        if perm not in (Perm.READ, Perm.WRITE, Perm.READ | Perm.WRITE):
            raise ConfigurationError(
                f"perm is {perm}; accepted are 6 (read and write), 4 (read), 2 (write)", perm=perm
            )
        masters = self._wire.masters()
        for address in masters.values():
            self._wire.create_topic(address, name, queues, perm)
        return self._wait_routed(name, masters, queues)

    def _wait_routed(self, topic: str, brokers: Iterable[str], queues: int) -> list[RouteRow]:
        """Ask for the route until it shows the queues: registration follows the broker's answer."""
        pause = threading.Event()
        deadline = self._clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                rows = self.topic_route(topic)
            except (RouteNotFoundError, TopicNotExistError):
                rows = []
            routed = {row.broker_name for row in rows if row.read_queues == queues}
            if routed.issuperset(brokers):
                return rows
            if self._clock.monotonic_ms() >= deadline:
                raise RequestTimeoutError(
                    f"the brokers created topic {topic!r}, but after {self._timeout_ms} ms the "
                    "name server does not route to it; check that the brokers can reach it",
                    topic=topic,
                )
            pause.wait(_ROUTE_POLL_S)

    def topic_route(self, name: str) -> list[RouteRow]:
        """Return which brokers hold a topic and with how many queues.

        Raises:
            RouteNotFoundError: the name server does not know the topic.
        """
        route = self._wire.route(name)
        masters = {data.broker_name: data.broker_addrs.get(0) for data in route.broker_datas}
        return sorted(
            (
                RouteRow(
                    topic=name,
                    broker_name=data.broker_name,
                    address=masters.get(data.broker_name),
                    read_queues=data.read_queue_nums,
                    write_queues=data.write_queue_nums,
                    permission=_permission(data.perm),
                )
                for data in route.queue_datas
            ),
            key=lambda row: row.broker_name,
        )

    def topic_status(self, name: str) -> list[TopicStatusRow]:
        """Return what each queue of a topic holds (C-538), from the masters.

        Raises:
            RouteNotFoundError: the name server does not know the topic.
        """
        rows: list[TopicStatusRow] = []
        for part in self.topic_route(name):
            if part.address is None:
                continue
            table = self._wire.topic_stats(part.address, name).offset_table
            for queue, stats in table.items():
                rows.append(
                    TopicStatusRow(
                        topic=queue.topic,
                        broker_name=queue.broker_name,
                        queue_id=queue.queue_id,
                        min_offset=max(stats.min_offset, 0),
                        max_offset=max(stats.max_offset, 0),
                        last_update_ms=_known_ms(stats.last_update_timestamp),
                    )
                )
        return sorted(rows, key=lambda row: (row.topic, row.broker_name, row.queue_id))

    # --- groups -----------------------------------------------------------------------------------

    def group_list(self) -> list[GroupRow]:
        """Return every consumer group the brokers know, upstream's own groups left out."""
        masters = self._wire.masters()
        offsets = groups_of_offsets(self._all_offsets(masters) or {})
        known = set(offsets)
        for address in masters.values():
            known.update(self._wire.group_configs(address).subscription_group_table)
        return [
            self._group_row(group, masters, offsets.get(group, set()))
            for group in sorted(known)
            if not names.is_system_group(group)
        ]

    def group_members(self, group: str) -> list[MemberRow]:
        """Return the connected members of a group; empty when nobody is connected."""
        found: dict[str, MemberRow] = {}
        for connection in self._connections(group, self._wire.masters()).values():
            for member in connection.connection_set:
                found[member.client_id] = MemberRow(
                    client_id=member.client_id,
                    address=member.client_addr,
                    language=str(member.language),
                    version=member.version,
                )
        return sorted(found.values())

    def group_lag(self, group: str, topic: str | None = None) -> list[LagRow]:
        """Return how far a group is in each queue it consumes (C-526 to C-529).

        Needs no route of the retry topic, so groups that never sent a heartbeat (a Spark
        query's, say) can be examined too.

        Args:
            group: the consumer group.
            topic: only this topic; None for all the group has offsets for or subscribes to.

        Raises:
            ConfigurationError: no broker knows the group.
            RouteNotFoundError: ``topic`` is given and unknown.
        """
        names.check_group(group)
        if topic is not None:
            self._wire.route(topic)
        masters = self._wire.masters()
        connections = self._connections(group, masters)
        table = self._progress(group, topic, masters, connections)
        if not table and topic is None and not connections:
            self._check_group_known(group, masters)
        return lag_rows(group, table, self._facts(group, table, masters, connections))

    def group_begin(
        self, group: str, topic: str, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """Store where a group begins, in the queues of a topic it has no offset for.

        A consumer's own ``consume_from_where`` is not enough: for a young topic a broker answers
        0 to a group it does not know, and the group begins at the oldest message (C-195).

        Args:
            group: the consumer group; left alone while it has connected members.
            topic: the topic.
            timestamp_ms: begin with messages stored then or later; None begins after the newest.

        Returns:
            The offsets stored, empty when there was nothing to do.

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        names.check_group(group)
        queues = self._client.subscribe_queues(topic, refresh=True)
        masters = self._wire.masters()
        if self._connections(group, masters):
            return {}
        tables = self._all_offsets(masters)
        stored = {} if tables is None else offsets_of_group(tables, group)
        begin: dict[MessageQueue, int] = {}
        for row in self.topic_status(topic):
            queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
            if queue not in stored and queue in queues:
                begin[queue] = self._begin_offset(queue, row, timestamp_ms)
                self._client.update_consumer_offset(group, queue, begin[queue])
        return begin

    def _begin_offset(
        self, queue: MessageQueue, row: TopicStatusRow, timestamp_ms: int | None
    ) -> int:
        newest = row.last_update_ms
        # A search beyond the newest message finds that message, not the end (C-372).
        if timestamp_ms is None or newest is None or timestamp_ms > newest:
            return row.max_offset
        return self._client.search_offset(queue, timestamp_ms)

    def _group_row(self, group: str, masters: Mapping[str, str], topics: set[str]) -> GroupRow:
        connections = self._connections(group, masters)
        table = self._progress(group, None, masters, connections)
        stored = self._stored_offsets(group, table, masters)
        lag, unknown = total_lag(lag_rows(group, table, GroupFacts(stored=stored)))
        members = {
            member.client_id
            for connection in connections.values()
            for member in connection.connection_set
        }
        models = {connection.message_model for connection in connections.values()}
        return GroupRow(
            group=group,
            members=len(members),
            message_model=str(models.pop()) if len(models) == 1 else None,
            topics=tuple(sorted(topics | {queue.topic for queue in table})),
            lag=lag,
            queues_unknown=unknown,
        )

    def _connections(self, group: str, masters: Mapping[str, str]) -> dict[str, ConsumerConnection]:
        """Return each broker's connected members; brokers where nobody is connected are absent."""
        found: dict[str, ConsumerConnection] = {}
        for broker_name, address in masters.items():
            try:
                found[broker_name] = self._wire.consumer_connection(address, group)
            except ConsumerNotOnlineError:
                continue
        return found

    def _progress(
        self,
        group: str,
        topic: str | None,
        masters: Mapping[str, str],
        connections: Mapping[str, ConsumerConnection],
    ) -> dict[MessageQueue, QueueProgress]:
        """Return 208's entries; subscribed topics without a committed offset are asked for too."""
        table: dict[MessageQueue, QueueProgress] = {}
        for broker_name, address in masters.items():
            self._add_progress(table, address, group, topic)
            connection = connections.get(broker_name)
            if topic is not None or connection is None:
                continue
            seen = {queue.topic for queue in table if queue.broker_name == broker_name}
            for subscribed in sorted(set(connection.subscription_table) - seen):
                self._add_progress(table, address, group, subscribed)
        return table

    def _add_progress(
        self,
        table: dict[MessageQueue, QueueProgress],
        address: str,
        group: str,
        topic: str | None,
    ) -> None:
        stats = self._wire.consume_stats(address, group, topic)
        for queue, entry in stats.offset_table.items():
            table[queue] = QueueProgress(
                entry.broker_offset, entry.consumer_offset, entry.last_timestamp
            )

    def _check_group_known(self, group: str, masters: Mapping[str, str]) -> None:
        for address in masters.values():
            if group in self._wire.group_configs(address).subscription_group_table:
                return
        raise ConfigurationError(
            f"consumer group {group!r} is not known to any broker; "
            "`rocketstream group list` shows the groups there are",
            group=group,
        )

    def _facts(
        self,
        group: str,
        table: Mapping[MessageQueue, QueueProgress],
        masters: Mapping[str, str],
        connections: Mapping[str, ConsumerConnection],
    ) -> GroupFacts:
        return GroupFacts(
            stored=self._stored_offsets(group, table, masters),
            owners=self._owners(group, masters, connections),
            delays_ms=self._delays_ms(group, table, masters),
        )

    def _stored_offsets(
        self,
        group: str,
        table: Mapping[MessageQueue, QueueProgress],
        masters: Mapping[str, str],
    ) -> dict[MessageQueue, int] | None:
        """Return committed offsets when a 0 needs explaining (C-527), else nothing."""
        if not any(entry.consumer_offset <= 0 for entry in table.values()):
            return {}
        tables = self._all_offsets(masters)
        return None if tables is None else offsets_of_group(tables, group)

    def _all_offsets(
        self, masters: Mapping[str, str]
    ) -> dict[str, dict[str, dict[int, int]]] | None:
        """Return every broker's offset table; None when one does not answer code 43."""
        try:
            return {name: self._wire.all_offsets(address) for name, address in masters.items()}
        except BrokerError:
            return None

    def _owners(
        self,
        group: str,
        masters: Mapping[str, str],
        connections: Mapping[str, ConsumerConnection],
    ) -> dict[MessageQueue, str]:
        """Ask each member which queues it holds (307); one that does not answer is left out."""
        owners: dict[MessageQueue, str] = {}
        asked: set[str] = set()
        for broker_name, connection in connections.items():
            for member in connection.connection_set:
                if member.client_id in asked:
                    continue
                asked.add(member.client_id)
                try:
                    info = self._wire.running_info(masters[broker_name], group, member.client_id)
                except (BrokerError, RequestTimeoutError):
                    continue
                owners.update(dict.fromkeys(info.mq_table, member.client_id))
        return owners

    def _delays_ms(
        self,
        group: str,
        table: Mapping[MessageQueue, QueueProgress],
        masters: Mapping[str, str],
    ) -> dict[MessageQueue, int]:
        """Ask how old the oldest unconsumed message is (303), only where something is waiting."""
        behind = {
            (queue.broker_name, queue.topic)
            for queue, entry in table.items()
            if entry.broker_offset > entry.consumer_offset
        }
        delays: dict[MessageQueue, int] = {}
        for broker_name, topic in sorted(behind):
            address = masters.get(broker_name)
            if address is None:
                continue
            try:
                span = self._wire.time_span(address, topic, group)
            except BrokerError:
                continue
            for entry in span.consume_time_span_set:
                if entry.message_queue is not None and entry.delay_time > 0:
                    delays[entry.message_queue] = entry.delay_time
        return delays


def _known_ms(timestamp: int) -> int | None:
    return timestamp if timestamp > 0 else None


def _permission(perm: int) -> str:
    return ("R" if perm & Perm.READ else "") + ("W" if perm & Perm.WRITE else "")


def _topic_kind(topic: str, system: set[str]) -> str:
    if topic.startswith(names.RETRY_PREFIX):
        return "retry"
    if topic.startswith(names.DLQ_PREFIX):
        return "dead letter"
    owner = topic.removesuffix(names.REPLY_TOPIC_SUFFIX)  # every cluster has its own reply topic
    if topic in system or names.is_system_topic(topic) or (owner != topic and owner in system):
        return "system"
    return "normal"


def _topic_row(topic: str, system: set[str], configs: list[tuple[str, TopicConfig]]) -> TopicRow:
    perm: int | None = None
    for _, config in configs:
        perm = config.perm if perm is None else perm & config.perm
    return TopicRow(
        topic=topic,
        kind=_topic_kind(topic, system),
        brokers=tuple(sorted(name for name, _ in configs)),
        read_queues=sum(c.read_queue_nums for _, c in configs) if configs else None,
        write_queues=sum(c.write_queue_nums for _, c in configs) if configs else None,
        permission=None if perm is None else _permission(perm),
    )

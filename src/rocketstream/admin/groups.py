"""Consumer groups: who is connected, what they have consumed, how far behind they are.

Law: joins of what ``admin.wire`` was told; what nobody told stays None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocketstream.admin.lag import (
    GroupFacts,
    QueueProgress,
    delay_ms,
    groups_of_offsets,
    lag_rows,
    offsets_of_group,
    only_owner,
    total_lag,
)
from rocketstream.admin.rows import GroupRow, LagRow, MemberRow, TopicStatusRow
from rocketstream.admin.topics import TopicAdmin
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConsumerNotOnlineError,
    RequestTimeoutError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection

SILENT_MEMBERS_MAX = 3


class GroupAdmin(TopicAdmin):
    """The group operations of ``Admin``."""

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
            owners=only_owner(table, connections) or self._owners(group, masters, connections)[0],
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
    ) -> tuple[dict[MessageQueue, str], list[str]]:
        """Ask each member which queues it holds (307), and name those that did not say.

        After some silent members the rest is not asked: waiting for each would take minutes.
        """
        owners: dict[MessageQueue, str] = {}
        silent = 0
        asked: set[str] = set()
        untold: list[str] = []
        for broker_name, connection in connections.items():
            for member in connection.connection_set:
                if member.client_id in asked:
                    continue
                asked.add(member.client_id)
                if silent == SILENT_MEMBERS_MAX:
                    untold.append(member.client_id)
                    continue
                try:
                    info = self._wire.running_info(masters[broker_name], group, member.client_id)
                except (RequestTimeoutError, BrokerError) as error:
                    silent += isinstance(error, RequestTimeoutError)
                    untold.append(member.client_id)
                    continue
                owners.update(dict.fromkeys(info.mq_table, member.client_id))
        return owners, untold

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
                delay = delay_ms(entry)
                if entry.message_queue is not None and delay:
                    delays[entry.message_queue] = delay
        return delays

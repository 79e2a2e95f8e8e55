"""How far every group is, in one sweep that goes on where a broker or a member does not answer.

Law: joins of what ``admin.wire`` was told. A peer that fails costs its own figures, with the reason
in their rows; only without a name server there is nothing to tell.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketstream.admin.lag import (
    GroupFacts,
    QueueProgress,
    delay_ms,
    groups_of_offsets,
    lag_rows,
    only_owner,
)
from rocketstream.admin.members import MemberAdmin
from rocketstream.admin.rows import ProgressRow
from rocketstream.errors import (
    BrokerError,
    ConsumerNotOnlineError,
    RemoteProtocolError,
    TopicNotExistError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection, TopicOffset

KIND_TOPIC, KIND_RETRY, KIND_DEAD = "topic", "retry", "dead letter"

_UNTOLD = (BrokerError, TransportError, RemoteProtocolError)
"""What asking one peer may fail with, while the others still answer."""


@dataclass(slots=True)
class _Broker:
    """One broker during a sweep.

    Attributes:
        address: of its master; None while it has none.
        offsets: what it told of committed offsets, ``topic@group`` first; None before, or where
            it does not answer that question.
        topics: the groups it knows, each with the topics it has committed offsets in.
        ends: what it told of topics; None for a topic it does not have.
        error: why it cannot be asked at all.
    """

    cluster: str
    name: str
    address: str | None
    offsets: Mapping[str, Mapping[int, int]] | None = None
    topics: dict[str, set[str]] = field(default_factory=dict)
    ends: dict[str, Mapping[MessageQueue, TopicOffset] | None] = field(default_factory=dict)
    error: str | None = None

    def blank(self, group: str | None, error: str) -> ProgressRow:
        return ProgressRow(self.cluster, self.name, group, error=error)


@dataclass(frozen=True, slots=True)
class _Group:
    """One group during a sweep.

    Attributes:
        connections: its connected members by broker.
        refused: why a broker did not tell them, by broker.
        owners: client id by queue.
        ownerless: why owners may be missing, None where they are all told.
    """

    name: str
    connections: Mapping[str, ConsumerConnection]
    refused: Mapping[str, str]
    owners: Mapping[MessageQueue, str]
    ownerless: str | None


class ProgressAdmin(MemberAdmin):
    """The sweeping operation of ``Admin``."""

    def progress(
        self,
        groups: Collection[str] | None = None,
        *,
        group_pattern: str | None = None,
        topics: Collection[str] | None = None,
        owners: bool = True,
    ) -> list[ProgressRow]:
        """Return where groups are in all their queues, and what could not be found out.

        Blocks for some requests per group and broker, one after the other; a broker that does
        not answer is asked once.

        Args:
            groups: these groups; one that no broker knows gets a row that says so.
            group_pattern: also groups whose whole name matches this regular expression. With
                neither all are swept, upstream's own left out.
            topics: only these topics; None for all, retry and dead-letter topics included.
            owners: also ask members which queues they hold, where a group has several.

        Returns:
            Rows sorted by group, topic, broker and queue; those that only tell of an error first.

        Raises:
            ConnectError: no name server answered.
            re.error: the pattern is not a regular expression.
        """
        brokers = self._brokers_known()
        for broker in brokers:
            self._look_around(broker)
        found = {group for broker in brokers for group in broker.topics}
        wanted = set(groups or ())
        if group_pattern is not None:
            pattern = re.compile(group_pattern)
            wanted |= {group for group in found if pattern.fullmatch(group)}
        elif groups is None:
            wanted |= {group for group in found if not names.is_system_group(group)}
        rows = [row for group in wanted for row in self._sweep(group, brokers, topics, owners)]
        if not wanted:
            rows = [broker.blank(None, broker.error) for broker in brokers if broker.error]
        if not brokers:
            unknown: list[str | None] = [*sorted(wanted)]
            rows = [_nobody_registered(group) for group in unknown or [None]]
        return sorted(rows, key=_order)

    # --- brokers ----------------------------------------------------------------------------------

    def _brokers_known(self) -> list[_Broker]:
        table = self._wire.cluster_info().broker_addr_table
        return [
            _Broker(data.cluster, name, data.broker_addrs.get(0))
            for name, data in sorted(table.items())
        ]

    def _look_around(self, broker: _Broker) -> None:
        """Ask a broker for its groups; note why where it cannot be asked."""
        if broker.address is None:
            broker.error = f"broker {broker.name} has no master at the moment"
            return
        try:
            configs = self._wire.group_configs(broker.address).subscription_group_table
        except _UNTOLD as error:
            broker.error = f"broker {broker.name} cannot be asked for its groups: {error}"
            return
        broker.topics = {group: set() for group in configs}
        try:
            broker.offsets = self._wire.all_offsets(broker.address)
        except BrokerError:
            return  # an offset of 0 is then not known, as in ``group_lag``
        except (TransportError, RemoteProtocolError) as error:
            broker.error = f"broker {broker.name} cannot be asked for offsets: {error}"
            return
        broker.topics |= groups_of_offsets({broker.name: broker.offsets})

    def _ends(self, broker: _Broker, topic: str) -> Mapping[MessageQueue, TopicOffset] | None:
        """Return what a broker holds of a topic, asked once a sweep; None where it has no such."""
        assert broker.address is not None
        if topic not in broker.ends:
            try:
                broker.ends[topic] = self._wire.topic_stats(broker.address, topic).offset_table
            except TopicNotExistError:
                broker.ends[topic] = None
        return broker.ends[topic]

    # --- groups -----------------------------------------------------------------------------------

    def _sweep(
        self,
        name: str,
        brokers: list[_Broker],
        topics: Collection[str] | None,
        owners: bool,
    ) -> list[ProgressRow]:
        reachable = [broker for broker in brokers if broker.error is None]
        if reachable == brokers and not any(_may_know(broker, name) for broker in brokers):
            text = f"no broker knows group {name}: it never committed an offset nor connected"
            return [ProgressRow(None, None, name, error=text)] if brokers else []
        group = self._group(name, reachable, owners)
        rows: list[ProgressRow] = []
        for broker in brokers:
            if broker.error is not None:
                rows.append(broker.blank(name, broker.error))
            elif _may_know(broker, name):
                rows += self._at_broker(group, broker, topics)
        return rows

    def _group(self, name: str, brokers: list[_Broker], ask_owners: bool) -> _Group:
        connections: dict[str, ConsumerConnection] = {}
        refused: dict[str, str] = {}
        masters = {broker.name: broker.address for broker in brokers if broker.address}
        for broker_name, address in masters.items():
            try:
                connections[broker_name] = self._wire.consumer_connection(address, name)
            except ConsumerNotOnlineError:
                continue
            except _UNTOLD as error:
                refused[broker_name] = f"members are not known: {error}"
        owners: Mapping[MessageQueue, str] = {}
        ownerless = None
        if ask_owners and len(_members(connections)) > 1:
            try:
                owners, silent = self._owners(name, masters, connections)
            except (TransportError, RemoteProtocolError) as error:
                ownerless = f"owners are not known: {error}"
            else:
                if silent:
                    ownerless = f"owners are not known: {', '.join(silent)} did not say"
        return _Group(name, connections, refused, owners, ownerless)

    def _at_broker(
        self, group: _Group, broker: _Broker, topics: Collection[str] | None
    ) -> Iterator[ProgressRow]:
        assert broker.address is not None
        topic: str | None = None
        try:
            found = _topics_of(group, broker)
            if broker.offsets is None:
                told = self._wire.consume_stats(broker.address, group.name).offset_table
                found |= {queue.topic for queue in told}
            for topic in sorted(found if topics is None else found.intersection(topics)):
                yield from self._in_topic(group, broker, topic)
        except TransportError as error:
            broker.error = f"broker {broker.name} stopped answering: {error}"
            yield broker.blank(group.name, broker.error)
        except (BrokerError, RemoteProtocolError) as error:
            kind = None if topic is None else _kind(group.name, topic)
            yield dataclasses.replace(broker.blank(group.name, str(error)), topic=topic, kind=kind)

    def _in_topic(self, group: _Group, broker: _Broker, topic: str) -> list[ProgressRow]:
        assert broker.address is not None
        if topic == names.dlq_topic(group.name) and topic not in broker.topics.get(group.name, ()):
            return self._dead_letters(group, broker, topic)
        stats = self._wire.consume_stats(broker.address, group.name, topic)
        table = {
            queue: QueueProgress(entry.broker_offset, entry.consumer_offset, entry.last_timestamp)
            for queue, entry in stats.offset_table.items()
        }
        errors = [text for text in (group.refused.get(broker.name), group.ownerless) if text]
        if broker.offsets is None and any(p.consumer_offset <= 0 for p in table.values()):
            errors.append("whether 0 is a committed offset is not known: code 43 is refused")
        delays: Mapping[MessageQueue, int] = {}
        if any(p.broker_offset > p.consumer_offset for p in table.values()):
            delays, why = self._delays_in(group.name, broker.address, topic)
            errors += [why] if why else []
        connection = group.connections.get(broker.name)
        facts = GroupFacts(
            stored=_stored(group.name, broker, topic),
            owners=only_owner(table, group.connections) or group.owners,
            delays_ms=delays,
        )
        low = self._ends(broker, topic) or {}
        online = {} if broker.name in group.refused else {"members": _count(connection)}
        return [
            ProgressRow(
                cluster=broker.cluster,
                broker_name=broker.name,
                group=group.name,
                topic=topic,
                kind=_kind(group.name, topic),
                queue_id=row.queue_id,
                min_offset=_low(low, MessageQueue(topic, broker.name, row.queue_id)),
                max_offset=row.broker_offset,
                committed_offset=row.consumer_offset,
                lag=row.lag,
                time_lag_ms=row.time_lag_ms,
                last_consumed_ms=row.last_consumed_ms,
                client_id=row.client_id,
                consume_tps=stats.consume_tps,
                error="; ".join(errors) or None,
                **online,
            )
            for row in lag_rows(group.name, table, facts)
        ]

    def _dead_letters(self, group: _Group, broker: _Broker, topic: str) -> list[ProgressRow]:
        """Return what a broker holds of a group's dead letters; nothing where there are none."""
        return [
            ProgressRow(
                cluster=broker.cluster,
                broker_name=broker.name,
                group=group.name,
                topic=topic,
                kind=KIND_DEAD,
                queue_id=queue.queue_id,
                min_offset=max(held.min_offset, 0),
                max_offset=max(held.max_offset, 0),
            )
            for queue, held in sorted((self._ends(broker, topic) or {}).items())
        ]

    def _delays_in(
        self, group: str, address: str, topic: str
    ) -> tuple[dict[MessageQueue, int], str | None]:
        """Ask how old the oldest unconsumed message of each queue is (303), or tell why not."""
        try:
            spans = self._wire.time_span(address, topic, group).consume_time_span_set
        except BrokerError as error:
            return {}, f"lag in time is not known: {error}"
        found = {span.message_queue: delay_ms(span) for span in spans if span.message_queue}
        return {queue: delay for queue, delay in found.items() if delay is not None}, None


def _topics_of(group: _Group, broker: _Broker) -> set[str]:
    """Return the topics of a group at a broker: consumed, subscribed, and its dead letters."""
    connection = group.connections.get(broker.name)
    subscribed = set(connection.subscription_table) if connection is not None else set()
    consumed = broker.topics.get(group.name, set())
    return consumed | subscribed | {names.dlq_topic(group.name)}


def _may_know(broker: _Broker, group: str) -> bool:
    return group in broker.topics or broker.offsets is None


def _stored(group: str, broker: _Broker, topic: str) -> dict[MessageQueue, int] | None:
    """Return what a broker told of a group's committed offsets in a topic."""
    if broker.offsets is None:
        return None
    offsets = broker.offsets.get(f"{topic}@{group}", {})
    return {MessageQueue(topic, broker.name, number): at for number, at in offsets.items()}


def _kind(group: str, topic: str) -> str:
    if topic == names.retry_topic(group):
        return KIND_RETRY
    return KIND_DEAD if topic == names.dlq_topic(group) else KIND_TOPIC


def _low(ends: Mapping[MessageQueue, TopicOffset], queue: MessageQueue) -> int | None:
    held = ends.get(queue)
    return None if held is None else max(held.min_offset, 0)


def _members(connections: Mapping[str, ConsumerConnection]) -> set[str]:
    return {m.client_id for found in connections.values() for m in found.connection_set}


def _count(connection: ConsumerConnection | None) -> int:
    return 0 if connection is None else len(connection.connection_set)


def _nobody_registered(group: str | None) -> ProgressRow:
    text = "no broker is registered with the name server"
    return ProgressRow(None, None, group, error=text)


def _order(row: ProgressRow) -> tuple[str, str, str, int]:
    queue_id = -1 if row.queue_id is None else row.queue_id
    return (row.group or "", row.topic or "", row.broker_name or "", queue_id)

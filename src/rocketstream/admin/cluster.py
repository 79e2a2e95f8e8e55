"""Brokers and name servers one by one, their settings, and the producers connected to them.

Law: a server that does not answer is a row with the reason, never a missing row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from rocketstream.admin.rows import BrokerRow
from rocketstream.admin.service import Service, question
from rocketstream.admin.state import BrokerFigures, figures
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import beside
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    RequestNotSupportedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.protocol import names
from rocketstream.protocol.bodies import ProducerConnection
from rocketstream.protocol.codes import MASTER_ID, ResponseCode

if TYPE_CHECKING:
    from rocketstream.admin.state import BrokerState, ClusterState

DEFAULT_DELAY_LEVELS = tuple(
    f"{n}{unit}"
    for unit, ns in (("s", (1, 5, 10, 30)), ("m", (*range(1, 11), 20, 30)), ("h", (1, 2)))
    for n in ns
)
"""RocketMQ's delay levels; level 1 is the first."""
_NOT_CONNECTED = "not exist"


@dataclass(frozen=True, slots=True)
class BrokerStatusRow:
    """One broker process.

    Attributes:
        broker_id: 0 is the master.
        address: ``host:port`` clients connect to.
        figures: the figures it reports about itself; None when it did not answer.
        facts: everything it reports, by upstream's names.
        error: why it could not be asked.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    figures: BrokerFigures | None = None
    facts: dict[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def is_master(self) -> bool:
        """Whether clients write to it."""
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class NameServerRow:
    """One of the name servers given.

    Attributes:
        brokers: ``host:port`` of every broker process it knows; None when it did not answer.
        config: its settings, by upstream's names; None when it did not answer.
        order_topics: its settings of ordered topics, by topic; None when it did not answer.
        error: why it could not be asked.
    """

    address: str
    brokers: tuple[str, ...] | None = None
    config: dict[str, str] | None = None
    order_topics: dict[str, str] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class ProducerRow:
    """One connected producer.

    Attributes:
        brokers: brokers it is connected to.
        version: MQVersion ordinal.
        last_heartbeat_ms: when its last heartbeat came, ms since 1970; None when not known.
    """

    group: str
    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]
    last_heartbeat_ms: int | None = None


class Cluster(Service):
    """``Admin.cluster``."""

    @question
    def state(
        self,
        groups: Collection[str] | None = None,
        topics: Collection[str] | None = None,
        *,
        matching: bool = False,
        owners: bool = False,
    ) -> ClusterState:
        """Return every broker, topic and group at one moment; blocks for the whole sweep.

        Args:
            groups: only these groups; one that no broker knows is absent. None for all,
                upstream's own left out.
            topics: only these topics, and of the groups only their queues; None for all, or for
                those the given groups consume.
            matching: also count the messages each group's filter wants, where it has one.
            owners: also ask members which queues they hold, where a group has several.
        """
        from rocketstream.admin.sweep import Sweep  # most commands need none

        return Sweep(self._reach).cluster(groups, topics, matching=matching, owners=owners)

    @question
    def name_servers(self) -> list[NameServerRow]:
        """Return each configured name server, with the brokers it knows and its settings.

        Name servers know nothing of each other: only here does it show that one of them lacks a
        broker.
        """
        return beside(self._name_server, self._client.name_servers)

    def _name_server(self, address: str) -> NameServerRow:
        try:
            table = self._wire.ask_one_namesrv(address, questions.CLUSTER).broker_addr_table
        except RocketMQError as error:
            return NameServerRow(address, error=error.message)
        order = questions.namesrv_settings_of(names.ORDER_NAMESPACE)
        brokers = sorted(a for data in table.values() for a in data.broker_addrs.values())
        return NameServerRow(
            address,
            tuple(brokers),
            _told(lambda: self._wire.ask(address, questions.NAMESRV_CONFIG)),
            _told(lambda: self._wire.ask(address, order)),
        )


class Brokers(Service):
    """``Admin.brokers``."""

    @question
    def all(self) -> list[BrokerRow]:
        """Return every broker process registered with the name server."""
        info = self._wire.cluster_info()
        return sorted(
            BrokerRow(data.cluster, name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        )

    @question
    def states(self) -> tuple[BrokerState, ...]:
        """Return every broker, with its report about itself (GET_BROKER_RUNTIME_INFO, 28).

        Raises:
            ConnectError: no name server answered.
        """
        from rocketstream.admin.sweep import Sweep  # most commands need none

        return Sweep(self._reach).brokers()

    @question
    def status(self, broker: str | None = None) -> list[BrokerStatusRow]:
        """Return every broker process with its own figures (GET_BROKER_RUNTIME_INFO, 28).

        Args:
            broker: only this one: a broker's name (all its processes) or an address.

        Raises:
            ConfigurationError: there is no such broker; the error names the existing ones.
            ConnectError: no name server answered.
        """
        return beside(self._status_of, self._processes(broker))

    @question
    def config(self, broker: str) -> dict[str, str]:
        """Return the settings of one broker, its master's (GET_BROKER_CONFIG, 26).

        Args:
            broker: a broker's name or an address.

        Raises:
            ConfigurationError: there is no such broker.
        """
        return self._wire.ask(self._processes(broker)[0].address, questions.BROKER_CONFIG)

    @question
    def delay_levels(self, topic: str) -> tuple[str, ...]:
        """Return the delay levels a topic's brokers have (``1s``, ``5s``, …); level 1 is the first.

        Where the brokers differ, the levels of the broker with the fewest count; where a broker
        does not report them, RocketMQ's own eighteen are returned.

        Raises:
            RouteNotFoundError: no broker is registered.
            ConnectError: no name server answered.
        """
        try:
            brokers = self._wire.route(topic).broker_datas
            addresses = [d.broker_addrs[MASTER_ID] for d in brokers if MASTER_ID in d.broker_addrs]
        except RouteNotFoundError:  # the send will create the topic
            addresses = list(self._wire.masters().values())
        told = [_told(partial(self._wire.ask, each, questions.BROKER_CONFIG)) for each in addresses]
        levels = [tuple((each or {}).get("messageDelayLevel", "").split()) for each in told]
        fewest = min((len(each) for each in levels if each), default=len(DEFAULT_DELAY_LEVELS))
        return next((each for each in levels if len(each) == fewest), DEFAULT_DELAY_LEVELS)

    def _processes(self, broker: str | None) -> list[BrokerStatusRow]:
        rows = [
            BrokerStatusRow(row.cluster, row.broker_name, row.broker_id, row.address)
            for row in self.all()
        ]
        if broker is None:
            return rows
        chosen = [row for row in rows if broker in (row.broker_name, row.address)]
        if not chosen:
            there = ", ".join(f"{row.broker_name} ({row.address})" for row in rows) or "none"
            raise ConfigurationError(f"there is no broker {broker!r}; there are: {there}")
        return chosen

    def _status_of(self, row: BrokerStatusRow) -> BrokerStatusRow:
        try:
            facts = self._wire.ask(row.address, questions.RUNTIME)
        except RocketMQError as error:
            return replace(row, error=error.message)
        return replace(row, figures=figures(facts), facts=facts)


class Producers(Service):
    """``Admin.producers``."""

    @question
    def connections(self, group: str, topic: str) -> list[ProducerRow]:
        """Return the connected producers of a group (GET_PRODUCER_CONNECTION_LIST, 204).

        Empty when none is connected: brokers know producers by their heartbeats alone.

        Args:
            group: the producer group.
            topic: a topic the group sends to; the brokers of this topic are asked.

        Raises:
            RouteNotFoundError: the name server does not know the topic.
        """
        names.check_group(group)
        found: dict[tuple[str, str], list[str]] = {}
        facts: dict[tuple[str, str], tuple[str, int]] = {}
        for data in self._wire.route(topic).broker_datas:
            address = data.broker_addrs.get(MASTER_ID)
            if address is None:
                continue
            for each in self._connection(address, group).connection_set:
                key = (each.client_id, each.client_addr)
                found.setdefault(key, []).append(data.broker_name)
                facts[key] = (each.language, each.version)
        return sorted(
            ProducerRow(group, *key, *facts[key], tuple(sorted(brokers)))
            for key, brokers in found.items()
        )

    @question
    def all(self) -> list[ProducerRow]:
        """Return every connected producer of the cluster (GET_ALL_PRODUCER_INFO, 328).

        Raises:
            RequestNotSupportedError: a broker older than 4.9.4 cannot list them.
        """
        found: dict[tuple[str, str, str], list[str]] = {}
        facts: dict[tuple[str, str, str], tuple[str, int, int]] = {}
        for broker_name, address in self._wire.masters().items():
            for group, producers in self._wire.ask(address, questions.PRODUCERS).data.items():
                for each in producers:
                    # Brokers write addresses as Java does: with a leading slash.
                    key = (group, each.client_id, each.remote_ip.removeprefix("/"))
                    found.setdefault(key, []).append(broker_name)
                    facts[key] = (each.language, each.version, each.last_update_timestamp)
        return sorted(
            ProducerRow(*key, *facts[key][:2], tuple(sorted(brokers)), facts[key][2] or None)
            for key, brokers in found.items()
        )

    def _connection(self, address: str, group: str) -> ProducerConnection:
        try:
            return self._wire.ask(address, questions.producer_connection_of(group))
        except RequestNotSupportedError:
            raise
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and _NOT_CONNECTED in error.remark:
                return ProducerConnection()
            raise


def _told(ask: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    try:
        return ask()
    except BrokerError as error:
        return {} if error.code == ResponseCode.QUERY_NOT_FOUND else None
    except RocketMQError:
        return None

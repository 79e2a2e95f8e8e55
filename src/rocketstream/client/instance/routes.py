"""Pure: routes, that is which queues a topic has to send to and to consume, and on which brokers.

Law: values handed out are never changed afterwards, so other threads may read them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rocketstream import limits
from rocketstream.errors import ConfigurationError, RemoteProtocolError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import parse_address
from rocketstream.protocol.bodies import QueueData, TopicRouteData
from rocketstream.protocol.codes import MASTER_ID, Perm
from rocketstream.protocol.properties import whole_number

Queues = tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker found for a consumer (C-140)."""

    address: str
    is_slave: bool


def publish_queues(topic: str, route: TopicRouteData) -> Queues:
    """Return the queues for sending, in broker name order, each broker's from 0 up (C-136).

    Raises:
        RemoteProtocolError: an order configuration that is not ``broker:count;…``.
    """
    if route.order_topic_conf:
        return tuple(_ordered_queues(topic, route.order_topic_conf))
    with_master = {
        broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs
    }
    queues: list[MessageQueue] = []
    for data in _by_broker_name(route):
        if data.perm & Perm.WRITE and data.broker_name in with_master:
            queues += [
                MessageQueue(topic, data.broker_name, i) for i in range(data.write_queue_nums)
            ]
    return tuple(queues)


def subscribe_queues(topic: str, route: TopicRouteData) -> Queues:
    """Return the queues for consuming; no master is needed (C-137)."""
    return tuple(
        MessageQueue(topic, data.broker_name, i)
        for data in _by_broker_name(route)
        if data.perm & Perm.READ
        for i in range(data.read_queue_nums)
    )


def default_topic_route(route: TopicRouteData, queue_nums: int) -> TopicRouteData:
    """Return the template topic's route cut to what a new topic will get (C-138)."""
    return replace(
        route,
        queue_datas=[
            replace(data, read_queue_nums=nums, write_queue_nums=nums)
            for data in route.queue_datas
            for nums in [min(queue_nums, data.read_queue_nums)]
        ],
    )


def check_sizes(topic: str, route: TopicRouteData) -> None:
    """Check the numbers of queues.

    Raises:
        RemoteProtocolError: more than a topic can have, or less than none.
    """
    total = 0
    for data in route.queue_datas:
        most = max(data.read_queue_nums, data.write_queue_nums)
        least = min(data.read_queue_nums, data.write_queue_nums)
        if least < 0 or most > limits.TOPIC_QUEUES_MAX:
            raise RemoteProtocolError(
                f"the route of topic {topic!r} names {least} to {most} queues on broker "
                f"{data.broker_name!r}; 0 to {limits.TOPIC_QUEUES_MAX} are accepted"
            )
        total += most
    if total > limits.ROUTE_QUEUES_MAX:
        raise _too_many_queues(topic, total)


def _too_many_queues(topic: str, total: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the route of topic {topic!r} names {total} queues in all; "
        f"{limits.ROUTE_QUEUES_MAX} are accepted"
    )


def check_route(topic: str, route: TopicRouteData) -> None:
    """Check that the route a name server tells can be used, before anything of it is.

    Raises:
        RemoteProtocolError: impossible numbers of queues, addresses that cannot be read, an order
            configuration that is not ``broker:count;…``.
    """
    check_sizes(topic, route)
    publish_queues(topic, route)
    for broker in route.broker_datas:
        for address in broker.broker_addrs.values():
            try:
                parse_address(address)
            except ConfigurationError as error:
                raise RemoteProtocolError(
                    f"the route of topic {topic!r} gives broker {broker.broker_name!r} the address "
                    f"{address!r}, which is not host:port"
                ) from error


def _by_broker_name(route: TopicRouteData) -> list[QueueData]:
    return sorted(route.queue_datas, key=lambda data: data.broker_name)


def _ordered_queues(topic: str, conf: str) -> list[MessageQueue]:
    counts: list[tuple[str, int]] = []
    total = 0
    for part in filter(None, conf.split(";")):
        name, _, count = part.partition(":")
        number = whole_number(count, limits.TOPIC_QUEUES_MAX)
        if not name or number is None:
            raise RemoteProtocolError(
                f"order configuration of topic {topic!r} is not broker:count;…: {conf!r:.200}"
            )
        total += number
        if total > limits.ROUTE_QUEUES_MAX:
            raise _too_many_queues(topic, total)
        counts.append((name, number))
    return [MessageQueue(topic, name, i) for name, count in counts for i in range(count)]


class RouteTable:
    """The last answers of the name servers: routes by topic, addresses by broker name.

    Written by one thread; readable from any, since every value is replaced, never changed.

    Attributes:
        publish_table: by topic, the queues to send to; a topic without a writable one is not there.
        masters: by broker name, its master's address, the only one that takes writes (C-141).
        used: topics sent to or pulled since all routes were asked for last; any thread adds.
    """

    def __init__(self) -> None:
        self.publish_table: dict[str, Queues] = {}
        self.masters: dict[str, str] = {}
        self.used: set[str] = set()
        self._routes: dict[str, TopicRouteData] = {}
        self._subscribe: dict[str, Queues] = {}
        self._brokers: dict[str, dict[int, str]] = {}

    def apply(self, topic: str, route: TopicRouteData) -> bool:
        """Take in a fresh route; return whether it differs from the known one (C-135)."""
        known = self._routes.get(topic)
        if known is not None and _same(known, route):
            return False
        check_sizes(topic, route)
        publish = publish_queues(topic, route)
        for broker in route.broker_datas:
            self._brokers[broker.broker_name] = addresses = dict(broker.broker_addrs)
            if MASTER_ID in addresses:
                self.masters[broker.broker_name] = addresses[MASTER_ID]
            else:
                self.masters.pop(broker.broker_name, None)
        if publish:
            self.publish_table[topic] = publish
        else:
            self.publish_table.pop(topic, None)
        self._subscribe[topic] = subscribe_queues(topic, route)
        self._routes[topic] = route
        return True

    def forget(self, topic: str) -> None:
        """Drop a topic; its brokers go with ``forget_offline_brokers``."""
        self.publish_table.pop(topic, None)
        self._subscribe.pop(topic, None)
        self._routes.pop(topic, None)

    def topics(self) -> list[str]:
        """Return the topics with a route."""
        return list(self._routes)

    def subscribe_queues(self, topic: str) -> Queues | None:
        """Return a topic's queues for consuming, None without route."""
        return self._subscribe.get(topic)

    def known_master(self, broker_name: str) -> str:
        """Return a broker's master address.

        Raises:
            RouteNotFoundError: no route names the broker, or it has no master.
        """
        address = self.masters.get(broker_name)
        if address is None:
            raise unknown_broker(broker_name)
        return address

    def find_for_subscribe(
        self, broker_name: str, broker_id: int, *, only_this: bool = False
    ) -> BrokerAddress | None:
        """Return an address to read from: exact id, then the next one, then any (C-140)."""
        addresses = self._brokers.get(broker_name)
        if not addresses:
            return None
        if broker_id in addresses:
            return BrokerAddress(addresses[broker_id], broker_id != MASTER_ID)
        candidates = [broker_id] if broker_id == MASTER_ID else [broker_id, broker_id + 1]
        if not only_this:
            candidates += sorted(addresses)
        for candidate in candidates:
            if candidate in addresses:
                return BrokerAddress(addresses[candidate], candidate != MASTER_ID)
        return None

    def group_addresses(self, topic: str) -> list[str]:
        """Return one address per broker of the topic to ask for a group's members (C-159)."""
        route = self._routes.get(topic)
        if route is None:
            return []
        found = []
        for broker in route.broker_datas:
            address = self.find_for_subscribe(broker.broker_name, MASTER_ID)
            if address is not None:
                found.append(address.address)
        return found

    def topics_of(self, address: str) -> list[str]:
        """Return the topics whose routes name a broker's address."""
        return [
            topic
            for topic, route in self._routes.items()
            if any(address in broker.broker_addrs.values() for broker in route.broker_datas)
        ]

    def is_named(self, broker_name: str) -> bool:
        """Whether a route names a broker."""
        return any(
            broker.broker_name == broker_name
            for route in self._routes.values()
            for broker in route.broker_datas
        )

    def names_of(self, address: str) -> list[str]:
        """Return the names of brokers that are at an address, or were until the last look."""
        return [name for name, by_id in self._brokers.items() if address in by_id.values()]

    def addresses(self, *, masters_only: bool) -> list[str]:
        """Return every known broker address, each once."""
        return list(
            dict.fromkeys(
                address
                for by_id in self._brokers.values()
                for broker_id, address in sorted(by_id.items())
                if broker_id == MASTER_ID or not masters_only
            )
        )

    def forget_offline_brokers(self) -> None:
        """Drop addresses that occur in no route (C-142)."""
        alive = {
            (broker.broker_name, address)
            for route in self._routes.values()
            for broker in route.broker_datas
            for address in broker.broker_addrs.values()
        }
        kept: dict[str, dict[int, str]] = {}
        for name, by_id in self._brokers.items():
            rest = {i: address for i, address in by_id.items() if (name, address) in alive}
            if rest:
                kept[name] = rest
        self._brokers = kept
        self.masters = {name: each[MASTER_ID] for name, each in kept.items() if MASTER_ID in each}


def _same(one: TopicRouteData, other: TopicRouteData) -> bool:
    return (
        one.order_topic_conf == other.order_topic_conf
        and _by_broker_name(one) == _by_broker_name(other)
        and sorted(one.broker_datas, key=lambda b: b.broker_name)
        == sorted(other.broker_datas, key=lambda b: b.broker_name)
    )


def unknown_broker(broker_name: str, queue: MessageQueue | None = None) -> RouteNotFoundError:
    """Return the error of a call for a broker, or a queue of it, that no route names."""
    about: dict[str, object] = {"broker": broker_name} if queue is None else {"queue": queue}
    return RouteNotFoundError(f"The broker[{broker_name}] not exist", **about)

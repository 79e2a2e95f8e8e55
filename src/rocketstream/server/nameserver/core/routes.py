"""The routing table of a name server: the registered brokers, their topics, and who has left.

Pure: every call is an event with the time it happened, on a clock that only grows. Upstream:
RouteInfoManager (C-441 to C-444).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass

from rocketstream.errors import BrokerError
from rocketstream.limits import (
    BROKER_EXPIRED_MS,
    NAMESRV_BROKERS_MAX,
    NAMESRV_SETTINGS_CHARS_MAX,
    NAMESRV_SETTINGS_MAX,
    NAMESRV_TOPICS_MAX,
)
from rocketstream.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    KVConfigSerializeWrapper,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from rocketstream.protocol.codes import MASTER_ID, Perm, ResponseCode
from rocketstream.protocol.names import ORDER_NAMESPACE

TOPICS_PER_STEP = 500


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The four names a broker registers under."""

    cluster: str
    name: str
    id: int
    address: str


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: for a slave the address of its master, if that is alive."""

    master_address: str | None = None
    ha_server_address: str | None = None


@dataclass(slots=True)
class LiveBroker:
    """One registered address, and when it last gave a sign of life."""

    identity: BrokerIdentity
    heard_ms: float
    data_version: DataVersion | None
    channel: Hashable
    opened: int
    ha_server_address: str
    lacks: int = 0
    """How many topics it told when there was no room for all; 0 once as many were taken."""


class RouteTable:
    """All registrations of one name server."""

    def __init__(
        self, brokers_max: int = NAMESRV_BROKERS_MAX, topics_max: int = NAMESRV_TOPICS_MAX
    ) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """The topics of each broker, so that removing a broker costs only its own topics."""
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # --- registrations ---------------------------------------------------------------------------

    def registering(
        self,
        identity: BrokerIdentity,
        *,
        ha_server_address: str,
        topics: Mapping[str, TopicConfig] | None,
        data_version: DataVersion | None,
        filter_servers: Iterable[str],
        channel: Hashable,
        opened: int,
        now_ms: float,
    ) -> Generator[None, None, Registered]:
        """Take one registration; its topics count only from a master with a new version (C-442).

        All steps but the last prepare the registration, the last one applies it: nobody ever sees
        half a registration, and an abandoned one leaves no trace.

        Args:
            channel: its connection. The registration ends with the latest one a broker uses: with
                the end of an earlier one, over which a registration came late, it would be
                forgotten, though it is there.
            opened: the number of that connection, which grows.

        Raises:
            BrokerError: there is no room for another broker, and nothing has changed; or for all
                the new topics, and what was known, or had room, is taken.
        """
        queues: dict[str, QueueData] = {}
        if topics is not None and identity.id == MASTER_ID:
            for number, config in enumerate(topics.values(), 1):
                queues[config.topic_name] = _queue_data(identity.name, config)
                if number % TOPICS_PER_STEP == 0:
                    yield
        # Checked here, not before the steps: others may have registered meanwhile.
        if identity.address not in self._live and len(self._live) >= self._brokers_max:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {identity.name} at {identity.address} is not taken: this name server "
                f"keeps {self._brokers_max} brokers; give it a name server of its own",
            )
        self._leave_former(identity)
        first = self._join(identity)
        refused = 0
        if first or self.is_changed(identity.address, data_version):
            refused = self._put_queues(identity.name, queues)
        if self.is_late(identity.address, opened):
            latest = self._live[identity.address]
            channel, opened = latest.channel, latest.opened
        lacks = len(queues) if refused else self._lacks(identity.address, len(queues))
        if lacks:
            data_version = None  # a broker tells nothing again where its version is known
        self._live[identity.address] = LiveBroker(
            identity, now_ms, data_version, channel, opened, ha_server_address, lacks
        )
        servers = list(filter_servers)
        if servers:
            self._filter_servers[identity.address] = servers
        else:
            self._filter_servers.pop(identity.address, None)
        if refused:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"{refused} new topics of broker {identity.name} are not taken: this name server "
                f"keeps {self._topics_max} topics; delete some first",
            )
        return self._answer(identity)

    def _leave_former(self, identity: BrokerIdentity) -> None:
        """End the registration of a broker that was renamed: nothing else ever would."""
        live = self._live.get(identity.address)
        if live is None:
            return
        former = live.identity
        if (former.cluster, former.name) != (identity.cluster, identity.name):
            self.unregister(former)

    def _join(self, identity: BrokerIdentity) -> bool:
        data = self._brokers.get(identity.name)
        if data is None:
            data = BrokerData(identity.cluster, identity.name, {})
            self._brokers[identity.name] = data
        elif data.cluster != identity.cluster:
            # A master and its slaves move one after another; upstream has them in both for ever.
            self._leave_cluster(data)
            data.cluster = identity.cluster
        self._clusters.setdefault(identity.cluster, set()).add(identity.name)
        # A slave that became master registers the same address under another id.
        for other in [i for i, a in data.broker_addrs.items() if a == identity.address]:
            if other != identity.id:
                del data.broker_addrs[other]
        first = identity.id not in data.broker_addrs
        data.broker_addrs[identity.id] = identity.address
        return first

    def _answer(self, identity: BrokerIdentity) -> Registered:
        if identity.id == MASTER_ID:
            return Registered()
        master = self._brokers[identity.name].broker_addrs.get(MASTER_ID)
        live = self._live.get(master) if master else None
        return Registered(master, live.ha_server_address) if live else Registered()

    def _put_queues(self, broker_name: str, given: Mapping[str, QueueData]) -> int:
        """Take the topics of a broker; return how many new ones there is no room for."""
        queues, taken = self._queues, []
        for topic, data in given.items():
            known = queues.get(topic)
            if known is not None:
                known[broker_name] = data
            elif len(queues) < self._topics_max:
                queues[topic] = {broker_name: data}
            else:
                continue
            taken.append(topic)
        if taken:
            self._topics_of.setdefault(broker_name, set()).update(taken)
        return len(given) - len(taken)

    def _lacks(self, address: str, taken: int) -> int:
        """Return what ``lacks`` is after as many topics were taken: a part does not bring all."""
        live = self._live.get(address)
        return live.lacks if live is not None and taken < live.lacks else 0

    def is_late(self, address: str, opened: int) -> bool:
        """Whether an address has registered over a later connection than the one of a request."""
        live = self._live.get(address)
        return live is not None and opened < live.opened

    def is_changed(self, address: str, data_version: DataVersion | None) -> bool:
        """Whether a broker's topics have another version than the known one."""
        live = self._live.get(address)
        return live is None or live.data_version != data_version

    def data_version(self, address: str) -> DataVersion | None:
        """Return the version of the topics last registered from an address."""
        live = self._live.get(address)
        return live.data_version if live else None

    def refresh(self, address: str, now_ms: float) -> None:
        """Take note of a sign of life without changes."""
        live = self._live.get(address)
        if live:
            live.heard_ms = now_ms

    # --- leaving ---------------------------------------------------------------------------------

    def unregister(self, identity: BrokerIdentity) -> None:
        """Remove one address; after its last address the broker and its topics are removed too.

        Under other names than it registered with last nothing is removed: a broker would be left
        that no connection's end and no silence removes. Upstream takes the address alone.
        """
        live = self._live.get(identity.address)
        if live is None or live.identity != identity:
            return
        del self._live[identity.address]
        self._filter_servers.pop(identity.address, None)
        data = self._brokers.get(identity.name)
        if data is None:
            return
        if data.broker_addrs.get(identity.id) == identity.address:
            del data.broker_addrs[identity.id]
        if not data.broker_addrs:
            self._drop_broker(data)

    def _drop_broker(self, data: BrokerData) -> None:
        name = data.broker_name
        del self._brokers[name]
        self._leave_cluster(data)
        for topic in self._topics_of.pop(name, ()):
            self._drop_queue_data(topic, name)

    def _leave_cluster(self, data: BrokerData) -> None:
        members = self._clusters[data.cluster]
        members.remove(data.broker_name)
        if not members:
            del self._clusters[data.cluster]

    def _drop_queue_data(self, topic: str, broker_name: str) -> None:
        queues = self._queues[topic]
        queues.pop(broker_name, None)
        if not queues:
            del self._queues[topic]

    def _forget_topic_of(self, broker_name: str, topic: str) -> None:
        topics = self._topics_of[broker_name]
        topics.discard(topic)
        if not topics:
            del self._topics_of[broker_name]

    def channel_closed(self, channel: Hashable) -> list[BrokerIdentity]:
        """Remove the registrations of a closed connection and return the brokers' identities."""
        gone = [live.identity for live in self._live.values() if live.channel is channel]
        for identity in gone:
            self.unregister(identity)
        return gone

    def expire(self, now_ms: float, since_ms: float = -math.inf) -> list[Hashable]:
        """Remove brokers silent for 120 s; return their channels, which the caller closes.

        Args:
            now_ms: the time.
            since_ms: silence before that does not count.
        """
        late = [
            live
            for live in self._live.values()
            if max(live.heard_ms, since_ms) + BROKER_EXPIRED_MS < now_ms
        ]
        for live in late:
            self.unregister(live.identity)
        return [live.channel for live in late]

    # --- questions -------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers of a topic; None when none of them is known (C-443)."""
        queues = self._queues.get(topic, {})
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not queues or not brokers:
            return None
        filters = {
            address: self._filter_servers[address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if address in self._filter_servers
        }
        return TopicRouteData(
            queue_datas=list(queues.values()), broker_datas=brokers, filter_server_table=filters
        )

    def cluster_info(self) -> ClusterInfo:
        """Return the clusters, their brokers and addresses."""
        return ClusterInfo(
            broker_addr_table=dict(self._brokers),
            cluster_addr_table={name: sorted(who) for name, who in self._clusters.items()},
        )

    def topics(self) -> list[str]:
        """Return every topic any broker registered."""
        return list(self._queues)

    def topics_by_flag(self, is_wanted: Callable[[int], bool]) -> list[str]:
        """Return topics whose sysFlag, as first registered, ``is_wanted`` accepts."""
        return [
            topic
            for topic, queues in self._queues.items()
            if is_wanted(next(iter(queues.values())).topic_sys_flag)
        ]

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of one cluster's brokers."""
        names = self._clusters.get(cluster, set())
        return [t for t, queues in self._queues.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return cluster names, broker names and one broker's address (code 304)."""
        names = [*self._clusters, *(n for who in self._clusters.values() for n in sorted(who))]
        address = next((a for b in self._brokers.values() for a in b.broker_addrs.values()), None)
        return names, address

    # --- administration --------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic everywhere, or only from one cluster's brokers."""
        if topic not in self._queues:
            return
        if not cluster:
            for name in self._queues.pop(topic):
                self._forget_topic_of(name, topic)
            return
        for name in self._clusters.get(cluster, set()) & set(self._queues[topic]):
            self._drop_queue_data(topic, name)
            self._forget_topic_of(name, topic)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Clear the write bit of a broker's queues; return its number of topics (C-444)."""
        found = self._queue_datas_of(broker_name)
        for data in found:
            data.perm &= ~Perm.WRITE
        return len(found)

    def add_write_permission(self, broker_name: str) -> int:
        """Set read and write bits of a broker's queues; return its number of topics."""
        found = self._queue_datas_of(broker_name)
        for data in found:
            data.perm = Perm.READ | Perm.WRITE
        return len(found)

    def _queue_datas_of(self, broker_name: str) -> list[QueueData]:
        return [self._queues[topic][broker_name] for topic in self._topics_of.get(broker_name, ())]


def _queue_data(broker_name: str, config: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


class KeyValueTable:
    """Small settings by namespace and key, such as the order configuration of topics.

    ``generation`` grows with every change, so that a writer knows what it has saved.
    """

    def __init__(
        self,
        count_max: int = NAMESRV_SETTINGS_MAX,
        chars_max: int = NAMESRV_SETTINGS_CHARS_MAX,
    ) -> None:
        self._count_max = count_max
        self._chars_max = chars_max
        self._table: dict[str, dict[str, str]] = {}
        self._count = self._chars = 0
        self.generation: int = 0

    def load(self, wrapper: KVConfigSerializeWrapper) -> None:
        """Take over the content of a file."""
        self._table = {
            name: dict(pairs)
            for name, pairs in wrapper.config_table.items()
            if pairs or name == ORDER_NAMESPACE
        }
        self._count = sum(map(len, self._table.values()))
        self._chars = sum(
            _chars(name, key, value)
            for name, pairs in self._table.items()
            for key, value in pairs.items()
        )

    def snapshot(self) -> KVConfigSerializeWrapper:
        """Return a copy for a file."""
        return KVConfigSerializeWrapper({name: dict(v) for name, v in self._table.items()})

    def put(self, namespace: str, key: str, value: str) -> str | None:
        """Set a value; return why there is no room for it, None when there is."""
        before = self.get(namespace, key)
        grows = _chars(namespace, key, value)
        if before is not None:
            grows -= _chars(namespace, key, before)
        elif self._count >= self._count_max:
            return f"a name server keeps {self._count_max} settings; delete some first"
        if self._chars + grows > self._chars_max and grows > 0:
            return (
                f"a name server keeps settings of {self._chars_max} characters; delete some first"
            )
        self._count += before is None
        self._chars += grows
        self._table.setdefault(namespace, {})[key] = value
        self.generation += before != value
        return None

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value if there, and with the last one its namespace.

        That of the order stays: brokers of upstream take its being empty for "no topic is ordered",
        and its absence for no answer.
        """
        pairs = self._table.get(namespace, {})
        value = pairs.pop(key, None)
        if value is not None:
            self._count -= 1
            self._chars -= _chars(namespace, key, value)
            self.generation += 1
            if not pairs and namespace != ORDER_NAMESPACE:
                del self._table[namespace]

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all pairs of a namespace; None when it has none."""
        found = self._table.get(namespace)
        return dict(found) if found is not None else None


def _chars(*texts: str) -> int:
    return sum(map(len, texts))

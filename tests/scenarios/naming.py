"""A process that plays brokers at the name servers: they come, change, move and leave.

Law: a name server tells what brokers registered last, and what operators changed since: never a
part of a registration, nor anything of a broker that left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.limits import BROKER_EXPIRED_MS
from rocketstream.protocol.bodies import (
    ClusterInfo,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from rocketstream.protocol.codes import Perm, RequestCode, ResponseCode, TopicSysFlag
from rocketstream.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from rocketstream.protocol.names import ORDER_NAMESPACE
from rocketstream.server.nameserver.server import SCAN_INTERVAL_S
from rocketstream.testing.sim.cluster import SimNameServer
from rocketstream.testing.sim.world import World
from tests.kits.registrations import compressed
from tests.scenarios.administering import SETTLES_S, Expected
from tests.scenarios.operating import Clerk

PLAYED = ("played-a", "played-b")
ADDRESSES = ("10.8.0.1:1", "10.8.0.2:1", "10.8.0.3:1")
CLUSTERS = ("East", "West")
TOPICS = ("Played", "Played-too", "Played-as-well")
FLAGS = (0, TopicSysFlag.UNIT, TopicSysFlag.UNIT_SUB, TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB)
DEEDS = 50


class Names(NamedTuple):
    """The names a broker registers under."""

    cluster: str
    name: str
    id: int
    address: str


class Shape(NamedTuple):
    """A topic as a broker has it."""

    reads: int
    writes: int
    perm: int
    flag: int


class Registration(NamedTuple):
    """All that a broker tells a name server at once."""

    names: Names
    version: int
    topics: Mapping[str, Shape]
    filters: tuple[str, ...] = ()
    compressed: bool = False

    @property
    def header(self) -> RegisterBrokerRequestHeader:
        """The header of the request."""
        who = self.names
        ha_address = f"ha-of-{who.address}"
        return RegisterBrokerRequestHeader(
            who.name, who.address, who.cluster, ha_address, who.id, self.compressed
        )

    @property
    def body(self) -> bytes:
        """The body of the request; it has no flags of topics where it is compressed."""
        table = {
            topic: TopicConfig(
                topic, read_queue_nums=shape.reads, write_queue_nums=shape.writes,
                perm=shape.perm, topic_sys_flag=shape.flag,
            )
            for topic, shape in self.topics.items()
        }  # fmt: skip
        wrapper = TopicConfigSerializeWrapper(table, _version(self.version))
        body = RegisterBrokerBody(wrapper, list(self.filters))
        return compressed(body) if self.compressed else body.encode()


def _version(number: int) -> DataVersion:
    return DataVersion(counter=number, timestamp=number)


class Book:
    """The routes that a name server must tell, by the rules and by all it was asked for."""

    def __init__(self) -> None:
        self.ids: dict[str, dict[int, str]] = {}
        self.homes: dict[str, str] = {}
        self.last: dict[str, Registration] = {}
        self.shapes: dict[str, dict[str, Shape]] = {}

    def came(self, new: Registration) -> None:
        """Take a registration; topics count from a master, and only with another version."""
        who = new.names
        former = self.last.get(who.address)
        if former and former.names[:2] != who[:2]:
            self.left(former.names)
            former = None
        ids = self.ids.setdefault(who.name, {})
        self.homes[who.name] = who.cluster
        for number in [n for n, at in ids.items() if at == who.address and n != who.id]:
            del ids[number]
        changed = who.id not in ids or former is None or former.version != new.version
        ids[who.id] = who.address
        self.last[who.address] = new
        for topic, shape in new.topics.items() if who.id == 0 and changed else ():
            told = shape._replace(flag=0) if new.compressed else shape
            self.shapes.setdefault(topic, {})[who.name] = told

    def left(self, who: Names) -> None:
        """Forget an address that has these names, and after its last one a broker's topics."""
        if who.address not in self.last or self.last[who.address].names != who:
            return
        del self.last[who.address]
        ids = self.ids.get(who.name, {})  # another address may have taken its place
        if ids.get(who.id) == who.address:
            del ids[who.id]
        if not ids:
            self.ids.pop(who.name, None)
            self.homes.pop(who.name, None)
            self.forget(TOPICS, [who.name])

    def forget(self, topics: tuple[str, ...], brokers: list[str]) -> None:
        """Take topics from brokers."""
        for topic in topics:
            shapes = self.shapes.get(topic, {})
            for name in brokers:
                shapes.pop(name, None)
            if not shapes:
                self.shapes.pop(topic, None)

    def permit(self, broker: str, change: Callable[[int], int]) -> int:
        """Change the permissions of a broker's topics; return how many it has."""
        mine = [shapes for shapes in self.shapes.values() if broker in shapes]
        for shapes in mine:
            shapes[broker] = shapes[broker]._replace(perm=change(shapes[broker].perm))
        return len(mine)

    def with_flags(self, *flags: int) -> set[str]:
        """Return the topics whose flags, as told first, are one of these."""
        return {
            topic
            for topic, shapes in self.shapes.items()
            if next(iter(shapes.values())).flag in flags
        }


class Troupe(Clerk):
    """A process that plays brokers, and asks name servers about them.

    While there are faults each registration that was acknowledged is in the routes, or the name
    server knows the broker no more; later they are as ``Book`` says, after every deed.

    Args:
        world: the world it lives in.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world, "troupe", 1_000.0)
        self._expected = Expected(world, self.node.kept)
        self._orders: dict[str, str] = {}
        self.node.kept["version"] = 0

    def _drawn(self, chance: random.Random, who: Names) -> Registration:
        self.node.kept["version"] += 1
        version = self.node.kept["version"]
        shapes = {
            topic: Shape(version, version, chance.choice((2, 4, 6, 6)), chance.choice(FLAGS))
            for topic in TOPICS
            if chance.random() < 0.7
        }
        filters = chance.choice(((), (), ("10.8.1.1:9",)))
        return Registration(who, version, shapes, filters, chance.random() < 0.3)

    async def _register(self, server: SimNameServer, new: Registration) -> Any:
        return await self._ask(server, RequestCode.REGISTER_BROKER, new.header, new.body)

    # --- while there are faults -------------------------------------------------------------------

    async def _act(self, chance: random.Random) -> None:
        server = chance.choice(self._world.cluster.name_servers)
        await chance.choice((self._come, self._come, self._look, self._order))(server, chance)

    async def _come(self, server: SimNameServer, chance: random.Random) -> None:
        new = self._drawn(chance, Names("East", PLAYED[0], 0, ADDRESSES[0]))
        shape = Shape(new.version, new.version, Perm.READ | Perm.WRITE, 0)
        new = new._replace(topics={TOPICS[0]: shape})
        with self._expected.changing((server.node.name, "played"), new.version):
            await self._register(server, new)
        await self._look(server, chance)

    async def _look(self, server: SimNameServer, _: random.Random) -> None:
        route = await self._route(server, TOPICS[0])
        if route is not None:
            (data,) = route.queue_datas
            self._expected.check((server.node.name, "played"), data.read_queue_nums)

    async def _order(self, server: SimNameServer, chance: random.Random) -> None:
        """Set the order of a topic's queues, or ask for it by registering."""
        value = f"{PLAYED[0]}:{chance.randint(1, 9)}"
        with self._expected.changing((server.node.name, "order"), value):
            await self._put_order(server, TOPICS[1], value)
        who = Names("West", PLAYED[1], 0, ADDRESSES[1])
        answer = await self._register(server, Registration(who, 1, {}))
        told = KVTable.decode(bytes(answer.body)).table if answer.body else {}
        self._expected.check((server.node.name, "order"), told.get(TOPICS[1]))

    async def _put_order(self, server: SimNameServer, topic: str, value: str) -> None:
        header = PutKVConfigRequestHeader(ORDER_NAMESPACE, topic, value)
        await self._ask(server, RequestCode.PUT_KV_CONFIG, header)

    async def _route(self, server: SimNameServer, topic: str) -> TopicRouteData | None:
        header = GetRouteInfoRequestHeader(topic)
        try:
            answer = await self._ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None
        return TopicRouteData.decode(bytes(answer.body))

    # --- when all is calm -------------------------------------------------------------------------

    async def _end(self, chance: random.Random) -> None:
        await asyncio.sleep(SETTLES_S)
        for server in self._world.cluster.name_servers:
            await self._insist(partial(self._none_is_there, server))
            await self._insist(partial(self._read_orders, server))
            await self._set_ordering(server, "true")
            book = Book()
            for _ in range(DEEDS):
                await self._deed(server, book, chance)
                await self._compare(server, book, chance.choice(TOPICS))
                if self._world.failure:
                    return
            for topic in TOPICS:
                await self._compare(server, book, topic)
            await self._set_ordering(server, "false")
        # Nobody heard of them since; a scan has passed as well.
        await asyncio.sleep(BROKER_EXPIRED_MS / 1000 + SCAN_INTERVAL_S + 1)
        for server in self._world.cluster.name_servers:
            await self._compare(server, Book(), chance.choice(TOPICS))

    async def _none_is_there(self, server: SimNameServer) -> None:
        """Have all of them leave, whichever a name server knows."""
        for address in ADDRESSES:
            for name in PLAYED:
                for cluster in CLUSTERS:
                    for number in (0, 1):
                        await self._leave(server, Names(cluster, name, number, address))
        info = await self._clusters(server)
        if set(PLAYED) & set(info.broker_addr_table):
            raise RocketMQError(f"{server.node.name} knows those that left: {info}")

    async def _leave(self, server: SimNameServer, who: Names) -> None:
        header = UnRegisterBrokerRequestHeader(who.name, who.address, who.cluster, who.id)
        await self._ask(server, RequestCode.UNREGISTER_BROKER, header)

    async def _read_orders(self, server: SimNameServer) -> None:
        """Orders of queues are there as acknowledged, whatever ended since; then none is."""
        answer = await self._register(
            server, Registration(Names("West", PLAYED[1], 0, ADDRESSES[1]), 1, {})
        )
        told = KVTable.decode(bytes(answer.body)).table if answer.body else {}
        self._expected.check((server.node.name, "order"), told.get(TOPICS[1]))
        await self._leave(server, Names("West", PLAYED[1], 0, ADDRESSES[1]))
        for topic in TOPICS:
            header = DeleteKVConfigRequestHeader(ORDER_NAMESPACE, topic)
            with self._expected.changing((server.node.name, "order"), None):
                await self._ask(server, RequestCode.DELETE_KV_CONFIG, header)
        self._orders.clear()

    async def _set_ordering(self, server: SimNameServer, text: str) -> None:
        body = f"orderMessageEnable={text}\n".encode()
        await self._ask(server, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def _deed(self, server: SimNameServer, book: Book, chance: random.Random) -> None:
        """Do something to the brokers or their topics, and note it in the book."""
        name = chance.choice(PLAYED)
        kind = chance.choice((
            "come", "come", "come", "again", "leave", "wipe", "give", "topic", "order", "version",
        ))  # fmt: skip
        match kind:
            case "come":
                await self._come_anyhow(server, book, chance)
            case "again":
                await self._come_again(server, book, chance)
            case "leave":
                await self._leave_anyhow(server, book, chance)
            case "wipe":
                wipe = WipeWritePermOfBrokerRequestHeader(name)
                answer = await self._ask(server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)
                count = book.permit(name, lambda perm: perm & ~Perm.WRITE)
                self._same(server, "wiped", answer.ext_fields, {"wipeTopicCount": str(count)})
            case "give":
                give = AddWritePermOfBrokerRequestHeader(name)
                answer = await self._ask(server, RequestCode.ADD_WRITE_PERM_OF_BROKER, give)
                count = book.permit(name, lambda _: Perm.READ | Perm.WRITE)
                self._same(server, "given", answer.ext_fields, {"addTopicCount": str(count)})
            case "topic":
                await self._forget(server, book, chance)
            case "order":
                topic, value = chance.choice(TOPICS), f"{name}:{chance.randint(1, 9)}"
                await self._put_order(server, topic, value)
                self._orders[topic] = value
            case _:
                await self._ask_version(server, book, chance)

    async def _come_anyhow(self, server: SimNameServer, book: Book, chance: random.Random) -> None:
        """Register under names that are drawn: a broker may move, or be master or slave."""
        name, address = chance.choice(PLAYED), chance.choice(ADDRESSES)
        who = Names(chance.choice(CLUSTERS), name, chance.choice((0, 0, 1)), address)
        await self._put(server, book, self._drawn(chance, who))

    async def _come_again(self, server: SimNameServer, book: Book, chance: random.Random) -> None:
        """Register again under the same version: other topics do not count then."""
        known = list(book.last.values())
        if known:
            former = chance.choice(known)
            new = self._drawn(chance, former.names)
            await self._put(server, book, new._replace(version=former.version))

    async def _leave_anyhow(self, server: SimNameServer, book: Book, chance: random.Random) -> None:
        """Leave under the names that were registered, or under others, which changes nothing."""
        who = Names("East", chance.choice(PLAYED), chance.choice((0, 1)), chance.choice(ADDRESSES))
        if book.last and chance.random() < 0.7:
            who = chance.choice(list(book.last.values())).names
        await self._leave(server, who)
        book.left(who)

    async def _put(self, server: SimNameServer, book: Book, new: Registration) -> None:
        answer = await self._register(server, new)
        book.came(new)
        master = book.ids[new.names.name].get(0)
        told = None
        if new.names.id and master in book.last:
            told = (master, f"ha-of-{master}")
        fields = answer.ext_fields or {}
        seen = (fields.get("masterAddr"), fields.get("haServerAddr"))
        self._same(server, f"the master for {new.names}", seen, told or (None, None))
        orders = KVTable.decode(bytes(answer.body)).table if answer.body else {}
        self._same(server, "orders", orders, self._orders)

    async def _forget(self, server: SimNameServer, book: Book, chance: random.Random) -> None:
        """Delete a topic at all brokers, or at those of a cluster."""
        topic, cluster = chance.choice(TOPICS), chance.choice((None, "", *CLUSTERS))
        header = DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        await self._ask(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        brokers = [name for name, home in book.homes.items() if not cluster or home == cluster]
        book.forget((topic,), brokers)

    async def _ask_version(self, server: SimNameServer, book: Book, chance: random.Random) -> None:
        address, number = chance.choice(ADDRESSES), self.node.kept["version"]
        known = book.last.get(address)
        number = chance.choice((number, known.version if known else 0))
        header = QueryDataVersionRequestHeader("any", address, "any", 0)
        body = _version(number).encode()
        answer = await self._ask(server, RequestCode.QUERY_DATA_VERSION, header, body)
        seen = (answer.ext_fields or {})["changed"] == "true"
        self._same(server, "changed", seen, known is None or known.version != number)
        text = bytes(answer.body)
        at = DataVersion.decode(text).counter if text else None
        self._same(server, f"the version of {address}", at, known and known.version)

    # --- comparing --------------------------------------------------------------------------------

    def _same(self, server: SimNameServer, what: str, seen: object, wanted: object) -> None:
        if seen != wanted:
            self._world.fail(f"{what} at {server.node.name}: {seen!r}, not {wanted!r}")

    async def _clusters(self, server: SimNameServer) -> ClusterInfo:
        answer = await self._ask(server, RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(bytes(answer.body))

    async def _topics(self, server: SimNameServer, code: int, header: Any = None) -> set[str]:
        answer = await self._ask(server, code, header)
        return TopicList.decode(bytes(answer.body)).topic_list

    async def _compare(self, server: SimNameServer, book: Book, topic: str) -> None:
        """Compare a topic's route, the clusters and the lists of topics with the book."""
        await self._compare_route(server, book, topic)
        info = await self._clusters(server)
        seen = {
            name: (data.cluster, data.broker_addrs)
            for name, data in info.broker_addr_table.items()
            if name in PLAYED
        }
        wanted = {name: (book.homes[name], ids) for name, ids in book.ids.items()}
        self._same(server, "brokers", seen, wanted)
        homes = book.homes
        for cluster in CLUSTERS:
            members = [name for name in sorted(homes) if homes[name] == cluster]
            told = info.cluster_addr_table.get(cluster, [])
            self._same(server, f"members of {cluster}", sorted(told), members)
            of = GetTopicsByClusterRequestHeader(cluster)
            topics = await self._topics(server, RequestCode.GET_TOPICS_BY_CLUSTER, of)
            there = {topic for topic, by in book.shapes.items() if set(by) & set(members)}
            self._same(server, f"topics of {cluster}", topics, there)
        unit, sub = TopicSysFlag.UNIT, TopicSysFlag.UNIT_SUB
        for code, flags in (
            (RequestCode.GET_UNIT_TOPIC_LIST, (unit, unit | sub)),
            (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, (sub, unit | sub)),
            (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, (sub,)),
        ):
            topics = await self._topics(server, code)
            self._same(server, f"topics of {code}", topics, book.with_flags(*flags))
        names = await self._topics(server, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        mine = {*homes, *homes.values()}
        self._same(server, "names", names & {*PLAYED, *CLUSTERS}, mine)

    async def _compare_route(self, server: SimNameServer, book: Book, topic: str) -> None:
        route = await self._route(server, topic)
        shapes = book.shapes.get(topic, {})
        if route is None:
            self._same(server, f"the route of {topic}", {}, shapes)
            return
        seen = {
            data.broker_name: Shape(
                data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag
            )
            for data in route.queue_datas
        }
        self._same(server, f"the route of {topic}", seen, shapes)
        at = {data.broker_name: data.broker_addrs for data in route.broker_datas}
        self._same(server, f"addresses of {topic}", at, {name: book.ids[name] for name in shapes})
        filters = {
            address: list(book.last[address].filters)
            for name in shapes
            for address in book.ids[name].values()
            if address in book.last and book.last[address].filters
        }
        self._same(server, f"filters of {topic}", route.filter_server_table, filters)
        self._same(server, "the order", route.order_topic_conf, self._orders.get(topic))

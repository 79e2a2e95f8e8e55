"""Further operators in a simulated run: of accounts, of name servers, of figures, and a clumsy one.

Law: a change that was acknowledged is read back until the next one, whatever ends in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from rocketstream import aio
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.errors import AccessDeniedError, BrokerError, RocketMQError
from rocketstream.protocol.bodies import ClusterInfo, KVTable, TopicList, TopicRouteData
from rocketstream.protocol.codes import Perm, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    Header,
    PullMessageRequestHeader,
    PutKVConfigRequestHeader,
    SendMessageRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from rocketstream.testing.sim.cluster import SimBroker, SimNameServer
from rocketstream.testing.sim.world import Node, World
from tests.scenarios.operating import Clerk

GUARDED = "Guarded"
"""The topic that guests send to and read."""
LATE_MS = 60_000
"""A request that was not answered may be carried out until then."""
SETTLES_S = 5.0
NAMESPACE = "SIMULATED"
CLUSTER = "DefaultCluster"


class Expected:
    """The states servers may hold under each name: acknowledged, or asked for and not answered.

    Args:
        world: gives the time.
        kept: where it is kept over the crashes of the process that asks.
    """

    def __init__(self, world: World, kept: dict[str, Any]) -> None:
        self._world = world
        self._sure: dict[Any, Any] = kept.setdefault("sure", {})
        self._doubts: dict[Any, list[list[Any]]] = kept.setdefault("doubts", {})

    def may_hold(self, name: object) -> list[Any]:
        """Return what may be there; None stands for nothing."""
        doubts = self._doubts.get(name, [])
        return [self._sure.get(name), *(state for state, _ in doubts)]

    @contextlib.contextmanager
    def changing(self, name: object, state: object) -> Iterator[None]:
        """Note a change that is asked for inside; acknowledged unless that raises."""
        now = self._world.now_ms
        doubts = self._doubts.setdefault(name, [])
        doubts[:] = [doubt for doubt in doubts if doubt[1] > now]
        mine = [state, float("inf")]
        doubts.append(mine)
        yield
        self._sure[name] = state
        doubts.remove(mine)
        for doubt in doubts:
            doubt[1] = min(doubt[1], self._world.now_ms + LATE_MS)

    def check(self, name: object, seen: object) -> None:
        """Fail the run if a server shows what it cannot hold."""
        may_be = self.may_hold(name)
        if seen not in may_be and not self._world.may_lose:
            self._world.fail(f"{name} is {seen!r}, and can only be one of {may_be!r}")


class Standing(NamedTuple):
    """An account of a guest as it was asked for, and what follows from it.

    Attributes:
        shown: the account as its broker shows it.
        sends: whether the guest may send to the guarded topic.
        reads: whether it may read that.
    """

    shown: dict[str, Any]
    sends: bool
    reads: bool


class Accountant(Clerk):
    """A process that changes accounts and addresses, and sends and reads as a guest.

    Law: a guest is let in if its account, as last acknowledged, allows what it asks for, or its
    address is among those that need none; of what is refused nothing is stored.
    """

    _guest: aio.Producer

    def __init__(self, world: World) -> None:
        super().__init__(world, "accountant", 1_000.0)
        self._expected = Expected(world, self.node.kept)
        self.node.kept.update(asked=0, refused=set())

    async def _main(self, node: Node) -> None:
        keys = {"access_key": "guest-one", "secret_key": "secret-of-guest"}
        name = f"guest-{node.incarnation}"
        self._guest = aio.Producer("guests", **node.client(instance_name=name, **keys))
        await self._guest.start()
        await super()._main(node)

    async def _act(self, chance: random.Random) -> None:
        broker = self._broker(chance)
        deeds: list[Callable[[SimBroker, random.Random], Any]] = [
            self._grant, self._grant, self._withdraw, self._whiten, self._mistake, self._read_back,
            self._try, self._try, self._try, self._try,
        ]  # fmt: skip
        await chance.choice(deeds)(broker, chance)

    # --- changing ---------------------------------------------------------------------------------

    async def _grant(self, broker: SimBroker, chance: random.Random) -> None:
        """Create the guest's account, or change it."""
        rights = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY")
        secret = chance.choice(("secret-of-guest",) * 3 + ("secret-of-another",))
        white, fits = chance.choice([("", False)] * 4 + _patterns(self.node.host, wide=True))
        topics = chance.choice(("", "", f"{GUARDED}={chance.choice(rights)}", "Other=PUB"))
        groups = chance.choice(("", f"guests={chance.choice(rights)}"))
        header = CreateAccessConfigRequestHeader(
            "guest-one", secret, white, chance.random() < 0.1,
            chance.choice(rights), chance.choice(rights), topics, groups,
        )  # fmt: skip
        await self._put(broker, header, fits=fits)

    async def _put(
        self, broker: SimBroker, header: CreateAccessConfigRequestHeader, *, fits: bool = False
    ) -> None:
        standing = _standing(header, fits=fits)
        with self._expected.changing((broker.name, "account"), standing):
            await self._ask(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def _withdraw(self, broker: SimBroker, _: random.Random | None = None) -> None:
        """Delete the guest's account, if it is there."""
        header = DeleteAccessConfigRequestHeader("guest-one")
        may_be = self._expected.may_hold((broker.name, "account"))
        with self._expected.changing((broker.name, "account"), None):
            try:
                await self._ask(broker, RequestCode.DELETE_ACL_CONFIG, header)
            except BrokerError as error:
                if "has been deleted failed" not in error.remark:
                    raise
                if None not in may_be and not self._world.may_lose:
                    self._world.fail(f"an account is not there to be deleted: {error}")

    async def _whiten(self, broker: SimBroker, chance: random.Random) -> None:
        """Let the guest's address in without an account, or other addresses, or none."""
        several = chance.choices(_patterns(self.node.host, wide=False), k=chance.randint(0, 3))
        await self._let_in(broker, several)

    async def _let_in(self, broker: SimBroker, several: list[tuple[str, bool]]) -> None:
        # The request's texts are parts between commas: a list of addresses becomes several.
        texts = ",".join(text for text, _ in several)
        state = texts.split(",") if texts else [], any(fits for _, fits in several)
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(texts)
        with self._expected.changing((broker.name, "white"), state):
            await self._ask(broker, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def _mistake(self, broker: SimBroker, chance: random.Random) -> None:
        await self._is_refused(broker, *chance.choice(_mistakes()))

    async def _is_refused(self, broker: SimBroker, code: RequestCode, wrong: Header) -> None:
        """Ask for what cannot be: it is refused, and changes nothing."""
        with contextlib.suppress(BrokerError):
            await self._ask(broker, code, wrong)
            self._world.fail(f"taken instead of refused: {wrong}")

    # --- looking ----------------------------------------------------------------------------------

    async def _read_back(self, broker: SimBroker, _: random.Random | None = None) -> None:
        """Have a broker show its accounts: they are as acknowledged."""
        answer = await self._ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        await self._ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        shown = json.loads(bytes(answer.body))
        accounts = {each["accessKey"]: each for each in shown["plainAccessConfigs"]}
        if not {"clients", "operators"} <= set(accounts):
            self._world.fail(f"accounts nobody deleted are gone from {broker.name}: {accounts}")
        seen = accounts.get("guest-one")
        may_be = self._expected.may_hold((broker.name, "account"))
        if seen not in [standing and standing.shown for standing in may_be]:
            self._disagrees(f"{broker.name} shows {seen}, not one of {may_be}")
        whites = self._expected.may_hold((broker.name, "white"))
        if shown["globalWhiteAddrs"] not in [white[0] if white else [] for white in whites]:
            self._disagrees(f"{broker.name} shows {shown['globalWhiteAddrs']}, not one of {whites}")

    def _disagrees(self, text: str) -> None:
        """Fail the run: accounts are synced before they are acknowledged, in every flush mode."""
        self._world.fail(text)

    async def _try(self, broker: SimBroker, chance: random.Random) -> None:
        """Send to the guarded topic as the guest, or read it."""
        sends = chance.random() < 0.5
        standings = self._expected.may_hold((broker.name, "account"))
        whites = self._expected.may_hold((broker.name, "white"))
        open_to_all = [bool(white and white[1]) for white in whites]
        rights = [bool(each and (each.sends if sends else each.reads)) for each in standings]
        what = "send to" if sends else "read"
        try:
            await (self._send(broker) if sends else self._read(broker))
        except AccessDeniedError as error:
            if all(rights) or all(open_to_all):
                self._world.fail(f"the guest may {what} {broker.name}, and is refused: {error}")
        else:
            if not any(rights) and not any(open_to_all):
                self._world.fail(f"the guest may not {what} {broker.name}, and did: {standings}")

    async def _send(self, broker: SimBroker) -> None:
        kept = self.node.kept
        kept["asked"] += 1
        body = b"guest %d" % kept["asked"]
        header = SendMessageRequestHeader(
            "guests", GUARDED, "TBW102", 1, 0, 0, self.node.clock.now_ms(), 0, ""
        )
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE, header, body)
        try:
            await self._invoke(self._guest_api, broker.address, command)
        except AccessDeniedError:
            kept["refused"].add(body)
            raise

    async def _read(self, broker: SimBroker) -> None:
        header = PullMessageRequestHeader("guests", GUARDED, 0, 0, 32, 0, 0, 0, 0, "*", "TAG")
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        try:
            await self._invoke(self._guest_api, broker.address, command)
        except AccessDeniedError:
            raise
        except BrokerError as error:
            if error.code == 1:  # a failure of the broker tells nothing
                raise
            # Nothing is there to be read, and the guest was told so.

    @property
    def _guest_api(self) -> MQClientAPI:
        return self._guest._admin()._instance.api

    async def _end(self, chance: random.Random) -> None:
        await asyncio.sleep(SETTLES_S)
        for broker in self._world.cluster.brokers:
            await self._insist(partial(self._let_in, broker, []))
            await self._try_addresses(broker, chance)
            for code, wrong in _mistakes():
                await self._insist(partial(self._is_refused, broker, code, wrong))
            full = CreateAccessConfigRequestHeader(
                "guest-one", "secret-of-guest", "", False, "PUB|SUB", "PUB|SUB", "", ""
            )
            await self._insist(partial(self._put, broker, full))
            await self._insist(partial(self._read_back, broker))
            await self._insist(partial(self._send, broker))
            await self._insist(partial(self._read, broker))
            await self._insist(partial(self._withdraw, broker))
            await self._insist(partial(self._read_back, broker))
            with contextlib.suppress(AccessDeniedError):
                await self._send(broker)
                self._world.fail("a message of a guest whose account is deleted was taken")
        stored = {each.body for each in self._world.cluster.stored(GUARDED)}
        if stored & self.node.kept["refused"]:
            self._world.fail(f"refused and stored: {sorted(stored & self.node.kept['refused'])}")

    async def _try_addresses(self, broker: SimBroker, chance: random.Random) -> None:
        """Let the guest in by its address alone, and by each other one not."""
        for text, fits in _patterns(self.node.host, wide=True):
            header = CreateAccessConfigRequestHeader(
                "guest-one", "secret-of-another", text, False, "DENY", "DENY", "", ""
            )
            await self._insist(partial(self._put, broker, header, fits=fits))
            await self._insist(partial(self._try, broker, chance))


_WRONG_ADDRESSES = (
    "10.0.0.256", "10.0.0", "10.0.0.1.2", "*.0.0.1", "10.0.0.9-3", "10.0.0.{*}", "10.0.0{1}", "ten",
    "10.0.0.1-", "2001:db8", "2001:db8::1::2", "2001:db8::12345", "*:1:2:3:4:5:6:7", "1:2:*", ",,",
    "10.0.0.1,10.0.0.*", "10.0.0.a-b",
)  # fmt: skip


def _mistakes() -> list[tuple[RequestCode, Header]]:
    """Return requests about accounts that cannot be carried out."""
    grant = CreateAccessConfigRequestHeader
    mistakes: list[tuple[RequestCode, Header]] = [
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, grant("guest-one", "short")),
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, grant("guest", "secret-of-guest")),
        (RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader("nobody-at-all")),
    ]
    for perms in (f"{GUARDED}=ALL", GUARDED, "a=b=c"):
        header = grant("guest-one", "secret-of-guest", topic_perms=perms)
        mistakes.append((RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header))
    for text in _WRONG_ADDRESSES:
        header = grant("guest-one", "secret-of-guest", white_remote_address=text)
        mistakes.append((RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header))
        whites = UpdateGlobalWhiteAddrsConfigRequestHeader(text)
        if "," not in text:
            mistakes.append((RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, whites))
    return mistakes


_NOBODY = 251
"""No machine of a run has an address that ends so."""


def _patterns(host: str, *, wide: bool) -> list[tuple[str, bool]]:
    """Return texts of addresses, and whether each lets a host in.

    Args:
        host: the address of a process.
        wide: also those that fit other processes.
    """
    head, _, last = host.rpartition(".")
    at = int(last)
    found = [
        (host, True), (f"{head}.{_NOBODY}", False), (f"{head}.{at}-{at}", True),
        (f"{head}.{_NOBODY}-255", False), (f"::ffff:{host}", True), ("2001:db8::7", False),
        ("2001:db8:*:*:*:*:*:*", False), ("2001:db8::1-ff", False),
        ("2001:db8:0:0:0:0:0-2:*", False),
    ]  # fmt: skip
    if wide:
        a, b, c, _ = host.split(".")
        found += [
            ("*", True), ("*.*.*.*", True), (f"{head}.*", True), (f"{a}.{b}.*.*", True),
            (f"{a}.{b}.{c}.0-255", True), (f"{head}.{{{at},{at + 1}}}", True),
            (f"{head}.{{{at + 1},{at + 2}}}", False), (f"{host},192.168.0.1", True),
            ("192.168.0.1,192.168.0.2", False), (f"{a}.{int(b) + 1}.*.*", False),
            ("*:*:*:*:*:*:*:*", True), ("2001:db8::{7,8}", False),
        ]  # fmt: skip
    return found


def _standing(header: CreateAccessConfigRequestHeader, *, fits: bool) -> Standing:
    """Return an account and what its guest may do."""
    topics = [header.topic_perms] if header.topic_perms else []
    groups = [header.group_perms] if header.group_perms else []
    shown = {
        "accessKey": header.access_key,
        "secretKey": header.secret_key,
        "whiteRemoteAddress": header.white_remote_address,
        "admin": header.admin,
        "defaultTopicPerm": header.default_topic_perm,
        "defaultGroupPerm": header.default_group_perm,
        "topicPerms": topics,
        "groupPerms": groups,
    }
    named = dict(each.split("=") for each in (*topics, *groups))
    to_topic = named.get(GUARDED, header.default_topic_perm or "")
    to_group = named.get("guests", header.default_group_perm or "")
    may_all = fits or (header.admin and not named and header.secret_key == "secret-of-guest")
    signs = header.secret_key == "secret-of-guest"
    sends = may_all or (signs and "PUB" in to_topic)
    reads = may_all or (signs and "SUB" in to_topic and "SUB" in to_group)
    return Standing(shown, sends, reads)


class Registrar(Clerk):
    """A process that keeps settings at name servers, and takes brokers from writers.

    Law: settings are read back as acknowledged; routes are whole when it gives the brokers back.

    Args:
        world: the world it lives in.
        topic: a topic of every broker.
    """

    def __init__(self, world: World, topic: str) -> None:
        super().__init__(world, "registrar", 1_500.0)
        self._topic = topic
        self._expected = Expected(world, self.node.kept)

    async def _act(self, chance: random.Random) -> None:
        server = chance.choice(self._world.cluster.name_servers)
        deeds: list[Callable[[SimNameServer, random.Random], Any]] = [
            self._put, self._put, self._delete, self._read, self._list, self._wipe, self._look,
        ]  # fmt: skip
        await chance.choice(deeds)(server, chance)

    # --- settings ---------------------------------------------------------------------------------

    async def _put(self, server: SimNameServer, chance: random.Random) -> None:
        key, value = chance.choice("ab"), str(chance.randrange(1000)) * chance.choice((1, 100))
        header = PutKVConfigRequestHeader(NAMESPACE, key, value)
        with self._expected.changing((server.node.name, key), value):
            await self._ask(server, RequestCode.PUT_KV_CONFIG, header)

    async def _delete(self, server: SimNameServer, chance: random.Random) -> None:
        key = chance.choice("ab")
        with self._expected.changing((server.node.name, key), None):
            header = DeleteKVConfigRequestHeader(NAMESPACE, key)
            await self._ask(server, RequestCode.DELETE_KV_CONFIG, header)

    async def _read(self, server: SimNameServer, chance: random.Random) -> None:
        key = chance.choice("ab")
        value: str | None = None
        header = GetKVConfigRequestHeader(NAMESPACE, key)
        try:
            answer = await self._ask(server, RequestCode.GET_KV_CONFIG, header)
            value = (answer.ext_fields or {}).get("value")
        except BrokerError as error:
            if error.code != 22:
                raise
        self._expected.check((server.node.name, key), value)

    async def _list(self, server: SimNameServer, _: random.Random | None = None) -> None:
        table: dict[str, str] = {}
        header = GetKVListByNamespaceRequestHeader(NAMESPACE)
        try:
            answer = await self._ask(server, RequestCode.GET_KVLIST_BY_NAMESPACE, header)
            table = KVTable.decode(bytes(answer.body)).table
        except BrokerError as error:
            if error.code != 22:
                raise
        for key in "ab":
            self._expected.check((server.node.name, key), table.get(key))
        if not set(table) <= set("ab"):
            self._world.fail(f"settings nobody made: {table}")

    # --- routes -----------------------------------------------------------------------------------

    async def _wipe(self, server: SimNameServer, chance: random.Random) -> None:
        """Take a broker from writers at a name server, and give it back a little later."""
        broker = self._broker(chance)
        header = WipeWritePermOfBrokerRequestHeader(broker.name)
        await self._ask(server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        await asyncio.sleep(chance.random())
        await self._give_back(server, broker)

    async def _give_back(self, server: SimNameServer, broker: SimBroker) -> None:
        header = AddWritePermOfBrokerRequestHeader(broker.name)
        await self._ask(server, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)

    async def _look(self, server: SimNameServer, chance: random.Random) -> None:
        """Ask for lists of topics and brokers: what is there is known by the right names."""
        code = chance.choice((
            RequestCode.GET_UNIT_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ))  # fmt: skip
        units = TopicList.decode(bytes((await self._ask(server, code)).body))
        if units.topic_list:
            self._world.fail(f"topics of units nobody made: {units.topic_list}")
        system = await self._ask(server, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        brokers = {broker.name for broker in self._world.cluster.brokers}
        names = TopicList.decode(bytes(system.body)).topic_list
        if not names <= brokers | {CLUSTER}:
            self._world.fail(f"unknown brokers at {server.node.name}: {names}")
        settings = await self._ask(server, RequestCode.GET_NAMESRV_CONFIG)
        if b"orderMessageEnable=false" not in bytes(settings.body):
            self._world.fail(f"settings of {server.node.name}: {bytes(settings.body)!r}")
        same = b"# as before\norderMessageEnable=false\n"
        await self._ask(server, RequestCode.UPDATE_NAMESRV_CONFIG, body=same)

    async def _is_whole(self, server: SimNameServer) -> None:
        """Raise unless a name server knows every broker and all its queues, open to writers."""
        brokers: list[SimBroker] = self._world.cluster.brokers
        names = {broker.name for broker in brokers}
        header = GetRouteInfoRequestHeader(self._topic)
        answer = await self._ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        route = TopicRouteData.decode(bytes(answer.body))
        found = {data.broker_name: (data.perm, data.read_queue_nums) for data in route.queue_datas}
        wanted = {
            broker.name: (Perm.READ | Perm.WRITE, len(broker.queues(self._topic)))
            for broker in brokers
        }
        if found != wanted:
            raise RocketMQError(f"the route at {server.node.name} is {found}, not {wanted}")
        answer = await self._ask(server, RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters = ClusterInfo.decode(bytes(answer.body))
        if set(clusters.broker_addr_table) != names:
            raise RocketMQError(f"{server.node.name} knows {clusters.broker_addr_table}")
        for code, of in (
            (RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(CLUSTER)),
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
        ):
            topics = TopicList.decode(bytes((await self._ask(server, code, of)).body)).topic_list
            if self._topic not in topics:
                raise RocketMQError(f"{self._topic} is not among the topics {topics}")

    async def _end(self, chance: random.Random) -> None:
        await asyncio.sleep(SETTLES_S)
        for server in self._world.cluster.name_servers:
            for broker in self._world.cluster.brokers:
                await self._insist(partial(self._give_back, server, broker))
            await self._insist(partial(self._put, server, chance))
            await self._insist(partial(self._list, server))
            await self._insist(partial(self._is_whole, server))

"""The name server over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream._util.loops import LoopThread
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
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketstream.protocol.record import body_crc
from rocketstream.server.broker.registration import NameServerRegistrar
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.server.nameserver import NameServer
from rocketstream.server.nameserver.handlers import REFUSALS_PAUSE_MS
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer, ext
from tests.kits.registrations import compressed as in_lines

ADDRESS = "10.0.0.1:10911"


class Running:
    """A name server on a thread, with a clock moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.thread = LoopThread("rocketstream-test")
        self.server = NameServer(port=0, clock=self.clock)
        self.thread.run(self.server.start())

    def expire(self) -> None:
        async def call() -> None:
            self.server.expire()

        asyncio.run_coroutine_threadsafe(call(), self.thread.loop).result(10)

    def scan(self) -> None:
        """Have its regular scan happen now."""

        async def call() -> None:
            assert self.server._scan is not None
            self.server._scan.cancel()
            self.server._scan_now()

        self.thread.run(call())

    def close(self) -> None:
        self.thread.run(self.server.close())
        self.thread.close()


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.close()


@pytest.fixture
def namesrv_peer(running: Running) -> Iterator[Peer]:
    with Peer(running.server.address) as peer:
        yield peer


def register(
    peer: Peer,
    *topics: str,
    counter: int = 1,
    broker_id: int = 0,
    address: str = ADDRESS,
    name: str = "broker-a",
    compressed: bool = False,
    crc: int | None = None,
    perm: int = 6,
) -> RemotingCommand:
    table = {topic: TopicConfig(topic, 8, 4, perm) for topic in topics}
    wrapper = TopicConfigSerializeWrapper(table, DataVersion(counter, 1_700_000_000_000))
    registration = RegisterBrokerBody(wrapper, [])
    body = in_lines(registration) if compressed else registration.encode()
    header = RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name="C1",
        ha_server_addr="10.0.0.1:10912",
        broker_id=broker_id,
        compressed=compressed,
        body_crc32=body_crc(body) if crc is None else crc,
    )
    return peer.call(RequestCode.REGISTER_BROKER, header, body)


def route(peer: Peer, topic: str, *, version: int = 409, **more: str) -> RemotingCommand:
    fields = {"topic": topic, **more}
    return peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=fields, version=version)


def addresses(peer: Peer, topic: str) -> dict[int, str] | None:
    answer = route(peer, topic)
    if answer.code != 0:
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        return None
    return TopicRouteData.decode(bytes(answer.body)).broker_datas[0].broker_addrs


@pytest.mark.parametrize("compressed", [False, True])
def test_registered_topic_is_routed(namesrv_peer: Peer, compressed: bool) -> None:
    """Covers C-441 to C-443 and W 3.3: plain and compressed registrations."""
    assert register(namesrv_peer, "T1", compressed=compressed).code == 0
    data = TopicRouteData.decode(bytes(route(namesrv_peer, "T1").body))
    [queues] = data.queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (8, 4, 6)
    [broker] = data.broker_datas
    assert (broker.cluster, broker.broker_name) == ("C1", "broker-a")
    assert broker.broker_addrs == {0: ADDRESS}


def test_damaged_registration_is_refused(namesrv_peer: Peer) -> None:
    """Covers code 103: the CRC is checked when it is given."""
    answer = register(namesrv_peer, "T1", crc=1)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert addresses(namesrv_peer, "T1") is None
    assert register(namesrv_peer, "T1", crc=0).code == 0


def test_route_form_depends_on_who_asks(namesrv_peer: Peer) -> None:
    """Covers W 2.7: bare integer keys for old senders, quoted ones from 401 on or if asked."""
    register(namesrv_peer, "T1")
    assert b'{0:"' in bytes(route(namesrv_peer, "T1", version=400).body)
    assert b'{"0":"' in bytes(route(namesrv_peer, "T1", version=401).body)
    answer = route(namesrv_peer, "T1", version=400, acceptStandardJsonOnly="true")
    assert b'{"0":"' in bytes(answer.body)
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    assert b'{0:"' in bytes(namesrv_peer.call(code, version=479).body)


def test_unknown_topic_has_upstreams_text(namesrv_peer: Peer) -> None:
    """Covers C-443."""
    answer = route(namesrv_peer, "none")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith(
        "No topic route info in name server for the topic: none"
    )


def test_same_version_again_changes_nothing_and_never_removes(namesrv_peer: Peer) -> None:
    """Covers W 2.7: queue data moves only with the data version; registration never removes."""
    register(namesrv_peer, "T1", counter=1)
    register(namesrv_peer, "T2", counter=1)
    assert addresses(namesrv_peer, "T2") is None
    register(namesrv_peer, "T2", counter=2)
    assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
    assert addresses(namesrv_peer, "T2") == {0: ADDRESS}


def test_slave_adds_its_address_and_learns_its_master(namesrv_peer: Peer) -> None:
    """Covers C-442: a slave's topics do not count."""
    register(namesrv_peer, "T1")
    answer = register(namesrv_peer, "T9", broker_id=1, address="10.0.0.2:10911")
    assert ext(answer) == {"haServerAddr": "10.0.0.1:10912", "masterAddr": ADDRESS}
    assert addresses(namesrv_peer, "T1") == {0: ADDRESS, 1: "10.0.0.2:10911"}
    assert addresses(namesrv_peer, "T9") is None


def test_address_registered_under_another_id_moves(namesrv_peer: Peer) -> None:
    """Covers W 2.7."""
    register(namesrv_peer, "T1")
    register(namesrv_peer, "T1", broker_id=1, counter=2)
    assert addresses(namesrv_peer, "T1") == {1: ADDRESS}


def test_unregistered_broker_takes_its_topics_along(namesrv_peer: Peer) -> None:
    """Covers code 104."""
    register(namesrv_peer, "T1")
    header = UnRegisterBrokerRequestHeader("broker-a", ADDRESS, "C1", 0)
    assert namesrv_peer.call(RequestCode.UNREGISTER_BROKER, header).code == 0
    assert addresses(namesrv_peer, "T1") is None
    info = namesrv_peer.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert ClusterInfo.decode(bytes(info.body)).broker_addr_table == {}


def test_the_farewell_of_a_broker_that_has_started_anew_since_removes_nothing(
    running: Running, namesrv_peer: Peer
) -> None:
    """It comes late, over the connection the broker had before."""
    register(namesrv_peer, "T1")
    farewell = UnRegisterBrokerRequestHeader("broker-a", ADDRESS, "C1", 0)
    with Peer(running.server.address) as again:
        register(again, "T1")
        assert namesrv_peer.call(RequestCode.UNREGISTER_BROKER, farewell).code == 0
        assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
        assert again.call(RequestCode.UNREGISTER_BROKER, farewell).code == 0
        assert addresses(namesrv_peer, "T1") is None


def test_closed_connection_removes_its_broker(running: Running, namesrv_peer: Peer) -> None:
    """Covers C-442: at once, not after 120 s."""
    with Peer(running.server.address) as broker:
        register(broker, "T1")
        assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
    for _ in range(1000):
        if addresses(namesrv_peer, "T1") is None:
            break
    assert addresses(namesrv_peer, "T1") is None


def test_silent_broker_is_removed_after_120_s(running: Running, namesrv_peer: Peer) -> None:
    """Covers C-442: and its connection is closed."""
    with Peer(running.server.address) as broker:
        register(broker, "T1")
        running.clock.advance(120_000)
        running.expire()
        assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
        running.clock.advance(1)
        running.expire()
        assert addresses(namesrv_peer, "T1") is None
        broker.wait_end()


def test_a_name_server_that_stood_still_takes_no_broker_for_silent(
    running: Running, namesrv_peer: Peer
) -> None:
    """Covers C-442: where the machine slept, brokers slept as well, and register later."""
    register(namesrv_peer, "T1")
    running.scan()
    running.clock.advance(3_600_000)
    running.scan()
    assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
    for _ in range(12):
        running.clock.advance(10_000)
        running.scan()
    assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
    running.clock.advance(10_000)
    running.scan()
    assert running.server.routes.route("T1") is None


def test_wall_clock_that_jumps_removes_no_broker(running: Running, namesrv_peer: Peer) -> None:
    """Covers C-442: silence is a duration."""
    register(namesrv_peer, "T1")
    for hours in (73, -146):
        running.clock.jump(hours * 3_600_000)
        running.expire()
        assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
    running.clock.advance(120_001)
    running.expire()
    assert running.server.routes.route("T1") is None


def test_unchanged_data_version_counts_as_life(running: Running, namesrv_peer: Peer) -> None:
    """Covers code 322."""
    register(namesrv_peer, "T1", counter=3)

    def query(counter: int) -> RemotingCommand:
        header = QueryDataVersionRequestHeader("broker-a", ADDRESS, "C1", 0)
        body = DataVersion(counter, 1_700_000_000_000).encode()
        return namesrv_peer.call(RequestCode.QUERY_DATA_VERSION, header, body)

    running.clock.advance(100_000)
    assert ext(query(3)) == {"changed": "false"}
    answer = query(4)
    assert ext(answer) == {"changed": "true"}
    assert DataVersion.decode(bytes(answer.body)).counter == 3
    running.clock.advance(100_000)
    running.expire()
    assert addresses(namesrv_peer, "T1") == {0: ADDRESS}


def test_lists_of_topics(namesrv_peer: Peer) -> None:
    """Covers codes 206, 224, 304."""
    register(namesrv_peer, "T1", "T2")

    def topics(code: int, **fields: str) -> TopicList:
        return TopicList.decode(bytes(namesrv_peer.call(code, ext=dict(fields)).body))

    assert topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).topic_list == {"T1", "T2"}
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C1").topic_list == {"T1", "T2"}
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C2").topic_list == set()
    system = topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert (system.topic_list, system.broker_addr) == ({"C1", "broker-a"}, ADDRESS)


def test_topic_is_deleted_everywhere_or_in_one_cluster(namesrv_peer: Peer) -> None:
    """Covers code 216."""
    register(namesrv_peer, "T1", "T2")
    namesrv_peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext={"topic": "T1", "clusterName": "C2"})
    assert addresses(namesrv_peer, "T1") is not None
    namesrv_peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext={"topic": "T1", "clusterName": "C1"})
    assert addresses(namesrv_peer, "T1") is None
    namesrv_peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext={"topic": "T2"})
    assert addresses(namesrv_peer, "T2") is None


def test_refused_registrations_are_told_in_the_log_now_and_then(
    running: Running, namesrv_peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    running.server.routes._topics_max = 1
    for counter in range(3):
        refused = register(namesrv_peer, "T1", "T2", counter=counter)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (refused.remark or "").startswith("1 new topics of broker broker-a are not taken")
        assert addresses(namesrv_peer, "T1") == {0: ADDRESS}
    assert caplog.text.count("1 new topics of broker broker-a") == 1
    running.clock.advance(REFUSALS_PAUSE_MS)
    register(namesrv_peer, "T1", "T2", counter=3)
    assert caplog.text.count("1 new topics of broker broker-a") == 2


def test_write_permission_is_wiped_and_given_back(namesrv_peer: Peer) -> None:
    """Covers C-444."""
    register(namesrv_peer, "T1", "T2")

    def perm() -> int:
        return TopicRouteData.decode(bytes(route(namesrv_peer, "T1").body)).queue_datas[0].perm

    fields = {"brokerName": "broker-a"}
    answer = namesrv_peer.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, ext=fields)
    assert (ext(answer), perm()) == ({"wipeTopicCount": "2"}, 4)
    answer = namesrv_peer.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, ext=fields)
    assert (ext(answer), perm()) == ({"addTopicCount": "2"}, 6)


def test_settings_survive_a_restart(tmp_path: Path) -> None:
    """Covers codes 100 and 102: kvConfig.json, as upstream's, written before the answer."""
    path = tmp_path / "namesrv" / "kvConfig.json"
    where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1"}

    def run(*calls: tuple[int, dict[str, str]]) -> list[RemotingCommand]:
        thread = LoopThread("rocketstream-test")
        server = NameServer(port=0, settings_path=path)
        thread.run(server.start())
        try:
            with Peer(server.address) as peer:
                return [peer.call(code, ext=fields) for code, fields in calls]
        finally:
            thread.run(server.close())
            thread.close()

    (put,) = run((RequestCode.PUT_KV_CONFIG, {**where, "value": "broker-a:4"}))
    assert put.code == 0
    assert '"T1":"broker-a:4"' in path.read_text()
    found, deleted = run((RequestCode.GET_KV_CONFIG, where), (RequestCode.DELETE_KV_CONFIG, where))
    assert ext(found) == {"value": "broker-a:4"}
    assert deleted.code == 0
    (gone,) = run((RequestCode.GET_KV_CONFIG, where))
    assert gone.code == ResponseCode.QUERY_NOT_FOUND


def test_settings_by_namespace(namesrv_peer: Peer) -> None:
    """Covers codes 100, 101, 102, 219, and the order configuration in answers to 103."""
    where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1"}
    assert (
        namesrv_peer.call(RequestCode.GET_KV_CONFIG, ext=where).code == ResponseCode.QUERY_NOT_FOUND
    )
    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    space = {"namespace": "ORDER_TOPIC_CONFIG"}
    assert namesrv_peer.call(code, ext=space).code == ResponseCode.QUERY_NOT_FOUND
    namesrv_peer.call(RequestCode.PUT_KV_CONFIG, ext={**where, "value": "broker-a:4"})
    assert ext(namesrv_peer.call(RequestCode.GET_KV_CONFIG, ext=where)) == {"value": "broker-a:4"}
    assert KVTable.decode(bytes(namesrv_peer.call(code, ext=space).body)).table == {
        "T1": "broker-a:4"
    }
    assert KVTable.decode(bytes(register(namesrv_peer, "T1").body)).table == {"T1": "broker-a:4"}
    namesrv_peer.call(RequestCode.DELETE_KV_CONFIG, ext=where)
    assert (
        namesrv_peer.call(RequestCode.GET_KV_CONFIG, ext=where).code == ResponseCode.QUERY_NOT_FOUND
    )


def test_unknown_code_is_answered(namesrv_peer: Peer) -> None:
    """Covers W 1.4: 4.9 stays silent there, which only makes callers wait."""
    answer = namesrv_peer.call(901)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 901 not supported"


def test_missing_field_and_junk_body_are_answered(namesrv_peer: Peer) -> None:
    """Hostile bytes get code 1 and the connection goes on."""
    answer = namesrv_peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in (answer.remark or "")
    header = RegisterBrokerRequestHeader("b", ADDRESS, "C1", "h", 0, True, 0)
    answer = namesrv_peer.call(RequestCode.REGISTER_BROKER, header, b"\x00junk")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert register(namesrv_peer, "T1").code == 0


def test_a_broker_registers_soon_with_a_name_server_that_is_back(tmp_path: Path) -> None:
    """It was told every 30 s: that long a restarted name server had no route to it."""

    async def play() -> None:
        first = NameServer(port=0)
        await first.start()
        joined = (first.address,)
        async with EmbeddedCluster(tmp_path, namesrv_addrs=joined, store_config=SMALL_STORE):
            assert first.routes.cluster_info().broker_addr_table
            await first.close()
            second = NameServer(port=int(first.address.rpartition(":")[2]))
            told = asyncio.Event()
            registering = second.routes.registering

            def registered(*arguments: Any, **more: Any) -> Any:
                told.set()
                return registering(*arguments, **more)

            second.routes.registering = registered  # type: ignore[method-assign]
            await second.start()
            async with asyncio.timeout(15):
                await told.wait()
            await second.close()

    asyncio.run(play())


def test_a_part_of_the_topics_does_not_hide_the_whole_table_later(tmp_path: Path) -> None:
    """The late end of an earlier connection removed a broker; then one topic was created there.

    The whole table had the version that came with that topic, and was passed over from then on.
    """

    async def play() -> None:
        server = NameServer(port=0)
        await server.start()
        joined = (server.address,)
        async with EmbeddedCluster(
            tmp_path, namesrv_addrs=joined, store_config=SMALL_STORE
        ) as cluster:
            await cluster.create_topic_async("T1", 1)
            (live,) = server.routes._live.values()
            server.routes.unregister(live.identity)
            await cluster.create_topic_async("T2", 1)
            assert server.routes.route("T2") is not None
            assert server.routes.route("T1") is None
            registrar = cluster.broker.controller.registrar
            assert isinstance(registrar, NameServerRegistrar)
            await registrar.register()
            assert server.routes.route("T1") is not None
        await server.close()

    asyncio.run(play())

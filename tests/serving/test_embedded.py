"""The cluster as a whole: starting, stopping, restarting, refusing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    PortInUseError,
    StoreDamagedError,
    StoreError,
    StoreLockedError,
)
from rocketstream.protocol.bodies import TopicRouteData
from rocketstream.protocol.bodies.files import unsealed
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import PutKVConfigRequestHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rocketstream.server.broker.messages import read_own
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster, EmbeddedSettings, serve
from rocketstream.server.store import MessageStore, RetentionConfig
from rocketstream.server.store.consume_queue import UNIT
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer, ext
from tests.plugins.waiting import wait_until


def start(store_dir: Path, **more: Any) -> EmbeddedCluster:
    return EmbeddedCluster(store_dir, **{"store_config": SMALL_STORE, **more})


def test_temporary_store_is_deleted() -> None:
    with EmbeddedCluster() as cluster:
        folder = cluster.store_dir
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ClientStateError):
        _ = cluster.broker_addr


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_store_is_for_its_owner_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every file and directory that log, queues, index, tables and name server are in."""
    root = tmp_path / "above" / "store"
    umask = os.umask(0)
    try:
        with start(root, delay_levels="1ms") as cluster, Peer(cluster.broker_addr) as broker:
            broker.send("T1", properties={"KEYS": "k", "DELAY": "1"})
            broker.wait_message("T1", 0)
            broker.commit("cg", "T1", 0, 1)
            broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"cg"}')
            with Peer(cluster.namesrv_addr) as names:
                header = PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "T1", "broker-a:4")
                assert names.call(RequestCode.PUT_KV_CONFIG, header).code == 0
    finally:
        os.umask(umask)
    found = {path: path.stat().st_mode & 0o777 for path in (root.parent, *root.parent.rglob("*"))}
    assert {path.name for path in found} >= {"kvConfig.json", "topics.json", "checkpoint", "index"}
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert "other users" not in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_store_that_others_can_read_is_told_and_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An Apache broker made it, or an earlier version; a backup may rely on it."""
    with start(tmp_path / "s") as cluster, Peer(cluster.broker_addr) as broker:
        broker.send("T1")
    log = min((tmp_path / "s" / "commitlog").iterdir())
    log.chmod(0o644)
    with start(tmp_path / "s"):
        pass
    assert "other users" not in caplog.text, "nobody gets to it"
    (tmp_path / "s").chmod(0o755)
    with start(tmp_path / "s"):
        pass
    assert f"chmod -R go-rwx {tmp_path / 's'}" in caplog.text
    assert log.stat().st_mode & 0o777 == 0o644


def test_cluster_starts_again_after_close() -> None:
    cluster = EmbeddedCluster()
    for _ in range(2):
        with cluster, Peer(cluster.broker_addr) as broker:
            assert broker.send("T1").code == 0
            with pytest.raises(ClientStateError):
                cluster.start()
    cluster.close()


def test_async_face_runs_on_the_callers_loop() -> None:
    async def use() -> None:
        async with EmbeddedCluster() as cluster:
            await cluster.create_topic_async("T1", 2)
            with Peer(cluster.namesrv_addr) as namesrv:
                code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}
                answer = await asyncio.to_thread(namesrv.call, code, ext=fields)
                assert answer.code == 0

    asyncio.run(use())


@pytest.mark.parametrize("part", ["_registrar", "_server", "_client", "name server"])
def test_a_cancelled_close_closes_all_the_same(tmp_path: Path, part: str) -> None:
    """Nobody could close what is left: the store stayed locked, its last offsets unwritten."""

    async def use() -> None:
        cluster = await start(tmp_path / "s").start_async()
        broker: Any = cluster.broker
        names: Any = cluster._nameserver
        hanging = names._server if part == "name server" else getattr(broker, part)
        close, entered = hanging.close, asyncio.Event()

        async def hang() -> None:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                await close()

        hanging.close = hang
        ports = [
            int(each.rpartition(":")[2]) for each in (cluster.namesrv_addr, cluster.broker_addr)
        ]
        closing = asyncio.create_task(cluster.close_async())
        await entered.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        assert names._file._closed
        hanging.close = close
        await cluster.close_async()
        await broker.close()
        async with start(tmp_path / "s"):
            pass

    asyncio.run(use())


@pytest.mark.parametrize("error", [None, StoreError("no space left")])
def test_a_topic_whose_creator_is_cancelled_counts_once_it_is_written(
    error: StoreError | None,
) -> None:
    async def use() -> None:
        loop, failures = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        async with EmbeddedCluster() as cluster:
            controller, written = cluster.broker.controller, loop.create_future()
            controller.saver.topics_saved = lambda: written  # type: ignore[method-assign]
            creating = asyncio.create_task(cluster.create_topic_async("T1", 2))
            await asyncio.sleep(0)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
            written.set_exception(error) if error else written.set_result(None)
            await asyncio.sleep(0)
            assert failures == []
            assert (controller.topics.get("T1") is None) == (error is not None)

    asyncio.run(use())


def test_each_face_names_the_other_when_it_is_the_wrong_one() -> None:
    """A sync close() of an async cluster did nothing, an async one of a sync cluster broke it."""

    async def use() -> None:
        async with EmbeddedCluster() as cluster:
            for call in (cluster.close, cluster.check_transactions):
                with pytest.raises(ClientStateError, match=rf"await {call.__name__}_async\(\)"):
                    call()
            with pytest.raises(ClientStateError, match=r"await create_topic_async\(\)"):
                cluster.create_topic("T1")
            await cluster.check_transactions_async()

    async def misuse(cluster: EmbeddedCluster) -> None:
        for call in (cluster.close_async, cluster.check_transactions_async):
            with pytest.raises(ClientStateError, match="a thread of its own: "):
                await call()
        with pytest.raises(ClientStateError, match=r"create_topic\(\), not create_topic_async"):
            await cluster.create_topic_async("T1")

    asyncio.run(use())
    with EmbeddedCluster() as cluster, Peer(cluster.broker_addr) as broker:
        asyncio.run(misuse(cluster))
        assert broker.send("T1").code == 0


def test_what_cannot_be_a_store_directory_is_refused(tmp_path: Path) -> None:
    """An empty path would be the working directory."""
    given: Any
    for given in ("", 5):
        with pytest.raises(ConfigurationError, match=f"store_dir must be a path.*{given!r}"):
            EmbeddedCluster(given)
    file = tmp_path / "file"
    file.touch()
    for given in (file, file / "store"):
        with pytest.raises(StoreError, match=rf"directory {given} cannot be: {file} is a file"):
            EmbeddedCluster(given).start()


def test_topic_is_routed_when_create_topic_returns(
    rocketmq_cluster: EmbeddedCluster, namesrv_peer: Peer
) -> None:
    rocketmq_cluster.create_topic("T1", queues=2, perm=4)
    answer = namesrv_peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T1"})
    assert b'"perm":4,"readQueueNums":2' in bytes(answer.body)
    with pytest.raises(ConfigurationError):
        rocketmq_cluster.create_topic("bad topic")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"queues": 0}, "queues must be a whole number from 1 to 65536, not 0"),
        ({"queues": 65_537}, "queues must be"),
        ({"queues": "3"}, "queues must be"),
        ({"perm": 8}, "perm must be a whole number from 0 to 7, not 8"),
        ({"perm": -1}, "perm must be"),
    ],
)
def test_a_topic_is_made_of_numbers_a_broker_takes(
    rocketmq_cluster: EmbeddedCluster, settings: dict[str, Any], named: str
) -> None:
    """As by request 17, which would refuse them: sends to such a topic end the connection."""
    with pytest.raises(ConfigurationError, match=named):
        rocketmq_cluster.create_topic("T1", **settings)


def test_restart_keeps_messages_topics_groups_and_offsets(tmp_path: Path) -> None:
    """Covers C-327 to C-329, C-350: everything is back, in upstream's files."""
    with start(tmp_path / "s") as cluster, Peer(cluster.broker_addr) as broker:
        cluster.create_topic("T1", queues=2)
        broker.send("T1", b"one")
        broker.commit("cg", "T1", 0, 1)
        broker.heartbeat("c1", "cg", {"T1": "*"})
    folder = tmp_path / "s" / "config"
    offsets = (folder / "consumerOffset.json").read_bytes()
    assert unsealed("consumerOffset.json", offsets) == (
        b'{\n\t"offsetTable":{\n\t\t"T1@cg":{0:1\n\t\t}\n\t}\n}'
    )
    topics = json.loads((folder / "topics.json").read_text())
    assert topics["topicConfigTable"]["T1"]["readQueueNums"] == 2
    groups = json.loads((folder / "subscriptionGroup.json").read_text())
    assert groups["subscriptionGroupTable"]["cg"]["retryMaxTimes"] == 16
    with start(tmp_path / "s") as cluster, Peer(cluster.broker_addr) as broker:
        assert cluster.broker.recovery is not None
        assert cluster.broker.recovery.clean_exit
        assert [m.body for m in broker.messages("T1")] == [b"one"]
        assert broker.offset("cg", "T1") == 1
        assert ext(broker.send("T1"))["queueOffset"] == "1"
        with Peer(cluster.namesrv_addr) as namesrv:
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            assert namesrv.call(code, ext={"topic": "T1"}).code == 0


def test_restart_delivers_what_was_delayed(tmp_path: Path) -> None:
    """Covers C-409: progress is in delayOffset.json; what is due is delivered once, not twice."""
    levels = "10ms 1d"
    with start(tmp_path / "s", delay_levels=levels) as cluster, Peer(cluster.broker_addr) as broker:
        broker.send("T1", b"first", properties={"DELAY": "1"})
        broker.wait_message("T1", 0)
        broker.send("T1", b"second", properties={"DELAY": "2"})
    text = (tmp_path / "s" / "config" / "delayOffset.json").read_bytes()
    assert unsealed("delayOffset.json", text) == b'{\n\t"offsetTable":{1:1\n\t}\n}'
    # With shorter levels the parked message lies beyond its level, and waits for that (C-405).
    with (
        start(tmp_path / "s", delay_levels="10ms 10ms") as cluster,
        Peer(cluster.broker_addr) as broker,
    ):
        assert broker.wait_message("T1", 1).body == b"second"
        assert len(broker.messages("T1")) == 2


def test_due_time_no_level_can_have_is_put_right_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-405: one flipped bit of a unit held its level up for as long as the level waits."""
    levels = "300ms 300ms"
    with (
        start(tmp_path / "s", delay_levels=levels) as cluster,
        Peer(cluster.broker_addr) as broker,
    ):
        for body in (b"first", b"second"):
            broker.send("T1", body, properties={"DELAY": "2"})
    units = min((tmp_path / "s" / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1").iterdir())
    with units.open("r+b") as file:
        file.seek(14)  # of the first unit: its time is in bytes 12 to 19
        (byte,) = file.read(1)
        file.seek(14)
        file.write(bytes([byte ^ 1]))
    for progress in (tmp_path / "s" / "config").glob("delayOffset.json*"):
        progress.unlink()  # whether they were delivered meanwhile or not: from the beginning
    with (
        start(tmp_path / "s", delay_levels=levels) as cluster,
        Peer(cluster.broker_addr) as broker,
    ):
        bodies = [message.body for message in (broker.wait_message("T1", n) for n in (0, 1))]
    assert bodies == [b"first", b"second"]
    assert "condition=DUE_TIME_PUT_RIGHT delay level 2, offset 0" in caplog.text


def test_damaged_units_of_what_waits_are_mended_before_they_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a delayed and of a half message: they were taken for gone, or one for due at once."""
    store = tmp_path / "s"
    old = {"store_config": dataclasses.replace(SMALL_STORE, verify_bytes_max=0)}
    half = {"TRAN_MSG": "true", "PGROUP": "pg"}
    with start(store, **old) as cluster, Peer(cluster.broker_addr) as broker:
        for _ in range(2):
            broker.send("T1", b"half", sys_flag=4, properties=half)
            broker.send("T1", b"delayed", properties={"DELAY": "18"})
        broker.send("T2")
    for topic, queue in (("SCHEDULE_TOPIC_XXXX", "17"), ("RMQ_SYS_TRANS_HALF_TOPIC", "0")):
        path = min((store / "consumequeue" / topic / queue).iterdir())
        units = path.read_bytes()
        path.write_bytes(units[:8] + bytes(12) + units[20:])
    with start(store, **old) as cluster, Peer(cluster.broker_addr) as broker:
        assert cluster.broker.undecided_transactions == 2
        wait_until(lambda: caplog.text.count("condition=UNIT_MENDED") == 2, "both to be mended")
        assert cluster.broker.store.max_offset("T1", 0) == 0
    assert "is gone" not in caplog.text


def test_a_message_that_waits_and_is_gone_is_looked_for_once() -> None:
    """Its unit is mended, and read again; a second search of the log would find no more."""
    steps: list[str] = []

    class Store:
        def consume_queue_entries(self, *_: object) -> list[tuple[int, int, int]]:
            steps.append("read")
            return []

        def mend(self, *_: object) -> None:
            steps.append("mend")

    assert read_own(cast("MessageStore", Store()), SCHEDULE_TOPIC, 0, 7) is None
    assert steps == ["read", "mend", "read"]


@pytest.mark.parametrize("unit", [(1 << 40, 94), (0, 0), (-1, 94), (16, 94)])
def test_units_of_what_waits_that_are_damaged_meanwhile_are_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unit: tuple[int, int]
) -> None:
    """A disk that fails under the broker: units were compared once, and their messages dropped."""
    clock = ManualClock()
    settings = {"clock": clock, "delay_levels": "1h", "transaction_check_interval_ms": 1 << 30}
    half = {"TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "T1", "REAL_QID": "0"}
    with start(tmp_path / "s", **settings) as cluster, Peer(cluster.broker_addr) as broker:
        broker.send("T1", b"half", sys_flag=4, properties=half)
        broker.send("T1", b"delayed", properties={"DELAY": "1"})
        thread, schedule = cluster._thread, cluster.broker._schedule
        assert thread is not None
        assert schedule is not None
        runner, looking = thread, schedule

        async def damage() -> None:
            for place in ((SCHEDULE_TOPIC, 0), (TRANS_HALF_TOPIC, 0)):
                units = cluster.broker.store._queues[place]._tail_map
                (code,) = struct.unpack_from(">q", units, 12)
                UNIT.pack_into(units, 0, *unit, code)

        async def look() -> None:
            looking._run(1)

        runner.run(look())
        runner.run(damage())
        clock.advance(3_600_000)
        runner.run(look())
        assert [message.body for message in broker.messages("T1")] == [b"delayed"]
        broker.heartbeat("c1", producer="pg")
        cluster.check_transactions()
        asked = broker.next_asked(RequestCode.CHECK_TRANSACTION_STATE)
        assert decode_messages(asked.body)[0].body == b"half"
    assert caplog.text.count("condition=UNIT_MENDED") == 2


def test_backup_of_a_broken_file_is_used(tmp_path: Path) -> None:
    """Covers C-329: the .bak, and a refusal when that is broken too."""
    store = tmp_path / "s"
    with start(store) as cluster, Peer(cluster.broker_addr) as broker:
        broker.send("T1")
        broker.commit("cg", "T1", 0, 1)
    file = store / "config" / "consumerOffset.json"
    file.write_text("{broken")
    with start(store) as cluster, Peer(cluster.broker_addr) as broker:
        assert broker.offset("cg", "T1") == 1
    file.write_text("{broken")
    file.with_name("consumerOffset.json.bak").write_text("{broken")
    with pytest.raises(StoreDamagedError, match=r"consumerOffset\.json"):
        start(store).start()


def test_port_in_use_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for given in ({"broker_port": port}, {"namesrv_port": port}):
            with pytest.raises(PortInUseError, match=str(port)):
                start(tmp_path / "s", **given).start()
    with start(tmp_path / "s") as cluster:
        assert cluster.broker_addr


def test_store_in_use_is_said(rocketmq_cluster: EmbeddedCluster) -> None:
    with pytest.raises(StoreLockedError, match="store"):
        start(rocketmq_cluster.store_dir).start()


def test_open_address_needs_permission() -> None:
    """Design decision 11: loopback only, unless told otherwise."""
    for host in ("0.0.0.0", "192.0.2.7", "::", "example.org"):
        with pytest.raises(ConfigurationError, match="insecure"):
            EmbeddedCluster(host=host)
    with EmbeddedCluster(host="0.0.0.0", advertise_host="127.0.0.1", insecure=True) as cluster:
        assert cluster.broker_addr.startswith("127.0.0.1:")
        with Peer(cluster.broker_addr) as broker:
            assert broker.send("T1").code == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"delay_levels": "1s nonsense"}, "delay levels '1s nonsense'"),
        ({"delay_levels": "5"}, "delay levels '5'"),
        ({"broker_name": "a b"}, "the broker name 'a b'"),
        ({"flush": "maybe"}, "flush must be 'async' or 'sync', not 'maybe'"),
        ({"broker_port": 70_000}, "broker_port must be a whole number from 0 to 65535, not 70000"),
        ({"namesrv_port": -1}, "namesrv_port must be a whole number from 0 to 65535, not -1"),
        (
            {"offset_persist_interval_ms": 0},
            "offset_persist_interval_ms must be a whole number from 1 on, not 0",
        ),
        ({"retention": RetentionConfig(file_reserved_ms=-1)}, "file_reserved_ms -1"),
        ({"retention": RetentionConfig(delete_when_hours=(4, 24))}, "(4, 24)"),
        ({"retention": RetentionConfig(disk_warning_ratio=75)}, "disk_warning_ratio 75"),
        (
            {"commit_log_file_bytes": 100},
            "commit_log_file_bytes must be a whole number from 4096 on or None, not 100",
        ),
        ({"flushing": "sync"}, "did you mean 'flush'"),
        ({"brokers": 27}, "brokers must be a whole number from 0 to 26, not 27"),
        ({"default_topic_queue_nums": "8"}, "must be a whole number from 1 on, not '8'"),
        ({"flushDiskType": "SYNC_FLUSH"}, "no setting 'flushDiskType'; did you mean 'flush'?"),
        ({"retention": "3d"}, "retention must be a RetentionConfig or None, not '3d'"),
        ({"namesrv_addrs": ("nowhere",)}, "'nowhere'"),
        ({"namesrv_addrs": ("127.0.0.1:9876",), "brokers": 0}, "there is nothing to start"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EmbeddedCluster(**given)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_value_sets_up_any_number_of_clusters(tmp_path: Path) -> None:
    """What is given by name wins over the value; where the messages lie is no part of it."""
    retention = RetentionConfig(file_reserved_ms=3_600_000)
    settings = EmbeddedSettings(
        store_config=SMALL_STORE, retention=retention, offset_persist_interval_ms=20
    )
    with (
        EmbeddedCluster(tmp_path / "a", settings) as first,
        EmbeddedCluster(tmp_path / "b", settings, flush="sync") as second,
    ):
        assert first.broker.config.flush == "async"
        assert second.broker.config.flush == "sync"
        assert first.broker_addr != second.broker_addr
        for cluster in (first, second):
            assert cluster.broker.store.config.retention == retention
            assert cluster.broker.store.config.index_slots == SMALL_STORE.index_slots
            assert cluster.broker.config.offset_persist_interval_ms == 20
    assert settings == settings.changed(flush="async")


def brokers_of(namesrv: Peer, topic: str) -> dict[str, str]:
    """Return the brokers a topic is on, by name."""
    answer = namesrv.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
    route = TopicRouteData.decode(bytes(answer.body))
    return {data.broker_name: data.broker_addrs[0] for data in route.broker_datas}


def test_topic_can_be_on_several_brokers(tmp_path: Path) -> None:
    """Each with a store of its own; a restart finds them again."""
    for _ in range(2):
        with start(tmp_path / "s", brokers=3) as cluster, Peer(cluster.namesrv_addr) as namesrv:
            cluster.create_topic("T1", queues=2)
            found = brokers_of(namesrv, "T1")
            assert list(found) == ["broker-a", "broker-b", "broker-c"]
            assert tuple(found.values()) == cluster.broker_addrs
            for address in cluster.broker_addrs:
                with Peer(address) as broker:
                    assert broker.send("T1", b"x").code == 0
    for name in found:
        assert (tmp_path / "s" / name / "commitlog").is_dir()
    with start(tmp_path / "s" / "broker-b") as alone, Peer(alone.broker_addr) as broker:
        assert [message.body for message in broker.messages("T1")] == [b"x", b"x"]


def test_broker_joins_a_name_server_and_leaves_it() -> None:
    with (
        EmbeddedCluster(brokers=0) as nameserver,
        Peer(nameserver.namesrv_addr) as namesrv,
    ):
        assert nameserver.ready_info.broker_addr == ""
        for use in (lambda: nameserver.broker_addr, lambda: nameserver.create_topic("T1")):
            with pytest.raises(ClientStateError, match="brokers=0"):
                use()
        settings = EmbeddedSettings(namesrv_addrs=(nameserver.namesrv_addr,))
        with EmbeddedCluster(settings=settings) as first:
            assert first.namesrv_addr == nameserver.namesrv_addr
            with pytest.raises(ClientStateError, match="was joined"):
                _ = first.nameserver
            with EmbeddedCluster(
                settings=settings, broker_name="other", cluster_name="Second"
            ) as second:
                first.create_topic("T1")
                second.create_topic("T1")
                assert brokers_of(namesrv, "T1") == {
                    "broker-a": first.broker_addr,
                    "other": second.broker_addr,
                }
            assert brokers_of(namesrv, "T1") == {"broker-a": first.broker_addr}


def test_brokers_of_given_ports_stand_apart() -> None:
    settings = EmbeddedSettings(broker_port=12_000, broker_name="shop", namesrv_addrs=("h:1",))
    third = settings.of_broker(2, ("h:1",))
    assert (third.broker_name, third.broker_port) == ("shop-3", 12_020)


SERVE = """
import sys
from pathlib import Path
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster, serve
cluster = EmbeddedCluster(Path(sys.argv[1]), store_config=SMALL_STORE)
serve(cluster, lambda info: (sys.stdout.write(info.broker_addr + "\\n"), sys.stdout.flush()))
"""


def test_serve_shows_the_collector_nothing_of_what_is_loaded(tmp_path: Path) -> None:
    """Visiting it all took 20 to 40 ms, whenever a peer's requests had brought enough objects."""
    shows = SERVE.replace("info.broker_addr", "str(gc.get_freeze_count())").replace(
        "import sys", "import gc, os, signal, sys"
    )
    shows = shows.replace("sys.stdout.flush()", "os.kill(os.getpid(), signal.SIGTERM)")
    done = subprocess.run(
        [sys.executable, "-c", shows, str(tmp_path / "s")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert int(done.stdout) > 10_000


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_serve_stops_cleanly_on_a_signal(tmp_path: Path, kind: signal.Signals) -> None:
    """A signal ends it with exit code 0 and a store that was closed, held pulls included."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        with Peer(process.stdout.readline().strip()) as broker:
            broker.send("T1", b"one")
            waiting = broker.submit_pull("T1", 1, suspend_ms=60_000)
            broker.offset("cg", "T1")
            os.kill(process.pid, kind)
            assert broker.answer(waiting).code == 19
            broker.wait_end()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert not (tmp_path / "s" / "abort").exists()
    with start(tmp_path / "s") as cluster, Peer(cluster.broker_addr) as broker:
        assert [m.body for m in broker.messages("T1")] == [b"one"]


def test_serve_reports_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cluster = start(tmp_path / "s", broker_port=taken.getsockname()[1])
        with pytest.raises(PortInUseError):
            serve(cluster, lambda _: None)


def damage_first_message(store_dir: Path) -> None:
    """Change one byte in the body of the first of several messages."""
    log = store_dir / "commitlog" / "00000000000000000000"
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(data.index(b"the first body"))
        file.write(b"?")


def test_a_damaged_store_is_refused_until_repair_is_asked_for(tmp_path: Path) -> None:
    """Nothing is deleted: the damage is set aside, what follows is kept and the store goes on."""
    with start(tmp_path) as cluster, Peer(cluster.broker_addr) as broker:
        for body in (b"the first body", b"the second body"):
            assert broker.send("T1", body, queue_id=0).code == 0
    damage_first_message(tmp_path)
    with pytest.raises(StoreDamagedError, match="repair"):
        start(tmp_path).start()
    with start(tmp_path, repair=True) as cluster, Peer(cluster.broker_addr) as broker:
        kept = b"".join(path.read_bytes() for path in (tmp_path / "quarantine").iterdir())
        assert b"?he first body" in kept
        assert broker.send("T1", b"a new one", queue_id=0).code == 0
        left = decode_messages(bytes(broker.pull("T1", 1).body))
        assert [m.body for m in left] == [b"the second body", b"a new one"]


def test_expired_files_are_looked_for_a_minute_after_the_start() -> None:
    """Covers C-439: the timer exists and what it calls can be called."""
    with EmbeddedCluster() as cluster:
        broker = cluster.broker
        assert "retention" in broker._timers
        broker._delete_expired()

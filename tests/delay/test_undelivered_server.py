"""Delayed messages that cannot be delivered: nobody waits behind them, and nobody loses them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from rocketstream.protocol import names
from rocketstream.protocol.bodies import KVTable, SubscriptionGroupConfig
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.headers import EndTransactionRequestHeader
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.server.broker.core.schedule import DelayedEntry
from rocketstream.server.broker.messages import InnerMessage, MessageWriter
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.server.store import Files
from rocketstream.testing import ManualClock
from tests.kits.peer import BORN_MS, Peer, ext
from tests.plugins.peers import MakeCluster
from tests.plugins.waiting import wait_until

LEVELS = " ".join(["1ms"] * 18)
LONG = "g" * 249


class Refusing(Files):
    """Makes no directory for one topic, so many times."""

    def __init__(self) -> None:
        self.topic = ""
        self.times = 0

    def make_directory(self, path: Path) -> None:
        if self.times > 0 and self.topic and self.topic in path.parts:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        super().make_directory(path)


@pytest.fixture
def disk() -> Refusing:
    return Refusing()


@pytest.fixture
def rocketmq_cluster(tmp_path: Path, disk: Refusing) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        tmp_path, store_config=SMALL_STORE, files=disk, delay_levels=LEVELS
    ) as cluster:
        yield cluster


def on_its_loop(cluster: EmbeddedCluster, call: Callable[[], object]) -> None:
    """Call something on the loop of a broker."""

    async def called() -> None:
        call()

    thread = cluster._thread
    assert thread is not None
    thread.run(called())


def put_delayed(cluster: EmbeddedCluster, topic: str, body: bytes) -> None:
    """Leave a delayed message in the store that no request could bring there any more."""

    def put() -> None:
        controller = cluster.broker.controller
        host = controller.store_host_bytes
        properties = {"DELAY": "1", "UNIQ_KEY": "U1"}
        MessageWriter(controller).put(
            InnerMessage(topic, 0, body, properties, 0, 0, BORN_MS, host, host)
        )

    on_its_loop(cluster, put)


def undelivered(peer: Peer) -> str | None:
    body = peer.call(RequestCode.GET_BROKER_RUNTIME_INFO).body
    return KVTable.decode(body).table.get("delayedMessagesUndelivered")


@pytest.mark.parametrize("target", [names.retry_topic(LONG), "SCHEDULE_TOPIC_XXXX", "a/b"])
def test_message_without_a_possible_target_is_set_aside(
    rocketmq_cluster: EmbeddedCluster,
    broker_peer: Peer,
    target: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-405, C-408: the level goes on, the message is kept where it is found, and told."""
    assert undelivered(broker_peer) is None
    put_delayed(rocketmq_cluster, target, b"bad")
    broker_peer.send("T1", b"good", properties={"DELAY": "1"})
    assert broker_peer.wait_message("T1", 0).body == b"good"
    (parked,) = broker_peer.messages(names.UNDELIVERED_TOPIC)
    assert parked.body == b"bad"
    assert parked.properties["REAL_TOPIC"] == target
    assert undelivered(broker_peer) == "1"
    assert "condition=DELAYED_MESSAGE_UNDELIVERED" in caplog.text


def test_queue_that_refuses_for_a_moment_gets_its_message(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, disk: Refusing
) -> None:
    """Covers C-408: tried again, in order."""
    disk.topic, disk.times = "T2", 3
    broker_peer.send("T2", b"1", properties={"DELAY": "1"})
    broker_peer.send("T2", b"2", properties={"DELAY": "1"})
    assert [broker_peer.wait_message("T2", number).body for number in range(2)] == [b"1", b"2"]
    assert undelivered(broker_peer) is None


def test_queue_that_refuses_for_long_holds_up_nobody_else(
    rocketmq_cluster: EmbeddedCluster,
    broker_peer: Peer,
    disk: Refusing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketstream.server.broker.schedule_service.TRIES_MAX", 3)
    disk.topic, disk.times = "T2", 4
    for body in (b"1", b"2"):
        broker_peer.send("T2", body, properties={"DELAY": "1"})
    broker_peer.send("T1", b"good", properties={"DELAY": "1"})
    assert broker_peer.wait_message("T1", 0).body == b"good"
    assert [m.body for m in broker_peer.messages(names.UNDELIVERED_TOPIC)] == [b"1", b"2"]
    broker_peer.send("T2", b"3", properties={"DELAY": "1"})
    assert broker_peer.wait_message("T2", 0).body == b"3"


def test_mistake_of_ours_does_not_end_a_level(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-405: what was not expected is tried again."""
    monkeypatch.setattr("rocketstream.server.broker.schedule_service.INTERNAL_PAUSE_S", 0.01)
    schedule = rocketmq_cluster.broker._schedule
    assert schedule is not None
    deliver, failures = schedule._deliver, [RuntimeError("a mistake")]

    def failing(entry: DelayedEntry, level_queue: int) -> None:
        if failures:
            raise failures.pop()
        deliver(entry, level_queue)

    monkeypatch.setattr(schedule, "_deliver", failing)
    broker_peer.send("T1", b"good", properties={"DELAY": "1"})
    assert broker_peer.wait_message("T1", 0).body == b"good"


def test_group_that_could_never_retry_is_refused_at_once(broker_peer: Peer) -> None:
    """Its retry topic cannot be a directory: better told by the first heartbeat than never."""
    heartbeat = broker_peer.heartbeat("c1", group=LONG, topics={"T1": "*"})
    assert heartbeat.code == ResponseCode.SYSTEM_ERROR
    assert "248 are the most" in (heartbeat.remark or "")
    config = SubscriptionGroupConfig(group_name=LONG).encode()
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config).code != 0
    broker_peer.send("T1", b"x")
    sent_back = broker_peer.send_back(LONG, broker_peer.messages("T1")[0])
    assert sent_back.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "248 are the most" in (sent_back.remark or "")
    assert broker_peer.heartbeat("c1", group="g" * 248, topics={"T1": "*"}).code == 0
    assert broker_peer.send_back("g" * 248, broker_peer.messages("T1")[0]).code == 0
    wait_until(lambda: broker_peer.messages(names.retry_topic("g" * 248)), "the retry")


def test_fewer_levels_at_the_next_start_strand_nobody(tmp_path: Path) -> None:
    """A message of the third of three levels is due when it was said to be, with one level left."""
    clock = ManualClock()
    before = EmbeddedCluster(tmp_path, clock=clock, delay_levels="1ms 1ms 1h")
    with before, Peer(before.broker_addr) as peer:
        peer.send("T1", b"late", properties={"DELAY": "3"})
        assert peer.messages("T1") == []
    clock.advance(3_600_000)
    after = EmbeddedCluster(tmp_path, clock=clock, delay_levels="1ms")
    with after, Peer(after.broker_addr) as peer:
        assert peer.wait_message("T1", 0).body == b"late"


def test_messages_that_waited_are_not_delivered_to_a_queue_that_is_gone(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """A delayed and a half message of queue 3; meanwhile the topic is left with two queues."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock, delay_levels="1h")
    with Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"late", queue_id=3, properties={"DELAY": "1"})
        waits = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1"}
        half = ext(peer.send("T1", b"half", queue_id=3, properties=waits, sys_flag=4))
        two = {
            "topic": "T1", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=two).code == 0
        end = EndTransactionRequestHeader(
            producer_group="pg",
            tran_state_table_offset=int(half["queueOffset"]),
            commit_log_offset=decode_offset_msg_id(half["msgId"])[2],
            commit_or_rollback=MessageSysFlag.TRANSACTION_COMMIT,
            msg_id="U1",
        )
        assert peer.call(RequestCode.END_TRANSACTION, end).code == 0
        assert peer.wait_message("T1", 0, queue_id=1).body == b"half"
        clock.advance(3_600_000)
        schedule = cluster.broker._schedule
        assert schedule is not None
        on_its_loop(cluster, partial(schedule._run, 1))
        assert peer.wait_message("T1", 1, queue_id=1).body == b"late"

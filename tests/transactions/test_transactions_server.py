"""Transactional messages: half messages, commit, rollback, checks, restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.record import HEAD_V4, RecordFields, encode_record
from rocketstream.server.broker import transaction_service
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.store import StoreConfig
from rocketstream.server.store.consume_queue import ConsumeQueue
from rocketstream.testing import ManualClock
from tests.kits.peer import BORN_MS, Peer, ext
from tests.plugins.peers import MakeCluster

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"
COMMIT, ROLLBACK = 8, 12
NEVER_MS = 3_600_000
reserve = ConsumeQueue.reserve


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rocketmq_cluster(rocketmq_cluster_factory: MakeCluster, clock: ManualClock) -> EmbeddedCluster:
    """Rounds of checks happen when a test asks for them."""
    return rocketmq_cluster_factory(clock=clock, transaction_check_interval_ms=NEVER_MS)


def prepare(broker: Peer, body: bytes = b"half", *, key: str = "U1", **more: str) -> dict[str, str]:
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": key, **more}
    answer = broker.send("T1", body, queue_id=2, tags="TagA", properties=properties, sys_flag=4)
    assert answer.code == 0, answer
    return {**ext(answer), "key": key}


def end(
    broker: Peer,
    half: dict[str, str],
    outcome: int,
    *,
    group: str = "pg",
    queue_offset: int | None = None,
    physical: int | None = None,
    key: str | None = None,
) -> RemotingCommand:
    _, _, offset = decode_offset_msg_id(half["msgId"])
    header = EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=int(half["queueOffset"]) if queue_offset is None else queue_offset,
        commit_log_offset=offset if physical is None else physical,
        commit_or_rollback=outcome,
        msg_id=half["key"] if key is None else key,
    )
    return broker.call(RequestCode.END_TRANSACTION, header)


def end_checked(broker: Peer, asked: RemotingCommand, outcome: int) -> RemotingCommand:
    """Answer a check the way a client does."""
    check = asked.header(CheckTransactionStateRequestHeader)
    header = EndTransactionRequestHeader(
        producer_group="pg",
        tran_state_table_offset=check.tran_state_table_offset,
        commit_log_offset=check.commit_log_offset,
        commit_or_rollback=outcome,
        msg_id=check.msg_id or "",
        from_transaction_check=True,
        transaction_id=check.transaction_id,
    )
    return broker.call(RequestCode.END_TRANSACTION, header)


def checked(broker: Peer) -> tuple[RemotingCommand, MessageExt]:
    asked = broker.next_asked(RequestCode.CHECK_TRANSACTION_STATE)
    return asked, decode_message(bytes(asked.body))


def test_half_message_is_not_seen_before_its_commit(broker_peer: Peer) -> None:
    """Covers C-412, C-413, C-414, C-415, C-417."""
    half = prepare(broker_peer, WAIT="true", u="v")
    assert broker_peer.messages("T1", queue_id=2) == []
    (stored,) = broker_peer.messages(HALF)
    assert int(half["queueOffset"]) == stored.queue_offset == 0
    properties = dict(stored.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T1", "2")
    assert properties["WAIT"] == "true"
    assert stored.sys_flag & MessageSysFlag.TRANSACTION_MASK == 0

    assert end(broker_peer, half, COMMIT).code == 0

    (message,) = broker_peer.messages("T1", queue_id=2)
    assert message.body == b"half"
    assert message.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == stored.commit_log_offset
    assert message.born_timestamp == stored.born_timestamp
    assert dict(message.properties) == properties
    assert broker_peer.pull("T1", 0, queue_id=2, expression="TagA").code == 0
    (op,) = broker_peer.messages(OP)
    assert (op.body, op.properties["TAGS"], op.queue_id) == (b"0", "d", 0)


def test_rolled_back_message_is_never_delivered(broker_peer: Peer) -> None:
    """Covers C-413, C-416."""
    half = prepare(broker_peer)
    assert end(broker_peer, half, ROLLBACK).code == 0
    assert broker_peer.messages("T1", queue_id=2) == []
    assert [op.body for op in broker_peer.messages(OP)] == [b"0"]


def test_a_record_in_a_body_ends_nobodys_transaction(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Its sender knows where it will lie; it names the place of another group's half message."""
    half = prepare(broker_peer)
    inside = rocketmq_cluster.broker.store.physical_max_offset + HEAD_V4.size
    forged = RecordFields(
        HALF, 0, 0, 0, BORN_MS, ("127.0.0.1", 1), BORN_MS, ("127.0.0.1", 1), 0, 0, b"forged",
        "REAL_TOPIC\x01mine\x02REAL_QID\x010\x02PGROUP\x01mg", int(half["queueOffset"]), inside,
    )  # fmt: skip
    broker_peer.send("mine", bytes(encode_record(forged)))
    refused = end(broker_peer, half, ROLLBACK, group="mg", physical=inside)
    assert refused.remark == "Find prepared transaction message failed"

    assert end(broker_peer, half, COMMIT).code == 0
    assert [message.body for message in broker_peer.messages("T1", queue_id=2)] == [b"half"]


def test_undecided_end_is_not_answered(broker_peer: Peer) -> None:
    """Covers C-413: state 0 changes nothing; the request after it is answered."""
    half = prepare(broker_peer)
    _, _, offset = decode_offset_msg_id(half["msgId"])
    header = EndTransactionRequestHeader("pg", 0, offset, 0, "U1")
    opaque = broker_peer.submit(RemotingCommand.request(RequestCode.END_TRANSACTION, header))
    broker_peer.offset("g", "T1")
    assert not broker_peer.has_answer(opaque)
    assert broker_peer.messages(OP) == []


def test_end_that_does_not_fit_its_half_message_is_refused(broker_peer: Peer) -> None:
    """Covers C-414."""
    half = prepare(broker_peer)
    plain = ext(broker_peer.send("T1", b"plain", properties={"PGROUP": "pg"}))
    _, _, plain_offset = decode_offset_msg_id(plain["msgId"])
    refused = {
        "The producer group wrong": end(broker_peer, half, COMMIT, group="other"),
        "The transaction state table offset wrong": end(broker_peer, half, COMMIT, queue_offset=9),
        "Find prepared transaction message failed": end(broker_peer, half, COMMIT, physical=10**9),
    }
    for remark, answer in refused.items():
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    for physical in (-1, 1, plain_offset):
        assert end(broker_peer, half, COMMIT, physical=physical).code == ResponseCode.SYSTEM_ERROR
    assert broker_peer.messages("T1", queue_id=2) == []


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_transaction_in_the_place_of_a_lost_one_is_not_ended(
    broker_peer: Peer, outcome: int
) -> None:
    """Another half of the group had its places after a power loss: nobody had decided that one."""
    half = prepare(broker_peer, key="U2")
    refused = end(broker_peer, half, outcome, key="U1")
    assert refused.remark == "Find prepared transaction message failed"
    assert broker_peer.messages(OP) == []
    assert end(broker_peer, half, outcome, key=half["msgId"]).code == 0


def test_second_end_changes_nothing(broker_peer: Peer) -> None:
    """Covers C-606: a repeated commit does not deliver again, nor one after a rollback."""
    first, second = prepare(broker_peer, key="U1"), prepare(broker_peer, key="U2")
    assert [end(broker_peer, first, COMMIT).code for _ in range(2)] == [0, 0]
    assert [end(broker_peer, second, outcome).code for outcome in (ROLLBACK, COMMIT)] == [0, 0]
    assert len(broker_peer.messages("T1", queue_id=2)) == 1
    assert len(broker_peer.messages(OP)) == 2


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_an_end_without_room_for_its_op_message_stores_nothing(
    broker_peer: Peer, monkeypatch: pytest.MonkeyPatch, outcome: int
) -> None:
    """Covers C-415, C-417: what comes between the two would deliver the message once more."""
    half = prepare(broker_peer)
    with monkeypatch.context() as full:
        full.setattr(ConsumeQueue, "reserve", _no_room)
        refused = end(broker_peer, half, outcome)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker_peer.messages("T1", queue_id=2) == []

    assert end(broker_peer, half, outcome).code == 0
    assert len(broker_peer.messages("T1", queue_id=2)) == (outcome == COMMIT)
    assert [op.body for op in broker_peer.messages(OP)] == [b"0"]


def test_a_message_that_fills_a_file_of_the_log_is_committed(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers C-415, C-417: the op message beside it needs a write of its own."""
    store = StoreConfig(commit_log_file_bytes=4_096)
    cluster = rocketmq_cluster_factory(store_config=store, transaction_check_interval_ms=NEVER_MS)
    with Peer(cluster.broker_addr) as broker:
        half = prepare(broker, b"x" * 3_700)
        assert end(broker, half, COMMIT).code == 0
        assert [len(each.body) for each in broker.messages("T1", queue_id=2)] == [3_700]
        assert [op.body for op in broker.messages(OP)] == [b"0"]


def _no_room(queue: ConsumeQueue, count: int = 1) -> None:
    if queue.topic == OP:
        raise DiskFullError(f"no room for {count} units", directory=str(queue.directory))
    reserve(queue, count)


def test_broker_can_refuse_transactions(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-412: rejectTransactionMessage."""
    cluster = rocketmq_cluster_factory(reject_transaction_message=True)
    with Peer(cluster.broker_addr) as broker:
        answer = broker.send("T1", properties={"TRAN_MSG": "true"})
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (answer.remark or "")
        assert broker.send("T1").code == 0


def test_delay_of_a_half_message_is_dropped_and_batches_are_refused(broker_peer: Peer) -> None:
    """Covers C-420."""
    half = prepare(broker_peer, DELAY="3")
    end(broker_peer, half, COMMIT)
    (message,) = broker_peer.messages("T1", queue_id=2)
    assert "DELAY" not in message.properties


def test_producer_is_asked_about_an_undecided_message(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-418, C-419: after 6 s, with the user's topic and the place of the copy."""
    prepare(broker_peer, b"unsure", WAIT="true")
    broker_peer.heartbeat("c1", producer="pg")
    clock.advance(5_000)
    rocketmq_cluster.check_transactions()
    clock.advance(5_000)
    assert broker_peer.messages(OP) == []
    rocketmq_cluster.check_transactions()

    asked, message = checked(broker_peer)
    header = asked.header(CheckTransactionStateRequestHeader)
    assert asked.is_oneway
    assert (message.topic, message.queue_id, message.body) == ("T1", 2, b"unsure")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert message.properties["WAIT"] == "false"
    assert (header.msg_id, header.transaction_id) == ("U1", "U1")
    _, _, offset = decode_offset_msg_id(header.offset_msg_id or "")
    copy = broker_peer.messages(HALF)[1]
    assert offset == header.commit_log_offset == copy.commit_log_offset
    assert header.tran_state_table_offset == copy.queue_offset == 1

    assert end_checked(broker_peer, asked, COMMIT).code == 0
    (delivered,) = broker_peer.messages("T1", queue_id=2)
    assert delivered.properties["TRANSACTION_CHECK_TIMES"] == "1"
    clock.advance(60_000)
    rocketmq_cluster.check_transactions()
    assert len(broker_peer.messages(HALF)) == 2
    assert broker_peer.offset(GROUP, HALF) == 2
    assert broker_peer.offset(GROUP, OP) == 2


def test_undecided_message_is_asked_about_until_it_is_given_up(
    rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """Covers C-418, C-419: TRANSACTION_CHECK_TIMES counts up to the most allowed."""
    cluster = rocketmq_cluster_factory(
        clock=clock, transaction_check_interval_ms=NEVER_MS, transaction_check_max=3
    )
    with Peer(cluster.broker_addr) as broker:
        broker.heartbeat("c1", producer="pg")
        prepare(broker)
        counts = []
        for _ in range(3):
            clock.advance(10_000)
            cluster.check_transactions()
            asked, message = checked(broker)
            counts.append(message.properties["TRANSACTION_CHECK_TIMES"])
        assert counts == ["1", "2", "3"]
        clock.advance(10_000)
        cluster.check_transactions()
        (given_up,) = broker.messages(GIVEN_UP)
        assert given_up.properties["REAL_TOPIC"] == "T1"
        assert broker.asked == []
        # A decision that comes even later is still carried out.
        assert end_checked(broker, asked, COMMIT).code == 0
        assert len(broker.messages("T1", queue_id=2)) == 1


def test_check_without_a_producer_does_not_count(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-418: an application that is down for an hour finds its messages undecided."""
    prepare(broker_peer)
    for _ in range(20):
        clock.advance(60_000)
        rocketmq_cluster.check_transactions()
    assert len(broker_peer.messages(HALF)) == 1
    broker_peer.heartbeat("c1", producer="pg")
    rocketmq_cluster.check_transactions()
    asked, message = checked(broker_peer)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert end_checked(broker_peer, asked, ROLLBACK).code == 0


def test_immunity_postpones_the_first_check(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-418: CHECK_IMMUNITY_TIME_IN_SECONDS of the message, others are not held up."""
    broker_peer.heartbeat("c1", producer="pg")
    prepare(broker_peer, b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="30")
    prepare(broker_peer, b"plain", key="U2")
    clock.advance(10_000)
    rocketmq_cluster.check_transactions()
    assert checked(broker_peer)[1].body == b"plain"
    assert broker_peer.asked == []
    clock.advance(20_001)
    rocketmq_cluster.check_transactions()
    assert {checked(broker_peer)[1].body for _ in range(2)} == {b"plain", b"immune"}


def test_wall_clock_that_jumps_gives_no_transaction_up(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-418: how long a message waits is a duration; 73 h on the wall are not one."""
    prepare(broker_peer)
    broker_peer.heartbeat("c1", producer="pg")
    for hours in (73, -146):
        clock.jump(hours * 3_600_000)
        rocketmq_cluster.check_transactions()
        assert broker_peer.messages(GIVEN_UP) == []
        assert broker_peer.messages(OP) == []
    clock.advance(6_000)
    rocketmq_cluster.check_transactions()
    assert checked(broker_peer)[1].body == b"half"


def test_restart_after_a_leap_of_the_wall_clock_gives_no_transaction_up(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """Covers C-418: the stamps of the log have leapt too; what nobody waited is no waiting."""
    given = {
        "store_dir": tmp_path / "store",
        "clock": clock,
        "transaction_check_interval_ms": NEVER_MS,
    }
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        prepare(broker)
        clock.jump(80 * 3_600_000)
        broker.send("T1")
    cluster.close()
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        broker.heartbeat("c1", producer="pg")
        clock.advance(6_000)
        cluster.check_transactions()
        assert broker.messages(GIVEN_UP) == []
        assert checked(broker)[1].body == b"half"


def test_producers_of_a_group_take_turns(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-348, C-418: one live channel per check, in turn; other groups are not asked."""
    with (
        Peer(rocketmq_cluster.broker_addr) as second,
        Peer(rocketmq_cluster.broker_addr) as stranger,
    ):
        broker_peer.heartbeat("c1", producer="pg")
        second.heartbeat("c2", producer="pg")
        stranger.heartbeat("c3", producer="other")
        ids = [f"U{number}" for number in range(4)]
        for each in ids:
            prepare(broker_peer, key=each)
        for _ in range(2):
            clock.advance(10_000)
            rocketmq_cluster.check_transactions()
        for peer in (broker_peer, second):
            assert sorted(checked(peer)[1].properties["UNIQ_KEY"] for _ in ids) == ids
        stranger.offset("g", "T1")
        assert stranger.asked == []


def test_late_answer_for_the_first_copy_ends_the_message(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-606: the producer's own end arrives after the message was put back."""
    half = prepare(broker_peer)
    broker_peer.heartbeat("c1", producer="pg")
    clock.advance(10_000)
    rocketmq_cluster.check_transactions()
    asked, _ = checked(broker_peer)
    assert end(broker_peer, half, COMMIT).code == 0
    assert end_checked(broker_peer, asked, COMMIT).code == 0
    assert len(broker_peer.messages("T1", queue_id=2)) == 1
    clock.advance(60_000)
    rocketmq_cluster.check_transactions()
    assert broker_peer.asked == []


@pytest.mark.parametrize("orderly", [True, False])
def test_restart_keeps_what_is_undecided_and_nothing_else(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, clock: ManualClock, orderly: bool
) -> None:
    """Covers C-418: also when the offsets of the check were not written any more."""
    given = {
        "store_dir": tmp_path / "store",
        "clock": clock,
        "transaction_check_interval_ms": NEVER_MS,
    }
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        done = prepare(broker, b"done")
        undone = prepare(broker, b"undone", key="U2")
        open_half = prepare(broker, b"open", key="U3")
        end(broker, done, COMMIT)
        end(broker, undone, ROLLBACK)
    offsets = tmp_path / "store" / "config" / "consumerOffset.json"
    cluster.close()
    if not orderly:
        offsets.unlink()

    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        broker.heartbeat("c1", producer="pg")
        clock.advance(10_000)
        cluster.check_transactions()
        asked, message = checked(broker)
        assert message.body == b"open"
        assert broker.asked == []
        assert end_checked(broker, asked, COMMIT).code == 0
        assert end(broker, open_half, COMMIT).code == 0
        assert end(broker, done, COMMIT).code == 0
        bodies = [m.body for m in broker.messages("T1", queue_id=2)]
        assert bodies[:2] == [b"done", b"open"]
        assert b"undone" not in bodies


def test_the_first_end_counts_after_a_restart_too(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """Covers C-606: the ends before what may be undecided are not read again."""
    given = {
        "store_dir": tmp_path / "store",
        "clock": clock,
        "transaction_check_interval_ms": NEVER_MS,
    }
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        done, undone = prepare(broker, b"done"), prepare(broker, b"undone", key="U2")
        end(broker, done, COMMIT)
        end(broker, undone, ROLLBACK)
    cluster.close()

    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        assert [end(broker, half, COMMIT).code for half in (done, undone)] == [0, 0]
        assert [message.body for message in broker.messages("T1", queue_id=2)] == [b"done"]
        later = prepare(broker, b"later", key="U3")
        assert [end(broker, later, COMMIT).code for _ in range(2)] == [0, 0]
        assert len(broker.messages("T1", queue_id=2)) == 2


@pytest.mark.parametrize("most", [0, 1])
def test_what_was_put_back_or_given_up_can_be_committed_after_a_restart(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, clock: ManualClock, most: int
) -> None:
    """Covers C-418: nobody has decided about it, though its place is passed."""
    given = {
        "store_dir": tmp_path / "store",
        "clock": clock,
        "transaction_check_interval_ms": NEVER_MS,
        "transaction_check_max": most,
    }
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        half = prepare(broker)
        broker.heartbeat("c1", producer="pg")
        clock.advance(10_000)
        cluster.check_transactions()
        assert broker.offset(GROUP, HALF) == 1
        assert len(broker.messages(GIVEN_UP)) == 1 - most
    cluster.close()

    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        assert end(broker, half, COMMIT).code == 0
        assert [message.body for message in broker.messages("T1", queue_id=2)] == [b"half"]


def test_a_producer_takes_nobodys_place_by_the_properties_of_its_own_half_message(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """The broker alone says that a message was put back; a restart would believe it."""
    given = {
        "store_dir": tmp_path / "store",
        "clock": clock,
        "transaction_check_interval_ms": NEVER_MS,
    }
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        theirs = prepare(broker, b"theirs")
        for more in (
            {"TRAN_PREPARED_QUEUE_OFFSET": theirs["queueOffset"]},
            {"TRANSACTION_CHECK_TIMES": "1"},
        ):
            assert end(broker, prepare(broker, b"theirs", **more), ROLLBACK).code == 0
    cluster.close()

    cluster = rocketmq_cluster_factory(**given)
    assert cluster.broker.undecided_transactions == 1
    with Peer(cluster.broker_addr) as broker:
        assert end(broker, theirs, COMMIT).code == 0
        assert [message.body for message in broker.messages("T1", queue_id=2)] == [b"theirs"]


def test_restart_asks_again_about_what_was_put_back(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """Covers C-418: what says that a place is left is no decision about the message, also when the
    offsets of the check were not written any more."""
    given = {
        "store_dir": tmp_path / "store",
        "clock": clock,
        "transaction_check_interval_ms": NEVER_MS,
    }
    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        prepare(broker, b"first", key="U1")
        prepare(broker, b"second", key="U2")
        broker.heartbeat("c1", producer="pg")
        clock.advance(10_000)
        cluster.check_transactions()
        checked(broker)
        asked, _ = checked(broker)
        assert end_checked(broker, asked, ROLLBACK).code == 0
    cluster.close()
    (tmp_path / "store" / "config" / "consumerOffset.json").unlink()

    cluster = rocketmq_cluster_factory(**given)
    with Peer(cluster.broker_addr) as broker:
        broker.heartbeat("c1", producer="pg")
        clock.advance(10_000)
        cluster.check_transactions()
        asked, message = checked(broker)
        assert message.body == b"first"
        assert broker.asked == []
        assert end_checked(broker, asked, COMMIT).code == 0
        assert [m.body for m in broker.messages("T1", queue_id=2)] == [b"first"]


def test_message_without_room_for_a_count_holds_up_nobody(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, clock: ManualClock
) -> None:
    """Covers C-418: upstream tries to put such a message back for a minute in every round."""
    broker_peer.heartbeat("c1", producer="pg")
    fixed = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1"}
    most = next(
        size
        for size in range(32_767, 0, -1)
        if broker_peer.send("T1", properties={**fixed, "u": "x" * size}, sys_flag=4).code == 0
    )
    assert most > 32_000
    prepare(broker_peer, b"next", key="U2")
    clock.advance(10_000)
    rocketmq_cluster.check_transactions()
    assert checked(broker_peer)[1].body == b"next"
    assert len(broker_peer.messages(HALF)) == 3


def test_long_immunity_does_not_hold_up_the_offsets_for_ever(
    rocketmq_cluster: EmbeddedCluster,
    broker_peer: Peer,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers C-418, C-606: with many ends behind it an immune message goes to the end."""
    monkeypatch.setattr(transaction_service, "BACKLOG_MAX", 2)
    broker_peer.heartbeat("c1", producer="pg")
    immune = prepare(broker_peer, b"immune", key="U0", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    for number in range(4):
        end(broker_peer, prepare(broker_peer, b"done", key=f"U{number + 1}"), COMMIT)
    clock.advance(10_000)
    rocketmq_cluster.check_transactions()
    copy = broker_peer.messages(HALF)[5]
    assert copy.body == b"immune"
    assert "TRANSACTION_CHECK_TIMES" not in copy.properties
    assert broker_peer.asked == []
    assert (broker_peer.offset(GROUP, HALF), broker_peer.offset(GROUP, OP)) == (5, 5)
    # The producer knows only the first place.
    assert end(broker_peer, immune, COMMIT).code == 0
    clock.advance(10_000_000)
    rocketmq_cluster.check_transactions()
    assert broker_peer.offset(GROUP, HALF) == 6
    bodies = [m.body for m in broker_peer.messages("T1", queue_id=2)]
    assert bodies == [b"done"] * 4 + [b"immune"]


def test_round_leaves_what_it_put_back_for_the_next(
    rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """Covers C-418: one question per message and round, also when nothing is too young."""
    cluster = rocketmq_cluster_factory(
        clock=clock, transaction_timeout_ms=0, transaction_check_interval_ms=NEVER_MS
    )
    with Peer(cluster.broker_addr) as broker:
        broker.heartbeat("c1", producer="pg")
        prepare(broker)
        cluster.check_transactions()
        checked(broker)
        assert len(broker.messages(HALF)) == 2
        assert broker.asked == []


def test_a_round_that_meets_a_half_message_before_its_fsync_leaves_it_open(
    rocketmq_cluster_factory: MakeCluster, clock: ManualClock
) -> None:
    """With sync flush it can be read only once it is on the disk; it was taken for gone."""
    cluster = rocketmq_cluster_factory(
        clock=clock, flush="sync", transaction_check_interval_ms=NEVER_MS
    )
    store = cluster.broker.store
    with Peer(cluster.broker_addr) as peer:
        peer.heartbeat("c1", producer="pg")
        with store._flusher._one_sync:  # an fsync that takes its time
            prepare(peer, WAIT="false")
            cluster.check_transactions()
            assert cluster.broker.undecided_transactions == 1
        store.flush()
        clock.advance(7_000)
        cluster.check_transactions()
        asked, message = checked(peer)
        assert message.body == b"half"
        assert end_checked(peer, asked, COMMIT).code == 0
        assert cluster.broker.undecided_transactions == 0

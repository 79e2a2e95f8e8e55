"""What is asked of brokers and members to say why a group is behind; members are played."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin, why
from rocketstream.admin.core.evidence import Look, look_of
from rocketstream.admin.messages.masking import Masking
from rocketstream.admin.state import CauseKind, QueueState, Verdict
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.subscription import build_subscription
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing.clock import ManualClock
from tests.kits.peer import Peer
from tests.plugins.waiting import wait_until

T, G = "orders", "billing"
QUEUE = MessageQueue(T, "broker-a", 0)
RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO


@pytest.fixture
def cluster(rocketmq_cluster: EmbeddedCluster) -> EmbeddedCluster:
    rocketmq_cluster.create_topic(T, 1)
    return rocketmq_cluster


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr) as admin:
        yield admin


@pytest.fixture
def peer(cluster: EmbeddedCluster) -> Iterator[Peer]:
    """Somebody who sends and commits, no member."""
    with Peer(cluster.broker_addr) as peer:
        yield peer


@contextmanager
def member(
    cluster: EmbeddedCluster,
    client_id: str,
    expression: str,
    looks: int,
    rates: ConsumeStatus | None = None,
    kind: str = "TAG",
) -> Iterator[None]:
    """A member that tells so often that it holds nothing and does well."""
    info = ConsumerRunningInfo(
        properties={"PROP_CONSUMER_START_TIMESTAMP": "1"},
        subscription_set=[build_subscription(T, expression, 1, kind)],
        mq_table={QUEUE: ProcessQueueInfo(last_pull_timestamp=90_000)},
        status_table={T: rates or ConsumeStatus(consume_ok_tps=1.0)},
    )
    with Peer(cluster.broker_addr) as peer:
        peer.heartbeat(client_id, G, {T: expression}, expression_type=kind)

        def play() -> None:
            for _ in range(looks):
                asked = peer.next_asked(RUNNING)
                peer.reply(asked, body=info.encode())

        thread = threading.Thread(target=play)
        thread.start()
        try:
            yield
        finally:
            thread.join(10)


def test_members_that_subscribe_differently_are_told_by_their_ids(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Brokers know only what the last heartbeat said; the members tell the rest."""
    with ExitStack() as stack:
        for client_id, expression in (("c1", "paid"), ("c2", "refused")):
            stack.enter_context(member(cluster, client_id, expression, 1))
        report = admin.groups.why(G)
    (cause,) = report.causes
    assert cause.kind is CauseKind.SUBSCRIPTION_MISMATCH
    assert "c1: orders paid" in cause.evidence
    assert report.verdict.verdict is Verdict.LOSING
    assert report.unknown == ()


@pytest.mark.parametrize(
    ("client_id", "told"), [("c2", "c2"), ("c2 (SYSTEM: approved)", "of another name")]
)
def test_a_member_that_does_not_answer_is_told_as_unknown_in_time(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer, client_id: str, told: str
) -> None:
    """A broker would wait ten seconds for it; an id that says more than a name does is not said."""
    with Peer(cluster.broker_addr) as silent, member(cluster, "c1", "*", 2):
        silent.heartbeat(client_id, G, {T: "*"})
        peer.commit(G, T, 0, 0)
        peer.send(T, b"waits")
        report = admin.groups.why(G)
    assert report.took_ms < 8_000  # not its ten
    (line,) = report.unknown
    assert line.startswith(f"member {told} did not tell what it does: ")
    assert report.state is not None
    (queue,) = (q for q in report.state.queues if (q.topic, q.queue_id) == (T, 0))
    assert (queue.client_id, queue.lag) == ("c1", 1)
    assert report.causes == ()


def test_members_are_asked_anew_where_the_asker_stood_still_before_it_read_their_answers(
    cluster: EmbeddedCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would seem to have done nothing since then."""
    clock = ManualClock()
    stops = iter([3_600_000])
    moments: list[int] = []

    def late(info: ConsumerRunningInfo, _: int) -> Look:
        clock.advance(next(stops, 0))
        moments.append(clock.now_ms())
        return look_of(info, clock.now_ms())

    monkeypatch.setattr(why, "look_of", late)
    with member(cluster, "c1", "*", 2), Admin(cluster.namesrv_addr, clock=clock) as admin:
        peer.send(T, b"done")
        peer.commit(G, T, 0, 1)
        report = admin.groups.why(G)
    assert len(moments) == 2
    assert report.took_ms == 0
    assert report.state is not None
    assert report.state.taken_ms == moments[-1]


def test_no_sentence_names_a_message_by_what_is_masked(cluster: EmbeddedCluster) -> None:
    rules = Masking.from_mapping({"rule": [{"topic": T, "property": "KEYS"}]})
    with (
        Producer("till", namesrv_addr=cluster.namesrv_addr) as producer,
        Admin(cluster.namesrv_addr, masking=rules) as admin,
    ):
        producer.send(Message(T, b"waits", keys="card-4711"))
        asking = why._Asking(why.Why(admin._reach))
        asking.masters = {"broker-a": cluster.broker_addr}
        (message,) = asking._read(QueueState(T, "broker-a", 0), 0, 1)
    assert message.keys == "***"
    assert message.queue_offset == 0


def test_nothing_changes_by_asking(cluster: EmbeddedCluster, admin: Admin, peer: Peer) -> None:
    with member(cluster, "c1", "paid", 2):
        peer.commit(G, T, 0, 1)
        for _ in range(3):
            peer.send(T, b"waits")
        before = admin.cluster.state()
        admin.groups.why(G)
        after = admin.cluster.state()
    assert after.groups[G].queues == before.groups[G].queues
    assert set(after.groups) == set(before.groups)
    assert set(after.topics) == set(before.topics)


def test_a_paused_group_is_told_before_anything_waits(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    peer.commit(G, T, 0, 0)
    with member(cluster, "c1", "*", 3):
        admin.changes.apply(admin.changes.group_pause_plan(G))
        report = admin.groups.why(G)
        assert report.verdict.verdict is Verdict.OK
        (cause,) = report.causes
        assert (cause.kind, cause.is_latent) == (CauseKind.PAUSED, True)
        assert "what is sent from now on will wait" in report.verdict.sentence
        peer.send(T, b"waits")
        report = admin.groups.why(G)
    assert report.verdict.verdict is Verdict.STALLED
    assert "1 message waits there" in report.verdict.sentence


def test_a_group_whose_members_are_gone_is_named_with_what_waits(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    with member(cluster, "c1", "*", 0):
        peer.commit(G, T, 0, 0)
        peer.send(T, b"waits")
    wait_until(lambda: not admin.groups.members(G), "the end of the member")
    report = admin.groups.why(G)
    (cause,) = report.causes
    assert cause.kind is CauseKind.NO_MEMBERS
    assert "1 message waits" in cause.evidence[0]
    assert report.verdict.verdict is Verdict.UNKNOWN
    assert "Nobody is connected now" in report.verdict.sentence


@pytest.mark.parametrize("ask", ["why", "verdict"])
def test_an_unknown_group_is_refused_with_names_like_it(
    cluster: EmbeddedCluster, admin: Admin, ask: str
) -> None:
    with member(cluster, "c1", "*", 0), pytest.raises(ConfigurationError) as caught:
        getattr(admin.groups, ask)("biling")
    assert "did you mean 'billing'?" in str(caught.value)


def test_a_verdict_is_watched_for_as_long_as_was_asked(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    with member(cluster, "c1", "*", 0):
        peer.commit(G, T, 0, 0)
        # Not by when states were taken: taking one counts, and takes long on a busy machine.
        began_s = time.monotonic()
        states = admin.groups.watch(G, 0.3)
        assert time.monotonic() - began_s >= 0.299
        assert len(states) >= 2
        assert admin.groups.verdict(G, 0).verdict is Verdict.OK
        with pytest.raises(ConfigurationError, match="0 or more"):
            admin.groups.verdict(G, -1)


def test_reading_messages_leaves_no_trace_of_a_group(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    with member(cluster, "c1", "*", 2):
        peer.commit(G, T, 0, 0)
        peer.send(T, b"waits")
        admin.groups.why(G)
    assert names.TOOLS_CONSUMER_GROUP not in admin.cluster.state().groups


@pytest.mark.parametrize("seldom", [False, True], ids=["nothing", "seldom"])
def test_a_filter_is_named_only_if_it_wants_nothing_far_back(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer, seldom: bool
) -> None:
    """One wanted message in a hundred is a rare tag, none in all of them a wrong one."""
    for number in range(100):
        peer.send(T, b"x", tags="Paid" if seldom and not number else "paid")
    peer.commit(G, T, 0, 100)
    with member(cluster, "c1", "Paid", 1, ConsumeStatus()):
        report = admin.groups.why(G)
    kinds = [cause.kind for cause in report.causes]
    assert kinds == ([] if seldom else [CauseKind.FILTERED_TO_NOTHING])
    assert report.unknown == ()
    if not seldom:
        assert "newest 100 messages" in report.causes[0].sentence
        assert "paid" in report.causes[0].evidence[0]


@pytest.mark.parametrize("seldom", [False, True], ids=["nothing", "seldom"])
def test_a_condition_is_named_only_if_the_broker_finds_nothing_for_it(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer, seldom: bool
) -> None:
    for number in range(100):
        name = "amount" if seldom and not number else "Amount"
        peer.send(T, b"x", properties={name: "9", "region": "eu"})
    peer.commit(G, T, 0, 100)
    with member(cluster, "c1", "amount > 5", 1, ConsumeStatus(), "SQL92"):
        report = admin.groups.why(G)
    kinds = [cause.kind for cause in report.causes]
    assert kinds == ([] if seldom else [CauseKind.FILTERED_TO_NOTHING])
    assert report.unknown == ()
    if not seldom:
        (cause,) = report.causes
        assert "condition 'amount > 5' of orders matches nothing" in cause.sentence
        assert "newest 100 messages" in cause.sentence
        assert cause.evidence[:2] == (
            "no message that was read has amount",
            "properties of the newest messages: Amount, region",
        )


def test_a_condition_no_broker_evaluates_in_time_is_unknown(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(60):
        peer.send(T, b"x", properties={"Amount": "9"})
    peer.commit(G, T, 0, 60)
    monkeypatch.setattr(why, "CONDITION_MS", -1)
    with member(cluster, "c1", "amount > 5", 1, ConsumeStatus(), "SQL92"):
        report = admin.groups.why(G)
    assert report.causes == ()
    assert "whether the condition of orders matches anything" in report.unknown[0]

"""Looking into consumers and single messages; the members are played by the tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from rocketstream.admin import Admin, MemberRow, SubscriptionRow, TrackRow
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConsumerNotOnlineError,
    OffsetNotFoundError,
    RouteNotFoundError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    GetConsumerStatusBody,
    ProcessQueueInfo,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import decode_message
from rocketstream.protocol.subscription import build_subscription
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer, ext

T, G = "orders", "billing"
QUEUE = MessageQueue(T, "broker-a", 0)


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
    with Peer(cluster.broker_addr) as peer:
        yield peer


Act = Callable[[RemotingCommand], bytes]


@contextmanager
def member(cluster: EmbeddedCluster, client_id: str, code: int, act: Act) -> Iterator[None]:
    """A member of the group that answers one request with what ``act`` returns."""
    with Peer(cluster.broker_addr) as peer:
        peer.heartbeat(client_id, G, {T: "TagA"})

        def play() -> None:
            asked = peer.next_asked(code)
            peer.reply(asked, body=act(asked))

        thread = threading.Thread(target=play)
        thread.start()
        try:
            yield
        finally:
            thread.join(10)


def test_members_and_what_they_subscribe(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-530: nobody connected is an error of its own."""
    with pytest.raises(ConsumerNotOnlineError, match=G):
        admin.groups.connections(G)
    with Peer(cluster.broker_addr) as one, Peer(cluster.broker_addr) as two:
        one.heartbeat("c1", G, {T: "TagA || TagB"})
        two.heartbeat("c2", G, {T: "TagA || TagB"})
        row = admin.groups.connections(G)
    assert (row.consume_type, row.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert [m.client_id for m in row.members] == ["c1", "c2"]
    assert all(isinstance(m, MemberRow) and m.address.startswith("127.") for m in row.members)
    assert row.subscriptions == (SubscriptionRow(T, "TagA || TagB", "TAG"),)


def test_running_info_of_a_member(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-538, C-540: properties, subscriptions, queues, rates, stacks."""
    info = ConsumerRunningInfo(
        properties={"PROP_CONSUMEORDERLY": "true"},
        subscription_set=[build_subscription(T, "TagA", 1)],
        mq_table={
            QUEUE: ProcessQueueInfo(commit_offset=7, cached_msg_count=3, locked=True),
        },
        status_table={T: ConsumeStatus(pull_rt=1.5)},
        jstack="MainThread",
    )
    with member(cluster, "c1", RequestCode.GET_CONSUMER_RUNNING_INFO, lambda _: info.encode()):
        (row,) = admin.groups.running_info(G, stacks=True)
    assert (row.client_id, row.stacks) == ("c1", "MainThread")
    assert row.properties == {"PROP_CONSUMEORDERLY": "true"}
    assert row.subscriptions == (SubscriptionRow(T, "TagA", "TAG"),)
    (queue,) = row.queues
    assert (queue.queue_id, queue.commit_offset, queue.cached, queue.locked) == (0, 7, 3, True)
    assert queue.last_pull_ms is None
    assert row.rates[T]["pullRT"] == 1.5


def test_owner_of_each_queue_is_asked_of_the_members(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    """Covers C-528: with several members the queue's owner comes from their running info."""
    peer.commit(G, T, 0, 0)

    def holding(*queues: MessageQueue) -> Act:
        table = {queue: ProcessQueueInfo() for queue in queues}
        return lambda _: ConsumerRunningInfo(mq_table=table).encode()

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    with member(cluster, "c1", code, holding()), member(cluster, "c2", code, holding(QUEUE)):
        (row,) = admin.groups.lag(G, T)
    assert row.client_id == "c2"


def test_member_that_is_not_there(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-538."""
    with pytest.raises(ConsumerNotOnlineError):
        admin.groups.running_info(G)
    with pytest.raises(ConsumerNotOnlineError):
        admin.groups.consumer_status(G, T)
    with Peer(cluster.broker_addr) as other:
        other.heartbeat("c1", G, {T: "*"})
        with pytest.raises(ConsumerNotOnlineError, match="c9"):
            admin.groups.running_info(G, "c9")


def test_status_is_what_members_say(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-538."""
    body = GetConsumerStatusBody(message_queue_table={QUEUE: 5}).encode()
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    with member(cluster, "c1", code, lambda _: body):
        assert admin.groups.consumer_status(G, T) == {"c1": {QUEUE: 5}}


def test_member_consumes_one_message(cluster: EmbeddedCluster, admin: Admin, peer: Peer) -> None:
    """Covers C-538: found by the sender's id, carried to the member, its result returned."""
    peer.send(T, b"work", properties={"UNIQ_KEY": "U1"})
    got: list[bytes] = []

    def consume(asked: RemotingCommand) -> bytes:
        got.append(bytes(decode_message(bytes(asked.body)).body))
        result = ConsumeMessageDirectlyResult(
            consume_result="CR_THROW_EXCEPTION", remark="ValueError", spent_time_mills=4
        )
        return result.encode()

    with member(cluster, "c1", RequestCode.CONSUME_MESSAGE_DIRECTLY, consume):
        row = admin.messages.consume(G, "c1", T, "U1")
    assert got == [b"work"]
    assert (row.result, row.remark, row.spent_ms) == ("CR_THROW_EXCEPTION", "ValueError", 4)
    with pytest.raises(BrokerError, match="not online"):
        admin.messages.consume(G, "nobody", T, "U1")


def test_another_message_than_the_shown_one_is_not_consumed(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    """Covers C-538: an id of the broker's is a place, which is another message's some day."""
    msg_id = ext(peer.send(T, b"work"))["msgId"]
    got: list[RemotingCommand] = []

    def consume(asked: RemotingCommand) -> bytes:
        got.append(asked)
        return ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS").encode()

    with member(cluster, "c1", RequestCode.CONSUME_MESSAGE_DIRECTLY, consume):
        stored_ms = admin.messages.consume_plan(G, "c1", T, msg_id).stored_ms
        with pytest.raises(ClientStateError, match=rf"{msg_id} names another, .* Look again"):
            admin.messages.consume(G, "c1", T, msg_id, stored_ms=stored_ms - 1)
        assert not got
        assert admin.messages.consume(G, "c1", T, msg_id, stored_ms=stored_ms).result
    assert len(got) == 1


def test_message_is_found_by_both_ids_and_by_key(admin: Admin, peer: Peer) -> None:
    """Covers C-538."""
    answer = peer.send(T, b"x", properties={"UNIQ_KEY": "U1", "KEYS": "k1 k2"})
    peer.send(T, b"y", properties={"UNIQ_KEY": "U2", "KEYS": "k2"})
    offset_id = ext(answer)["msgId"]
    for msg_id in ("U1", offset_id):
        message = admin.messages.view(T, msg_id)
        assert (message.body, message.offset_msg_id) == (b"x", offset_id)
    assert [m.body for m in admin.messages.query(T, "k2")] == [b"x", b"y"]
    assert [m.body for m in admin.messages.query(T, "k2", 1)] == [b"y"]
    assert admin.messages.query(T, "none") == []
    for missing in ("U3", offset_id[:-8] + "7FFFFFF0"):
        with pytest.raises(OffsetNotFoundError, match=T):
            admin.messages.view(T, missing)
    with pytest.raises(RouteNotFoundError):
        admin.messages.view("nowhere", "U1")


def test_all_messages_of_a_key_are_found_though_an_answer_holds_eight_mebibytes(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    body = b"x" * (3 << 20)
    for index in range(4):
        peer.send(T, b"%d" % index + body, properties={"UNIQ_KEY": f"U{index}", "KEYS": "k"})
    found = admin.messages.search(T, key="k", most=10)
    assert [m.queue_offset for m in found.messages] == [3, 2, 1, 0]
    assert (found.problems, found.resume) == ((), None)


def test_message_is_tracked_in_every_group(
    cluster: EmbeddedCluster, admin: Admin, peer: Peer
) -> None:
    """Covers C-538: all kinds there are."""
    peer.send(T, b"first", tags="TagA", properties={"UNIQ_KEY": "U1"})
    peer.send(T, b"second", tags="TagB", properties={"UNIQ_KEY": "U2"})
    for group, offset in (("done", 2), ("half", 1), ("gone", 2)):
        peer.commit(group, T, 0, offset)
    with Peer(cluster.broker_addr) as one, Peer(cluster.broker_addr) as two:
        one.heartbeat("c1", "done", {T: "TagA"})
        two.heartbeat("c2", "half", {T: "*"})
        body = (
            b'{"clientID":"c3","consumerDataSet":[{"consumeType":"CONSUME_ACTIVELY",'
            b'"groupName":"puller","messageModel":"CLUSTERING","subscriptionDataSet":'
            b'[{"subString":"*","topic":"orders"}]}]}'
        )
        assert peer.call(RequestCode.HEART_BEAT, body=body).code == 0
        assert admin.topics.consumers(T) == ["done", "gone", "half", "puller"]
        first = {row.group: row.status for row in admin.messages.track(T, "U1")}
        second = {row.group: row.status for row in admin.messages.track(T, "U2")}
    assert first == {
        "done": "CONSUMED", "gone": "NOT_ONLINE", "half": "CONSUMED", "puller": "PULL",
    }  # fmt: skip
    assert (second["done"], second["half"]) == ("CONSUMED_BUT_FILTERED", "NOT_CONSUME_YET")
    assert TrackRow("a", "PULL") < TrackRow("b", "PULL")


def test_time_span_of_a_group(admin: Admin, peer: Peer) -> None:
    """Covers C-538: an empty queue has no times; a group that is behind has a delay."""
    (row,) = admin.groups.time_span(G, T)
    assert (row.min_store_ms, row.max_store_ms, row.consumed_ms, row.delay_ms) == (
        None, None, None, 0,
    )  # fmt: skip
    for _ in range(3):
        peer.send(T)
    peer.commit(G, T, 0, 1)
    (row,) = admin.groups.time_span(G, T)
    assert row.min_store_ms is not None
    assert row.max_store_ms is not None
    assert row.min_store_ms <= row.max_store_ms
    assert row.consumed_ms == row.min_store_ms
    assert row.delay_ms >= 0


def test_questions_wait_five_seconds_and_progress_three_times_that(
    admin: Admin, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-525: 5 s per question, 15 s for the progress of a group."""
    peer.commit(G, T, 0, 0)
    asked: dict[int, set[int | None]] = {}
    ask = BlockingAdminClient.request_each

    def request_each(
        self: BlockingAdminClient,
        address: str,
        commands: Sequence[RemotingCommand],
        read: Callable[[int, RemotingCommand], None],
        timeout_ms: int | None = None,
    ) -> None:
        for command in commands:
            asked.setdefault(command.code, set()).add(timeout_ms)
        ask(self, address, commands, read, timeout_ms)

    monkeypatch.setattr(BlockingAdminClient, "request_each", request_each)
    admin.groups.lag(G, T)
    assert asked[RequestCode.GET_CONSUME_STATS] == {15_000}
    assert asked[RequestCode.GET_ALL_CONSUMER_OFFSET] == {5_000}


def test_lag_counts_what_the_tag_filters_out(admin: Admin, peer: Peer) -> None:
    """Covers C-529: the difference of offsets, whatever the group wants of them."""
    for tag in ("TagA", "TagB", "TagB"):
        peer.send(T, tags=tag)
    peer.heartbeat("c1", G, {T: "TagA"})
    peer.commit(G, T, 0, 0)
    (row,) = admin.groups.lag(G, T)
    assert row.lag == 3

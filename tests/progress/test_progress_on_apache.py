"""What a sweep tells of groups on Apache's brokers, beside mqadmin and a consumer that counts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageSelector,
    Producer,
    PullConsumer,
    PushConsumer,
)
from rocketstream.admin import Admin
from rocketstream.admin.filtered import count_matching
from rocketstream.admin.state import CauseKind, QueueKind, QueueState
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import Asking
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.subscription import build_subscription
from tests.kits.apache.batches import send_as_one_record
from tests.kits.apache.cluster import BROKER_NAME, ApacheCluster, ask, create_retry_topic, mqadmins
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def cluster(apache: Referee, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A broker with small files, which expire when told to, and one delay nobody waits for."""
    settings = {
        "mappedFileSizeCommitLog": str(2 * MIB),
        "mappedFileSizeConsumeQueue": str(500 * 20),
        "mapperFileSizeBatchConsumeQueue": str(100 * 46),
        "fileReservedTime": "0",
        "deleteWhen": "25",
        "cleanResourceInterval": "500",
        "enablePropertyFilter": "true",
    }
    root = tmp_path_factory.mktemp(f"progress-{apache.version}-")
    cluster = ApacheCluster(apache, root, delay_levels="1s 1h", broker_settings=settings).start()
    yield cluster
    cluster.stop(kill=True)


@pytest.fixture
def admin(cluster: ApacheCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr) as admin:
        yield admin


def queue(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, BROKER_NAME, queue_id)


def fill(
    cluster: ApacheCluster, to: MessageQueue, tags: Sequence[str | None], size: int = 1
) -> None:
    with Producer("progress", namesrv_addr=cluster.namesrv_addr) as producer:
        messages = [Message(to.topic, b"x" * size, tags=tag) for tag in tags]
        for number, message in enumerate(messages):
            message.properties["n"] = str(number)
        for at in range(0, len(messages), 100):
            producer.send(messages[at : at + 100], message_queue=to)


def new_group(cluster: ApacheCluster, word: str) -> str:
    """Make a group 5.x keeps offsets of, with the retry topic mqadmin wants."""
    group = cluster.unique(word)
    code, _ = ask(cluster.broker_addr, 200, {}, json.dumps({"groupName": group}).encode())
    assert code == 0
    create_retry_topic(cluster.namesrv_addr, cluster.broker_addr, group)
    return group


def store_time(admin: Admin, at: MessageQueue, offset: int) -> int:
    address = admin._client.master(BROKER_NAME)
    return admin._wire.pull(address, "TOOLS_CONSUMER", at, offset, 1)[0][0].store_timestamp


def test_lag_of_every_queue_is_mqadmins(cluster: ApacheCluster, admin: Admin) -> None:
    """Its Diff is our lag and what expired; where it takes 0 for none we say so. Covers C-528."""
    topic = cluster.create_topic(cluster.unique("lag"), queues=4)
    group = new_group(cluster, "lag-group")
    for queue_id in range(4):
        fill(cluster, queue(topic, queue_id), ["A"] * 20)
    for queue_id, offset in ((0, 3), (1, 20), (2, 0)):
        admin._client.update_consumer_offset(group, queue(topic, queue_id), offset)
    theirs = mqadmins(cluster, group, topic)
    ours = {q.queue_id: q for q in admin.groups.state(group, topic).queues}
    assert theirs.keys() == ours.keys() == {0, 1, 2, 3}
    for queue_id in range(3):
        state = ours[queue_id]
        assert state.lag is not None
        assert state.expired is not None
        told = (state.max_offset, state.committed_offset, state.lag + state.expired)
        assert told == theirs[queue_id]
    assert theirs[3] == (20, 0, 20)
    assert (ours[3].max_offset, ours[3].committed_offset, ours[3].lag) == (20, None, None)


def test_lag_in_time_is_the_age_of_the_next_message(cluster: ApacheCluster, admin: Admin) -> None:
    """By the broker's clock, which the sweep asks for; covers C-538."""
    topic = cluster.create_topic(cluster.unique("age"), queues=1)
    group = new_group(cluster, "age-group")
    at = queue(topic)
    for _ in range(3):
        fill(cluster, at, ["A"])
        later = time.monotonic() + 0.4
        wait_until(lambda later=later: time.monotonic() > later, "another store time")  # type: ignore[misc]
    admin._client.update_consumer_offset(group, at, 1)
    (state,) = admin.groups.state(group, topic).queues
    assert state.next_stored_ms is not None
    assert abs(state.next_stored_ms - store_time(admin, at, 1)) < 150
    assert state.last_consumed_ms == store_time(admin, at, 0)
    assert state.last_stored_ms == store_time(admin, at, 2)
    memory = admin._reach.memory.brokers[BROKER_NAME]
    assert memory.ahead_ms is not None
    assert abs(memory.ahead_ms) < 1_000
    again = admin.cluster.state([group])
    assert again.groups[group].of_kind(QueueKind.TOPIC)[0].next_stored_ms == state.next_stored_ms
    admin._client.update_consumer_offset(group, at, 3)
    (state,) = admin.groups.state(group, topic).queues
    assert (state.lag, state.next_stored_ms) == (0, None)
    assert state.last_consumed_ms == store_time(admin, at, 2)


def consumed(cluster: ApacheCluster, at: MessageQueue, expression: str, start: int) -> int:
    """Return how many messages a consumer with a filter gets from an offset on."""
    with PullConsumer("brute-force", namesrv_addr=cluster.namesrv_addr) as consumer:
        got, offset = 0, start
        while offset < consumer.max_offset(at):
            result = consumer.pull(at, expression, offset, 32)
            got += len(result.msg_found_list)
            offset = result.next_begin_offset
        return got


def counted(admin: Admin, at: MessageQueue, expression: str, start: int, kind: str = "TAG") -> Any:
    asking = Asking(admin._client, admin._client.master(BROKER_NAME), 5_000)
    state = QueueState(
        at.topic,
        BROKER_NAME,
        at.queue_id,
        min_offset=0,
        max_offset=admin._client.max_offset(at),
        committed_offset=start,
    )
    config = admin._wire.ask(asking.address, questions.TOPICS)[at.topic]
    wanted = build_subscription(at.topic, expression, 0, kind)
    found = count_matching(asking, state, wanted, config=config)
    assert found.error is None
    return found.count


def test_the_filtered_lag_is_what_a_consumer_gets(cluster: ApacheCluster, admin: Admin) -> None:
    """Over files of the index, tags of one hash among them (request 321)."""
    topic = cluster.create_topic(cluster.unique("tags"), queues=1)
    at = queue(topic)
    fill(cluster, at, [("Aa", "BB", "C", None, "C")[i % 5] for i in range(3_000)])
    # A broker writes its index after it answers.
    wait_until(lambda: admin._client.max_offset(at) == 3_000, "the whole index", 30)
    for expression in ("C", "Aa", "C || BB", "D"):
        for start in (0, 499, 1_700):
            count = counted(admin, at, expression, start)
            assert count.is_exact
            assert count.matching == consumed(cluster, at, expression, start)
    few = counted(admin, at, "n < 10", 2_700, "SQL92")
    assert (few.is_exact, few.matching) == (True, 0)
    many = counted(admin, at, "TAGS = 'C'", 0, "SQL92")
    assert not many.is_exact
    assert many.low <= 1_200 <= many.high


def test_a_group_with_tags_waits_for_those(cluster: ApacheCluster, admin: Admin) -> None:
    topic = cluster.create_topic(cluster.unique("picky"), queues=1)
    group = new_group(cluster, "picky-group")
    fill(cluster, queue(topic), ["A", "B", "B", "A"])
    admin._client.update_consumer_offset(group, queue(topic), 0)
    held, got = threading.Event(), threading.Event()

    def listener(_: object) -> ConsumeConcurrentlyStatus:
        got.set()
        held.wait(60)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(group, namesrv_addr=cluster.namesrv_addr)
    consumer.subscribe(topic, "A")
    consumer.register_message_listener(listener)
    with consumer:
        assert got.wait(60)
        (state,) = admin.groups.state(group, topic).queues
        held.set()
    assert (state.lag, state.matching, state.waiting) == (4, 2, 2)
    assert state.client_id == consumer.client_id


def test_what_failed_is_seen_waiting_for_its_delay_and_given_up(
    cluster: ApacheCluster, admin: Admin
) -> None:
    """A group that consumed everything, yet five messages are not done."""
    topic = cluster.create_topic(cluster.unique("fails"), queues=1)
    group = new_group(cluster, "fails-group")
    fill(cluster, queue(topic), ["later"] * 3 + ["never"] * 2 + ["fine"])

    def listener(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        levels = {"later": 2, "never": -1}
        tag = messages[0].tags
        if tag not in levels:
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        context.delay_level_when_next_consume = levels[tag]
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    consumer = PushConsumer(
        group,
        namesrv_addr=cluster.namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(listener)
    with consumer:
        wait_until(
            lambda: (
                admin.groups.state(group).delayed == 3
                and admin.groups.state(group).dead_letters == 2
            ),
            "three messages waiting for their delay and two given up",
        )
    wait_until(lambda: admin.groups.state(group).lag == 0, "all of the topic consumed")
    state = admin.groups.state(group)
    assert (state.delayed, state.delayed_is_exact) == (3, True)
    assert (state.retrying, state.dead_letters) == (0, 2)
    assert admin.cluster.state().groups[group].delayed == 3


def test_a_condition_that_matches_nothing_is_named_and_a_strict_one_is_not(
    cluster: ApacheCluster, admin: Admin
) -> None:
    """The broker evaluates it on the newest messages; nobody consumes by that.

    Before the next test, after which the broker deletes full files for ten seconds more.
    """
    topic = cluster.create_topic(cluster.unique("conditions"), queues=1)
    with Producer("progress", namesrv_addr=cluster.namesrv_addr) as producer:
        for number in range(1_200):
            name = "amount" if number == 3 else "Amount"
            producer.send(Message(topic, b"x", properties={name: "9"}), message_queue=queue(topic))
    causes = {}
    for condition in ("amount > 5", "price > 5"):
        group = new_group(cluster, "conditional")
        admin._client.update_consumer_offset(group, queue(topic), 1_200)
        consumer = PushConsumer(group, namesrv_addr=cluster.namesrv_addr)
        consumer.subscribe(topic, MessageSelector.by_sql(condition))
        consumer.register_message_listener(lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
        with consumer:
            wait_until(lambda group=group: admin.groups.state(group).members, "the member", 30)  # type: ignore[misc]
            report = admin.groups.why(group)
        assert report.unknown == ()
        causes[condition] = report.causes
    assert causes["amount > 5"] == ()
    (cause,) = causes["price > 5"]
    assert cause.kind is CauseKind.FILTERED_TO_NOTHING
    assert "the broker finds none of the newest 1,200 messages" in cause.sentence
    assert cause.evidence[0] == "no message that was read has price"


def test_messages_deleted_before_they_were_consumed_are_no_lag(
    cluster: ApacheCluster, admin: Admin
) -> None:
    """Where the next message is deleted 303 answers decades; we tell the oldest one kept.

    A broker begins to clean up a minute after its start.
    """
    topic = cluster.create_topic(cluster.unique("old"), queues=1)
    group = new_group(cluster, "old-group")
    at = queue(topic)
    admin._client.update_consumer_offset(group, at, 10)
    fill(cluster, at, ["A"] * 900, size=10_000)

    def expired() -> int | None:
        command = RemotingCommand.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
        admin._client.request(cluster.broker_addr, command)
        return admin.groups.state(group, topic).queues[0].expired

    wait_until(lambda: (expired() or 0) > 0, "retention to delete what was not consumed", 120)

    def seen_at_rest() -> tuple[QueueState, tuple[int, int, int]] | None:
        """Return what we and mqadmin say when nothing was deleted meanwhile: it goes on a while."""
        (before,) = admin.groups.state(group, topic).queues
        theirs = mqadmins(cluster, group, topic)[0]
        (after,) = admin.groups.state(group, topic).queues
        return (after, theirs) if before.min_offset == after.min_offset else None

    state, (_, _, diff) = wait_until(seen_at_rest, "two looks that say the same", 120)
    assert state.min_offset is not None
    assert state.min_offset > 10
    assert (state.expired, state.lag) == (state.min_offset - 10, 900 - state.min_offset)
    assert state.next_stored_ms is not None
    assert abs(state.next_stored_ms - store_time(admin, at, state.min_offset)) < 150
    assert diff == (state.lag or 0) + (state.expired or 0) == 890


def test_the_filtered_lag_of_batch_queues_is_right_or_unknown(
    cluster: ApacheCluster, admin: Admin
) -> None:
    """5.x: an entry of their index may stand for several messages (``queue.type=BatchCQ``)."""
    if not cluster.referee.version.startswith("5"):
        pytest.skip("4.x has no batch queues")
    topic = cluster.create_topic(
        cluster.unique("batchy"), queues=2, attributes="+queue.type=BatchCQ"
    )
    config = admin._wire.ask(admin._client.master(BROKER_NAME), questions.TOPICS)[topic]
    assert config.attributes == {"queue.type": "BatchCQ"}
    single, batched = queue(topic, 0), queue(topic, 1)
    with Producer("progress", namesrv_addr=cluster.namesrv_addr) as producer:
        for number in range(150):
            producer.send(Message(topic, b"x", tags="AB"[number % 2]), message_queue=single)
    for _ in range(3):
        send_as_one_record(cluster.broker_addr, batched, [b"x"] * 4, "A")
    for at, end in ((single, 150), (batched, 12)):
        wait_until(lambda at=at, end=end: admin._client.max_offset(at) == end, "the index", 30)  # type: ignore[misc]
    for start in (0, 99, 101):  # files of the index end at 100
        count = counted(admin, single, "A", start)
        assert (count.is_exact, count.matching) == (True, consumed(cluster, single, "A", start))
    group = new_group(cluster, "batchy-group")
    for at in (single, batched):
        admin._client.update_consumer_offset(group, at, 1)
    consumer = PushConsumer(group, namesrv_addr=cluster.namesrv_addr)
    consumer.subscribe(topic, "A")
    held, got = threading.Event(), threading.Event()

    def listener(_: object) -> ConsumeConcurrentlyStatus:
        got.set()
        held.wait(60)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    with consumer:
        assert got.wait(60)
        state = {q.queue_id: q for q in admin.groups.state(group, topic).queues}
        held.set()
    assert (state[0].lag, state[0].matching) == (149, 74)
    assert (state[1].lag, state[1].matching) == (11, None)
    assert "holds batches (queue.type=BatchCQ)" in str(state[1].error)
    many = counted(admin, batched, "TAGS = 'A'", 3, "SQL92")
    assert (many.is_exact, many.matching) == (True, 9)


def test_a_dead_broker_is_unknown_and_not_zero(cluster: ApacheCluster) -> None:
    """The name server forgets it at once; who asked before remembers. The last test here."""
    topic = cluster.create_topic(cluster.unique("dead"), queues=2)
    group = new_group(cluster, "dead-group")
    fill(cluster, queue(topic), ["A"] * 5)
    with Admin(cluster.namesrv_addr, timeout_ms=2_000) as admin:
        admin._client.update_consumer_offset(group, queue(topic), 1)
        assert admin.cluster.state().groups[group].lag == 4
        cluster.kill_broker()
        state = admin.cluster.state()
        found = state.groups[group]
    assert found.lag is None
    assert found.members is None
    assert {q.queue_id for q in found.of_kind(QueueKind.TOPIC)} == {0, 1}
    assert all(q.max_offset is None and q.error for q in found.queues)
    assert found.errors
    assert state.brokers[0].error

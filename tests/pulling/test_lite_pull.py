"""The lite pull consumer: poll, iteration, commits, seeks, both ways to say what to consume."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
)
from rocketstream.errors import ClientStateError, ConfigurationError, RocketMQError
from tests.kits.cluster import Cluster
from tests.kits.faces import LitePullConsumer
from tests.kits.listeners import WAIT_S, fill, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until
from tests.pulling.polling import FIRST, WAIT_MS, bodies, is_waiting, lite, subscribed

pytestmark = pytest.mark.usefixtures("face")


def poll_all(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    """Poll until there are ``count`` messages."""
    got: list[MessageExt] = []
    while len(got) < count:
        messages = consumer.poll(WAIT_MS)
        assert messages, f"{len(got)} of {count} messages came"
        got += messages
    return got


# --- poll ---------------------------------------------------------------------------------------


def test_everything_is_polled_once_and_committed_at_the_end(cluster: Cluster, names: Names) -> None:
    """Covers C-125, C-126, C-514, C-517, C-600: the last poll's messages too."""
    fill(cluster, names.topic, numbered(names.topic, range(200)), 4)
    with subscribed(cluster, names) as consumer:
        got = poll_all(consumer, 200)
        assert consumer.poll(0) == []
    assert bodies(got) == list(range(200))
    assert cluster.committed(names.group, names.topic, 4) == cluster.ends(names.topic, 4)


def test_a_poll_returns_one_queues_messages_in_order(cluster: Cluster, names: Names) -> None:
    """Covers C-65, C-514: ten from 0, then ten from 10."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 1)
    with subscribed(cluster, names) as consumer:
        first, second = consumer.poll(WAIT_MS), consumer.poll(WAIT_MS)
    assert [m.queue_offset for m in first] == list(range(10))
    assert [m.queue_offset for m in second] == list(range(10, 20))


def test_the_batch_size_is_the_most_of_one_poll(cluster: Cluster, names: Names) -> None:
    """Covers C-65."""
    fill(cluster, names.topic, numbered(names.topic, range(100)), 2)
    with subscribed(cluster, names, pull_batch_size=7) as consumer:
        got: list[MessageExt] = []
        while len(got) < 100:
            messages = consumer.poll(WAIT_MS)
            assert 0 < len(messages) <= 7
            assert len({message.queue_id for message in messages}) == 1
            got += messages


def test_what_poll_returned_is_committed_by_the_next_poll_not_before(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-62, C-63, C-515, apache/rocketmq 1470: a crash in between repeats it."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 1)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    with LitePullConsumer(
        names.group, config=config, consume_from_where=FIRST, auto_commit_interval_ms=1_000
    ) as consumer:
        consumer.subscribe(names.topic)
        assert len(consumer.poll(WAIT_MS)) == 10
        assert cluster.committed(names.group, names.topic, 1)[0] <= 0
        assert len(consumer.poll(WAIT_MS)) == 10
        # The first ten are done; the timer stores them though nobody polls any more.
        wait_until(
            lambda: cluster.committed(names.group, names.topic, 1) == [10], "first ten committed"
        )
        consumer.shutdown(commit=False)
    assert cluster.committed(names.group, names.topic, 1) == [10]


def test_an_error_in_the_with_block_leaves_its_messages_uncommitted(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-515, C-517: what was being processed is delivered again."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 1)

    def fails() -> None:
        with subscribed(cluster, names) as consumer:
            consumer.poll(WAIT_MS)
            consumer.poll(WAIT_MS)
            raise LookupError("while processing 10 to 19")

    with pytest.raises(LookupError):
        fails()
    with subscribed(cluster, names) as consumer:
        assert [m.queue_offset for m in consumer.poll(WAIT_MS)] == list(range(10, 20))


def test_shutdown_by_another_thread_commits_nothing_that_is_in_hand(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-515, C-517: whoever polled it may still be at work on it."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 1)
    for commit, expected in ((None, 0), (True, 10)):
        consumer = subscribed(cluster, names)
        thread = threading.Thread(target=poll_all, args=(consumer, 10))
        thread.start()
        thread.join(WAIT_S)
        consumer.shutdown(commit=commit)
        assert max(0, *cluster.committed(names.group, names.topic, 1)) == expected


def test_without_auto_commit_only_commits_count(cluster: Cluster, names: Names) -> None:
    """Covers C-62, C-516: polling on commits nothing, nor does the end."""
    fill(cluster, names.topic, numbered(names.topic, range(40)), 1)
    with subscribed(cluster, names, auto_commit=False) as consumer:
        (mq,) = wait_until(consumer.assignment, "the queue")
        poll_all(consumer, 20)
        consumer.commit_sync()
        assert consumer.committed(mq) == 20
        assert cluster.committed(names.group, names.topic, 1) == [20]
        poll_all(consumer, 20)
    assert cluster.committed(names.group, names.topic, 1) == [20]


def test_commits_of_some_queues_leave_the_others_alone(cluster: Cluster, names: Names) -> None:
    """Covers C-516, C-518, C-573: by queue, by offset, noted or stored."""
    fill(cluster, names.topic, numbered(names.topic, range(40)), 2)
    with subscribed(cluster, names, auto_commit=False) as consumer:
        poll_all(consumer, 40)
        one, two = consumer.assignment()
        end = cluster.ends(names.topic, 2)
        consumer.commit([one])
        assert (consumer.committed(one), consumer.committed(two)) == (end[0], 0)
        consumer.commit({two: 5}, persist=True)
        assert (consumer.committed(one), consumer.committed(two)) == (end[0], 5)
        assert cluster.committed(names.group, names.topic, 2)[1] == 5
        consumer.commit({MessageQueue(names.topic, "nowhere", 0): 3})
    assert cluster.committed(names.group, names.topic, 2) == [end[0], 5]


def test_filtered_tails_are_committed(cluster: Cluster, names: Names) -> None:
    """Covers C-513, C-569: nobody has to consume what nobody wants."""
    messages = [Message(names.topic, str(n), tags="A" if n < 5 else "B") for n in range(30)]
    cluster.create_topic(names.topic, 1)
    for message in messages:
        send_all(cluster.namesrv_addr, [message])
    with subscribed(cluster, names, "A") as consumer:
        assert bodies(poll_all(consumer, 5)) == list(range(5))
        wait_until(lambda: not consumer.poll(10) and _position(consumer) == 30, "the tail's end")
    assert cluster.committed(names.group, names.topic, 1) == [30]


def _position(consumer: LitePullConsumer) -> int:
    consumer.commit()
    return sum(consumer.committed(mq) for mq in consumer.assignment())


def test_poll_refuses_what_makes_no_sense(cluster: Cluster, names: Names) -> None:
    """Covers C-514: not running, a negative wait."""
    consumer = lite(cluster, names)
    with pytest.raises(ClientStateError, match="this LitePullConsumer is not running"):
        consumer.poll()
    with (
        consumer,
        pytest.raises(ConfigurationError, match="timeout_ms must be a number"),
    ):
        consumer.poll(-1)
    with pytest.raises(ClientStateError, match="this LitePullConsumer is not running"):
        consumer.poll()


def test_shutdown_ends_a_waiting_poll(cluster: Cluster, names: Names) -> None:
    """Covers C-126: a poll in another thread returns at once, empty-handed."""
    cluster.create_topic(names.topic, 1)
    consumer = subscribed(cluster, names)
    got: list[list[MessageExt]] = []
    thread = threading.Thread(target=lambda: got.append(consumer.poll(WAIT_MS)))
    thread.start()
    wait_until(lambda: is_waiting(consumer), "the waiting poll")
    consumer.shutdown()
    thread.join(WAIT_S)
    assert got == [[]]


# --- iteration ----------------------------------------------------------------------------------


def test_iteration_commits_a_message_once_the_next_is_asked_for(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-515, apache/rocketmq 1470: the message in hand at the end comes again."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 1)
    with subscribed(cluster, names) as consumer:
        for message in consumer:
            if message.queue_offset == 4:
                break
    assert cluster.committed(names.group, names.topic, 1) == [4]
    with subscribed(cluster, names) as consumer:
        for message in consumer:
            assert message.queue_offset == 4
            consumer.commit_sync()  # says that it is done
            break
    assert cluster.committed(names.group, names.topic, 1) == [5]


def test_iteration_ends_when_the_consumer_is_shut_down(cluster: Cluster, names: Names) -> None:
    """Covers C-126."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 2)
    consumer = subscribed(cluster, names)
    got: list[MessageExt] = []
    thread = threading.Thread(target=lambda: got.extend(consumer))
    thread.start()
    wait_until(lambda: len(got) == 20 and is_waiting(consumer), "all messages")
    consumer.shutdown()
    thread.join(WAIT_S)
    assert bodies(got) == list(range(20))
    assert list(consumer) == []
    assert cluster.committed(names.group, names.topic, 2) == cluster.ends(names.topic, 2)


def test_the_body_of_an_iteration_may_end_it(cluster: Cluster, names: Names) -> None:
    """Covers C-126: by shutting the consumer down."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 1)
    consumer = subscribed(cluster, names)
    for message in consumer:
        if message.queue_offset == 3:
            consumer.shutdown()
    assert cluster.committed(names.group, names.topic, 1) == [3]


def test_polls_and_iteration_may_alternate(cluster: Cluster, names: Names) -> None:
    """Covers C-514: nothing is skipped or repeated between the two."""
    fill(cluster, names.topic, numbered(names.topic, range(30)), 1)
    offsets: list[int] = []
    with subscribed(cluster, names) as consumer:
        messages = iter(consumer)
        while len(offsets) < 30:
            offsets += [next(messages).queue_offset]
            if len(offsets) < 30:
                offsets += [message.queue_offset for message in consumer.poll(WAIT_MS)]
    assert offsets == list(range(30))


# --- what to consume ----------------------------------------------------------------------------


def test_subscribing_and_assigning_exclude_each_other(cluster: Cluster, names: Names) -> None:
    """Covers C-504, C-505: the first call decides; nothing to assign is an error."""
    mq = MessageQueue(names.topic, "broker-a", 0)
    one, two = lite(cluster, names), lite(cluster, names)
    one.subscribe(names.topic)
    with pytest.raises(ClientStateError, match="Subscribe and assign are mutually exclusive"):
        one.assign([mq])
    with pytest.raises(ClientStateError, match="Subscribe and assign are mutually exclusive"):
        one.set_sub_expression_for_assign(names.topic, "A")
    two.assign([mq])
    with pytest.raises(ClientStateError, match="Subscribe and assign are mutually exclusive"):
        two.subscribe(names.topic)
    nothing: Any
    for nothing in ([], None):
        with pytest.raises(ConfigurationError, match=r"message_queues must be (one queue|a list)"):
            two.assign(nothing)


def test_assigned_queues_may_change_at_any_time(cluster: Cluster, names: Names) -> None:
    """Covers C-506, C-523: dropped ones keep what was committed, new ones begin."""
    fill(cluster, names.topic, numbered(names.topic, range(30)), 3)
    with lite(cluster, names) as consumer:
        queues = consumer.fetch_message_queues(names.topic)
        consumer.assign(queues[:2])
        assert consumer.assignment() == queues[:2]
        first = poll_all(consumer, sum(cluster.ends(names.topic, 3)[:2]))
        assert {message.queue_id for message in first} == {0, 1}
        consumer.assign(queues[2:])
        assert consumer.assignment() == queues[2:]
        rest = poll_all(consumer, cluster.ends(names.topic, 3)[2])
    assert bodies(first + rest) == list(range(30))


def test_assigned_topics_may_have_an_expression(cluster: Cluster, names: Names) -> None:
    """Covers C-505: set before queues are assigned, and not blank."""
    messages = [Message(names.topic, str(n), tags="AB"[n % 2]) for n in range(20)]
    fill(cluster, names.topic, messages, 1)
    with lite(cluster, names) as consumer:
        with pytest.raises(ConfigurationError, match="expression must not be empty"):
            consumer.set_sub_expression_for_assign(names.topic, " ")
        consumer.set_sub_expression_for_assign(names.topic, "B")
        consumer.assign(consumer.fetch_message_queues(names.topic))
        with pytest.raises(ClientStateError, match=r"before assign\(\); queues are assigned"):
            consumer.set_sub_expression_for_assign(names.topic, "A")
        assert bodies(poll_all(consumer, 10)) == list(range(1, 20, 2))


def test_topics_may_be_subscribed_and_unsubscribed_while_running(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-103, C-522: what is cached of an unsubscribed topic is not handed out."""
    other = f"{names.topic}-other"
    fill(cluster, names.topic, numbered(names.topic, range(50)), 1)
    fill(cluster, other, numbered(other, range(50, 60)), 1)
    with subscribed(cluster, names) as consumer:
        assert len(consumer.poll(WAIT_MS)) == 10
        consumer.unsubscribe(names.topic)
        assert consumer.assignment() == []
        assert consumer.poll(0) == []
        assert cluster.committed(names.group, names.topic, 1) == [0]
        consumer.subscribe(other)
        assert bodies(poll_all(consumer, 10)) == list(range(50, 60))
        consumer.subscribe(names.topic)
        assert bodies(poll_all(consumer, 50)) == list(range(50))


def test_the_members_of_a_group_divide_the_queues(cluster: Cluster, names: Names) -> None:
    """Covers C-61, C-507: listeners hear of it; nothing is lost when a member leaves."""
    cluster.create_topic(names.topic, 4)
    shares: list[int] = []
    changed = threading.Condition()

    def listener(topic: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
        assert (topic, len(every)) == (names.topic, 4)
        with changed:
            shares.append(len(mine))
            changed.notify_all()

    def wait_share(share: int) -> None:
        with changed:
            assert changed.wait_for(lambda: shares[-1:] == [share], WAIT_S), shares

    with lite(cluster, names) as one:
        one.subscribe(names.topic, "*", listener)
        wait_share(4)
        with subscribed(cluster, names) as two:
            wait_share(2)
            wait_until(lambda: len(two.assignment()) == 2, "second half")
            assert not set(one.assignment()) & set(two.assignment())
            send_all(cluster.namesrv_addr, numbered(names.topic, range(100)))
            got = poll_all(two, sum(_ends(cluster, names, two)))
        wait_share(4)
        got += poll_all(one, 100 - len(got))
    assert bodies(got) == list(range(100))


class Churning:
    """Members that poll in threads; each remembers what it got once it has come back for more."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster, self._names = cluster, names
        self._lock = threading.Lock()
        self._members: list[tuple[LitePullConsumer, threading.Thread]] = []
        self.done: set[int] = set()

    def join(self) -> None:
        """Have one more member poll."""
        consumer = subscribed(self._cluster, self._names)
        thread = threading.Thread(target=self._work, args=(consumer,))
        thread.start()
        self._members.append((consumer, thread))

    def leave(self, index: int, *, commit: bool) -> None:
        """Shut a member down, in order or as if it had failed."""
        consumer, thread = self._members.pop(index)
        consumer.shutdown(commit=commit)
        thread.join(WAIT_S)

    def _work(self, consumer: LitePullConsumer) -> None:
        try:
            while True:
                messages = consumer.poll(WAIT_MS)
                with self._lock:
                    self.done.update(int(message.body) for message in messages)
        except ClientStateError:
            return

    def end(self) -> None:
        """Shut all members down."""
        while self._members:
            self.leave(0, commit=False)


def test_nothing_is_lost_while_members_come_and_go(cluster: Cluster, names: Names) -> None:
    """Covers C-507, C-508, C-548, apache/rocketmq 2732: every message is got by somebody."""
    cluster.create_topic(names.topic, 8)
    churning = Churning(cluster, names)
    try:
        for _ in range(3):
            churning.join()
        for cycle in range(8):
            first = cycle * 250
            send_all(cluster.namesrv_addr, numbered(names.topic, range(first, first + 250)))
            churning.join()
            churning.leave(cycle % 3, commit=cycle % 2 == 0)
        wait_until(lambda: len(churning.done) == 2_000, "every message", timeout_s=60)
    finally:
        churning.end()


def _ends(cluster: Cluster, names: Names, consumer: LitePullConsumer) -> list[int]:
    wait_until(lambda: sum(cluster.ends(names.topic, 4)) == 100, "the last message")
    ends = cluster.ends(names.topic, 4)
    return [ends[mq.queue_id] for mq in consumer.assignment()]


def test_in_broadcasting_every_member_gets_everything(
    cluster: Cluster, names: Names, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-60, C-507: all queues, offsets in a local file."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    fill(cluster, names.topic, numbered(names.topic, range(20)), 2)
    for member in ("one", "two"):
        config = ClientConfig(namesrv_addr=cluster.namesrv_addr, instance_name=member)
        with LitePullConsumer(
            names.group,
            config=config,
            consume_from_where=FIRST,
            message_model=MessageModel.BROADCASTING,
        ) as consumer:
            consumer.subscribe(names.topic)
            assert bodies(poll_all(consumer, 20)) == list(range(20))
    assert [max(0, each) for each in cluster.committed(names.group, names.topic, 2)] == [0, 0]


# --- positions ----------------------------------------------------------------------------------


def test_seeks_go_anywhere_in_the_queue(cluster: Cluster, names: Names) -> None:
    """Covers C-519, C-521: an offset, both ends, a time; not outside, not elsewhere."""
    fill(cluster, names.topic, numbered(names.topic, range(40)), 1)
    with subscribed(cluster, names, auto_commit=False) as consumer:
        poll_all(consumer, 20)
        (mq,) = consumer.assignment()
        consumer.seek(mq, 15)
        assert consumer.poll(WAIT_MS)[0].queue_offset == 15
        consumer.seek_to_begin(mq)
        assert consumer.poll(WAIT_MS)[0].queue_offset == 0
        consumer.seek_to_end(mq)
        assert consumer.poll(0) == []
        assert consumer.offset_for_timestamp(mq, 0) == 0
        consumer.seek_to_timestamp(mq, 0)
        assert consumer.poll(WAIT_MS)[0].queue_offset == 0
        with pytest.raises(
            ConfigurationError,
            match="Seek offset illegal, seek offset = 41, min offset = 0, max offset = 40",
        ):
            consumer.seek(mq, 41)
        with pytest.raises(ConfigurationError, match="not in assigned list, may be rebalancing"):
            consumer.seek(mq._replace(queue_id=9), 0)
    assert cluster.committed(names.group, names.topic, 1)[0] <= 0


def test_a_listener_may_seek_the_queues_it_is_told_of(cluster: Cluster, names: Names) -> None:
    """Covers C-507, C-519: they are ours, and the consumer runs, when it is called."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), 2)
    failed: list[BaseException] = []
    told = threading.Event()
    consumer = lite(cluster, names, consume_from_where=ConsumeFromWhere.LAST_OFFSET)

    def listener(topic: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
        try:
            for mq in mine:
                consumer.seek_to_begin(mq)
        except BaseException as error:
            failed.append(error)
        told.set()

    consumer.subscribe(names.topic, "*", listener)
    with consumer:
        assert told.wait(WAIT_S)
        assert not failed
        assert set(bodies(poll_all(consumer, 20))) == set(range(20))


def test_conditions_select_messages(cluster: Cluster, names: Names) -> None:
    """Covers C-101, C-222, C-379: by properties, subscribed or said for assigned queues."""
    messages = [Message(names.topic, str(n), properties={"a": str(n)}) for n in range(20)]
    fill(cluster, names.topic, messages, 2)
    condition = MessageSelector.by_sql("a BETWEEN 5 AND 9")
    with lite(cluster, names) as consumer:
        consumer.subscribe(names.topic, condition)
        assert bodies(poll_all(consumer, 5)) == [5, 6, 7, 8, 9]
    with LitePullConsumer(
        f"{names.group}-2", namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        consumer.set_sub_expression_for_assign(names.topic, condition)
        consumer.assign(consumer.fetch_message_queues(names.topic))
        assert bodies(poll_all(consumer, 5)) == [5, 6, 7, 8, 9]


def test_a_namespace_is_put_on_and_taken_off(cluster: Cluster, names: Names) -> None:
    """Covers C-148: of topics, groups, queues and messages."""
    inside = f"ns%{names.topic}"
    fill(cluster, inside, numbered(inside, range(10)), 1)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, namespace="ns")
    heard: list[str] = []
    with LitePullConsumer(names.group, config=config, consume_from_where=FIRST) as consumer:
        consumer.subscribe(names.topic, "*", lambda topic, every, mine: heard.append(topic))
        got = poll_all(consumer, 10)
        assert {message.topic for message in got} == {names.topic}
        (mq,) = consumer.assignment()
        assert mq.topic == names.topic
        consumer.commit([mq], persist=True)
        assert consumer.committed(mq) == 10
        wait_until(lambda: heard, "the listener's call")
    assert set(heard) == {names.topic}
    assert cluster.committed(f"ns%{names.group}", inside, 1) == [10]


def test_a_paused_queue_brings_nothing_new(cluster: Cluster, names: Names) -> None:
    """Covers C-520: neither new messages nor those of a seek, until resumed."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 1)
    with subscribed(cluster, names) as consumer:
        poll_all(consumer, 10)
        (mq,) = consumer.assignment()
        consumer.pause([mq])
        consumer.seek_to_begin(mq)
        assert consumer.poll(100) == []
        consumer.resume([mq])
        assert bodies(poll_all(consumer, 10)) == list(range(10))


def test_where_a_new_group_begins(cluster: Cluster, names: Names) -> None:
    """Covers C-72, C-73, C-189, C-523: at the time asked for; a broker error is no offset."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 1)
    with subscribed(
        cluster,
        names,
        consume_from_where=ConsumeFromWhere.TIMESTAMP,
        consume_timestamp="20200101000000",
    ) as consumer:
        assert bodies(poll_all(consumer, 10)) == list(range(10))


def test_listeners_hear_when_a_topics_queues_change(cluster: Cluster, names: Names) -> None:
    """Covers C-71, C-521: told the new queues, and not told what they know."""
    cluster.create_topic(names.topic, 1)
    heard: list[int] = []
    told = threading.Event()

    def listener(topic: str, queues: list[MessageQueue]) -> None:
        assert topic == names.topic
        heard.append(len(queues))
        told.set()

    with lite(cluster, names, topic_metadata_check_interval_ms=50) as consumer:
        consumer.register_topic_message_queue_change_listener(names.topic, listener)
        cluster.create_topic(names.topic, 3)
        assert told.wait(WAIT_S)
    assert heard == [3]


def test_hooks_see_what_is_handed_out(cluster: Cluster, names: Names) -> None:
    """Covers C-495, C-232: consume hooks around a poll, filter hooks before messages are cached."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 1)
    seen: list[tuple[str, int, bool]] = []

    class Hook:
        name = "seeing"

        def consume_message_before(self, context: object) -> None:
            seen.append(("before", len(context.messages), context.success))  # type: ignore[attr-defined]

        def consume_message_after(self, context: object) -> None:
            seen.append(("after", len(context.messages), context.success))  # type: ignore[attr-defined]

        def filter_message(self, context: object) -> None:
            context.messages[:] = [m for m in context.messages if int(m.body) % 2]  # type: ignore[attr-defined]

    consumer = lite(cluster, names)
    consumer.register_consume_message_hook(Hook())
    consumer.register_filter_message_hook(Hook())
    consumer.subscribe(names.topic)
    with consumer:
        assert bodies(poll_all(consumer, 5)) == [1, 3, 5, 7, 9]
    assert seen == [("before", 5, False), ("after", 5, True)]
    assert cluster.committed(names.group, names.topic, 1) == [10]


# --- life ---------------------------------------------------------------------------------------


def test_a_consumer_starts_once(cluster: Cluster, names: Names) -> None:
    """Covers C-107, C-109, C-125: shared by both faces' kinds of calls."""
    consumer = subscribed(cluster, names)
    assert consumer.is_running
    with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
        consumer.start()
    consumer.shutdown()
    consumer.shutdown()
    assert not consumer.is_running
    calls: list[Callable[[], object]] = [
        consumer.assignment,
        consumer.commit_sync,
        lambda: consumer.seek(MessageQueue("T", "b", 0), 0),
        lambda: consumer.committed(MessageQueue("T", "b", 0)),
    ]
    for call in calls:
        with pytest.raises(ClientStateError, match="this LitePullConsumer is not running"):
            call()


def test_a_second_member_in_one_client_is_refused(cluster: Cluster, names: Names) -> None:
    """Covers C-125: the same group twice under one client id."""
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, instance_name="shared")
    one = LitePullConsumer(names.group, config=config)
    two = LitePullConsumer(names.group, config=config)
    with one, pytest.raises(RocketMQError, match="already; give this one another group"):
        two.start()
    with two:
        pass

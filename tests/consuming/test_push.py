"""What a push consumer does besides consuming: settings, strategies, stores, names, questions."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from rocketstream import (
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    FilterMessageContext,
    Message,
    MessageExt,
    MessageQueue,
    OffsetStore,
    ReadOffsetType,
)
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    OffsetNotFoundError,
    RouteNotFoundError,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import PushConsumer
from tests.kits.listeners import (
    LATER,
    SUCCESS,
    Gate,
    Seen,
    broker_name,
    consumer_of,
    numbered,
    send_all,
)
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


def own(consumer: PushConsumer, topic: str) -> list[int]:
    return [mq.queue_id for mq in consumer.assigned_queues() if mq.topic == topic]


# --- offsets --------------------------------------------------------------------------------------


def test_a_filtered_tail_is_committed_with_the_last_match(cluster: Cluster, names: Names) -> None:
    """Covers C-225 to C-227, C-569: Java's offset stays at 1 for the hold time, ours does not."""
    cluster.create_topic(names.topic, 1)
    tags = ["A", "B", "B", "B", "B", "B"]
    send_all(cluster.namesrv_addr, [Message(names.topic, tag, tags=tag) for tag in tags])
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, "A"):
        seen.wait_consumed(1)
    assert cluster.committed(names.group, names.topic, 1) == [6]


class Kept(OffsetStore):
    """A store of the user's own, in memory, that outlives its consumers."""

    def __init__(self) -> None:
        self.noted: dict[MessageQueue, int] = {}
        self.kept: dict[MessageQueue, int] = {}
        self.loads = 0

    def load(self) -> None:
        self.loads += 1

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
        if not increase_only or offset > self.noted.get(mq, -1):
            self.noted[mq] = offset

    def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        table = self.noted if read_type is ReadOffsetType.READ_FROM_MEMORY else self.kept
        return table.get(mq, -1)

    def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        self.kept.update({mq: self.noted[mq] for mq in mqs if mq in self.noted})

    def remove_offset(self, mq: MessageQueue) -> None:
        self.noted.pop(mq, None)

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        return dict(self.noted)


def test_a_store_of_the_users_own_replaces_the_brokers(cluster: Cluster, names: Names) -> None:
    """Covers C-44, C-111, C-211: loaded once, nothing committed or piggybacked to the broker."""
    cluster.create_topic(names.topic, 2)
    store = Kept()
    for begin, end in ((0, 10), (10, 14)):
        send_all(cluster.namesrv_addr, numbered(names.topic, range(begin, end)))
        seen = Seen()
        with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, offset_store=store):
            seen.wait_consumed(end - begin)
        assert sorted(map(int, seen.delivered)) == list(range(begin, end))
    assert store.loads == 2
    ends = [store.kept[mq] for mq in sorted(store.kept) if mq.topic == names.topic]
    assert ends == cluster.ends(names.topic, 2)
    assert set(cluster.committed(names.group, names.topic, 2)) <= {-1, 0}


def test_unsubscribing_stores_what_was_consumed(cluster: Cluster, names: Names) -> None:
    """Covers C-104, C-157, C-554: Java would lose up to five seconds of progress."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen) as consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(7)))
        seen.wait_consumed(7)
        consumer.unsubscribe(names.topic)
        wait_until(lambda: not own(consumer, names.topic), "the queue given up")
        wait_until(
            lambda: cluster.committed(names.group, names.topic, 1) == [7], "the offset committed"
        )


# --- strategies ----------------------------------------------------------------------------------


def test_members_divide_by_the_strategy_they_share(cluster: Cluster, names: Names) -> None:
    """Covers C-25, C-167: every second queue each."""
    cluster.create_topic(names.topic, 6)
    strategy = AllocateMessageQueueAveragelyByCircle()
    settings: dict[str, Any] = {"allocate_message_queue_strategy": strategy}
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, Seen(), **settings) as one,
        consumer_of(cluster.namesrv_addr, names.group, names.topic, Seen(), **settings) as two,
    ):
        shares = [[0, 2, 4], [1, 3, 5]]
        wait_until(
            lambda: sorted([own(one, names.topic), own(two, names.topic)]) == shares,
            "every second queue each",
        )


class Moody:
    """A strategy of the user's own that does what the test says."""

    name = "MOODY"

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked = 0

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if callable(self.answer):
            return self.answer(mq_all)  # type: ignore[no-any-return]
        return self.answer  # type: ignore[no-any-return]


def test_a_strategy_of_the_users_own_may_misbehave(cluster: Cluster, names: Names) -> None:
    """Covers C-162, C-169: raising keeps the queues, None drops them, strangers are left out."""
    cluster.create_topic(names.topic, 4)
    moody = Moody()
    moody.answer = lambda mqs: [*mqs[:2], mqs[0]._replace(queue_id=99), mqs[0]._replace(topic="X")]
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        Seen(),
        allocate_message_queue_strategy=moody,
    ) as consumer:
        wait_until(lambda: own(consumer, names.topic) == [0, 1], "its own two queues")

        def round_with(answer: Any) -> None:
            moody.answer = answer
            asked = moody.asked
            consumer.resume()
            wait_until(lambda: moody.asked >= asked + 4, "two more rounds")

        round_with(ZeroDivisionError("moody"))
        assert own(consumer, names.topic) == [0, 1]
        moody.answer = None
        consumer.resume()
        wait_until(lambda: not own(consumer, names.topic), "nothing left")
        moody.answer = lambda mqs: list(reversed(mqs))
        consumer.resume()
        wait_until(lambda: own(consumer, names.topic) == [0, 1, 2, 3], "all four queues")


def test_a_configured_list_serves_several_topics(cluster: Cluster, names: Names) -> None:
    """Covers C-169: each topic's turn takes its queues of the list."""
    other = names.topic + "b"
    cluster.create_topic(names.topic, 4)
    cluster.create_topic(other, 4)
    broker = broker_name(cluster)
    chosen = [MessageQueue(names.topic, broker, 1), MessageQueue(other, broker, 3)]
    consumer = consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        Seen(),
        allocate_message_queue_strategy=AllocateMessageQueueByConfig(chosen),
    )
    consumer.subscribe(other)
    with consumer:
        wait_until(lambda: consumer.assigned_queues() == chosen, "the configured queues")


# --- settings while running -----------------------------------------------------------------------


def test_bounds_can_be_changed_while_running(cluster: Cluster, names: Names) -> None:
    """Covers C-31, C-36, C-203 to C-205: held by the count, a higher one lets it go on."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(60)))
    gate = Gate(lambda message: True)
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        gate,
        pull_threshold_for_queue=3,
        pull_batch_size=4,
        consume_message_batch_max_size=1,
        consume_thread_min=1,
        consume_thread_max=64,
    ) as consumer:
        # Four pass the bound of three: it is looked at before a pull, not after it.
        gate.arrived.wait_deliveries(4)
        assert len(gate.arrived.deliveries) == 4
        with pytest.raises(
            ConfigurationError, match="pull_threshold_for_queue must be a whole number from 1"
        ):
            consumer.pull_threshold_for_queue = 0
        with pytest.raises(
            ClientStateError, match="consume_thread_max can be set only before start"
        ):
            consumer.consume_thread_max = 2
        consumer.pull_batch_size = 32
        consumer.pull_threshold_for_queue = 20
        gate.arrived.wait_deliveries(36)
        gate.opened.set()
        gate.seen.wait_consumed(60)


def test_a_bound_per_topic_is_shared_by_all_queues(cluster: Cluster, names: Names) -> None:
    """Covers C-32, C-183, C-184, C-207: 20 over four queues are 5 each, 4 with the retry queue."""
    cluster.create_topic(names.topic, 4)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(400)))
    gate = Gate(lambda message: True)
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        gate,
        pull_threshold_for_topic=20,
        pull_batch_size=1,
        consume_thread_max=100,
    ) as consumer:
        wait_until(lambda: len(consumer.assigned_queues()) == 5, "all five queues")
        gate.arrived.wait_deliveries(20)
        # One over the bound of each queue, as it is strict; of 400 that are there.
        assert 4 * (4 + 1) <= len(gate.arrived.deliveries) <= 4 * (5 + 1)
        gate.opened.set()
        gate.seen.wait_consumed(400)


def test_the_pool_can_be_resized_while_running(cluster: Cluster, names: Names) -> None:
    """Covers C-29, C-131, C-254, C-255: from eight calls at once to one, and back to four."""
    cluster.create_topic(names.topic, 1)
    gate = Gate(lambda message: True)
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        gate,
        consume_thread_min=1,
        consume_thread_max=8,
    ) as consumer:
        assert consumer.core_pool_size() == 8
        assert consumer.update_core_pool_size(1)
        send_all(cluster.namesrv_addr, numbered(names.topic, range(8)))
        gate.arrived.wait_deliveries(1)
        assert len(gate.arrived.deliveries) == 1
        assert consumer.update_core_pool_size(4)
        gate.arrived.wait_deliveries(4)
        assert len(gate.arrived.deliveries) == 4
        assert gate.seen.deliveries == [], "they came because others had ended"
        assert not consumer.update_core_pool_size(0)
        assert not consumer.update_core_pool_size(9)
        assert consumer.core_pool_size() == 4
        gate.opened.set()
        gate.seen.wait_consumed(8)


def test_the_expression_may_go_along_with_each_pull(cluster: Cluster, names: Names) -> None:
    """Covers C-39, C-213: the broker filters by it as by that of the heartbeat."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        "A",
        post_subscription_when_pull=True,
        pull_interval_ms=1,
    ):
        send_all(
            cluster.namesrv_addr, [Message(names.topic, tag, tags=tag) for tag in ("A", "B", "A")]
        )
        seen.wait_consumed(2)
    assert seen.delivered == ["A", "A"]


# --- hooks, names, questions ----------------------------------------------------------------------


class DropOdd:
    """Leaves only even numbers."""

    name = "drop-odd"

    def __init__(self) -> None:
        self.saw_last = threading.Event()

    def filter_message(self, context: FilterMessageContext) -> None:
        if context.messages[-1].body == b"19":
            self.saw_last.set()
        context.messages[:] = [m for m in context.messages if int(m.body) % 2 == 0]


class Raising:
    """Fails."""

    name = "raising"

    def filter_message(self, context: FilterMessageContext) -> None:
        raise ZeroDivisionError("hook")


def test_a_filter_hook_drops_messages_before_they_are_cached(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-220, C-232: what it leaves is consumed, what it drops is committed."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    consumer = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen)
    consumer.register_filter_message_hook(Raising())
    hook = DropOdd()
    consumer.register_filter_message_hook(hook)
    with consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(20)))
        seen.wait_consumed(10)
        assert hook.saw_last.wait(30)
    assert sorted(map(int, seen.delivered)) == list(range(0, 20, 2))
    assert cluster.committed(names.group, names.topic, 1) == [20]


def test_a_namespace_is_seen_by_servers_only(cluster: Cluster, names: Names) -> None:
    """Covers C-46, C-110, C-146 to C-148, C-270: topic, group and retry topic carry it, messages
    do not."""
    wire_topic, wire_group = f"NS%{names.topic}", f"NS%{names.group}"
    cluster.create_topic(wire_topic, 1)
    failed_once = threading.Event()

    def verdict(message: MessageExt) -> Any:
        if message.body == b"2" and not failed_once.is_set():
            failed_once.set()
            return LATER
        return SUCCESS

    seen = Seen(verdict)
    consumer = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, namespace="NS")
    with consumer:
        send_all(cluster.namesrv_addr, numbered(wire_topic, range(4)))
        seen.wait_consumed(4)
        assert {message.topic for message in seen.deliveries} == {names.topic}
        assert own(consumer, names.topic) == [0]
        assert consumer.fetch_subscribe_message_queues(names.topic)[0].topic == names.topic
    assert len(seen.deliveries) == 5
    assert cluster.committed(wire_group, wire_topic, 1) == [4]


def test_a_consumer_answers_what_javas_does(cluster: Cluster, names: Names) -> None:
    """Covers C-15, C-109, C-223: queues, offsets and messages, asked through the consumer."""
    cluster.create_topic(names.topic, 2)
    seen = Seen()
    consumer = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen)
    with pytest.raises(ClientStateError, match=r"is not running \(CREATE_JUST"):
        consumer.fetch_subscribe_message_queues(names.topic)
    with consumer:
        send_all(cluster.namesrv_addr, [Message(names.topic, "x", keys="k1")])
        seen.wait_consumed(1)
        message = seen.consumed[0]
        mqs = consumer.fetch_subscribe_message_queues(names.topic)
        assert [mq.queue_id for mq in mqs] == [0, 1]
        mq = mqs[message.queue_id]
        assert (consumer.min_offset(mq), consumer.max_offset(mq)) == (0, 1)
        assert consumer.search_offset(mq, 0) == 0
        assert consumer.earliest_msg_store_time(mq) == message.store_timestamp
        assert consumer.view_message(names.topic, message.offset_msg_id).body == b"x"
        wait_until(
            lambda: consumer.query_message(names.topic, "k1", 5, 0, 2**62), "the key in the index"
        )
        assert consumer.view_message(names.topic, message.msg_id).body == b"x"
        with pytest.raises(RouteNotFoundError, match="not exist"):
            consumer.fetch_subscribe_message_queues(names.topic + "-none")
        with pytest.raises(OffsetNotFoundError):
            consumer.view_message(names.topic, "F" * 32)
        consumer.create_topic("TBW102", names.topic + "-new", 3)
        wait_until(lambda: _queues(consumer, names.topic + "-new") == 3, "the new topic's route")


def _queues(consumer: PushConsumer, topic: str) -> int:
    try:
        return len(consumer.fetch_subscribe_message_queues(topic))
    except RouteNotFoundError:
        return 0


def test_a_running_consumer_shows_its_offsets(cluster: Cluster, names: Names) -> None:
    """Covers C-111, C-299, C-301, C-302, C-319, C-320: as Java's getOffsetStore."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    consumer = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen)
    with pytest.raises(ClientStateError, match="CREATE_JUST"):
        consumer.offset_store  # noqa: B018 - a property
    with consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(5)))
        seen.wait_consumed(5)
        store = consumer.offset_store
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        wait_until(lambda: store.read_offset(mq, ReadOffsetType.READ_FROM_MEMORY) == 5, "the fifth")
        store.persist(mq)
        assert store.read_offset(mq, ReadOffsetType.READ_FROM_STORE) == 5
        assert store.clone_offset_table(names.topic) == {mq: 5}
        gone = mq._replace(broker_name="gone")
        assert store.read_offset(gone, ReadOffsetType.READ_FROM_MEMORY) == -1
        assert store.read_offset(gone, ReadOffsetType.MEMORY_FIRST_THEN_STORE) == -2
        with pytest.raises(RouteNotFoundError, match="not exist"):
            store.update_consume_offset_to_broker(gone, 1)
        store.update_offset(mq, 3)
        assert store.read_offset(mq, ReadOffsetType.MEMORY_FIRST_THEN_STORE) == 5
        store.update_offset(mq, 3, increase_only=False)
        store.remove_offset(mq)
        store.update_consume_offset_to_broker(mq, 2)
        assert cluster.committed(names.group, names.topic, 1) == [2]


def test_a_listener_may_send_a_message_back_itself(cluster: Cluster, names: Names) -> None:
    """Covers C-273: it comes again although the listener succeeded."""
    cluster.create_topic(names.topic, 1)
    sent_back = threading.Event()

    def verdict(message: MessageExt) -> Any:
        if not sent_back.is_set():
            sent_back.set()
            consumer.send_message_back(message, 1)
        return SUCCESS

    seen = Seen(verdict)
    consumer = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen)
    with consumer:
        send_all(cluster.namesrv_addr, [Message(names.topic, "x")])
        seen.wait_deliveries(2)
    assert [message.reconsume_times for message in seen.deliveries] == [0, 1]
    assert {message.topic for message in seen.deliveries} == {names.topic}

"""The lite pull consumer's machine step by step, without a network, by a clock of the tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rocketstream import ConsumeFromWhere, MessageExt, MessageModel, MessageQueue
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.client.consumer.lite.queues import LitePullPlan, LiteQueue
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.client.hooks import FilterHooks
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.subscription import build_subscription
from tests.kits.client.fake_broker import GROUP, TOPIC
from tests.kits.client.queued import queued
from tests.kits.client.still_client import StillClient, StillStore

MQ = MessageQueue(TOPIC, "broker-a", 0)
OTHER = MessageQueue(TOPIC, "broker-a", 1)
ELSEWHERE = MessageQueue("U", "broker-a", 0)


class World:
    """One machine, on its still client; pulls are noted instead of sent."""

    def __init__(
        self,
        *,
        assigned: tuple[MessageQueue, ...] | None = None,
        topics: tuple[str, ...] = (TOPIC,),
        listener: Any = None,
        client_unit_mode: bool = False,
        namespace: str | None = None,
        **settings: Any,
    ) -> None:
        self.client = StillClient(unit_mode=client_unit_mode, namespace=namespace)
        self.client.queues = {TOPIC: (MQ, OTHER), "U": (ELSEWHERE,)}
        self.store = StillStore()
        self.store.stored = {MQ: 5, OTHER: 5, ELSEWHERE: 5}
        self.hooks = FilterHooks()
        self.plan = LitePullPlan()
        if assigned is not None:
            self.plan.assign(assigned)
        else:
            for topic in topics:
                self.plan.subscribe(build_subscription(topic, "A", 1), listener)
        self.arrived = 0
        self.pulled: list[MessageQueue] = []
        made = LitePullConsumerSettings(GROUP, **settings)

        async def make() -> LitePullConsumerImpl:
            return LitePullConsumerImpl(
                cast(Any, self.client), GROUP, made, self.plan, cast(Any, self.store), self.hooks,
                threaded=False,
            )  # fmt: skip

        self.machine = self.client.run(make())
        self.machine.has_arrived = self.note_arrival
        self.machine.admin = cast(Any, self)
        self.machine.pulls.pull = self.note_pull

    async def min_offset(self, mq: MessageQueue) -> int:
        return self.client.ends[0]

    async def max_offset(self, mq: MessageQueue) -> int:
        return self.client.ends[1]

    def note_arrival(self) -> None:
        self.arrived += 1

    def note_pull(self, queue: LiteQueue, epoch: int | None = None) -> None:
        if epoch is None or epoch == queue.epoch:
            self.pulled.append(queue.message_queue)

    @property
    def done(self) -> list[tuple[Any, ...]]:
        return self.client.done

    def start(self) -> None:
        self.client.run(self.machine.start())

    def take(self, *mqs: MessageQueue, offset: int = 5) -> list[LiteQueue]:
        for mq in mqs:
            self.machine.queues.table[mq] = self.machine.new_queue(mq, offset)
        return [self.machine.cache.queues[mq] for mq in mqs]

    def bring(self, queue: LiteQueue, *offsets: int, end: int | None = None) -> int:
        found = [queued(offset) for offset in offsets]
        return self.machine.accept(  # type: ignore[no-any-return]
            queue, found, end if end is not None else offsets[-1] + 1, 10 * len(found)
        )

    def hand_out(self, count: int = 1) -> list[MessageExt]:
        self.machine.cache.settle()
        return self.machine.cache.take(count)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.client.run(self.machine.shutdown(commit=False))
        self.client.close()


Made = Callable[..., World]


@pytest.fixture
def made() -> Iterator[Made]:
    worlds: list[World] = []

    def make(**how: Any) -> World:
        worlds.append(World(**how))
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()


@pytest.fixture
def world(made: Made) -> World:
    return made()


# --- start and end ------------------------------------------------------------------------------


def test_a_start_learns_tells_and_divides_when_it_may(world: World) -> None:
    """Covers C-125: nothing is divided before listeners may use the consumer."""
    world.machine.begin()
    assert not world.machine.is_active()
    world.machine._dividing = False
    world.done.clear()
    world.start()
    assert world.done == [("added", GROUP), ("route", TOPIC), ("beat",), ("checked", GROUP)]
    assert world.machine.running
    assert world.machine.topic_changes._task is not None
    assert not world.machine.is_active()
    world.machine.begin()
    assert world.machine.is_active()
    assert world.done[-1] == ("rebalance",)


def test_listeners_of_topics_are_registered_at_the_start(world: World) -> None:
    """Covers C-522."""
    world.client.run(world.machine.start({"U": print}))
    assert world.machine.topic_changes._listeners == {"U": print}


def test_assigned_queues_are_begun_at_the_start(made: Made) -> None:
    """Covers C-506."""
    world = made(assigned=(MQ,))
    assert world.machine.subscribed_topics() == {TOPIC}
    world.start()
    assert world.machine.assignment() == [MQ]
    assert world.pulled == [MQ]
    assert world.store.noted[MQ] == 5


def test_a_start_that_is_refused_leaves_nothing_behind(world: World) -> None:
    """Covers C-118: nor does it say that anything is done."""
    world.client.refusal = ValueError("check")
    (queue,) = world.take(MQ)
    world.bring(queue, 5)
    world.hand_out()
    with pytest.raises(ValueError, match="check"):
        world.start()
    assert ("unregistered", GROUP) in world.done
    assert not world.machine.running
    assert world.store.called("update") == []


@pytest.mark.parametrize("auto_commit", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_the_end_commits_what_the_caller_is_done_with(
    made: Made, auto_commit: bool, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-126, C-517: what was handed out last only where it counts as done."""
    world = made(auto_commit=auto_commit)
    world.start()
    (queue,) = world.take(MQ)
    world.bring(queue, 5, 6, 7)
    world.hand_out()
    world.hand_out()
    real, closed = world.machine.topic_changes.stop, []

    async def stop() -> None:
        closed.append(world.machine.queues._closed)
        await real()

    monkeypatch.setattr(world.machine.topic_changes, "stop", stop)
    world.client.run(world.machine.shutdown(commit=commit))
    assert closed == [True], "no queue is taken from the first step on"
    expected = [("update", MQ, 7 if commit else 6, False)] if auto_commit else []
    assert world.store.called("update") == expected
    assert world.machine.assignment() == []
    assert world.arrived == 2, "who waits for messages is told of the end"
    assert not world.machine.running
    assert world.machine.pulls._stopped
    assert world.done[-1] == ("unregistered", GROUP)
    assert world.store.called("persist for good") == [("persist for good", [MQ])]
    task = world.machine.topic_changes._task
    assert task is not None
    assert task.cancelled()
    assert world.client.run(world.machine.rebalance())
    assert world.machine.queues.table == {}


# --- what the instance asks -----------------------------------------------------------------------


@pytest.mark.parametrize("unit_mode", [False, True])
def test_a_heartbeat_says_what_is_subscribed(made: Made, unit_mode: bool) -> None:
    """Covers C-144, C-523: nothing in assign mode."""
    data = made(unit_mode=unit_mode).machine.heartbeat_data()
    assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_ACTIVELY")
    assert (data.message_model, data.unit_mode) == ("CLUSTERING", unit_mode)
    assert data.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert [each.topic for each in data.subscription_data_set] == [TOPIC]
    assert made(assigned=(MQ,)).machine.heartbeat_data().subscription_data_set == []


def test_a_client_in_unit_mode_has_consumers_in_unit_mode(made: Made) -> None:
    """Covers C-11."""
    assert made(client_unit_mode=True).machine.heartbeat_data().unit_mode is True


def test_a_round_divides_what_is_subscribed(world: World) -> None:
    """Covers C-156, C-504: with the settings of the consumer."""
    world.start()
    assert world.client.run(world.machine.rebalance())
    assert world.machine.assignment() == [], "not before it may"
    world.machine.begin()
    assert world.client.run(world.machine.rebalance())
    assert world.machine.assignment() == [MQ, OTHER]
    assert world.pulled == [MQ, OTHER]


def test_queues_that_are_assigned_are_taken_by_a_round_too(made: Made) -> None:
    """Covers C-506: while the consumer runs."""
    world = made(assigned=(MQ,))
    assert world.client.run(world.machine.rebalance()) is True
    assert world.machine.assignment() == []
    world.machine.running = True
    assert world.client.run(world.machine.rebalance()) is True
    assert world.machine.assignment() == [MQ]
    world.plan.assign((OTHER, ELSEWHERE))
    world.store.error = ConfigurationError("no")
    assert world.client.run(world.machine.rebalance()) is False
    assert world.machine.assignment() == []


def test_an_assignment_that_cannot_be_begun_is_tried_again_soon(made: Made) -> None:
    """Covers C-506."""
    world = made(assigned=(MQ,))
    world.machine.running = True
    world.client.run(world.machine.apply_assignment())
    assert ("rebalance",) not in world.done
    world.plan.assign((OTHER,))
    world.store.error = ConfigurationError("no")
    world.client.run(world.machine.apply_assignment())
    assert ("rebalance",) in world.done


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"topics": ()}, "unsubscribed"),
        ({}, "subscribed"),
        ({"assigned": (MQ,)}, "subscribed"),
    ],
)
def test_a_consumer_of_nothing_is_told(made: Made, how: dict[str, Any], said: str) -> None:
    world = made(**how)
    world.client.run(world.machine.persist_offsets())
    assert world.client.said == [(said, GROUP)]


def test_offsets_are_committed_every_interval(made: Made) -> None:
    """Covers C-62, C-516: what the caller came back from; backwards too."""
    world = made(auto_commit_interval_ms=3_000)
    (queue,) = world.take(MQ)
    world.bring(queue, 5, 6, 7)
    world.hand_out()
    world.hand_out()
    world.client.turn(2_999)
    world.client.run(world.machine.persist_offsets())
    assert world.store.called("update") == []
    world.client.turn(1)
    world.client.run(world.machine.persist_offsets())
    assert world.store.calls[-3:] == [
        ("update", MQ, 6, False), ("persist", [MQ]), ("check", [MQ]),
    ]  # fmt: skip
    world.hand_out()
    world.client.turn(2_999)
    world.client.run(world.machine.persist_offsets())
    assert len(world.store.called("update")) == 1
    world.client.turn(1)
    world.client.run(world.machine.persist_offsets())
    assert world.store.called("update")[1:] == [("update", MQ, 7, False)]


def test_nothing_is_committed_for_who_commits_himself(made: Made) -> None:
    """Covers C-61."""
    world = made(auto_commit=False)
    (queue,) = world.take(MQ)
    world.bring(queue, 5, 6)
    world.hand_out()
    world.hand_out()
    world.client.turn(60_000)
    world.client.run(world.machine.persist_offsets())
    world.client.run(world.machine.give_up([queue]))
    assert world.store.called("update") == []


@pytest.mark.parametrize("is_assigned", [False, True])
def test_what_another_member_has_consumed_is_left_out(made: Made, is_assigned: bool) -> None:
    """Covers C-559: unless the caller is as far, or queues are assigned, which several may have."""
    world = made(assigned=(MQ, OTHER)) if is_assigned else made()
    queue, further = world.take(MQ, OTHER)
    further.position = 50
    world.store.passed = {MQ: 50, OTHER: 50, ELSEWHERE: 50}
    world.store.overtaken = lambda mqs: dict(world.store.passed)  # type: ignore[method-assign]
    epoch = further.epoch
    world.client.run(world.machine.persist_offsets())
    assert queue.position == (5 if is_assigned else 50)
    assert further.epoch == epoch
    assert world.pulled == ([] if is_assigned else [MQ])


def test_lost_connections_are_told_to_the_store(world: World) -> None:
    """Covers C-303."""
    world.machine.connection_lost("a:1")
    assert world.store.calls == [("connection lost", "a:1")]


def test_operators_see_what_is_cached(world: World) -> None:
    """Covers C-540."""
    queue, empty = world.take(MQ, OTHER)
    world.store.noted = {MQ: 4}
    world.machine.accept(queue, [queued(5), queued(9)], 10, 3 << 20)
    queue.pull_begins(world.client.clock.monotonic_ms())
    world.client.turn(500)
    info = world.client.run(world.machine.running_info())
    told = info.mq_table[MQ]
    assert (told.commit_offset, told.cached_msg_count, told.cached_msg_size_in_mib) == (4, 2, 3)
    assert (told.cached_msg_min_offset, told.cached_msg_max_offset) == (5, 9)
    assert told.last_pull_timestamp == world.client.clock.now_ms() - 500
    assert told.droped is False
    assert info.mq_table[OTHER].commit_offset == 0
    assert info.properties["consumerGroup"] == GROUP
    assert "PROP_CONSUMER_START_TIMESTAMP" in info.properties
    assert [each.topic for each in info.subscription_set] == [TOPIC]
    assert empty.cached == 0


def test_a_reset_goes_on_elsewhere_at_once_and_is_stored(made: Made) -> None:
    """Covers C-572: in the queues that are ours; queues that were held back are pulled again."""
    world = made(pull_threshold_for_all=1)
    queue, held = world.take(MQ, OTHER)
    world.bring(queue, 5, 6, 7)
    assert not world.machine.may_pull(held)
    world.client.run(world.machine.reset_offsets(TOPIC, {ELSEWHERE: 3, MQ: 30}))
    assert (queue.position, queue.pull_offset, queue.noted, queue.cached) == (30, 30, 30, 0)
    assert world.store.called("update") == [("update", MQ, 30, False)]
    assert world.store.called("persist") == [("persist", [MQ])]
    assert world.pulled == [MQ, OTHER]


def test_a_seek_while_a_reset_is_stored_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-519, C-572."""
    (queue,) = world.take(MQ)

    async def persist(mqs: object) -> None:
        world.machine.cache.seek(queue, 8)

    monkeypatch.setattr(world.store, "persist", persist)
    world.client.run(world.machine.reset_offsets(TOPIC, {MQ: 30}))
    assert world.pulled == []


def test_operators_ask_for_the_offsets_of_a_topic(world: World) -> None:
    """Covers C-534."""
    world.take(MQ, OTHER, ELSEWHERE)
    world.store.noted = {MQ: 7, ELSEWHERE: 3}
    assert world.machine.consumer_status(TOPIC) == {MQ: 7}
    assert world.machine.consumer_status("U") == {ELSEWHERE: 3}


# --- pulls ----------------------------------------------------------------------------------------


def test_a_queue_that_leaves_or_is_full_is_not_pulled(made: Made) -> None:
    """Covers C-510, C-520."""
    world = made(pull_threshold_for_queue=1)
    queue, leaving = world.take(MQ, OTHER)
    assert world.machine.may_pull(queue) is True
    world.bring(queue, 5, 6)
    assert world.machine.may_pull(queue) is False
    leaving.leave()
    assert world.machine.may_pull(leaving) is False


def test_a_pull_is_asked_for_as_the_settings_say(made: Made) -> None:
    """Covers C-509, C-524: no commit goes along, and no version of tags."""
    world = made(broker_suspend_max_time_ms=700, consumer_timeout_ms_when_suspend=900)
    (queue,) = world.take(MQ)
    wanted = world.plan.subscription(TOPIC)
    flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL
    terms = world.machine.terms(queue, wanted, to_slave=True)
    assert terms == (256, flags, 0, 700, 900, True, 0, 0, None)


def test_what_a_pull_brings_is_cached_and_told(world: World) -> None:
    """Covers C-508: an answer without messages wakes nobody."""
    (queue,) = world.take(MQ)
    assert world.bring(queue, 5, 6) == 2
    assert (world.arrived, queue.cached, queue.cached_bytes, queue.pull_offset) == (1, 2, 20, 7)
    assert world.machine.accept(queue, [], 9, 0) == 0
    assert (world.arrived, queue.pull_offset) == (1, 9)


def test_messages_have_the_topic_their_user_knows(made: Made) -> None:
    """Covers C-2."""
    world = made(namespace="ns")
    (queue,) = world.take(MQ)
    message = queued(5)
    message._topic = f"ns%{TOPIC}"
    assert world.machine.accept(queue, [message], 6, 10) == 1
    assert message.topic == TOPIC


def test_a_seek_while_hooks_filter_discards_the_answer(world: World) -> None:
    """Covers C-220, C-519."""
    (queue,) = world.take(MQ)

    class Hook:
        name = "hook"

        def filter_message(self, context: Any) -> None:
            assert (context.consumer_group, context.unit_mode) == (GROUP, False)
            world.machine.cache.seek(queue, 50)

    world.hooks.register(cast(Any, Hook()))
    assert world.bring(queue, 5) == 0
    assert (world.arrived, queue.pull_offset) == (0, 50)


def test_a_queue_that_is_shorter_goes_on_where_the_broker_says(world: World) -> None:
    """Covers C-512."""
    (queue,) = world.take(MQ)
    world.machine.moved(queue, 3)
    assert (queue.pull_offset, world.pulled) == (3, [MQ])


@pytest.mark.parametrize(("stored", "begins"), [(2, 2), (9, 5), (0, 5), (None, 5)])
def test_a_queue_that_ends_before_goes_on_where_the_group_is(
    world: World, stored: int | None, begins: int
) -> None:
    """Covers C-564: a broker says 0 of a queue nobody has committed to."""
    (queue,) = world.take(MQ)
    if stored is not None:
        world.store.stored[MQ] = stored
    world.machine.ends_before(queue, 5)
    assert world.pulled == []
    world.client.turn()
    assert (queue.pull_offset, world.pulled) == (begins, [MQ])


def test_a_queue_that_ends_before_stays_where_its_caller_went_meanwhile(world: World) -> None:
    (queue,) = world.take(MQ)
    world.store.stored[MQ] = 2
    world.machine.ends_before(queue, 5)
    world.client.run(world.machine.seek(MQ, 4))
    world.client.turn()
    assert queue.pull_offset == 4


def test_a_queue_that_begins_anew_is_given_up_where_it_begins(world: World) -> None:
    """With what was cached of the topic before, a rebalance committed that topic's offsets."""
    (queue,) = world.take(MQ)
    world.bring(queue, 5, 6)
    world.hand_out()
    world.bring(queue, 7)
    world.machine.moved(queue, 0)
    assert world.hand_out() == []
    world.client.run(world.machine.give_up([queue]))
    assert world.store.noted[MQ] == 0


# --- queues ---------------------------------------------------------------------------------------


def test_what_was_noted_of_a_topic_that_is_gone_is_not_said(made: Made) -> None:
    """The topic may be there anew by then, with other messages at these offsets."""
    world = made()
    (queue,) = world.take(MQ)
    world.bring(queue, 5, 6)
    world.hand_out()
    world.hand_out()
    world.machine.pulls.is_gone = lambda mq: mq == MQ
    world.client.run(world.machine.persist_offsets())
    assert world.store.called("persist") == [("persist", [])]
    world.client.run(world.machine.give_up([queue]))
    assert MQ not in world.store.noted


def test_queues_that_are_given_up_commit_what_the_caller_is_done_with(made: Made) -> None:
    """Covers C-515, C-517: what it holds is the next owner's; others may be pulled again."""
    world = made(pull_threshold_for_all=1)
    queue, held = world.take(MQ, OTHER)
    world.bring(queue, 5, 6, 7)
    world.hand_out()
    world.hand_out()
    assert not world.machine.may_pull(held)
    forgotten: list[MessageQueue] = []
    world.machine.pulls.forget = forgotten.append
    world.client.run(world.machine.give_up([queue]))
    assert world.store.called("update") == [("update", MQ, 6, False)]
    assert (world.machine.assignment(), forgotten, world.pulled) == ([OTHER], [MQ], [OTHER])
    assert queue.leaving


@pytest.mark.parametrize("of_topic", [False, True])
def test_changes_are_told_to_the_topics_listener_or_the_consumers(
    made: Made, of_topic: bool
) -> None:
    """Covers C-507."""
    told: list[tuple[str, str]] = []

    def topics(topic: str, every: object, mine: object) -> None:
        told.append(("the topic's", topic))

    def consumers(topic: str, every: object, mine: object) -> None:
        told.append(("the consumer's", topic))

    world = made(listener=topics if of_topic else None, message_queue_listener=consumers)
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    world.client.turn()
    assert told == [("the topic's" if of_topic else "the consumer's", TOPIC)]


def test_changes_nobody_listens_to_are_told_to_nobody(world: World) -> None:
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    world.client.run(world.machine.queues_changed("U", [], []))
    world.client.turn()


def test_a_subscription_is_told_to_the_brokers_and_queues_divided(world: World) -> None:
    """Covers C-103."""
    world.client.run(world.machine.subscription_changed(TOPIC, None))
    assert world.done == [("route", TOPIC), ("checked", GROUP), ("beat",), ("rebalance",)]
    assert world.machine.subscription(TOPIC) is world.plan.topics[TOPIC][0]
    world.client.refusal = ValueError("check")
    with pytest.raises(ValueError, match="check"):
        world.client.run(world.machine.subscription_changed(TOPIC, None))
    assert world.plan.topics == {}


@pytest.mark.parametrize("what", ["another topic", "the same topic", "unsubscribed"])
def test_a_subscription_that_fails_undoes_no_other(
    world: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-118: nor does one that is cancelled, when others came while brokers were asked."""
    (before,) = world.plan.topics.values()
    world.plan.subscribe(build_subscription(TOPIC, "B", 2), None)
    after: dict[str, Any] = {}

    async def update(_: str) -> bool:
        if what == "unsubscribed":
            world.plan.unsubscribe(TOPIC)
        else:
            topic = "U" if what == "another topic" else TOPIC
            world.plan.subscribe(build_subscription(topic, "C", 3), None)
            after.update(world.plan.topics)
        if what == "another topic":
            after[TOPIC] = before
        raise asyncio.CancelledError

    monkeypatch.setattr(world.machine.instance.route_updates, "update", update)
    with pytest.raises(asyncio.CancelledError):
        world.client.run(world.machine.subscription_changed(TOPIC, before))
    assert world.plan.topics == after


def test_a_topic_that_is_unsubscribed_gives_its_queues_up_at_once(world: World) -> None:
    """Covers C-104: so a subscription that comes back begins anew."""
    world.start()
    world.machine.begin()
    world.client.run(world.machine.rebalance())
    world.take(ELSEWHERE)
    world.plan.unsubscribe(TOPIC)
    world.done.clear()
    world.client.run(world.machine.unsubscribed(TOPIC))
    assert world.done == [("beat",)]
    assert MQ not in world.machine.queues.table
    assert MQ not in world.machine.cache.queues
    assert world.store.called("persist for good")


def test_a_topic_that_is_unsubscribed_hands_nothing_out_though_no_round_is_made(
    world: World,
) -> None:
    """Covers C-104: other topics do."""
    queue, other = world.take(MQ, ELSEWHERE)
    world.bring(queue, 5)
    world.bring(other, 5)
    world.plan.unsubscribe(TOPIC)
    world.client.run(world.machine.unsubscribed(TOPIC))
    assert world.machine.assignment() == [ELSEWHERE]
    assert [each.queue_offset for each in world.hand_out(9)] == [5]
    assert world.hand_out(9) == []


# --- positions and commits ------------------------------------------------------------------------


def test_a_caller_commits_where_it_is(made: Made) -> None:
    """Covers C-514: of some queues or of all; what it holds is done then."""
    world = made(auto_commit=False)
    queue, _ = world.take(MQ, OTHER)
    world.bring(queue, 5, 6)
    world.hand_out()
    assert world.machine.commit_positions([MQ]) == [MQ]
    assert world.store.called("update") == [("update", MQ, 6, False)]
    assert world.machine.commit_positions(None) == [MQ, OTHER]


def test_offsets_of_queues_of_others_are_not_committed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-514."""
    world.take(MQ)
    with caplog.at_level(logging.WARNING):
        assert world.machine.commit_offsets({MQ: 9, OTHER: 8}) == [MQ]
    assert world.store.called("update") == [("update", MQ, 9, False)]
    assert "offset 8 of" in caplog.text
    assert "offset 9 of" not in caplog.text


def test_the_committed_offset_is_the_noted_one_or_the_stored(world: World) -> None:
    """Covers C-518: asking for a queue of others notes nothing."""
    world.take(MQ)
    world.store.noted = {MQ: 7}
    assert world.client.run(world.machine.committed(MQ)) == 7
    world.store.noted = {}
    assert world.client.run(world.machine.committed(MQ)) == 5
    assert world.store.called("remove") == []
    assert world.client.run(world.machine.committed(OTHER)) == 5
    assert world.store.called("remove") == [("remove", OTHER)]
    world.store.stored = {}
    assert world.client.run(world.machine.committed(MQ)) == -1


@pytest.mark.parametrize(
    ("offset", "to_end", "goes_on"),
    [(0, False, 0), (77, False, 77), (None, False, 0), (None, True, 77)],
)
def test_a_seek_goes_on_within_the_queue(
    made: Made, offset: int | None, to_end: bool, goes_on: int
) -> None:
    """Covers C-519: held queues for which there is room now are pulled as well."""
    world = made(pull_threshold_for_all=1)
    queue, held = world.take(MQ, OTHER)
    world.bring(queue, 5, 6, 7)
    assert not world.machine.may_pull(held)
    world.client.run(world.machine.seek(MQ, offset, to_end=to_end))
    assert (queue.pull_offset, queue.cached) == (goes_on, 0)
    assert world.pulled == [MQ, OTHER]


def test_a_seek_goes_to_the_beginning_unless_told_otherwise(world: World) -> None:
    (queue,) = world.take(MQ)
    world.client.ends = (3, 77)
    world.client.run(world.machine.seek(MQ, None))
    assert queue.pull_offset == 3


@pytest.mark.parametrize("offset", [2, 78, "7"])
def test_a_seek_outside_the_queue_is_refused(world: World, offset: Any) -> None:
    """Covers C-519."""
    (queue,) = world.take(MQ)
    world.client.ends = (3, 77)
    with pytest.raises(ConfigurationError, match="min offset = 3, max offset = 77"):
        world.client.run(world.machine.seek(MQ, offset))
    assert (queue.pull_offset, world.pulled) == (5, [])


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_seek_in_a_queue_of_others_asks_nobody(
    made: Made, is_assigned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-519."""
    world = made(assigned=(OTHER,)) if is_assigned else made()

    async def ask(mq: MessageQueue) -> int:
        raise AssertionError("asked for ends")

    monkeypatch.setattr(world.machine.admin, "min_offset", ask)
    with pytest.raises(ConfigurationError, match="not in assigned list") as raised:
        world.client.run(world.machine.seek(MQ, 7))
    assert ("may be rebalancing" in str(raised.value)) is not is_assigned


def test_a_paused_queue_is_pulled_again_when_it_is_resumed(world: World) -> None:
    """Covers C-520: once, and only where nothing is on its way for it."""
    queue, other = world.take(MQ, OTHER)
    world.machine.pause([MQ, OTHER, ELSEWHERE])
    assert (queue.paused, other.paused) == (True, True)
    assert not world.machine.may_pull(queue)
    assert queue.idle
    world.machine.resume([MQ, OTHER, ELSEWHERE])
    assert (queue.paused, other.paused, queue.idle) == (False, False, False)
    assert world.pulled == [MQ]
    queue.idle = True
    world.machine.resume([MQ])
    assert world.pulled == [MQ], "it was not paused"


def test_a_group_shares_and_begins_as_its_settings_say(made: Made) -> None:
    """Covers C-60, C-189."""
    world = made(
        message_model=MessageModel.BROADCASTING, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    sharing = world.machine.queues._settings
    assert sharing.message_model is MessageModel.BROADCASTING
    assert sharing.where is ConsumeFromWhere.FIRST_OFFSET

"""The push consumer's machine step by step, without a network, by a clock of the tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rocketstream import ConsumeConcurrentlyStatus, MessageExt, MessageModel, MessageQueue
from rocketstream.client.consumer import send_back
from rocketstream.client.consumer.consume.concurrent import (
    AsyncConsumeService,
    ConsumeMessageConcurrentlyService,
)
from rocketstream.client.consumer.consume.failure_cause import FailureCause
from rocketstream.client.consumer.consume.orderly import (
    AsyncOrderlyService,
    ConsumeMessageOrderlyService,
)
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.process_queue import Thresholds
from rocketstream.client.consumer.push import impl
from rocketstream.client.consumer.push.impl import PushConsumerImpl
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.client.consumer.send_back import DroppedMessages, FailedMessages
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.hooks import ConsumeHooks, FilterHooks
from rocketstream.errors import BrokerError, ConnectError, RequestTimeoutError
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.subscription import build_subscription
from tests.kits.client.fake_broker import GROUP, TOPIC
from tests.kits.client.queued import queued
from tests.kits.client.still_client import StillClient, StillStore

MQ = MessageQueue(TOPIC, "broker-a", 0)
OTHER = MessageQueue(TOPIC, "broker-a", 1)
RETRY = f"%RETRY%{GROUP}"
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class Tracing:
    """Says when it starts and stops."""

    def __init__(self, done: list[tuple[Any, ...]]) -> None:
        self.done = done

    def start(self) -> None:
        self.done.append(("trace",))

    async def stop(self) -> None:
        self.done.append(("trace ended",))


class World:
    """One machine, on its still client."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        orderly: bool = False,
        is_async: bool = True,
        topics: tuple[str, ...] = (TOPIC,),
        namespace: str | None = None,
        **settings: Any,
    ) -> None:
        monkeypatch.setattr(send_back, "plain_sender", lambda *_: None)
        self.client = StillClient(namespace=namespace) if namespace else StillClient()
        self.client.queues = {topic: (MQ, OTHER) for topic in topics if topic == TOPIC}
        self.client.queues[RETRY] = ()
        self.store = StillStore()
        self.filter_hooks = FilterHooks()
        self.calls: list[list[int]] = []

        def plain(messages: list[MessageExt]) -> object:
            self.calls.append([each.queue_offset for each in messages])
            return SUCCESS

        async def coroutine(messages: list[MessageExt]) -> object:
            return plain(messages)

        self.listener = listener_of(coroutine if is_async else plain, orderly=orderly)
        made = PushConsumerSettings(GROUP, **settings)
        wanted = {topic: build_subscription(topic, "A", 1) for topic in topics}

        async def make() -> PushConsumerImpl:
            return PushConsumerImpl(
                cast(Any, self.client), made, wanted, self.listener, cast(Any, self.store),
                ConsumeHooks(), self.filter_hooks, cast(Any, Tracing(self.client.done)),
            )  # fmt: skip

        self.machine = self.client.run(make())

    @property
    def done(self) -> list[tuple[Any, ...]]:
        return self.client.done

    def start(self) -> None:
        self.client.run(self.machine.start())

    def take(self, *mqs: MessageQueue, offset: int = 5) -> list[AssignedQueue]:
        """Have queues that nobody pulls yet."""
        for mq in mqs:
            self.machine.queues.table[mq] = self.machine.new_queue(mq, offset)
        return [self.machine.queues.table[mq] for mq in mqs]

    def close(self) -> None:
        self.client.run(self.machine.shutdown(0))
        self.client.close()


Made = Callable[..., World]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    worlds: list[World] = []

    def make(**how: Any) -> World:
        worlds.append(World(monkeypatch, **how))
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()


@pytest.fixture
def world(made: Made) -> World:
    return made()


# --- its parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orderly", "is_async", "service"),
    [
        (False, False, ConsumeMessageConcurrentlyService),
        (False, True, AsyncConsumeService),
        (True, False, ConsumeMessageOrderlyService),
        (True, True, AsyncOrderlyService),
    ],
)
def test_a_listener_has_the_service_of_its_kind(
    made: Made, orderly: bool, is_async: bool, service: type[Any]
) -> None:
    """Covers C-107, C-254, C-279: its queues leave as that wants it."""
    world = made(orderly=orderly, is_async=is_async)
    assert type(world.machine.service) is service
    assert world.machine.queues._settings.in_order is orderly
    assert (world.machine._locker is not None) is orderly
    assert isinstance(world.machine.failed, FailedMessages)
    assert set(world.machine.subscriptions) == {TOPIC, RETRY}


def test_broadcasting_retries_nothing_and_locks_nothing(made: Made) -> None:
    """Covers C-112, C-263, C-555."""
    world = made(orderly=True, message_model=MessageModel.BROADCASTING)
    assert world.machine._locker is None
    assert isinstance(world.machine.failed, DroppedMessages)
    assert set(world.machine.subscriptions) == {TOPIC}
    world.start()
    assert ("route", RETRY) not in world.done
    assert world.machine._expiry is None


@pytest.mark.parametrize("wanted", [False, True])
def test_failures_are_explained_where_that_is_wanted(made: Made, wanted: bool) -> None:
    world = made(send_back_cause=wanted)
    assert isinstance(world.machine.service.observer.failure_cause, FailureCause) is wanted


# --- start ----------------------------------------------------------------------------------------


def test_a_start_tells_the_brokers_before_it_learns_the_retry_topic(world: World) -> None:
    """Covers C-111, C-338: the heartbeat makes them create it."""
    assert not world.machine.is_active()
    world.start()
    assert world.done == [
        ("added", GROUP), ("route", TOPIC), ("checked", GROUP), ("beat",), ("route", RETRY),
        ("trace",), ("rebalance",),
    ]  # fmt: skip
    assert world.machine.is_active()
    assert world.machine._expiry is not None
    assert world.client.said == []


def test_a_consumer_of_nothing_is_told(made: Made) -> None:
    world = made(topics=())
    world.start()
    assert world.client.said == [("unsubscribed", GROUP)]


def test_only_listeners_in_any_order_are_looked_at_for_expired_messages(made: Made) -> None:
    """Covers C-248."""
    world = made(orderly=True)
    world.start()
    assert world.machine._expiry is None


@pytest.mark.parametrize("what", ["add", "check"])
def test_a_start_that_fails_leaves_nothing_behind(made: Made, what: str) -> None:
    """Covers C-118: a group that was not registered is not unregistered."""
    world = made(is_async=False)
    world.client.refusal = ValueError(what)
    with pytest.raises(ValueError, match=what):
        world.start()
    assert world.machine.service._pool.stopping
    assert (("unregistered", GROUP) in world.done) is (what == "check")
    assert not world.machine.is_active()
    assert ("trace",) not in world.done


@pytest.mark.parametrize(
    ("error", "fails"),
    [(ConnectError("nobody"), True), (RequestTimeoutError("no answer"), False), (None, False)],
)
def test_a_route_that_cannot_be_learnt_fails_the_start_only_without_a_name_server(
    world: World, error: Exception | None, fails: bool
) -> None:
    """Covers C-111."""
    world.client.route_error = error
    if fails:
        with pytest.raises(ConnectError):
            world.start()
        return
    world.start()
    told = [("failed", "route of topic", TOPIC), ("failed", "route of topic", RETRY)]
    assert world.client.said == (told if error is not None else [])


# --- the end --------------------------------------------------------------------------------------


def test_the_end_takes_each_step_in_its_order(made: Made) -> None:
    """Covers C-119, C-121: the setting says how long listeners are waited for."""
    world = made(await_termination_ms_when_shutdown=700)
    world.start()
    world.done.clear()
    (queue,) = world.take(MQ)
    message = queued(5)
    queue.put([message], 6)
    queue.finished.append(message)
    waits: list[tuple[float, int | None]] = []
    real = world.machine.service.shutdown

    async def shutdown(await_ms: float, caller: int | None = None) -> None:
        waits.append((await_ms, caller))
        ended.append((world.machine.queues._closed, expiry is not None and expiry.done()))
        await real(await_ms, caller)

    ended: list[tuple[bool, bool]] = []
    world.machine.service.shutdown = shutdown
    expiry = world.machine._expiry
    world.client.run(world.machine.shutdown(None, 9))
    assert waits == [(700, 9)]
    assert ended == [(True, True)], "no queue is taken, and none scanned, while listeners end"
    assert world.store.called("update") == [("update", MQ, 6, True)]
    assert world.store.called("persist for good") == [("persist for good", [MQ])]
    assert world.done == [("unregistered", GROUP), ("trace ended",)]
    assert not world.machine.is_active()
    assert world.machine.pulls._stopped
    world.client.run(world.machine.shutdown(30))
    assert waits[1:] == [(30, None)]


def test_an_end_that_is_cancelled_waits_for_no_listener(world: World) -> None:
    """Covers C-119: the steps behind it are taken all the same."""
    world.start()
    waits: list[float] = []

    async def shutdown(await_ms: float, caller: int | None = None) -> None:
        waits.append(await_ms)

    async def stopped() -> None:
        await asyncio.Event().wait()

    world.machine.service.shutdown = shutdown
    world.machine._expire_no_more = stopped
    ending = world.client.loop.create_task(world.machine.shutdown(5_000))
    world.client.turn()
    ending.cancel()
    world.client.turn()
    assert ending.cancelled()
    assert waits == [0]
    assert ("unregistered", GROUP) in world.done
    del world.machine.service.shutdown, world.machine._expire_no_more


# --- subscriptions --------------------------------------------------------------------------------


def test_a_subscription_is_told_to_the_brokers_and_queues_divided(world: World) -> None:
    """Covers C-103."""
    new = build_subscription("U", "B", 2)
    world.client.run(world.machine.subscribe(new))
    assert world.machine.subscription("U") is new
    assert world.machine.subscribed_topics() == [TOPIC, RETRY, "U"]
    assert world.done == [("route", "U"), ("checked", GROUP), ("beat",), ("rebalance",)]
    assert world.client.said == [("subscribed", GROUP)]


@pytest.mark.parametrize("topic", [TOPIC, "U"])
def test_a_refused_subscription_leaves_what_was_there(world: World, topic: str) -> None:
    """Covers C-103, C-118: nothing, where there was none."""
    before = world.machine.subscription(topic)
    world.client.refusal = ValueError("check")
    with pytest.raises(ValueError, match="check"):
        world.client.run(world.machine.subscribe(build_subscription(topic, "B", 2)))
    assert world.machine.subscription(topic) is before
    assert topic != "U" or "U" not in world.machine.subscriptions
    assert ("rebalance",) not in world.done


def test_a_topic_that_is_unsubscribed_has_its_queues_given_up(world: World) -> None:
    """Covers C-104: one that was not subscribed changes nothing."""
    world.client.run(world.machine.unsubscribe("U"))
    assert world.done == []
    world.client.run(world.machine.unsubscribe(TOPIC))
    assert world.done == [("rebalance",), ("beat",)]
    assert world.machine.subscription(TOPIC) is None


def test_a_consumer_that_is_suspended_pulls_nothing_and_keeps_its_queues(world: World) -> None:
    """Covers C-151."""
    world.start()
    world.done.clear()
    world.machine.suspend()
    assert world.machine.pulls.paused
    assert not world.machine.is_active()
    world.machine.resume()
    assert not world.machine.pulls.paused
    assert world.machine.is_active()
    assert world.done == [("rebalance",)]


def test_other_bounds_hold_for_queues_that_there_are(made: Made) -> None:
    """Covers C-32 to C-34, C-206: a topic's are shared by all queues; held ones are tried again."""
    world = made(pull_threshold_for_queue=1)
    queue, other = world.take(MQ, OTHER)
    queue.put([queued(5), queued(6)], 7)
    assert not world.machine.may_pull(queue)
    tried: list[AssignedQueue] = []
    world.machine.pulls.pull = lambda queue, epoch=None: tried.append(queue)
    world.machine.change(PushConsumerSettings("another", pull_threshold_for_topic=10))
    assert (queue.thresholds.count, other.thresholds.count) == (5, 5)
    assert world.machine.thresholds.count == 5
    assert world.machine.settings.consumer_group == GROUP
    world.client.turn()
    assert tried == [queue]


# --- pulls ----------------------------------------------------------------------------------------


def test_a_full_queue_is_not_pulled_and_that_is_said_now_and_then(
    made: Made, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-203 to C-205: count and size have one counter, span another."""
    monkeypatch.setattr(impl, "_FLOW_LOG_EVERY", 3)
    world = made(pull_threshold_for_queue=1, consume_concurrently_max_span=5)
    queue, wide = world.take(MQ, OTHER)
    assert world.machine.may_pull(queue)
    queue.put([queued(5), queued(6)], 7)
    wide.put([queued(5)], 6)
    wide.put([queued(90)], 91)
    wide.thresholds = Thresholds(count=9, span=5)
    with caplog.at_level(logging.INFO):
        for _ in range(7):
            assert world.machine.may_pull(queue) is False
        for _ in range(2):
            assert world.machine.may_pull(wide) is False
    told = [line.partition("its ")[2] for line in caplog.messages if "pauses until" in line]
    assert told == [
        "COUNT falls (pause 1)", "COUNT falls (pause 4)", "COUNT falls (pause 7)",
        "SPAN falls (pause 1)",
    ]  # fmt: skip
    queue.leave()
    queue.finish(queued(5))
    assert world.machine.may_pull(queue) is False


@pytest.mark.parametrize(
    ("piggyback", "to_slave", "commit"), [(5, False, 5), (4, False, 0), (6, False, 0), (5, True, 0)]
)
def test_a_pull_takes_the_offset_along_that_it_asks_for(
    world: World, piggyback: int, to_slave: bool, commit: int
) -> None:
    """Covers C-211, C-212, C-215."""
    (queue,) = world.take(MQ)
    world.store.piggyback = piggyback
    wanted = world.machine.subscriptions[TOPIC]
    terms = world.machine.terms(queue, wanted, to_slave=to_slave)
    flag = PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if commit else 0)
    assert (terms.commit, terms.sys_flag) == (commit, flag)
    assert world.store.called("piggybacked") == ([("piggybacked", MQ)] if commit else [])


def test_an_offset_of_0_is_never_taken_along(world: World) -> None:
    """Covers C-211."""
    (queue,) = world.take(MQ, offset=0)
    terms = world.machine.terms(queue, world.machine.subscriptions[TOPIC], to_slave=False)
    assert (terms.commit, terms.sys_flag) == (0, PullSysFlag.SUSPEND)


def test_a_pull_is_asked_for_as_the_settings_say(made: Made) -> None:
    """Covers C-35, C-210, C-212, C-213."""
    world = made(pull_batch_size=7, pull_interval_ms=30, post_subscription_when_pull=True)
    (queue,) = world.take(MQ)
    terms = world.machine.terms(queue, world.machine.subscriptions[TOPIC], to_slave=False)
    assert terms == (
        7, PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION, 1, 15_000, 30_000, True, 0, 30, None,
    )  # fmt: skip


def test_messages_are_seen_under_the_topic_they_were_sent_to(made: Made) -> None:
    """Covers C-256: without the namespace, and not that of the retry topic."""
    world = made(namespace="ns")
    (queue,) = world.take(MQ._replace(topic=f"%RETRY%{GROUP}"))
    first, second = queued(5), queued(6)
    first._topic = second._topic = f"%RETRY%{GROUP}"
    assert first.properties is not None
    first.properties["RETRY_TOPIC"] = "ns%Orders"
    assert world.machine.accept(queue, [first, second], 7, 20) == 2
    assert first.topic == "Orders"
    world.client.turn()
    assert world.calls == [[5], [6]]


def test_a_topic_of_ones_own_keeps_its_name(world: World) -> None:
    (queue,) = world.take(MQ)
    message = queued(5)
    assert message.properties is not None
    message.properties["RETRY_TOPIC"] = "Orders"
    assert world.machine.accept(queue, [message], 6, 10) == 1
    assert message.topic == TOPIC


def test_what_hooks_filter_counts_as_consumed(world: World) -> None:
    """Covers C-220, C-227: an answer without messages is not shown to them."""
    seen: list[int] = []

    class Hook:
        name = "hook"

        def filter_message(self, context: Any) -> None:
            seen.append(len(context.messages))
            context.messages.clear()

    world.filter_hooks.register(cast(Any, Hook()))
    (queue,) = world.take(MQ)
    assert world.machine.accept(queue, [queued(5)], 6, 10) == 0
    assert world.machine.accept(queue, [], 8, 0) == 0
    assert seen == [1]
    assert world.store.noted[MQ] == 8
    world.client.turn()
    assert world.calls == []


def test_messages_nobody_can_be_given_are_pulled_again(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-231: the queue begins anew at the first of them."""
    (queue,) = world.take(MQ)

    def breaks(messages: list[MessageExt]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AssignedQueue, "consume", lambda queue, messages: breaks(messages))
    assert world.machine.accept(queue, [queued(5), queued(6)], 7, 20) == 2
    assert queue.dropped
    assert "could not be handed to listeners" in caplog.text
    world.client.turn()
    assert world.machine.queues.table[MQ] is not queue
    assert world.machine.queues.table[MQ].pull_offset == 5
    assert ("update", MQ, 5, False) in world.store.calls


# --- queues ---------------------------------------------------------------------------------------


def test_a_round_takes_the_queues_and_pulls_them(world: World) -> None:
    """Covers C-156, C-203."""
    world.start()
    assert world.client.run(world.machine.rebalance())
    assert world.machine.assigned_queues() == [MQ, OTHER]
    assert len(world.client.pulls) == 2


def test_a_queue_in_order_knows_the_assignment_before(made: Made) -> None:
    """Covers C-557."""
    world = made(orderly=True)
    (first,) = world.take(MQ)
    (second,) = world.take(MQ)
    assert cast(Any, second).former is first


def test_queues_that_are_given_up_count_what_is_finished(world: World) -> None:
    """Covers C-179, C-181."""
    (queue,) = world.take(MQ)
    message = queued(5)
    queue.put([message], 6)
    queue.finished.append(message)
    forgotten: list[MessageQueue] = []
    world.machine.pulls.forget = forgotten.append
    world.client.run(world.machine.give_up([queue]))
    assert (forgotten, world.store.noted[MQ]) == ([MQ], 6)


def test_what_was_noted_of_a_topic_that_is_gone_is_not_said(world: World) -> None:
    """The topic may be there anew by then, with other messages at these offsets."""
    (queue,) = world.take(MQ)
    message = queued(5)
    queue.put([message], 6)
    queue.finished.append(message)
    world.machine.pulls.is_gone = lambda mq: mq == MQ
    world.client.run(world.machine.persist_offsets())
    assert world.store.called("persist") == [("persist", [])]
    world.store.piggyback = queue.pull_offset
    wanted = world.machine.subscriptions[TOPIC]
    assert world.machine.terms(queue, wanted, to_slave=False).commit == 0
    world.client.run(world.machine.give_up([queue]))
    assert MQ not in world.store.noted


def test_a_queue_that_begins_anew_is_given_up_where_it_begins(world: World) -> None:
    """A rebalance that came first committed where the topic before had been, and began there."""
    (queue,) = world.take(MQ)
    message = queued(5)
    queue.put([message], 6)
    world.machine.moved(queue, 0)
    assert world.store.noted[MQ] == 0
    queue.finished.append(message)
    world.client.run(world.machine.give_up([queue]))
    assert world.store.noted[MQ] == 0


def test_a_queue_that_ends_before_is_begun_by_the_next_rebalance_if_nobody_can_be_asked(
    world: World,
) -> None:
    """Neither at its end, which may be too far, nor where messages were that are gone."""
    (queue,) = world.take(MQ)
    world.store.noted[MQ], world.store.error = 6, RequestTimeoutError("no answer")
    world.machine.ends_before(queue, 3)
    world.client.turn()
    assert queue.dropped
    assert MQ not in world.store.noted
    assert ("rebalance",) in world.client.done


def test_brokers_are_told_of_the_subscription_anew_before_pulls_carry_it(world: World) -> None:
    """Covers C-183: with a larger version, even where the clock stands still."""
    world.take(MQ)
    before = world.machine.subscriptions[TOPIC]
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    now_ms = world.client.clock.now_ms()
    after = world.machine.subscriptions[TOPIC]
    assert (before.sub_version, after.sub_version) == (1, now_ms)
    ((_, data),) = world.done
    told = {each.topic: each for each in data.subscription_data_set}
    assert told[TOPIC] is after
    assert told[RETRY] is world.machine.subscriptions[RETRY]
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    assert world.machine.subscriptions[TOPIC].sub_version == now_ms + 1
    world.client.run(world.machine.queues_changed("U", [], []))
    assert len(world.done) == 2


def test_the_bounds_of_a_topic_are_shared_by_the_queues_there_are(made: Made) -> None:
    """Covers C-32, C-163."""
    world = made(pull_threshold_for_topic=10)
    queue, _ = world.take(MQ, OTHER)
    world.client.run(world.machine.queues_changed(TOPIC, [MQ, OTHER], [MQ, OTHER]))
    assert queue.thresholds.count == 5


def test_a_subscription_replaced_while_brokers_are_told_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = build_subscription(TOPIC, "B", 9)

    async def send(data: Any = None) -> None:
        world.machine.subscriptions[TOPIC] = newer

    monkeypatch.setattr(world.client, "send", send)
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    assert world.machine.subscriptions[TOPIC] is newer


# --- expiry, offsets ------------------------------------------------------------------------------


def test_offsets_are_stored_with_what_has_just_been_finished(world: World) -> None:
    """Covers C-265, C-302."""
    queue, other = world.take(MQ, OTHER)
    message = queued(5)
    queue.put([message], 6)
    other.put([queued(5)], 6)
    queue.finished.append(message)
    world.client.run(world.machine.persist_offsets())
    assert world.store.calls[0] == ("update", MQ, 6, True)
    assert world.store.calls[1:] == [("persist", [MQ, OTHER]), ("check", [MQ, OTHER])]


@pytest.mark.parametrize("orderly", [False, True])
def test_what_another_member_has_consumed_is_left_out(made: Made, orderly: bool) -> None:
    """Covers C-559: where there are no locks, which see to that."""
    world = made(orderly=orderly)
    (queue,) = world.take(MQ)
    world.store.passed = {MQ: 50, OTHER: 60}
    world.store.overtaken = lambda mqs: dict(world.store.passed)  # type: ignore[method-assign]
    world.client.run(world.machine.persist_offsets())
    world.client.turn()
    assert (world.machine.queues.table[MQ] is queue) is orderly
    assert world.machine.queues.table[MQ].pull_offset == (5 if orderly else 50)
    assert OTHER not in world.machine.queues.table


@pytest.mark.parametrize("orderly", [False, True])
def test_lost_connections_are_told_to_offsets_and_locks(made: Made, orderly: bool) -> None:
    """Covers C-187, C-303."""
    world = made(orderly=orderly)
    told: list[str] = []
    if orderly:
        world.machine._locker.connection_lost = told.append
        world.machine._orderly.connection_made = lambda: told.append("made")
    world.machine.connection_lost("a:1")
    world.machine.connection_made("a:1")
    assert world.store.calls == [("connection lost", "a:1")]
    assert told == (["a:1", "made"] if orderly else [])


def test_expired_messages_are_looked_for_each_time_they_may_take(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-42, C-248: a scan that fails is followed by the next."""
    world = made(consume_timeout_minutes=2)
    world.start()
    scans: list[float] = []

    async def clean() -> None:
        scans.append(world.client.loop.now_s)
        raise ZeroDivisionError

    world.machine.clean_expired = clean
    world.client.turn()
    begun = world.client.loop.now_s
    world.client.turn(119_500)
    assert scans == []
    world.client.turn(600)
    assert len(scans) == 1
    world.client.turn(119_000)
    assert len(scans) == 1
    world.client.turn(1_100)
    assert len(scans) == 2
    assert begun < scans[0]
    assert "the scan for expired messages failed" in caplog.text


def test_a_process_that_stood_still_takes_no_listener_for_slow(made: Made) -> None:
    """Covers C-248: nothing ran meanwhile, and what is under way ends soon."""
    world = made(consume_timeout_minutes=2)
    world.start()
    scans: list[float] = []

    async def clean() -> None:
        scans.append(world.client.loop.now_s)

    world.machine.clean_expired = clean
    world.client.turn()
    world.client.turn(150_100)
    assert scans == []
    world.client.turn(120_100)
    assert len(scans) == 1
    world.client.turn(149_900)
    assert len(scans) == 2, "only late"


def test_the_first_messages_of_a_queue_are_sent_back_when_they_take_too_long(made: Made) -> None:
    """Covers C-248: longer than the limit, as far as they are at their listener, 16 a scan."""
    world = made(consume_timeout_minutes=2)
    now_ms = world.client.clock.now_ms()
    queue, other = world.take(MQ, OTHER, offset=0)
    late = [queued(offset) for offset in range(20)]
    for message in late:
        message._consume_start_ms = now_ms - 120_001
    queue.put(late, 20)
    just, waiting = queued(0), queued(1)
    just._consume_start_ms = now_ms - 120_000
    other.put([just, waiting], 2)
    expired: list[tuple[MessageQueue, int]] = []
    refuses: list[int] = []

    async def expire(of: AssignedQueue, message: MessageExt) -> bool:
        expired.append((of.message_queue, message.queue_offset))
        if message.queue_offset in refuses:
            return False
        of.finish(message)
        return True

    world.machine.failed.expire = expire
    world.client.run(world.machine.clean_expired())
    assert expired == [(MQ, offset) for offset in range(16)]
    expired.clear()
    refuses.append(17)
    other.finish(just)
    world.client.run(world.machine.clean_expired())
    assert expired == [(MQ, 16), (MQ, 17)], "the next ones stay behind the one that stays"
    expired.clear()
    queue.drop()
    world.client.run(world.machine.clean_expired())
    assert expired == []


# --- seen from outside ----------------------------------------------------------------------------


def test_a_message_is_sent_back_to_the_end_though_nobody_waits(world: World) -> None:
    """Covers C-273."""
    asked: list[tuple[Any, ...]] = []

    async def give_back(message: MessageExt, level: int, *, broker_name: str | None) -> None:
        asked.append((message.queue_offset, level, broker_name))

    world.machine.send_back.give_back = give_back
    world.client.run(world.machine.send_message_back(queued(5), 3, "b"))
    assert asked == [(5, 3, "b")]


@pytest.mark.parametrize("orderly", [False, True])
def test_operators_see_settings_queues_and_offsets(made: Made, orderly: bool) -> None:
    """Covers C-540 to C-542: -1 where no offset is known."""
    world = made(orderly=orderly)
    world.take(MQ, OTHER)
    third = MQ._replace(queue_id=2)
    world.take(third)
    world.store.noted, world.store.stored = {MQ: 7}, {OTHER: 8}
    info = world.client.run(world.machine.running_info())
    assert {mq: each.commit_offset for mq, each in info.mq_table.items()} == {
        MQ: 7, OTHER: 8, third: -1,
    }  # fmt: skip
    properties = info.properties
    assert properties["clientIP"] == "10.0.0.1"
    assert properties["PROP_CONSUMEORDERLY"] == ("true" if orderly else "false")
    assert properties["PROP_THREADPOOL_CORE_SIZE"] == "20"
    assert properties["subscription"] == f"{{{TOPIC}=A, {RETRY}=*}}"
    assert properties["consumerGroup"] == GROUP
    assert properties["namesrvAddr"] == "x:1"
    assert set(info.status_table) == {TOPIC, RETRY}
    assert info.subscription_set == list(world.machine.subscriptions.values())
    world.store.noted, world.store.error = {}, RequestTimeoutError("no answer")
    info = world.client.run(world.machine.running_info())
    assert {each.commit_offset for each in info.mq_table.values()} == {-1}


def test_a_message_on_request_goes_past_the_queues(world: World) -> None:
    """Covers C-269."""
    result = world.client.run(world.machine.consume_directly(queued(5), "b"))
    assert result.consume_result == "CR_SUCCESS"


def test_a_reset_begins_queues_anew_and_others_are_left_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-532, C-533, C-572: a negative offset is 0; one that cannot be stored is told."""
    queue, other = world.take(MQ, OTHER)
    third = MQ._replace(queue_id=2)
    with caplog.at_level(logging.INFO):
        world.client.run(world.machine.reset_offsets(TOPIC, {MQ: -1, third: 9}))
    assert queue.dropped
    assert not other.dropped
    assert world.machine.queues.table[MQ].pull_offset == 0
    assert third not in world.machine.queues.table
    assert world.done == [("rebalance",)]
    assert "group g is reset to offset -1" in caplog.text
    assert "is reset to offset 9" not in caplog.text

    async def refuse(mqs: object) -> None:
        raise BrokerError(1, "no")

    world.store.persist_for_good = refuse  # type: ignore[method-assign]
    world.client.run(world.machine.reset_offsets(TOPIC, {MQ: 3, OTHER: 4}))
    assert caplog.text.count("could not be reset") == 2
    assert world.done == [("rebalance",)] * 2
    del world.store.persist_for_good


def test_operators_ask_for_the_offsets_of_a_topic(world: World) -> None:
    """Covers C-534: those that are noted."""
    retry = MessageQueue(RETRY, "broker-a", 0)
    world.take(MQ, OTHER, retry)
    world.store.noted = {MQ: 7, retry: 3}
    assert world.machine.consumer_status(TOPIC) == {MQ: 7}
    assert world.machine.consumer_status(RETRY) == {retry: 3}

"""The pull consumer's machine step by step, without a network, by a clock of the tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import ClientConfig, MessageExt, MessageQueue
from rocketstream._util.executors import CallbackExecutor
from rocketstream.client.consumer import send_back
from rocketstream.client.consumer.offsets.store import RemoteBrokerOffsetStore
from rocketstream.client.consumer.pull.impl import PullConsumerImpl
from rocketstream.client.consumer.settings import PullConsumerSettings
from rocketstream.client.consumer.subscription import QueueChangeNotifier
from rocketstream.client.hooks import ConsumeHooks, FilterHooks
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    MessageInvalidError,
    RequestTimeoutError,
)
from rocketstream.model import PullStatus
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.subscription import build_subscription
from tests.kits.client.fake_broker import GROUP, TOPIC, found, pull_answer
from tests.kits.client.queued import queued
from tests.kits.client.still_client import MASTER, StillClient, StillStore

MQ = MessageQueue(TOPIC, "broker-a", 0)
OTHER = MessageQueue(TOPIC, "broker-a", 1)
ELSEWHERE = MessageQueue("U", "broker-a", 0)
PULL = RequestCode.PULL_MESSAGE


class World:
    """One machine, on its still client."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        listeners: dict[str, Any] | None = None,
        *,
        namespace: str | None = None,
        client_unit_mode: bool = False,
        **settings: Any,
    ) -> None:
        monkeypatch.setattr(send_back, "plain_sender", lambda *_: None)
        self.client = StillClient(unit_mode=client_unit_mode, namespace=namespace)
        self.client.queues = {TOPIC: (OTHER, MQ), "U": (ELSEWHERE,)}
        self.client.answers[PULL] = found([5, 6])
        self.store = StillStore()
        self.consume_hooks, self.filter_hooks = ConsumeHooks(), FilterHooks()
        made = PullConsumerSettings(GROUP, **settings)

        async def make() -> PullConsumerImpl:
            return PullConsumerImpl(
                cast(Any, self.client), GROUP, made, cast(Any, self.store), listeners or {},
                self.consume_hooks, self.filter_hooks, threaded=False,
            )  # fmt: skip

        self.machine = self.client.run(make())

    @property
    def done(self) -> list[tuple[Any, ...]]:
        return self.client.done

    def start(self) -> None:
        self.client.run(self.machine.start())

    def pull(self, offset: int = 5, **how: Any) -> Any:
        given = {"block": False, "timeout_ms": 1_000, **how}
        wanted = build_subscription(TOPIC, given.pop("tags", None), 1)
        return self.machine.pull(MQ, wanted, offset, 32, **given)

    def asked(self) -> PullMessageRequestHeader:
        return self.client.asked[-1][1].header(PullMessageRequestHeader)

    def close(self) -> None:
        self.client.run(self.machine.shutdown())
        self.client.close()


Made = Callable[..., World]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    worlds: list[World] = []

    def make(*given: Any, **how: Any) -> World:
        worlds.append(World(monkeypatch, *given, **how))
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()


@pytest.fixture
def world(made: Made) -> World:
    return made()


# --- start and end ------------------------------------------------------------------------------


def test_a_start_without_topics_asks_nobody(world: World) -> None:
    """Covers C-123: and divides nothing before it may."""
    world.machine.begin()
    assert not world.machine.is_active()
    world.machine._dividing = False
    world.done.clear()
    world.start()
    assert world.done == [("added", GROUP)]
    assert not world.machine.is_active()
    world.machine.begin()
    assert world.machine.is_active()
    assert world.done[1:] == [("rebalance",)]


def test_a_start_with_topics_joins_the_group(made: Made) -> None:
    """Covers C-123."""
    world = made({TOPIC: None})
    world.start()
    assert world.done == [("added", GROUP), ("route", TOPIC), ("beat",), ("rebalance",)]


def test_a_start_that_is_refused_leaves_nothing_behind(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-118."""
    world = made({TOPIC: None})

    async def send(data: Any = None) -> None:
        raise ValueError("no")

    monkeypatch.setattr(world.client, "send", send)
    with pytest.raises(ValueError, match="no"):
        world.start()
    assert ("unregistered", GROUP) in world.done
    assert not world.machine._running


def test_the_end_stores_what_is_noted_and_says_goodbye(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-124."""
    world.start()
    world.machine.begin()
    world.client.run(world.machine.register_topics([TOPIC]))
    assert world.client.run(world.machine.rebalance())
    world.machine.update_consume_offset(ELSEWHERE, 3)
    stopped: list[int] = []
    monkeypatch.setattr(world.machine._requests, "stop", lambda: stopped.append(1))
    world.client.run(world.machine.shutdown())
    assert world.store.called("persist") == [("persist", [ELSEWHERE])]
    assert world.store.called("persist for good")[0] == ("persist for good", [MQ, OTHER])
    assert world.done[-1] == ("unregistered", GROUP)
    assert stopped == [1]
    assert (world.machine.is_active(), world.machine.queues.table) == (False, {})


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_that_is_registered_tells_its_listener_of_what_there_is(made: Made) -> None:
    """Covers C-55: its queues may be ours by pulls before, and would change no more."""
    told: list[tuple[Any, ...]] = []

    def listener(topic: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
        told.append((topic, list(every), list(mine)))

    world = made(message_queue_listener=listener)
    world.client.run(world.machine.register_topics(["U"]))
    world.client.turn()
    assert told == []
    for mq in (OTHER, MQ):
        world.machine.queues.table[mq] = world.machine.new_queue(mq, 0)
    assert world.machine.message_queues_in_balance(TOPIC) == [MQ, OTHER]
    assert world.machine.message_queues_in_balance("U") == []
    world.client.run(world.machine.register_topics([TOPIC]))
    world.client.turn()
    assert told == [(TOPIC, [MQ, OTHER], [MQ, OTHER])]
    assert world.done[-2:] == [("beat",), ("rebalance",)]


@pytest.mark.parametrize("of_topic", [False, True])
def test_changes_are_told_to_the_topics_listener_or_the_consumers(
    made: Made, of_topic: bool
) -> None:
    """Covers C-55."""
    told: list[str] = []
    topics = {TOPIC: lambda *_: told.append("the topic's")} if of_topic else {TOPIC: None}
    world = made(topics, message_queue_listener=lambda *_: told.append("the consumer's"))
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    world.client.turn()
    assert told == ["the topic's" if of_topic else "the consumer's"]


def test_changes_nobody_listens_to_are_told_to_nobody(world: World) -> None:
    world.client.run(world.machine.queues_changed(TOPIC, [MQ], [MQ]))
    world.client.turn()


@pytest.mark.parametrize("how", [{"unit_mode": True}, {"client_unit_mode": True}, {}])
def test_a_heartbeat_says_what_is_registered(made: Made, how: dict[str, bool]) -> None:
    """Covers C-11, C-57, C-144, C-494: with version 0; what is merely pulled is not told."""
    world = made({TOPIC: None}, **how)
    world.client.run(world.pull())
    data = world.machine.heartbeat_data()
    assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_ACTIVELY")
    assert (data.message_model, data.unit_mode) == ("CLUSTERING", bool(how))
    assert [(each.topic, each.sub_version) for each in data.subscription_data_set] == [(TOPIC, 0)]


def test_topics_that_were_pulled_are_divided_too(made: Made) -> None:
    """Covers C-494."""
    world = made({"U": None})
    world.client.run(world.pull())
    assert world.machine.subscribed_topics() == {TOPIC, "U"}
    world.start()
    world.machine.begin()
    assert world.client.run(world.machine.rebalance()) is True
    assert set(world.machine.queues.table) == {MQ, OTHER, ELSEWHERE}


# --- offsets --------------------------------------------------------------------------------------


def test_noted_offsets_are_stored_whatever_queue_they_are_of(world: World) -> None:
    """Covers C-497, C-573: brokers know the group before; where nothing is noted nobody asks."""
    world.client.run(world.machine.persist_offsets())
    assert (world.done, world.store.calls) == ([], [])
    for offset in (9, 3):
        world.machine.update_consume_offset(MQ, offset)
    assert world.store.calls == [("update", MQ, 9, False), ("update", MQ, 3, False)]
    world.client.run(world.machine.persist_offsets())
    assert world.done == [("route", TOPIC), ("beat",)]
    assert world.store.called("persist") == [("persist", [MQ])]
    assert world.client.said == [("worked", "telling brokers of", GROUP)]
    world.client.run(world.machine.persist_offsets())
    assert world.done == [("route", TOPIC), ("beat",)]
    world.machine.update_consume_offset(ELSEWHERE, 1)
    world.client.run(world.machine.persist_offsets())
    assert world.done[2:] == [("route", "U"), ("beat",)]


def test_a_group_counts_as_introduced_once_brokers_were_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is cancelled before leaves that to the next: 5.x brokers refuse its offsets."""
    beats: list[str] = []

    async def send(_: object = None) -> None:
        beats.append("beat")
        if len(beats) == 1:
            raise asyncio.CancelledError

    monkeypatch.setattr(world.client, "send", send)
    with pytest.raises(asyncio.CancelledError):
        world.client.run(world.machine._introduce([TOPIC]))
    for _ in range(2):
        world.client.run(world.machine._introduce([TOPIC]))
    assert len(beats) == 2


def test_an_offset_noted_while_others_are_stored_disturbs_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-497: by a thread of the user's."""
    introduced: list[str] = []

    async def introduce(topics: Iterable[str]) -> None:
        for topic in topics:
            introduced.append(topic)
            world.machine.update_consume_offset(ELSEWHERE, 1)

    monkeypatch.setattr(world.machine, "_introduce", introduce)
    world.machine.update_consume_offset(MQ, 9)
    world.client.run(world.machine.persist_offsets())
    assert introduced == [TOPIC]


def test_an_offset_noted_while_its_topic_is_released_stays_noted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-497: the loop releases topics, a thread of the user's notes the offset."""
    update = world.store.update_offset

    def released(mq: MessageQueue, offset: int, *, increase_only: bool) -> None:
        world.machine.release([TOPIC])
        update(mq, offset, increase_only=increase_only)

    monkeypatch.setattr(world.store, "update_offset", released)
    world.machine.update_consume_offset(MQ, 9)
    world.client.run(world.machine.persist_offsets())
    assert world.store.called("persist") == [("persist", [MQ])]


def test_offsets_are_stored_though_brokers_cannot_be_told(world: World) -> None:
    """Covers C-497."""
    world.machine.update_consume_offset(MQ, 9)
    world.client.route_error = RequestTimeoutError("no answer")
    world.client.run(world.machine.persist_offsets())
    assert world.client.said == [("failed", "telling brokers of", GROUP)]
    assert world.store.called("persist") == [("persist", [MQ])]
    world.client.route_error = None


@pytest.mark.parametrize("offset", [-1, "7", 1.5])
def test_what_is_no_offset_is_not_noted(world: World, offset: Any) -> None:
    """Covers C-497."""
    with pytest.raises(ConfigurationError, match="offset"):
        world.machine.update_consume_offset(MQ, offset)
    assert (world.store.calls, world.machine._noted) == ([], {})
    world.machine.update_consume_offset(MQ, 0)


def test_the_offset_is_the_noted_one_or_the_stored(world: World) -> None:
    """Covers C-571: asking the store changes nothing that is noted and not stored."""
    fetch = world.machine.fetch_consume_offset
    assert world.client.run(fetch(MQ, from_store=False)) == -1
    assert world.done == [("route", TOPIC), ("beat",)]
    world.store.stored = {MQ: 4}
    assert world.client.run(fetch(MQ, from_store=False)) == 4
    assert world.store.calls == []
    world.machine.update_consume_offset(MQ, 9)
    assert world.client.run(fetch(MQ, from_store=False)) == 9
    assert world.client.run(fetch(MQ, from_store=True)) == 4
    assert world.store.calls == [("update", MQ, 9, False)]


def test_an_offset_read_for_another_is_not_noted_anew(world: World) -> None:
    """Covers C-571: what the store has in memory of a queue nobody noted stays as it is."""
    world.store.noted, world.store.stored = {MQ: 9}, {MQ: 4}
    assert world.client.run(world.machine.fetch_consume_offset(MQ, from_store=True)) == 4
    assert world.store.calls == []


@pytest.mark.parametrize("at_brokers", [False, True])
def test_an_offset_is_stored_at_once_when_that_is_asked_for(
    world: World, at_brokers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-497: where brokers keep them, by the broker of the queue."""
    if at_brokers:
        told: list[tuple[MessageQueue, int]] = []

        class Remote(RemoteBrokerOffsetStore):
            def __init__(self) -> None:
                """Nothing is kept."""

            def update_offset(self, mq: Any, offset: int, increase_only: bool = True) -> None:
                """Nothing is kept."""

            async def update_consume_offset_to_broker(self, *given: Any, **more: Any) -> None:
                told.append(cast(Any, given))

        monkeypatch.setattr(world.machine, "store", Remote())
    world.client.run(world.machine.update_consume_offset_to_broker(MQ, 9))
    assert world.done == [("route", TOPIC), ("beat",)]
    assert list(world.machine._noted) == [MQ]
    if at_brokers:
        assert told == [(MQ, 9)]
    else:
        assert world.store.calls == [("update", MQ, 9, False), ("persist", [MQ])]
    monkeypatch.undo()


def test_a_reset_is_noted_and_stored(world: World) -> None:
    """Covers C-532: where to pull is the caller's business."""
    world.client.run(world.machine.reset_offsets(TOPIC, {MQ: 3, OTHER: 0}))
    assert world.store.calls == [
        ("update", MQ, 3, False), ("update", OTHER, 0, False), ("persist", [MQ, OTHER]),
    ]  # fmt: skip


def test_operators_ask_for_the_offsets_of_a_topic(world: World) -> None:
    """Covers C-534."""
    for mq in (MQ, OTHER, ELSEWHERE):
        world.machine.update_consume_offset(mq, 7)
    del world.store.noted[OTHER]
    assert world.machine.consumer_status(TOPIC) == {MQ: 7}
    assert world.machine.consumer_status("U") == {ELSEWHERE: 7}
    assert world.machine.consumer_status("V") == {}


def test_operators_see_queues_and_offsets(made: Made) -> None:
    """Covers C-540."""
    world = made({TOPIC: None})
    for mq in (MQ, OTHER):
        world.machine.queues.table[mq] = world.machine.new_queue(mq, 0)
    world.store.noted = {MQ: 7}
    info = world.client.run(world.machine.running_info())
    assert {mq: each.commit_offset for mq, each in info.mq_table.items()} == {MQ: 7, OTHER: 0}
    assert info.properties["consumerGroup"] == GROUP
    assert "PROP_CONSUMER_START_TIMESTAMP" in info.properties
    assert [each.topic for each in info.subscription_set] == [TOPIC]


def test_queues_that_leave_are_stored_first_and_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-181, C-497."""
    dropped: list[MessageQueue] = []
    monkeypatch.setattr(world.machine._requests, "drop", dropped.append)
    world.client.run(world.machine.give_up([world.machine.new_queue(MQ, 0)]))
    assert world.store.calls == [("doubt", [MQ]), ("persist for good", [MQ])]
    assert dropped == [MQ]


def test_nothing_stays_noted_of_a_registered_topics_queue_that_leaves(made: Made) -> None:
    """Covers C-181, C-497: the member that has it next may be further; of others it stays."""
    world = made({TOPIC: None})
    world.machine.begin()
    for mq in (MQ, ELSEWHERE):
        world.machine.update_consume_offset(mq, 7)
    leaving = [world.machine.new_queue(mq, 0) for mq in (MQ, ELSEWHERE)]
    world.client.run(world.machine.give_up(leaving))
    assert world.store.noted == {ELSEWHERE: 7}
    assert list(world.machine._noted) == [ELSEWHERE]


def test_what_a_late_task_notes_of_anothers_queue_is_said_once_and_carefully(made: Made) -> None:
    """Covers C-497: its task ended after the queue was given up; the new owner may be further."""
    world = made({TOPIC: None})
    world.machine.begin()
    world.machine.queues.table[OTHER] = world.machine.new_queue(OTHER, 0)
    for mq in (MQ, OTHER):
        world.machine.update_consume_offset(mq, 7)
    world.store.calls.clear()
    world.store.unsettled = {MQ}
    world.client.run(world.machine.persist_offsets())
    assert world.store.calls == [("persist", [OTHER]), ("persist for good", [MQ])]
    assert world.store.noted == {MQ: 7, OTHER: 7}
    world.store.unsettled = set()
    world.client.run(world.machine.persist_offsets())
    assert world.store.noted == {OTHER: 7}
    world.store.calls.clear()
    world.client.run(world.machine.persist_offsets())
    assert world.store.calls == [("persist", [OTHER])]


def test_lost_connections_are_told_to_the_store(world: World) -> None:
    """Covers C-303."""
    world.machine.connection_lost("a:1")
    assert world.store.calls == [("connection lost", "a:1")]


# --- pulls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [False, True])
def test_a_pull_asks_once_for_what_it_is_told(made: Made, block: bool) -> None:
    """Covers C-491 to C-493: what was found is handed out."""
    world = made(broker_suspend_max_time_ms=700)
    result = world.client.run(world.pull(block=block))
    assert result.pull_status is PullStatus.FOUND
    assert [each.queue_offset for each in result.msg_found_list] == [5, 6]
    ((address, command, timeout_ms),) = world.client.asked
    header = command.header(PullMessageRequestHeader)
    assert (address, timeout_ms) == (MASTER, 1_000)
    flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if block else 0)
    assert (header.queue_offset, header.max_msg_nums, header.sys_flag) == (5, 32, flags)
    assert (header.suspend_timeout_millis, header.sub_version) == (700, 0)


def test_a_doubtful_answer_is_asked_for_again_as_long_as_there_is_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The gap is passed when answers agree; each try has what is left of the time."""
    world.machine._requests._compacted[TOPIC] = False
    world.client.answers[PULL] = found([6])
    task = world.client.loop.create_task(world.pull(timeout_ms=100))
    world.client.turn()
    assert len(world.client.asked) == 1
    world.client.turn(19.99)
    assert len(world.client.asked) == 1
    world.client.turn(0.02)
    assert len(world.client.asked) == 2
    world.client.turn(41)
    assert task.done()
    assert [each.queue_offset for each in task.result().msg_found_list] == [6]
    assert [round(timeout_ms) for *_, timeout_ms in world.client.asked] == [100, 80, 40]
    assert "lost offsets 5 to 5" in caplog.text


def test_a_pull_without_time_for_another_try_passes_nothing_over(world: World) -> None:
    """Who pulls goes on at the same offset; 20 ms is not enough for a pause of 20."""
    world.client.answers[PULL] = found([6])
    result = world.client.run(world.pull(timeout_ms=20))
    assert len(world.client.asked) == 1
    assert (result.msg_found_list, result.next_begin_offset) == ([], 5)
    task = world.client.loop.create_task(world.pull(timeout_ms=21))
    world.client.turn()
    world.client.turn(20.5)
    assert len(world.client.asked) == 3
    world.client.turn(50)
    assert task.done()


def test_a_slave_that_does_not_answer_is_not_asked_again(world: World) -> None:
    """Covers C-214: the next pull goes to the master; a refusal changes nothing."""
    header = PullMessageResponseHeader(1, 5, 0, 5)
    world.client.answers[PULL] = RemotingCommand.response(19, None, header)
    world.client.run(world.pull())
    world.client.answers[PULL] = BrokerError(1, "no")
    with pytest.raises(BrokerError):
        world.client.run(world.pull())
    assert world.machine._requests.broker(MQ).is_slave
    world.client.answers[PULL] = RequestTimeoutError("no answer")
    with pytest.raises(RequestTimeoutError):
        world.client.run(world.pull())
    assert not world.machine._requests.broker(MQ).is_slave


def test_hooks_filter_and_are_told_what_is_handed_out(made: Made) -> None:
    """Covers C-54, C-220, C-257: with when the pull began, and the topic its user knows."""
    world = made(namespace="ns", unit_mode=True)
    seen: list[Any] = []

    class Hook:
        name = "hook"

        def filter_message(self, context: Any) -> None:
            assert context.unit_mode
            del context.messages[1:]

        def consume_message_before(self, context: Any) -> None:
            seen.append(context)

        def consume_message_after(self, context: Any) -> None:
            seen.append(context.message_queue)

    world.filter_hooks.register(cast(Any, Hook()))
    world.consume_hooks.register(cast(Any, Hook()))
    began_ms = world.client.clock.now_ms()
    world.client.answers[PULL] = found([5, 6], topic=f"ns%{TOPIC}")
    mq = MQ._replace(topic=f"ns%{TOPIC}")
    wanted = build_subscription(mq.topic, None, 1)
    work = world.machine.pull(mq, wanted, 5, 32, block=False, timeout_ms=1_000)
    result = world.client.run(work)
    assert [each.topic for each in result.msg_found_list] == [TOPIC]
    assert seen
    assert (seen[0].consumer_group, seen[0].namespace) == (GROUP, "ns")
    assert seen[0].messages == result.msg_found_list
    assert seen[0].began_ms == began_ms


def test_a_pull_without_hooks_reads_no_clock_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_time() -> int:
        raise AssertionError("read")

    monkeypatch.setattr(world.client.clock, "now_ms", no_time)
    assert len(world.client.run(world.pull()).msg_found_list) == 2


def test_a_pull_that_finds_nothing_hands_nothing_out(world: World) -> None:
    world.client.answers[PULL] = pull_answer(19, 5, 5)
    result = world.client.run(world.pull(tags="A"))
    assert (result.pull_status, result.msg_found_list) == (PullStatus.NO_NEW_MSG, [])


# --- send-back ------------------------------------------------------------------------------------


def test_only_what_was_pulled_can_be_sent_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-498."""
    given: list[tuple[Any, ...]] = []

    async def give_back(message: MessageExt, level: int, **how: Any) -> None:
        given.append((message.queue_offset, level, how))

    monkeypatch.setattr(world.machine._send_back, "give_back", give_back)
    work = world.machine.send_message_back(cast(Any, "x"), 3, None, None)
    with pytest.raises(MessageInvalidError, match="not 'x'"):
        world.client.run(work)
    world.client.run(world.machine.send_message_back(queued(5), 3, "b", "h"))
    assert given == [(5, 3, {"broker_name": "b", "group": "h"})]


# --- what ends the program ------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError])
def test_a_queue_listener_keeps_no_other_from_being_told(
    caplog: pytest.LogCaptureFixture, threaded: bool, kind: type[BaseException]
) -> None:
    callbacks = CallbackExecutor(1, "rocketstream-test-raising")
    begun: list[Coroutine[None, None, None]] = []
    background = SimpleNamespace(run_soon=begun.append)
    instance = SimpleNamespace(config=ClientConfig(), callbacks=callbacks, background=background)
    notifier = QueueChangeNotifier(cast(Any, instance), threaded=threaded)
    told: list[str] = []

    def listener(topic: str, *_: object) -> None:
        told.append(topic)
        raise kind

    async def main() -> None:
        for work in begun:
            await asyncio.wait_for(work, 20)

    notifier.notify(listener, "T", [], [])
    notifier.notify(listener, "U", [], [])
    try:
        asyncio.run(main())
    finally:
        callbacks.close()
        callbacks.join(20)
    assert told == ["T", "U"]
    assert [each.getMessage() for each in caplog.records if each.exc_info] == [
        "message queue listener failed for topic T",
        "message queue listener failed for topic U",
    ]


@pytest.mark.parametrize("threaded", [False, True])
def test_a_queue_listener_that_exits_ends_a_loop_of_the_users_only(threaded: bool) -> None:
    """On ours it would be every client of the instance that ends."""
    callbacks = CallbackExecutor(1, "rocketstream-test-exiting")
    begun: list[Coroutine[None, None, None]] = []
    background = SimpleNamespace(run_soon=begun.append)
    instance = SimpleNamespace(config=ClientConfig(), callbacks=callbacks, background=background)
    notifier = QueueChangeNotifier(cast(Any, instance), threaded=threaded)
    notifier.notify(lambda *_: sys.exit(1), "T", [], [])
    try:
        if threaded:
            asyncio.run(begun[0])
        else:
            with pytest.raises(SystemExit):
                asyncio.run(begun[0])
    finally:
        callbacks.close()
        callbacks.join(20)

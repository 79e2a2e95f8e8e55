"""Whom a round of dividing queues asks, what it believes, and where a queue begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.client.consumer import assignment
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageQueue
from tests.kits.client.model_cluster import ADDRESS, BROKER, TOPIC, World
from tests.rebalance.watched_member import ALL, Watched, own


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def one(world: World) -> Watched:
    async def make() -> Watched:
        return Watched(world, "c1")

    member = world.run(make())
    world.members.append(member)
    world.broker.members.append("c1")
    return member


# --- a round --------------------------------------------------------------------------------------


def test_no_round_is_made_while_its_owner_is_not_active(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-119, C-151."""
    monkeypatch.setattr(one, "is_active", lambda: False)
    assert one.rebalance()
    assert own(one) == []
    monkeypatch.undo()
    one.queues.stop()
    assert one.rebalance()
    assert one.world.run(one.queues.assign(ALL))
    assert own(one) == []


def test_a_shutdown_while_members_are_asked_ends_the_round(one: Watched) -> None:
    """Covers C-119: nothing is taken, nor given up."""
    real = one.queues._members

    async def members(topic: str) -> list[str] | None:
        one.queues.stop()
        return await real(topic)

    one.queues._members = members  # type: ignore[method-assign]
    assert one.rebalance()
    assert (own(one), one.changes) == ([], [])


def test_queues_that_were_taken_begin_though_their_round_breaks(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are ours: no later round would begin them, and nobody else gets them."""
    begun: list[int] = []
    monkeypatch.setattr(one, "start_queue", lambda queue: begun.append(queue.message_queue[2]))

    async def changed(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(one, "queues_changed", changed)
    with pytest.raises(asyncio.CancelledError):
        one.rebalance()
    assert begun == own(one) == [0, 1, 2, 3]
    one.queues.stop()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_round_that_a_caller_asked_for_outlives_its_cancellation(
    one: Watched, is_closed: bool
) -> None:
    """Covers C-104: who is not cancelled and waits is told that the consumer ended meanwhile."""
    entered, gate = asyncio.Event(), asyncio.Event()
    real = one.queues._members

    async def members(topic: str) -> list[str] | None:
        entered.set()
        await gate.wait()
        return await real(topic)

    one.queues._members = members  # type: ignore[method-assign]

    async def case() -> None:
        asking = asyncio.create_task(one.queues.rebalance_now([TOPIC]))
        await entered.wait()
        if is_closed:
            (round_,) = one.queues._tasks
            round_.cancel()
            with pytest.raises(ClientStateError, match="was closed while it divided"):
                await asking
            return
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        gate.set()
        await asyncio.wait(one.queues._tasks)
        assert own(one) == [0, 1, 2, 3]

    one.world.run(case())


def test_what_is_assigned_no_more_is_given_up_and_new_topics_are_learnt(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-506."""
    learnt: list[str] = []

    async def learn(instance: object, topic: str) -> None:
        learnt.append(topic)

    monkeypatch.setattr(assignment, "learn_route", learn)
    one.world.run(one.queues.assign(ALL[:2]))
    assert learnt == [TOPIC]
    one.world.run(one.queues.assign(ALL[1:2]))
    assert (learnt, one.given_up, own(one)) == ([TOPIC], [0], [1])


def test_without_a_broker_of_the_topic_nobody_is_asked(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-159."""
    monkeypatch.setattr(one.queues._instance, "group_addresses", lambda topic: [])
    assert not one.rebalance()
    assert own(one) == []


def test_broadcasting_takes_all_and_asks_nobody(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-158."""
    one.world.broker.members[:] = []
    sharing = replace(one.sharing, message_model=MessageModel.BROADCASTING)
    monkeypatch.setattr(one.queues, "_settings", sharing)
    assert one.rebalance()
    assert own(one) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("errors", "is_told"),
    [
        ([BrokerError(1, "no consumer")], False),
        ([BrokerError(1, "no consumer")] * 2, True),
        ([RequestTimeoutError("no answer")], True),
    ],
)
def test_a_broker_that_has_not_heard_of_the_group_is_told_and_asked_again(
    one: Watched, caplog: pytest.LogCaptureFixture, errors: list[Exception], is_told: bool
) -> None:
    """Covers C-159, C-165: no outage, unless it answers so again."""
    instance: Any = one.queues._instance
    left, beats = list(errors), []

    async def ask(address: str, group: str) -> list[str]:
        if left:
            raise left.pop(0)
        return ["c1"]

    async def beat() -> None:
        beats.append(1)

    instance.consumer_ids, instance.send = ask, beat
    with caplog.at_level(logging.WARNING):
        assert one.rebalance() is (len(errors) == 1)
    assert len(beats) == 1
    assert ("asking for the members of g" in caplog.text) is is_told


def test_a_member_named_twice_for_long_is_told(
    world: World, one: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may not know for two minutes that an earlier connection of ours is gone."""
    world.broker.members.append("c1")
    for number in range(1, 9):
        one.rebalance()
        assert ("another process" in caplog.text) is (number > 6)
    assert own(one) == [0, 1, 2, 3]


def test_a_member_named_once_shares_its_id_with_nobody(
    one: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(9):
        one.rebalance()
    assert "another process" not in caplog.text


class Strategy:
    """Allots what the test says."""

    name = "mine"

    def __init__(self, allot: Callable[..., Sequence[MessageQueue]]) -> None:
        self.allocate = allot


@pytest.mark.parametrize("error", [None, ZeroDivisionError, asyncio.CancelledError])
def test_a_strategy_gets_lists_of_its_own_and_its_errors_keep_what_there_is(
    one: Watched,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException] | None,
) -> None:
    """Covers C-161, C-162: queues the topic does not have are told, and left out."""
    one.rebalance()
    is_empty = error is not None
    asked: list[tuple[object, ...]] = []

    def allot(
        group: str, me: str, queues: list[MessageQueue], members: list[str]
    ) -> list[MessageQueue]:
        asked.append((group, me, list(queues), list(members)))
        if error is not None:
            raise error
        mine = queues[:2]
        queues.clear()
        members.clear()
        return [*mine, MessageQueue(TOPIC, "b", 9)]

    sharing = replace(one.sharing, strategy=Strategy(allot))
    monkeypatch.setattr(one.queues, "_settings", sharing)
    assert one.rebalance() is not is_empty
    assert own(one) == ([0, 1, 2, 3] if is_empty else [0, 1])
    assert asked == [("g", "c1", ALL, ["c1"])]
    failed, foreign = "allocate strategy mine failed", "returned queues that topic T does not"
    assert (failed in caplog.text, foreign in caplog.text) == (is_empty, not is_empty)
    monkeypatch.setattr(one.queues._instance, "subscribe_queues", lambda topic: (), raising=False)
    assert one.rebalance()
    assert (len(asked), own(one)) == (1, []), "where there is no queue nobody is asked"


def test_queues_of_a_broker_that_is_away_for_a_moment_are_kept(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished of them is not consumed again; others leave."""
    one.rebalance()
    instance = one.queues._instance
    monkeypatch.setattr(instance, "subscribe_queues", lambda topic: tuple(ALL[:2]), raising=False)
    monkeypatch.setattr(instance, "is_away", lambda broker: broker == BROKER, raising=False)
    one.queues.table[ALL[3]].leave()
    assert one.rebalance()
    assert own(one) == [0, 1, 2]
    assert one.changes[-1] == (3, 3), "who is told of the change would pull the kept one no more"
    monkeypatch.setattr(instance, "is_away", lambda broker: False, raising=False)
    assert one.rebalance()
    assert own(one) == [0, 1]
    assert one.changes[-1] == (2, 2)


def test_a_retry_topic_without_a_route_is_told_to_nobody(
    one: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-164: its broker makes it with the heartbeat."""
    instance: Any = one.queues._instance
    topic = f"%RETRY%{TOPIC}"

    async def no_route(wanted: str) -> bool:
        return False

    monkeypatch.setattr(instance, "subscribe_queues", lambda wanted: None, raising=False)
    monkeypatch.setattr(instance, "update", no_route, raising=False)
    one.queues._routed.add(topic)
    assert not one.world.run(one.queues.rebalance([topic]))
    assert (one.changes, caplog.text) == ([], "")


def test_a_route_that_the_name_server_knows_is_used_at_once(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-158."""
    instance: Any = one.queues._instance
    known: list[tuple[MessageQueue, ...] | None] = [None]

    async def update(topic: str) -> bool:
        known[0] = tuple(reversed(ALL))
        return True

    monkeypatch.setattr(instance, "subscribe_queues", lambda topic: known[0], raising=False)
    monkeypatch.setattr(instance, "update", update, raising=False)
    begun: list[MessageQueue] = []
    one.start_queue = lambda queue: begun.append(queue.message_queue)
    assert one.rebalance()
    assert begun == ALL, "in their order, whatever the route's"


# --- where a queue begins -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "where", "topic", "start"),
    [
        (5, ConsumeFromWhere.LAST_OFFSET, TOPIC, 5),
        (None, ConsumeFromWhere.LAST_OFFSET, TOPIC, 77),
        (None, ConsumeFromWhere.FIRST_OFFSET, TOPIC, 0),
        (None, ConsumeFromWhere.TIMESTAMP, TOPIC, 33),
        (None, ConsumeFromWhere.LAST_OFFSET, f"%RETRY%{TOPIC}", 0),
    ],
)
def test_where_a_queue_begins(
    one: Watched,
    monkeypatch: pytest.MonkeyPatch,
    stored: int | None,
    where: ConsumeFromWhere,
    topic: str,
    start: int,
) -> None:
    """Covers C-189 to C-196."""
    mq = MessageQueue(topic, BROKER, 0)
    instance: Any = one.queues._instance

    async def read_store(asked: MessageQueue) -> int | None:
        return stored

    async def search(address: str, asked: MessageQueue, time_ms: int) -> int:
        assert (address, asked, time_ms) == (ADDRESS, mq, 1_234)
        return 33

    async def end(address: str, asked: MessageQueue) -> int:
        assert (address, asked) == (ADDRESS, mq)
        return 77

    instance.masters = {BROKER: ADDRESS}
    instance.search_offset, instance.max_offset = search, end
    sharing = replace(one.sharing, where=where, timestamp_ms=lambda: 1_234)
    monkeypatch.setattr(one.queues, "_settings", sharing)
    store: Any = SimpleNamespace(read_store=read_store)
    assert one.world.run(one.queues.start_of(mq, store)) == start
    instance.masters = {}
    if start in (33, 77):
        with pytest.raises(RouteNotFoundError, match=BROKER):
            one.world.run(one.queues.start_of(mq, store))


def test_a_mistake_of_ours_while_a_start_is_looked_for_is_no_outage(one: Watched) -> None:
    async def breaks(mq: MessageQueue, store: Offsets) -> int:
        raise ZeroDivisionError

    one.queues.start_of = breaks  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        one.rebalance()


def test_a_queue_that_is_taken_has_its_start_stored_at_once(world: World, one: Watched) -> None:
    """Covers C-189: what was noted of it before, out of curiosity say, is forgotten."""
    one.store.update_offset(ALL[0], 99)
    world.broker.offsets[0] = 3
    one.rebalance()
    assert {mq: one.store.read_memory(mq) for mq in ALL} == {ALL[0]: 3} | dict.fromkeys(ALL[1:], 0)
    assert one.queues.table[ALL[0]].pull_offset == 3


def test_queues_of_a_consumer_without_a_store_begin_nowhere(one: Watched) -> None:
    """Covers C-194: its caller says what to pull; nothing is stored, nor repaired."""
    one.queues._store = None
    assert one.rebalance()
    assert {queue.pull_offset for queue in one.queues.table.values()} == {0}
    assert one.store.read_memory(ALL[0]) is None
    assert not one.world.run(one.queues.restart(ALL[0], 5))
    one.world.run(one.queues.close())


def test_an_unknown_start_is_told_until_it_is_known(
    world: World, one: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-189, C-561."""
    world.broker.refusals = 4
    with caplog.at_level(logging.WARNING):
        assert not one.rebalance()
        assert one.rebalance()
    for mq in ALL:
        assert f"asking where to start {mq} failed" in caplog.text
        assert f"asking where to start {mq}: works again" in caplog.text

"""One round of dividing queues: whom it asks, what it keeps without answers, what it unlocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.client.consumer import assignment
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.errors import BrokerError, RequestTimeoutError, RouteNotFoundError
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageQueue
from tests.unit.client.model_cluster import ADDRESS, BROKER, QUEUES, TOPIC, Member, World

ALL = [MessageQueue(TOPIC, BROKER, number) for number in range(QUEUES)]


class Watched(Member):
    """A member that says what it was asked, and locks as the test says."""

    sharing = replace(Member.sharing, in_order=True, release_wait_ms=0)

    def __init__(self, world: World, client_id: str) -> None:
        super().__init__(world, client_id)
        self.lockable: set[MessageQueue] = set(ALL)
        self.unlocked: list[MessageQueue] = []
        self.changes: list[tuple[int, int]] = []
        self.given_up: list[int] = []
        self.rounds = 0
        self.queues._instance.rebalance_soon = self.rebalance_soon  # type: ignore[attr-defined]

    def rebalance_soon(self) -> None:
        self.rounds += 1

    async def give_up(self, queues: Sequence[AssignedQueue]) -> None:
        self.given_up += [queue.message_queue.queue_id for queue in queues]

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        return [mq for mq in mqs if mq in self.lockable]

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        self.unlocked += mqs

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        self.changes.append((len(all_queues), len(mine)))


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


def own(member: Member) -> list[int]:
    return sorted(mq.queue_id for mq in member.queues.table)


def test_a_first_round_takes_all_and_says_so(one: Watched) -> None:
    """Covers C-153, C-156, C-163, C-175: balanced; the second changes nothing and is silent."""
    assert one.rebalance()
    assert own(one) == [0, 1, 2, 3]
    assert one.changes == [(QUEUES, QUEUES)]
    assert one.rebalance()
    assert one.changes == [(QUEUES, QUEUES)]


def test_what_is_assigned_is_taken_whoever_has_it_and_nothing_else_is_kept(one: Watched) -> None:
    """Covers C-506: nobody is asked for members, and queues that stay are not begun anew."""
    assert one.world.run(one.queues.assign(ALL[:2]))
    kept = one.queues.table[ALL[1]]
    assert one.world.run(one.queues.assign(ALL[1:3]))
    assert own(one) == [1, 2]
    assert one.queues.table[ALL[1]] is kept
    assert one.unlocked == [ALL[0]]


def test_two_assignments_at_once_begin_a_queue_once(one: Watched) -> None:
    """A queue whose beginning is being asked for is not asked for again."""

    async def both() -> tuple[bool, bool]:
        return await asyncio.gather(one.queues.assign(ALL), one.queues.assign(ALL))

    begun: list[MessageQueue] = []
    one.start_queue = lambda queue: begun.append(queue.message_queue)
    assert all(one.world.run(both()))
    assert sorted(begun) == ALL


def test_what_could_not_be_assigned_is_assigned_by_the_next_try(world: World, one: Watched) -> None:
    """Covers C-509."""
    world.broker.refusals = 2
    assert not world.run(one.queues.assign(ALL))
    assert len(own(one)) == 2
    assert world.run(one.queues.assign(ALL))
    assert own(one) == [0, 1, 2, 3]


def test_unknown_members_keep_what_there_is(world: World, one: Watched) -> None:
    """Covers C-159, C-160, C-550: skipped, unbalanced, so asked again in a second."""
    one.rebalance()

    async def refuse(address: str, group: str) -> list[str]:
        raise RequestTimeoutError("no consumer for this group")

    one.queues._instance.api.consumer_ids = refuse  # type: ignore[method-assign]
    assert not one.rebalance()
    assert own(one) == [0, 1, 2, 3]


def test_a_member_the_broker_does_not_list_gives_up_and_asks_again(
    world: World, one: Watched
) -> None:
    """Covers C-165, C-550: not in the list is no share, but no balance either."""
    one.rebalance()
    world.broker.members[:] = ["somebody else"]
    assert not one.rebalance()
    assert own(one) == []
    world.broker.members[:] = ["c1"]
    assert one.rebalance()
    assert own(one) == [0, 1, 2, 3]


def test_a_lost_route_is_told_once(one: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-158, C-164: with empty lists; the queues stay until the route says otherwise."""
    one.rebalance()
    instance = one.queues._instance
    known = instance.routes.subscribe_queues

    async def no_route(topic: str) -> bool:
        return False

    instance.routes.subscribe_queues = lambda topic: None  # type: ignore[method-assign]
    instance.route_updates.update = no_route  # type: ignore[method-assign, assignment]
    assert not one.rebalance()
    assert not one.rebalance()
    assert one.changes == [(QUEUES, QUEUES), (0, 0)]
    assert own(one) == [0, 1, 2, 3]
    instance.routes.subscribe_queues = known  # type: ignore[method-assign]
    assert one.rebalance()
    assert caplog.text.count(f"topic {TOPIC} is unknown to name server {ADDRESS}") == 1
    assert caplog.text.count(f"topic {TOPIC}: works again") == 1


def test_a_queue_whose_lock_is_another_s_is_taken_later(one: Watched) -> None:
    """Covers C-153, C-175, C-186, C-560: unbalanced, retried, no offset asked before the lock."""
    one.lockable = {ALL[1]}
    assert not one.rebalance()
    assert own(one) == [1]
    one.lockable = set(ALL)
    assert one.rebalance()
    assert own(one) == [0, 1, 2, 3]


def test_a_queue_locked_and_then_not_taken_is_unlocked(world: World, one: Watched) -> None:
    """Covers C-189, C-208, C-562, C-563: where to begin is unknown; nobody shall wait for it."""
    world.broker.refusals = 2
    assert not one.rebalance()
    assert len(own(one)) == 2
    assert sorted(mq.queue_id for mq in one.unlocked) == sorted(set(range(4)) - set(own(one)))
    assert one.rebalance()


def test_a_shutdown_in_the_middle_of_a_round_unlocks_too(world: World, one: Watched) -> None:
    """Covers C-119, C-122: what the round locked and may not take any more."""
    real = one.queues.start_of

    async def stopped(mq: MessageQueue, store: Offsets) -> int:
        one.queues.stop()
        return await real(mq, store)

    one.queues.start_of = stopped  # type: ignore[method-assign]
    one.rebalance()
    assert own(one) == []
    assert sorted(one.unlocked) == ALL


def test_a_busy_queue_stays_until_its_listener_returns(world: World, one: Watched) -> None:
    """Covers C-179, C-180, C-556, C-557: pulled no more, its results count; then it leaves."""
    one.rebalance()
    queue = one.queues.table[ALL[3]]
    queue.begin()
    world.broker.members.append("c2")
    pulls = len(world.pulls)
    assert one.rebalance(), "nothing is to be asked for again: it leaves by itself"
    assert own(one) == [0, 1, 3]
    assert (queue.leaving, queue.dropped) == (True, False)
    one.pulls.pull(queue)
    assert len(world.pulls) == pulls
    assert one.rebalance(), "no round waits for it again"
    assert not queue.dropped
    queue.end()
    for _ in range(5):
        world.settle()
    assert own(one) == [0, 1]
    assert (queue.dropped, one.unlocked) == (True, [ALL[2], ALL[3]])


def test_a_busy_queue_that_is_ours_again_is_taken_anew_when_its_listener_returns(
    world: World, one: Watched
) -> None:
    """Covers C-557: with a process queue of its own."""
    one.rebalance()
    queue = one.queues.table[ALL[3]]
    queue.begin()
    world.broker.members.append("c2")
    assert one.rebalance()
    world.broker.members.remove("c2")
    assert one.rebalance()
    assert own(one) == [0, 1, 2, 3]
    assert one.queues.table[ALL[3]] is queue
    queue.end()
    for _ in range(5):
        world.settle()
    fresh = one.queues.table[ALL[3]]
    assert fresh is not queue
    assert queue.dropped
    assert not fresh.leaving


def test_a_removed_queue_is_stored_and_forgotten(world: World, one: Watched) -> None:
    """Covers C-157, C-179, C-181, C-182: persist, drop, forget, unlock."""
    one.rebalance()
    world.broker.append(0, True)
    world.answer(next(i for i, pull in enumerate(world.pulls) if pull.queue_id == 0))
    one.finish(0)
    assert world.run(one.queues.rebalance([]))
    assert own(one) == []
    assert world.broker.offsets[0] == 1
    assert one.store.read_memory(ALL[0]) is None
    assert sorted(one.unlocked) == ALL


def test_one_topic_s_failure_is_not_another_s(
    one: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-156: logged, the other topics go on."""
    real = one.queues._topic_queues

    async def broken(topic: str) -> list[MessageQueue] | None:
        if topic == "A":
            raise RequestTimeoutError("no answer")
        return await real(topic)

    one.queues._topic_queues = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert not one.world.run(one.queues.rebalance(["A", TOPIC]))
    assert own(one) == [0, 1, 2, 3]
    assert "dividing the queues of A failed" in caplog.text


def test_an_expired_pull_loop_is_begun_anew_and_its_late_answer_discarded(
    world: World, one: Watched
) -> None:
    """Covers C-176, C-182, C-199, C-581: the answer of the earlier assignment counts no more."""
    one.rebalance()
    late = list(world.pulls)
    world.pulls.clear()
    world.advance(120_001)
    assert one.rebalance()
    assert len(world.pulls) == QUEUES
    world.broker.append(0, True)
    world.pulls += late
    for _ in late:
        world.answer(QUEUES)
    assert not one.handed
    assert len(world.pulls) == QUEUES
    world.answer(next(i for i, pull in enumerate(world.pulls) if pull.queue_id == 0))
    assert len(one.handed) == 1


def test_a_repair_is_for_one_assignment_only(world: World, one: Watched) -> None:
    """Covers C-228, C-322, C-565: backwards, at once, stored; not after the queue was given up."""
    one.rebalance()
    queue = one.queues.table[ALL[0]]
    assert world.run(one.queues.restart(ALL[0], 7, queue))
    assert world.broker.offsets[0] == 7
    assert not world.run(one.queues.restart(ALL[0], 3, queue))
    assert world.run(one.queues.restart(ALL[0], 3))
    assert world.broker.offsets[0] == 3
    one.queues.stop()
    assert not world.run(one.queues.restart(ALL[0], 1))


def test_a_wrong_route_that_is_put_right_is_not_taken_to_its_end(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route may name tens of thousands of queues that are not there; asking takes minutes."""
    monkeypatch.setattr(assignment, "QUEUES_AT_ONCE", 1)
    routes = one.queues._instance.routes
    monkeypatch.setattr(
        routes, "subscribe_queues", lambda topic: tuple(ALL[:2] if one.queues.table else ALL)
    )
    assert not one.rebalance()
    assert own(one) == [0]
    assert one.rebalance()
    assert own(one) == [0, 1]


# --- queues whose listener runs -----------------------------------------------------------------


def busy(world: World, one: Watched, number: int = 3) -> AssignedQueue:
    """Return a queue that is to leave, since another member came, and whose listener runs."""
    one.rebalance()
    queue = one.queues.table[ALL[number]]
    queue.begin()
    world.broker.members.append("c2")
    assert one.rebalance()
    assert one.queues.table[ALL[number]] is queue
    one.changes.clear()
    one.given_up.clear()
    return queue


def settle(world: World) -> None:
    for _ in range(8):
        world.settle()


def test_a_queue_whose_listener_is_back_leaves_like_any_other(world: World, one: Watched) -> None:
    """Covers C-163, C-179: finished messages count, and the owner is told of its share."""
    queue = busy(world, one)
    queue.end()
    settle(world)
    assert (one.given_up, one.changes) == ([3], [(QUEUES, 2)])
    assert not one.queues._tasks
    assert one.rounds == 0


def test_a_pull_that_died_while_its_listener_ran_is_begun_anew_when_that_is_back(
    world: World, one: Watched
) -> None:
    """Covers C-176, C-557: the round wants the queue again at once, and cannot have it yet."""
    one.rebalance()
    queue = one.queues.table[ALL[0]]
    queue.begin()
    world.advance(120_001)
    assert one.rebalance()
    assert one.queues.table[ALL[0]] is queue
    queue.end()
    settle(world)
    assert own(one) == [0, 1, 2, 3]
    assert one.queues.table[ALL[0]] is not queue


def test_a_queue_that_leaves_later_is_not_taken_when_its_topic_is_not_wanted_any_more(
    world: World, one: Watched
) -> None:
    """Covers C-104: though it was wanted again meanwhile."""
    queue = busy(world, one)
    world.broker.members.remove("c2")
    assert one.rebalance()
    assert world.run(one.queues.rebalance([]))
    queue.end()
    settle(world)
    assert ALL[3] not in one.queues.table
    assert one.rounds == 0


def test_a_queue_that_cannot_be_taken_when_its_listener_is_back_is_divided_anew(
    world: World, one: Watched
) -> None:
    """Covers C-175, C-557: nobody else takes it."""
    queue = busy(world, one)
    world.broker.members.remove("c2")
    assert one.rebalance()
    world.broker.refusals = 99
    queue.end()
    settle(world)
    assert ALL[3] not in one.queues.table
    assert one.rounds == 1


def test_a_queue_that_was_begun_anew_is_left_alone_when_its_listener_is_back(
    world: World, one: Watched
) -> None:
    """Covers C-228: the repair has given the former up."""
    queue = busy(world, one)
    assert world.run(one.queues.restart(ALL[3], 7))
    fresh = one.queues.table[ALL[3]]
    queue.end()
    settle(world)
    assert one.queues.table[ALL[3]] is fresh
    assert (one.given_up, one.changes) == ([], [])


def test_nothing_leaves_later_once_the_consumer_ends(world: World, one: Watched) -> None:
    """Covers C-119: the end gives up all that there is, and waits for no listener."""
    queue = busy(world, one)
    one.queues.stop()
    queue.end()
    settle(world)
    assert (one.given_up, queue.dropped) == ([], False)
    other = busy_again = one.queues.table[ALL[0]]
    assert other is busy_again
    world.run(one.queues.close())
    assert own(one) == []
    assert queue.dropped
    assert sorted(one.unlocked) == ALL


def test_the_end_cancels_what_waits_for_a_listener(world: World, one: Watched) -> None:
    """Covers C-119."""
    queue = busy(world, one)
    (task,) = one.queues._tasks
    world.run(one.queues.close())
    assert task.cancelled()
    assert not one.queues._tasks
    queue.end()
    settle(world)
    assert one.given_up == []


def test_a_queue_that_cannot_be_given_up_is_logged(
    world: World, one: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = busy(world, one)

    async def breaks(queues: Sequence[AssignedQueue]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(one, "give_up", breaks)
    queue.end()
    settle(world)
    assert f"giving up {ALL[3]} failed" in caplog.text


class Concurrent(Watched):
    """A member that consumes in any order: queues leave though their listener runs, in the end."""

    sharing = replace(Watched.sharing, in_order=False, release_wait_ms=400)


@pytest.mark.parametrize("kind", [Concurrent, Watched])
def test_a_round_waits_for_listeners_only_so_long(world: World, kind: type[Watched]) -> None:
    """Covers C-179: queues consumed in order stay until theirs is back; nothing is kept waiting."""

    async def make() -> Watched:
        return kind(world, "c1")

    member = world.run(make())
    world.members.append(member)
    world.broker.members.append("c1")
    member.rebalance()
    queue = member.queues.table[ALL[3]]
    queue.begin()
    world.broker.members.append("c2")
    round_ = world.loop.create_task(member.queues.rebalance([TOPIC]))
    settle(world)
    assert member.given_up == [2], "what is free leaves at once"
    if kind is Concurrent:
        world.advance(399.8)
        assert (round_.done(), queue.dropped) == (False, False)
        world.advance(0.4)
    settle(world)
    assert round_.done()
    assert queue.dropped is (kind is Concurrent)


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


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_strategy_gets_lists_of_its_own_and_its_errors_keep_what_there_is(
    one: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_empty: bool
) -> None:
    """Covers C-161, C-162: queues the topic does not have are told, and left out."""
    one.rebalance()
    asked: list[tuple[object, ...]] = []

    def allot(
        group: str, me: str, queues: list[MessageQueue], members: list[str]
    ) -> list[MessageQueue]:
        asked.append((group, me, list(queues), list(members)))
        if is_empty:
            raise ZeroDivisionError
        mine = queues[:2]
        queues.clear()
        members.clear()
        return [*mine, MessageQueue(TOPIC, "b", 9)]

    sharing = replace(one.sharing, strategy=Strategy(allot))
    monkeypatch.setattr(one.queues, "_settings", sharing)
    assert one.rebalance() is not is_empty
    assert own(one) == ([0, 1, 2, 3] if is_empty else [0, 1])
    assert asked == [("g", "c1", ALL, ["c1"])]
    text = "allocate strategy mine failed" if is_empty else "returned queues that topic T does not"
    assert text in caplog.text
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
    monkeypatch.setattr(instance, "is_away", lambda broker: False, raising=False)
    assert one.rebalance()
    assert own(one) == [0, 1]


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

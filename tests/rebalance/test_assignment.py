"""One round of dividing queues: whom it asks, what it keeps without answers, what it unlocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from rocketstream.client.consumer import assignment
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.errors import RequestTimeoutError
from rocketstream.model import MessageQueue
from tests.kits.client.model_cluster import ADDRESS, QUEUES, TOPIC, World
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


def test_unknown_members_keep_what_there_is(
    world: World, one: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-159, C-160, C-550: skipped, unbalanced, so asked again in a second."""
    one.rebalance()

    async def refuse(address: str, group: str) -> list[str]:
        raise RequestTimeoutError("no consumer for this group")

    one.queues._instance.api.consumer_ids = refuse  # type: ignore[method-assign]
    assert not one.rebalance()
    assert own(one) == [0, 1, 2, 3]
    del one.queues._instance.api.consumer_ids
    assert one.rebalance()
    text = caplog.text
    assert "asking for the members of g failed" in text
    assert "asking for the members of g: works again" in text


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
        assert not one.world.run(one.queues.rebalance([TOPIC, "A"]))
    assert "dividing the queues of A failed" in caplog.text


def test_a_topic_whose_queues_can_be_divided_again_is_told(
    one: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(topic: str) -> bool:
        raise RequestTimeoutError("no answer")

    instance = one.queues._instance
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(instance, "subscribe_queues", lambda topic: None, raising=False)
        patched.setattr(instance, "update", broken, raising=False)
        assert not one.rebalance()
    assert one.rebalance()
    assert f"dividing the queues of {TOPIC}: works again" in caplog.text


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
    assert queue.dropped
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
    assert one.rebalance()
    assert own(one) == [0, 1], "it leaves like any other in the next round"


def test_nothing_leaves_later_once_the_consumer_ends(world: World, one: Watched) -> None:
    """Covers C-119: the end gives up all that there is, and waits for no listener."""
    queue = busy(world, one)
    one.queues.stop()
    queue.end()
    settle(world)
    assert (one.given_up, queue.dropped) == ([], False)
    world.run(one.queues.close())
    assert own(one) == []
    assert queue.dropped
    assert sorted(one.unlocked) == ALL
    assert world.broker.offsets == dict.fromkeys(range(QUEUES), 0)


def test_the_end_takes_no_queue_any_more(world: World, one: Watched) -> None:
    """Covers C-119: also without being told to stop before."""
    one.rebalance()
    world.run(one.queues.close())
    assert one.rebalance()
    assert own(one) == []


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


def test_the_end_waits_for_what_it_cancels(world: World, one: Watched) -> None:
    """Covers C-119: also where there is no queue."""

    async def forever() -> None:
        await asyncio.Event().wait()

    async def end() -> asyncio.Task[None]:
        task = one.queues._begin_task(forever())
        await one.queues.close()
        return task

    assert world.run(end()).cancelled()


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
def test_a_round_waits_for_listeners_only_so_long(
    world: World, kind: type[Watched], caplog: pytest.LogCaptureFixture
) -> None:
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
    caplog.set_level(logging.INFO)
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
    told = [text for text in caplog.messages if "gave up" in text]
    assert [str(ALL[3]) in text for text in told] == [False, True][: 1 + queue.dropped]


def test_a_topic_that_is_not_wanted_any_more_leaves_when_its_listener_is_back(
    world: World, one: Watched
) -> None:
    """Covers C-104, C-179."""
    one.rebalance()
    queue = one.queues.table[ALL[0]]
    queue.begin()
    assert world.run(one.queues.rebalance([]))
    assert own(one) == [0]
    queue.end()
    settle(world)
    assert own(one) == []


def test_a_topic_that_is_not_wanted_any_more_waits_for_listeners_only_so_long(
    world: World,
) -> None:
    """Covers C-104, C-179: its free queues leave at once."""

    async def make() -> Concurrent:
        return Concurrent(world, "c1")

    member = world.run(make())
    world.members.append(member)
    world.broker.members.append("c1")
    member.rebalance()
    queue = member.queues.table[ALL[0]]
    queue.begin()
    round_ = world.loop.create_task(member.queues.rebalance([]))
    settle(world)
    assert own(member) == [0]
    world.advance(399.8)
    assert not queue.dropped
    world.advance(0.4)
    settle(world)
    assert round_.result() is True
    assert (queue.dropped, own(member)) == (True, [])


def test_a_topic_that_is_wanted_again_meanwhile_keeps_its_queue(world: World, one: Watched) -> None:
    """Covers C-104, C-557: begun anew, when the listener of before is back."""
    one.rebalance()
    queue = one.queues.table[ALL[0]]
    queue.begin()
    assert world.run(one.queues.rebalance([]))
    assert one.rebalance()
    queue.end()
    settle(world)
    assert own(one) == [0, 1, 2, 3]
    assert one.queues.table[ALL[0]] is not queue


def test_a_pull_that_died_while_its_listener_is_just_back_is_begun_anew_at_once(
    world: World,
) -> None:
    """Covers C-176: within the round that waited for it."""

    async def make() -> Concurrent:
        return Concurrent(world, "c1")

    member = world.run(make())
    world.members.append(member)
    world.broker.members.append("c1")
    member.rebalance()
    queue = member.queues.table[ALL[0]]
    queue.begin()
    world.advance(120_001)
    pulls = len(world.pulls)
    round_ = world.loop.create_task(member.queues.rebalance([TOPIC]))
    settle(world)
    assert not round_.done()
    queue.end()
    settle(world)
    assert round_.result() is True
    assert member.queues.table[ALL[0]] is not queue
    assert len(world.pulls) == pulls + QUEUES, "three at once, and the fourth"

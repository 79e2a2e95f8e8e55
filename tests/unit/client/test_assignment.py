"""One round of dividing queues: whom it asks, what it keeps without answers, what it unlocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pytest

from rocketstream.client.consumer import assignment
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.errors import RequestTimeoutError
from rocketstream.model import MessageQueue
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

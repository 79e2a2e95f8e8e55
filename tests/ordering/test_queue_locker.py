"""The locks of one member, step by step: the brokers and the time are the test's."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from rocketstream import MessageQueue
from rocketstream.client.consumer.consume.orderly_queue import (
    Lease,
    OrderlyProcessQueue,
    OrderlyTimes,
)
from rocketstream.client.consumer.consume.queue_locks import LOCK_TIMEOUT_MS, QueueLocker
from rocketstream.client.consumer.process_queue import Thresholds
from rocketstream.client.consumer.queue import OrderlyQueue, QueueLinks
from rocketstream.errors import RequestTimeoutError
from rocketstream.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.fake_broker import GROUP, TOPIC
from tests.kits.client.model_cluster import StillLoop

T = TypeVar("T")
A0, A1, B0 = (
    MessageQueue(TOPIC, "a", 0),
    MessageQueue(TOPIC, "a", 1),
    MessageQueue(TOPIC, "b", 0),
)
LIVE_MS = 30_000.0


class Brokers:
    """Brokers a and b, the client's instance, and a clock; a lock is given unless told otherwise.

    Attributes:
        others: queues that another member has.
        silent: brokers that do not answer.
        losses: how often a connection to an address was lost.
        locked, unlocked: the queues of each request, in order.
        said: what was said of outages.
    """

    def __init__(self, loop: StillLoop) -> None:
        self.loop = loop
        self.api = self.routes = self.links = self.groups = self.outages = self
        self.client_id = "me"
        self.clock = SimpleNamespace(monotonic_ms=lambda: loop.now_s * 1000)
        self.others: set[MessageQueue] = set()
        self.silent: set[str] = set()
        self.lost: dict[str, int] = {}
        self.locked: list[set[MessageQueue]] = []
        self.unlocked: list[set[MessageQueue]] = []
        self.said: list[tuple[object, ...]] = []
        self.rounds = 0
        self.meanwhile: Any = lambda: None

    def now_ms(self) -> float:
        return self.loop.now_s * 1000

    def known_master(self, broker: str) -> str:
        return f"{broker}:1"

    def channel(self, address: str) -> str:
        return address

    def losses(self, address: str) -> int:
        return self.lost.get(address, 0)

    def rebalance_soon(self) -> None:
        self.rounds += 1

    def failed(self, subject: tuple[object, ...], error: Exception) -> None:
        self.said.append(("failed", *subject))

    def worked(self, *subject: object) -> None:
        self.said.append(("worked", *subject))

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        assert timeout_ms == LOCK_TIMEOUT_MS
        asked = LockBatchRequestBody.decode(bytes(command.body))
        assert (asked.consumer_group, asked.client_id) == (GROUP, "me")
        assert {f"{mq.broker_name}:1" for mq in asked.mq_set} == {address}
        await asyncio.sleep(0)
        if address[0] in self.silent:
            raise RequestTimeoutError("no answer")
        if command.code == RequestCode.UNLOCK_BATCH_MQ:
            self.unlocked.append(asked.mq_set)
            return RemotingCommand.response(0)
        self.locked.append(asked.mq_set)
        self.meanwhile()
        body = LockBatchResponseBody(asked.mq_set - self.others | {MessageQueue("Z", "a", 9)})
        return RemotingCommand.response(0, body=body.encode())


class Store:
    """What is noted and what is stored of every queue."""

    def __init__(self) -> None:
        self.noted: int | None = 5
        self.stored: int | None = 5
        self.error: Exception | None = None

    def read_memory(self, mq: MessageQueue) -> int | None:
        return self.noted

    async def read_store(self, mq: MessageQueue) -> int | None:
        if self.error is not None:
            raise self.error
        return self.stored


class World:
    """A locker with what it needs."""

    def __init__(self) -> None:
        self.loop = StillLoop()
        self.brokers = Brokers(self.loop)
        self.store = Store()
        self.locker = QueueLocker(cast(Any, self.brokers), GROUP, OrderlyTimes())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def pass_ms(self, ms: float) -> None:
        self.loop.now_s += ms / 1000
        for _ in range(6):
            self.run(asyncio.sleep(0))

    def take(self, *mqs: MessageQueue) -> None:
        """Lock queues and take those that were given."""
        for mq in sorted(self.run(self.locker.may_take(mqs))):
            self.add(mq)

    def add(self, mq: MessageQueue) -> OrderlyQueue:
        """Take a queue with whatever lease it has."""
        links = QueueLinks(
            cast(Any, self.store), lambda _: None, lambda *_: None, cast(Any, self.brokers.clock)
        )
        held = OrderlyProcessQueue(mq, self.brokers.now_ms(), self.locker.lease(mq))
        queue = OrderlyQueue(held, 0, Thresholds(), links, None)
        self.locker.taken(queue)
        return queue

    def queue(self, mq: MessageQueue) -> OrderlyQueue:
        return self.locker._queues[mq]

    def lease(self, mq: MessageQueue) -> Lease:
        lease = self.queue(mq).process_queue.lease
        assert lease is not None
        return lease

    def is_valid(self, mq: MessageQueue) -> bool:
        return self.lease(mq).is_valid(self.brokers.now_ms())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.run(made.locker.close())
    made.loop.close()


# --- taking -------------------------------------------------------------------------------------


def test_each_broker_is_asked_once_for_its_queues(world: World) -> None:
    """Covers C-186: a queue that a broker names and nobody asked for is not taken."""
    assert sorted(world.run(world.locker.may_take([A0, A1, B0]))) == [A0, A1, B0]
    assert sorted(map(sorted, world.brokers.locked)) == [[A0, A1], [B0]]
    assert world.brokers.said == [("worked", "locks of", GROUP, "at", each) for each in "ab"]
    assert world.brokers.rounds == 0
    assert world.locker._retry is None


def test_a_lease_counts_from_when_it_was_asked_for(world: World) -> None:
    """Covers C-186, C-236, C-298."""
    world.brokers.meanwhile = lambda: setattr(world.loop, "now_s", world.loop.now_s + 1)
    world.take(A0)
    assert world.lease(A0).locked_ms == world.brokers.now_ms() - 1_000
    assert world.lease(A0).live_ms == LIVE_MS
    world.loop.now_s += (LIVE_MS - 1_000) / 1000
    assert world.is_valid(A0)
    world.loop.now_s += 0.001
    assert not world.is_valid(A0)


def test_a_broker_that_does_not_answer_gives_nothing_and_refuses_nothing(world: World) -> None:
    """Covers C-187, C-560: no round is wanted soon; the outage is told."""
    world.brokers.silent = {"b"}
    assert sorted(world.run(world.locker.may_take([A0, B0]))) == [A0]
    assert ("failed", "locks of", GROUP, "at", "b") in world.brokers.said
    assert world.locker._retry is None


def test_a_lock_given_over_a_connection_that_was_lost_meanwhile_is_not_trusted(
    world: World,
) -> None:
    """Covers C-187: the broker may have restarted since, and forgotten it."""
    world.brokers.meanwhile = lambda: world.brokers.lost.update({"a:1": 1})
    world.take(A0, B0)
    assert not world.is_valid(A0)
    assert world.is_valid(B0)


def test_a_refused_queue_is_asked_for_again_after_pauses_that_grow(world: World) -> None:
    """Covers C-560: from the start again once nothing is refused."""
    world.brokers.others = {A0}
    pauses = []
    for _ in range(6):
        assert not world.run(world.locker.may_take([A0]))
        timer = world.locker._retry
        assert timer is not None
        pauses.append(timer.when() - world.loop.now_s)
        assert not world.run(world.locker.may_take([A0]))
        assert world.locker._retry is timer, "one round is enough"
        rounds = world.brokers.rounds
        world.pass_ms(pauses[-1] * 1000 - 1)
        assert world.brokers.rounds == rounds
        world.pass_ms(2)
        assert world.brokers.rounds == rounds + 1
    assert pauses == pytest.approx([0.5, 0.5, 1, 2, 2, 2])
    world.brokers.others = set()
    world.take(A0)
    world.brokers.others = {A1}
    for _ in range(2):
        world.take(A1)
        timer = world.locker._retry
        assert timer is not None
        assert timer.when() - world.loop.now_s == pytest.approx(0.5)
        world.pass_ms(501)


def test_a_locker_that_ends_asks_for_no_round(world: World) -> None:
    """Covers C-119: neither later nor by a timer that runs."""
    world.brokers.others = {A0}
    world.take(A0)
    world.locker.stop()
    world.pass_ms(10_000)
    assert world.brokers.rounds == 0
    world.locker._retry = None
    world.take(A0)
    assert world.locker._retry is None


def test_locks_that_a_later_round_does_not_want_are_given_back(world: World) -> None:
    """Covers C-188, C-560: but not those of queues that are ours."""
    world.take(A0)
    world.run(world.locker.may_take([A1, B0]))
    world.run(world.locker.may_take([A0, B0]))
    assert world.brokers.unlocked == [{A1}]
    world.run(world.locker.may_take([]))
    assert world.brokers.unlocked == [{A1}, {B0}]
    world.run(world.locker.may_take([]))
    assert world.brokers.unlocked == [{A1}, {B0}]


def test_a_queue_taken_anew_has_the_lease_it_had_unless_it_was_locked_again(world: World) -> None:
    """Covers C-228, C-298: a repair asks no broker."""
    world.take(A0)
    first = world.lease(A0)
    assert world.locker.lease(A0) is first
    world.pass_ms(5)
    world.take(A0)
    assert world.lease(A0) is not first
    assert world.lease(A0).locked_ms == world.brokers.now_ms()


def test_a_queue_nobody_locked_has_a_lease_that_is_over(world: World) -> None:
    """Covers C-281: its first turn asks for the lock."""
    lease = world.locker.lease(A0)
    assert not lease.is_valid(world.brokers.now_ms())
    assert lease.locked


# --- giving back --------------------------------------------------------------------------------


def test_queues_that_leave_are_unlocked_broker_by_broker(world: World) -> None:
    """Covers C-188, C-556."""
    world.take(A0, A1, B0)
    world.run(world.locker.released([A0, B0]))
    assert sorted(map(sorted, world.brokers.unlocked)) == [[A0], [B0]]
    assert ("worked", "unlocking for", GROUP, "at", "b") in world.brokers.said
    assert list(world.locker._queues) == [A1]
    world.run(world.locker.released([]))
    assert len(world.brokers.unlocked) == 2


def test_a_queue_that_was_locked_and_never_taken_is_unlocked(world: World) -> None:
    """Covers C-188."""
    world.run(world.locker.may_take([A0]))
    world.run(world.locker.released([A0]))
    assert world.brokers.unlocked == [{A0}]


def test_a_queue_whose_listener_runs_stays_locked(world: World) -> None:
    """Covers C-122, C-556: nobody shall overtake it."""
    world.take(A0)
    world.queue(A0).spared = False
    queue = world.queue(A0)
    queue.former = world.add(A1)
    queue.former.process_queue._stage = queue.former.process_queue.stage.IN_HAND
    world.run(world.locker.released([A0]))
    assert world.brokers.unlocked == []


def test_a_queue_that_another_member_has_is_not_unlocked(world: World) -> None:
    """Covers C-188: and one without a lease is."""
    world.take(A0, B0)
    world.lease(A0).lose()
    world.queue(B0).process_queue.lease = None
    world.run(world.locker.released([A0, B0]))
    assert world.brokers.unlocked == [{B0}]


def test_a_broker_that_does_not_unlock_is_told(world: World) -> None:
    world.take(A0)
    world.brokers.silent = {"a"}
    world.run(world.locker.released([A0]))
    assert world.brokers.said[-1] == ("failed", "unlocking for", GROUP, "at", "a")


def test_the_end_gives_back_what_was_not_taken_and_renews_no_more(world: World) -> None:
    """Covers C-119, C-188."""
    world.run(world.locker.may_take([A0, A1]))
    world.add(A1)
    renewal = world.locker._renewal
    assert renewal is not None
    world.run(world.locker.close())
    assert world.brokers.unlocked == [{A0}]
    assert renewal.cancelled()
    asked = len(world.brokers.locked)
    world.pass_ms(60_000)
    assert len(world.brokers.locked) == asked
    world.run(world.locker.may_take([A0]))
    assert world.locker._renewal is renewal


def test_the_end_waits_for_the_renewal_that_runs(world: World) -> None:
    """Covers C-119: also where nothing is to be given back."""
    world.take(A0)
    renewal = world.locker._renewal
    assert renewal is not None
    world.run(world.locker.close())
    assert renewal.cancelled()


def test_a_locker_that_has_ended_begins_no_renewal(world: World) -> None:
    world.locker.stop()
    world.run(world.locker.may_take([A0]))
    assert world.locker._renewal is None


# --- keeping ------------------------------------------------------------------------------------


def test_locks_are_renewed_after_a_second_and_every_twenty(world: World) -> None:
    """Covers C-187, C-236, C-640: one renewal for the queues of all rounds."""
    world.take(A0)
    world.take(B0)
    begun = len(world.brokers.locked)

    def renewals() -> int:
        return len(world.brokers.locked) - begun

    world.pass_ms(999)
    assert renewals() == 0
    world.pass_ms(2)
    assert renewals() == 2
    world.pass_ms(19_990)
    assert renewals() == 2
    world.pass_ms(12)
    assert renewals() == 4
    assert world.lease(A0).locked_ms == world.brokers.now_ms()


def test_a_renewal_that_fails_is_followed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.take(A0)
    calls: list[int] = []

    async def renew() -> None:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(world.locker, "renew", renew)
    with caplog.at_level(logging.ERROR):
        world.pass_ms(1_001)
        world.pass_ms(20_001)
    assert len(calls) == 2
    assert "renewing queue locks failed" in caplog.text


def test_a_dropped_queue_is_not_renewed(world: World) -> None:
    """Covers C-558."""
    world.take(A0, A1)
    world.queue(A0).drop()
    world.brokers.locked.clear()
    world.run(world.locker.renew())
    assert world.brokers.locked == [{A1}]


def test_a_renewal_gives_back_locks_that_were_not_taken_for_as_long_as_they_last(
    world: World,
) -> None:
    """Covers C-187, C-188: younger ones may be of queues that are just being taken."""
    world.run(world.locker.may_take([A0]))
    world.loop.now_s += (LIVE_MS - 1) / 1000
    world.run(world.locker.renew())
    assert world.brokers.unlocked == []
    world.loop.now_s += 0.001
    world.run(world.locker.renew())
    assert world.brokers.unlocked == [{A0}]


def test_an_answer_of_before_a_lost_connection_renews_nothing(world: World) -> None:
    """Covers C-187."""
    world.take(A0)
    locked_ms = world.lease(A0).locked_ms
    world.pass_ms(10)
    world.brokers.meanwhile = lambda: world.brokers.lost.update({"a:1": 1})
    assert world.run(world.locker.ask([A0])) == set()
    assert world.lease(A0).locked_ms == locked_ms
    world.brokers.meanwhile = lambda: None
    world.run(world.locker.ask([A0]))
    assert world.lease(A0).locked_ms == world.brokers.now_ms()


def test_a_queue_that_another_member_locked_is_dropped_and_divided_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-187: once."""
    world.take(A0, A1)
    world.brokers.others = {A0}
    assert world.run(world.locker.ask([A0, A1])) == {A0}
    assert world.queue(A0).dropped
    assert not world.lease(A0).locked
    assert not world.queue(A1).dropped
    assert world.brokers.rounds == 1
    world.run(world.locker.ask([A0, A1]))
    assert world.brokers.rounds == 1
    world.brokers.others = {B0}
    world.queue(A1).process_queue.lease = None
    assert world.run(world.locker.ask([B0])) == {B0}
    assert world.brokers.rounds == 1
    world.brokers.others = {A1}
    assert world.run(world.locker.ask([A1])) == {A1}
    assert (world.brokers.rounds, world.queue(A1).dropped) == (1, False)


def test_a_queue_that_leaves_while_its_lock_is_asked_for_is_left_alone(world: World) -> None:
    world.take(A0)
    queue = world.queue(A0)
    world.lease(A0).doubt()
    world.brokers.meanwhile = lambda: None

    async def read_store(mq: MessageQueue) -> int | None:
        del world.locker._queues[A0]
        return 5

    world.store.read_store = read_store  # type: ignore[method-assign]
    world.run(world.locker.ask([A0]))
    assert queue.process_queue.lease is not None
    assert queue.process_queue.lease.locked_ms == -math.inf
    world.run(world.locker.ask([A0]))


# --- in doubt -----------------------------------------------------------------------------------


def test_a_lost_connection_puts_the_locks_of_its_broker_in_doubt(world: World) -> None:
    """Covers C-187, C-236: taken or not yet."""
    world.take(A0, B0)
    world.run(world.locker.may_take([A1, MessageQueue(TOPIC, "b", 1)]))
    world.queue(B0).process_queue.lease = Lease(world.brokers.now_ms(), LIVE_MS)
    world.locker.connection_lost("a:1")
    assert not world.is_valid(A0)
    assert world.is_valid(B0)
    assert not world.locker.lease(A1).is_valid(world.brokers.now_ms())
    assert world.locker.lease(MessageQueue(TOPIC, "b", 1)).is_valid(world.brokers.now_ms())


def test_a_queue_without_a_lease_is_never_in_doubt(world: World) -> None:
    world.take(A0)
    world.queue(A0).process_queue.lease = None
    world.locker.connection_lost("a:1")
    world.brokers.locked.clear()
    assert world.run(world.locker.ask_for_doubted()) is False
    assert world.run(world.locker.ask([A0])) == set()
    assert world.brokers.locked == [{A0}]


def test_only_locks_in_doubt_are_asked_for(world: World) -> None:
    """Covers C-187: of queues that are still ours."""
    world.take(A0, A1, B0)
    assert world.run(world.locker.ask_for_doubted()) is False
    world.lease(A0).doubt()
    world.lease(A1).doubt()
    world.queue(A1).drop()
    world.brokers.locked.clear()
    assert world.run(world.locker.ask_for_doubted()) is True
    assert world.brokers.locked == [{A0}]
    assert world.is_valid(A0)


@pytest.mark.parametrize(
    ("noted", "stored", "overtaken"),
    [(5, 5, False), (5, 6, True), (5, 4, False), (None, 6, False), (5, None, False)],
)
def test_a_queue_in_doubt_that_others_consumed_is_dropped(
    world: World, noted: int | None, stored: int | None, overtaken: bool
) -> None:
    """Covers C-187, C-559: its offset is larger than what this consumer has finished."""
    world.take(A0, A1)
    world.lease(A0).doubt()
    world.store.noted, world.store.stored = noted, stored
    world.run(world.locker.ask([A0, A1]))
    assert world.queue(A0).dropped is overtaken
    assert world.is_valid(A0) is not overtaken
    assert not world.queue(A1).dropped, "its lock was never in doubt"
    assert world.brokers.rounds == int(overtaken)


def test_a_dropped_queue_that_others_consumed_wants_no_round(world: World) -> None:
    world.take(A0)
    world.lease(A0).doubt()
    world.queue(A0).drop()
    world.store.stored = 6
    world.run(world.locker.ask([A0]))
    assert world.brokers.rounds == 0


def test_a_queue_stays_in_doubt_while_the_store_cannot_be_asked(world: World) -> None:
    """Covers C-187, C-559."""
    world.take(A0)
    world.lease(A0).doubt()
    world.store.error = RequestTimeoutError("no answer")
    world.run(world.locker.ask([A0]))
    assert not world.is_valid(A0)
    assert not world.queue(A0).dropped
    world.store.error = None
    world.run(world.locker.ask([A0]))
    assert world.is_valid(A0)

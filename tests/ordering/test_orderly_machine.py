"""Random schedules of an orderly group: what may never happen.

Members with the real turns, leases, process queues, table and offsets; the broker's locks are real
too, and everything between them is chosen (covers C-186 to C-188, C-236, C-243 to C-247, C-279 to
C-286, C-298, C-353 to C-355, C-556 to C-560).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rocketstream import ConsumeOrderlyContext
from rocketstream.client.consumer.consume.listener_calls import CallObserver
from rocketstream.client.consumer.consume.orderly import OrderlyService
from rocketstream.client.consumer.consume.orderly_queue import OrderlyProcessQueue, OrderlyTimes
from rocketstream.client.consumer.consume.queue_locks import QueueLocker
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.queue import AssignedQueue, OrderlyQueue
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import RequestTimeoutError
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.server.broker.core.locks import QueueLocks as BrokerLocks
from tests.kits.client.model_cluster import ADDRESS, BROKER, GROUP, QUEUES, Member, World

COMPUTES = pytest.mark.timeout(600)
"""Ten seconds of a processor, which nothing but the other processes of a machine can hold up."""
NUMBER = st.integers(0, 1_000_000)
MEMBERS_MAX = 3
MAX_TRIES = 2
STATUSES = [*ConsumeOrderlyStatus, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUCCESS]
PASSES = st.sampled_from([True, True, True, False])
WORK = st.tuples(
    st.sampled_from(["call", "call", "return", "return", "pull", "lose"]),
    NUMBER,
    st.sampled_from(STATUSES),
    st.sampled_from([False, False, True]),
)
GOOD = (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)


@dataclass
class Call:
    """A listener call that has not returned."""

    request: OrderlyQueue
    batch: list[MessageExt]
    began_ms: float


class Turns(OrderlyService):
    """The real service; the test is worker and listener."""

    ready: deque[OrderlyQueue]

    def _start(self, queue: OrderlyQueue) -> None:
        self.ready.append(queue)

    async def _stop(self, await_ms: float, caller: int | None) -> None:
        self.ready.clear()

    def _others_wait(self) -> bool:
        return bool(self.ready)

    def _make_pool(self, size: int) -> Any:
        return None


class OrderlyMember(Member):
    """A consumer whose queues are locked."""

    sharing = replace(Member.sharing, in_order=True, release_wait_ms=0)

    def __init__(self, world: OrderlyWorld, client_id: str) -> None:
        super().__init__(world, client_id)
        self.calls: list[Call] = []
        self.is_heard = True
        self.wants_rebalance = False
        observer = CallObserver(
            GROUP, ConsumeHooks(), cast(Any, None), cast(Any, world.clock), timeout_minutes=15
        )
        consumer_settings = SimpleNamespace(
            consume_thread_max=1,
            consume_message_batch_max_size=2,
            suspend_current_queue_time_ms=1_000,
            max_reconsume_times=MAX_TRIES,
        )
        times = OrderlyTimes(release_wait_ms=0)
        self.locker = QueueLocker(cast(Any, _Wire(world, client_id)), GROUP, times)
        self.service = Turns(
            listener_of(print),
            observer,
            cast(Any, consumer_settings),
            cast(Any, self),
            self.locker,
            times,
        )
        self.service.ready = deque()

    async def give_up(self, what: Any, max_times: int = 0) -> Any:
        """As an owner of queues: do nothing. As a ``SendBack``: take a dead message."""
        if not isinstance(what, MessageExt):
            return None
        world = cast("OrderlyWorld", self.world)
        if world.dead_letters_fail:
            return False
        world.broker.consumed[what.queue_id].add(what.queue_offset)
        return True

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        return await self.locker.may_take(mqs)

    def new_queue(self, mq: MessageQueue, offset: int) -> AssignedQueue:
        former = self.queues.table.get(mq)
        return self.service.new_queue(mq, offset, self.thresholds, self.links, former)

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        await self.locker.released(mqs)

    def submit(self, queue: AssignedQueue, messages: list[MessageExt]) -> None:
        self.service.submit(queue, messages)

    # --- steps ------------------------------------------------------------------------------------

    def call(self, number: int) -> None:
        """A worker takes a turn's next batch, if it may."""
        del_at = number % len(self.service.ready)
        request = self.service.ready[del_at]
        del self.service.ready[del_at]
        self._take(request, self.world.clock.monotonic_ms())

    def _take(self, request: OrderlyQueue, began_ms: float) -> None:
        world = cast("OrderlyWorld", self.world)
        batch = self.service.next_batch(request, began_ms)
        if batch is None:
            return
        world.check_taken(self, request, batch)
        self.calls.append(Call(request, batch, began_ms))

    def answer(self, number: int, status: ConsumeOrderlyStatus, auto_commit: bool) -> None:
        """A listener returns; its turn goes on if it may."""
        call = self.calls.pop(number % len(self.calls))
        context = ConsumeOrderlyContext(call.request.process_queue.message_queue)
        context.auto_commit = auto_commit
        queue = call.request.process_queue
        kept = queue.taken_offsets
        finished = status in GOOD and not (status is GOOD[0] and not auto_commit)
        if finished and not queue.dropped:
            self.world.broker.consumed[queue.message_queue.queue_id].update(kept)
        if status is GOOD[0] and auto_commit:
            self._took(call.request, self.service.advance(call.request, call.began_ms), call)
        elif self.service.settle(call.request, call.batch, status, context):
            self._take(call.request, call.began_ms)

    def _took(self, request: OrderlyQueue, batch: list[MessageExt] | None, call: Call) -> None:
        if batch is not None:
            cast("OrderlyWorld", self.world).check_taken(self, request, batch)
            self.calls.append(Call(request, batch, call.began_ms))

    def shut_down(self) -> None:
        """Leave in order, with listeners that never return if there are any."""
        self.world.run(self.service.shutdown(0))
        self.leave()

    def crash(self) -> None:
        """Be gone; the locks stay at the broker until they expire."""
        super().crash()
        self.world.run(self.service.shutdown(0))
        self.locker._granted.clear()


class OrderlyWorld(World):
    """Broker with locks, and members that need them."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = BrokerLocks()
        self.silent_locks = 0
        self.dead_letters_fail = False
        self.everyone: dict[str, OrderlyMember] = {}
        self.takers: dict[MessageQueue, list[OrderlyProcessQueue]] = {}

    def join(self) -> OrderlyMember:
        self.joined += 1

        async def make() -> OrderlyMember:
            return OrderlyMember(self, f"c{self.joined}")

        member: OrderlyMember = self.run(make())
        self.members.append(member)
        self.everyone[member.client_id] = member
        self.broker.members.append(member.client_id)
        return member

    @property
    def orderly(self) -> list[OrderlyMember]:
        return cast("list[OrderlyMember]", self.members)

    def check_taken(
        self, member: OrderlyMember, request: OrderlyQueue, batch: list[MessageExt]
    ) -> None:
        """Whoever takes a batch holds the lock, is alone, and passes nothing unconsumed."""
        mq = request.process_queue.message_queue
        assert self.locks.holder(GROUP, mq, self.clock.now_ms()) == member.client_id
        for call in member.calls:
            assert call.request.process_queue.message_queue != mq, "two calls at once"
        # Whoever had to leave a queue to somebody else comes back with a new process queue only.
        taker = request.process_queue
        former = self.takers.setdefault(mq, [taker])
        if former[-1] is not taker:
            assert taker not in former, "went on with what was cached before somebody else came"
            former.append(taker)
        first = batch[0].queue_offset
        earlier = {n for n, passes in enumerate(self.broker.logs[mq.queue_id][:first]) if passes}
        done = self.broker.consumed[mq.queue_id] | set(request.process_queue.taken_offsets)
        assert earlier <= done, "something was overtaken"
        assert [m.queue_offset for m in batch] == sorted({m.queue_offset for m in batch})

    def close(self) -> None:
        for member in self.orderly:
            self.run(member.service.shutdown(0))
        super().close()


class _Wire:
    """As much of ``MQClientInstance`` as locks use."""

    def __init__(self, world: OrderlyWorld, client_id: str) -> None:
        self._world = world
        self.client_id = client_id
        self.clock = world.clock
        self.outages = OutageLog(cast(Any, world.clock), "me", Groups())
        self.api = self.routes = self.links = self.groups = self

    def known_master(self, broker_name: str) -> str:
        assert broker_name == BROKER
        return ADDRESS

    def channel(self, address: str) -> str:
        return address

    def losses(self, address: str) -> int:
        return self._world.losses

    def rebalance_soon(self) -> None:
        self._world.everyone[self.client_id].wants_rebalance = True

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        world = self._world
        if not world.everyone[self.client_id].is_heard:
            raise RequestTimeoutError("no answer")
        if command.code == RequestCode.UNLOCK_BATCH_MQ:
            given = UnlockBatchRequestBody.decode(bytes(command.body))
            for call in world.everyone[self.client_id].calls:
                assert call.request.process_queue.message_queue not in given.mq_set
            world.locks.unlock(GROUP, given.client_id, given.mq_set)
            return RemotingCommand.response(0)
        asked = LockBatchRequestBody.decode(bytes(command.body))
        held = world.locks.lock(GROUP, asked.client_id, asked.mq_set, world.clock.now_ms())
        if world.silent_locks:  # the broker has noted it, the answer is lost
            world.silent_locks -= 1
            raise RequestTimeoutError("no answer")
        return RemotingCommand.response(0, body=LockBatchResponseBody(held).encode())


class OrderlyGroup(RuleBasedStateMachine):
    """Members that come, go, crash, hang, and hear of each other late."""

    @initialize()
    def begin(self) -> None:
        self.world = OrderlyWorld()
        self.send([[True] * 6] * QUEUES)
        self.world.join().rebalance()

    @rule(logs=st.lists(st.lists(PASSES, max_size=6), min_size=QUEUES, max_size=QUEUES))
    def send(self, logs: list[list[bool]]) -> None:
        for queue_id, passes in enumerate(logs):
            for each in passes:
                self.world.broker.append(queue_id, each)

    @precondition(lambda self: len(self.world.members) < MEMBERS_MAX)
    @rule(at_once=st.booleans())
    def join(self, at_once: bool) -> None:
        member = self.world.join()
        if at_once:
            member.rebalance()

    @precondition(lambda self: len(self.world.members) > 1)
    @rule(number=NUMBER, in_order=st.sampled_from([True, True, False]))
    def leave(self, number: int, in_order: bool) -> None:
        member = self.world.orderly[number % len(self.world.members)]
        self.world.members.remove(member)
        if in_order:
            member.shut_down()
        else:
            member.crash()

    @rule(number=NUMBER, refusals=st.sampled_from([0, 0, 0, 1]), silent=st.sampled_from([0, 0, 1]))
    def rebalance(self, number: int, refusals: int, silent: int) -> None:
        world = self.world
        world.broker.refusals, world.silent_locks = refusals, silent
        world.members[number % len(world.members)].rebalance()
        world.broker.refusals = world.silent_locks = 0

    @rule(number=NUMBER, silent=st.booleans())
    def renew(self, number: int, silent: bool) -> None:
        world = self.world
        world.silent_locks = int(silent)
        world.run(world.orderly[number % len(world.members)].locker.renew())
        world.silent_locks = 0

    @rule(number=NUMBER, first_work=st.booleans())
    def restart_the_broker(self, number: int, first_work: bool) -> None:
        """The broker forgets its locks; one member is back before the others and takes all."""
        world = self.world
        world.locks = BrokerLocks()
        world.losses += 1
        for member in world.orderly:
            member.store.connection_lost(ADDRESS)
            member.locker.connection_lost(ADDRESS)
        first = world.orderly[number % len(world.members)]
        members, world.broker.members = world.broker.members, [first.client_id]
        first.rebalance()
        if first_work:
            self.call_everything_there_is()
        world.broker.members = members
        for member in world.orderly:
            member.service.connection_made()
        world.settle()

    @rule()
    def call_everything_there_is(self) -> None:
        """Every listener is in a call; nothing returns."""
        for _ in range(len(self.world.pulls)):
            self.world.answer(0)
        for member in self.world.orderly:
            while member.service.ready:
                member.call(0)
        self.world.settle()

    @precondition(lambda self: len(self.world.members) < MEMBERS_MAX)
    @rule()
    def join_in_the_middle_of_work(self) -> None:
        """A member comes while the others' listeners are busy; all divide the queues anew."""
        self.call_everything_there_is()
        self.world.join()
        for member in self.world.orderly:
            member.rebalance()

    @precondition(lambda self: len(self.world.members) > 1)
    @rule(number=NUMBER, ms=st.sampled_from([1_000, 31_000, 61_000]))
    def cut_off(self, number: int, ms: int) -> None:
        """The brokers do not hear a member for a while and the others take its queues."""
        world = self.world
        member = world.orderly[number % len(world.members)]
        member.is_heard = False
        world.broker.members.remove(member.client_id)
        world.advance(ms)
        for other in world.orderly:
            if other is not member:
                other.rebalance()
        self.call_everything_there_is()
        world.broker.members.append(member.client_id)
        member.is_heard = True
        world.run(member.locker.renew())

    @rule(number=NUMBER, of=NUMBER)
    def begin_a_queue_anew(self, number: int, of: int) -> None:
        """An operator resets a queue to what is committed, whatever its listener is at."""
        member = self.world.orderly[number % len(self.world.members)]
        table = sorted(member.queues.table)
        if table:
            mq = table[of % len(table)]
            offset = self.world.broker.offsets.get(mq.queue_id, 0)
            self.world.run(member.queues.restart(mq, offset))

    @rule(steps=st.lists(WORK, min_size=6, max_size=24))
    def work(self, steps: list[tuple[str, int, ConsumeOrderlyStatus, bool]]) -> None:
        """Pulls are answered or lost, workers take batches, listeners return."""
        for what, number, status, flag in steps:
            self._work(what, number, status, flag)
            self.world.settle()
            self.no_commit_is_ahead_of_consumption()

    def _work(self, what: str, number: int, status: ConsumeOrderlyStatus, flag: bool) -> None:
        world = self.world
        ready = [member for member in world.orderly if member.service.ready]
        busy = [member for member in world.orderly if member.calls]
        if what == "return" and busy:
            world.dead_letters_fail = flag
            busy[number % len(busy)].answer(number, status, auto_commit=not flag)
        elif what == "lose" and world.pulls:
            world.fail(number % len(world.pulls))
        elif what == "call" and ready:
            ready[number % len(ready)].call(number)
        elif world.pulls:
            world.answer(number % len(world.pulls))

    @rule(number=NUMBER)
    def persist(self, number: int) -> None:
        self.world.members[number % len(self.world.members)].persist()

    @rule()
    def note_offsets_that_came_with_pulls(self) -> None:
        self.world.note_late()

    @rule(ms=st.sampled_from([10, 100, 1_000, 1_000, 3_000, 20_000, 31_000, 61_000]))
    def let_time_pass(self, ms: int) -> None:
        self.world.advance(ms)

    # --- what may never happen --------------------------------------------------------------------

    @invariant()
    def no_commit_is_ahead_of_consumption(self) -> None:
        broker = self.world.broker
        for queue_id, offset in broker.offsets.items():
            assert offset <= broker.unconsumed(queue_id)

    @invariant()
    def nobody_trusts_a_lock_that_is_not_its_own(self) -> None:
        world, now_ms = self.world, self.world.clock.monotonic_ms()
        for member in world.orderly:
            for mq, request in member.queues.table.items():
                queue = cast(OrderlyQueue, request).process_queue
                assert queue.lease is not None
                if queue.lease.is_valid(now_ms) and not queue.dropped:
                    holder = world.locks.holder(GROUP, mq, world.clock.now_ms())
                    assert holder == member.client_id

    def teardown(self) -> None:
        """Calm: every queue has one owner, every message is consumed."""
        if not hasattr(self, "world"):
            return
        try:
            self._calm()
        finally:
            self.world.close()

    def _calm(self) -> None:
        world = self.world
        world.dead_letters_fail = False
        # What a listener took without committing it (auto-commit off) waits for its next COMMIT, so
        # each queue gets a message more to be called for.
        self.send([[True]] * QUEUES)
        # Locks of members that crashed expire after a minute.
        for _ in range(1_000):
            for member in world.orderly:
                if member.wants_rebalance or not world.broker.logs:
                    member.wants_rebalance = False
                member.rebalance()
            for _ in range(len(world.pulls)):
                world.answer(0)
            for member in world.orderly:
                while member.service.ready or member.calls:
                    if member.calls:
                        member.answer(0, ConsumeOrderlyStatus.COMMIT, auto_commit=False)
                    else:
                        member.call(0)
                    world.settle()
            if self._is_done():
                break
            world.advance(4_000)
        owners = [mq.queue_id for member in world.members for mq in member.queues.table]
        assert sorted(owners) == list(range(QUEUES))
        ends = [len(log) for log in world.broker.logs]
        assert [world.broker.unconsumed(n) for n in range(QUEUES)] == ends, "messages were lost"
        for member in list(world.orderly):
            world.members.remove(member)
            member.shut_down()
        world.note_late()
        for queue_id, offset in world.broker.offsets.items():
            assert offset <= ends[queue_id]
        now_ms = world.clock.now_ms()
        assert not world.locks.is_locked(GROUP, now_ms), "a lock was left behind"

    def _is_done(self) -> bool:
        world = self.world
        owners = [mq.queue_id for member in world.members for mq in member.queues.table]
        return sorted(owners) == list(range(QUEUES)) and all(
            world.broker.unconsumed(n) == len(world.broker.logs[n]) for n in range(QUEUES)
        )


@COMPUTES
def test_no_schedule_breaks_order_or_loses_a_message() -> None:
    """Covers C-548, C-556 to C-560: order, one owner by lease, commits behind consumption.

    About 8,000 rules, and in them twice as many single steps of work.
    """
    logging.getLogger("rocketstream.client").setLevel(logging.CRITICAL)
    try:
        run_state_machine_as_test(
            OrderlyGroup,
            settings=settings(
                max_examples=80,
                stateful_step_count=100,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        logging.getLogger("rocketstream.client").setLevel(logging.NOTSET)

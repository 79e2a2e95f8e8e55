"""Random schedules of an orderly queue's turns: what may never happen, and that none is forgotten.

The machine is the real one; workers, timers, broker and rebalancing are chosen
(covers C-187, C-236, C-243, C-280 to C-287, C-549, C-556).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rocketstream.client.consumer.consume.orderly_queue import Lease, OrderlyProcessQueue, Stage
from rocketstream.client.consumer.consume.orderly_turn import (
    END,
    AskLock,
    Ending,
    GiveUp,
    GoOn,
    OrderlyTurns,
    Resume,
)
from rocketstream.client.consumer.listener import USE_SETTING
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from tests.kits.client.queued import queued

COMPUTES = pytest.mark.timeout(600)
"""Ten seconds of a processor, which nothing but the other processes of a machine can hold up."""
QUEUE = MessageQueue("T", "b", 0)
NUMBER = st.integers(0, 1_000)
LEASE_MS, TURN_MAX_MS, MAX_TIMES, BATCH_SIZE = 1_000, 2_000, 2, 2
SUCCESS = ConsumeOrderlyStatus.SUCCESS
GOOD = (SUCCESS, ConsumeOrderlyStatus.COMMIT)
STATUSES = st.sampled_from([*ConsumeOrderlyStatus, SUCCESS, SUCCESS])
EXAMPLES, STEPS = 80, 100


@dataclass(eq=False)
class Call:
    """A batch that is with the listener."""

    queue: OrderlyProcessQueue
    batch: list[Any]
    began_ms: float


class OneQueue(RuleBasedStateMachine):
    """One queue through its assignments, and all that waits for something to happen."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.others_wait = False
        self.turns = OrderlyTurns(BATCH_SIZE, MAX_TIMES, 100, TURN_MAX_MS, lambda: self.others_wait)
        self.formers: list[OrderlyProcessQueue] = []
        self.end = self.committed = 0
        self.finished: set[int] = set()
        self.ready: list[OrderlyProcessQueue] = []
        self.waits_for_place: OrderlyProcessQueue | None = None
        self.calls: list[Call] = []
        self.between: list[Call] = []
        self.given_up: list[tuple[OrderlyProcessQueue, GiveUp]] = []
        self.ended: list[tuple[OrderlyProcessQueue, Ending]] = []
        self.pauses: list[OrderlyProcessQueue] = []
        self.asking: list[OrderlyProcessQueue] = []
        self.queue = self.assigned()

    def assigned(self) -> OrderlyProcessQueue:
        return OrderlyProcessQueue(QUEUE, self.now_ms, Lease(self.now_ms, LEASE_MS))

    # --- the shell --------------------------------------------------------------------------------

    def begin(self, queue: OrderlyProcessQueue) -> None:
        if any(former.in_hand for former in self.formers):
            self.waits_for_place = queue
        else:
            self.ready.append(queue)

    def note(self, queue: OrderlyProcessQueue, offset: int) -> None:
        """A commit moves on, and never past what nobody has finished."""
        if offset < 0:
            return
        assert not queue.dropped
        assert offset >= self.committed
        assert set(range(offset)) <= self.finished, "an offset passed an unfinished message"
        self.committed = offset

    def handed(self, queue: OrderlyProcessQueue, then: Any, began_ms: float) -> None:
        """A batch goes to the listener, or the turn ends."""
        if not isinstance(then, list):
            self.ended.append((queue, then))
            return
        assert not queue.dropped
        assert not queue.leaving
        assert not self.turns.stopping
        assert queue.lease is not None
        assert queue.lease.is_valid(self.now_ms)
        assert 1 <= len(then) <= BATCH_SIZE
        before = set(range(then[0].queue_offset)) - set(queue.taken_offsets)
        assert before <= self.finished, "something was overtaken"
        self.calls.append(Call(queue, then, began_ms))

    def perform(self, queue: OrderlyProcessQueue, then: Ending) -> None:
        if self.turns.stopping:
            return
        if isinstance(then, Resume):
            assert 0 <= then.pause_ms <= 30_000
            self.pauses.append(queue)
        elif isinstance(then, AskLock):
            self.asking.append(queue)

    # --- what happens -----------------------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def messages_come(self, count: int) -> None:
        queue = self.queue
        queue.put([queued(self.end + each) for each in range(count)])
        self.end += count
        if self.turns.came(queue):
            self.begin(queue)

    @precondition(lambda self: self.ready)
    @rule()
    def a_worker_comes(self) -> None:
        queue = self.ready.pop(0)
        self.handed(queue, self.turns.next(queue, self.now_ms, self.now_ms), self.now_ms)

    @precondition(lambda self: self.calls)
    @rule(status=STATUSES, auto_commit=st.sampled_from([True, True, False]))
    def the_listener_answers(self, status: ConsumeOrderlyStatus, auto_commit: bool) -> None:
        call = self.calls.pop()
        queue = call.queue
        if status in GOOD and (auto_commit or status is not SUCCESS) and not queue.dropped:
            self.finished.update(queue.taken_offsets)
        if status is SUCCESS and auto_commit:
            offset, then = self.turns.advance(queue, call.began_ms, self.now_ms)
            self.note(queue, offset)
            self.handed(queue, then, call.began_ms)
            return
        offset, answer = self.turns.answered(
            queue, call.batch, status, auto_commit, USE_SETTING, self.now_ms
        )
        self.note(queue, offset)
        if isinstance(answer, GoOn):
            self.between.append(call)
        elif isinstance(answer, GiveUp):
            self.given_up.append((queue, answer))
        else:
            self.ended.append((queue, answer))

    @precondition(lambda self: self.between)
    @rule()
    def the_worker_asks_for_more(self) -> None:
        call = self.between.pop()
        then = self.turns.next(call.queue, call.began_ms, self.now_ms)
        self.handed(call.queue, then, call.began_ms)

    @precondition(lambda self: self.calls or self.between)
    @rule()
    def something_of_ours_breaks(self) -> None:
        queue = (self.calls or self.between).pop().queue
        self.ended.append((queue, self.turns.broke(queue)))

    @precondition(lambda self: self.given_up)
    @rule(sent=st.integers(0, BATCH_SIZE))
    def dead_letters_are_sent(self, sent: int) -> None:
        queue, what = self.given_up.pop()
        dead, undead = what.spent[:sent], what.spent[sent:]
        self.finished.update(message.queue_offset for message in dead)
        offset, then = self.turns.given_up(queue, what, dead, undead, self.now_ms)
        self.note(queue, offset)
        self.turn_ended(queue, then)

    @precondition(lambda self: self.ended)
    @rule()
    def the_loop_hears_of_an_end(self) -> None:
        self.turn_ended(*self.ended.pop(0))

    def turn_ended(self, queue: OrderlyProcessQueue, then: Ending) -> None:
        successor, self.waits_for_place = self.waits_for_place, None
        if successor is not None and self.turns.may_go_on(successor):
            self.begin(successor)
        self.perform(queue, then)

    @precondition(lambda self: self.pauses)
    @rule(number=NUMBER)
    def a_pause_is_over(self, number: int) -> None:
        queue = self.pauses.pop(number % len(self.pauses))
        if self.turns.due(queue):
            self.begin(queue)

    @precondition(lambda self: self.asking)
    @rule(answer=st.sampled_from(["granted", "granted", "silence", "refused"]))
    def the_lock_is_asked_for(self, answer: str) -> None:
        queue = self.asking.pop()
        if not self.turns.may_go_on(queue):
            return
        assert queue.lease is not None
        if answer == "granted":
            queue.lease.renew(self.now_ms)
        elif answer == "refused":
            queue.lease.lose()
            queue.drop()
        self.perform(queue, self.turns.asked(queue, answer == "refused", self.now_ms))

    @rule()
    def the_lock_is_renewed(self) -> None:
        lease = self.queue.lease
        assert lease is not None
        lease.renew(self.now_ms)
        for queue in list(self.asking):
            resume = self.turns.locked(queue, self.now_ms)
            if resume is not None:
                self.asking.remove(queue)
                self.perform(queue, resume)

    @precondition(lambda self: self.calls)
    @rule()
    def the_lock_is_in_doubt(self) -> None:
        assert self.queue.lease is not None
        self.queue.lease.doubt()

    @rule(
        ms=st.sampled_from([1, 1, 25, 25, LEASE_MS + 1, TURN_MAX_MS + 1]), others_wait=st.booleans()
    )
    def time_passes(self, ms: int, others_wait: bool) -> None:
        self.now_ms += ms
        self.others_wait = others_wait

    @precondition(lambda self: self.calls)
    @rule(count=st.integers(0, 2))
    def the_queue_is_to_leave(self, count: int) -> None:
        """In the middle of work: while its listener is busy, and more is cached."""
        if count:
            self.messages_come(count)
        self.queue.leave()

    @precondition(lambda self: self.calls or self.given_up or self.queue.leaving)
    @rule()
    def the_queue_is_taken_anew(self) -> None:
        """Dropped, and assigned again where its commits ended."""
        self.queue.drop()
        self.formers.append(self.queue)
        self.queue = self.assigned()
        self.finished = set(range(self.committed))
        self.end = self.committed

    @precondition(lambda self: self.now_ms > 3 * TURN_MAX_MS)
    @rule()
    def the_consumer_ends(self) -> None:
        self.turns.stopping = True
        self.pauses.clear()
        self.asking.clear()

    # --- what may never be ------------------------------------------------------------------------

    @invariant()
    def one_call_at_a_time(self) -> None:
        """Whatever the assignment; and each queue waits for a caller once at most."""
        at_work: Sequence[Any] = [*self.calls, *self.given_up]
        assert len(at_work) <= 1
        assert len(self.ready) == len({id(queue) for queue in self.ready})

    @invariant()
    def no_queue_is_forgotten(self) -> None:
        """Whoever has something to do waits for exactly one thing; who has not, for nothing."""
        queue = self.queue
        if queue.dropped or self.turns.stopping:
            return
        goes_on = [
            *self.ready,
            *self.pauses,
            *self.asking,
            *[call.queue for call in (*self.calls, *self.between)],
            *[each for each, _ in self.given_up],
            *[each for each, then in self.ended if then is not END],
            *([self.waits_for_place] if self.waits_for_place is not None else []),
        ]
        count = sum(each is queue for each in goes_on)
        if queue.stage is Stage.IDLE:
            assert (count, queue.message_count - len(queue.taken_offsets)) == (0, 0)
        elif queue.stage is Stage.OVER:
            assert count == 0
            assert queue.leaving
        else:
            assert count == 1

    @invariant()
    def what_is_in_hand_is_with_somebody(self) -> None:
        held = [call.queue for call in self.calls] + [queue for queue, _ in self.given_up]
        assert self.queue.in_hand == any(each is self.queue for each in held)


@COMPUTES
def test_no_schedule_loses_a_turn_or_hands_out_what_it_may_not() -> None:
    """At most one turn at a time, nothing after a drop, commits behind what is finished."""
    run_state_machine_as_test(
        OneQueue,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

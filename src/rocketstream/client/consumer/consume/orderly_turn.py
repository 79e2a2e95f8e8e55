"""Pure: turns of queues consumed in order: when one begins, what it hands out, how it ends.

A turn is the time in which one caller gives a queue's batches to the listener, one after the other.
The owner serialises the calls for a queue and carries out what they return. ``orderly_queue`` alone
says how the stage of a turn changes (upstream's
ConsumeMessageOrderlyService, C-280 to C-293, with C-590 put right).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream.client.consumer.consume.orderly_queue import (
    OrderlyProcessQueue,
    Stage,
    TurnEvent,
)
from rocketstream.client.consumer.listener import Step, split_by_tries, step_of, suspend_ms
from rocketstream.model import ConsumeOrderlyStatus
from rocketstream.protocol.message_ext import MessageExt

LOCK_RETRY_RUNNING_MS = 10
"""Pause before the lock is asked for when it was lost between two batches (C-281)."""
LOCK_RETRY_MS = 100
"""The same when it was missing at the start of a turn."""
LOCK_RETRY_FAILED_MS = 3_000
"""Pause before consuming is tried again when the broker did not give the lock (C-283)."""
RESUME_MS = 10
"""Pause between two turns of a queue, and after its lock came back."""
TURN_SHARE_MS = 20.0
"""A turn lasts this long at most while other queues wait for a worker."""

# Looked up once: before Python 3.12 each look at a member of an enum is a call.
_COMMIT, _KEEP, _AGAIN = Step.COMMIT, Step.KEEP, Step.AGAIN
_READY, _IN_HAND = Stage.READY, Stage.IN_HAND
_TAKEN, _SETTLED = TurnEvent.TAKEN, TurnEvent.SETTLED

Batch = list[MessageExt]
"""Messages to hand to the listener, at least one."""


@dataclass(frozen=True, slots=True)
class Resume:
    """End the turn; the queue gets another after a pause."""

    pause_ms: float


@dataclass(frozen=True, slots=True)
class AskLock:
    """End the turn; ask the broker for the lock after a pause."""

    pause_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Send messages to the dead-letter topic, then call ``OrderlyTurns.given_up``.

    Attributes:
        spent: messages that had their last try.
        again: the other messages of the batch, which come again.
        pause_ms: how long the queue pauses if any message comes again.
        commits: whether the offset behind the messages given up is committed: with auto-commit.
    """

    spent: list[MessageExt]
    again: list[MessageExt]
    pause_ms: int
    commits: bool


@dataclass(frozen=True, slots=True)
class End:
    """End the turn; the next one begins with new messages, if the queue still has turns."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Ask for the next batch; the turn is not over."""


Ending = Resume | AskLock | End
"""How a turn ends."""
Answered = Ending | GiveUp | GoOn
"""The consequences of a listener's answer."""
END: Final = End()
GO_ON: Final = GoOn()


class OrderlyTurns:
    """Decides the turns of a consumer's orderly queues; their process queues keep the stages.

    A turn begins with ``came`` or ``due``; then ``next`` and ``answered`` (or ``advance``, both in
    one) follow each other until one of them ends it. A call that returns an offset returns -1 where
    nothing is to be committed.

    Args:
        batch_size: how many messages a listener gets at most.
        max_times: how many tries a message has after its first.
        suspend_ms: how long a queue pauses where the listener says nothing else.
        turn_max_ms: how long a turn may last although nobody waits.
        others_wait: tells whether another queue waits for somebody to call its listener.

    Attributes:
        stopping: True when the consumer ends: no batch is handed out any more.
    """

    def __init__(
        self,
        batch_size: int,
        max_times: int,
        suspend_ms: int,
        turn_max_ms: float,
        others_wait: Callable[[], bool],
    ) -> None:
        self.stopping = False
        self._batch_size = batch_size
        self._max_times = max_times
        self._suspend_ms = suspend_ms
        self._turn_max_ms = turn_max_ms
        self._others_wait = others_wait

    # --- a turn begins ----------------------------------------------------------------------------

    def came(self, queue: OrderlyProcessQueue) -> bool:
        """Messages were put into the queue; return whether they begin a turn (C-237, C-280)."""
        begins = queue.stage is Stage.IDLE
        queue.change_stage(TurnEvent.CAME)
        return begins and self.may_go_on(queue)

    def due(self, queue: OrderlyProcessQueue) -> bool:
        """A pause is over; return whether a turn begins."""
        queue.change_stage(TurnEvent.DUE)
        return self.may_go_on(queue)

    def may_go_on(self, queue: OrderlyProcessQueue) -> bool:
        """Return whether a turn that waits to begin or for its lock may go on; else it is over."""
        if self.stopping or queue.dropped:
            queue.change_stage(TurnEvent.LEFT)
            return False
        return True

    # --- the lock ---------------------------------------------------------------------------------

    def locked(self, queue: OrderlyProcessQueue, now_ms: float) -> Resume | None:
        """Return how a turn goes on whose lease is valid again; None while it is not (C-283)."""
        if queue.lease is not None and not queue.lease.is_valid(now_ms):
            return None
        queue.change_stage(TurnEvent.LOCKED)
        return Resume(RESUME_MS)

    def asked(self, queue: OrderlyProcessQueue, refused: bool, now_ms: float) -> Ending:
        """Return how the queue goes on after the broker was asked for its lock (C-283).

        Args:
            queue: its lease is renewed already if the lock was granted.
            refused: another member has the lock; the queue is dropped and taken anew.
            now_ms: monotonic time.
        """
        resume = self.locked(queue, now_ms)
        if resume is not None:
            return resume
        if refused or queue.dropped:
            queue.change_stage(TurnEvent.LEFT)
            return END
        queue.change_stage(TurnEvent.UNANSWERED)
        return AskLock(LOCK_RETRY_FAILED_MS)

    # --- the next batch ---------------------------------------------------------------------------

    def next(self, queue: OrderlyProcessQueue, began_ms: float, now_ms: float) -> Batch | Ending:
        """Take the next batch of a turn, or end the turn (C-281, C-282).

        Args:
            queue: the process queue.
            began_ms: when the turn began, monotonic; every turn may take one batch.
            now_ms: monotonic time.
        """
        lease, turn_ms = queue.lease, now_ms - began_ms
        first = queue.stage is _READY
        if self.stopping or queue.leaving:
            queue.change_stage(TurnEvent.LEFT)
            return END
        if lease is not None and not lease.is_valid(now_ms):
            queue.change_stage(TurnEvent.LOCK_LOST)
            return AskLock(LOCK_RETRY_MS if first else LOCK_RETRY_RUNNING_MS)
        if not first and turn_ms > TURN_SHARE_MS and self._is_over(turn_ms):
            # To the end of the line; a turn that nobody waits for only makes a short pause.
            queue.change_stage(TurnEvent.SHARE_SPENT)
            return Resume(0 if self._others_wait() else RESUME_MS)
        batch = queue.take(self._batch_size)
        if batch:
            queue.change_stage(_TAKEN)
            return batch
        queue.change_stage(TurnEvent.EMPTY)
        return END

    def advance(
        self, queue: OrderlyProcessQueue, began_ms: float, now_ms: float
    ) -> tuple[int, Batch | Ending]:
        """Settle a batch answered SUCCESS; return the offset to commit, and what ``next`` does."""
        offset = -1 if queue.dropped else queue.commit(now_ms)
        turn_ms, lease = now_ms - began_ms, queue.lease
        if (
            queue.stage is _IN_HAND
            and not (queue.leaving or self.stopping)
            and (turn_ms <= TURN_SHARE_MS or not self._is_over(turn_ms))
            and (lease is None or lease.is_valid(now_ms))
        ):
            batch = queue.take(self._batch_size)
            if batch:
                # SETTLED and TAKEN would lead back to IN_HAND: left out, as each batch would pay.
                return offset, batch
        queue.change_stage(_SETTLED)
        return offset, self.next(queue, began_ms, now_ms)

    def _is_over(self, turn_ms: float) -> bool:
        """Whether a turn that is longer than a share has to end."""
        return turn_ms > self._turn_max_ms or self._others_wait()

    # --- a listener's answer ----------------------------------------------------------------------

    def answered(
        self,
        queue: OrderlyProcessQueue,
        batch: Sequence[MessageExt],
        status: ConsumeOrderlyStatus,
        auto_commit: bool,
        asked_ms: int,
        now_ms: float,
    ) -> tuple[int, Answered]:
        """Do to a process queue what a listener's status says (C-284 to C-287).

        Args:
            queue: the process queue; a dropped one is not changed (C-549).
            batch: what the listener was given.
            status: its answer.
            auto_commit: as the listener's context says after the call.
            asked_ms: the pause that context asks for.
            now_ms: monotonic time.

        Returns:
            The offset to commit, and how it goes on.
        """
        step = step_of(status, auto_commit)
        if step is _AGAIN:
            spent, again = split_by_tries(batch, self._max_times)
            if spent:
                queue.change_stage(TurnEvent.TRIES_SPENT)
                return -1, GiveUp(spent, again, self._pause_ms(asked_ms), auto_commit)
            _count_tries(again)
        if queue.dropped:
            queue.change_stage(TurnEvent.LEFT)
            return -1, END
        if step is _COMMIT or step is _KEEP:
            queue.change_stage(_SETTLED)
            return queue.commit(now_ms) if step is _COMMIT else -1, GO_ON
        if step is _AGAIN:
            queue.consume_again(batch)
        else:
            queue.rollback()
        queue.change_stage(TurnEvent.SUSPENDED)
        return -1, Resume(self._pause_ms(asked_ms))

    def _pause_ms(self, asked_ms: int) -> int:
        return suspend_ms(asked_ms, self._suspend_ms)

    def given_up(
        self,
        queue: OrderlyProcessQueue,
        what: GiveUp,
        dead: Sequence[MessageExt],
        undead: Sequence[MessageExt],
        now_ms: float,
    ) -> tuple[int, Ending]:
        """Settle a batch of which some messages had their last try (C-287, C-590).

        Args:
            queue: the process queue; a dropped one is not changed (C-549).
            what: what ``answered`` returned.
            dead: the messages of ``what.spent`` that are in the dead-letter topic.
            undead: the others, which come again.
            now_ms: monotonic time.

        Returns:
            The offset to commit, and how it goes on.
        """
        again = [*what.again, *undead]
        _count_tries(again)
        if queue.dropped:
            queue.change_stage(TurnEvent.LEFT)
            return -1, END
        offset = queue.finish(dead, now_ms)
        queue.consume_again(again)
        queue.change_stage(TurnEvent.GIVEN_UP)
        return offset if what.commits else -1, Resume(what.pause_ms if again else 0.0)

    def broke(self, queue: OrderlyProcessQueue) -> Ending:
        """End a turn because of a mistake of ours: everything taken comes again after a pause."""
        queue.rollback()
        queue.change_stage(TurnEvent.BROKE)
        return END if queue.stage is Stage.OVER else Resume(self._suspend_ms)

    def cut_off(self, queue: OrderlyProcessQueue) -> None:
        """End a turn whose listener call was cancelled, as the consumer ends: no answer comes."""
        queue.change_stage(TurnEvent.LEFT)


def _count_tries(messages: Sequence[MessageExt]) -> None:
    for message in messages:
        message._reconsume_times += 1

"""Pure: a queue consumed in order: what is taken and not committed, its lease, its turn's stage.

The owner serialises the calls. Nothing behind an unfinished message is ever committed,
and a queue is only consumed while its lease lasts (C-235, C-243 to C-247, C-281 to C-293). One
table says how the stage of a queue's turn changes; what is not in it is refused (after h11's).
"""

from __future__ import annotations

import enum
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.client.consumer.process_queue import ProcessQueue
from rocketstream.errors import InternalError
from rocketstream.limits import QUEUE_RELEASE_WAIT_MS
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt


@dataclass(frozen=True, slots=True)
class OrderlyTimes:
    """How long locks are trusted and turns last (C-236, C-282, C-640).

    Attributes:
        lock_max_live_ms: a lock is trusted this long after it was asked for; brokers keep it 60 s.
        lock_interval_ms: locks are renewed this often.
        first_lock_ms: the first renewal comes after this.
        turn_max_ms: a queue that always has messages lets others have its worker after this.
        release_wait_ms: how long a queue that is given up waits for its listener.
    """

    lock_max_live_ms: float = 30_000
    lock_interval_ms: float = 20_000
    first_lock_ms: float = 1_000
    turn_max_ms: float = 60_000
    release_wait_ms: float = QUEUE_RELEASE_WAIT_MS


class Lease:
    """The broker's promise that no other member of the group consumes the queue (C-298)."""

    __slots__ = ("live_ms", "locked", "locked_ms")

    def __init__(self, locked_ms: float, live_ms: float) -> None:
        self.locked: bool = True
        self.locked_ms: float = locked_ms
        self.live_ms: float = live_ms

    def renew(self, asked_ms: float) -> None:
        """Count the lease from when the broker was asked, which is before it kept the lock."""
        self.locked = True
        self.locked_ms = max(self.locked_ms, asked_ms)

    def lose(self) -> None:
        """End the lease: the broker refused, because another member has the queue."""
        self.locked = False

    def doubt(self) -> None:
        """Trust the lease no longer: the broker may have lost the lock in a restart.

        The broker may still have it, so the lock is given back in the end all the same.
        """
        self.locked_ms = -math.inf

    def is_valid(self, now_ms: float) -> bool:
        """Whether the queue may be consumed now; the limit itself still counts (C-236)."""
        return self.locked and now_ms - self.locked_ms <= self.live_ms


class Stage(enum.Enum):
    """Where the turn of a queue stands.

    Attributes:
        IDLE: nothing is cached that could be handed out; the next messages begin a turn.
        READY: waits for somebody to call its listener.
        IN_HAND: a batch is with the listener, or its answer is being carried out.
        BETWEEN: one batch is settled, and the same caller is about to ask for the next.
        GIVING_UP: messages that had their last try are on their way to the dead-letter topic.
        PAUSED: goes on after a pause: the listener wants one, or other queues have their share.
        UNLOCKED: waits until the broker grants its lock again.
        OVER: the queue leaves or has left, or the consumer ends: nothing is handed out any more.
    """

    IDLE = "IDLE"
    READY = "READY"
    IN_HAND = "IN_HAND"
    BETWEEN = "BETWEEN"
    GIVING_UP = "GIVING_UP"
    PAUSED = "PAUSED"
    UNLOCKED = "UNLOCKED"
    OVER = "OVER"

    # By identity: a stage is looked up with every batch, and enum's own hash is Python.
    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]


class TurnEvent(enum.Enum):
    """An event in a turn.

    Attributes:
        CAME: messages were put into the process queue.
        TAKEN: a batch goes to the listener.
        EMPTY: every cached message has been taken.
        SHARE_SPENT: the turn has lasted as long as it may while other queues wait.
        LOCK_LOST: the lease of the queue is over.
        LOCKED: the broker has granted the lock.
        UNANSWERED: the broker did not say whether it grants the lock.
        SETTLED: the listener's answer is carried out, and the turn goes on.
        SUSPENDED: the listener's answer is carried out, and the queue pauses.
        TRIES_SPENT: the listener has failed messages for the last time.
        GIVEN_UP: those messages are in the dead-letter topic, or come again.
        BROKE: a mistake of ours; the batch comes again.
        DUE: the pause is over.
        LEFT: nothing may be handed out any more.
    """

    CAME = "CAME"
    TAKEN = "TAKEN"
    EMPTY = "EMPTY"
    SHARE_SPENT = "SHARE_SPENT"
    LOCK_LOST = "LOCK_LOST"
    LOCKED = "LOCKED"
    UNANSWERED = "UNANSWERED"
    SETTLED = "SETTLED"
    SUSPENDED = "SUSPENDED"
    TRIES_SPENT = "TRIES_SPENT"
    GIVEN_UP = "GIVEN_UP"
    BROKE = "BROKE"
    DUE = "DUE"
    LEFT = "LEFT"

    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]


_S, _E = Stage, TurnEvent
TRANSITIONS: Final[dict[tuple[Stage, TurnEvent], Stage]] = {
    (_S.IDLE, _E.CAME): _S.READY,
    (_S.IDLE, _E.LEFT): _S.OVER,
    # The next caller takes the first batch, or finds why there is none (C-281).
    (_S.READY, _E.CAME): _S.READY,
    (_S.READY, _E.TAKEN): _S.IN_HAND,
    (_S.READY, _E.EMPTY): _S.IDLE,
    (_S.READY, _E.LOCK_LOST): _S.UNLOCKED,
    (_S.READY, _E.LEFT): _S.OVER,
    # From here only the answer leads on: one batch at a time.
    (_S.IN_HAND, _E.CAME): _S.IN_HAND,
    (_S.IN_HAND, _E.SETTLED): _S.BETWEEN,
    (_S.IN_HAND, _E.SUSPENDED): _S.PAUSED,
    (_S.IN_HAND, _E.TRIES_SPENT): _S.GIVING_UP,
    (_S.IN_HAND, _E.LEFT): _S.OVER,
    (_S.BETWEEN, _E.CAME): _S.BETWEEN,
    (_S.BETWEEN, _E.TAKEN): _S.IN_HAND,
    (_S.BETWEEN, _E.EMPTY): _S.IDLE,
    (_S.BETWEEN, _E.SHARE_SPENT): _S.PAUSED,
    (_S.BETWEEN, _E.LOCK_LOST): _S.UNLOCKED,
    (_S.BETWEEN, _E.LEFT): _S.OVER,
    (_S.GIVING_UP, _E.CAME): _S.GIVING_UP,
    (_S.GIVING_UP, _E.GIVEN_UP): _S.PAUSED,
    (_S.GIVING_UP, _E.LEFT): _S.OVER,
    (_S.PAUSED, _E.CAME): _S.PAUSED,
    (_S.PAUSED, _E.DUE): _S.READY,
    (_S.PAUSED, _E.LEFT): _S.OVER,
    (_S.UNLOCKED, _E.CAME): _S.UNLOCKED,
    (_S.UNLOCKED, _E.LOCKED): _S.PAUSED,
    (_S.UNLOCKED, _E.UNANSWERED): _S.UNLOCKED,
    (_S.UNLOCKED, _E.LEFT): _S.OVER,
    # A mistake may come before a decision is carried out: then the pause takes its place.
    (_S.IDLE, _E.BROKE): _S.PAUSED,
    (_S.READY, _E.BROKE): _S.PAUSED,
    (_S.IN_HAND, _E.BROKE): _S.PAUSED,
    (_S.BETWEEN, _E.BROKE): _S.PAUSED,
    (_S.PAUSED, _E.BROKE): _S.PAUSED,
    (_S.GIVING_UP, _E.BROKE): _S.PAUSED,
    (_S.UNLOCKED, _E.BROKE): _S.PAUSED,
    # The next assignment has a process queue of its own, and a turn with it (C-557).
    (_S.OVER, _E.CAME): _S.OVER,
    (_S.OVER, _E.BROKE): _S.OVER,
    (_S.OVER, _E.LEFT): _S.OVER,
}


class OrderlyProcessQueue(ProcessQueue):
    """The process queue of a queue consumed in order.

    Attributes:
        lease: the broker lock; None where none is needed (broadcasting, C-555).
    """

    __slots__ = ("_stage", "_taken", "_waiting", "lease")

    def __init__(self, message_queue: MessageQueue, now_ms: float, lease: Lease | None) -> None:
        super().__init__(message_queue, now_ms)
        self.lease: Lease | None = lease
        self._stage: Stage = Stage.IDLE
        self._taken: dict[int, MessageExt] = {}
        self._waiting: deque[int] = deque()

    @property
    def stage(self) -> Stage:
        """The stage of the queue's turn; ``change_stage`` alone changes it (C-237)."""
        return self._stage

    def change_stage(self, event: TurnEvent) -> None:
        """Change the stage of the turn as the table says for ``event``.

        Raises:
            InternalError: ``event`` cannot happen at this stage: a mistake of rocketstream itself.
        """
        try:
            self._stage = TRANSITIONS[self._stage, event]
        except KeyError:
            name = self._stage.name
            raise InternalError(
                f"the turn of a queue that is {name} cannot become {event.name}"
            ) from None

    @property
    def in_hand(self) -> bool:
        """Whether a batch is with the listener, or its answer is being carried out."""
        return self._stage is Stage.IN_HAND or self._stage is Stage.GIVING_UP

    @property
    def max_span(self) -> int:
        """0: order itself bounds how far consuming runs ahead (C-203, step 7a)."""
        return 0

    @property
    def taken_offsets(self) -> list[int]:
        """Offsets given to the listener and not committed, ascending."""
        return sorted(self._taken)

    def put(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """Take in pulled messages; return those that were not cached already (C-237)."""
        added = super().put(messages)
        if added:
            self._give_back([message._queue_offset for message in added], behind=True)
        return added

    def take(self, count: int) -> list[MessageExt]:
        """Take up to ``count`` of the smallest offsets (C-243)."""
        waiting, cached, taken = self._waiting, self._messages, self._taken
        if count == 1 and waiting:  # the default, and each message costs it
            offset = waiting.popleft()
            taken[offset] = message = cached[offset]
            return [message]
        batch: list[MessageExt] = []
        while waiting and len(batch) < count:
            offset = waiting.popleft()
            taken[offset] = message = cached[offset]
            batch.append(message)
        return batch

    def commit(self, now_ms: float = 0.0) -> int:
        """Finish everything taken; return the next offset to commit, -1 for none (C-244)."""
        taken, self._taken = self._taken, {}
        return self.remove(taken.values(), now_ms) if taken else -1

    def finish(self, messages: Iterable[MessageExt], now_ms: float = 0.0) -> int:
        """Finish these of the taken ones, the others stay taken; return as ``commit``."""
        done = [
            each for m in messages if (each := self._taken.pop(m._queue_offset, None)) is not None
        ]
        return self.remove(done, now_ms) if done else -1

    def rollback(self) -> None:
        """Give everything taken back, to be taken again (C-245)."""
        offsets = sorted(self._taken)
        self._taken.clear()
        self._give_back(offsets)

    def consume_again(self, messages: Iterable[MessageExt]) -> None:
        """Give these of the taken ones back (C-245)."""
        self._give_back(
            sorted(
                m._queue_offset
                for m in messages
                if self._taken.pop(m._queue_offset, None) is not None
            )
        )

    def _give_back(self, offsets: Sequence[int], *, behind: bool = False) -> None:
        waiting = self._waiting
        if not offsets:
            return
        if behind:
            in_order = not waiting or waiting[-1] < offsets[0]
            waiting.extend(offsets)
        else:
            in_order = not waiting or offsets[-1] < waiting[0]
            waiting.extendleft(reversed(offsets))
        if not in_order or not all(map(operator.lt, offsets, offsets[1:])):
            self._waiting = deque(sorted(waiting))

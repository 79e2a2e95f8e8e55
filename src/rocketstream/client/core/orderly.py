"""Consuming a queue in order: what is taken and not committed, the lease, what a status means.

Law: pure; the owner serialises the calls. Nothing behind an unfinished message is ever committed,
and a queue is only consumed while its lease lasts (C-235, C-243 to C-247, C-281 to C-293).
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from rocketstream.client.core.orderly_state import TRANSITIONS, Stage, TurnEvent, refusal
from rocketstream.client.core.process_queue import M, ProcessQueue, Queued
from rocketstream.late import dataclass
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue

LOCK_RETRY_RUNNING_MS = 10
"""Pause before the lock is asked for when it was lost between two batches (C-281)."""
LOCK_RETRY_MS = 100
"""The same when it was missing at the start of a turn."""
LOCK_RETRY_FAILED_MS = 3_000
"""Pause before consuming is tried again when the broker did not give the lock (C-283)."""
RESUME_MS = 10
"""Pause between two turns of a queue, and after its lock came back."""
SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
USE_SETTING = -1
"""The context's suspend time before the listener touches it."""
RECONSUME_FOREVER = 2**31 - 1
"""What max_reconsume_times = -1 means for an orderly listener (C-287)."""


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
    release_wait_ms: float = 1_000


class Lease:
    """The broker's promise that no other member of the group consumes the queue (C-298)."""

    __slots__ = ("live_ms", "locked", "locked_ms")

    def __init__(self, locked_ms: float, live_ms: float) -> None:
        self.locked = True
        self.locked_ms = locked_ms
        self.live_ms = live_ms

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


class OrderlyProcessQueue(ProcessQueue):
    """The process queue of a queue consumed in order.

    Attributes:
        lease: the broker lock; None where none is needed (broadcasting, C-555).
        stage: where the queue's turn stands; to be read, ``change_stage`` changes it (C-237).
    """

    __slots__ = ("_taken", "_waiting", "lease", "stage")

    def __init__(
        self, message_queue: MessageQueue, generation: int, now_ms: float, lease: Lease | None
    ) -> None:
        super().__init__(message_queue, generation, now_ms)
        self.lease = lease
        self.stage = Stage.IDLE
        self._taken: dict[int, Queued] = {}
        self._waiting: deque[int] = deque()

    def change_stage(self, event: TurnEvent) -> None:
        """Change the stage of the turn as the table says for ``event``.

        Raises:
            InternalError: ``event`` cannot happen at this stage: a mistake of rocketstream itself.
        """
        try:
            self.stage = TRANSITIONS[self.stage, event]
        except KeyError:
            raise refusal(self.stage, event) from None

    @property
    def in_hand(self) -> bool:
        """Whether a batch is with the listener, or its answer is being carried out."""
        return self.stage is Stage.IN_HAND or self.stage is Stage.GIVING_UP

    @property
    def max_span(self) -> int:
        """0: order itself bounds how far consuming runs ahead (C-203, step 7a)."""
        return 0

    @property
    def taken_count(self) -> int:
        """Messages given to the listener and not committed."""
        return len(self._taken)

    @property
    def waiting_count(self) -> int:
        """Messages not given to the listener."""
        return len(self._waiting)

    @property
    def taken_offsets(self) -> list[int]:
        """Offsets given to the listener and not committed, ascending."""
        return sorted(self._taken)

    def put(self, messages: Iterable[M], max_offset: int = 0) -> list[M]:
        """Take in pulled messages; return those that were not cached already (C-237)."""
        added = super().put(messages, max_offset)
        if added:
            self._give_back([message.queue_offset for message in added], behind=True)
        return added

    def take(self, count: int) -> list[Queued]:
        """Take up to ``count`` of the smallest offsets (C-243)."""
        waiting, cached, taken = self._waiting, self._messages, self._taken
        if count == 1 and waiting:  # the default, and each message costs it
            offset = waiting.popleft()
            taken[offset] = message = cached[offset]
            return [message]
        batch: list[Queued] = []
        while waiting and len(batch) < count:
            offset = waiting.popleft()
            taken[offset] = message = cached[offset]
            batch.append(message)
        return batch

    def commit(self, now_ms: float = 0.0) -> int:
        """Finish everything taken; return the next offset to commit, -1 for none (C-244)."""
        taken, self._taken = self._taken, {}
        return self.remove(taken.values(), now_ms) if taken else -1

    def finish(self, messages: Iterable[Queued], now_ms: float = 0.0) -> int:
        """Finish these of the taken ones, the others stay taken; return as ``commit``."""
        done = [
            each for m in messages if (each := self._taken.pop(m.queue_offset, None)) is not None
        ]
        return self.remove(done, now_ms) if done else -1

    def rollback(self) -> None:
        """Give everything taken back, to be taken again (C-245)."""
        offsets = sorted(self._taken)
        self._taken.clear()
        self._give_back(offsets)

    def consume_again(self, messages: Iterable[Queued]) -> None:
        """Give these of the taken ones back (C-245)."""
        self._give_back(
            sorted(
                m.queue_offset
                for m in messages
                if self._taken.pop(m.queue_offset, None) is not None
            )
        )

    def clear(self) -> None:
        """Forget everything cached (C-247)."""
        super().clear()
        self._taken.clear()
        self._waiting.clear()

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
        if not in_order or any(a >= b for a, b in itertools.pairwise(offsets)):
            self._waiting = deque(sorted(waiting))


class Step(enum.Enum):
    """What becomes of the messages after a listener call."""

    COMMIT = "COMMIT"
    """Everything taken is finished."""
    KEEP = "KEEP"
    """The batch stays taken until a later COMMIT or ROLLBACK."""
    ROLLBACK = "ROLLBACK"
    """Everything taken comes again after a pause."""
    AGAIN = "AGAIN"
    """The batch comes again after a pause, but for messages that had their last try."""


_MANUAL = {
    ConsumeOrderlyStatus.SUCCESS: Step.KEEP,
    ConsumeOrderlyStatus.COMMIT: Step.COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: Step.ROLLBACK,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Step.AGAIN,
}


def step_of(status: ConsumeOrderlyStatus, auto_commit: bool) -> Step:
    """Return what a status means (C-285).

    With auto-commit ROLLBACK is SUSPEND_CURRENT_QUEUE_A_MOMENT; upstream acknowledges the messages
    (C-591), which loses what the listener wanted back.
    """
    if not auto_commit:
        return _MANUAL[status]
    if status in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT):
        return Step.COMMIT
    return Step.AGAIN


class Reconsumed(Protocol):
    """What counting the tries needs of a message."""

    reconsume_times: int


R = TypeVar("R", bound=Reconsumed)


def orderly_max_reconsume_times(configured: int) -> int:
    """Return the number of tries after the first that -1 stands for (C-40, C-287)."""
    return RECONSUME_FOREVER if configured == -1 else configured


def split_by_tries(messages: Iterable[R], max_times: int) -> tuple[list[R], list[R]]:
    """Return the messages that had their last try, and those that come again (C-287)."""
    spent: list[R] = []
    again: list[R] = []
    for message in messages:
        (spent if message.reconsume_times >= max_times else again).append(message)
    return spent, again


def suspend_ms(asked: int, setting: int) -> int:
    """Return how long a queue pauses, within [10, 30000] ms (C-284)."""
    wanted = setting if asked == USE_SETTING else asked
    return max(SUSPEND_MS_MIN, min(wanted, SUSPEND_MS_MAX))

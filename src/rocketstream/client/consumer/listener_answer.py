"""Pure: what a listener's answer means for the messages of its batch, in any order or in order."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Protocol, TypeVar

from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
USE_SETTING = -1
"""The context's suspend time before the listener touches it."""
ACK_ALL = 2**31 - 1
"""The context's ackIndex before the listener touches it."""


def acknowledged(status: ConsumeConcurrentlyStatus, ack_index: int, batch_size: int) -> int:
    """Return how many messages from the front of the batch succeeded; the rest failed.

    CONSUME_SUCCESS honours ``ack_index`` (partial success); RECONSUME_LATER fails all.
    """
    if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return 0
    return max(0, min(ack_index + 1, batch_size))


# --- in order -------------------------------------------------------------------------------------


class Step(enum.Enum):
    """The fate of the messages after a listener call."""

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
    """A message whose tries are counted."""

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        ...


R = TypeVar("R", bound=Reconsumed)


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

"""What may happen to the turn of a queue consumed in order, in one table.

Law: pure; the only place where the stage of a turn changes. What is not in the table is refused:
whoever asks for it has made a mistake (after h11's ``_state.py``).
"""

from __future__ import annotations

import enum
from typing import Final

from rocketstream.errors import InternalError


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
    __hash__ = object.__hash__


class TurnEvent(enum.Enum):
    """What happens to a turn.

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

    __hash__ = object.__hash__


_S, _E = Stage, TurnEvent
TRANSITIONS: Final[dict[tuple[Stage, TurnEvent], Stage]] = {
    (_S.IDLE, _E.CAME): _S.READY,
    (_S.IDLE, _E.LEFT): _S.OVER,
    # Whoever is called next takes the first batch, or finds why there is none (C-281).
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
    (_S.UNLOCKED, _E.BROKE): _S.PAUSED,
    # The next assignment has a process queue of its own, and a turn with it (C-557).
    (_S.OVER, _E.CAME): _S.OVER,
    (_S.OVER, _E.BROKE): _S.OVER,
    (_S.OVER, _E.LEFT): _S.OVER,
}


def refusal(stage: Stage, event: TurnEvent) -> InternalError:
    """Return what is raised where the table has no line: a mistake of rocketstream itself."""
    return InternalError(f"the turn of a queue that is {stage.name} cannot become {event.name}")

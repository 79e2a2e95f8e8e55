"""What may happen to an assigned queue, in one table: how it stands, and what changes that.

Law: pure; the only place where a queue's standing changes. Readers ask ``leaving``, ``dropped`` and
``flow_controlled`` of the process queue; the owner serialises the writes.
"""

from __future__ import annotations

import enum
from typing import Final

from rocketstream.errors import InternalError


class Standing(enum.Enum):
    """How a queue stands with the member it was assigned to.

    Attributes:
        PULLED: its messages are pulled and handed to listeners.
        HELD: flow control keeps its next pull back until messages are finished (C-203).
        LEAVING: allotted to another member: nothing new is pulled or handed to a listener, what a
            running listener finishes still counts (C-556).
        DROPPED: no longer ours: nothing that still comes for it counts (C-549).
    """

    PULLED = "PULLED"
    HELD = "HELD"
    LEAVING = "LEAVING"
    DROPPED = "DROPPED"


class Change(enum.Enum):
    """What happens to a queue.

    Attributes:
        HOLD: as many messages are cached as may be.
        RELEASE: there is room again.
        LEAVE: a rebalance gives the queue to another member.
        DROP: it has left, its lock was lost, or it begins anew at another offset.
    """

    HOLD = "HOLD"
    RELEASE = "RELEASE"
    LEAVE = "LEAVE"
    DROP = "DROP"


_P, _H, _L, _D = Standing
TRANSITIONS: Final[dict[tuple[Standing, Change], Standing]] = {
    (_P, Change.HOLD): _H,
    (_P, Change.RELEASE): _P,
    (_P, Change.LEAVE): _L,
    (_P, Change.DROP): _D,
    (_H, Change.HOLD): _H,
    (_H, Change.RELEASE): _P,
    (_H, Change.LEAVE): _L,
    (_H, Change.DROP): _D,
    # Asked to leave again by each rebalance while its listener runs (C-179).
    (_L, Change.LEAVE): _L,
    (_L, Change.DROP): _D,
    # What is on its way out is not pulled, so there is nothing to hold or to release.
    (_L, Change.HOLD): _L,
    (_L, Change.RELEASE): _L,
    # A dropped queue stays dropped: its next assignment has a new process queue (C-557).
    (_D, Change.LEAVE): _D,
    (_D, Change.DROP): _D,
    (_D, Change.HOLD): _D,
    (_D, Change.RELEASE): _D,
}


def after(standing: Standing, change: Change) -> Standing:
    """Return how a queue stands after a change.

    Raises:
        InternalError: the table has no such line: a mistake of rocketstream itself.
    """
    try:
        return TRANSITIONS[standing, change]
    except KeyError:
        raise InternalError(f"a queue that is {standing.name} cannot {change.name}") from None

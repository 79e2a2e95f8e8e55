"""What the checker can find, and the rules a run is held to.

Law: values only; the text of an anomaly names its events.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rocketstream.testing.history.events import Event

EVENTS_SHOWN = 8


class AnomalyKind(enum.Enum):
    """The ways a run can break a promise."""

    LOST = "lost"
    """Acknowledged, and not in the log, or never consumed by a group."""
    PHANTOM = "phantom"
    """Stored or consumed, and never sent; or said not to be stored, and it is."""
    MISPLACED = "misplaced"
    """A place holds another message than the one acknowledged or read there before."""
    STORED_TWICE = "stored twice"
    """More copies than tries, and no crash that explains one."""
    REORDERED = "reordered"
    """Stored, or consumed in order, before what was there first."""
    COMMITTED_AHEAD = "committed ahead"
    """An offset passed a message no listener had finished."""
    OFFSET_BACKWARDS = "offset went backwards"
    """A settled offset was lower later, without a reset."""
    OWNED_TWICE = "owned twice"
    """Two listener calls of one orderly group ran on one queue at once."""
    NOT_OWNED = "not owned by one"
    """Calm, and a queue had no owner or several."""
    DELAYED_EARLY = "delivered before it was due"
    """A delayed message was seen too early."""
    TRANSACTION_EARLY = "seen before commit"
    """A transactional message was seen before its local transaction had committed."""
    ROLLED_BACK_SEEN = "rolled back, but seen"
    """A transactional message was seen although it was rolled back."""
    REPEATED = "repeated without cause"
    """Consumed, and delivered again, with nothing that explains it."""
    MISCOUNTED = "retries miscounted"
    """A message says it failed more often than it did."""
    GIVEN_UP_EARLY = "given up early"
    """Dead-lettered before it had its attempts."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A promise that was broken, and the events that show it."""

    kind: AnomalyKind
    text: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.kind.value}: {self.text}"]
        lines += [f"    {event}" for event in self.events[:EVENTS_SHOWN]]
        if len(self.events) > EVENTS_SHOWN:
            lines.append(f"    … and {len(self.events) - EVENTS_SHOWN} more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run is held to. Times are milliseconds.

    Attributes:
        unflushed_ms: how long an acknowledged message may be lost by a power loss: 0 with
            ``flush=sync``; with ``async`` the flush interval and a margin. None forgives any
            message acknowledged before a power loss.
        settle_ms: so long after an offset or a delayed message's delivery was seen, a crash of
            the broker no longer forgets it.
        rebalance_ms: so long after a disturbance repetitions may still be its fault.
        exclusive_ms: so long a listener call in order may trust the lock it began under.
        early_ms: how much too early a delayed message may come (clocks are cut to milliseconds).
        reports_max: most anomalies of one kind that are reported.
    """

    unflushed_ms: float | None = 0.0
    settle_ms: float = 15_000.0
    rebalance_ms: float = 150_000.0
    exclusive_ms: float = 30_000.0
    early_ms: float = 1.0
    reports_max: int = 5

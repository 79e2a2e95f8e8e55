"""The kinds of anomaly the checker can find, and the rules it judges a run by.

Pure: values; the text of an anomaly names the events that show it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rocketstream.testing.history.events import Event

EVENTS_SHOWN = 8


class AnomalyKind(enum.Enum):
    """The ways a run can break a promise."""

    LOST = "lost"
    """Acknowledged, but missing from the log or never consumed by a group."""
    PHANTOM = "phantom"
    """Stored or consumed but never sent, or stored although its send was reported as not stored."""
    MISPLACED = "misplaced"
    """A queue offset holds another message than the one acknowledged or read there before."""
    ALTERED = "altered"
    """Stored or delivered with another body, tag or property than it was sent with."""
    UNWANTED = "delivered, but not selected"
    """Delivered to a group whose subscription excludes it."""
    STORED_TWICE = "stored twice"
    """More copies than tries, or than sends and failures where nothing disturbed them."""
    NOT_TAKEN_OVER = "not taken over"
    """A send failed, or a message waited for its consumers, though a broker was there for it."""
    REORDERED = "reordered"
    """Stored, or consumed in order, before a message that precedes it."""
    COMMITTED_AHEAD = "committed ahead"
    """An offset was committed past a message no listener had finished."""
    RESET_FORGOTTEN = "reset forgotten"
    """A group's members were told to go on at an offset, and did not consume from there on."""
    OFFSET_BACKWARDS = "offset went backwards"
    """A committed offset that had settled was later lower, without a reset."""
    OWNED_TWICE = "owned twice"
    """Two listener calls of one orderly group ran on one queue at once."""
    NOT_OWNED = "not owned by one"
    """In a calm period a queue had no owner, or several."""
    DELAYED_EARLY = "delivered before it was due"
    """A delayed message was seen too early."""
    TRANSACTION_EARLY = "seen before commit"
    """A transactional message was seen before its local transaction had committed."""
    ROLLED_BACK_SEEN = "rolled back, but seen"
    """A transactional message was seen although it was rolled back."""
    AFTER_END = "delivered after the end"
    """Handed to a listener of a member that had been shut down or killed."""
    REPEATED = "repeated without cause"
    """Consumed and delivered again, and nothing explains the second delivery."""
    MISCOUNTED = "retries miscounted"
    """A message's retry count is higher than the number of its failures, or than it may be."""
    LATE = "late"
    """Delivered only after a while, though all was calm when it was sent."""
    GIVEN_UP_EARLY = "given up early"
    """Dead-lettered before it had all its attempts."""


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
    """The limits and tolerances a run is judged by. Times are milliseconds.

    Attributes:
        unflushed_ms: a power loss may take messages acknowledged up to this long before it: 0 with
            ``flush=sync``; with ``async`` the flush interval and a margin. Times in which the
            broker stood still, or was away after it was killed, come on top. None excuses the loss
            of any message acknowledged before a power loss.
        settle_ms: once an offset or a delayed message's delivery was seen this long ago, a crash of
            the broker must no longer lose it.
        rebalance_ms: repeated deliveries up to this long after a disturbance may still be caused by
            it.
        exclusive_ms: an orderly listener call may rely on the lock it began under for this long.
        untold_ms: brokers forget locks when they die, as Apache's do, and a member may begin calls
            for so long before it is told; always after a loss of power. None: they remember, as
            ours do.
        takeover_ms: a broker and a name server are there at any time, and clients are told at once
            of one that goes: a send that may be tried again must succeed, and its message be given
            to each group within so long unless its broker dies. None promises neither.
        kept_ms: how long messages stay in the log at least; 0 promises nothing.
        early_ms: how much too early a delayed message may come (clocks are rounded down to
            milliseconds).
        prompt_ms: when all is calm a message is delivered this soon after it is stored.
        reports_max: how many anomalies of one kind are reported at most.
    """

    unflushed_ms: float | None = 0.0
    settle_ms: float = 15_000.0
    rebalance_ms: float = 150_000.0
    exclusive_ms: float = 30_000.0
    untold_ms: float | None = None
    takeover_ms: float | None = None
    kept_ms: float = 0.0
    early_ms: float = 1.0
    prompt_ms: float = 10_000.0
    reports_max: int = 5

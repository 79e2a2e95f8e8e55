"""What a collection takes over from the one before it, and when it must not.

Law: PURE. What was written down and the first sweep in, a decision out. Nothing is taken over that
was not watched: what happened in a gap nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocketstream.admin.state import ClusterState, GroupVerdict
from rocketstream.watch.core.moments import Moment, places
from rocketstream.watch.core.series import BREAK_MS


@dataclass(frozen=True, slots=True)
class Past:
    """What the collection before left.

    Attributes:
        swept_ms: when its last answered sweep was, ms since 1970.
        brokers: where the brokers were, as ``places`` says it.
        verdicts: the last of each group, with since when it held.
        moments: states of the last minutes, oldest first; empty where they were not kept.
    """

    swept_ms: int
    brokers: frozenset[str] = frozenset()
    verdicts: Mapping[str, GroupVerdict] = field(default_factory=dict)
    moments: Sequence[Moment] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """A time before a collection of which nothing is known: its verdicts hold since the end of it.

    Attributes:
        from_ms: the last sweep before it, ms since 1970.
        until_ms: the first sweep after it.
        reason: why what was known before is not taken over.
    """

    from_ms: int
    until_ms: int
    reason: str


def gap_before(past: Past, state: ClusterState, interval_s: float) -> Gap | None:
    """Return what parts a first sweep from the past; None where it goes on from there.

    Args:
        past: what was written down.
        state: the first sweep that was answered.
        interval_s: from one sweep to the next, in seconds.
    """
    away_ms = state.taken_ms - past.swept_ms
    if away_ms < 0:
        reason = "the last sweep written down lies in the future: the clock was set back"
    elif away_ms > max(BREAK_MS, 3_000 * interval_s):
        reason = "that is too long: what was so before may have ended and begun again"
    elif past.brokers and past.brokers.isdisjoint(places(state.brokers)):
        reason = "the brokers are others: it is the history of another cluster, or all have moved"
    else:
        return None
    return Gap(past.swept_ms, state.taken_ms, reason)

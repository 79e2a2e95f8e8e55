"""The takeover of a previous collection's state, and when it must not happen.

Pure: the records and the first sweep in, a decision out.

Law: nothing is taken over across a gap in which nobody watched: the state within it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocketstream.admin.state import ClusterState, GroupVerdict
from rocketstream.watch.core.moments import Moment, places
from rocketstream.watch.core.series import BREAK_MS


@dataclass(frozen=True, slots=True)
class Past:
    """The state the previous collection left.

    Attributes:
        swept_ms: when its last answered sweep was made, ms since 1970.
        brokers: the brokers' addresses, as ``places`` returns them.
        verdicts: the last verdict of each group, with the time since when it held.
        moments: the states of the last minutes, oldest first; empty where they were not kept.
    """

    swept_ms: int
    brokers: frozenset[str] = frozenset()
    verdicts: Mapping[str, GroupVerdict] = field(default_factory=dict)
    moments: Sequence[Moment] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """A time before a collection in which nobody watched: the verdicts hold since its end.

    Attributes:
        from_ms: when the last sweep before the gap was made, ms since 1970.
        until_ms: when the first sweep after the gap was made, ms since 1970.
        reason: why the earlier records are not taken over.
    """

    from_ms: int
    until_ms: int
    reason: str


def gap_before(past: Past, state: ClusterState, interval_s: float) -> Gap | None:
    """Return the gap between the past and a first sweep; None where the collection continues.

    Args:
        past: the state the previous collection left.
        state: the first sweep that was answered.
        interval_s: the time from one sweep to the next, in seconds.
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

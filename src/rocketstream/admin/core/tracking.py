"""The fate of a message in one group, from its copies and the group's progress.

Pure: facts in, a status and the sentence that explains it out.

Law: where the facts do not decide, the status is UNKNOWN, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONSUMED: Final = "CONSUMED"
FILTERED: Final = "CONSUMED_BUT_FILTERED"
RETRYING: Final = "RETRYING"
DEAD_LETTERED: Final = "DEAD_LETTERED"
NOT_YET: Final = "NOT_CONSUME_YET"
NOT_ONLINE: Final = "NOT_ONLINE"
PULL: Final = "PULL"
UNKNOWN: Final = "UNKNOWN"

DELAYS_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""The delays of levels 1 to 18 in ms, unless a broker is configured otherwise."""

WAITS: Final = "waits"
RETRY: Final = "retry"
DEAD: Final = "dead"
_ORDER: Final = {WAITS: 0, RETRY: 1, DEAD: 2}


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message that a group sent back.

    Attributes:
        kind: ``waits`` (in the delay topic), ``retry`` (in the retry topic) or ``dead``.
        tries: how often it was sent back before.
        store_ms: when it was stored.
        is_passed: in the retry topic, whether the group's offset is past the copy; None when not
            known.
        due_ms: in the delay topic, when the copy is due by the usual delays, ms since 1970.
    """

    kind: str
    tries: int
    store_ms: int
    is_passed: bool | None = None
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TrackFacts:
    """The known facts about a message in a group.

    Attributes:
        offset: the message's offset in its queue.
        committed: the group's offset there; None where it has none.
        is_online: whether a member is connected.
        is_pulling: whether its members pull by themselves.
        is_broadcast: whether each member consumes all, and keeps its own offsets.
        is_wanted: whether the group's subscription wants the message; None when not known.
        copies: the copies the group sent back; None where they could not be looked for.
        no_copies_why: why they could not be looked for.
        redriven_ms: when the message was sent again after the group gave it up; else None.
    """

    offset: int
    committed: int | None
    is_online: bool
    is_pulling: bool = False
    is_broadcast: bool = False
    is_wanted: bool | None = None
    copies: Sequence[Copy] | None = ()
    no_copies_why: str | None = None
    redriven_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Tracked:
    """The fate of a message in a group; see ``TrackRow``."""

    status: str
    why: str | None = None
    tries: int | None = None
    since_ms: int | None = None
    due_ms: int | None = None


def track(facts: TrackFacts) -> Tracked:
    """Return the fate of a message."""
    last = max(
        facts.copies or (), key=lambda c: (c.tries, c.store_ms, _ORDER[c.kind]), default=None
    )
    found = _of_copy(last, facts) if last is not None else _of_offset(facts)
    if facts.redriven_ms is None:
        return found
    why = "it was dead-lettered and sent again"
    return Tracked(
        found.status,
        f"{why}; {found.why}" if found.why else why,
        found.tries,
        found.since_ms or facts.redriven_ms,
        found.due_ms,
    )


def _of_copy(last: Copy, facts: TrackFacts) -> Tracked:
    times = "once" if last.tries == 1 else f"{last.tries} times" if last.tries else "to the group"
    if last.kind == DEAD:
        return Tracked(
            DEAD_LETTERED, "it is in the group's dead-letter topic", last.tries, last.store_ms
        )
    if last.kind == WAITS:
        why = f"it was sent back {times} and waits in the delay topic for its next try"
        return Tracked(RETRYING, why, last.tries, last.store_ms, last.due_ms)
    if last.is_passed:
        return Tracked(CONSUMED, f"after it was sent back {times}", last.tries)
    if last.is_passed is None:
        why = f"it was sent back {times}; whether the last try is over could not be asked"
        return Tracked(UNKNOWN, why, last.tries, last.store_ms)
    why = f"it was sent back {times} and stands in the retry topic, not consumed yet"
    if not facts.is_online:
        why += "; no member is connected"
    return Tracked(RETRYING, why, last.tries, last.store_ms)


def _of_offset(facts: TrackFacts) -> Tracked:
    if facts.is_broadcast:
        return Tracked(UNKNOWN, "each member of a broadcasting group keeps its own progress")
    passed = facts.committed is not None and facts.committed > facts.offset
    if not facts.is_online:
        if not passed:
            return Tracked(NOT_ONLINE, "not consumed, and no member is connected")
        if facts.copies is None:
            return Tracked(UNKNOWN, _unknown_copies(facts))
        return Tracked(
            NOT_ONLINE,
            "the group's offset is past it and it was not sent back; no member is connected to "
            "tell whether its subscription wanted it",
        )
    if facts.is_pulling and facts.committed is None:
        return Tracked(PULL, "its members pull, and keep no offset at the broker")
    if not passed:
        return Tracked(NOT_YET, f"the group's offset is {facts.committed or 0}, its {facts.offset}")
    if facts.is_wanted is False:
        return Tracked(FILTERED)
    if facts.copies is None:
        return Tracked(UNKNOWN, _unknown_copies(facts))
    return Tracked(CONSUMED)


def _unknown_copies(facts: TrackFacts) -> str:
    return (
        "the group's offset is past it; whether it was sent back cannot be told: "
        f"{facts.no_copies_why}"
    )

"""Previewed changes: by their token, once, and soon."""

from __future__ import annotations

import itertools

import pytest

from rocketstream.agents.pending import EXPIRES_AFTER_MS, PENDING_MAX, PendingChanges
from rocketstream.errors import ClientStateError
from rocketstream.testing import ManualClock


async def nothing() -> None:
    """A change that does nothing."""


def changes(clock: ManualClock) -> PendingChanges:
    numbers = itertools.count()
    return PendingChanges(lambda: f"token{next(numbers)}", clock.monotonic_ms)


def test_a_token_is_good_once() -> None:
    kept = changes(ManualClock())
    token = kept.keep("reset", nothing)
    assert kept.take(token).operation == "reset"
    with pytest.raises(ClientStateError, match="applied already"):
        kept.take(token)


def test_a_token_is_good_for_minutes() -> None:
    clock = ManualClock()
    kept = changes(clock)
    early, late = kept.keep("reset", nothing), kept.keep("reset", nothing)
    clock.advance(EXPIRES_AFTER_MS)
    kept.take(early)
    clock.advance(1)
    with pytest.raises(ClientStateError, match="older than 5 minutes"):
        kept.take(late)


def test_a_token_nobody_gave_is_refused() -> None:
    with pytest.raises(ClientStateError, match="mistyped"):
        changes(ManualClock()).take("guess")


def test_previews_are_bounded() -> None:
    kept = changes(ManualClock())
    first, *others = [kept.keep("reset", nothing) for _ in range(PENDING_MAX + 1)]
    with pytest.raises(ClientStateError, match="pushed out"):
        kept.take(first)
    for token in others:
        kept.take(token)

"""Previewed changes: by their token, once, soon, and by those who saw them."""

from __future__ import annotations

import pytest

from rocketstream.admin.safety import GOOD_FOR_MS, KEPT_MAX, PreviewGoneError, Previews
from rocketstream.testing import ManualClock


def test_a_token_is_good_once() -> None:
    kept = Previews[str](ManualClock())
    token = kept.keep("reset")
    assert (kept.find(token), kept.take(token)) == ("reset", "reset")
    with pytest.raises(PreviewGoneError, match="carried out already"):
        kept.take(token)


def test_a_token_is_good_for_minutes() -> None:
    clock = ManualClock()
    kept = Previews[str](clock)
    early, late = kept.keep("early"), kept.keep("late")
    clock.advance(GOOD_FOR_MS)
    assert kept.left_s(late) == 0
    kept.take(early)
    clock.advance(1)
    with pytest.raises(PreviewGoneError, match="older than 10 minutes"):
        kept.take(late)


def test_a_token_nobody_gave_or_another_got_is_refused() -> None:
    kept = Previews[str](ManualClock())
    token = kept.keep("reset", "of ann")
    for guess, session in (("guess", "of ann"), (token, "of bob"), (token, "")):
        with pytest.raises(PreviewGoneError, match="mistyped"):
            kept.take(guess, session)
    assert kept.take(token, "of ann") == "reset"


def test_previews_are_bounded() -> None:
    kept = Previews[int](ManualClock())
    first, *others = [kept.keep(number) for number in range(KEPT_MAX + 1)]
    with pytest.raises(PreviewGoneError, match="pushed it out"):
        kept.take(first)
    assert [kept.take(token) for token in others] == list(range(1, KEPT_MAX + 1))

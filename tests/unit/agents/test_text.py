"""Text from outside, and times, as agents get them."""

from __future__ import annotations

import pytest

from rocketstream.agents.answers import at, seen

NOON_MS = 1_777_636_800_000


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("orders", "orders"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Grüße 你好 🙂", "Grüße 你好 🙂"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("evil\u202egnp.exe", "evil\\u202egnp.exe"),
        # Characters that only models read: "tags" of plane 14, zero width, private use.
        ("a\U000e0041\u200bb\ue000", "a\\U000e0041\\u200bb\\ue000"),
        # A letter that leaves no trace: one name passes for another.
        ("orders\u3164", "orders\\u3164"),
    ],
)
def test_nothing_unseen_gets_through(given: str, shown: str) -> None:
    assert seen(given) == shown


def test_text_is_bounded() -> None:
    assert seen("x" * 50, 10) == "x" * 10 + " (40 more characters)"


def test_times_are_utc_and_unknown_stays_unknown() -> None:
    assert at(NOON_MS) == "2026-05-01T12:00:00.000Z"
    assert at(None) is None
    assert at(10**18) is None

"""Values as pages show them: no character hides or turns others."""

from __future__ import annotations

import pytest

from rocketstream.admin.state import QueueState
from rocketstream.dashboard import words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("zahlung-€-注文", "zahlung-€-注文"),
        ("a\u202egpj.exe", "a\\u202egpj.exe"),
        ("a\u200bb", "a\\u200bb"),
        ("a\x00\x1b[31mb", "a\\x00\\x1b[31mb"),
        ("a\u2066b", "a\\u2066b"),
        ("\U000e0041", "\\U000e0041"),
        ("a\u3164b", "a\\u3164b"),
        ("a\u0605b", "a\\u0605b"),
        ("one\n\ttwo", "one\n\ttwo"),
    ],
)
def test_what_hides_or_turns_other_characters_is_spelled_out(text: str, shown: str) -> None:
    assert words.visible(text) == shown


def test_queues_of_a_member_are_drawn_together_by_topic() -> None:
    queues = [QueueState("b", "x", 2)] + [QueueState("a", "x", n) for n in (0, 1, 2, 5)]
    assert words.by_topic(queues) == [("a", "0–2, 5"), ("b", "2")]

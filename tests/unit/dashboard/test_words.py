"""Values as pages show them: unknown is never zero, and no character hides or turns others."""

from __future__ import annotations

import pytest

from rocketstream.admin.core.words import number
from rocketstream.admin.state import URGENCY, QueueState, Verdict
from rocketstream.dashboard import words


@pytest.mark.parametrize("render", [number, words.rate, words.span, words.size])
def test_unknown_is_called_so(render: object) -> None:
    assert callable(render)
    assert render(None) == "unknown"
    assert render(0) in ("0", "0 B")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (850, "850 ms"),
        (12_345, "12 s"),
        (245_000, "4 min 05 s"),
        (11_400_000, "3 h 10 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_a_span_has_two_units_at_most(milliseconds: int, text: str) -> None:
    assert words.span(milliseconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.04, "0.04"), (3.21, "3.2"), (1250.4, "1,250")]
)
def test_a_rate_keeps_what_can_be_read(value: float, text: str) -> None:
    assert words.rate(value) == text


def test_a_moment_before_or_after_now_is_told_apart() -> None:
    assert words.ago(1_000, 13_000) == "12 s ago"
    assert words.ago(13_000, 1_000) == "in 12 s"
    assert words.ago(1_000, 1_500) == "just now"


def test_a_moment_no_calendar_has_is_shown_as_it_is() -> None:
    assert words.moment(10**18) == f"{10**18} ms since 1970"


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


def test_every_verdict_has_its_urgency() -> None:
    assert sorted(URGENCY) == sorted(Verdict)

"""``--watch``: one mechanism for every command that shows a state."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import pyte
import pytest
from click.exceptions import Exit

from rocketstream.cli import output
from rocketstream.cli.failure import EXIT_EXCEEDED
from rocketstream.cli.output import print_line, repeat
from rocketstream.cli.signals import TerminatedError
from rocketstream.errors import ConfigurationError, ConnectError

SIZE = os.terminal_size((40, 8))


def rounds(*what: str | Exception) -> Callable[[], None]:
    """A command that prints, or fails with, one of these each time; then Ctrl-C."""
    left = list(what)

    def run() -> None:
        if not left:
            raise KeyboardInterrupt
        now = left.pop(0)
        if isinstance(now, Exception):
            raise now
        print_line(now)

    return run


def unpaused(_: float) -> None:
    """Every round follows at once."""


class Screen(io.StringIO):
    """Stdout on a terminal of SIZE."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def taken_over(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Stdout from here on; a fixture's would be pytest's again when the test begins."""
    out = Screen()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: SIZE)
    monkeypatch.setenv("TERM", "xterm")
    return out


def seen(text: str) -> list[str]:
    """What the terminal shows after this output."""
    terminal = pyte.Screen(SIZE.columns, SIZE.lines)
    pyte.Stream(terminal).feed(text)
    return [line.rstrip() for line in terminal.display]


def frames(text: str) -> list[list[str]]:
    """What it shows after each frame."""
    parts = text.split(output._END)
    return [seen("".join(p + output._END for p in parts[: n + 1])) for n in range(len(parts) - 1)]


def test_rounds_are_drawn_over_each_other_and_the_last_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = taken_over(monkeypatch)
    repeat(rounds("lag 74\nline", "lag 9"), 2, unpaused)
    first, second = frames(screen.getvalue())
    assert first[1:4] == ["lag 74", "line", ""]
    assert second[1:4] == ["lag 9", "", ""]
    assert "every 2 s" in first[0]
    assert screen.getvalue().endswith(output._LEAVE + "lag 9\n")
    assert "\x1b[2J" not in screen.getvalue()  # clearing before drawing flickers


def test_what_does_not_fit_the_screen_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = taken_over(monkeypatch)
    repeat(rounds("\n".join(f"queue {n}" for n in range(20))), 2, unpaused)
    (frame,) = frames(screen.getvalue())
    assert frame[5] == "queue 4"
    assert (
        frame[6:] == ["(15 more lines; a higher terminal shows", "them)"] or "15 more" in frame[6]
    )


def test_the_first_round_fails_as_the_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = taken_over(monkeypatch)
    with pytest.raises(ConfigurationError):
        repeat(rounds(ConfigurationError("no group 'x'")), 2, unpaused)
    assert screen.getvalue() == ""


def test_a_later_failure_is_shown_above_the_last_answer_and_watching_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = taken_over(monkeypatch)
    repeat(rounds("lag 74", ConnectError("broker gone"), "lag 9"), 2, unpaused)
    _, failed, last = frames(screen.getvalue())
    assert failed[1:3] == ["error: broker gone", "lag 74"]
    assert last[1] == "lag 9"


def test_an_exceeded_bound_is_watched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = taken_over(monkeypatch)
    left = iter((True, False))

    def run() -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        print_line("lag 74")
        raise Exit(EXIT_EXCEEDED)

    repeat(run, 2, unpaused)
    assert len(frames(screen.getvalue())) == 2


def test_sigterm_is_not_taken_for_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over(monkeypatch)

    def run() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        repeat(run, 2, unpaused)


def test_without_a_terminal_rounds_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    repeat(rounds("a", ConnectError("gone"), "b"), 2, unpaused)
    assert out.getvalue() == "a\nb\n"

"""What a person sees: commands in a real terminal, read from the screen they draw."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pexpect  # type: ignore[import-untyped]
import pyte
import pytest

from rocketstream import Message, Producer
from tests.plugins.commands import Cli, Quick, command, environment

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
WITHIN_S = 60
ROWS = 24


class Terminal:
    """A command on a pseudo terminal, and the screen it draws on."""

    def __init__(self, namesrv: str, columns: int, words: tuple[str, ...], **env: str) -> None:
        self.screen = pyte.Screen(columns, ROWS)
        self._stream = pyte.Stream(self.screen)
        first, *rest = command(words)
        self.raw = ""
        self.process = pexpect.spawn(
            first,
            rest,
            env=environment(namesrv) | {"TERM": "xterm-256color", **env},
            dimensions=(ROWS, columns),
            encoding="utf-8",
            timeout=WITHIN_S,
        )

    def see(self, until: str = "") -> list[str]:
        """Read until the screen shows a text, or the end; return its lines."""
        while not until or not any(until in line for line in self.screen.display):
            try:
                told = self.process.read_nonblocking(4096, WITHIN_S)
            except pexpect.EOF:
                break
            self.raw += told
            self._stream.feed(told)
        return self.lines()

    def lines(self) -> list[str]:
        """The lines of the screen as it is."""
        return [line.rstrip() for line in self.screen.display]

    def end(self) -> int:
        """Wait for its end and return the exit code."""
        self.see()
        self.process.close()
        assert self.process.exitstatus is not None
        return int(self.process.exitstatus)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(namesrv: str) -> Iterator[Open]:
    with ExitStack() as cleanup:

        def open_one(columns: int, *words: str, **env: str) -> Terminal:
            made = Terminal(namesrv, columns, words, **env)
            cleanup.callback(made.process.close, force=True)
            return made

        yield open_one


@pytest.fixture(scope="module")
def behind(namesrv: str) -> str:
    """A group that has consumed 10 of 84 messages of a topic with a long name."""
    topic = "terminal-orders-of-the-eastern-region"
    quick = Quick(namesrv)
    quick("topic", "create", topic, "-q", "1").worked()
    quick("send", topic, "x", "--count", "84").worked()
    quick("consume", topic, "-g", "terminal-billing", "--from", "earliest", "--max", "10").worked()
    return topic


def test_lag_is_whole_at_eighty_and_sixty_columns(terminal: Open, behind: str) -> None:
    for columns in (80, 60):
        shown = terminal(columns, "group", "lag", "terminal-billing", "--topic", behind)
        assert shown.end() == 0
        text = "\n".join(shown.lines())
        assert behind in text
        words = text.replace(":", " ").split()
        assert "74" in words, text
        assert "(not shown at this width:" in text or "Lag: 74" in text


def test_watching_redraws_in_place_and_ends_cleanly_at_ctrl_c(
    terminal: Open, behind: str, namesrv: str
) -> None:
    shown = terminal(100, "topic", "status", behind, "--watch", "0.5")
    assert any("84" in line for line in shown.see("84 messages"))
    with Producer("terminal-producer", namesrv_addr=namesrv) as producer:
        producer.send(Message(behind, b"one more"))
    lines = shown.see("85 messages")
    assert "every 0.5 s; Ctrl-C ends" in lines[0]
    assert sum("Max offset" in line for line in lines) == 1
    shown.process.kill(signal.SIGINT)
    assert shown.end() == 0
    assert shown.raw.count("\x1b[?1049h") == shown.raw.count("\x1b[?1049l") == 1
    assert "\x1b[?25h" in shown.raw
    assert "Traceback" not in shown.raw


def test_a_body_that_steers_the_terminal_is_shown_as_text(terminal: Open, cli: Cli) -> None:
    cli("topic", "create", "terminal-hostile", "-q", "1").worked()
    cli(
        "send", "terminal-hostile", "--stdin", stdin=b"before\x1b[2J\x1b]0;owned\x07after\n"
    ).worked()
    words = ("-g", "terminal-reader", "--from", "earliest", "--max", "1")
    shown = terminal(80, "consume", "terminal-hostile", *words, NO_COLOR="1")
    assert shown.end() == 0
    assert r"before\x1b[2J\x1b]0;owned\x07after" in shown.lines()
    assert "\x1b[2J" not in shown.raw


def test_a_change_is_shown_and_asked_about_and_no_means_no(terminal: Open, quick: Quick) -> None:
    quick("topic", "create", "terminal-kept", "-q", "1").worked()
    shown = terminal(80, "topic", "delete", "terminal-kept")
    shown.see("[y/N]")
    shown.process.sendline("n")
    assert shown.end() == 1
    assert "nothing was changed" in " ".join(shown.lines())
    assert "terminal-kept" in quick("topic", "list").worked().out

"""``--wide`` and ``--watch``: options of every command that shows something, added in one place."""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.cli.declare import Exit, Option
from rocketstream.cli.failure import describe, say
from rocketstream.cli.output import look, moment, plural
from rocketstream.cli.shown import shown, width
from rocketstream.errors import ConfigurationError, RocketMQError

if TYPE_CHECKING:
    import click

SECONDS_DEFAULT: Final = 2
SECONDS_MIN: Final = 0.5
"""Each round asks the cluster again."""
WATCHED: Final = frozenset(
    {"list", "lag", "status", "members", "running-info", "why", "connections", "verdict"}
)
"""Commands of these names show a state that changes and change nothing themselves."""

WIDE: Final = Option("--wide", help="Show every column, however narrow the terminal.")
WATCH: Final = Option(
    "--watch",
    metavar="[SECONDS]",
    min=SECONDS_MIN,
    help=f"Show it again every {SECONDS_DEFAULT} (or so many) seconds until Ctrl-C.",
)

_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
"""A frame: terminals that know 2026 show it at once; the others overwrite, never clear first."""


def add_views(command: click.Command) -> None:
    """Give ``--wide`` to a command that prints tables or JSON, ``--watch`` if it is WATCHED."""
    run = command.callback
    if run is None or not any("--json" in parameter.opts for parameter in command.params):
        return

    def view(*, wide: bool = False, watch: float | None = None, **given: Any) -> None:
        look.wide = wide
        if watch is None:
            run(**given)
        else:
            repeat(functools.partial(run, **given), watch)

    command.callback = view
    command.params.append(WIDE.made("wide", bool, False))
    if command.name in WATCHED:
        command.params.append(WATCH.made("watch", float | None, None))


def with_seconds(argv: Sequence[str]) -> list[str]:
    """Return the arguments with ``--watch`` given its default where no number follows it."""
    found: list[str] = []
    for index, word in enumerate(argv):
        if word == "--":
            return [*found, *argv[index:]]
        if word == "--watch" and not _is_number(argv[index + 1 : index + 2]):
            word = f"--watch={SECONDS_DEFAULT}"
        found.append(word)
    return found


def _is_number(words: Sequence[str]) -> bool:
    return bool(words) and words[0].replace(".", "", 1).isdigit()


def repeat(
    run: Callable[[], None],
    seconds: float,
    pause: Callable[[float], object] | None = None,
) -> None:
    """Run a command again and again until Ctrl-C, which does not count as a failure here.

    On a terminal each round is drawn over the one before; elsewhere rounds follow each other. The
    first round fails as the command does; later ones show their error and go on.
    """
    pause = pause or threading.Event().wait
    out = sys.stdout
    text = _round(run, out)
    last = text
    try:
        with _screen(out) as is_screen:
            while True:
                if is_screen:
                    out.write(_frame(text, seconds, os.get_terminal_size(out.fileno())))
                else:
                    out.write(text)
                out.flush()
                pause(seconds)
                try:
                    last = text = _round(run, out)
                except ConfigurationError:
                    raise
                except (RocketMQError, OSError) as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    complaint = f"error: {shown(describe(error))}\n"
                    if not is_screen:
                        say(complaint.rstrip())
                    text = complaint + last if is_screen else ""
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:  # SIGTERM
            raise
        if out.isatty():
            out.write(last)
            out.flush()


def _round(run: Callable[[], None], out: TextIO) -> str:
    frame = _Frame(out)
    sys.stdout = frame
    try:
        run()
    except Exit:
        pass  # a bound was exceeded: shown, and watched on
    finally:
        sys.stdout = out
    return frame.getvalue()


class _Frame(io.StringIO):
    """Takes one round's output, and answers for the terminal behind it."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._out.encoding

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()


@contextmanager
def _screen(out: TextIO) -> Iterator[bool]:
    """The terminal's second screen for the time of watching; no screen where there is none."""
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        yield False
        return
    out.write(_ENTER)
    try:
        yield True
    finally:
        out.write(_LEAVE)
        out.flush()


def _frame(text: str, seconds: float, size: os.terminal_size) -> str:
    head = f"{moment(SYSTEM_CLOCK.now_ms())[11:]}, every {seconds:g} s; Ctrl-C ends"
    lines = text.splitlines()
    fitting, space = 0, size.lines - 2
    for line in lines:
        space -= max(1, -(-width(_COLOUR.sub("", line)) // size.columns))
        fitting += space >= 0
    if fitting < len(lines):
        lines = [*lines[: max(fitting - 1, 0)], _too_many(len(lines) - max(fitting - 1, 0))]
    return _BEGIN + "".join(f"{line}\x1b[K\r\n" for line in [head[: size.columns], *lines]) + _END


def _too_many(count: int) -> str:
    return f"({plural(count, 'more line')} below)"

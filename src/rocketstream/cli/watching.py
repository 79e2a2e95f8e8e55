"""``--watch``: a command that shows something, run again and again until Ctrl-C."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from click.exceptions import Exit

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.core.words import moment, plural
from rocketstream.cli.failure import describe, say
from rocketstream.cli.tables import shown, width
from rocketstream.errors import ConfigurationError, RocketMQError

_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
"""A frame: terminals that know 2026 show it at once; the others overwrite, never clear first."""


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

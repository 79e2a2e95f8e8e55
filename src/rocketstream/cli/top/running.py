"""The run of the screen over a collector.

Law: nothing is logged to the terminal while the screen is drawn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rocketstream.admin import Admin
from rocketstream.admin.state import WhyReport
from rocketstream.cli import signals
from rocketstream.cli.failure import one_line
from rocketstream.cli.tables import shown
from rocketstream.cli.top.screen import Top
from rocketstream.watch import Collector, kept_past

try:
    import termios
except ImportError:  # Windows: a console's modes end with the process
    termios = None  # type: ignore[assignment]

_SCREEN_OFF = (
    "\x1b[?2004l\x1b[?7h\x1b[?2048l"  # pasted text marked, lines not wrapped, sizes reported
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l"  # mouse and focus reported
    "\x1b[<u\x1b[?1049l\x1b[?25h"  # keys in full, the other screen, no cursor
)
"""Ends every mode that Textual's drivers switch on."""


@contextmanager
def given_back() -> Iterator[None]:
    """Give the terminal back when the context ends by an error, the process by a second Ctrl-C."""
    if termios is None:
        yield
        return
    place = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
    out = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    before = termios.tcgetattr(place)

    def give_back() -> None:
        with suppress(OSError, termios.error):
            os.write(out, _SCREEN_OFF.encode())
            termios.tcsetattr(place, termios.TCSANOW, before)

    signals.on_forced_exit(give_back)
    try:
        yield
    except BaseException:  # an interrupt within the screen's own work leaves it as it is
        give_back()
        raise
    finally:
        signals.on_forced_exit(None)


def run(namesrv: str, interval_s: float, wanted: str, view: str) -> None:
    """Show the cluster until the user quits; blocks.

    The terminal says how large it is, also after it was resized: ``COLUMNS`` and ``LINES``, which
    Textual would believe first, are a size of the past where a shell or a library exported them.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    collector = Collector(
        lambda: Admin(namesrv), interval_s=interval_s, past=lambda: kept_past(namesrv)
    )

    def why(group: str) -> WhyReport:
        return collector.look(group).report

    app = Top(collector, namesrv, view=view, wanted=wanted, why=why)
    with _log_in_last_line(app), given_back(), collector:
        draw(app)


def draw(app: Top) -> None:
    """Run the screen until the user quits or a signal ends it; blocks.

    A signal asks the screen to end in its own order. An exception within the event loop's work
    would leave tasks of the screen half done, and each of them would write a traceback.
    """
    asked: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def end(number: int) -> None:
        asked.append(number)
        for loop in loops:
            with suppress(RuntimeError):  # it is closed: the screen has ended
                loop.call_soon_threadsafe(app.exit)

    async def drawn() -> None:
        loops.append(asyncio.get_running_loop())
        if not asked:
            await app.run_async()

    with signals.on_signal(end):
        asyncio.run(drawn())
    if asked:
        raise KeyboardInterrupt if asked[0] == signal.SIGINT else signals.TerminatedError


@contextmanager
def _log_in_last_line(app: Top) -> Iterator[None]:
    """Show warnings in the screen's last line: written to stderr they would tear it."""
    log = logging.getLogger("rocketstream")
    before = list(log.handlers)
    log.handlers = [_LastLine(app)]
    try:
        yield
    finally:
        log.handlers = before


class _LastLine(logging.Handler):
    def __init__(self, app: Top) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.post_message(Top.Told(shown(one_line(record.getMessage()))))

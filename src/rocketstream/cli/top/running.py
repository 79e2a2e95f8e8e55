"""The run of the screen over a collector.

Law: nothing is logged to the terminal while the screen is drawn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rocketstream.admin import Admin
from rocketstream.admin.state import WhyReport
from rocketstream.cli.failure import TerminatedError, one_line
from rocketstream.cli.shown import shown
from rocketstream.cli.signals import on_signal
from rocketstream.cli.top.giving_back import given_back
from rocketstream.cli.top.screen import Top
from rocketstream.watch import Collector, kept_past


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

    with on_signal(end):
        asyncio.run(drawn())
    if asked:
        raise KeyboardInterrupt if asked[0] == signal.SIGINT else TerminatedError


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

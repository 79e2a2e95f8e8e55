"""Running the screen over a collector.

Law: life cycle only; the log is kept off the screen while it is drawn.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rocketstream.admin import Admin
from rocketstream.admin.state import WhyReport
from rocketstream.cli.failure import one_line
from rocketstream.cli.shown import shown
from rocketstream.cli.top.giving_back import given_back
from rocketstream.cli.top.screen import Top
from rocketstream.watch import Collector


def run(namesrv: str, interval_s: float, wanted: str, view: str) -> None:
    """Show the cluster until the user quits; blocks.

    The terminal says how large it is, also after it was resized: ``COLUMNS`` and ``LINES``, which
    Textual would believe first, are a size of the past where a shell or a library exported them.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    collector = Collector(lambda: Admin(namesrv), interval_s=interval_s)

    def why(group: str) -> WhyReport:
        with Admin(namesrv) as admin:
            return admin.group_why(group, window=collector.window(group))

    app = Top(collector, namesrv, view=view, wanted=wanted, why=why)
    with _log_in_last_line(app), given_back(), collector:
        app.run()


@contextmanager
def _log_in_last_line(app: Top) -> Iterator[None]:
    """Have warnings appear in the screen's last line: written to stderr they would tear it."""
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

"""The process in which Spark runs a stream's driver side: its orderly end, and its warnings.

Law: only SIGTERM is touched, and only in Spark's own runner.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections import deque
from typing import Final

_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_SIGTERM_EXIT = 143


def stop_on_sigterm() -> None:
    """Make SIGTERM end this process in an orderly way, if it is Spark's source runner.

    Spark ends the runner with SIGTERM and never calls ``stop()`` itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and is_source_runner() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_on_signal)


def is_source_runner() -> bool:
    """Return whether this process is Spark's streaming source runner."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _RUNNER in sys.modules or getattr(spec, "name", "") == _RUNNER


def _exit_on_signal(_signal: int, _frame: object) -> None:
    sys.exit(_SIGTERM_EXIT)


WARNINGS: Final = "warnings"
"""The key of the warnings in the offset that a source reports as latest; no checkpoint keeps it."""
KEPT_MAX: Final = 20
"""How many warnings are kept; reports go out with every micro-batch, so few are needed."""
TEXT_MAX: Final = 500


class WarningTail(logging.Handler):
    """Keeps the warnings of a logger; each has a number that grows."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT_MAX)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self._count += 1
        self._kept.append((self._count, record.getMessage()[:TEXT_MAX]))
        if logging.lastResort is not None and not logging.getLogger().handlers:
            # With this handler present, Python does not write to stderr by itself.
            logging.lastResort.handle(record)

    def attach(self) -> None:
        """Listen to the connector's logger from now on."""
        logging.getLogger("rocketstream.spark").addHandler(self)

    def detach(self) -> None:
        """Stop listening."""
        logging.getLogger("rocketstream.spark").removeHandler(self)

    def told(self) -> list[list[int | str]]:
        """Return number and text of the kept warnings, oldest first."""
        return [[number, text] for number, text in list(self._kept)]

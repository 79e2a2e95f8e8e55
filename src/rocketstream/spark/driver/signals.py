"""The orderly end of the process that runs a stream's driver side.

Law: only SIGTERM is touched, and only in Spark's own runner.
"""

from __future__ import annotations

import signal
import sys
import threading

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

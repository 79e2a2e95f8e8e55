"""Ends a worker whose test has outlasted its time-out: what hangs must not hang the whole run.

Law: knows pytest and its time-outs, nothing of the project.

pytest-timeout raises in the main thread. A test that waits where nothing can be raised, or whose
clean-up waits again, goes on all the same. Its worker is ended here some minutes later with the
stacks of all threads on stderr; pytest-xdist counts the test as failed and starts another worker.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Generator
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

GRACE_S: Final = 60.0
"""How long after its time-out a test may still go on."""
COARSE_S: Final = 300.0
"""How much later than that it may be ended: a watch costs milliseconds, so tests share one."""


class _Watch:
    """Watches over one worker's tests, one after the other."""

    def __init__(self) -> None:
        self._ends_at_s = 0.0

    def cover(self, seconds: float, stderr: int) -> None:
        """Have the worker end unless the next call comes within about that time."""
        now_s = time.monotonic()
        earliest_s = now_s + seconds
        if not earliest_s <= self._ends_at_s <= earliest_s + COARSE_S:
            self._ends_at_s = earliest_s + COARSE_S
            faulthandler.dump_traceback_later(self._ends_at_s - now_s, exit=True, file=stderr)


_watch: Final = _Watch()


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch over one test, its fixtures included."""
    # What tests print is captured; pytest keeps a handle of the real stderr for such dumps.
    _watch.cover(_timeout_s(item) + GRACE_S, item.config.stash[fault_handler_stderr_fd_key])
    return (yield)


def pytest_unconfigure() -> None:
    """Leave the end of the process unwatched."""
    faulthandler.cancel_dump_traceback_later()

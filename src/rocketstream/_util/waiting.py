"""Waiting so that Ctrl-C ends it at once, on every system.

Law: threads only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

_SLICE_S: Final = 0.1 if sys.platform == "win32" else 1.0
"""Windows tells a waiting thread of Ctrl-C only when its wait is over. Elsewhere a signal ends the
wait, but not one that comes in the moment between Python's last look for signals and the system's
call, nor one the system gives to another thread: its handler runs after this.
"""


def wait_until(
    condition: threading.Condition, done: Callable[[], bool], timeout_ms: float | None
) -> bool:
    """Wait, with the condition held, until it is notified and ``done``; return whether it is.

    Args:
        condition: what is notified when ``done`` may have changed.
        done: asked with the condition held.
        timeout_ms: how long to wait; None for ever.
    """
    end_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
    while not done():
        left_s = _SLICE_S if end_s is None else min(end_s - monotonic(), _SLICE_S)
        if left_s <= 0:
            return False
        condition.wait(left_s)
    return True


class Latch:
    """Opens once; any number of threads may wait for it.

    Of one plain lock, so that a signal handler may open it: handlers run between two steps of the
    main thread, which an event's own lock may be held in.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_open = False

    def open(self) -> None:
        """Let all who wait go on; to be called once."""
        self._is_open = True
        self._lock.release()

    def wait(self, timeout_ms: float | None) -> bool:
        """Wait until it is open, None for ever; return whether it is."""
        end_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        while not self._is_open:
            left_s = _SLICE_S if end_s is None else min(end_s - monotonic(), _SLICE_S)
            if left_s <= 0:
                return False
            if self._lock.acquire(timeout=left_s):
                self._lock.release()  # on to the next who waits
        return True

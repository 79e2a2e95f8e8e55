"""Finds threads and sockets that outlive what made them.

Law: looks at this process only and changes nothing in it.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from rocketstream._util.clock import SYSTEM_CLOCK

OWN_THREADS = "rocketstream"
_DESCRIPTORS = Path("/proc/self/fd")
_LOOK_AGAIN_S = 0.01


class LeakCheck:
    """Remembers the threads and sockets of now; ``leaks`` lists those that came and stayed.

    A thread counts when it is not a daemon or when its name starts with ``rocketstream``. Sockets
    are seen where the system shows them (Linux). Garbage is collected before a socket counts.
    """

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._sockets = _sockets()

    def leaks(self, wait_ms: float = 2000) -> list[str]:
        """Return a line for each leak; what is just ending gets ``wait_ms`` in all to do so."""
        deadline = SYSTEM_CLOCK.monotonic_ms() + wait_ms
        lines = [f"thread {thread.name!r}" for thread in self._left_threads(deadline)]
        return lines + [f"open socket {name}" for name in self._left_sockets(deadline)]

    def _left_threads(self, deadline: float) -> list[threading.Thread]:
        fresh = [each for each in threading.enumerate() if _counts(each)]
        fresh = [each for each in fresh if each not in self._threads]
        for thread in fresh:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic_ms()) / 1000)
        return [each for each in fresh if each.is_alive()]

    def _left_sockets(self, deadline: float) -> Iterable[str]:
        left = _sockets() - self._sockets
        if left:
            gc.collect()
            left = _sockets() - self._sockets
        pause = threading.Event()
        while left and SYSTEM_CLOCK.monotonic_ms() < deadline:
            pause.wait(_LOOK_AGAIN_S)  # the other end of a closed connection may be a thread away
            left = _sockets() - self._sockets
        return sorted(left)


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith(OWN_THREADS)


def _sockets() -> frozenset[str]:
    """Names like ``socket:[4711]`` of the open network sockets; empty where not shown."""
    try:
        names = os.listdir(_DESCRIPTORS)
    except OSError:
        return frozenset()
    links = (_target(name) for name in names)
    return frozenset(link for link in links if link.startswith("socket:"))


def _target(name: str) -> str:
    try:
        return os.readlink(_DESCRIPTORS / name)
    except OSError:
        return ""  # closed between the two looks

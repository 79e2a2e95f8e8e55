"""Threads and sockets that outlive the code that made them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from rocketstream._util.clock import SYSTEM_CLOCK

OWN_THREADS = "rocketstream"
_DESCRIPTORS = "/proc/self/fd"
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LOOK_AGAIN_S = 0.01


class LeakCheck:
    """Remembers the threads and sockets that exist now; ``leaks`` lists those added since.

    A thread counts when it is not a daemon or when its name starts with ``rocketstream``. Sockets
    are seen where the system shows them (Linux). A socket counts only if it survives a garbage
    collection.

    Args:
        others: returns the ports of other code in this process that opens connections at any time,
            as Spark's gateway does; sockets with one of these ports at either end do not count.
    """

    def __init__(self, others: Callable[[], Collection[int]] = tuple) -> None:
        self._others = others
        self._threads = set(threading.enumerate())
        self._sockets = _sockets()

    def leaks(self, wait_ms: float = 2000) -> list[str]:
        """Return a line for each leak; threads about to end get ``wait_ms``, then sockets do."""
        lines = [f"thread {thread.name!r}" for thread in self._left_threads(wait_ms)]
        return lines + [f"open socket {name}" for name in self._left_sockets(wait_ms)]

    def _left_threads(self, wait_ms: float) -> list[threading.Thread]:
        deadline = SYSTEM_CLOCK.monotonic_ms() + wait_ms
        fresh = [each for each in threading.enumerate() if _counts(each)]
        fresh = [each for each in fresh if each not in self._threads]
        for thread in fresh:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic_ms()) / 1000)
        return [each for each in fresh if each.is_alive()]

    def _left_sockets(self, wait_ms: float) -> list[str]:
        if not _sockets() - self._sockets:
            return []  # the usual case
        gc.collect()
        # From here on: while rubbish is collected, for seconds in a large process, no other thread
        # runs that may be about to close its end.
        deadline = SYSTEM_CLOCK.monotonic_ms() + wait_ms
        pause = threading.Event()
        while left := self._counted(_sockets() - self._sockets):
            if SYSTEM_CLOCK.monotonic_ms() >= deadline:
                break
            pause.wait(_LOOK_AGAIN_S)
        return left

    def _counted(self, sockets: Collection[str]) -> list[str]:
        """Return the sockets that count as leaks, each with its two ends."""
        if not sockets:
            return []  # a system's table may have thousands of lines
        ends = _ends()
        others = set(self._others())
        sockets = _sockets() & frozenset(sockets)  # the others were closed while that was read
        return [
            f"{name} {ends[name].text}" if name in ends else name
            for name in sorted(sockets)
            if name not in ends or not others & {ends[name].local, ends[name].remote}
        ]


class _Ends(NamedTuple):
    """The ports of a socket, and both ends as text."""

    local: int
    remote: int
    text: str


def _ends() -> dict[str, _Ends]:
    """Return the ends of this machine's TCP sockets by name, as far as the system shows them."""
    found: dict[str, _Ends] = {}
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            local, remote = (int(end.rpartition(":")[2], 16) for end in words[1:3])
            found[f"socket:[{words[9]}]"] = _Ends(local, remote, f"port {local} to {remote}")
    return found


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith(OWN_THREADS)


def _sockets() -> frozenset[str]:
    """Return names like ``socket:[4711]`` of the open network sockets; empty where not shown."""
    try:
        names = os.listdir(_DESCRIPTORS)
    except OSError:
        return frozenset()
    links = (_target(name) for name in names)
    return frozenset(link for link in links if link.startswith("socket:"))


def _target(name: str) -> str:
    try:
        return os.readlink(f"{_DESCRIPTORS}/{name}")
    except OSError:
        return ""  # closed between listing and reading it

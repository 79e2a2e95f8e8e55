"""Waits that Ctrl-C ends at once, on every system; no signal handler waits for itself."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from rocketstream.errors import ClientStateError

_SLICE_S: Final = 0.1 if sys.platform == "win32" else 1.0
"""On Windows a waiting thread sees Ctrl-C only when its wait is over. Elsewhere a signal ends the
wait, but not one that comes in the moment between Python's last look for signals and the system's
call, nor one the system gives to another thread: its handler runs after this.
"""


def wait_until(
    condition: threading.Condition, done: Callable[[], bool], timeout_ms: float | None
) -> bool:
    """Wait, with the condition held, until it is notified and ``done``; return whether it is.

    Args:
        condition: is notified when ``done`` may have changed.
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


class Locks:
    """Locks that a loop's thread takes, and so do the threads of users.

    A signal handler runs between two steps of the main thread, which may hold one of them. The
    handler may take it again; but if it waited for the loop, which waits for the lock, the wait
    would never end. So a thread that is about to wait asks first.
    """

    def __init__(self) -> None:
        self._made: _Known = {}
        self._of_many: _Known = {}

    def make(self) -> Any:
        """Return a new lock; its thread may take it again."""
        lock = threading.RLock()
        self.add(lock)
        return lock

    def make_one_of_many(self) -> Any:
        """Return a new lock of which a thread may hold several at once, as of futures."""
        lock = threading.RLock()
        _know(self._of_many, lock)
        return lock

    def add(self, lock: Any) -> None:
        """Count a lock that was made elsewhere among them."""
        _know(self._made, lock)

    @property
    def are_mine(self) -> bool:
        """Whether the caller, as a signal handler, interrupts the holder of one of the locks."""
        return _is_mine(self._made) or _is_mine(self._of_many)

    def check(self, *, of_many: bool = True) -> None:
        """Refuse a wait that would never end; too slow to be called for every message.

        Args:
            of_many: whether locks count too of which a thread may hold several.

        Raises:
            ClientStateError: the caller interrupts the holder of one of the locks.
        """
        if self.are_mine if of_many else _is_mine(self._made):
            raise interrupting()


_Known = dict[int, weakref.ref[Any]]


def _know(locks: _Known, lock: Any) -> None:
    key = id(lock)
    locks[key] = weakref.ref(lock, lambda _: locks.pop(key, None))


def _is_mine(locks: _Known) -> bool:
    if threading.get_ident() != threading.main_thread().ident:
        return False
    known = [each() for each in list(locks.values())]
    return any(lock is not None and lock._is_owned() for lock in known)


def interrupting() -> ClientStateError:
    """Return the error of a call that a signal handler made in the middle of another."""
    return ClientStateError(
        "a signal handler made this call in the middle of another call of the client, at a point "
        "where it would wait for ever; have the handler set a flag, and call where that is seen"
    )


def interrupts(function: Callable[..., object], owner: object) -> bool:
    """Whether the caller runs inside a method of ``owner``, which a signal handler interrupted."""
    frame, code = sys._getframe(1), function.__code__
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


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
        """Let all waiting threads go on; call it once."""
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
                self._lock.release()  # on to the next waiting thread
        return True

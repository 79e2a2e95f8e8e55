"""The lock of a client's start and shutdown, on the sync face.

Law: a signal handler runs on the thread it interrupts, and may shut down what that thread starts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class LifeLock:
    """Held while a client is started or shut down.

    Attributes:
        lock: to be held while the client's state is looked at and changed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._starter: int | None = None
        self._is_unwanted = False

    @contextlib.contextmanager
    def starting(self, end: Callable[[], object]) -> Iterator[None]:
        """Keep other threads from starting or shutting down the client meanwhile.

        Args:
            end: called as soon as the start is over, if it was put off until then.
        """
        with self.lock:
            before, self._starter = self._starter, threading.get_ident()
            try:
                yield
            finally:
                self._starter = before
                is_unwanted, self._is_unwanted = self._is_unwanted, False
        if is_unwanted:
            end()

    def puts_off_end(self) -> bool:
        """Put the end off if the caller interrupts the start; return whether it does.

        It would wait for its own thread, for ever.
        """
        if self._starter != threading.get_ident():
            return False
        self._is_unwanted = True
        return True

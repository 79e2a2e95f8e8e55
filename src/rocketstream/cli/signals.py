"""Waiting for Ctrl-C or SIGTERM: a command that serves ends cleanly, with code 0.

Law: signals in, an event out; it knows nothing of what is ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM)
_LOOK_S = 3_600.0


@contextmanager
def until_signal() -> Iterator[Callable[[], None]]:
    """Take both signals while the context lasts; what it yields blocks until one comes."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in _ENDING}

    def wait() -> None:
        # A wait without a bound cannot be interrupted everywhere.
        while not ended.wait(_LOOK_S):
            continue

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

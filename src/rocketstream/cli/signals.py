"""Waiting for Ctrl-C or SIGTERM: a command that serves ends cleanly, with code 0.

Law: signals in, an event out; it knows nothing of what is ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rocketstream.cli import interrupts

_ENDING = (signal.SIGINT, signal.SIGTERM)
_LOOK_S = 1.0
"""A signal that comes just before the wait begins does not end it: see ``_util.waiting``."""


@contextmanager
def until_signal() -> Iterator[Callable[[], None]]:
    """Take both signals while the context lasts; what it yields blocks until one comes.

    A second Ctrl-C ends the process at once.
    """
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            interrupts.is_ending()
        ended.set()

    before = {number: signal.signal(number, end) for number in _ENDING}

    def wait() -> None:
        while not ended.wait(_LOOK_S):
            continue

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

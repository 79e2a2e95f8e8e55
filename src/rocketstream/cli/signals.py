"""Ctrl-C or SIGTERM as a call or the end of a wait, where an exception would hit other work."""

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
    """Take both signals while the context lasts; the yielded function blocks until one comes.

    A second Ctrl-C ends the process at once.
    """
    ended = threading.Event()

    def wait() -> None:
        while not ended.wait(_LOOK_S):
            continue

    with on_signal(lambda number: ended.set()):
        yield wait


@contextmanager
def on_signal(act: Callable[[int], None]) -> Iterator[None]:
    """Let both signals call ``act`` while the context lasts, where they would raise.

    After the first Ctrl-C the next one ends the process at once, also when the context is over.

    Args:
        act: called in the main thread with the signal's number, amid other work of that thread.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            interrupts.begin_shutdown()
        act(number)

    before = {number: signal.signal(number, handle) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)

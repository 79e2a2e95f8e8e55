"""The end of a long command by Ctrl-C or SIGTERM: first after the step under way, then at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from rocketstream.cli import interrupts
from rocketstream.cli.failure import say

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """A user's request to stop; Spark takes the time it needs.

    Attributes:
        asked: set by the first signal.
        number: which signal that was.
    """

    def __init__(self) -> None:
        interrupts.no_deadline()
        self.asked = threading.Event()
        self.number: int = signal.SIGINT

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listen to signals as long as the block runs; in the main thread.

        The first one sets ``asked``, for an exception in the middle of a call into Spark would
        leave its connection half read; the second one raises ``AtOnceError`` wherever the program
        is.
        """
        from rocketstream.pipelines.local_session import AtOnceError, expect_no_answers

        def ask(number: int, frame: FrameType | None) -> None:
            if self.asked.is_set():
                expect_no_answers()
                raise AtOnceError(number)
            self.number = number
            self.asked.set()
            say("stopping after the micro-batch under way; a second signal stops at once")

        before = {number: signal.signal(number, ask) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

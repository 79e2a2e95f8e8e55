"""What ends the demo early, and how Ctrl-C is noticed.

Law: no work here.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class DemoError(Exception):
    """The demo cannot go on; the text is one line saying what to do."""


class Interrupts:
    """Ctrl-C and its like as a flag: the work looks at it between two steps.

    An exception out of nowhere would leave Spark's connection half read and clean-up half done.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.signal_number = signal.SIGINT

    def install(self) -> None:
        """Take the signals over."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None:
                signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = signal.Signals(number)
        self.stop.set()

    def check(self) -> None:
        """Raise KeyboardInterrupt when a signal has come."""
        if self.stop.is_set():
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> None:
        """Wait, at most until a signal comes, and then raise."""
        self.stop.wait(seconds)
        self.check()

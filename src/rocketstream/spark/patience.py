"""The bound on how long a failure that may pass is waited for, and the loop that asks again.

Callers know which step is tried again, and which failures may pass.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from rocketstream._util.clock import Clock
from rocketstream.errors import RocketMQError

logger: logging.Logger = logging.getLogger("rocketstream.spark")

T = TypeVar("T")


class Patience:
    """Bounds how long a failure that may pass is waited for.

    A process that stood still was not patient meanwhile: however long, from one failure to the next
    half of the bound passes at most.

    Args:
        timeout_ms: from the first failure after a success.
        clock: measures the time.
    """

    def __init__(self, timeout_ms: float, clock: Clock) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._failed_ms: float | None = None
        self._waited_ms = 0.0
        self._pause_ms = 0.0
        self._never = threading.Event()

    def succeeded(self) -> None:
        """Count from zero at the next failure."""
        self._failed_ms = None
        self._waited_ms = self._pause_ms = 0.0

    def exhausted(self) -> bool:
        """Note a failure; return True when there were only failures for ``timeout_ms``."""
        now = self._clock.monotonic_ms()
        if self._failed_ms is not None:
            self._waited_ms += min(now - self._failed_ms, self._timeout_ms / 2)
        self._failed_ms = now
        return self._waited_ms >= self._timeout_ms

    def pause(self) -> None:
        """Wait a little, longer each time: 50 ms to 1 s."""
        self._pause_ms = min(1_000.0, self._pause_ms * 2 or 50.0)
        self._never.wait(self._pause_ms / 1000)


def patiently(
    ask: Callable[[], T],
    patience: Patience,
    may_pass: Callable[[RocketMQError], bool],
    said: str = "no answer from the cluster, asking again",
) -> T:
    """Ask, and ask again after failures that may pass, as long as patience lasts; blocks.

    Args:
        ask: asked again as a whole.
        patience: bounds how long.
        may_pass: whether a failure is worth another question.
        said: what the log says of a failure that is.

    Raises:
        RocketMQError: the failure that cannot pass, or the last one.
    """
    while True:
        try:
            return ask()
        except RocketMQError as error:
            if not may_pass(error) or patience.exhausted():
                raise
            logger.warning("%s: %s", said, error)
            patience.pause()

"""Waiting for what another process will do: one deadline, one reason when it passes.

Law: nothing else waits by the clock. The wait between two looks is an event nobody sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_NEVER = threading.Event()


def wait_until(
    look: Callable[[], T | None],
    what: str,
    timeout_s: float = 30.0,
    interval_s: float = 0.05,
    *,
    fits: Callable[[T], object] = bool,
) -> T:
    """Call ``look`` until it returns something that ``fits``, by default what is true.

    Raises:
        TimeoutError: the deadline passed; the text names what was waited for and the last answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = look()
        if answer is not None and fits(answer):
            return answer
        if time.monotonic() >= deadline:
            raise TimeoutError(f"no {what} within {timeout_s} s; last seen: {answer!r}")
        _NEVER.wait(interval_s)


def wait_until_equal(look: Callable[[], T], wanted: T, what: str, timeout_s: float = 30.0) -> None:
    """Call ``look`` until it returns what is wanted.

    Raises:
        TimeoutError: the deadline passed; the text has what was wanted and what came last.
    """
    seen: list[T] = []

    def is_there() -> bool:
        seen[:] = [look()]
        return seen[0] == wanted

    try:
        wait_until(is_there, what, timeout_s)
    except TimeoutError:
        raise TimeoutError(f"{what}: {seen[0]!r} after {timeout_s} s, not {wanted!r}") from None

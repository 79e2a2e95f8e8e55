"""Ctrl-C in each of the places where it can come, one after the other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Make a call with Ctrl-C in one of its steps; return False where it has no more of them.

    Python looks for signals as a function begins, and after each call of one written in C.
    """
    left = step

    def look(_: FrameType, event: str, __: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and left >= 0:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    gc.disable()  # what it deletes of other tests has steps of its own
    try:
        sys.setprofile(look)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False

"""The terminal as it was before a full screen, also for a process that is killed or ends at once.

The screen itself gives the terminal back where it ends in order.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rocketstream.cli import interrupts

try:
    import termios
except ImportError:  # Windows: a console's modes end with the process
    termios = None  # type: ignore[assignment]

_SCREEN_OFF = (
    "\x1b[?2004l\x1b[?7h\x1b[?2048l"  # pasted text marked, lines not wrapped, sizes reported
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l"  # mouse and focus reported
    "\x1b[<u\x1b[?1049l\x1b[?25h"  # keys in full, the other screen, no cursor
)
"""Ends every mode that Textual's drivers switch on."""


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Give the terminal back when the context ends by an error, the process by a second Ctrl-C."""
    if termios is None:
        yield
        return
    place = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
    out = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    before = termios.tcgetattr(place)

    def give_back() -> None:
        with contextlib.suppress(OSError, termios.error):
            os.write(out, _SCREEN_OFF.encode())
            termios.tcsetattr(place, termios.TCSANOW, before)

    interrupts.on_forced_exit(give_back)
    try:
        yield
    except BaseException:  # an interrupt within the screen's own work leaves it as it is
        give_back()
        raise
    finally:
        interrupts.on_forced_exit(None)

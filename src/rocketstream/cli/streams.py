"""Standard input, output and error of a command that was started without one of them.

Law: makes streams usable; what is written or read is others' business.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Closed(io.FileIO):
    """Output that was closed when the command began: whoever writes to it is told so."""

    is_told = False

    def write(self, data: Any) -> int:
        if not _Closed.is_told:
            raise OSError(errno.EBADF, "the output is closed: there is no stdout")
        return super().write(data)


def open_missing() -> None:
    """Give the process the standard streams it was started without (``>&-``).

    Their numbers would go to the next files that are opened, and what is printed into a store.
    Nothing is read from a closed input; what is written to a closed output fails, as with other
    programs; errors that nobody can see are dropped.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDWR, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = _text(io.BufferedReader(io.FileIO(0, closefd=False)))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = _text(io.BufferedWriter(_Closed(1, "w", closefd=False)))
    if sys.stderr is None:
        sys.stderr = _text(io.BufferedWriter(io.FileIO(2, "w", closefd=False)))


def _text(stream: io.BufferedReader | io.BufferedWriter) -> io.TextIOWrapper:
    return io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace")


def give_up_unwritten() -> None:
    """Drop what cannot be written to stdout; that was told, and Python would tell it again.

    What is shown of a failure is said where it happens; at its end the interpreter tries again,
    complains in its own words and changes the exit code.
    """
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (OSError, ValueError):
        _Closed.is_told = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

"""Standard input, output and error of a command that was started without one of them."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Closed(io.FileIO):
    """Output that was closed when the command began: a write to it fails with that reason."""

    is_told = False

    def write(self, data: Any) -> int:
        if not _Closed.is_told:
            raise OSError(errno.EBADF, "the output is closed: there is no stdout")
        return super().write(data)


def open_missing() -> None:
    """Give the process the standard streams it was started without (``>&-``).

    Their numbers would go to the next files that are opened, and printed text into a store. A
    closed input is empty; a write to a closed output fails, as with other programs; text for a
    closed stderr is dropped.
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
    """Drop output that cannot be written to stdout.

    The failure was reported where it happened; at its end the interpreter would try again, complain
    in its own words and change the exit code.
    """
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (OSError, ValueError):
        _Closed.is_told = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

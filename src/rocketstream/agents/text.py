"""Text that others wrote, in the form agents get it: bounded, without invisible characters.

Pure: text in, text out.
"""

from __future__ import annotations

import datetime
from typing import Final

from rocketstream._util.unseen import spelled_out
from rocketstream._util.when import TIMES, moment_ms
from rocketstream.errors import ConfigurationError

TEXT_CHARS_MAX: Final = 2_000
"""Most characters of one text; a tool may cut earlier."""
NAME_CHARS_MAX: Final = 255


def seen(text: str, most: int = TEXT_CHARS_MAX) -> str:
    r"""Return a text with invisible characters spelled out (``\u202e``), cut after ``most``.

    Models read direction marks, tags of Unicode's plane 14 and the like, but people do not see
    them: instructions can hide there.
    """
    return spelled_out(text[:most], kept="\n\t")


def at(timestamp_ms: int | None) -> str | None:
    """Return a time in UTC, ``2026-05-01T12:00:00.000Z``; None for None and for an invalid time."""
    if timestamp_ms is None:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(duration_ms: float | None) -> float | None:
    """Return a duration in seconds; None for None."""
    return None if duration_ms is None else round(duration_ms / 1000, 3)


def moment_of(what: str, text: str | None, now_ms: int) -> int | None:
    """Return the time an agent gave for ``what``, ms since 1970; None where it gave none.

    Raises:
        ConfigurationError: the text cannot be read as a time, or names no zone.
    """
    if text is None:
        return None
    try:
        return moment_ms(text, now_ms, needs_zone=True)
    except ValueError as error:
        raise ConfigurationError(f"{what} is {text!r}; accepted are {TIMES}: {error}") from None

"""Figures as an operator reads them in a sentence.

Pure: one way to write a count, a span, a rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

UNKNOWN: Final = "unknown"
"""Shown in place of an unknown figure."""

NAMED_MAX = 3
"""How many of a list of names a sentence names at most."""


def number(value: int | None) -> str:
    """Return a count as ``12,345``, or ``unknown``."""
    return UNKNOWN if value is None else f"{value:,}"


def plural(number: int, word: str, words: str | None = None) -> str:
    """Return ``1 message``, ``12,345 messages``; ``words`` is an irregular plural."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def waits(number: int) -> str:
    """Return ``1 message waits``, ``12,345 messages wait``."""
    return f"{plural(number, 'message')} {'waits' if number == 1 else 'wait'}"


def span(milliseconds: float) -> str:
    """Return a time as ``0.8 s``, ``12 s``, ``4 min 05 s``, ``3 h 10 min``, ``2 d 4 h``."""
    seconds = max(milliseconds, 0) / 1_000
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    return two_units(whole, zero=False) if whole >= 60 else f"{whole} s"


def two_units(seconds: int, *, zero: bool = True) -> str:
    """Return a minute or more in its leading units: ``4 min 05 s``, ``3 h 10 min``, ``2 d 4 h``.

    Args:
        seconds: from 60.
        zero: whether a second unit of zero is shown: ``4 min 00 s`` instead of ``4 min``.
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        first, rest, more = f"{days} d", hour, f"{hour} h"
    elif hours:
        first, rest, more = f"{hours} h", minute, f"{minute:02d} min"
    else:
        first, rest, more = f"{minutes} min", second, f"{second:02d} s"
    return f"{first} {more}" if rest or zero else first


def rate(per_second: float) -> str:
    """Return ``1,234/s``, ``1.5/s``; less than one a second as ``12/min``, then as ``3/h``."""
    if per_second >= 9.95:
        return f"{per_second:,.0f}/s"
    for times, unit in ((1, "s"), (60, "min")):
        if per_second * times >= 1 or per_second <= 0:
            return f"{max(per_second * times, 0):.1f}/{unit}".replace(".0/", "/")
    return f"{per_second * 3600:.1f}/h".replace(".0/", "/")


def some(names: Iterable[str], most: int = NAMED_MAX) -> str:
    """Return ``a, b, c and 4 more``, with at most ``most`` names."""
    found = list(names)
    shown = ", ".join(found[:most])
    more = len(found) - most
    return f"{shown} and {more:,} more" if more > 0 else shown

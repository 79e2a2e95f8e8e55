"""Counts, rates, spans, sizes and moments as an operator reads them: one way for every face.

Pure: values in, text out.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from shlex import quote
from typing import Final

from rocketstream._util.unseen import spelled_out
from rocketstream.protocol.properties import split_keys

UNKNOWN: Final = "unknown"
"""Shown in place of an unknown figure."""
NONE: Final = "-"
"""Shown where there is no figure to know."""

PLAIN: Final = re.compile(r"[A-Za-z0-9_.:@#%/+=-]{1,100}")
"""A name that no sentence, command or reader takes for anything else."""

NAMED_MAX = 3
"""How many of a list of names a sentence names at most."""


def number(value: int | None, none: str = UNKNOWN) -> str:
    """Return a count as ``12,345``, or the mark for none."""
    return none if value is None else f"{value:,}"


def plural(number: int, word: str, words: str | None = None) -> str:
    """Return ``1 message``, ``12,345 messages``; ``words`` is an irregular plural."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def waits(number: int) -> str:
    """Return ``1 message waits``, ``12,345 messages wait``."""
    return f"{plural(number, 'message')} {'waits' if number == 1 else 'wait'}"


def span(milliseconds: float | None) -> str:
    """Return ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``3 h 10 min``, ``2 d 4 h``, or ``unknown``.

    ``_util.when.span_ms`` reads each of them back. Nothing but zero is ``0 s``.
    """
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 999.5:
        return (
            f"{max(milliseconds, 0.1):.{int(milliseconds < 1)}f} ms" if milliseconds > 0 else "0 s"
        )
    if milliseconds < 59_950:
        return f"{milliseconds / 1_000:.1f} s".replace(".0 s", " s")
    minutes, second = divmod(round(milliseconds / 1_000), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h" if hour else f"{days} d"
    if hours:
        return f"{hours} h {minute:02d} min" if minute else f"{hours} h"
    return f"{minutes} min {second:02d} s" if second else f"{minutes} min"


def rate(per_second: float) -> str:
    """Return ``1,234/s``, ``1.5/s``; less than one a second as ``12/min``, then as ``3/h``."""
    if per_second >= 9.95:
        return f"{per_second:,.0f}/s"
    for times, unit in ((1, "s"), (60, "min")):
        if per_second * times >= 1 or per_second <= 0:
            return f"{max(per_second * times, 0):.1f}/{unit}".replace(".0/", "/")
    return f"{per_second * 3600:.1f}/h".replace(".0/", "/")


def per_second(value: float | None) -> str:
    """Return a rate for a column whose title says ``/s``: ``0``, ``0.04``, ``3.2``, ``1,250``."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 9.95:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.1f}".replace(".0", "")


def percent(share: float | None) -> str:
    """Return a share of one as ``85%``, or ``unknown``."""
    return UNKNOWN if share is None else f"{share:.0%}"


def size(count: int | None) -> str:
    """Return bytes like ``512 B``, ``1.5 KiB``, ``20.3 GiB``, or ``unknown``."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1_024:
            break
        value, unit = value / 1_024, larger
    return f"{count} B" if unit == "B" else f"{value:,.1f} {unit}"


def moment(timestamp_ms: int | None, none: str = NONE, *, exact: bool = False) -> str:
    """Return a time in this machine's zone to the second, or the mark for none.

    Args:
        timestamp_ms: milliseconds since 1970; one that no calendar has is returned as it is.
        none: shown where there is none.
        exact: with milliseconds and the zone.
    """
    if timestamp_ms is None:
        return none
    try:
        then = datetime.datetime.fromtimestamp(timestamp_ms / 1_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms since 1970"
    return f"{then:%Y-%m-%d %H:%M:%S}" + (f".{timestamp_ms % 1_000:03d}{then:%z}" if exact else "")


def ago(timestamp_ms: int, now_ms: int) -> str:
    """Return a moment as its distance from now: ``just now``, ``12 s ago``, ``in 3 min``."""
    distance = now_ms - timestamp_ms
    if abs(distance) < 1_000:
        return "just now"
    return f"{span(distance)} ago" if distance > 0 else f"in {span(-distance)}"


def some(names: Iterable[str], most: int = NAMED_MAX) -> str:
    """Return ``a, b, c and 4 more``, with at most ``most`` names."""
    found = list(names)
    shown = ", ".join(found[:most])
    more = len(found) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def named(name: str | None, otherwise: str = "") -> str:
    """Return an id, key or name that a sender or a client chose, as sentences and commands may hold
    it; ``otherwise`` in place of one that might say more than a name does.
    """
    return name if name is not None and PLAIN.fullmatch(name) else otherwise


def word(name: str) -> str:
    """Return a name as one word of a shell's line: ``|`` is legal in names of topics and groups."""
    return quote(spelled_out(name))


def with_key(keys: str | None) -> str:
    """Return `` (key order-7)`` for a sentence; nothing for a key that is more than a name."""
    first, *more = split_keys(keys or "") or [""]
    return f" (key {first}{f' and {len(more)} more' if more else ''})" if named(first) else ""

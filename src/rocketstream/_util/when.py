"""Times and spans as people write them, read in one way for every face.

Pure: text in, milliseconds out; whoever has a clock says what time it is now.
"""

from __future__ import annotations

import datetime
import re
from typing import Final

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_WORDS: Final = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d",
                 "week": "w"}  # fmt: skip
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*([a-z]+)", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
EPOCH_MS: Final = range(10**12, 4_102_444_800_000)
"""Moments that are taken as milliseconds since 1970: September 2001, long before any broker's first
message, to 2100. A number below is seconds or a date such as 202405011200, one above microseconds.
"""
_UPSTREAM: Final = re.compile(r"[0-9]{14}", re.ASCII)

SPANS: Final = "500ms, 90s, 5m, 2h 30m, 1d"
"""Examples of spans, for a refusal."""
TIMES: Final = (
    "2024-05-01T12:00:00Z, milliseconds since 1970 (13 digits), or 15m ago as -15m (s, m, h, d, w)"
)
"""Examples of times, for a refusal."""


def span_ms(text: str) -> int | None:
    """Return a span such as ``90s``, ``5 min``, ``12.3 s`` or ``2 weeks`` in ms; None for others.

    Tables and sentences print no other (``admin.core.words.span``).
    """
    word = text.strip().lower()
    if not word or _PART.sub("", word).strip():
        return None
    found = 0.0
    for count, unit in _PART.findall(word):
        unit_ms = _UNITS_MS.get(_WORDS.get(unit.removesuffix("s"), unit))
        if unit_ms is None:
            return None
        found += float(count) * unit_ms
    return round(found)


def moment_ms(text: str, now_ms: int | None = None, *, needs_zone: bool = False) -> int:
    """Return the moment a text names, ms since 1970.

    Read are ISO 8601, ``EPOCH_MS`` as milliseconds since 1970, 14 digits as upstream's
    ``yyyyMMddHHmmss``, and a span as so long ago, ``15m`` or ``-15m``.

    Args:
        text: as somebody wrote it.
        now_ms: what spans count back from; None refuses them.
        needs_zone: whether a time without a zone is refused; else it is in this machine's.

    Raises:
        ValueError: the text cannot be read; the text of the error says why.
    """
    word = text.strip()
    if now_ms is not None and (ago_ms := span_ms(word.removeprefix("-"))) is not None:
        return now_ms - ago_ms
    if _DIGITS.fullmatch(word) and int(word) in EPOCH_MS:
        return int(word)
    try:
        if _UPSTREAM.fullmatch(word):
            moment = datetime.datetime.strptime(word, "%Y%m%d%H%M%S")
        else:
            moment = datetime.datetime.fromisoformat(word)
        if needs_zone and moment.tzinfo is None:
            raise ValueError("it names no zone: write Z or an offset such as +02:00 behind it")
        return round(moment.timestamp() * 1_000)
    except (OverflowError, OSError) as error:
        raise ValueError(f"it is out of range: {error}") from None

"""Figures as a narrow table shows them.

Pure: values in, short texts out, none of them cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketstream.admin.core.words import UNKNOWN
from rocketstream.cli.top.fit import Rank

NONE: Final = "-"
_BARS: Final = "▁▂▃▄▅▆▇█"


def rate(value: float | None) -> str:
    """Return messages a second: ``0``, ``0.4``, ``3,400``; ``-`` as long as none is known."""
    if value is None:
        return NONE
    return f"{value:.1f}" if 0 < abs(value) < 9.95 else f"{value:,.0f}"


def span(milliseconds: int | None) -> str:
    """Return a span in two units at most: ``850ms``, ``12.3s``, ``4m05s``, ``3h10m``, ``2d04h``."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds <= 0:
        return "0"
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1_000:.1f}s"
    minutes, seconds = divmod(round(milliseconds / 1_000), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def rank(value: float | None) -> Rank:
    """Return the sort key of a figure; an unknown one comes last either way."""
    return (1, 0.0, "") if value is None else (0, float(value), "")


def rank_text(text: str) -> Rank:
    """Return the sort key of a name."""
    return (0, 0.0, text)


def bars(values: Sequence[int | None], room: int) -> str:
    """Return a line of bars, the newest values that fit; a blank where one is not known."""
    shown = list(values[-room:]) if room > 0 else []
    most = max((value for value in shown if value is not None), default=0)
    return "".join(
        " "
        if value is None
        else _BARS[0 if most <= 0 else min(max(value, 0) * len(_BARS) // (most + 1), 7)]
        for value in shown
    )

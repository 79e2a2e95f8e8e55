"""Values as pages show them: counts, rates, spans, moments, and text that cannot deceive.

Pure: values in, text out. An unknown value is shown as unknown.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from typing import Any, Final

from rocketstream._util.unseen import spelled_out
from rocketstream.admin.core.words import UNKNOWN, two_units
from rocketstream.admin.state import QueueState, Verdict

NONE: Final = "–"


def visible(text: str) -> str:
    """Return a text in which characters that hide or reorder others are spelled out: ``\u202e``."""
    return spelled_out(text, kept="\n\t")


def rate(value: float | None) -> str:
    """Return a rate with about three digits: ``0``, ``0.04``, ``3.2``, ``1,250``."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def span(milliseconds: float | None) -> str:
    """Return a span as its two leading units: ``850 ms``, ``12 s``, ``4 min 05 s``, ``2 d 4 h``."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 0.5 else "0"
    seconds = int(milliseconds / 1_000)
    if seconds < 60:
        return f"{seconds} s"
    return two_units(seconds)


def ago(timestamp_ms: int, now_ms: int) -> str:
    """Return a moment as its distance from now: ``just now``, ``12 s ago``, ``in 3 min 00 s``."""
    distance = now_ms - timestamp_ms
    if abs(distance) < 1_000:
        return "just now"
    return f"{span(distance)} ago" if distance > 0 else f"in {span(-distance)}"


def moment(timestamp_ms: int) -> str:
    """Return a moment to the millisecond in this machine's zone, which is named."""
    try:
        then = datetime.datetime.fromtimestamp(timestamp_ms / 1_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms since 1970"
    return f"{then:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1_000:03d}{then:%z}"


def size(value: int | None) -> str:
    """Return a size in bytes, KiB or MiB."""
    if value is None:
        return UNKNOWN
    if value < 1_024:
        return f"{value} B"
    if value < 1_024 * 1_024:
        return f"{value / 1_024:.1f} KiB"
    return f"{value / (1_024 * 1_024):.1f} MiB"


def slug(verdict: Verdict) -> str:
    """Return the CSS class of a verdict."""
    return verdict.value.lower().replace(" ", "-")


def by_topic(queues: Iterable[QueueState]) -> list[tuple[str, str]]:
    """Return topics with their queue ids as ranges: ``0–3, 7``."""
    ids: dict[str, list[int]] = {}
    for queue in queues:
        ids.setdefault(queue.topic, []).append(queue.queue_id)
    return [(topic, ranges(found)) for topic, found in sorted(ids.items())]


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined: ``0–3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def clipped(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text; a mark shows that some are left out."""
    return text if len(text) <= most else text[:most] + "…"


def as_json(value: Any) -> str:
    """Return JSON indented for reading."""
    return json.dumps(value, indent=2, ensure_ascii=False)

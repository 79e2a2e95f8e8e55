"""Spans of time as they are given on the command line."""

from __future__ import annotations

import re

from rocketstream.cli.declare import BadParameter

_SPAN = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_span(text: str) -> int:
    """Return a span like ``90s``, ``5m``, ``2h30m``, ``1d`` in ms."""
    if text.strip() and not _SPAN.sub("", text).strip():
        return sum(int(count) * _UNITS_MS[unit] for count, unit in _SPAN.findall(text))
    raise BadParameter(f"{text!r} is not a span of time; give one like 500ms, 90s, 5m, 2h, 1d")

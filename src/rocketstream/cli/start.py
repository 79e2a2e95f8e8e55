"""Times and spans as they are given on the command line.

No clock is read here.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from rocketstream._util.when import SPANS, moment_ms, span_ms
from rocketstream.cli.declare import BadParameter
from rocketstream.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class StartPosition:
    """``earliest``, ``latest``, or a moment (then ``timestamp_ms`` is set)."""

    name: str
    timestamp_ms: int | None = None


def parse_start(text: str, option: str = "--from") -> StartPosition:
    """Return the start position a ``--from`` value stands for.

    Accepted: ``earliest``, ``latest``, milliseconds since 1970 (13 digits), upstream's
    ``yyyyMMddHHmmss`` in local time, and ISO 8601 (local time when it names no zone).

    Raises:
        ConfigurationError: anything else; the text names ``option``.
    """
    word = text.strip()
    if word in ("earliest", "latest"):
        return StartPosition(word)
    try:
        return StartPosition("timestamp", moment_ms(word))
    except ValueError:
        raise ConfigurationError(
            f"{option} is {text!r}; accepted are earliest, latest, a time like "
            "2024-05-01T12:00:00 or 2024-05-01T12:00:00Z, or milliseconds since 1970",
            value=text,
        ) from None


def upstream_timestamp(timestamp_ms: int) -> str:
    """Return the moment as ``yyyyMMddHHmmss`` in local time, the form consumers take (C-33)."""
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000).strftime("%Y%m%d%H%M%S")


def parse_span(text: str) -> int:
    """Return a span like ``90s``, ``5m``, ``2h30m``, ``1d`` in ms."""
    found = span_ms(text)
    if found is None:
        raise BadParameter(f"{text!r} is not a span of time; give one like {SPANS}")
    return found

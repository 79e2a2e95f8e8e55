"""The place where reading begins, as given by ``--from``.

Law: no clock.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from rocketstream.errors import ConfigurationError

_EPOCH_MS = re.compile(r"\d{12,13}")
_UPSTREAM = re.compile(r"\d{14}")


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
    if _EPOCH_MS.fullmatch(word):
        return StartPosition("timestamp", int(word))
    try:
        if _UPSTREAM.fullmatch(word):
            moment = datetime.datetime.strptime(word, "%Y%m%d%H%M%S")
        else:
            moment = datetime.datetime.fromisoformat(word)
        return StartPosition("timestamp", int(moment.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} is {text!r}; accepted are earliest, latest, a time like "
            "2024-05-01T12:00:00 or 2024-05-01T12:00:00Z, or milliseconds since 1970",
            value=text,
        ) from None


def upstream_timestamp(timestamp_ms: int) -> str:
    """Return the moment as ``yyyyMMddHHmmss`` in local time, the form consumers take (C-33)."""
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000).strftime("%Y%m%d%H%M%S")

"""Points and lengths of time as a user may write them.

Pure: text in, milliseconds out. No clock is read here: a time relative to now stays relative until
a caller with a clock resolves it.
"""

from __future__ import annotations

import datetime
import re
from typing import Final

from rocketstream._util.when import span_ms

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)

_SECONDS: Final = range(10**9, 10**11)
"""As milliseconds these numbers are days of 1970 to 1973, as seconds days since 2001: nobody means
the former.
"""

TIME_ACCEPTED: Final = (
    "milliseconds since 1970 UTC (not seconds), ISO 8601 such as 2024-05-01T12:00:00Z, or a time "
    "before now such as -10m (ms, s, m, h, d, w)"
)
LENGTH_ACCEPTED: Final = "a length of time such as 15m, 30s or 1h (ms, s, m, h, d, w)"


def point_ms(text: str) -> int | None:
    """Return a point in time; None for a text that is not one.

    A number that is not negative is milliseconds since 1970 UTC. A negative number is that many
    milliseconds before now, where ``since_1970`` sets now. A number that can only be seconds since
    1970 is not a point in time: it would make a read begin at the oldest message.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return None if int(text) in _SECONDS else int(text)
    if text.startswith("-"):
        length = length_ms(text[1:], bare_ms=False)
        return None if length is None else -length or None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        # Without a zone the text would mean another moment on every machine of a cluster.
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0, int(moment.timestamp() * 1000))


def since_1970(point: int, now_ms: int) -> int:
    """Return a point in milliseconds since 1970; a relative one is counted from ``now_ms``."""
    return point if point >= 0 else max(0, now_ms + point)


def length_ms(text: str, bare_ms: bool = True) -> int | None:
    """Return a length of time in milliseconds; None for a text that is not one.

    Args:
        text: a number with a unit, such as ``15m`` or ``2 minutes``.
        bare_ms: whether a number without a unit is accepted, as milliseconds.
    """
    text = text.strip().lower()
    if bare_ms and _NUMBER.fullmatch(text):
        return int(text)
    return span_ms(text)

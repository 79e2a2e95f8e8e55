"""The attention of a server: since when it has heard its peers without a break.

Pure: times in, a time out. A process that was stopped, or whose machine slept, heard nobody, and on
a machine that slept the peers slept as well. Their silence is counted from when it went on.
"""

from __future__ import annotations

from typing import Final

LOOKS_MISSED: Final = 3
"""A look that is late by as many intervals was not late by work."""
NEVER_MS: Final = float("-inf")
"""There was no break."""


class Attention:
    """Looks that are an interval apart; used by one thread.

    Args:
        interval_ms: from one look to the next.

    Attributes:
        since_ms: since when there is no break in them, by a clock that only grows.
    """

    def __init__(self, interval_ms: float) -> None:
        self._late_ms = (1 + LOOKS_MISSED) * interval_ms
        self._looked_ms: float | None = None
        self.since_ms: float = NEVER_MS

    def look(self, now_ms: float) -> float:
        """Note a look, and return ``since_ms``."""
        if self._looked_ms is not None and now_ms - self._looked_ms > self._late_ms:
            self.since_ms = now_ms
        self._looked_ms = now_ms
        return self.since_ms

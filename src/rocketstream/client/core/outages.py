"""What fails at present, so that logs tell when it begins and when it ends, and not in between.

Law: pure; keys are the caller's, time comes in.
"""

from __future__ import annotations

from collections.abc import Hashable

from rocketstream import limits
from rocketstream.late import dataclass


@dataclass(slots=True)
class Outage:
    """Something that fails.

    Attributes:
        began_ms: monotonic time of its first failure.
        failures: how many so far.
    """

    began_ms: float
    failures: int = 1


class Outages:
    """Everything that fails now; the oldest are forgotten when there are too many."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def failed(self, what: Hashable, now_ms: float) -> bool:
        """Count a failure; return whether it is the first of an outage."""
        known = self._open.get(what)
        if known is not None:
            known.failures += 1
            return False
        if len(self._open) >= limits.OUTAGES_MAX:
            del self._open[next(iter(self._open))]
        self._open[what] = Outage(now_ms)
        return True

    def worked(self, what: Hashable) -> Outage | None:
        """Forget what works again; return the outage that ends, if there was one."""
        return self._open.pop(what, None)

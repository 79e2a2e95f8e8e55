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
        is_told: whether it is more than a failure that was expected.
    """

    began_ms: float
    failures: int = 0
    is_told: bool = False


class Outages:
    """Everything that fails now; the oldest are forgotten when there are too many."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def failed(self, what: Hashable, now_ms: float, *, expected: int = 0) -> bool:
        """Count a failure; return whether to tell of it: once an outage.

        Args:
            what: what has failed.
            now_ms: monotonic time.
            expected: so many failures in a row are not told of.
        """
        outage = self._open.get(what)
        if outage is None:
            if len(self._open) >= limits.OUTAGES_MAX:
                del self._open[next(iter(self._open))]
            outage = self._open[what] = Outage(now_ms)
        outage.failures += 1
        if outage.is_told or outage.failures <= expected:
            return False
        outage.is_told = True
        return True

    def worked(self, what: Hashable) -> Outage | None:
        """Forget what works again; return the outage that ends, if one was told of."""
        outage = self._open.pop(what, None)
        return outage if outage is not None and outage.is_told else None

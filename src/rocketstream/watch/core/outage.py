"""An outage: since when a cluster does not answer, and why.

Pure: a value.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outage:
    """No broker or name server of the cluster answers.

    Attributes:
        since_ms: when the first failed sweep after the last success was made, ms since 1970.
        error: the error of the last failed sweep.
        sweeps: how many sweeps failed in a row.
    """

    since_ms: int
    error: str
    sweeps: int

"""Since when a cluster does not answer, and why.

Law: PURE. A plain value.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outage:
    """Nothing of the cluster answers.

    Attributes:
        since_ms: when the first sweep failed that no other success followed, ms since 1970.
        error: what the last one failed with.
        sweeps: how many failed in a row.
    """

    since_ms: int
    error: str
    sweeps: int

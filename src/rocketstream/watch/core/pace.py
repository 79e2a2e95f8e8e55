"""The pace of sweeps: when the next one begins.

Pure: the cost of the last sweep in, a pause out.
"""

from __future__ import annotations

from typing import Final

SHARE_MAX: Final = 0.25
"""The largest share of the time spent sweeping: at least 15 s of pause follow a sweep of 5 s."""
STRETCH_MAX: Final = 4
"""While some brokers fail, the interval grows to at most this many times its length."""
OUTAGE_INTERVAL_S: Final = 30.0
"""While nothing answers, the interval grows to this, or stays as it is if it is longer."""
BETWEEN_S: Final = 1.0
"""The least time between the beginnings of two sweeps, however often a refresh is asked for."""


def pause_s(
    interval_s: float, took_s: float, *, failed_sweeps: int = 0, failing_sweeps: int = 0
) -> float:
    """Return how long to wait after a sweep until the next begins.

    Args:
        interval_s: the configured time from the beginning of one sweep to that of the next.
        took_s: how long the sweep took.
        failed_sweeps: how many sweeps in a row got no answer at all.
        failing_sweeps: how many sweeps in a row found some brokers that did not answer.
    """
    interval = interval_s
    if failed_sweeps:
        interval = min(interval_s * 2 ** min(failed_sweeps, 10), max(interval_s, OUTAGE_INTERVAL_S))
    elif failing_sweeps:
        interval = interval_s * min(2 ** min(failing_sweeps, 10), STRETCH_MAX)
    resting = took_s / SHARE_MAX - took_s
    return max(interval - took_s, resting, 0.0)


def early_pause_s(since_begin_s: float, took_s: float) -> float:
    """Return how long a requested sweep still has to wait, in seconds: 0 when it may begin now.

    Args:
        since_begin_s: how long ago the last sweep began.
        took_s: how long that sweep took.
    """
    return max(BETWEEN_S - since_begin_s, took_s * 2 - since_begin_s, 0.0)

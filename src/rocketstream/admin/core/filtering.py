"""The count of messages a filter selects: which to read, and what follows from reading some.

Pure: arithmetic on counts and places in a queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

CERTAINTY = 1.96
"""Standard deviations to either side that hold the truth in 95 of 100 cases."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages out of a number are wanted.

    Attributes:
        low: the lower bound; with 95 % certainty where the count was estimated.
        high: the upper bound, likewise.
    """

    matching: int
    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether the number was counted and not estimated."""
        return self.low == self.high

    @classmethod
    def exactly(cls, matching: int) -> Count:
        """Return an exact count."""
        return cls(matching, matching, matching)


def spread(total: int, most: int) -> list[int]:
    """Return at most ``most`` places among ``total``, rising, spread evenly.

    One place in each of equal parts, at a different spot in each, so that a pattern that repeats in
    step with the parts does not distort the sample.
    """
    if total <= most:
        return list(range(total))
    edges = [i * total // most for i in range(most + 1)]
    return [
        low + int((i * _GOLDEN) % 1 * (high - low)) for i, (low, high) in enumerate(pairwise(edges))
    ]


def estimate(wanted: int, looked_at: int, total: int) -> Count:
    """Return the estimate for all messages from a sample of single ones.

    Wilson's interval, which narrows as fewer messages remain unseen. It is never below the number
    found to match, nor above the total less the number found not to match.
    """
    if looked_at == 0:
        return Count(0, 0, total)
    if looked_at >= total:
        return Count.exactly(wanted)
    share = wanted / looked_at
    n = looked_at * (total - 1) / (total - looked_at)
    z2 = CERTAINTY**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = CERTAINTY / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = max(math.floor((middle - half) * total), wanted)
    high = min(math.ceil((middle + half) * total), total - (looked_at - wanted))
    return Count(min(max(round(share * total), low), high), low, high)


def estimate_of_runs(runs: Sequence[tuple[int, int]], total: int) -> Count:
    """Return the estimate for all messages from a sample of runs of neighbours.

    Neighbours are alike, so a run counts as one observation.

    Args:
        runs: how many messages of each run are wanted, and how long the run is.
        total: how many messages there are.
    """
    wanted = sum(found for found, _ in runs)
    looked_at = sum(length for _, length in runs)
    if looked_at >= total:
        return Count.exactly(wanted)
    least, most = wanted, total - (looked_at - wanted)
    if len(runs) < 2 or not looked_at:
        share = wanted / looked_at if looked_at else 0
        return Count(min(max(round(share * total), least), most), least, most)
    share = wanted / looked_at
    mean_length = looked_at / len(runs)
    # Variance of a ratio of sums (Cochran, Sampling Techniques, 6.3).
    spread_of = sum((found - share * length) ** 2 for found, length in runs) / (len(runs) - 1)
    left = 1 - looked_at / total
    error = CERTAINTY * math.sqrt(left * spread_of / len(runs)) / mean_length
    low = max(math.floor((share - error) * total), least)
    high = min(math.ceil((share + error) * total), most)
    return Count(min(max(round(share * total), low), high), low, high)


def scaled(first: Count, share: Count, of: int) -> Count:
    """Return the part of a count that a second look confirmed.

    Args:
        first: the count at first sight.
        share: how many out of ``of`` a second look confirmed.
    """
    if share.is_exact and share.matching == of:
        return first
    if of == 0:
        return first
    return Count(
        round(first.matching * share.matching / of),
        math.floor(first.low * share.low / of),
        math.ceil(first.high * share.high / of),
    )

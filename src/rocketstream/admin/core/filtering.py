"""How many messages a filter wants: which to look at, and what is known after looking at some.

Law: pure arithmetic on counts and places in a queue.
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
    """How many of some messages are wanted.

    Attributes:
        low: the least it is; with 95 % certainty where it was estimated.
        high: the most it is, likewise.
    """

    matching: int
    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether it was counted and not estimated."""
        return self.low == self.high

    @classmethod
    def exactly(cls, matching: int) -> Count:
        """Return a count of which nothing is open."""
        return cls(matching, matching, matching)


def spread(total: int, most: int) -> list[int]:
    """Return at most so many places among ``total``, rising, spread evenly.

    One in each of equal parts, at another spot in each, so that what repeats in step with the
    parts is not taken for all there is.
    """
    if total <= most:
        return list(range(total))
    edges = [i * total // most for i in range(most + 1)]
    return [
        low + int((i * _GOLDEN) % 1 * (high - low)) for i, (low, high) in enumerate(pairwise(edges))
    ]


def estimate(wanted: int, looked_at: int, total: int) -> Count:
    """Return what follows for all from single ones spread among them.

    Wilson's interval, narrower as less is left that was not looked at; never beyond what was
    seen: the ones found are there, the ones found not to match are not.
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
    """Return what follows for all from runs of neighbours spread among them.

    Neighbours are alike, so a run counts as one observation.

    Args:
        runs: how many of each run are wanted, and how long it is.
        total: how many there are.
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
        first: how many there are at first sight.
        share: of ``of`` of them, how many there are on a second look.
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

"""Batching: which rows go into one request.

Pure: arithmetic on sizes, a few steps for each request rather than for each row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence


def cut(ends: Sequence[int], bytes_max: int, count_max: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive spans ``(begin, end)`` of rows that fit both bounds.

    A row larger than ``bytes_max`` gets a span of its own.

    Args:
        ends: how many bytes the rows up to and including each one take together; ascending.
        bytes_max: how many bytes a span has at most.
        count_max: how many rows a span has at most, from 1.
    """
    begin, before, count = 0, 0, len(ends)
    while begin < count:
        end = bisect_right(ends, before + bytes_max, begin, min(count, begin + count_max))
        end = max(end, begin + 1)
        yield begin, end
        begin, before = end, int(ends[end - 1])

"""The bloom filter's positions are those of the murmur3 that Apache's broker uses."""

from __future__ import annotations

import pytest

from rocketstream.server.broker.core.bloom import BITS, bloom_positions, murmur3_64

FOX = b"The quick brown fox jumps over the lazy dog"


def test_murmur3_is_the_published_one() -> None:
    """The test value of Guava and of the algorithm's other libraries: two blocks and a tail."""
    assert murmur3_64(FOX) == 0xE34BBC7BBC071B6C
    assert murmur3_64(b"") == 0


@pytest.mark.parametrize(
    ("group", "topic", "positions"),
    [
        # Computed by this module when tests/interop/test_sql92.py found it equal to Apache's.
        ("g", "T", [90, 68, 28]),
        ("gro", "T", [88, 20, 97]),
        ("group-", "T", [36, 2, 102]),
        ("group-o", "T", [27, 81, 23]),
        ("group-of", "T", [70, 37, 107]),
        ("group-of-orde", "T", [20, 11, 29]),
        ("group-of-order", "T", [29, 110, 64]),
        ("group-of-orders", "T", [85, 89, 40]),
        ("group-of-orders-", "T", [43, 2, 95]),
        ("group-of-orders-that-", "T", [36, 29, 22]),
        ("group-of-orders-that-are-ship", "T", [88, 110, 58]),
        ("group-of-orders-that-are-shipp", "T", [100, 94, 33]),
        ("group-of-orders-that-are-shippe", "T", [70, 80, 7]),
        ("group-of-orders-that-are-shipped-by-the-wareho", "T", [2, 84, 54]),
    ],
)
def test_positions_are_those_apaches_broker_computes(
    group: str, topic: str, positions: list[int]
) -> None:
    """Covers C-394."""
    data = bloom_positions(group, topic)
    assert (data.bit_num, data.bit_pos) == (BITS, positions)
    assert BITS == 112

"""The bloom filter's positions are those of the murmur3 that Apache's broker uses."""

from __future__ import annotations

import hashlib

import pytest

from rocketstream.server.broker.core.bloom import BITS, bloom_positions, murmur3_64

FOX = b"The quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"", 0),
        (b"hello", 0xCBD8A7B341BD9B02),
        (b"hello, world", 0x342FAC623A5EBC8E),
        (b"19 Jan 2038 at 3:14:07 AM", 0xB89E5988B737AFFC),
        (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
        (FOX, 0xE34BBC7BBC071B6C),
    ],
)
def test_murmur3_is_the_published_one(text: bytes, value: int) -> None:
    """The test values of Guava and of the algorithm's other libraries: blocks and tails."""
    assert murmur3_64(text) == value


@pytest.mark.parametrize(
    ("group", "topic", "positions"),
    [
        # Computed by this module when test_sql92_on_apache found it equal to Apache's.
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


def test_positions_of_many_names_are_those_they_were_when_compared() -> None:
    """Covers C-394: of five hundred, since a bit of the hash may show in one name of a hundred."""
    digest = hashlib.sha256()
    for number in range(500):
        group, topic = "g" * (number % 40) + str(number), f"T{number * 7}"
        digest.update(bytes(bloom_positions(group, topic).bit_pos))
    assert digest.hexdigest() == (
        "9e6769141c35387166e14a61aa807d599a29fea677fac40745f3a4f2e9553ef8"
    )

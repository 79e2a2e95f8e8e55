"""UNIQ_KEYs of many rows at once."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.columns.messages import new_ids
from rocketstream.protocol.message_id import UniqueIdGenerator

ADDRESSES = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


def generator(address: bytes = bytes(4)) -> UniqueIdGenerator:
    return UniqueIdGenerator(address, 0x7A31, 0x5FFD2B27, lambda now: now - now % 2_000_000_000)


@settings(deadline=None)
@given(ADDRESSES, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2**42)), max_size=5))
def test_they_are_those_that_would_be_made_one_by_one(
    address: bytes, requests: list[tuple[int, int]]
) -> None:
    """Also where other ids are made in between."""
    at_once, one_by_one = generator(address), generator(address)
    for count, now in requests:
        made = new_ids(at_once, count, itertools.repeat(now).__next__)
        assert made.to_pylist() == [one_by_one.next(now) for _ in range(count)]
        assert at_once.next(now) == one_by_one.next(now)


def test_the_counter_begins_anew_after_its_last_number() -> None:
    ids = generator()
    for _ in range(65_534):
        ids.next(5)
    made = new_ids(ids, 4, lambda: 6).to_pylist()
    assert [each[-4:] for each in made] == ["FFFE", "FFFF", "0000", "0001"]
    assert ids.next(6)[-4:] == "0002"


@pytest.mark.parametrize("count", [65_536, 65_537, 200_000])
def test_a_great_record_batch_has_no_id_twice(count: int) -> None:
    """Not even where the clock stands still: a millisecond has only 65,536."""
    ids = generator()
    made = new_ids(ids, count, lambda: 7)
    assert len(set(made.to_pylist())) == len(made) == count


def test_ids_of_several_threads_differ() -> None:
    ids = generator()

    def some(turn: int) -> list[str]:
        if turn % 2:
            return [ids.next(1) for _ in range(100)]
        made: list[str] = new_ids(ids, 100, lambda: 1).to_pylist()
        return made

    with ThreadPoolExecutor(4) as pool:
        made = [each for part in pool.map(some, range(400)) for each in part]
    assert len(set(made)) == len(made) == 40_000

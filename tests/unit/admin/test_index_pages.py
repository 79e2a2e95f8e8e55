"""A broker's index is asked on whatever ended its answer: the count, the bytes, or a second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rocketstream.admin.messages.index_pages import MESSAGES_MAX, index_pages

MIB = 1 << 20


class Index:
    """Messages of one key, one a millisecond; an answer holds the newest that fit."""

    def __init__(self, count: int, size: int, per_ms: int = 1) -> None:
        self.asked: list[int] = []
        self.stored = [
            SimpleNamespace(commit_log_offset=i, store_timestamp=i // per_ms, store_size=size)
            for i in range(count)
        ]

    def messages_by_key(
        self, address: str, topic: str, key: str, most: int, *, until_ms: int
    ) -> list[Any]:
        self.asked.append(until_ms)
        size = self.stored[0].store_size if self.stored else 1
        newest = [m for m in self.stored if m.store_timestamp <= until_ms][::-1]
        return newest[: min(most, 8 * MIB // size)]


def told(index: Index, **settings: int) -> tuple[int, int | None]:
    pages = list(index_pages(index, "b", "t", "k", **settings))
    every = [m.commit_log_offset for page in pages for m in page.fresh]
    assert len(every) == len(set(every))
    return len(every), pages[-1].floor_ms


def test_few_small_messages_are_one_answer() -> None:
    index = Index(5, 100)
    assert (told(index), len(index.asked)) == ((5, None), 1)
    assert told(Index(0, 100)) == (0, None)


def test_answers_that_end_by_count_or_by_bytes_are_asked_on() -> None:
    assert told(Index(200, 100)) == (200, None)
    assert told(Index(9, 3 * MIB)) == (9, None)
    assert told(Index(9, 100), most=2) == (9, None)


def test_where_no_answer_says_more_the_floor_is_told() -> None:
    """All within what the index calls one time, more than an answer holds."""
    assert told(Index(200, 100, per_ms=1_000)) == (MESSAGES_MAX, 0)
    assert told(Index(9, 3 * MIB, per_ms=1_000)) == (2, 0)

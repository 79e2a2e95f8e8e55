"""What a lite pull consumer holds, against a small model: nothing lost, nothing committed early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketstream.client.consumer.lite.queues import LiteCache, LiteQueue
from rocketstream.client.consumer.process_queue import MIB
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.model import MessageQueue

A = MessageQueue("T", "b", 0)
B = MessageQueue("T", "b", 1)


@dataclass
class Fake:
    """A message as far as the cache looks at it."""

    queue_offset: int
    queue: int = 0


def fakes(*offsets: int) -> list[Any]:
    return [Fake(offset) for offset in offsets]


def offsets_of(messages: list[Any]) -> list[int]:
    return [message.queue_offset for message in messages]


def cache_with(**bounds: Any) -> tuple[LiteCache, LiteQueue]:
    cache = LiteCache(LitePullConsumerSettings("g", **bounds))
    return cache, cache.add(A, 0)


# --- handing out and counting -------------------------------------------------------------------


def test_messages_come_first_come_first_served_and_whole_or_in_parts() -> None:
    """Covers C-65, C-514: one queue's messages at once, never more than asked for."""
    cache, a = cache_with()
    b = cache.add(B, 100)
    cache.arrived(a, 0, fakes(0, 1, 2), 3)
    cache.arrived(b, 0, fakes(100), 101)
    cache.arrived(a, 0, fakes(3), 4)
    assert [offsets_of(cache.take(2)) for _ in range(5)] == [[0, 1], [2], [100], [3], []]
    assert cache.cached == a.cached == a.cached_bytes == 0


def test_a_part_of_a_pull_is_passed_by_its_last_message_and_no_further() -> None:
    """Covers C-515: what is handed out next was not consumed."""
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0, 1, 2, 5), 6)
    cache.take(3)
    cache.settle()
    assert cache.commits() == {A: 3}
    cache.take(3)
    cache.settle()
    assert cache.commits() == {A: 6}


def test_what_was_filtered_out_behind_two_pulls_is_passed_with_the_second() -> None:
    """Covers C-513, C-569: passed with the first it would take the second along unconsumed."""
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0), 1)
    cache.arrived(a, 0, fakes(1), 2)
    cache.arrived(a, 0, [], 9)
    for passed in (1, 9):
        cache.take(10)
        cache.settle()
        assert cache.commits() == {A: passed}


def test_the_last_message_of_a_pull_asks_for_a_look_around_and_no_earlier_one() -> None:
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0, 1), 2)
    assert not cache.pull_ended
    cache.next_one()
    assert not cache.pull_ended
    cache.next_one()
    assert cache.pull_ended


def test_what_was_handed_out_may_be_committed_after_the_next_call() -> None:
    """Covers C-515, apache/rocketmq 1470: not before, and not what was not handed out."""
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0, 1, 2, 3), 4)
    cache.settle()
    cache.take(2)
    assert cache.commits() == {}
    cache.settle()
    assert cache.commits() == {A: 2}
    assert cache.next_one().queue_offset == 2  # type: ignore[union-attr]
    assert cache.commits() == {}
    cache.settle()
    assert cache.commits() == {A: 3}
    assert cache.commits() == {}


def test_a_commit_asked_for_takes_what_is_in_hand_too() -> None:
    """Covers C-516; an automatic commit later does not take it back."""
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0, 1, 2, 3), 4)
    cache.take(2)
    assert cache.positions() == {A: 2}
    assert cache.commits() == {}
    assert cache.positions([B]) == {}
    cache.take(1)
    assert cache.note(A, 3)
    assert not cache.note(B, 3)
    assert cache.commits() == {}


def test_filtered_ranges_count_as_soon_as_nothing_before_them_is_open() -> None:
    """Covers C-513, C-569: at once, with the messages before, or after they are settled."""
    cache, a = cache_with()
    cache.arrived(a, 0, [], 5)
    assert cache.commits() == {A: 5}
    cache.arrived(a, 0, fakes(5, 7), 9)  # 8 was filtered out by the client
    cache.arrived(a, 0, [], 20)
    cache.take(10)
    assert a.position == 20
    cache.arrived(a, 0, [], 30)
    assert cache.commits() == {}
    cache.settle()
    assert cache.commits() == {A: 30}


def test_nothing_of_before_a_seek_counts() -> None:
    """Covers C-519: neither what is cached, nor what is on its way, nor what is in hand."""
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0, 1, 2), 3)
    cache.take(1)
    cache.seek(a, 40)
    assert not cache.arrived(a, 0, fakes(3), 4)
    assert cache.take(9) == []
    cache.settle()
    assert (a.acked, a.position, a.pull_offset) == (40, 40, 40)
    assert cache.arrived(a, 1, fakes(40), 41)
    assert offsets_of(cache.take(9)) == [40]


def test_a_late_answer_of_an_earlier_ownership_is_discarded() -> None:
    """Covers C-508, apache/rocketmq 2732: the queue came back and must not skip a message."""
    cache, old = cache_with()
    cache.drop(A)
    new = cache.add(A, 0)
    assert old.leaving
    assert not cache.arrived(old, 0, fakes(0), 1)
    assert (new.pull_offset, cache.take(9)) == (0, [])
    assert cache.arrived(new, 0, fakes(0), 1)
    assert offsets_of(cache.take(9)) == [0]


# --- bounds -------------------------------------------------------------------------------------


def test_each_bound_holds_pulling_back() -> None:
    """Covers C-66 to C-69, C-510, C-579: strictly more; messages are counted, not requests."""
    for name, bound in (
        ("pull_threshold_for_all", 3),
        ("pull_threshold_for_queue", 3),
        ("pull_threshold_size_for_queue", 1),
        ("consume_max_span", 2),
    ):
        cache, a = cache_with(**{name: bound})
        cache.arrived(a, 0, fakes(0, 1, 2), 3, 2 * MIB - 1)
        assert cache.may_pull(a)
        cache.arrived(a, 0, fakes(3), 4, 10)
        assert not cache.may_pull(a)
        assert a in cache.held
        assert cache.released() == []
        cache.take(9)
        cache.take(9)
        assert cache.released() == [a]
        assert a not in cache.held
        assert cache.released() == []


@pytest.mark.parametrize("bound", ["pull_threshold_for_queue", "pull_threshold_for_all"])
def test_held_queues_go_on_when_half_is_handed_out(bound: str) -> None:
    """Covers C-579: once per half of the bound, not for every message."""
    cache, a = cache_with(**{bound: 4})
    for start in range(0, 6, 2):
        cache.arrived(a, 0, fakes(start, start + 1), start + 2)
    assert not cache.may_pull(a)
    cache.take(2)
    assert cache.released() == []
    cache.take(2)
    assert cache.released() == [a]


def test_held_queues_go_on_at_half_the_span() -> None:
    """Covers C-69, C-579."""
    cache, a = cache_with(consume_max_span=4)
    cache.arrived(a, 0, fakes(0, 3, 4, 6), 7)
    assert not cache.may_pull(a)
    cache.take(1)
    assert cache.released() == []
    cache.take(1)
    assert (a.span, cache.released()) == (2, [a])


@pytest.mark.parametrize(("left", "free"), [(MIB - 1, True), (MIB, False)])
def test_held_queues_go_on_at_half_the_bytes(left: int, free: bool) -> None:
    """Covers C-68, C-579."""
    cache, a = cache_with(pull_threshold_size_for_queue=1)
    cache.arrived(a, 0, fakes(0), 1, 2 * MIB)
    cache.arrived(a, 0, fakes(1), 2, left)
    assert not cache.may_pull(a)
    cache.take(1)
    assert a.cached_bytes == left
    assert bool(cache.released()) is free


def test_a_queue_held_before_a_seek_is_not_released_after_it() -> None:
    """Covers C-519: its pull goes on by the seek; a second one would pull everything twice."""
    cache, a = cache_with(pull_threshold_for_queue=1)
    cache.arrived(a, 0, fakes(0, 1), 2)
    assert not cache.may_pull(a)
    cache.seek(a, 40)
    assert a not in cache.held
    assert cache.released() == []


def test_messages_of_no_size_take_no_room() -> None:
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0), 1)
    assert (a.cached, a.cached_bytes) == (1, 0)


def test_a_paused_queue_is_not_pulled_but_handed_out() -> None:
    """Covers C-520."""
    cache, a = cache_with()
    cache.arrived(a, 0, fakes(0), 1)
    a.paused = True
    assert not cache.may_pull(a)
    assert a.idle
    assert offsets_of(cache.take(1)) == [0]


# --- against a model ----------------------------------------------------------------------------


class LiteCacheModel(RuleBasedStateMachine):
    """Random pulls, polls, seeks, hand-overs and crashes, against what must come out.

    Of each queue the model knows which offsets were handed out since it began at ``start``.
    """

    @initialize()
    def begin(self) -> None:
        self.cache = LiteCache(LitePullConsumerSettings("g", pull_threshold_for_queue=8))
        self.handed: dict[MessageQueue, list[int]] = {}
        self.start: dict[MessageQueue, int] = {}
        self.in_hand: tuple[MessageQueue, list[int]] | None = None
        self.late: list[tuple[LiteQueue, int, int]] = []
        self.committed: dict[MessageQueue, int] = {}

    @rule(mq=st.sampled_from([A, B]))
    def take_over(self, mq: MessageQueue) -> None:
        if mq in self.cache.queues:
            self.late.append((old := self.cache.queues[mq], old.epoch, old.pull_offset))
        self.give_up(mq)
        offset = self.committed.get(mq, 0)
        self.cache.add(mq, offset)
        self.start[mq], self.handed[mq] = offset, []

    @rule(mq=st.sampled_from([A, B]))
    def give_up(self, mq: MessageQueue) -> None:
        self.committed.update(self.cache.commits([mq]))
        self.cache.drop(mq)
        if self.in_hand and self.in_hand[0] == mq:
            self.in_hand = None

    @precondition(lambda self: self.cache.queues)
    @rule(data=st.data(), count=st.integers(0, 5), filtered=st.integers(0, 3))
    def pull_answered(self, data: st.DataObject, count: int, filtered: int) -> None:
        queue = self.cache.queues[data.draw(st.sampled_from(sorted(self.cache.queues)))]
        start = queue.pull_offset
        wanted: list[Any] = [Fake(start + n, queue=queue.message_queue[2]) for n in range(count)]
        assert self.cache.arrived(queue, queue.epoch, wanted, start + count + filtered)

    @precondition(lambda self: self.late)
    @rule()
    def late_answer(self) -> None:
        queue, epoch, offset = self.late.pop()
        assert not self.cache.arrived(queue, epoch, [Fake(offset)], offset + 1)  # type: ignore[list-item]

    @rule(count=st.integers(1, 6))
    def poll(self, count: int) -> None:
        self.cache.settle()
        self.in_hand = None
        messages: list[Any] = self.cache.take(count)
        self._note(messages)

    @rule()
    def next_one(self) -> None:
        self.in_hand = None
        message: Any = self.cache.next_one()
        self._note([] if message is None else [message])

    def _note(self, messages: list[Any]) -> None:
        if messages:
            mq = (A, B)[messages[0].queue]
            self.handed[mq] += offsets_of(messages)
            self.in_hand = mq, offsets_of(messages)

    @precondition(lambda self: self.cache.queues)
    @rule(data=st.data(), offset=st.integers(0, 50))
    def seek(self, data: st.DataObject, offset: int) -> None:
        mq = data.draw(st.sampled_from(sorted(self.cache.queues)))
        queue = self.cache.queues[mq]
        self.late.append((queue, queue.epoch, queue.pull_offset))
        self.cache.seek(queue, offset)
        self.start[mq], self.handed[mq] = offset, []
        if self.in_hand and self.in_hand[0] == mq:
            self.in_hand = None

    @rule()
    def auto_commit(self) -> None:
        self.committed.update(self.cache.commits())

    @invariant()
    def nothing_is_committed_early_lost_or_repeated(self) -> None:
        for mq, queue in self.cache.queues.items():
            assert queue.acked <= queue.position <= queue.pull_offset
            handed = self.handed[mq]
            assert handed == sorted(set(handed))
            open_ones = self.in_hand[1] if self.in_hand and self.in_hand[0] == mq else []
            if open_ones:
                assert queue.acked <= open_ones[0]
            cached = [
                message.queue_offset
                for chunk in queue.chunks
                for message in chunk.messages[chunk.at :]
            ]
            assert all(offset >= queue.position for offset in cached)
            assert all(offset < queue.position for offset in handed)

    @invariant()
    def the_counts_are_right(self) -> None:
        queues = self.cache.queues.values()
        assert self.cache.cached == sum(queue.cached for queue in queues)
        for queue in queues:
            assert queue.cached == sum(len(chunk.messages) for chunk in queue.chunks)


TestLiteCacheModel = LiteCacheModel.TestCase
TestLiteCacheModel.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, derandomize=True
)
TestLiteCacheModel.__doc__ = "Covers C-508, C-513 to C-519 and apache/rocketmq 1470, 2732."


def test_the_span_is_from_the_first_message_left_to_the_last() -> None:
    """Over all pulls, and less by what was handed out."""
    cache, a = cache_with()
    assert a.span == 0
    cache.arrived(a, 0, fakes(0, 1), 2)
    cache.arrived(a, 0, fakes(2, 5, 9), 10)
    assert a.span == 9
    cache.take(1)
    assert a.span == 8
    cache.take(9)
    assert a.span == 7

"""What a consumer of lite topics decides: what brokers must be told, what may be consumed."""

from __future__ import annotations

import pytest

from rocketstream import MessageQueue, OffsetOption
from rocketstream.client.consumer.lite_topics.topics import (
    TELL_ALL_AGAIN_MS,
    WRITTEN_MS,
    LiteRun,
    LiteRuns,
    LiteTopics,
    parts,
)
from rocketstream.client.consumer.settings import LitePushConsumerSettings
from rocketstream.errors import ConfigurationError
from rocketstream.limits import LITE_NAMES_PER_REQUEST
from rocketstream.protocol.bodies import LiteOffsetData
from rocketstream.testing import received_message

QUEUE = MessageQueue("agents", "broker-a", 0)
HIDDEN_MS = 60_000


def due(topics: LiteTopics, now_ms: float) -> list[str]:
    """Return the brokers that must be told all now."""
    return [name for name in topics.brokers if topics.is_due(name, now_ms)]


def served(*brokers: str, names: tuple[str, ...] = ("a", "b")) -> LiteTopics:
    """Return topics of which every broker was told at 0."""
    topics = LiteTopics()
    topics.add(names, None)
    topics.serve(brokers)
    for name in brokers:
        topics.told_all(name, topics.mark(name), 0)
    return topics


# --- subscriptions ------------------------------------------------------------------------------


def test_a_broker_is_told_at_first_and_again_before_it_forgets() -> None:
    """Brokers forget a client's lite topics after 180 s."""
    topics = LiteTopics()
    topics.serve(["a"])
    assert due(topics, 0) == ["a"]
    topics.told_all("a", topics.mark("a"), 0)
    assert due(topics, 60_000 - 1) == []
    assert due(topics, 60_000) == ["a"]
    assert 3 * TELL_ALL_AGAIN_MS == 180_000


def test_a_lost_broker_is_told_now_and_no_other() -> None:
    topics = served("a", "b")
    topics.forgot("b")
    assert due(topics, 1) == ["b"]


def test_an_answer_from_before_the_loss_says_nothing() -> None:
    """The broker may have been restarted after it answered."""
    topics = served("a")
    mark = topics.mark("a")
    topics.forgot("a")
    topics.told_all("a", mark, 5)
    assert due(topics, 5) == ["a"]


def test_an_answer_from_before_several_losses_says_nothing() -> None:
    topics = served("a")
    marks = [topics.mark("a")]
    for _ in range(3):
        topics.forgot("a")
        assert topics.mark("a") not in (*marks, -1), "-1 is that of a broker nobody serves"
        marks.append(topics.mark("a"))


def test_brokers_come_and_go_with_the_route() -> None:
    topics = served("a", "b")
    topics.serve(["b", "c"])
    assert due(topics, 1) == ["c"]
    assert topics.brokers == ["b", "c"]
    topics.forgot("a")
    topics.told_all("a", topics.mark("a"), 1)


def test_names_are_placed_anew_at_a_lost_broker_until_an_offset_is_surely_written() -> None:
    """Brokers keep where a group begins in memory, and for some seconds its first offset too."""
    topics = served("x")
    topics.add(["c"], None)
    topics.add(["moved"], OffsetOption.MAX_OFFSET)
    assert topics.to_place("x", 0) == []
    topics.placed("x", ["a"], 5)
    topics.placed("x", ["a", "moved"], 5 + WRITTEN_MS)  # the first time counts
    topics.forgot("x")
    assert topics.to_place("x", 4 + WRITTEN_MS) == ["a", "b", "c"]
    assert topics.to_place("x", 5 + WRITTEN_MS) == ["b", "c"]
    topics.remove(["b"])
    assert topics.to_place("x", 6 + WRITTEN_MS) == ["c"]
    topics.remove(["a"])
    topics.add(["a"], None)
    assert topics.to_place("x", 7 + WRITTEN_MS) == ["a", "c"]


def test_a_name_is_subscribed_once() -> None:
    topics = served("x")
    assert topics.new(["b", "c", "c"]) == ["c"]
    assert topics.known(["b", "c", "b"]) == ["b"]
    topics.remove(["b"])
    assert topics.wanted == frozenset({"a"})
    assert not topics.is_wanted("b")


def test_many_names_take_several_requests() -> None:
    names = [str(number) for number in range(10_001)]
    requests = list(parts(names, LITE_NAMES_PER_REQUEST))
    assert [len(part) for part in requests] == [5_000, 5_000, 1]
    assert [name for part in requests for name in part] == names


# --- messages -----------------------------------------------------------------------------------


def run(name: str, first: int = 0, count: int = 2, *, now_ms: float = 0) -> LiteRun:
    messages = [received_message("agents", b"x") for _ in range(count)]
    offsets = range(first, first + count)
    return LiteRun(name, QUEUE, messages, offsets, 1, HIDDEN_MS, now_ms)


def lite_runs(messages: int = 10, one_answer: int = 2) -> LiteRuns:
    return LiteRuns(messages, 1 << 20, one_answer)


def test_two_runs_of_a_lite_topic_are_never_begun_at_once() -> None:
    """A broker gives the next ones while a listener still has the first, if it took too long."""
    held = lite_runs()
    first, second, other = run("a"), run("a", 2), run("b")
    for each in (first, second, other):
        held.add(each)
    assert held.next_run(0) is first
    assert held.next_run(0) is other
    assert held.next_run(0) is None
    held.finish(first)
    assert held.next_run(0) is second


def test_what_is_hidden_no_more_is_not_begun() -> None:
    """It may be with another member by now."""
    held = lite_runs()
    late, behind = run("a"), run("a", 2, now_ms=10)
    held.add(late)
    held.add(behind)
    assert held.next_run(HIDDEN_MS) is behind
    assert held.message_count == 2


def test_nothing_is_asked_for_beyond_the_bounds() -> None:
    held = lite_runs(messages=6, one_answer=2)
    assert held.has_room(2, unconfirmed=0, asked=4)
    assert not held.has_room(2, unconfirmed=0, asked=5)
    assert not held.has_room(2, unconfirmed=5, asked=0)
    whole = run("a", count=4)
    held.add(whole)
    assert held.has_room(2, unconfirmed=0, asked=0)
    assert not held.has_room(2, unconfirmed=1, asked=0)
    held.advance(whole, 3)
    assert held.has_room(2, unconfirmed=3, asked=0)
    held.finish(whole)
    assert (held.message_count, held.size_bytes) == (0, 0)


def test_bytes_are_bounded_too() -> None:
    one = run("a")
    held = LiteRuns(100, 2 * one.size, 2)
    held.add(one)
    assert held.has_room(2, 0, 0)
    held.add(run("b"))
    assert not held.has_room(2, 0, 0)


@pytest.mark.parametrize(
    ("brokers", "size"), [(0, 32), (1, 32), (2, 24), (3, 16), (48, 1), (49, 1)]
)
def test_every_broker_can_be_asked_at_once(brokers: int, size: int) -> None:
    held = lite_runs(messages=48, one_answer=32)
    assert held.answer_size(brokers) == size


def test_what_is_left_of_a_run_is_hidden_anew_in_time() -> None:
    held = lite_runs()
    waiting, begun = run("a"), run("b")
    held.add(begun)
    assert held.next_run(0) is begun
    held.add(waiting)
    held.advance(begun, 1)
    assert begun.left == range(1, 2)
    assert held.to_renew(HIDDEN_MS / 3 - 1, 1e9) == []
    assert set(held.to_renew(HIDDEN_MS / 3, 1e9)) == {waiting, begun}
    waiting.hidden(HIDDEN_MS / 3)
    assert held.to_renew(HIDDEN_MS / 3, 1e9) == [begun]
    assert held.to_renew(HIDDEN_MS, 1e9) == [waiting]


def test_a_listener_that_takes_too_long_has_its_messages_hidden_no_more() -> None:
    held = lite_runs()
    stuck = run("a")
    held.add(stuck)
    held.next_run(0)
    assert held.to_renew(HIDDEN_MS / 2, HIDDEN_MS / 2) == []
    assert held.to_renew(HIDDEN_MS / 2, HIDDEN_MS / 2 + 1) == [stuck]


def test_what_nobody_has_begun_is_given_back_at_the_end() -> None:
    held = lite_runs()
    begun, behind, other = run("a"), run("a", 2), run("b")
    for each in (begun, behind, other):
        held.add(each)
    held.next_run(0)
    assert held.abandon_waiting() == [behind, other]
    assert held.message_count == 2
    held.finish(begun)
    held.finish(begun)
    assert held.message_count == 0
    assert held.next_run(0) is None


def test_what_nobody_has_begun_of_one_lite_topic_is_given_back_alone() -> None:
    held = lite_runs()
    begun, behind, other = run("a"), run("a", 2), run("b")
    for each in (begun, behind, other):
        held.add(each)
    assert held.next_run(0) is begun
    assert held.abandon_waiting({"b"}) == [other]
    assert held.abandon_waiting({"b"}) == []
    assert (held.oldest, held.message_count) == (None, 4)
    assert held.abandon_waiting({"a"}) == [behind]
    later, anew = run("a", 2), run("b")
    held.add(later)
    held.add(anew)
    assert held.next_run(0) is anew
    assert held.next_run(0) is None
    held.finish(begun)
    assert held.next_run(0) is later


# --- options and settings -----------------------------------------------------------------------


def test_an_offset_option_is_javas_on_the_wire() -> None:
    assert OffsetOption.LAST_OFFSET.data() == LiteOffsetData("POLICY", 0)
    assert OffsetOption.MIN_OFFSET.data() == LiteOffsetData("POLICY", 1)
    assert OffsetOption.MAX_OFFSET.data() == LiteOffsetData("POLICY", 2)
    assert OffsetOption.of_offset(7).data() == LiteOffsetData("OFFSET", 7)
    assert OffsetOption.of_tail_n(3).data() == LiteOffsetData("TAIL_N", 3)


@pytest.mark.parametrize("wrong", [-1, "1", True])
def test_an_offset_is_a_whole_number(wrong: int) -> None:
    with pytest.raises(ConfigurationError, match="offset must be a whole number"):
        OffsetOption.of_offset(wrong)
    with pytest.raises(ConfigurationError, match="messages must be a whole number"):
        OffsetOption.of_tail_n(wrong)


@pytest.mark.parametrize(
    "wrong", [{"pull_batch_size": 33}, {"invisible_ms": 9_999}, {"max_cache_message_count": 31}]
)
def test_a_setting_out_of_bounds_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        LitePushConsumerSettings("g", **wrong).check()

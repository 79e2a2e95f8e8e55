"""What messages are found by, what became of them, and what their trace tells: decided purely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.admin.letters.causes import CauseCount, is_of_cause, key_of, template
from rocketstream.admin.messages.lookup import MESSAGES_MAX, Lookup
from rocketstream.admin.messages.paging import Pages, Range, SearchPlace
from rocketstream.admin.messages.trace import timeline
from rocketstream.admin.messages.track import Copy, TrackFacts, track
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.cause import SendBackCause, cause_of
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.protocol.trace import (
    TraceEndTransaction,
    TracePub,
    TraceRecall,
    TraceRecord,
    TraceSubAfter,
    TraceSubBefore,
)


def message(
    queue: MessageQueue, offset: int, at_ms: int = 0, tries: int = 0, **properties: str
) -> MessageExt:
    return assemble_message(
        queue, offset, b"", properties,
        commit_log_offset=offset, reconsume_times=tries, store_timestamp=at_ms,
    )  # fmt: skip


# --- paging ---------------------------------------------------------------------------------------


def all_of(
    stored: Mapping[MessageQueue, Sequence[MessageExt]],
    ranges: Mapping[MessageQueue, Range],
    newest_first: bool,
    page: int,
) -> list[tuple[MessageQueue, int]]:
    """Read everything page by page, each from the place the one before ended at."""
    place = SearchPlace(newest_first, None, None, ranges)
    found: list[tuple[MessageQueue, int]] = []
    times: list[int] = []
    for _ in range(200):
        pages, taken = Pages(place.ranges, newest_first=newest_first, wanted=page), 0
        while taken < page:
            span = pages.next_read()
            if span is not None:
                queue, (low, high) = span
                assert high - low <= 32
                pages.have_read(
                    queue, (low, high), [m for m in stored[queue] if low <= m.queue_offset < high]
                )
                continue
            one = pages.take()
            if one is None:
                break
            found.append((one.message_queue, one.queue_offset))
            times.append(one.store_timestamp)
            taken += 1
        left = pages.left()
        if not left:
            break
        place = SearchPlace.of_word(replace(place, ranges=left).word("t"), "t")
    assert times == sorted(times, reverse=newest_first)
    return found


@given(
    queues=st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=4),
    gone=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 39)), max_size=10),
    newest_first=st.booleans(),
    page=st.integers(1, 50),
)
def test_pages_are_whole_in_order_and_without_repeats(
    queues: list[list[int]], gone: set[tuple[int, int]], newest_first: bool, page: int
) -> None:
    """Whatever the queues hold, however large a page is, and where messages are missing."""
    stored: dict[MessageQueue, list[MessageExt]] = {}
    for number, steps in enumerate(queues):
        queue, at = MessageQueue("t", "b", number), 0
        stored[queue] = []
        for offset, step in enumerate(steps):
            at += step
            if (number, offset) not in gone:
                stored[queue].append(message(queue, offset, at))
    ranges = {queue: (0, len(queues[queue.queue_id])) for queue in stored}
    found = all_of(stored, ranges, newest_first, page)
    expected = {(queue, m.queue_offset) for queue, held in stored.items() for m in held}
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_a_queue_that_cannot_be_read_is_left_for_the_next_page() -> None:
    one, other = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
    pages = Pages({one: (0, 2), other: (0, 1)}, newest_first=True, wanted=9)
    pages.put_aside(one)
    assert pages.next_read() == (other, (0, 1))
    pages.have_read(other, (0, 1), [message(other, 0)])
    assert pages.take() is not None
    assert pages.take() is None
    assert pages.left() == {one: (0, 2)}


@pytest.mark.parametrize("word", ["", "x", "!!", "WzFd", "bnVsbA", "W" * 5_000])
def test_a_place_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match="not a place where a search ended"):
        SearchPlace.of_word(word, "t")


def test_a_place_is_of_its_topic_and_keeps_the_times() -> None:
    place = SearchPlace(True, 5, None, {MessageQueue("t", "b", 1): (2, 9)})
    assert SearchPlace.of_word(place.word("t"), "t") == place
    with pytest.raises(ConfigurationError, match="is of a search in topic 't', not in 'u'"):
        SearchPlace.of_word(place.word("t"), "u")
    assert [place.side(at) for at in (4, 5)] == ["behind", None]
    assert SearchPlace(False, 5, 9, {}).side(4) == "before"
    assert SearchPlace(False, 5, 9, {}).side(9) == "behind"


# --- tracking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "status", "said"),
    [
        ({"committed": 8}, "CONSUMED", None),
        ({"committed": 7}, "NOT_CONSUME_YET", "the group's offset is 7, its 7"),
        ({"committed": None}, "NOT_CONSUME_YET", "offset is 0"),
        ({"committed": 8, "is_wanted": False}, "CONSUMED_BUT_FILTERED", None),
        ({"committed": 7, "is_online": False}, "NOT_ONLINE", "not consumed"),
        ({"committed": 8, "is_online": False}, "NOT_ONLINE", "is past it and it was not sent back"),
        ({"committed": None, "is_pulling": True}, "PULL", "keep no offset"),
        ({"committed": 8, "is_pulling": True}, "CONSUMED", None),
        ({"committed": 8, "is_broadcast": True}, "UNKNOWN", "each member"),
        ({"committed": 8, "copies": None, "no_copies_why": "no id"}, "UNKNOWN", "told: no id"),
        (
            {"committed": 8, "copies": None, "no_copies_why": "no id", "is_online": False},
            "UNKNOWN",
            "told: no id",
        ),
        ({"committed": 7, "copies": None, "no_copies_why": "no id"}, "NOT_CONSUME_YET", None),
    ],
)
def test_a_message_that_was_not_sent_back_is_where_the_offset_is(
    facts: dict[str, Any], status: str, said: str | None
) -> None:
    found = track(TrackFacts("g", 7, **({"is_online": True} | facts)))
    assert found.status == status
    assert said is None or said in str(found.description)


WAITS, RETRY, DEAD = (
    Copy("waits", 1, 100, due_ms=200),
    Copy("retry", 1, 200, is_passed=False),
    Copy("dead", 2, 300),
)


@pytest.mark.parametrize(
    ("copies", "status", "tries"),
    [
        ([WAITS], "RETRYING", 1),
        ([WAITS, RETRY], "RETRYING", 1),
        ([WAITS, replace(RETRY, is_passed=True)], "CONSUMED", 1),
        ([WAITS, replace(RETRY, is_passed=None)], "UNKNOWN", 1),
        ([WAITS, replace(RETRY, is_passed=True), Copy("waits", 2, 250)], "RETRYING", 2),
        ([WAITS, replace(RETRY, is_passed=True), DEAD], "DEAD_LETTERED", 2),
        ([DEAD], "DEAD_LETTERED", 2),
    ],
)
def test_a_message_that_was_sent_back_is_where_its_last_copy_is(
    copies: list[Copy], status: str, tries: int
) -> None:
    """Covers C-538: whatever the group's offset says, and whoever is connected."""
    for order in (copies, copies[::-1]):
        for is_online in (True, False):
            found = track(TrackFacts("g", 7, 100, is_online, copies=order))
            assert (found.status, found.tries) == (status, tries)
    assert track(TrackFacts("g", 7, 8, True, copies=[WAITS])).due_ms == 200


def test_a_message_sent_again_is_followed_from_there() -> None:
    found = track(TrackFacts("g", 9, 9, True, redriven_ms=400))
    assert (found.status, found.since_ms) == ("NOT_CONSUME_YET", 400)
    assert str(found.description).startswith("it was dead-lettered and sent again; ")


# --- the timeline ---------------------------------------------------------------------------------


def pub(msg_id: str = "M", at: int = 10, kind: int = 0) -> TracePub:
    return TracePub(at, "r", "p", "t", msg_id, None, "k", "h:1", 5, 3, kind, "O", True, None)


def test_a_timeline_puts_together_what_clients_wrote() -> None:
    before = TraceSubBefore(50, "r", "g", "c1", "M", 0, "k")
    after = TraceSubAfter("c1", "M", 7, False, "k", 2, 57, "g")
    records: list[TraceRecord] = [
        after, before, pub(), TraceSubBefore(90, "r", "g", "c2", "M", 1, "k"), pub("other"),
        TraceSubAfter("c9", "M", 4, True, "k", 0, 30, "h"), pub("A,M,B", at=11),
        TraceEndTransaction(20, "r", "p", "t", "M", None, "k", "h", 2, "T", "COMMIT_MESSAGE", True),
        TraceRecall(21, "r", "p", "t", "M", False),
    ]  # fmt: skip
    told = timeline("t", "M", [(r, "1.1.1.1:1") for r in records], store_ms=12, store_host="b:1")
    assert [(s.began_ms, s.kind, s.client) for s in told.sends] == [
        (10, "normal", "1.1.1.1:1"), (11, "normal", "1.1.1.1:1"),
    ]  # fmt: skip
    assert [(t.group, t.began_ms, t.cost_ms, t.outcome, t.retry_times) for t in told.tries] == [
        ("h", 26, 4, "SUCCESS", None),
        ("g", 50, 7, "EXCEPTION", 0),
        ("g", 90, None, "UNFINISHED", 1),
    ]
    assert [(e.state, e.is_answer) for e in told.ends] == [
        ("COMMIT_MESSAGE", True), ("RECALL_FAILED", False),
    ]  # fmt: skip
    assert list(told.by_group()) == ["h", "g"]
    assert (told.store_ms, told.is_empty) == (12, False)
    assert timeline("t", "X", [(pub(), None)]).is_empty


@pytest.mark.parametrize(
    ("code", "success", "outcome"),
    [(0, True, "SUCCESS"), (0, False, "FAILED"), (1, True, "TIME_OUT"), (3, False, "RETURNNULL"),
     (4, False, "FAILED"), (9, False, "9")],
)  # fmt: skip
def test_outcomes_are_those_the_codes_stand_for(code: int, success: bool, outcome: str) -> None:
    record = TraceSubAfter("c", "M", 7, success, "k", code, 57, "g")
    (each,) = timeline("t", "M", [(record, None)]).tries
    assert each.outcome == outcome


def test_a_record_read_twice_counts_once() -> None:
    told = timeline("t", "M", [(pub(), "a"), (pub(), "a")])
    assert len(told.sends) == 1


# --- causes ---------------------------------------------------------------------------------------

DLQ = MessageQueue("%DLQ%g", "b", 0)


def letter(offset: int, cause: str | None, where: str = "f.py:1 f", **more: Any) -> MessageExt:
    told = {}
    if cause is not None:
        told = {"SEND_BACK_CAUSE": cause, "SEND_BACK_WHERE": where, "SEND_BACK_TRY": "2"}
    tries = more.pop("tries", 3)
    return message(DLQ, offset, 1_000 + offset, tries, RETRY_TOPIC="orders", **(told | more))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("no price for order 4711", "no price for order <n>"),
        ("order-1003 is late by 1.5 s", "order-<n> is late by <n> s"),
        ("id 7f0000aa-12cd-4e5f is gone", "id <id> is gone"),
        ("key 'price' is missing", "key 'price' is missing"),
        ("no such user 'Eve 12'", "no such user <text>"),
        ("invalid literal: b'x0'", "invalid literal: <text>"),
        ("decade and facade", "decade and facade"),
        ("", ""),
    ],
)
def test_what_differs_from_message_to_message_is_taken_out(text: str, same: str) -> None:
    assert template(text) == same
    assert template(same) == same


def test_five_faults_are_five_causes_however_many_letters() -> None:
    count = CauseCount()
    for number in range(1_000):
        fault = number % 5
        cause = [
            f"ValueError: no price for order {number}",
            f"shop.Refused: card of customer '{number:x}' is refused",
            "KeyError: 'price'",
            "KeyError: 'tax'",
            "TIME_OUT: too long",
        ][fault]
        count.add(letter(number, cause), is_redriven=number < 10)
    tallies = count.tallies()
    assert [tally.count for tally in tallies] == [200] * 5
    assert sum(tally.redriven for tally in tallies) == 10
    assert len({tally.key.id for tally in tallies}) == 5
    first = next(t for t in tallies if t.key.kind == "ValueError")
    assert (first.first_ms, first.last_ms, first.example.queue_offset) == (1_000, 1_995, 995)
    assert first.topics == {"orders": 200}


def test_a_place_that_raises_ever_other_texts_is_one_cause() -> None:
    count, letters = CauseCount(), []
    for number in range(60):
        word = "".join(chr(97 + (number // 26**i) % 26) for i in range(3))
        letters.append(letter(number, f"ValueError: {word}"))
        count.add(letters[-1])
    (tally,) = count.tallies()
    assert (tally.count, tally.key.cause) == (60, "ValueError: …")
    assert all(is_of_cause(each, tally.key.id, None) for each in letters)


def test_letters_without_a_cause_are_told_apart_by_what_is_known() -> None:
    count = CauseCount()
    for number, (tag, tries) in enumerate([("eu", 3), ("eu", 3), ("us", 3), ("eu", 16)]):
        count.add(letter(number, None, tries=tries, TAGS=tag))
    assert sorted((t.key.tag, t.key.tries, t.count) for t in count.tallies()) == [
        ("eu", 3, 2), ("eu", 16, 1), ("us", 3, 1),
    ]  # fmt: skip
    assert {(t.key.origin, t.key.kind) for t in count.tallies()} == {("orders", None)}


def test_a_cause_of_an_earlier_try_is_told_as_such() -> None:
    count = CauseCount()
    for tries in (2, 3, 4):  # in order, concurrently, and two tries later at another client
        count.add(letter(tries, "ValueError: x", tries=tries))
    assert count.tallies()[0].stale == 1


def test_a_letter_is_chosen_by_what_its_cause_is_called() -> None:
    mine = letter(1, "shop.Refused: card 7", "shop/pay.py:31 pay")
    cause: str | None
    where: str | None
    for cause in (key_of(mine).id, key_of(mine).folded().id, "shop.Refused", "shop.Refused: card 7",
                  "shop.Refused: card <n>"):  # fmt: skip
        assert is_of_cause(mine, cause, None), cause
    for where in ("shop/pay.py:31 pay", "shop/pay.py:31", "shop/pay.py"):
        assert is_of_cause(mine, None, where), where
    for cause, where in [("Refused", None), (None, "pay.py"), ("shop.Refused", "shop/pay.py:3")]:
        assert not is_of_cause(mine, cause, where)
    foreign = letter(2, None)
    assert is_of_cause(foreign, key_of(foreign).id, None)
    assert not is_of_cause(foreign, "not told", None)
    assert not is_of_cause(foreign, None, "shop/pay.py")


@given(st.text(), st.text(), st.one_of(st.none(), st.text()))
def test_a_cause_is_one_bounded_line_and_read_back(kind: str, text: str, where: str | None) -> None:
    properties = SendBackCause(kind or "E", text, where, 3).properties()
    for value in properties.values():
        assert len(value) <= 256
        assert value == "".join(c for c in value if c.isprintable())
    found = cause_of(properties)
    assert found is None or found.tries == 3


# --- the index ------------------------------------------------------------------------------------

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


def told_by(index: Index, **settings: int) -> tuple[int, int | None]:
    pages = list(
        Lookup(cast("Any", SimpleNamespace(client=None, wire=index))).pages(
            "a", "b", "t", "k", **settings
        )
    )
    every = [m.commit_log_offset for page in pages for m in page.fresh]
    assert len(every) == len(set(every))
    return len(every), pages[-1].floor_ms


def test_few_small_messages_are_one_answer() -> None:
    index = Index(5, 100)
    assert (told_by(index), len(index.asked)) == ((5, None), 1)
    assert told_by(Index(0, 100)) == (0, None)


def test_answers_that_end_by_count_or_by_bytes_are_asked_on() -> None:
    assert told_by(Index(200, 100)) == (200, None)
    assert told_by(Index(9, 3 * MIB)) == (9, None)
    assert told_by(Index(9, 100), most=2) == (9, None)


def test_where_no_answer_says_more_the_floor_is_told() -> None:
    """All within what the index calls one time, more than an answer holds."""
    assert told_by(Index(200, 100, per_ms=1_000)) == (MESSAGES_MAX, 0)
    assert told_by(Index(9, 3 * MIB, per_ms=1_000)) == (2, 0)

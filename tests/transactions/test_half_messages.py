"""Which half messages are undecided: rules of a check, and the two queues' progress."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from rocketstream.server.broker.core.transactions import (
    WAYS_KEPT_MAX,
    CheckRules,
    HalfFacts,
    HalfQueue,
    Verdict,
    judge,
    op_body,
    origin_of,
    read_op_body,
)

NOW = 1_700_000_000_000
RULES = CheckRules()


def half(age_ms: int, *, times: int = 0, immunity: int | None = None) -> HalfFacts:
    return HalfFacts(NOW - age_ms, times, immunity)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (half(5_999), Verdict.WAIT),
        (half(6_000), Verdict.CHECK),
        (half(6_000, immunity=10_000), Verdict.WAIT),
        (half(10_000, immunity=10_000), Verdict.CHECK),
        (half(1_000, immunity=500), Verdict.CHECK),
        (half(60_000, times=14), Verdict.CHECK),
        (half(60_000, times=15), Verdict.DISCARD),
        (half(0, times=15), Verdict.DISCARD),
        (half(72 * 3_600_000), Verdict.CHECK),
        (half(72 * 3_600_000 + 1), Verdict.DISCARD),
    ],
)
def test_age_immunity_and_count_decide(facts: HalfFacts, verdict: Verdict) -> None:
    """Covers C-418: 6 s or the message's immunity, 15 checks, 72 h."""
    assert judge(facts, NOW, RULES) is verdict


def test_facts_are_read_from_properties() -> None:
    """Covers C-418: a number that is none counts as not given, as upstream's -1 does."""
    given = {"TRANSACTION_CHECK_TIMES": "3", "CHECK_IMMUNITY_TIME_IN_SECONDS": "20"}
    assert HalfFacts.of(given, 1) == HalfFacts(1, 3, 20_000)
    junk = {"TRANSACTION_CHECK_TIMES": "x", "CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}
    assert HalfFacts.of(junk, 1) == HalfFacts(1, 0, None)
    zero = {"TRANSACTION_CHECK_TIMES": "-5", "CHECK_IMMUNITY_TIME_IN_SECONDS": "0"}
    assert HalfFacts.of(zero, 1) == HalfFacts(1, 0, 0)
    assert HalfFacts.of({}, 1) == HalfFacts(1) == HalfFacts(1, 0, None)
    assert HalfFacts.of({"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, 1).immunity_ms == 1_000
    assert origin_of({"TRAN_PREPARED_QUEUE_OFFSET": "7"}) == 7
    assert origin_of({"TRAN_PREPARED_QUEUE_OFFSET": "0"}) == 0
    assert origin_of({"TRAN_PREPARED_QUEUE_OFFSET": "-7"}) is None
    assert origin_of({"TRAN_PREPARED_QUEUE_OFFSET": "x"}) is None
    assert origin_of({}) is None


def test_op_bodies_of_4_9_and_5() -> None:
    """Covers C-417: one decimal number; 5.x puts several into one message (C-606)."""
    assert op_body(17) == b"17"
    assert read_op_body(b"17") == (17,)
    assert read_op_body(b"17,18,20,") == (17, 18, 20)
    assert read_op_body(b"\xff,x,-4") == ()
    assert read_op_body(b"0,-1,1") == (0, 1)


def test_begin_passes_decided_messages_only() -> None:
    """Covers C-418: both offsets advance to the first undecided position."""
    queue = HalfQueue(10, 5)
    for offset in range(10, 14):
        queue.stored(offset)
    queue.ended((11,))
    assert queue.advance() == (10, 5)
    assert queue.backlog == 1
    queue.ended((10,))
    assert queue.advance() == (12, 7)
    queue.ended((13,))
    assert queue.advance() == (12, 7)
    assert queue.pending() == [12]
    queue.ended((12,))
    assert queue.advance() == (14, 9)


def test_end_that_names_the_old_place_ends_the_copy() -> None:
    """Covers C-418: a producer may answer for the message while it is being put back."""
    queue = HalfQueue(0, 0)
    queue.stored(0)
    queue.put_back(0, 1, is_told=True)
    queue.put_back(1, 2, is_told=True)
    assert queue.pending() == [2]
    assert queue.current(0) == 2
    queue.ended((queue.current(0),))
    assert queue.pending() == []
    assert queue.is_ended(0)
    assert queue.is_ended(2)
    assert queue.advance() == (3, 3)


def test_place_that_is_left_decides_nothing_about_the_message() -> None:
    """Covers C-418: found at the start, before or after the copy it belongs to."""
    queue = HalfQueue(0, 0)
    for offset in range(3):
        queue.stored(offset)
    queue.stored(3, 0)
    queue.left((0,))
    queue.left((1,))
    assert queue.pending() == [2, 3]
    assert not queue.is_ended(0)
    assert queue.advance() == (2, 2)


def test_stored_copy_of_an_immune_message_knows_its_origin() -> None:
    """Covers C-418: what upstream puts back names the offset the producer knows."""
    queue = HalfQueue(4, 0)
    queue.stored(4, 2)
    queue.ended((2,))
    assert queue.pending() == []
    assert queue.advance() == (5, 1)


def test_discarded_and_missing_are_passed_but_not_ended() -> None:
    """Covers C-418: a late commit of a message that was given up is not lost."""
    queue = HalfQueue(0, 0)
    queue.stored(0)
    queue.stored(1)
    queue.discarded(0)
    queue.missing(1)
    assert queue.advance() == (2, 1)
    assert not queue.is_ended(0)


def test_memory_of_ends_is_bounded() -> None:
    """Covers C-606: what is remembered to notice second ends does not grow for ever."""
    queue = HalfQueue(0, 0)
    for offset in range(100_001):
        queue.ended((offset,))
    assert not queue.is_ended(0)
    assert queue.is_ended(1)
    assert queue.is_ended(100_000)


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["send", "end", "back", "restart"]), st.integers(0, 30)),
        max_size=60,
    )
)
def test_restart_finds_what_was_undecided(steps: list[tuple[str, int]]) -> None:
    """Covers C-418: the two logs from the stored offsets on say what the memory said."""
    halves = 0
    ops: list[int] = []
    queue = HalfQueue(0, 0)
    for what, number in steps:
        pending = queue.pending()
        if what == "send":
            queue.stored(halves)
            halves += 1
        elif what == "end" and pending:
            offset = pending[number % len(pending)]
            ops.append(offset)
            queue.ended((offset,))
        elif what == "back" and pending:
            offset = pending[number % len(pending)]
            ops.append(offset)
            queue.put_back(offset, halves, is_told=True)
            halves += 1
        elif what == "restart":
            begin, op_begin = queue.advance()
            fresh = HalfQueue(begin, op_begin)
            for offset in range(begin, halves):
                fresh.stored(offset)
            for offset in ops[op_begin:]:
                fresh.ended((offset,))
            assert fresh.pending() == pending
            assert fresh.advance() == (begin, op_begin)
            queue = fresh


def test_the_way_of_a_message_is_forgotten_with_its_decision() -> None:
    """Else every message ever put back stays in memory."""
    queue = HalfQueue(0, 0)
    queue.stored(0)
    queue.put_back(0, 1, is_told=True)
    queue.put_back(1, 2, is_told=True)
    assert [queue.current(offset) for offset in range(3)] == [2, 2, 2]
    queue.ended((2,))
    assert [queue.current(offset) for offset in range(3)] == [0, 1, 2]
    assert all(queue.is_ended(offset) for offset in range(3))


@pytest.mark.parametrize("origin", [4, 5, 9])
def test_a_message_that_names_itself_or_a_later_one_as_its_origin_stands_where_it_is(
    origin: int,
) -> None:
    """Properties come from clients: such a one must not send the search round in a circle."""
    queue = HalfQueue(0, 0)
    queue.stored(4, origin, 7.0)
    assert queue.current(4) == 4
    assert queue.current(origin) == origin
    assert queue.since_ms(4) == 7.0
    assert queue.pending() == [4]
    queue.ended((4,))
    assert queue.pending() == []


def test_a_message_put_back_has_waited_since_it_was_first_stored() -> None:
    """Covers C-418: else a message that is asked about again and again would never be too old."""
    queue = HalfQueue(0, 0)
    queue.stored(0, since_ms=5.0)
    queue.stored(1, since_ms=6.0)
    queue.put_back(0, 2, is_told=True)
    assert [queue.since_ms(offset) for offset in queue.pending()] == [6.0, 5.0]
    assert (queue.is_pending(0), queue.is_pending(2)) == (False, True)
    assert queue.backlog == 1
    queue.stored(3, 1, 99.0)
    assert queue.since_ms(3) == 6.0
    queue.stored(5, 4, 99.0)
    assert queue.since_ms(5) == 99.0


def test_places_nobody_was_told_of_are_no_part_of_the_way() -> None:
    """Else a message no producer can be asked about grows by a link a minute, for three days."""
    queue = HalfQueue(0, 0)
    queue.stored(0, since_ms=5.0)
    for copy in range(1, 10):
        queue.put_back(copy - 1, copy, is_told=copy in (1, 4))
    assert [queue.current(told) for told in (0, 1, 4)] == [9, 9, 9]
    assert len(queue._moved) == len(queue._came_from) == 3
    assert (queue.pending(), queue.since_ms(9)) == ([9], 5.0)
    queue.ended((queue.current(1),))
    assert all(queue.is_ended(told) for told in (0, 1, 4, 9))
    assert queue.advance() == (10, 10)
    assert (queue._moved, queue._came_from, queue._untold) == ({}, {}, set())


def test_the_ways_of_given_up_messages_are_kept_for_so_many() -> None:
    """A late end counts once, whichever place it names, and what is kept does not grow for ever."""
    queue = HalfQueue(0, 0)
    for number in range(WAYS_KEPT_MAX + 1):
        queue.stored(3 * number)
        queue.put_back(3 * number, 3 * number + 1, is_told=True)
        queue.put_back(3 * number + 1, 3 * number + 2, is_told=False)
        if number % 2:
            queue.discarded(3 * number + 2)
        else:
            queue.missing(3 * number + 2)
    assert len(queue._moved) == len(queue._came_from) == 2 * WAYS_KEPT_MAX
    assert not queue._untold
    assert [queue.current(place) for place in (0, 1, 2)] == [0, 1, 2]
    assert not any(queue.is_ended(place) for place in range(6))
    assert queue.current(3) == 5
    queue.ended((queue.current(3),))
    assert all(queue.is_ended(place) for place in (3, 4, 5))


def test_an_end_that_comes_twice_is_known() -> None:
    """Covers C-606: whichever place of the message it names."""
    queue = HalfQueue(0, 0)
    queue.stored(0)
    queue.put_back(0, 1, is_told=True)
    assert not queue.is_ended(1)
    queue.ended((0,))
    assert [queue.is_ended(offset) for offset in range(3)] == [True, True, False]
    assert queue.pending() == []
    queue.ended((0,))
    assert queue.pending() == []
    assert queue.advance() == (2, 3)


def test_what_is_gone_or_discarded_is_examined_no_more() -> None:
    """Also what nobody has heard of: the beginning moves past it."""
    queue = HalfQueue(3, 0)
    assert queue.advance() == (3, 0)
    queue.missing(3)
    assert queue.advance() == (4, 0)
    queue.stored(4)
    queue.stored(5)
    queue.discarded(4)
    queue.discarded(8)
    assert queue.pending() == [5]
    assert queue.advance() == (5, 1)
    assert queue.backlog == 1
    queue.missing(4)
    assert queue.advance() == (5, 1)
    queue.missing(5)
    assert queue.pending() == []
    assert queue.advance() == (6, 1)


def test_an_op_message_is_passed_when_all_it_names_is() -> None:
    """Covers C-417: 5.x names several in one; a restart needs it while one is undecided."""
    queue = HalfQueue(0, 7)
    for offset in range(4):
        queue.stored(offset)
    queue.ended((0, 3))
    assert queue.pending() == [1, 2]
    assert queue.advance() == (1, 7)
    queue.ended((1,))
    assert queue.advance() == (2, 7)
    queue.ended((2,))
    assert queue.advance() == (4, 10)
    assert queue.backlog == 0
    queue.ended(())
    assert queue.advance() == (4, 11)

"""Delay levels and what is due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.server.broker.core.schedule import (
    DEFAULT_DELAY_LEVELS,
    DelayedEntry,
    DelaySchedule,
    DueWork,
    PutRight,
    parse_delay_levels,
    queue_of_level,
)
from rocketstream.server.store.results import DELAY_LEVELS_MS_DEFAULT

NOW = 1_700_000_000_000


def entry(offset: int, due_ms: int) -> DelayedEntry:
    return DelayedEntry(offset, offset * 100, 100, due_ms)


def test_levels_are_read_with_their_units() -> None:
    """Covers C-403."""
    assert parse_delay_levels("1s 2m 3h 4d 5ms") == (1_000, 120_000, 10_800_000, 345_600_000, 5)
    assert parse_delay_levels(DEFAULT_DELAY_LEVELS) == DELAY_LEVELS_MS_DEFAULT


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "-1s", "1s,2s", "1.5s", "1s " * 65])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="delay levels"):
        parse_delay_levels(text)


def test_levels_are_clamped_and_have_their_queues() -> None:
    """Covers C-403, C-404."""
    schedule = DelaySchedule((1000, 5000))
    assert [schedule.clamp(level) for level in (1, 2, 3, 99)] == [1, 2, 2, 2]
    assert list(schedule.levels) == [1, 2]
    assert queue_of_level(2) == 1


def test_a_level_that_is_given_no_more_keeps_its_word() -> None:
    """Its messages are due when they were to be; none that is sent gets the level again."""
    schedule = DelaySchedule((1_000,))
    schedule.keep(3)
    assert list(schedule.levels) == [1, 2, 3]
    assert schedule.clamp(3) == 1
    day = 86_400_000
    for stored in (lambda each: -1, lambda each: NOW):
        last = entry(0, NOW + day)
        assert schedule.due(3, [last], NOW + 9, 1, stored) == DueWork([], NOW + day)
        assert schedule.due(3, [last], NOW + day, 1, stored) == DueWork([last], None)
    schedule.delivered(3, 1)
    schedule.keep(2)
    assert list(schedule.levels) == [1, 2, 3]


def test_a_level_that_is_given_no_more_waits_for_no_clock_that_was_set_back() -> None:
    """Two seconds became an hour where the clock was set back before the broker's next start."""
    hour_ms = 3_600_000
    schedule = DelaySchedule((1_000,))
    schedule.keep(2)
    entries = [entry(0, NOW + hour_ms + 2_000), entry(1, NOW + hour_ms + 20_100)]
    stored = stored_at(NOW + hour_ms, NOW + hour_ms + 100)
    assert schedule.due(2, entries, NOW, 2, stored) == DueWork([], NOW + 2_000)
    assert schedule.due(2, entries, NOW + 2_000, 2, stored) == DueWork(entries[:1], NOW + 20_000)
    assert schedule.due(2, entries[1:], NOW + 20_000, 2, stored).deliver == entries[1:]


def test_a_level_that_is_given_no_more_keeps_its_word_after_the_clock_was_set_back() -> None:
    """Times of storing never go back with it: two seconds became seven days."""
    schedule = DelaySchedule((1_000,))
    schedule.keep(2)
    last, stored = entry(0, NOW + 2_000), stored_at(NOW + 5_000)
    assert schedule.due(2, [last], NOW, 1, stored) == DueWork([], NOW + 2_000)
    assert schedule.due(2, [last], NOW + 2_000, 1, stored) == DueWork([last], None)


def test_due_entries_are_split_from_the_first_that_is_not() -> None:
    """Covers C-405: FIFO within a level."""
    schedule = DelaySchedule((1000,))
    entries = [entry(0, NOW - 1), entry(1, NOW), entry(2, NOW + 1), entry(3, NOW - 5)]
    work = schedule.due(1, entries, NOW, 4)
    assert [e.queue_offset for e in work.deliver] == [0, 1]
    assert work.next_due_ms == NOW + 1
    assert schedule.due(1, entries[:2], NOW, 4).next_due_ms is None


def test_due_time_beyond_the_level_waits_for_the_level_once_more() -> None:
    """Covers C-405: a clock, or a level, was ahead; upstream delivers at once, and so too early."""
    schedule = DelaySchedule((1000,))
    entries = [entry(0, NOW + 5_000), entry(1, NOW + 1_400)]
    assert schedule.due(1, entries, NOW, 2) == DueWork([], NOW + 1_000)
    later = entry(2, NOW + 1_600)  # stored 600 ms later, by a clock that was put right
    assert schedule.due(1, [*entries, later], NOW + 999, 3) == DueWork([], NOW + 1_000)
    assert schedule.due(1, [*entries, later], NOW + 1_000, 3) == DueWork(entries, NOW + 1_600)


def test_what_is_ahead_again_waits_again() -> None:
    schedule = DelaySchedule((1000,))
    schedule.due(1, [entry(0, NOW + 5_000)], NOW, 1)
    second = entry(1, NOW + 9_000)
    assert schedule.due(1, [second], NOW + 1_000, 2) == DueWork([], NOW + 2_000)
    assert schedule.due(1, [second], NOW + 2_000, 2) == DueWork([second], None)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_due_times_follow_the_wall_clock_and_are_kept_by_the_steady_one(jump_ms: int) -> None:
    """Covers C-405: a clock set between two messages hurries neither, nor holds it up."""
    schedule = DelaySchedule((1000,))
    before = entry(0, schedule.stamp(1, 0, NOW, NOW))
    after = entry(1, schedule.stamp(1, 1, NOW + 100 + jump_ms, NOW + 100))
    assert (before.due_ms, after.due_ms) == (NOW + 1_000, NOW + 1_100 + jump_ms)
    entries = [before, after]
    assert schedule.due(1, entries, NOW + 999, 2) == DueWork([], NOW + 1_000)
    assert schedule.due(1, entries, NOW + 1_000, 2) == DueWork([before], NOW + 1_100)
    schedule.delivered(1, 1)
    assert schedule.due(1, [after], NOW + 1_100, 2) == DueWork([after], None)
    restarted = DelaySchedule((1000,))  # its steady clock begins with the wall clock
    assert restarted.due(1, [after], NOW + 500 + jump_ms, 2).next_due_ms == after.due_ms


def test_drift_of_the_wall_clock_is_no_jump() -> None:
    schedule = DelaySchedule((1000,))
    due = [schedule.stamp(1, offset, NOW + offset * 9, NOW + offset * 10) for offset in range(90)]
    assert due == [NOW + offset * 10 + 1_000 for offset in range(90)]


def test_offset_outside_the_queue_is_corrected() -> None:
    """Covers C-409."""
    schedule = DelaySchedule((1000,))
    assert schedule.correct(1, 5, 9) == 5
    assert schedule.generation == 1
    assert schedule.correct(1, 0, 9) == 5
    assert schedule.generation == 1
    assert schedule.correct(1, 0, 3) == 3
    schedule.delivered(1, 4)
    assert schedule.snapshot().offset_table == {1: 4}


def test_a_level_that_delivered_nothing_is_at_its_beginning() -> None:
    assert DelaySchedule((1000,)).offset(1) == 0


def test_a_clock_that_was_set_counts_from_its_message_on_until_all_before_are_delivered() -> None:
    """And what a repaired store brings back from before that counts as written by no other."""
    schedule = DelaySchedule((1000,))
    for offset in range(5):
        schedule.stamp(1, offset, NOW, NOW)
    schedule.stamp(1, 5, NOW + 3_600_000, NOW)
    ahead = entry(5, NOW + 3_601_000)
    for delivered in range(5):
        schedule.delivered(1, delivered)
        assert schedule.generation == delivered + 1
        assert schedule.due(1, [entry(4, NOW + 1_000)], NOW, 6) == DueWork([], NOW + 1_000)
        assert schedule.due(1, [ahead], NOW, 6) == DueWork([], NOW + 1_000)
    schedule.delivered(1, 5)
    assert schedule.due(1, [ahead], NOW, 6) == DueWork([], NOW + 1_000)
    assert schedule.due(1, [entry(4, NOW + 700)], NOW, 6) == DueWork([], NOW + 700)


def test_a_clock_that_was_set_twice_counts_for_what_was_stored_between() -> None:
    """Each setting is forgotten when all that was stored under it has been delivered."""
    schedule = DelaySchedule((1_000,))
    hours = {0: 1, 10: 2, 20: 3}  # what the clock was ahead, from which offset on
    for offset, hour in hours.items():
        schedule.stamp(1, offset, NOW + hour * 3_600_000, NOW)
    waiting = {offset: entry(offset, NOW + h * 3_600_000 + 500) for offset, h in hours.items()}
    between = entry(15, NOW + 2 * 3_600_000 + 500)
    for delivered in (5, 10, 12):
        schedule.delivered(1, delivered)
        for each in (between, waiting[20]):
            assert schedule.due(1, [each], NOW, 21) == DueWork([], NOW + 500)
    schedule.delivered(1, 20)
    assert schedule.due(1, [waiting[20]], NOW, 21) == DueWork([], NOW + 500)


def test_sixty_four_levels_are_the_most() -> None:
    assert parse_delay_levels("1s " * 64) == (1_000,) * 64
    assert parse_delay_levels("999999999d") == (999_999_999 * 86_400_000,)
    with pytest.raises(ConfigurationError):
        parse_delay_levels("1000000000d")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_is_set_when_it_moves_by_a_second(sign: int) -> None:
    """Less is drift, as it comes between two corrections by the network's time."""
    schedule = DelaySchedule((1000,))
    assert schedule.stamp(1, 0, NOW + sign * 999, NOW) == NOW + 1_000
    assert schedule.stamp(1, 1, NOW + sign * 1_000, NOW) == NOW + sign * 1_000 + 1_000
    assert schedule.stamp(1, 2, NOW + sign * 1_999, NOW) == NOW + sign * 1_000 + 1_000
    assert schedule.stamp(1, 3, NOW, NOW) == NOW + 1_000
    dues = [entry(0, NOW + 1_000), entry(1, NOW + 1_000 + sign * 1_000), entry(3, NOW + 1_000)]
    for each in dues:
        assert schedule.due(1, [each], NOW, 4).next_due_ms == NOW + 1_000
    for delivered in range(1, 5):
        schedule.delivered(1, delivered)
        assert schedule.due(1, dues[2:], NOW, 4).next_due_ms == NOW + 1_000


def test_each_level_has_its_own_offset_and_its_own_clock() -> None:
    schedule = DelaySchedule((1_000, 60_000))
    assert (schedule.delay_ms(1), schedule.delay_ms(2)) == (1_000, 60_000)
    assert schedule.generation == 0
    schedule.stamp(1, 0, NOW + 5_000, NOW)
    assert schedule.stamp(2, 0, NOW + 10, NOW) == NOW + 60_000
    assert schedule.due(2, [entry(0, NOW + 60_000)], NOW, 1) == DueWork([], NOW + 60_000)
    schedule.delivered(1, 3)
    schedule.delivered(2, 9)
    assert (schedule.offset(1), schedule.offset(2), schedule.generation) == (3, 9, 2)
    restarted = DelaySchedule((1_000, 60_000))
    restarted.load(schedule.snapshot())
    assert (restarted.offset(1), restarted.offset(2), restarted.generation) == (3, 9, 0)


def test_a_due_time_of_just_the_level_from_now_is_not_ahead() -> None:
    """Else what is stored a moment later would be delivered with it, a moment too early."""
    schedule = DelaySchedule((1000,))
    entries = [entry(0, NOW + 1_000), entry(1, NOW + 1_005)]
    assert schedule.due(1, entries, NOW, 2) == DueWork([], NOW + 1_000)
    assert schedule.due(1, entries, NOW + 1_000, 2) == DueWork(entries[:1], NOW + 1_005)


def test_an_entry_that_is_ahead_holds_up_none_that_was_due_sooner() -> None:
    schedule = DelaySchedule((1000,))
    entries = [entry(0, NOW + 300), entry(1, NOW + 9_000), entry(2, NOW + 400)]
    assert schedule.due(1, entries, NOW, 3) == DueWork([], NOW + 300)
    assert schedule.due(1, entries, NOW + 300, 3) == DueWork(entries[:1], NOW + 1_300)
    assert schedule.due(1, entries[1:], NOW + 1_299, 3) == DueWork([], NOW + 1_300)
    assert schedule.due(1, entries[1:], NOW + 1_300, 3) == DueWork(entries[1:], None)


# --- due times that no level can have -------------------------------------------------------------


def stored_at(*times_ms: int) -> Callable[[DelayedEntry], int]:
    return lambda each: times_ms[each.queue_offset]


LEVELS = (1_000, 10_000, 60_000)


@pytest.mark.parametrize("flip", [13, 20, 33, 40])
def test_due_time_flipped_upwards_holds_nobody_up(flip: int) -> None:
    """A flipped bit of a unit: by when its message was stored it is due, and it is told once."""
    schedule = DelaySchedule(LEVELS)
    wrong = entry(0, NOW + 10_000 + (1 << flip))
    entries = [wrong, entry(1, NOW + 10_100)]
    stored = stored_at(NOW, NOW + 100)
    right = PutRight(wrong, NOW + 10_000)
    assert schedule.due(2, entries, NOW + 9_999, 2, stored) == DueWork([], NOW + 10_000, (right,))
    assert schedule.due(2, entries, NOW + 9_999, 2, stored) == DueWork([], NOW + 10_000)
    work = schedule.due(2, entries, NOW + 10_000, 2, stored)
    assert work == DueWork([wrong], NOW + 10_100)


@pytest.mark.parametrize("flip", [13, 20, 33, 40])
def test_due_time_flipped_downwards_is_not_delivered_early(flip: int) -> None:
    schedule = DelaySchedule(LEVELS)
    wrong = entry(0, NOW + 60_000 - (1 << flip))
    entries = [wrong, entry(1, NOW + 60_100)]
    work = schedule.due(3, entries, NOW + 50_000, 2, stored_at(NOW, NOW + 100))
    assert work == DueWork([], NOW + 60_000, (PutRight(wrong, NOW + 60_000),))


@pytest.mark.parametrize(("due_ms", "is_wrong"), [(-5_000, True), (70_001, True), (30_000, False)])
def test_last_entry_is_put_right_where_no_level_at_all_waits_so(
    due_ms: int, is_wrong: bool
) -> None:
    """It holds up nobody; other levels may have been set when it was stored."""
    schedule = DelaySchedule(LEVELS)
    last = entry(0, NOW + due_ms)
    work = schedule.due(2, [last], NOW, 1, stored_at(NOW))
    assert bool(work.put_right) == is_wrong
    assert work.next_due_ms == NOW + 10_000, "at the latest"


@pytest.mark.parametrize("before_ms", [4_000, 25_000, 300_000])
def test_messages_of_other_levels_are_due_as_those_said(before_ms: int) -> None:
    """The levels were changed, from one that no list has too: neighbours wait as long."""
    schedule = DelaySchedule((before_ms // 2 + 20_000,))
    times = [NOW, NOW + 100, NOW + 200]
    entries = [entry(n, at + before_ms) for n, at in enumerate(times)]
    fresh = entry(3, NOW + 300 + schedule.delay_ms(1))
    stored = stored_at(*times, NOW + 300)
    now_ms = NOW + before_ms // 2
    for index in range(3):
        work = schedule.due(1, [*entries, fresh][index : index + 2], now_ms, 4, stored)
        assert work.put_right == ()
        assert work.next_due_ms == min(entries[index].due_ms, now_ms + schedule.delay_ms(1))


@pytest.mark.parametrize("flip", [20, 33])
def test_unit_is_believed_where_its_record_says_the_impossible(flip: int) -> None:
    """The time in the record is damaged: the entries of a level are due in their order."""
    for stored in (NOW + (1 << flip), NOW - (1 << flip)):
        schedule = DelaySchedule(LEVELS)
        entries = [entry(0, NOW + 10_000), entry(1, NOW + 10_100)]
        work = schedule.due(2, entries, NOW, 2, stored_at(stored, NOW + 100))
        assert work == DueWork([], NOW + 10_000)


def test_message_that_is_gone_keeps_its_due_time() -> None:
    schedule = DelaySchedule(LEVELS)
    entries = [entry(0, NOW + 7), entry(1, NOW + 8)]
    assert schedule.due(2, entries, NOW, 2, lambda each: -1) == DueWork([], NOW + 7)

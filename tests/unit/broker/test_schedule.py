"""Delay levels and what is due."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.server.broker.core.schedule import (
    DEFAULT_DELAY_LEVELS,
    DelayedEntry,
    DelaySchedule,
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


def test_due_entries_are_split_from_the_first_that_is_not() -> None:
    """Covers C-405: FIFO within a level."""
    schedule = DelaySchedule((1000,))
    entries = [entry(0, NOW - 1), entry(1, NOW), entry(2, NOW + 1), entry(3, NOW - 5)]
    work = schedule.due(1, entries, NOW)
    assert [e.queue_offset for e in work.deliver] == [0, 1]
    assert work.next_due_ms == NOW + 1
    assert schedule.due(1, entries[:2], NOW).next_due_ms is None


def test_due_time_beyond_the_level_counts_as_due() -> None:
    """Covers C-405: it was written under a clock, or a level, that was ahead."""
    schedule = DelaySchedule((1000,))
    assert len(schedule.due(1, [entry(0, NOW + 1001)], NOW).deliver) == 1
    assert len(schedule.due(1, [entry(0, NOW + 1000)], NOW).deliver) == 0


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

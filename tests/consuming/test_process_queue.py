"""The process queue of one queue: what may be committed, whatever order messages finish in."""

from __future__ import annotations

import itertools
import random
import sys
from types import FrameType
from typing import Any

import pytest

from rocketstream.client.consumer.process_queue import (
    MIB,
    PULL_MAX_IDLE_MS,
    FlowControl,
    ProcessQueue,
    Thresholds,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from tests.kits.client.queued import queued

QUEUE = MessageQueue("T", "broker-a", 0)


def msgs(*offsets: int, size: int = 10) -> list[MessageExt]:
    return [queued(offset, size) for offset in offsets]


@pytest.fixture
def process_queue() -> ProcessQueue:
    return ProcessQueue(QUEUE, now_ms=0)


def test_commit_point_is_the_smallest_unfinished_offset(process_queue: ProcessQueue) -> None:
    """Covers C-240, C-242: the reference's own example."""
    process_queue.put(msgs(0, 1, 2))
    assert process_queue.remove(msgs(1)) == 0
    assert process_queue.remove(msgs(0)) == 2
    assert process_queue.remove(msgs(2)) == 3


def test_finishing_behind_a_running_message_keeps_its_offset(process_queue: ProcessQueue) -> None:
    """Covers C-241: finishing 5, 6, 7 while 4 runs keeps 4."""
    process_queue.put(msgs(4, 5, 6, 7))
    assert process_queue.remove(msgs(5, 6, 7)) == 4
    assert process_queue.remove(msgs(4)) == 8


def test_finishing_into_an_empty_process_queue_moves_nothing(process_queue: ProcessQueue) -> None:
    """Covers C-240: -1 means no offset update."""
    assert process_queue.remove(msgs(3)) == -1


def test_a_message_put_twice_counts_once(process_queue: ProcessQueue) -> None:
    """Covers C-237."""
    assert [m.queue_offset for m in process_queue.put(msgs(0, 1))] == [0, 1]
    assert [m.queue_offset for m in process_queue.put(msgs(1, 2))] == [2]
    assert (process_queue.message_count, process_queue.body_bytes) == (3, 30)


def test_sizes_follow_the_stored_body(process_queue: ProcessQueue) -> None:
    """Covers C-252, C-593: counts return to zero exactly."""
    process_queue.put([queued(0, 100), queued(1, 50), queued(2, 7)])
    process_queue.remove([queued(1, 50)])
    assert process_queue.body_bytes == 107
    process_queue.remove([queued(0, 100), queued(2, 7)])
    assert (process_queue.message_count, process_queue.body_bytes) == (0, 0)


def test_span_is_between_the_ends_still_cached(process_queue: ProcessQueue) -> None:
    """Covers C-209, C-246: a lone stuck message has span 0."""
    assert process_queue.max_span == 0
    process_queue.put(msgs(10, 11, 500))
    assert process_queue.max_span == 490
    process_queue.remove(msgs(500))
    assert process_queue.max_span == 1
    process_queue.remove(msgs(11))
    assert (process_queue.max_span, process_queue.min_offset) == (0, 10)


def test_a_queue_that_never_held_anything_tells_no_largest_offset(
    process_queue: ProcessQueue,
) -> None:
    """Covers C-239: what tools are told of it begins at 0."""
    assert process_queue.queue_offset_max == 0
    assert (process_queue.min_offset, process_queue.max_span) == (-1, 0)


@pytest.mark.parametrize("offsets", [(1, 3, 2), (3, 2, 1), (2, 2, 1, 3)])
def test_an_answer_in_no_order_is_passed_by_its_smallest_unfinished_offset(
    process_queue: ProcessQueue, offsets: tuple[int, ...]
) -> None:
    """Covers C-239, C-240."""
    process_queue.put(msgs(*offsets))
    assert [process_queue.remove(msgs(offset)) for offset in (1, 2, 3)] == [
        2,
        3,
        process_queue.queue_offset_max + 1,
    ]


def test_expired_message_leaves_the_others(process_queue: ProcessQueue) -> None:
    """Covers C-250: the late result of an expired message removes nothing more."""
    late = queued(0)
    process_queue.put([late, queued(1)])
    assert process_queue.remove([late]) == 1
    assert process_queue.remove([late]) == 1
    assert process_queue.message_count == 1
    assert late not in process_queue
    assert queued(1) in process_queue


@pytest.mark.parametrize("seed", range(20))
def test_commit_point_never_passes_an_unfinished_message(seed: int) -> None:
    """Covers C-235, C-241: any order of pulls and completions, gaps and repeats included."""
    rng = random.Random(seed)
    process_queue = ProcessQueue(QUEUE, 0)
    unfinished: dict[int, MessageExt] = {}
    offset = last = 0
    for _ in range(400):
        if rng.random() < 0.5:
            batch = []
            for _ in range(rng.randint(1, 5)):
                offset += rng.randint(1, 3)
                batch.append(queued(offset, rng.randint(1, 9)))
            last = offset
            process_queue.put(batch)
            unfinished.update({m.queue_offset: m for m in batch})
        elif unfinished:
            chosen = rng.sample(sorted(unfinished), rng.randint(1, min(4, len(unfinished))))
            done = [unfinished.pop(o) for o in chosen]
            expected = min(unfinished) if unfinished else last + 1
            assert process_queue.remove(done) == expected
        assert process_queue.first is (unfinished[min(unfinished)] if unfinished else None)
        assert process_queue.message_count == len(unfinished)
        assert process_queue.body_bytes == sum(m.body_size for m in unfinished.values())
        span = max(unfinished) - min(unfinished) if unfinished else 0
        assert process_queue.max_span == span


def test_offsets_out_of_order_do_not_break_the_commit_point(process_queue: ProcessQueue) -> None:
    """A broker that answers out of order is odd, and still nothing is passed."""
    process_queue.put(msgs(5, 4, 9))
    process_queue.put(msgs(2))
    assert process_queue.min_offset == 2
    assert process_queue.remove(msgs(2)) == 4
    assert process_queue.remove(msgs(4, 5)) == 9


@pytest.mark.parametrize("line", range(1, 8))
def test_a_queue_dropped_in_the_middle_of_another_change_stays_dropped(
    process_queue: ProcessQueue, line: int
) -> None:
    """Covers C-549: another thread drops it, after any line of what lets the next pull go."""
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and next(lines) == line:
            process_queue.drop()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        process_queue.leave()
    finally:
        sys.settrace(before)
    if next(lines) <= line:
        process_queue.drop()
    assert (process_queue.dropped, process_queue.leaving) == (True, True)


def test_pull_expiry_spares_a_queue_that_waits_for_flow_control(
    process_queue: ProcessQueue,
) -> None:
    """Covers C-176: only a silent loop is dead, strictly after 120 s."""
    assert not process_queue.is_pull_expired(PULL_MAX_IDLE_MS)
    assert process_queue.is_pull_expired(PULL_MAX_IDLE_MS + 1)
    process_queue.flow_controlled = True
    assert not process_queue.is_pull_expired(PULL_MAX_IDLE_MS + 1)


# --- flow control -----------------------------------------------------------------------------


def test_exactly_the_count_threshold_does_not_stop_a_pull(process_queue: ProcessQueue) -> None:
    """Covers C-203, C-204."""
    bounds = Thresholds(count=3)
    process_queue.put(msgs(0, 1, 2))
    assert process_queue.held_by(bounds) is None
    process_queue.put(msgs(3))
    assert process_queue.held_by(bounds) is FlowControl.COUNT


def test_size_is_cut_to_whole_mebibytes_first(process_queue: ProcessQueue) -> None:
    """Covers C-204: 1 MiB and a fraction pass a limit of 1."""
    bounds = Thresholds(size_mib=1)
    process_queue.put([queued(0, 2 * MIB - 1)])
    assert process_queue.held_by(bounds) is None
    process_queue.put([queued(1, 1)])
    assert process_queue.held_by(bounds) is FlowControl.SIZE


def test_span_counts_offsets_not_messages(process_queue: ProcessQueue) -> None:
    """Covers C-209."""
    bounds = Thresholds(span=2000)
    process_queue.put(msgs(0, 2000))
    assert process_queue.held_by(bounds) is None
    process_queue.put(msgs(2001))
    assert process_queue.held_by(bounds) is FlowControl.SPAN


def test_topic_thresholds_are_shared_by_all_queues() -> None:
    """Covers C-183, C-184: 1000 over four queues and the retry queue."""
    assert Thresholds().shared(1000, -1, 5).count == 200
    assert Thresholds().shared(1000, 7, 5).size_mib == 1
    assert Thresholds().shared(3, 2, 5) == Thresholds(1, 1, 2000)
    assert Thresholds().shared(-1, -1, 5) == Thresholds()
    assert Thresholds().shared(10, 10, 0) == Thresholds()


def test_what_was_filtered_out_behind_the_last_message_counts_with_it(
    process_queue: ProcessQueue,
) -> None:
    """Covers C-227, C-569: the offset goes past the filtered tail when the last one finishes."""
    process_queue.put(msgs(0, 3))
    process_queue.passed_to = 9
    assert process_queue.remove(msgs(3)) == 0
    assert process_queue.remove(msgs(0)) == 9
    process_queue.put(msgs(9, 12))
    process_queue.passed_to = 13
    assert process_queue.remove(msgs(9, 12)) == 13


def test_offsets_far_apart_twice_in_one_pull_or_out_of_order_are_each_counted_once(
    process_queue: ProcessQueue,
) -> None:
    """Covers C-237: what a broker of ours never sends, but one may."""
    far = 2**62
    assert [m.queue_offset for m in process_queue.put(msgs(3, far))] == [3, far]
    assert [m.queue_offset for m in process_queue.put(msgs(9, 5, 9, 3))] == [9, 5]
    assert (process_queue.message_count, process_queue.body_bytes, process_queue.min_offset) == (
        4,
        40,
        3,
    )
    assert process_queue.remove(msgs(3, 9)) == 5
    assert process_queue.remove(msgs(5)) == far

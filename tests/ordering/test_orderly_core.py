"""What consuming in order means, decided without threads."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from rocketstream._util.clock import SYSTEM_CLOCK, SystemClock
from rocketstream.client.consumer.consume.orderly_queue import Lease, OrderlyProcessQueue
from rocketstream.client.consumer.listener import (
    USE_SETTING,
    Step,
    split_by_tries,
    step_of,
    suspend_ms,
)
from rocketstream.client.consumer.process_queue import ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue, OrderlyQueue, QueueLinks
from rocketstream.client.consumer.retry import (
    RECONSUME_FOREVER,
    dead_letter_message,
    fallback_message,
    orderly_max_reconsume_times,
)
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from tests.kits.client.queued import queued

SUCCESS, COMMIT, ROLLBACK, SUSPEND = (
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.COMMIT,
    ConsumeOrderlyStatus.ROLLBACK,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
)


def msgs(*offsets: int) -> list[MessageExt]:
    return [queued(offset) for offset in offsets]


@pytest.fixture
def process_queue() -> OrderlyProcessQueue:
    return OrderlyProcessQueue(MessageQueue("T", "b", 0), 0.0, None)


@pytest.mark.parametrize(
    ("status", "auto", "manual"),
    [
        (SUCCESS, Step.COMMIT, Step.KEEP),
        (COMMIT, Step.COMMIT, Step.COMMIT),
        (ROLLBACK, Step.AGAIN, Step.ROLLBACK),
        (SUSPEND, Step.AGAIN, Step.AGAIN),
    ],
)
def test_each_status_means_one_thing(
    status: ConsumeOrderlyStatus, auto: Step, manual: Step
) -> None:
    """Covers C-285, C-591."""
    assert (step_of(status, True), step_of(status, False)) == (auto, manual)


@pytest.mark.parametrize(
    ("asked", "setting", "pause"),
    [(USE_SETTING, 1_000, 1_000), (5, 1_000, 10), (10, 0, 10), (30_001, 0, 30_000),
     (USE_SETTING, 99_999, 30_000), (0, 1_000, 10), (-2, 1_000, 10)],
)  # fmt: skip
def test_a_pause_is_between_10_ms_and_30_s(asked: int, setting: int, pause: int) -> None:
    """Covers C-41, C-284, C-641."""
    assert suspend_ms(asked, setting) == pause


def test_a_lease_is_trusted_for_its_time_and_not_longer() -> None:
    """Covers C-236, C-298: strictly more than 30 s; counted from when the broker was asked."""
    lease = Lease(1_000, 30_000)
    assert lease.is_valid(31_000)
    assert not lease.is_valid(31_001)
    lease.renew(21_000)
    lease.renew(15_000)  # an answer that was overtaken
    assert lease.is_valid(51_000)
    lease.lose()
    assert not lease.is_valid(21_000)
    lease.renew(52_000)
    assert lease.is_valid(52_000)


def test_tries_are_counted_against_the_limit() -> None:
    """Covers C-40, C-287: at the limit a message is spent; -1 is no limit worth the name."""
    assert orderly_max_reconsume_times(-1) == RECONSUME_FOREVER == 2_147_483_647
    assert orderly_max_reconsume_times(0) == 0
    fresh, last, over = (
        queued(reconsume_times=1),
        queued(reconsume_times=2),
        queued(reconsume_times=7),
    )
    assert split_by_tries([fresh, last, over], 2) == ([last, over], [fresh])


def test_the_smallest_offsets_are_taken_until_nothing_is_left(
    process_queue: OrderlyProcessQueue,
) -> None:
    """Covers C-243."""
    process_queue.put(msgs(0, 1, 2))
    assert [m.queue_offset for m in process_queue.take(2)] == [0, 1]
    assert [m.queue_offset for m in process_queue.take(2)] == [2]
    assert process_queue.take(2) == []


def test_a_commit_is_behind_what_is_not_taken(process_queue: OrderlyProcessQueue) -> None:
    """Covers C-244, C-245: everything taken is finished; what came back is not."""
    process_queue.put(msgs(3, 4, 5, 9))
    process_queue.take(2)
    assert process_queue.commit() == 5
    assert process_queue.commit() == -1, "nothing taken"
    process_queue.take(2)
    process_queue.consume_again(msgs(9))
    assert process_queue.taken_offsets == [5]
    assert process_queue.commit() == 9
    process_queue.take(1)
    process_queue.rollback()
    assert (process_queue.taken_offsets, process_queue.message_count) == ([], 1)
    process_queue.take(1)
    assert process_queue.commit() == 10


def test_a_broker_that_answers_out_of_order_cannot_break_the_commit(
    process_queue: OrderlyProcessQueue,
) -> None:
    """Covers C-239, C-244: the smallest unfinished offset bounds it."""
    process_queue.put(msgs(5, 6))
    process_queue.take(2)
    process_queue.put(msgs(2, 3))
    assert process_queue.commit() == 2
    assert [m.queue_offset for m in process_queue.take(4)] == [2, 3]


def test_what_comes_between_those_that_wait_is_taken_in_its_place(
    process_queue: OrderlyProcessQueue,
) -> None:
    """Covers C-243: by offset, however the answers came."""
    process_queue.put(msgs(1, 9))
    assert [m.queue_offset for m in process_queue.put(msgs(5, 9))] == [5]
    assert [m.queue_offset for m in process_queue.take(3)] == [1, 5, 9]
    process_queue.put(msgs(11, 16))
    process_queue.put(msgs(13, 18))
    assert [m.queue_offset for m in process_queue.take(4)] == [11, 13, 16, 18]
    process_queue.put(msgs(22, 21, 23))
    assert [m.queue_offset for m in process_queue.take(3)] == [21, 22, 23]


def test_what_was_taken_and_given_back_is_taken_again_in_its_place(
    process_queue: OrderlyProcessQueue,
) -> None:
    """Covers C-245, C-246: and what is not taken is not finished either; its span is never told."""
    process_queue.put(msgs(1, 6))
    process_queue.take(2)
    process_queue.put(msgs(4, 8))
    assert process_queue.finish(msgs(8)) == -1
    assert process_queue.max_span == 0
    process_queue.rollback()
    assert [m.queue_offset for m in process_queue.take(4)] == [1, 4, 6, 8]


def test_dead_letters_are_over_the_limit_of_every_broker() -> None:
    """Covers C-289, C-290, C-401, C-592: 4.x compares with >=, 5.x with >; no delay stays."""
    given = {"DELAY": "5", "TRAN_MSG": "true", "KEYS": "k", "MIN_OFFSET": "0"}
    dead = dead_letter_message(
        "g", "T", given, origin_message_id="ID", reconsume_times=2, max_times=2
    )
    assert (dead.topic, dead.reconsume_times, dead.max_reconsume_times) == ("%RETRY%g", 2, 1)
    assert dead.properties == {
        "KEYS": "k",
        "ORIGIN_MESSAGE_ID": "ID",
        "RETRY_TOPIC": "T",
        "RECONSUME_TIME": "2",
        "MAX_RECONSUME_TIMES": "2",
    }
    assert given["DELAY"] == "5", "the message in memory is left alone (C-272)"


def test_the_counts_of_a_fallback_are_those_of_its_properties() -> None:
    """Covers C-271, C-402, C-586."""
    sent = fallback_message(
        "g", "T", {}, origin_message_id="ID", reconsume_times=1, delay_level=0, max_times=16
    )
    assert (sent.reconsume_times, sent.max_reconsume_times) == (2, 17)
    assert sent.properties["DELAY"] == "4"


def test_a_lock_in_doubt_is_told_without_a_time() -> None:
    """Covers C-540: an operator may ask while nobody knows since when the broker has the lock."""
    lease = Lease(1_000.0, 30_000.0)
    links = QueueLinks(cast(Any, None), print, print, SYSTEM_CLOCK)
    queue = OrderlyQueue(
        OrderlyProcessQueue(MessageQueue("T", "b", 0), 0.0, lease), 7, Thresholds(), links, None
    )
    assert queue.info(7).last_lock_timestamp > 0
    lease.doubt()
    info = queue.info(7)
    assert (info.commit_offset, info.locked, info.last_lock_timestamp) == (7, True, 0)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="one clock is Linux' alone")
def test_a_lease_ends_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux' monotonic clock stood still meanwhile, and a batch more began under the old lease."""
    read, suspended_ns = time.clock_gettime_ns, 0

    def clock_gettime_ns(clock: int) -> int:
        return read(clock) + (suspended_ns if clock == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime_ns", clock_gettime_ns)
    lease = Lease(SYSTEM_CLOCK.monotonic_ms(), live_ms=30_000.0)
    assert lease.is_valid(SYSTEM_CLOCK.monotonic_ms())
    suspended_ns = 60_000_000_000
    assert not lease.is_valid(SYSTEM_CLOCK.monotonic_ms())


class _Drifting(SystemClock):
    """A wall clock whose whole milliseconds begin elsewhere at each reading."""

    readings = 0

    def now_ms(self) -> int:
        self.readings += 1
        return super().now_ms() + self.readings % 2


def test_the_time_of_one_event_is_told_the_same_at_each_question() -> None:
    """Covers C-540: operators see by it whether anything was consumed in between."""
    links = QueueLinks(cast(Any, None), print, print, _Drifting())
    queue = AssignedQueue(ProcessQueue(MessageQueue("T", "b", 0), 5.0), 7, Thresholds(), links)
    told = {(i.last_pull_timestamp, i.last_consume_timestamp) for i in map(queue.info, [7] * 4)}
    assert len(told) == 1

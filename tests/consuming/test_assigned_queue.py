"""One assigned queue: what it tells, what it holds back, and who waits until it is free."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import MessageExt, MessageQueue
from rocketstream.client.consumer.consume.orderly_queue import Lease, OrderlyProcessQueue, Stage
from rocketstream.client.consumer.process_queue import FlowControl, ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue, OrderlyQueue, QueueLinks
from tests.kits.client.fake_broker import TOPIC
from tests.kits.client.model_cluster import StillLoop
from tests.kits.client.queued import queued

MQ = MessageQueue(TOPIC, "broker-a", 0)
NOW_MS, MONOTONIC_MS = 5_000_000, 1_000.0


class Around:
    """What a queue is connected with."""

    def __init__(self) -> None:
        self.updated: list[int] = []
        self.noted: int | None = 5
        self.stored: int | None = 5
        self.pulled: list[AssignedQueue] = []
        self.submitted: list[tuple[AssignedQueue, list[MessageExt]]] = []
        clock = SimpleNamespace(now_ms=lambda: NOW_MS, monotonic_ms=lambda: MONOTONIC_MS)
        self.links = QueueLinks(
            cast(Any, self),
            self.pulled.append,
            lambda queue, messages: self.submitted.append((queue, messages)),
            cast(Any, clock),
        )

    def update_offset(self, mq: MessageQueue, offset: int) -> None:
        assert mq == MQ
        self.updated.append(offset)

    def read_memory(self, mq: MessageQueue) -> int | None:
        return self.noted

    async def read_store(self, mq: MessageQueue) -> int | None:
        return self.stored

    def queue(self, **thresholds: int) -> AssignedQueue:
        return AssignedQueue(ProcessQueue(MQ, 300), 7, Thresholds(**thresholds), self.links)

    def orderly(self, former: OrderlyQueue | None = None) -> OrderlyQueue:
        held = OrderlyProcessQueue(MQ, 300, Lease(MONOTONIC_MS, 100))
        return OrderlyQueue(held, 7, Thresholds(), self.links, former)


@pytest.fixture
def around() -> Around:
    return Around()


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    made = StillLoop()
    yield made
    made.close()


def messages(*offsets: int, size: int = 10) -> list[MessageExt]:
    return [queued(offset, size) for offset in offsets]


# --- its standing -------------------------------------------------------------------------------


def test_a_new_queue_is_ours_and_free(around: Around) -> None:
    queue = around.queue()
    assert (queue.message_queue, queue.pull_offset, queue.epoch) == (MQ, 7, 0)
    assert (queue.leaving, queue.dropped, queue.is_free) == (False, False, True)


@pytest.mark.parametrize("how", ["leave", "drop"])
def test_a_queue_that_leaves_has_another_epoch(around: Around, how: str) -> None:
    """Covers C-199, C-549: 1, however often it is told to leave."""
    queue = around.queue()
    for _ in range(2):
        getattr(queue, how)()
        assert (queue.leaving, queue.epoch) == (True, 1)
        assert queue.process_queue.leaving
        assert queue.dropped is (how == "drop")


def test_pulls_that_began_long_ago_have_died(around: Around) -> None:
    """Covers C-176."""
    queue = around.queue()
    assert not queue.is_pull_expired(120_300)
    assert queue.is_pull_expired(120_301)
    queue.pull_begins(500)
    assert not queue.is_pull_expired(120_500)


def test_operators_are_told_what_is_cached(around: Around) -> None:
    """Covers C-540: times by the clock on the wall."""
    queue = around.queue()
    queue.put(messages(3, 9, size=3 << 20), 20)
    queue.pull_begins(400)
    queue.process_queue.last_consume_ms = 900
    info = queue.info(2)
    assert (info.commit_offset, info.cached_msg_count, info.cached_msg_size_in_mib) == (2, 2, 6)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (3, 9)
    assert info.last_pull_timestamp == NOW_MS - 600
    assert info.last_consume_timestamp == NOW_MS - 100
    assert info.droped is False
    empty = around.queue().info(2)
    assert (empty.cached_msg_min_offset, empty.cached_msg_max_offset) == (0, 0)


# --- messages come ------------------------------------------------------------------------------


def test_messages_are_cached_once_and_nothing_is_committed_while_they_are(around: Around) -> None:
    """Covers C-225 to C-227."""
    queue = around.queue()
    first = messages(7, 8)
    assert queue.put(first, 9) == first
    assert queue.pull_offset == 9
    assert queue.put(messages(8, 9), 10)[0].queue_offset == 9
    assert around.updated == []


def test_a_pull_that_brought_nothing_moves_the_offset_of_an_empty_queue(around: Around) -> None:
    """Covers C-225, C-569."""
    queue = around.queue()
    assert queue.put([], 12) == []
    assert (queue.pull_offset, around.updated) == (12, [12])
    queue.put(messages(12), 13)
    queue.put([], 20)
    assert (queue.pull_offset, around.updated) == (20, [12])
    queue.finish(*messages(12))
    assert around.updated == [12, 20]


def test_a_queue_that_leaves_takes_nothing(around: Around) -> None:
    """Covers C-549."""
    queue = around.queue()
    queue.leave()
    assert queue.put(messages(7), 8) == []
    assert (queue.pull_offset, around.updated, queue.process_queue.message_count) == (7, [], 0)


def test_messages_go_to_the_workers(around: Around) -> None:
    queue = around.queue()
    given = messages(7)
    queue.consume(given)
    assert around.submitted == [(queue, given)]


def test_a_full_queue_is_held_until_there_is_room_and_then_pulled_once(around: Around) -> None:
    """Covers C-203 to C-206."""
    queue = around.queue(count=1)
    assert queue.held() is None
    queue.put(messages(7, 8, 9), 10)
    assert queue.held() is FlowControl.COUNT
    queue.finish(*messages(7))
    assert around.pulled == []
    queue.finish(*messages(8))
    assert around.pulled == [queue]
    queue.finish(*messages(9))
    assert around.pulled == [queue]
    queue.put(messages(10), 11)
    assert queue.held() is None
    assert not queue.process_queue.flow_controlled


def test_other_thresholds_have_a_held_queue_tried_again(around: Around) -> None:
    """Covers C-206."""
    queue = around.queue(count=1)
    queue.put(messages(7, 8), 9)
    queue.pull_if_held()
    assert around.pulled == []
    assert queue.held() is FlowControl.COUNT
    queue.pull_if_held()
    assert around.pulled == [queue]


def test_a_held_queue_is_tried_again_once_whatever_else_changes_meanwhile(around: Around) -> None:
    """A second pull on its way would bring every message twice, and out of order."""
    queue = around.queue(count=1)
    queue.put(messages(7, 8), 9)
    assert queue.held() is FlowControl.COUNT
    queue.pull_if_held()
    queue.pull_if_held()
    queue.finish(*messages(7))
    queue.finish(*messages(8))
    assert around.pulled == [queue]


# --- messages are finished ----------------------------------------------------------------------


def test_finished_messages_move_the_offset(around: Around) -> None:
    """Covers C-265: to the first that is not finished; 0 is an offset, and none is none."""
    queue = around.queue()
    first, second, third = messages(0, 1, 2)
    queue.put([first, second, third], 3)
    queue.finished.extend([second, third])
    queue.flush()
    assert around.updated == [0]
    assert not queue.finished
    queue.flush()
    assert around.updated == [0]
    queue.finish(first)
    assert around.updated == [0, 3]
    queue.finish(first)  # not cached any more
    queue.note(-1)
    assert around.updated[:2] == [0, 3]
    assert -1 not in around.updated


def test_what_is_finished_of_a_dropped_queue_counts_for_nothing(around: Around) -> None:
    """Covers C-549: and it is forgotten."""
    queue = around.queue()
    queue.put(messages(7), 8)
    queue.drop()
    queue.finish(*messages(7))
    assert (around.updated, list(queue.finished)) == ([], [])


@pytest.mark.parametrize(
    ("noted", "stored", "is_overtaken"),
    [(5, 6, True), (5, 5, False), (5, 4, False), (None, 6, False), (5, None, False)],
)
def test_a_larger_stored_offset_is_another_members(
    around: Around, noted: int | None, stored: int | None, is_overtaken: bool
) -> None:
    """Covers C-559."""
    around.noted, around.stored = noted, stored
    assert asyncio.run(around.queue().is_overtaken()) is is_overtaken


# --- who waits ----------------------------------------------------------------------------------


def test_a_queue_is_free_when_all_that_began_has_ended(around: Around) -> None:
    """Covers C-179: each is told once, and at once where nothing is under way."""
    queue = around.queue()
    told: list[str] = []
    queue.when_free(lambda: told.append("at once"))
    assert told == ["at once"]
    queue.begin()
    queue.begin(2)
    queue.when_free(lambda: told.append("later"))
    queue.when_free(lambda: told.append("too"))
    queue.end(2)
    assert (queue.is_free, told) == (False, ["at once"])
    queue.end()
    assert (queue.is_free, told) == (True, ["at once", "later", "too"])
    queue.begin()
    queue.end()
    assert len(told) == 3


def test_who_waits_for_a_free_queue_goes_on_when_it_is(around: Around, loop: StillLoop) -> None:
    """Covers C-179: told on the loop; at once where it is free already."""
    queue = around.queue()
    loop.run_until_complete(queue.until_free())
    queue.begin()
    waiting = loop.create_task(queue.until_free())
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    assert not waiting.done()
    queue.end()
    assert not waiting.done()
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    assert waiting.done()


def test_a_queue_may_become_free_after_the_loop_has_ended(around: Around) -> None:
    """Covers C-120: a listener outlived its consumer."""
    queue = around.queue()
    queue.begin()
    own = StillLoop()
    waiting = own.create_task(queue.until_free())
    own.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    own.run_until_complete(asyncio.sleep(0))
    own.close()
    queue.end()
    assert queue.is_free


# --- in order -----------------------------------------------------------------------------------


def test_a_queue_in_order_is_free_while_no_listener_has_a_batch_of_it(around: Around) -> None:
    """Covers C-281: or it is spared."""
    queue = around.orderly()
    assert queue.is_free
    queue.process_queue._stage = Stage.IN_HAND
    assert not queue.is_free
    queue.spared = True
    assert queue.is_free


def test_a_queue_taken_anew_is_free_when_its_former_listener_has_returned(around: Around) -> None:
    """Covers C-281, C-557: and the former is then forgotten."""
    former = around.orderly()
    former.process_queue._stage = Stage.IN_HAND
    queue = around.orderly(former)
    told: list[int] = []
    queue.when_free(lambda: told.append(1))
    assert (queue.is_free, queue.former, told) == (False, former, [])
    former.process_queue._stage = Stage.BETWEEN
    former.tell_if_free()
    assert told == [1]
    assert (queue.is_free, queue.former) == (True, None)
    former.process_queue._stage = Stage.IN_HAND
    assert queue.is_free


def test_a_queue_whose_former_has_returned_still_waits_for_its_own_listener(
    around: Around,
) -> None:
    former = around.orderly()
    queue = around.orderly(former)
    queue.process_queue._stage = Stage.IN_HAND
    assert not queue.is_free
    assert queue.former is None
    told: list[int] = []
    queue.when_free(lambda: told.append(1))
    assert told == []
    queue.process_queue._stage = Stage.BETWEEN
    queue.tell_if_free()
    assert told == [1]


def test_a_queue_is_in_doubt_when_its_lease_is_over(around: Around) -> None:
    """Covers C-236, C-298: one without a lease never is."""
    queue = around.orderly()
    assert not queue.is_in_doubt(MONOTONIC_MS + 100)
    assert queue.is_in_doubt(MONOTONIC_MS + 101)
    queue.process_queue.lease = None
    assert queue.is_in_doubt(math.inf) is False


def test_operators_are_told_of_locks_and_of_what_is_taken(around: Around) -> None:
    """Covers C-540."""
    queue = around.orderly()
    queue.put(messages(3, 4, 9, 11), 12)
    queue.process_queue.take(3)
    info = queue.info(2)
    assert (info.transaction_msg_count, info.cached_msg_count) == (3, 4)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (3, 9)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (3, 11)
    assert (info.locked, info.last_lock_timestamp) == (True, NOW_MS)
    lease = queue.process_queue.lease
    assert lease is not None
    lease.renew(MONOTONIC_MS + 40)
    assert queue.info(2).last_lock_timestamp == NOW_MS + 40
    lease.doubt()
    assert (queue.info(2).locked, queue.info(2).last_lock_timestamp) == (True, 0)
    lease.lose()
    assert queue.info(2).locked is False
    queue.process_queue.lease = None
    assert (queue.info(2).locked, queue.info(2).last_lock_timestamp) == (False, 0)


def test_an_empty_queue_in_order_tells_no_offsets(around: Around) -> None:
    info = around.orderly().info(2)
    assert (info.cached_msg_max_offset, info.transaction_msg_count) == (0, 0)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (0, 0)

"""The batches a listener's calls get: side by side, and one of a queue after the other."""

from __future__ import annotations

from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.spark.listener.batches import Turns, batches_of

A, B = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def row(queue: MessageQueue, offset: int, tried: int = 0) -> tuple[MessageQueue, MessageExt]:
    """A message and the queue it was read from; ``tried`` says how often before."""
    return queue, assemble_message(
        queue, offset, b"b", {}, commit_log_offset=offset, reconsume_times=tried
    )


def offsets(messages: object) -> list[int]:
    return [message.queue_offset for message in messages]  # type: ignore[attr-defined]


def test_a_batch_holds_one_queue_only_and_keeps_the_order_of_the_rows() -> None:
    """Covers C-260."""
    rows = [row(A, 1), row(B, 2), row(A, 3), row(B, 4), row(A, 5)]
    found = [(queue, offsets(batch)) for queue, batch in batches_of(rows, 2)]
    assert found == [(A, [1, 3]), (B, [2, 4]), (A, [5])]


def test_a_full_batch_is_given_out_before_the_next_row_is_read() -> None:
    rows = iter([row(A, 1), row(A, 2), row(A, 3)])
    assert offsets(next(batches_of(rows, 2))[1]) == [1, 2]
    assert next(rows)[1].queue_offset == 3


def turns_of(*numbers: int, batch: int = 2, tries: int = 2) -> Turns:
    return Turns([row(A, number) for number in numbers], batch, tries)


def test_a_queue_has_one_batch_out_at_a_time() -> None:
    turns = turns_of(1, 2, 3)
    first = turns.take(0)
    assert first is not None
    assert offsets(first.batch) == [1, 2]
    assert turns.take(0) is None
    turns.finished(first)
    second = turns.take(0)
    assert second is not None
    assert offsets(second.batch) == [3]
    assert not turns.done
    turns.finished(second)
    assert turns.done


def test_rows_that_were_shuffled_are_taken_by_offset() -> None:
    turn = turns_of(5, 3, 4, batch=3).take(0)
    assert turn is not None
    assert offsets(turn.batch) == [3, 4, 5]


def test_a_failed_batch_comes_again_after_its_pause_and_before_what_is_behind_it() -> None:
    """Covers C-285: a queue never overtakes itself."""
    turns = turns_of(1, 2, 3)
    turn = turns.take(0)
    assert turn is not None
    assert turns.failed(turn, 1_000, 0) == []
    assert turns.take(999) is None
    assert turns.wait_ms(400) == 600
    assert (turns.wait_ms(1_000), turns.wait_ms(1_001)) == (0, 0)
    again = turns.take(1_000)
    assert again is not None
    assert offsets(again.batch) == [1, 2]
    assert [message.reconsume_times for message in again.batch] == [1, 1]


def test_a_pausing_queue_does_not_hold_up_others() -> None:
    turns = Turns([row(A, 1), row(B, 7)], 2, 2)
    turn = turns.take(0)
    assert turn is not None
    turns.failed(turn, 1_000, 0)
    other = turns.take(1)
    assert other is not None
    assert other.queue == B
    turns.finished(other)
    assert turns.wait_ms(1) == 999


def test_a_message_is_given_up_after_its_last_try_and_only_the_others_come_again() -> None:
    """Covers C-287 and C-590."""
    turns = Turns([row(A, 1, tried=2), row(A, 2)], 2, 2)
    turn = turns.take(0)
    assert turn is not None
    assert offsets(turns.failed(turn, 50, 0)) == [1]
    again = turns.take(50)
    assert again is not None
    assert offsets(again.batch) == [2]


def test_a_queue_whose_batch_was_given_up_whole_goes_on_at_once() -> None:
    turns = turns_of(1, 2, batch=1, tries=0)
    turn = turns.take(0)
    assert turn is not None
    assert offsets(turns.failed(turn, 30_000, 0)) == [1]
    after = turns.take(0)
    assert after is not None
    assert offsets(after.batch) == [2]

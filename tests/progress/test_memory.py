"""What is remembered of a broker from sweep to sweep, and when it is forgotten."""

from __future__ import annotations

import pytest

from rocketstream import limits
from rocketstream.admin.core.joining import BrokerAnswers
from rocketstream.admin.service import BrokerMemory, spot
from rocketstream.admin.state import QueueState, TopicQueue


def queue(committed: int | None, low: int = 0, queue_id: int = 0) -> QueueState:
    return QueueState(
        "orders", "broker-a", queue_id, min_offset=low, max_offset=100, committed_offset=committed
    )


def remembering(*queues: QueueState) -> BrokerMemory:
    memory = BrokerMemory()
    for each in queues:
        memory.keep_times(each, (1_000, 900))
    memory.end_sweep(everything=True)
    return memory


def test_times_hold_as_long_as_the_next_message_is_the_same() -> None:
    memory = remembering(queue(5))
    assert memory.times_at(queue(5)) == (1_000, 900)
    assert memory.times_at(queue(6)) is None
    assert memory.times_at(queue(5, low=40)) is None
    assert spot(queue(5, low=40)) == spot(queue(None, low=40)) == ("orders", 0, 40)


def test_a_whole_sweep_forgets_what_it_did_not_use_and_a_small_one_does_not() -> None:
    memory = remembering(queue(5), queue(5, queue_id=1))
    assert memory.times_at(queue(5)) is not None
    memory.end_sweep(everything=False)
    assert memory.times_at(queue(5, queue_id=1)) is not None
    memory.end_sweep(everything=True)
    assert memory.times_at(queue(5)) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADMIN_STORE_TIMES_MAX", 3)
    memory = remembering(queue(1), queue(2))
    for offset in (7, 8):
        memory.keep_times(queue(offset), (1, 1))
    memory.end_sweep(everything=False)
    assert memory.times_at(queue(1)) is None
    assert memory.times_at(queue(8)) == (1, 1)


def ends(high: int) -> BrokerAnswers:
    held = {n: TopicQueue("orders", "broker-a", n, 0, end, 1) for n, end in ((0, high), (1, 100))}
    return BrokerAnswers("C", "broker-a", {0: "a"}, ends={"orders": held})


def test_a_queue_made_anew_has_other_messages_at_the_same_offsets() -> None:
    memory = remembering(queue(5), queue(5, queue_id=1))
    memory.compare_ends(ends(100))
    assert memory.times_at(queue(5)) is not None
    memory.compare_ends(ends(20))
    assert memory.times_at(queue(5)) is None
    assert memory.times_at(queue(5, queue_id=1)) is not None


def test_queues_that_nobody_stands_in_any_more_are_forgotten() -> None:
    """A job that makes a topic a minute and deletes it made every sweep's memory larger."""
    memory = BrokerMemory()
    for n in range(20):
        answers = ends(100)
        answers.ends[f"job-{n}"] = answers.ends["orders"]
        memory.compare_ends(answers)
        memory.keep_times(queue(5), (1_000, 900))
        memory.end_sweep(everything=n != 7)
    assert list(memory._ends) == [("orders", 0)]
    memory.compare_ends(ends(20))
    assert memory.times_at(queue(5)) is None, "it was made anew"


def test_what_was_delivered_waits_no_more() -> None:
    memory = BrokerMemory()
    assert list(memory.forget_delivered(3, 10)) == []
    memory.delayed[3] |= {10: "%RETRY%g", 11: "", 12: "%RETRY%g"}
    assert memory.forget_delivered(3, 11) == range(11, 13)
    assert memory.delayed_by_topic() == {"": 1, "%RETRY%g": 1}
    assert memory.forget_delivered(3, 20) == range(20, 20)
    assert memory.delayed_by_topic() == {}

"""Where one queue is, between steps of others: before its first offset, put back, half stored."""

from __future__ import annotations

import pytest

from rocketstream.client.consumer.offsets.store import QueueOffset
from rocketstream.errors import SystemBusyError
from tests.offsets.offset_brokers import MASTER, made, mq, run


def test_a_queue_that_another_thread_is_about_to_note_has_no_offset() -> None:
    """It is there a moment before its first offset is."""

    async def use() -> None:
        brokers, store = made()
        store._queues[mq()] = QueueOffset()
        assert store.read_memory(mq()) is None
        assert store.clone_offset_table() == {}
        assert store.piggyback_offset(mq()) == 0
        assert store.overtaken([mq()]) == {}
        assert not store._queues[mq()].is_changed()
        await store.persist_now([mq()])
        store.update_offset(mq(), 0)
        assert store.read_memory(mq()) == 0
        assert store.clone_offset_table() == {mq(): 0}
        assert not brokers.sent

    run(use())


def test_all_that_a_caller_waits_for_is_tried_before_it_hears_of_an_error() -> None:
    async def use() -> None:
        brokers, store = made()
        for number in range(3):
            store.update_offset(mq(number), number)
        brokers.refuse = [SystemBusyError(2, "busy")]
        with pytest.raises(SystemBusyError):
            await store.persist_now([mq(number) for number in range(3)])
        assert brokers.offsets() == [1, 2]

    run(use())


def test_a_queue_that_is_put_back_is_behind_nobody() -> None:
    """And one that has caught up is so no more."""
    queue = QueueOffset()
    queue.note(5, increase_only=True)
    queue.was_told(9, 0.0)
    assert (queue.ahead, queue.is_behind(), queue.is_changed()) == (9, True, False)
    queue.note(3, increase_only=False)
    assert (queue.ahead, queue.is_behind(), queue.is_changed()) == (-1, False, True)
    queue.note(5, increase_only=True)
    queue.was_told(7, 0.0)
    queue.note(6, increase_only=True)
    assert queue.ahead == 7
    queue.note(7, increase_only=True)
    assert (queue.is_behind(), queue.ahead) == (False, -1)


def test_who_was_cut_off_and_waits_for_its_commit_says_nothing_lower_either() -> None:
    """Covers C-324: a lite pull consumer whose process stood still commits what it has in hand."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 192)
        await store.persist([mq()])
        store.connection_lost(MASTER)
        brokers.sent.clear()
        brokers.stored[mq()] = 252
        store.update_offset(mq(), 193)
        await store.persist_now([mq()])
        assert not brokers.sent
        assert store.overtaken([mq()]) == {mq(): 252}
        store.update_offset(mq(), 100, increase_only=False)
        await store.persist_now([mq()])
        assert brokers.offsets() == [100], "put back on purpose"

    run(use())

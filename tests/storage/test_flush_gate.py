"""Replies that wait for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketstream.errors import FlushFailedError
from rocketstream.server.broker.flush_gate import TIMEOUT, FlushedArrivals, FlushGate

Callback = Callable[[Exception | None], None]


class FakeStore:
    """Remembers what was asked to be flushed."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Callback]] = []
        self.flushes = 0
        self.physical_max_offset = 0

    def when_flushed(self, end_offset: int, callback: Callback) -> None:
        self.asked.append((end_offset, callback))

    def flush(self) -> None:
        self.flushes += 1


async def turn() -> None:
    """Let everything scheduled for this and the next turn of the loop run."""
    for _ in range(3):
        await asyncio.sleep(0)


def gate_over(store: FakeStore, timeout_ms: int = 5_000) -> FlushGate:
    return FlushGate(store, timeout_ms)  # type: ignore[arg-type]


def test_one_question_covers_everything_of_one_turn() -> None:
    """Covers C-434: group commit; what came during the flush is asked for next."""

    async def play() -> None:
        store = FakeStore()
        done: list[tuple[int, str | None]] = []
        gate = gate_over(store)

        def wait(end: int) -> None:
            gate.wait(end, lambda outcome: done.append((end, outcome)))

        for end in (10, 20, 30):
            wait(end)
        await turn()
        assert [end for end, _ in store.asked] == [30]
        wait(40)
        await turn()
        assert len(store.asked) == 1
        await asyncio.to_thread(store.asked[0][1], None)
        await turn()
        assert done == [(10, None), (20, None), (30, None)]
        assert [end for end, _ in store.asked] == [30, 40]
        await asyncio.to_thread(store.asked[1][1], None)
        await turn()
        assert done[-1] == (40, None)
        gate.close()

    asyncio.run(play())


def test_older_messages_that_are_asked_for_again_wait_with_the_newest() -> None:
    """Readers ask again after a timeout; told of those alone, the gate asked on and on."""

    async def play() -> None:
        store = FakeStore()
        done: list[int] = []
        gate = gate_over(store)
        gate.wait(200, lambda _: done.append(200))
        gate.wait(100, lambda _: done.append(100))
        await turn()
        assert [end for end, _ in store.asked] == [200]
        store.asked[0][1](None)
        await turn()
        assert (done, len(store.asked)) == ([200, 100], 1)
        gate.close()

    asyncio.run(play())


def test_failed_flush_fails_everything_that_waits() -> None:
    """A failed fsync is final: nothing later can be confirmed either."""

    async def play() -> None:
        store = FakeStore()
        done: list[str | None] = []
        gate = gate_over(store)
        gate.wait(10, done.append)
        await turn()
        gate.wait(20, done.append)
        store.asked[0][1](FlushFailedError("disk gone"))
        await turn()
        assert done == ["disk gone", "disk gone"]
        gate.close()

    asyncio.run(play())


def test_waiting_ends_after_the_timeout() -> None:
    """Covers C-428, C-434: FLUSH_DISK_TIMEOUT; a late flush answers nobody twice."""

    async def play() -> None:
        store = FakeStore()
        outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        gate = gate_over(store, timeout_ms=10)
        gate.wait(10, outcome.set_result)
        assert await asyncio.wait_for(outcome, 10) == TIMEOUT
        store.asked[0][1](None)
        await turn()
        gate.close()

    asyncio.run(play())


def test_close_flushes_once_more_and_answers() -> None:
    async def play() -> None:
        store = FakeStore()
        done: list[str | None] = []
        gate = gate_over(store)
        gate.wait(10, done.append)
        gate.close()
        assert (store.flushes, done) == (1, [None])
        gate_over(FakeStore()).close()

    asyncio.run(play())


def arrivals_at(store: FakeStore, gate: FlushGate, told: list[int]) -> FlushedArrivals:
    """Readers that note the new max offset of each message they are told of."""
    return FlushedArrivals(
        store,  # type: ignore[arg-type]
        gate,
        lambda _topic, _queue, max_offset, _code: told.append(max_offset),
    )


def test_readers_are_told_of_messages_once_they_are_flushed() -> None:
    """One question for all messages of a turn; their order is kept."""

    async def play() -> None:
        store = FakeStore()
        told: list[int] = []
        gate = gate_over(store)
        arrived = arrivals_at(store, gate, told)
        for number in range(3):
            store.physical_max_offset += 100
            arrived("T1", 0, number + 1, 0)
        await turn()
        assert [end for end, _ in store.asked] == [300]
        assert told == []
        await asyncio.to_thread(store.asked[0][1], None)
        await turn()
        assert told == [1, 2, 3]
        gate.close()

    asyncio.run(play())


def test_readers_are_told_although_the_disk_was_slow() -> None:
    """The sender is told of the timeout; the message becomes readable all the same."""

    async def play() -> None:
        store = FakeStore()
        told: list[int] = []
        gate = gate_over(store, timeout_ms=1)
        timed_out = asyncio.Event()
        arrived = arrivals_at(store, gate, told)
        store.physical_max_offset = 100
        arrived("T1", 0, 1, 0)
        await turn()
        gate.wait(100, lambda outcome: timed_out.set() if outcome == TIMEOUT else None)
        async with asyncio.timeout(10):
            await timed_out.wait()
        await turn()
        assert told == []
        await asyncio.to_thread(store.asked[0][1], None)
        await turn()
        assert told == [1]
        gate.close()

    asyncio.run(play())


def test_readers_are_never_told_of_what_cannot_be_flushed() -> None:
    """A failed fsync is final."""

    async def play() -> None:
        store = FakeStore()
        told: list[int] = []
        gate = gate_over(store)
        arrived = arrivals_at(store, gate, told)
        arrived("T1", 0, 1, 0)
        await turn()
        await asyncio.to_thread(store.asked[0][1], FlushFailedError("broken"))
        await turn()
        assert told == []
        gate.close()
        await turn()
        assert told == []

    asyncio.run(play())

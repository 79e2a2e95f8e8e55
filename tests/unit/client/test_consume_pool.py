"""When a pool of workers looks after slow listeners, and when it need not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.client.consumer.consume import workers
from rocketstream.client.consumer.consume.workers import WorkerPool
from tests.plugins.waiting import wait_until
from tests.unit.client.fake_broker import WAIT_S


class Hand:
    """A loop and a clock that go on when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.timers.append(work)

    def call_soon_threadsafe(self, work: Callable[[], None]) -> None:
        """The pool's end, which nobody waits for."""

    def tick(self) -> None:
        """A millisecond passes."""
        due, self.timers = self.timers, []
        for work in due:
            work()


class Jobs:
    """So many jobs, each of them one call that is held until the test lets it go."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._entered = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def next_job(self) -> str | None:
        if self.left == 0:
            return None
        self.left -= 1
        return "job"

    def oldest(self) -> str | None:
        return "job" if self.left else None

    def work(self, job: str) -> None:
        self._entered.release()
        self._open.acquire()

    def wait_entered(self, calls: int = 1) -> None:
        for _ in range(calls):
            assert self._entered.acquire(timeout=WAIT_S)

    def let_go(self, calls: int = 1) -> None:
        self._open.release(calls)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    made = Hand()
    # In this module only: servers that other tests keep running ask asyncio for their own loops.
    own = SimpleNamespace(**{**vars(asyncio), "get_running_loop": lambda: made})
    monkeypatch.setattr(workers, "asyncio", own)
    return made


@contextmanager
def blocked(hand: Hand, *, jobs: int, threads: int) -> Iterator[tuple[Any, Jobs]]:
    """A pool whose workers are all held."""
    source = Jobs(jobs)
    pool: WorkerPool[str] = WorkerPool("G", source, threads)
    try:
        with pool.mutex:
            pool.work_added()
        pool.look_soon()
        source.wait_entered()
        entered = 1
        while entered < threads:
            hand.tick()
            grown = pool._awake - entered
            source.wait_entered(grown)
            entered += grown
        yield pool, source
    finally:
        with pool.mutex:
            pool.stopping = True
            for worker in pool._parked:
                worker.gate.release()
        source.let_go(jobs)
        for worker in pool._workers:
            assert worker.thread is not None
            worker.thread.join(WAIT_S)


def test_nobody_looks_while_every_worker_is_blocked(hand: Hand) -> None:
    """Work that is added has the pool look once: blocked listeners cost nothing."""
    with blocked(hand, jobs=9, threads=2) as (pool, source):
        assert (pool._awake, source.left) == (2, 7)
        for _ in range(3):
            assert hand.timers == []
            pool.look_soon()
            pool.look_soon()
            assert len(hand.timers) == 1
            hand.tick()
        assert (pool._awake, source.left) == (2, 7)


def test_nobody_looks_when_nothing_waits(hand: Hand) -> None:
    with blocked(hand, jobs=2, threads=2) as (pool, _):
        pool.look_soon()
        hand.tick()
        assert hand.timers == []


def test_a_worker_that_comes_back_takes_what_waits_though_nobody_looks(hand: Hand) -> None:
    with blocked(hand, jobs=9, threads=2) as (_, source):
        source.let_go()
        source.wait_entered()
        assert (source.left, hand.timers) == (6, [])


def test_a_pool_made_larger_while_its_workers_are_blocked_grows(hand: Hand) -> None:
    """Covers C-255."""
    with blocked(hand, jobs=9, threads=2) as (pool, source):
        pool.update_core_pool_size(1)
        hand.tick()
        source.let_go(1)
        wait_until(lambda: len(pool._parked) == 1, "one worker too many parks")
        assert hand.timers == []
        assert pool.update_core_pool_size(2)
        hand.tick()
        source.wait_entered()
        assert pool._awake == 2


class Quick(Jobs):
    """Jobs of which another one is the oldest each time."""

    def oldest(self) -> Any:
        return object()


def test_no_worker_joins_while_each_job_is_taken_within_a_look(hand: Hand) -> None:
    """A listener that is quick is called by one thread, however much comes."""
    source = Quick(9)
    pool: WorkerPool[str] = WorkerPool("G", source, 20)
    with pool.mutex:
        pool.work_added()
    pool.look_soon()
    source.wait_entered()
    for _ in range(5):
        hand.tick()
        source.let_go()
        source.wait_entered()
    assert pool._awake == 1
    with pool.mutex:
        pool.stopping = True
    source.let_go()


def test_a_worker_joins_with_each_look_that_finds_the_same_job_waiting(hand: Hand) -> None:
    """Covers C-254: what waits for longer than from one look to the next gets a worker."""
    with blocked(hand, jobs=30, threads=5) as (pool, source):
        assert pool.update_core_pool_size(2)
        hand.tick()
        source.let_go(3)
        wait_until(lambda: len(pool._parked) == 3, "workers too many park")
        assert pool.update_core_pool_size(5)
        awake = []
        for _ in range(4):
            hand.tick()
            awake.append(pool._awake)
        assert awake == [3, 4, 5, 5]
        source.wait_entered(3)

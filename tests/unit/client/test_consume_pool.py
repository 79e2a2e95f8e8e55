"""When a pool of workers looks after slow listeners, and when it need not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream import MessageExt
from rocketstream.client.consumer.consume import pool
from rocketstream.client.consumer.consume.base import ConcurrentParts
from rocketstream.client.consumer.consume.calls import CallObserver
from rocketstream.client.consumer.consume.concurrently import (
    ConsumeMessageConcurrentlyService,
)
from rocketstream.client.consumer.consume.pool import Worker, WorkerPool
from rocketstream.client.consumer.consume.runs import ConsumeRun, PullRequest
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.stats import ConsumerStats
from tests.behaviour.support import SUCCESS
from tests.plugins.waiting import wait_until
from tests.unit.client.fake_broker import WAIT_S
from tests.unit.client.test_consume_services import message


class Hand:
    """A loop and a clock that go on when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Callable[[], None]] = []
        self.posted: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return int(self.now)

    def monotonic_ms(self) -> float:
        return self.now

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.timers.append(work)

    def call_soon_threadsafe(self, work: Callable[..., None], *arguments: object) -> None:
        self.posted.append(lambda: work(*arguments))

    def tick(self) -> None:
        """Five milliseconds pass, in which the processor is not used."""
        self.now += 5
        due, self.timers = self.timers, []
        for work in due:
            work()

    def run_posted(self) -> None:
        wait_until(lambda: bool(self.posted), "a word of a worker")
        while self.posted:
            self.posted.pop(0)()

    def tick_to_rest(self) -> int:
        """Let time pass until nobody looks; return how often somebody did."""
        for number in range(100):
            if not self.timers:
                return number
            self.tick()
        raise AssertionError("ticks for ever")


class Gates:
    """Calls that are held until the test lets them go, one by one."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def call(self, *_: object) -> object:
        self._entered.release()
        self._open.acquire()
        return SUCCESS

    def wait_entered(self, calls: int = 1) -> None:
        for _ in range(calls):
            assert self._entered.acquire(timeout=WAIT_S)

    def let_go(self, calls: int = 1) -> None:
        self._open.release(calls)


class Jobs:
    """So many jobs, each of them one held call."""

    def __init__(self, number: int, gates: Gates) -> None:
        self.left = number
        self._gates = gates
        self.while_looking: Callable[[], None] = lambda: None

    def next_job(self) -> str | None:
        if self.left == 0:
            return None
        self.left -= 1
        return "job"

    def waiting(self) -> int:
        return self.left

    def is_open(self) -> bool:
        return self.left > 0

    def work(self, worker: Worker, job: str) -> None:
        worker.calls += 1
        worker.calling = True
        self._gates.call()
        worker.calling = False

    def tick(self) -> None:
        self.while_looking()


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    made = Hand()
    # In this module only: servers that other tests keep running ask asyncio for their own loops.
    own = SimpleNamespace(**{**vars(asyncio), "get_running_loop": lambda: made})
    monkeypatch.setattr(pool, "asyncio", own)
    monkeypatch.setattr(pool, "process_cpu_ms", lambda: 0.0)
    return made


@contextmanager
def blocked(hand: Hand, *, jobs: int, workers: int) -> Iterator[tuple[Any, Jobs, Gates]]:
    """A pool whose workers are all held, and that rests."""
    gates = Gates()
    source = Jobs(jobs, gates)
    clock: Any = hand
    pool: WorkerPool[str] = WorkerPool("G", source, clock, workers)
    try:
        with pool.mutex:
            pool.work_added()
        pool.start_ticks()
        entered = 1
        gates.wait_entered()
        while entered < workers:
            hand.tick()
            grown = pool._awake - entered
            gates.wait_entered(grown)
            entered += grown
        hand.tick_to_rest()
        yield pool, source, gates
    finally:
        with pool.mutex:
            pool.stopping = True
            for worker in pool._parked:
                worker.gate.release()
        gates.let_go(jobs)
        for worker in pool._workers:
            assert worker.thread is not None
            worker.thread.join(WAIT_S)


def test_nobody_looks_while_every_worker_is_blocked(hand: Hand) -> None:
    with blocked(hand, jobs=9, workers=2) as (pool, source, _):
        assert pool._awake == 2
        assert source.left == 7
        assert (hand.timers, hand.posted) == ([], [])
        pool.start_ticks()  # more work has come, and nobody is there for it
        assert hand.timers == []


def test_a_worker_that_comes_back_has_the_others_looked_after_again(hand: Hand) -> None:
    with blocked(hand, jobs=9, workers=2) as (_, source, gates):
        gates.let_go()
        gates.wait_entered()
        hand.run_posted()
        assert source.left == 6
        assert len(hand.timers) == 1
        assert hand.tick_to_rest() >= 1


def test_a_pool_made_larger_while_it_rests_grows(hand: Hand) -> None:
    """Covers C-255."""
    with blocked(hand, jobs=9, workers=2) as (pool, _, gates):
        pool.update_core_pool_size(1)
        hand.run_posted()
        hand.tick_to_rest()
        gates.let_go(1)
        wait_until(lambda: len(pool._parked) == 1, "one worker too many parks")
        hand.run_posted()
        hand.tick_to_rest()
        assert pool.update_core_pool_size(2)
        hand.run_posted()
        hand.tick()
        gates.wait_entered()
        assert pool._awake == 2


def test_a_listener_that_returns_during_the_last_look_keeps_the_pool_awake(hand: Hand) -> None:
    with blocked(hand, jobs=9, workers=2) as (_, source, gates):

        def come_back() -> None:
            gates.let_go()
            gates.wait_entered()

        gates.let_go()
        gates.wait_entered()
        hand.run_posted()
        source.while_looking = come_back
        hand.tick()
        assert hand.timers


def test_a_listener_that_returns_while_the_pool_lies_down_is_seen(hand: Hand) -> None:
    """It calls between the look that found it blocked and the end of that look."""
    with blocked(hand, jobs=9, workers=2) as (pool, _, gates):
        gates.let_go()
        gates.wait_entered()
        hand.run_posted()
        count = pool._calls

        def rouse_meanwhile() -> int:
            seen: int = count()
            if pool.is_resting:
                pool.rouse()
            return seen

        pool._calls = rouse_meanwhile
        hand.tick_to_rest()
        assert not pool.is_resting
        hand.run_posted()
        assert hand.timers


def test_what_a_blocked_run_has_finished_is_entered_when_a_call_returns(hand: Hand) -> None:
    """Covers C-265: though nobody looked while it was blocked."""
    gates = Gates()
    entered: list[int] = []

    def flush(run: ConsumeRun) -> None:
        if run.finished:
            entered.append(len(run.finished))
            run.finished.clear()

    def listener(messages: list[MessageExt]) -> object:
        return gates.call()

    clock: Any = hand
    offset_updater: Any = SimpleNamespace(flush=flush)
    settler: Any = None
    observer = CallObserver("G", ConsumeHooks(), ConsumerStats(clock), clock, 15)
    service = ConsumeMessageConcurrentlyService(
        ConcurrentParts(
            listener_of(listener, orderly=False),
            offset_updater,
            settler,
            observer,
            batch_size=1,
            calls_max=1,
        )
    )
    request = PullRequest(ProcessQueue(message().message_queue, 1, 0), 0)
    service.submit(request, [message() for _ in range(4)])
    gates.wait_entered()
    hand.tick_to_rest()
    service.submit(request, [message()])
    assert hand.timers == []
    gates.let_go()
    gates.wait_entered()
    hand.run_posted()
    hand.tick()
    assert entered == [1]
    gates.let_go(4)
    wait_until(lambda: sum(entered) == 5, "the rest")
    with service._pool.mutex:
        service._pool.stopping = True
        for worker in service._pool._parked:
            worker.gate.release()
    for worker in service._pool._workers:
        assert worker.thread is not None
        worker.thread.join(WAIT_S)

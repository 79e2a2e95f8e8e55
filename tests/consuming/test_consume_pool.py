"""When a pool of workers looks after slow listeners, and when it need not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.client.consumer.consume import workers
from rocketstream.client.consumer.consume.workers import TaskPool, WorkerPool
from tests.kits.client.fake_broker import WAIT_S
from tests.kits.client.model_cluster import StillLoop
from tests.plugins.waiting import wait_until


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
            for gate in pool._parked:
                gate.release()
        source.let_go(jobs)
        for thread in pool._threads:
            thread.join(WAIT_S)


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
        pool.resize(1)
        hand.tick()
        source.let_go(1)
        wait_until(lambda: len(pool._parked) == 1, "one worker too many parks")
        assert hand.timers == []
        pool.resize(2)
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
        pool.resize(2)
        hand.tick()
        source.let_go(3)
        wait_until(lambda: len(pool._parked) == 3, "workers too many park")
        pool.resize(5)
        awake = []
        for _ in range(4):
            hand.tick()
            awake.append(pool._awake)
        assert awake == [3, 4, 5, 5]
        source.wait_entered(3)


# --- the end of a pool ----------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    made = StillLoop()
    yield made
    made.close()


def turn(loop: StillLoop, ms: float = 0) -> None:
    """Let time pass, and what is due be done."""
    loop.now_s += ms / 1000
    for _ in range(4):
        loop.run_until_complete(asyncio.sleep(0))


def begun(loop: StillLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Have a task wait for what it waits for."""
    task = loop.create_task(work)
    turn(loop)
    return task


class Pool:
    """A pool of a still loop, with jobs that are held; ``begin`` has workers enter so many."""

    def __init__(self, loop: StillLoop, jobs: int, threads: int) -> None:
        self.loop, self.jobs = loop, Jobs(jobs)

        async def make() -> WorkerPool[str]:
            return WorkerPool("G", self.jobs, threads)

        self.pool = loop.run_until_complete(make())

    def begin(self, workers: int) -> None:
        with self.pool.mutex:
            self.pool.work_added()
        self.pool.look_soon()
        self.jobs.wait_entered()
        for _ in range(workers - 1):
            while not self.jobs._entered.acquire(blocking=False):
                turn(self.loop, 1)

    def join(self) -> None:
        for thread in self.pool._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_a_pool_waits_for_its_listeners_as_long_as_it_is_told_and_no_longer(
    loop: StillLoop,
) -> None:
    """Covers C-120, C-121: what still runs is left behind."""
    held = Pool(loop, 9, 2)
    held.begin(2)
    ending = begun(loop, held.pool.shutdown(500))
    turn(loop, 499.8)
    assert not ending.done()
    turn(loop, 0.4)
    assert ending.done()
    held.jobs.let_go(9)
    held.join()
    assert held.jobs.left == 7, "no job was begun after that"


def test_a_pool_that_may_not_wait_ends_at_once(loop: StillLoop) -> None:
    """Covers C-120."""
    held = Pool(loop, 1, 1)
    held.begin(1)
    ending = begun(loop, held.pool.shutdown(0))
    assert ending.done()
    held.jobs.let_go()
    held.join()


def test_a_pool_ends_with_the_last_of_its_listeners(loop: StillLoop) -> None:
    """Covers C-121: parked workers end too, and nobody waits for time to pass."""
    held = Pool(loop, 2, 2)
    held.begin(2)
    held.jobs.let_go(1)
    wait_until(lambda: len(held.pool._parked) == 1, "one parks")
    ending = begun(loop, held.pool.shutdown(60_000))
    wait_until(lambda: held.pool._awake == 1, "the parked one ends")
    turn(loop)
    assert not ending.done()
    held.jobs.let_go(1)
    held.join()
    turn(loop)
    assert ending.done()


def test_a_pool_without_work_ends_at_once(loop: StillLoop) -> None:
    for jobs in (0, 1):
        held = Pool(loop, jobs, 2)
        if jobs:
            held.begin(1)
            held.jobs.let_go(1)
            wait_until(lambda made=held: len(made.pool._parked) == 1, "it parks")  # type: ignore[misc]
        ending = begun(loop, held.pool.shutdown(60_000))
        held.join()
        turn(loop)
        assert ending.done()


@pytest.mark.parametrize("is_own", [True, False])
def test_a_worker_that_ends_its_own_pool_is_not_waited_for(loop: StillLoop, is_own: bool) -> None:
    """Covers C-121: another thread that does is no worker, and all of them are waited for."""
    held = Pool(loop, 2, 2)
    held.begin(2)
    thread = held.pool._threads[0].ident if is_own else threading.get_ident()
    ending = begun(loop, held.pool.shutdown(60_000, thread))
    assert not ending.done()
    held.jobs.let_go(1)
    wait_until(lambda: held.pool._awake == 1, "one of two returns")
    turn(loop)
    assert ending.done() is is_own
    held.jobs.let_go(1)
    held.join()
    turn(loop)
    assert ending.done()


def test_a_lone_worker_that_ends_its_own_pool_holds_nobody_up(loop: StillLoop) -> None:
    held = Pool(loop, 1, 1)
    held.begin(1)
    ending = begun(loop, held.pool.shutdown(60_000, held.pool._threads[0].ident))
    assert ending.done()
    held.jobs.let_go()
    held.join()


def test_workers_are_daemons_named_after_their_group(loop: StillLoop) -> None:
    """Covers C-254: a program ends though its listener does not; operators find the threads."""
    held = Pool(loop, 2, 2)
    held.begin(2)
    names = [thread.name for thread in held.pool._threads]
    assert names == ["ConsumeMessageThread_G_1", "ConsumeMessageThread_G_2"]
    assert all(thread.daemon for thread in held.pool._threads)
    held.jobs.let_go(2)
    loop.run_until_complete(held.pool.shutdown(0))
    held.join()


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_job_that_breaks_ends_no_worker(
    loop: StillLoop, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    held = Pool(loop, 2, 1)

    def work(job: str) -> None:
        held.jobs._entered.release()
        raise error

    held.jobs.work = work  # type: ignore[method-assign]
    with held.pool.mutex:
        held.pool.work_added()
    held.jobs.wait_entered(2)
    wait_until(lambda: len(held.pool._parked) == 1, "it parks")
    assert len(held.pool._threads) == 1
    assert caplog.text.count("a consume worker failed") == 2
    loop.run_until_complete(held.pool.shutdown(0))
    held.join()


def test_a_pool_that_has_ended_looks_no_more(loop: StillLoop) -> None:
    held = Pool(loop, 9, 2)
    held.begin(1)
    loop.run_until_complete(held.pool.shutdown(0))
    turn(loop, 10)
    assert len(held.pool._threads) == 1
    assert not held.pool._is_looking
    held.jobs.let_go()
    held.join()


def test_a_parked_worker_is_woken_before_another_is_made(loop: StillLoop) -> None:
    """Covers C-254."""
    held = Pool(loop, 1, 5)
    held.begin(1)
    held.jobs.let_go()
    wait_until(lambda: len(held.pool._parked) == 1, "it parks")
    held.jobs.left = 1
    held.begin(1)
    assert len(held.pool._threads) == 1
    with held.pool.mutex:
        held.pool.work_added()
    assert held.pool._awake == 1
    held.jobs.let_go()
    loop.run_until_complete(held.pool.shutdown(0))
    held.join()


def test_a_worker_that_cannot_start_is_tried_again_and_keeps_no_place(
    loop: StillLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system may have no thread left for a moment."""
    held = Pool(loop, 1, 1)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with held.pool.mutex:
            held.pool.work_added()
        held.pool.look_soon()
        for _ in range(3):
            turn(loop, 1)
    assert (held.pool._awake, held.pool._threads) == (0, [])
    assert caplog.text.count("can't start new thread") == 1
    turn(loop, 1)
    held.jobs.wait_entered()
    assert held.pool._awake == 1
    held.jobs.let_go()
    loop.run_until_complete(held.pool.shutdown(0))
    held.join()


# --- tasks ----------------------------------------------------------------------------------------


class Tasks:
    """Tasks that wait until the test lets one go on."""

    def __init__(self, loop: StillLoop, size: int) -> None:
        self.loop, self.running, self.ended = loop, 0, 0
        self.gate = asyncio.Semaphore(0)
        self.deaf: asyncio.Event | None = None

        async def make() -> TaskPool:
            return TaskPool(self.work, size, "G")

        self.pool = loop.run_until_complete(make())

    async def work(self) -> None:
        self.running += 1
        self.pool.start_one()
        try:
            await self.gate.acquire()
        except asyncio.CancelledError:
            if self.deaf is not None:
                await self.deaf.wait()
            raise
        finally:
            self.running -= 1
        self.ended += 1

    def begin(self) -> None:
        self.pool.start_one()
        for _ in range(5):
            turn(self.loop)


def test_so_many_tasks_run_at_once_as_the_pool_is_large(loop: StillLoop) -> None:
    """Covers C-254, C-255."""
    tasks = Tasks(loop, 3)
    tasks.begin()
    assert tasks.running == 3
    assert sorted(task.get_name() for task in tasks.pool._tasks) == [
        f"ConsumeMessageThread_G_{number}" for number in (1, 2, 3)
    ]
    assert tasks.pool.may_go_on()
    tasks.pool.resize(5)
    for _ in range(5):
        turn(loop)
    assert tasks.running == 5
    tasks.pool.resize(4)
    assert not tasks.pool.may_go_on()
    tasks.gate.release()
    turn(loop)
    assert (tasks.running, tasks.pool.may_go_on()) == (4, True)
    assert len(tasks.pool._tasks) == 4
    loop.run_until_complete(tasks.pool.shutdown(0))
    assert not tasks.pool.may_go_on()


def test_a_task_that_is_about_to_begin_is_not_begun_twice(loop: StillLoop) -> None:
    tasks = Tasks(loop, 3)
    tasks.pool.start_one()
    tasks.pool.start_one()
    assert len(tasks.pool._tasks) == 1
    (task,) = tasks.pool._tasks
    task.cancel()
    turn(loop)
    assert tasks.running == 0
    tasks.begin()
    assert tasks.running == 3, "one that was cancelled before it began holds up no other"
    loop.run_until_complete(tasks.pool.shutdown(0))


def test_tasks_are_waited_for_and_then_cancelled(loop: StillLoop) -> None:
    """Covers C-120."""
    tasks = Tasks(loop, 2)
    tasks.begin()
    ending = begun(loop, tasks.pool.shutdown(5_000))
    tasks.gate.release()
    turn(loop, 4_998)
    assert (ending.done(), tasks.running, tasks.ended) == (False, 1, 1)
    turn(loop, 4)
    assert (ending.done(), tasks.running, tasks.ended) == (True, 0, 1)
    tasks.begin()
    assert tasks.running == 0, "nothing is begun any more"


def test_tasks_that_end_in_time_are_not_waited_for_any_longer(loop: StillLoop) -> None:
    tasks = Tasks(loop, 1)
    tasks.begin()
    ending = begun(loop, tasks.pool.shutdown(5_000))
    tasks.gate.release()
    turn(loop)
    assert (ending.done(), tasks.ended) == (True, 1)


@pytest.mark.parametrize(("await_ms", "left_after_ms"), [(0, 1_000), (3_000, 3_000)])
def test_what_ignores_its_cancellation_is_left_behind(
    loop: StillLoop, caplog: pytest.LogCaptureFixture, await_ms: float, left_after_ms: float
) -> None:
    """Covers C-120: waited for once more as long, a second at least."""
    tasks = Tasks(loop, 1)
    tasks.deaf = asyncio.Event()
    tasks.begin()
    ending = begun(loop, tasks.pool.shutdown(await_ms))
    turn(loop, await_ms)
    turn(loop, left_after_ms - 0.2)
    assert not ending.done()
    turn(loop, 0.4)
    assert ending.done()
    assert "1 listener calls do not end although cancelled" in caplog.text
    tasks.deaf.set()
    turn(loop)
    assert tasks.running == 0


def test_who_is_cancelled_while_he_ends_a_pool_waits_a_second_more(loop: StillLoop) -> None:
    """Covers C-120: its tasks are cancelled all the same."""
    tasks = Tasks(loop, 1)
    tasks.deaf = asyncio.Event()
    tasks.begin()
    ending = begun(loop, tasks.pool.shutdown(60_000))
    ending.cancel()
    turn(loop)
    turn(loop, 999)
    assert not ending.done()
    turn(loop, 2)
    assert ending.cancelled()
    tasks.deaf.set()
    turn(loop)
    assert tasks.running == 0


def test_a_task_that_ends_its_own_pool_goes_on(
    loop: StillLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-121: it is neither waited for nor cancelled; the others are."""
    tasks = Tasks(loop, 2)
    done: list[str] = []

    async def work() -> None:
        tasks.pool.start_one()
        await tasks.gate.acquire()
        await tasks.pool.shutdown(0)
        done.append("it went on")

    tasks.pool._do = work
    tasks.begin()
    tasks.gate.release()
    for _ in range(3):
        turn(loop)
    assert done == ["it went on"]
    assert not tasks.pool._tasks
    assert "do not end" not in caplog.text

"""Worker threads that call listeners: as many as help, parked when there is nothing to do.

Law: threads and their number only; what there is to do is the source's. Every step under the mutex
is short and runs no user code (C-254, C-255, C-584).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Generic, Protocol, TypeVar

from rocketstream._util.clock import Clock, process_cpu_ms
from rocketstream.client.core.parallelism import Governor
from rocketstream.protocol.names import LISTENER_THREAD_PREFIX, THREAD_GROUP_CHARS_MAX

logger = logging.getLogger("rocketstream.client")

_TICK_S = 0.001
_TICK_ALL_AWAKE_S = 0.005
CORE_POOL_SIZE_MAX = 32_767

J = TypeVar("J")


def pool_name(group: str) -> str:
    """Return what the names of the threads or tasks that call a group's listener begin with."""
    return f"{LISTENER_THREAD_PREFIX}{group[:THREAD_GROUP_CHARS_MAX]}"


class Worker:
    """One worker thread: parked at its gate, or at work.

    Attributes:
        calls: listener calls begun.
        calling: inside a listener call right now.
    """

    __slots__ = ("calling", "calls", "gate", "thread")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.calls = 0
        self.calling = False
        self.thread: threading.Thread | None = None


class JobSource(Protocol[J]):
    """What a pool's workers work on. The first three are called with the pool's mutex held."""

    def next_job(self) -> J | None:
        """Return something to do, None when nothing is left."""
        ...

    def waiting(self) -> int:
        """Return how many steps no worker has taken."""
        ...

    def is_open(self) -> bool:
        """Whether anything is waiting or under way; forgets what is not."""
        ...

    def work(self, worker: Worker, job: J) -> None:
        """Do a job; on a worker thread. What it raises is logged."""
        ...

    def tick(self) -> None:
        """Called on the loop now and then while open, without the mutex."""
        ...


class WorkerPool(Generic[J]):
    """Workers for the jobs of one source.

    While work is open the loop looks every millisecond whether workers only wait inside their
    listeners; if so, more join (``core.parallelism``). When all there may be wait, it looks no more
    until one of them comes back: a listener that is blocked costs nothing.

    Attributes:
        mutex: guards the pool's state and the source's; held for a few steps only.
        stopping: no job is begun any more.
        is_resting: nobody looks; a worker whose listener has returned calls ``rouse``.
    """

    def __init__(self, group: str, source: JobSource[J], clock: Clock, threads_max: int) -> None:
        self._name = pool_name(group)
        self._source = source
        self._clock = clock
        self._threads_max = threads_max
        self._loop = asyncio.get_running_loop()
        self._governor = Governor(threads_max)
        self.mutex = threading.Lock()
        self.stopping = False
        self.is_resting = False
        self._workers: list[Worker] = []
        self._parked: list[Worker] = []
        self._awake = 0
        self._spared = 0
        self._quiet = asyncio.Event()
        self._ticking = False

    # --- on the loop ------------------------------------------------------------------------------

    def work_added(self) -> None:
        """Wake one worker if none is awake; with the mutex held, after adding a job."""
        if not self._awake:
            self._wake_one()

    def start_ticks(self) -> None:
        """Look for slow listeners at each tick until no job is left; without the mutex."""
        self._start_ticks(_TICK_S)

    @property
    def core_pool_size(self) -> int:
        """Most workers that are ever awake."""
        return self._governor.maximum

    def update_core_pool_size(self, size: int) -> bool:
        """Have at most ``size`` workers from now on; return whether that many are allowed.

        Between 1 and what the consumer was made with; a busy worker ends what it is at.
        """
        if not 0 < size <= min(CORE_POOL_SIZE_MAX, self._threads_max):
            return False
        with self.mutex:
            self._governor.resize(size)
        self.rouse()
        return True

    def rouse(self) -> None:
        """Look for slow listeners again if the pool rests; any thread, without the mutex."""
        if self.is_resting:
            self.is_resting = False
            # The loop may be gone when a listener outlived the shutdown.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._start_ticks, _TICK_ALL_AWAKE_S)

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Start no job any more; wait for running ones, at most ``await_ms``.

        Threads whose listener does not return are left behind; so is ``caller``, a thread that
        waits for this inside its listener.
        """
        with self.mutex:
            self.stopping = True
            parked, self._parked = self._parked, []
            self._awake += len(parked)
            own = {worker.thread.ident for worker in self._workers if worker.thread is not None}
            self._spared = int(caller in own)
            if self._awake <= self._spared:
                self._quiet.set()
        for worker in parked:
            worker.gate.release()
        if await_ms > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(await_ms / 1000):
                    await self._quiet.wait()

    def _start_ticks(self, first_tick_s: float) -> None:
        if not (self._ticking or self.is_resting):
            self._ticking = True
            now, cpu = self._clock.monotonic_ms(), process_cpu_ms()
            self._governor.start(now, cpu, self._calls(), self._awake)
            self._loop.call_later(first_tick_s, self._tick)

    def _tick(self) -> None:
        with self.mutex:
            if self.stopping or not self._source.is_open():
                self._ticking = False
                return
            waiting = self._source.waiting()
            awake, calls = self._awake, self._calls()
            target = self._governor.tick(
                self._clock.monotonic_ms(),
                process_cpu_ms(),
                calls,
                waiting=waiting,
                awake=awake,
                calling=sum(worker.calling for worker in self._workers),
            )
            for _ in range(min(target - awake, waiting)):
                self._wake_one()
        self._source.tick()
        if self._governor.is_steady and self._comes_to_rest(awake, calls):
            return
        all_awake = awake >= self._governor.maximum
        self._loop.call_later(_TICK_ALL_AWAKE_S if all_awake else _TICK_S, self._tick)

    def _comes_to_rest(self, awake: int, calls: int) -> bool:
        """Rest unless a listener has returned since ``calls`` was read; tell which it is."""
        # First told, then looked; a worker does it the other way round, so one of the two sees
        # what the other did.
        self._ticking = False
        self.is_resting = True
        calling = sum(worker.calling for worker in self._workers)
        if calling >= awake and self._calls() == calls:
            return True
        self.is_resting = False
        self._ticking = True
        return False

    def _calls(self) -> int:
        return sum(worker.calls for worker in self._workers)

    def _wake_one(self) -> None:
        self._awake += 1
        if self._parked:
            self._parked.pop().gate.release()
            return
        worker = Worker()
        self._workers.append(worker)
        worker.thread = threading.Thread(
            target=self._run,
            args=(worker,),
            name=f"{self._name}_{len(self._workers)}",
            daemon=True,
        )
        worker.thread.start()

    # --- on worker threads ------------------------------------------------------------------------

    def _run(self, worker: Worker) -> None:
        while (job := self._next_job(worker)) is not None:
            try:
                self._source.work(worker, job)
            except Exception:
                logger.exception("a consume worker failed; it goes on with the next job")
        with self.mutex:
            self._awake -= 1
            last = self._awake <= self._spared
        if last:
            # The loop may be gone when a listener outlived the shutdown.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._quiet.set)

    def _next_job(self, worker: Worker) -> J | None:
        while True:
            self.rouse()
            with self.mutex:
                if self.stopping:
                    return None
                if self._awake == 1 or self._awake <= self._governor.target:
                    job = self._source.next_job()
                    if job is not None:
                        return job
                self._awake -= 1
                self._parked.append(worker)
            worker.gate.acquire()

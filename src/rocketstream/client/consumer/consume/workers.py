"""Worker threads that call listeners, or tasks on a loop, as many as there is work for.

Law: every step under the mutex is short and runs no user code (C-254, C-255, C-584).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from rocketstream._util.user_code import IS_CALLED_BY_CLIENT
from rocketstream.client.instance.background import CUT_OFF_AFTER_MS
from rocketstream.protocol.names import LISTENER_THREAD_PREFIX, THREAD_GROUP_CHARS_MAX

logger: logging.Logger = logging.getLogger("rocketstream.client")

_LOOK_S = 0.001
"""Work that waits for longer gets another worker."""
CANCEL_WAIT_MS_MIN = 1_000

J = TypeVar("J")


def pool_name(group: str) -> str:
    """Return what the names of the threads or tasks that call a group's listener begin with."""
    return f"{LISTENER_THREAD_PREFIX}{group[:THREAD_GROUP_CHARS_MAX]}"


class JobSource(Protocol[J]):
    """The jobs of a pool's workers. The first two are called with the pool's mutex held."""

    def next_job(self) -> J | None:
        """Return something to do, None when nothing is left; several may work on one thing."""
        ...

    def oldest(self) -> object:
        """Return what waits longest for a worker, None when nothing does."""
        ...

    def work(self, job: J) -> None:
        """Do a job; on a worker thread. An error is logged."""
        ...


class WorkerPool(Generic[J]):
    """Workers for the jobs of one source.

    Added work wakes one worker if none is awake: what it finishes in a moment costs no hand-over.
    The loop looks every millisecond while work waits, and wakes one more, up to ``size``, if
    something has waited since the last look. When all there may be are awake, it looks once each
    time that work is added.

    Attributes:
        size: most workers that are ever awake.
        mutex: guards the pool's state and the source's; held for a few steps only.
        stopping: no job is begun any more.
    """

    def __init__(self, group: str, source: JobSource[J], size: int) -> None:
        self._name = pool_name(group)
        self._source = source
        self.size: int = size
        self._loop = asyncio.get_running_loop()
        self.mutex: threading.Lock = threading.Lock()
        self.stopping: bool = False
        self._threads: list[threading.Thread] = []
        self._parked: list[threading.Lock] = []
        """The gates of the workers that wait for work."""
        self._awake = 0
        self._spared = 0
        self._quiet = asyncio.Event()
        self._is_looking = False
        self._waited: object = None
        """The job that waited at the last look."""
        self._is_refused = False

    # --- on the loop ------------------------------------------------------------------------------

    def work_added(self) -> None:
        """Wake one worker if none is awake; with the mutex held, after adding a job."""
        if not self._awake:
            self._wake_one()

    def look_soon(self) -> None:
        """Look a little later whether something still waits; without the mutex."""
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(_LOOK_S, self._look)

    def resize(self, size: int) -> None:
        """Have at most ``size`` workers from now on; a busy one ends what it is at. On the loop."""
        self.size = size
        self.look_soon()

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Start no job any more; wait for running ones, at most ``await_ms``.

        Threads whose listener does not return are left behind; so is ``caller``, a thread that
        waits for this inside its listener.
        """
        with self.mutex:
            self.stopping = True
            parked, self._parked = self._parked, []
            self._awake += len(parked)
            self._spared = int(caller in {thread.ident for thread in self._threads})
            if self._awake <= self._spared:
                self._quiet.set()
        for gate in parked:
            gate.release()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(await_ms / 1000):
                await self._quiet.wait()

    def _look(self) -> None:
        self._is_looking = False
        with self.mutex:
            waited, self._waited = self._waited, None if self.stopping else self._source.oldest()
            if self._waited is None:
                return
            if self._awake < self.size and (self._waited is waited or not self._awake):
                self._wake_one()
            are_all = self._awake >= self.size
        if not are_all:
            self.look_soon()

    def _wake_one(self) -> None:
        if self._parked:
            self._awake += 1
            self._parked.pop().release()
            return
        name = f"{self._name}_{len(self._threads) + 1}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none left; the next look tries again
            if not self._is_refused:
                logger.warning("%s cannot be started now, and is tried again: %s", name, error)
            self._is_refused = True
            return
        self._is_refused = False
        self._threads.append(thread)
        self._awake += 1

    # --- on worker threads ------------------------------------------------------------------------

    def _run(self) -> None:
        IS_CALLED_BY_CLIENT.set(True)
        gate = threading.Lock()
        gate.acquire()
        while (job := self._next_job(gate)) is not None:
            try:
                self._source.work(job)
            except BaseException:  # SystemExit, too, ends no thread but the main one
                logger.exception("a consume worker failed; it goes on with the next job")
        with self.mutex:
            self._awake -= 1
            last = self._awake <= self._spared
        if last:
            # The loop may be gone when a listener outlived the shutdown.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._quiet.set)

    def _next_job(self, gate: threading.Lock) -> J | None:
        while True:
            with self.mutex:
                if self.stopping:
                    return None
                if self._awake <= self.size:
                    job = self._source.next_job()
                    if job is not None:
                        return job
                self._awake -= 1
                self._parked.append(gate)
            gate.acquire()


class TaskPool:
    """Runs ``work`` in up to ``size`` tasks at once; it returns when nothing is left to do.

    Tasks are named as the threads of a listener's pool are, so that an operator finds the group's.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], size: int, group: str) -> None:
        self._do = work
        self._name = pool_name(group)
        self._numbers = itertools.count(1)
        self.size: int = size
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._coming = False
        self.stopping: bool = False

    def resize(self, size: int) -> None:
        """Have at most ``size`` tasks from now on."""
        self.size = size
        self.start_one()  # which starts others, as long as there is work for them

    def start_one(self) -> None:
        """Start a task more, unless one is about to begin or there are enough."""
        if self._coming or self.stopping or len(self._tasks) >= self.size:
            return
        self._coming = True
        task = self._loop.create_task(self._work(), name=f"{self._name}_{next(self._numbers)}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def may_go_on(self) -> bool:
        """Whether the current task may take more work: not after the pool shrank or stopped."""
        return not self.stopping and len(self._tasks) <= self.size

    async def shutdown(self, await_ms: float) -> None:
        """Start nothing more; wait for the tasks, then cancel what is left and wait again (C-120).

        What ignores that is left behind. A task that awaits this itself is neither waited for nor
        cancelled.
        """
        self.stopping = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if not tasks:
            return
        cancel_wait_ms = max(await_ms, CANCEL_WAIT_MS_MIN)
        try:
            await asyncio.wait(tasks, timeout=await_ms / 1000)
        except asyncio.CancelledError:
            cancel_wait_ms = CANCEL_WAIT_MS_MIN  # whoever waits for this waits no longer
            raise
        finally:
            for task in tasks:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=cancel_wait_ms / 1000)
            if left:
                logger.warning("%d listener calls do not end although cancelled", len(left))

    async def _work(self) -> None:
        if asyncio.current_task() not in self._tasks:
            await asyncio.sleep(0)  # an eager task: it begins before it is counted
        self._coming = False
        IS_CALLED_BY_CLIENT.set(True)
        await self._do()

    def if_others_go_on(self, work: Callable[[], object]) -> None:
        """Do ``work`` a moment after somebody cancelled a task: not if the loop has ended by then.

        ``asyncio.run`` cancels all tasks as it ends; what was begun then would be left undone.
        """
        self._loop.call_later(CUT_OFF_AFTER_MS / 1000, work)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            self._coming = False
            if not self.stopping:
                self.if_others_go_on(self.start_one)  # for the work it leaves

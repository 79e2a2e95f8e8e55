"""Tasks that await coroutine listeners: as many as there is work, up to a bound.

Law: tasks and their number only, on one loop; what there is to do is the owner's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

from rocketstream.client.consumer.consume.pool import CORE_POOL_SIZE_MAX, pool_name

logger = logging.getLogger("rocketstream.client")

CANCEL_WAIT_MS_MIN = 1_000


class TaskPool:
    """Runs ``work`` in up to ``tasks_max`` tasks at once; it returns when nothing is left to do.

    Tasks are named as the threads of a listener's pool are, so that an operator finds the group's.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], tasks_max: int, group: str) -> None:
        self._do = work
        self._name = pool_name(group)
        self._numbers = itertools.count(1)
        self._tasks_max = self._size = tasks_max
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._coming = False
        self.stopping = False

    @property
    def core_pool_size(self) -> int:
        """Most tasks at once."""
        return self._size

    def update_core_pool_size(self, size: int) -> bool:
        """Have at most ``size`` tasks from now on; return whether that many are allowed."""
        if not 0 < size <= min(CORE_POOL_SIZE_MAX, self._tasks_max):
            return False
        self._size = size
        self.start_one()  # which starts others, as long as there is work for them
        return True

    def start_one(self) -> None:
        """Start a task more, unless one is about to begin or there are enough."""
        if self._coming or self.stopping or len(self._tasks) >= self._size:
            return
        self._coming = True
        task = self._loop.create_task(self._work(), name=f"{self._name}_{next(self._numbers)}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def may_go_on(self) -> bool:
        """Whether the current task may take more work: not after the pool shrank or stopped."""
        return not self.stopping and len(self._tasks) <= self._size

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
            if await_ms > 0:
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
        self._coming = False
        await self._do()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            self._coming = False

"""Work beside that of users: tasks on a client instance's loop, callbacks off it.

A task that fails is logged; one that still runs when the instance ends is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

from rocketstream._util.executors import CallbackExecutor
from rocketstream._util.user_code import called
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import ClientStateError, RocketMQError

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("rocketstream.client")

CUT_OFF_AFTER_MS = 100
"""So long after its tasks were cancelled, not by its own end, an instance counts as cut off."""


class Background:
    """The tasks of one client instance; belongs to its loop.

    Attributes:
        timers: those that end with the instance only.
        tasks: those of ``run_soon`` that are not done.
    """

    def __init__(self, client_id: str, outages: OutageLog) -> None:
        self.timers: list[asyncio.Task[None]] = []
        self.tasks: dict[asyncio.Task[None], None] = {}
        self._client_id = client_id
        self._outages = outages
        self._told_of_cut: list[Callable[[], None]] = []
        self._is_cut_off = self._closed = False

    # --- once -------------------------------------------------------------------------------------

    def run_soon(
        self, work: Coroutine[None, None, None], on_dropped: Callable[[], None] | None = None
    ) -> None:
        """Run ``work``; its failure is logged.

        Args:
            work: what to run.
            on_dropped: called instead when the instance is closed before it is done.
        """
        if self._closed:
            work.close()
            if on_dropped is not None:
                on_dropped()
            return
        task = asyncio.get_running_loop().create_task(self._logged(work))
        self.tasks[task] = None

        def done(finished: asyncio.Task[None]) -> None:
            self.tasks.pop(finished, None)
            work.close()  # a task that is cancelled before its first step leaves it untouched
            if finished.cancelled() and on_dropped is not None:
                on_dropped()

        task.add_done_callback(done)

    async def _logged(self, work: Awaitable[None]) -> None:
        try:
            await work
        except RocketMQError as error:
            self._outages.failed(("work in the background",), error)
        except Exception:
            logger.exception("background work failed")

    # --- timers -----------------------------------------------------------------------------------

    def every(
        self, name: str, first_ms: int, period_ms: int, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Call ``work`` after ``first_ms``, and ``period_ms`` after each time it is done."""
        self.keep(name, self._repeated(name, first_ms, period_ms, work))

    def keep(self, name: str, work: Coroutine[None, None, None]) -> None:
        """Run ``work``, which does not end by itself."""
        timer = asyncio.get_running_loop().create_task(work, name=f"rocketstream-{name}")
        self.timers.append(timer)
        timer.add_done_callback(self._timer_ended)

    async def _repeated(
        self, name: str, first_ms: int, period_ms: int, work: Callable[[], Awaitable[None]]
    ) -> None:
        pause_ms = first_ms
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = period_ms
            try:
                await work()
            except Exception:
                logger.exception("timer %s failed", name)

    # --- the end ----------------------------------------------------------------------------------

    def when_cut_off(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called when the timers are cancelled, not by the instance's own end."""
        self._told_of_cut.append(tell)

    def _timer_ended(self, timer: asyncio.Task[None]) -> None:
        if timer.cancelled() and not (self._closed or self._is_cut_off):
            self._is_cut_off = True
            # asyncio.run cancels all tasks too, as it ends; then nothing runs so much later.
            asyncio.get_running_loop().call_later(CUT_OFF_AFTER_MS / 1000, self._cut_off)

    def _cut_off(self) -> None:
        if not self._closed:
            logger.error(
                "client %s was cut off: somebody cancelled its tasks on this loop, so it beats, "
                "divides queues and stores offsets no more; it is shut down. Cancel the tasks you "
                "made, not all of the loop, or shut clients down before",
                self._client_id,
            )
            for tell in self._told_of_cut:
                tell()

    async def close(self) -> None:
        """Cancel every task and wait until it has ended; take none any more.

        A task that awaits this itself, as users' code in it may, is neither waited for nor
        cancelled.
        """
        self._closed = True
        own = asyncio.current_task()
        pending = [task for task in (*self.timers, *self.tasks) if task is not own]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self.timers.clear()


def call_back(
    callbacks: CallbackExecutor,
    name: str,
    callback: Callable[[Future[T]], object],
    done: Future[T],
) -> None:
    """Have a user's callback called off the loop; here when the client is shut down.

    Args:
        callbacks: the threads that call it.
        name: of the call it was given to; the log has it where the callback raises.
        callback: is called with ``done``.
        done: the future that is done.
    """

    def call() -> None:
        try:
            called(callback, done)
        except Exception:
            logger.exception("a callback of %s raised", name)

    try:
        callbacks.submit(call)
    except ClientStateError:
        call()

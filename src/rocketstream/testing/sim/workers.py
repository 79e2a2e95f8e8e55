"""Background work on virtual time: steps run on the loop of their process, one at a time.

Chance and virtual time decide when a step runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from rocketstream._util.workers import Step
from rocketstream.testing.sim.loop import SimLoop

T = TypeVar("T")
_Job = Callable[[], None]


class SimWorkers:
    """The threads of one simulated process.

    Args:
        loop: the process.
        delay_s: returns the seconds until due work begins, and until a submitted function is done.
    """

    def __init__(self, loop: SimLoop, delay_s: Callable[[], float]) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._jobs: deque[_Job] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, name: str, step: Step, *, first_s: float) -> SimWorker:
        """Call ``step`` after ``first_s`` seconds, and again after each pause it returns."""
        return SimWorker(self._loop, name, step, first_s, self._delay_s)

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function a moment later; functions run one at a time, in the order given."""
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = function()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.append(work)
        if self._timer is None:
            self._timer = self._loop.call_later(self._delay_s(), self._work)
        return future

    def _work(self) -> None:
        self._timer = None
        if self._jobs:
            self._jobs.popleft()()
        if self._jobs:
            self._timer = self._loop.call_later(self._delay_s(), self._work)

    def close(self) -> None:
        """Run the submitted functions that have not run yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._jobs:
            self._jobs.popleft()()


class SimWorker:
    """One piece of work that is called again and again."""

    def __init__(
        self,
        loop: SimLoop,
        name: str,
        step: Step,
        first_s: float,
        delay_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._name = name
        self._step = step
        self._delay_s = delay_s
        self._stopped = False
        self._woken = False
        self._running = False
        self._timer: asyncio.TimerHandle | None = loop.call_later(first_s, self._run)

    def wake(self) -> None:
        """Call the step a moment from now; while it runs, once more afterwards."""
        if self._stopped or self._woken:
            return
        self._woken = True
        if not self._running:
            self._again(0.0)

    def stop(self) -> None:
        """Never call the step again."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(pause_s + self._delay_s(), self._run)

    def _run(self) -> None:
        if self._stopped:
            return
        self._timer = None
        self._woken = False
        self._running = True
        try:
            pause_s = self._step()
        except Exception as error:
            message = f"{self._name} failed and is not called again"
            self._loop.call_exception_handler({"message": message, "exception": error})
            self._stopped = True
            return
        finally:
            self._running = False
        if pause_s is None and not self._woken:
            self._stopped = True
        elif not self._stopped:
            self._again(0.0 if self._woken or pause_s is None else pause_s)

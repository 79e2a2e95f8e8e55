"""Background work. The object that runs it is handed in, never started where it is needed.

Law: no code here, and no user of it, waits for a step to happen: a simulation's worker runs its
steps on the caller's own thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from rocketstream._util.executors import DaemonPool

_log = logging.getLogger(__name__)
T = TypeVar("T")
Step = Callable[[], float | None]
"""A step: does some work; returns the seconds until its next call, or None for no further call."""


class Worker(Protocol):
    """One step that is called again and again."""

    def wake(self) -> None:
        """Call the step now instead of after its pause.

        If the step is running, it is called once more right afterwards.
        """
        ...

    def stop(self) -> None:
        """Wait until the step does not run and will not run again. May be called twice.

        Not from within the step itself.
        """
        ...


class Workers(Protocol):
    """Runs steps, and single functions, off the caller's path."""

    def start(self, name: str, step: Step, *, first_s: float) -> Worker:
        """Call ``step`` after ``first_s`` seconds, then after each pause it returns.

        A step handles its own errors; one that raises nevertheless is logged and not called again.
        """
        ...

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function that may block; functions run one at a time, in the order given.

        To be called on the loop the future belongs to.
        """
        ...

    def close(self) -> None:
        """Wait until every submitted function has run. More may be submitted later."""
        ...


class ThreadWorkers:
    """Each worker on a daemon thread of its own, functions on one more.

    Args:
        name: name of the thread that runs submitted functions.
    """

    def __init__(self, name: str = "rocketstream-work") -> None:
        self._name = name
        self._executor: DaemonPool | None = None

    def start(self, name: str, step: Step, *, first_s: float) -> Worker:
        """Start a thread; see :class:`Workers`."""
        return _ThreadWorker(name, step, first_s)

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function on the thread kept for it; see :class:`Workers`."""
        if self._executor is None:
            self._executor = DaemonPool(1, self._name)
        return asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Wait for the submitted functions and end their thread; blocks."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)


class _ThreadWorker:
    """A thread that calls a step."""

    def __init__(self, name: str, step: Step, first_s: float) -> None:
        self._name = name
        self._step = step
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, args=(first_s,), name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with self._condition:
            self._woken = True
            self._condition.notify()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self, pause_s: float | None) -> None:
        while pause_s is not None:
            with self._condition:
                if not self._woken and not self._stopping:
                    self._condition.wait(pause_s)
                self._woken = False
                if self._stopping:
                    return
            try:
                pause_s = self._step()
            except Exception:
                _log.exception("INTERNAL %s failed and is not called again", self._name)
                return

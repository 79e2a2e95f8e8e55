"""Functions called on threads that keep no program from ending, and that outlive its main thread.

The standard library's executors take nothing any more once the main thread has ended, when threads
of users and what atexit calls may still use a client.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream._util.user_code import called
from rocketstream.errors import ClientStateError

T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class CallbackExecutor:
    """Runs functions off the network thread (C-4). Thread safe.

    Unlike the standard executor its threads are daemons: a callback that never returns keeps
    neither ``close`` nor the interpreter from ending.
    """

    def __init__(self, threads_max: int, name: str = "rocketstream-callback") -> None:
        self._threads_max = threads_max
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    @property
    def is_current(self) -> bool:
        """Whether the caller is running on one of its threads."""
        return threading.current_thread() in self._threads

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Have ``function(*args)`` called on one of the threads.

        Raises:
            ClientStateError: closed.
            RuntimeError: there is no thread yet, and the system has none.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise ClientStateError("the client is shut down; nothing is called back any more")
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._threads_max):
                self._start_one()
            self._jobs.put((future, function, args))
        return future

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Have ``function(*args)`` called on one of the threads and wait for its result.

        Raises:
            ClientStateError: closed.
        """
        return await asyncio.wrap_future(self.submit(function, *args))

    def close(self) -> None:
        """Take nothing more and let the threads end once what waits was called; does not wait."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the threads but the caller's have ended after ``close``; None as long as it
        takes.
        """
        since_ms = SYSTEM_CLOCK.monotonic_ms()
        for thread in self._threads:
            if thread is not threading.current_thread():
                waited_s = (SYSTEM_CLOCK.monotonic_ms() - since_ms) / 1000
                thread.join(None if timeout_s is None else max(0.0, timeout_s - waited_s))

    def _start_one(self) -> None:
        thread = threading.Thread(
            target=self._main, name=f"{self._name}_{len(self._threads) + 1}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system has none left; the next function tries again
            if self._threads:
                return
            self._unfinished -= 1
            raise
        self._threads.append(thread)

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, args = job
            if future.set_running_or_notify_cancel():
                try:
                    result = called(function, *args)
                except BaseException as error:  # nothing a callback raises may end the thread
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, function, args
            with self._lock:
                self._unfinished -= 1


class DaemonPool(ThreadPoolExecutor):
    """The same for event loops, which take no executor of another class."""

    def __init__(self, threads_max: int, name: str) -> None:
        super().__init__(threads_max, name)
        self._calls = CallbackExecutor(threads_max, name)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have ``fn`` called on one of the threads.

        Raises:
            ClientStateError: shut down.
        """
        return self._calls.submit(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; what was taken is called all the same."""
        self._calls.close()
        if wait:
            self._calls.join()

"""Threads that run what users hand in: callbacks, and listeners called on a broker's request.

Law: daemon threads, made when needed and never more than allowed; knows nothing of the protocol.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK
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

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Have ``function(*args)`` called on one of the threads.

        Raises:
            ClientStateError: closed.
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

    def join(self, timeout_s: float) -> None:
        """Wait until the threads have ended after ``close``, for ``timeout_s`` at most."""
        deadline_ms = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, (deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1000))

    def _start_one(self) -> None:
        thread = threading.Thread(
            target=self._main, name=f"{self._name}_{len(self._threads) + 1}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, args = job
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:  # nothing a callback raises may end the thread
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, function, args
            with self._lock:
                self._unfinished -= 1

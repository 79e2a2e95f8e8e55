"""Event loops: choosing one, and running one in a thread of its own.

Law: the only module that imports uvloop; knows nothing of what runs on the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rocketstream.errors import ClientStateError, ForkedClientError

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop: uvloop's where it is installed, else asyncio's."""
    if sys.platform != "win32":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()


class LoopThread:
    """A daemon thread that runs one event loop until ``close``.

    The thread is running when the constructor returns. Thread safe.
    """

    def __init__(
        self,
        name: str = "rocketstream-loop",
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
    ) -> None:
        self._pid = os.getpid()
        # A callback scheduled under the lock is scheduled before the stop, so it runs or is
        # cancelled, but is never forgotten.
        self._lock = threading.Lock()
        self._closed = False
        self.loop = loop_factory()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def run(self, coro: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run ``coro`` on the loop and wait for its result; its exception is raised here.

        An interrupted or timed-out wait cancels the coroutine.

        Raises:
            TimeoutError: the coroutine was not done after ``timeout_ms``.
            ClientStateError: the loop is closed, or this is its own thread (it would wait for
                itself).
            ForkedClientError: called in a forked child, where the thread does not exist.
        """
        if threading.current_thread() is self._thread:
            coro.close()
            raise ClientStateError(
                "a blocking call was made on the network thread it waits for; use the async form"
            )
        future = self.submit(coro)
        try:
            return future.result(None if timeout_ms is None else timeout_ms / 1000)
        except concurrent.futures.CancelledError:
            if self._closed:
                raise ClientStateError("the loop was closed while it ran this call") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start ``coro`` on the loop without waiting.

        Raises:
            ClientStateError: the loop is closed.
            ForkedClientError: called in a forked child.
        """
        try:
            self._check_process()
            with self._lock:
                self._check_open()
                return asyncio.run_coroutine_threadsafe(coro, self.loop)
        except BaseException:
            coro.close()
            raise

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Have ``function(*args)`` called on the loop; returns at once.

        Raises:
            ClientStateError: the loop is closed.
            ForkedClientError: called in a forked child.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self.loop.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        """Cancel the tasks that still run, end the thread and wait for it. May be called twice."""
        if os.getpid() != self._pid:
            return  # the thread and the right to stop the loop stayed in the parent
        with self._lock:
            begins, self._closed = not self._closed, True
            # Noted before: the loop may end, and those who wait ask why, within this call.
            if begins:
                self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_process(self) -> None:
        # Before taking the lock: a thread of the parent may have held it at the fork.
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this object was created before fork(); create a new one in the child process"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClientStateError("already closed")

    def _main(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            try:
                _cancel_all(loop)
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

"""Event loops: choosing one, and running one in a thread of its own.

Law: no other module imports uvloop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from rocketstream._util.executors import DaemonPool
from rocketstream._util.waiting import Latch, Locks
from rocketstream.errors import ClientStateError, ForkedClientError, NotSupportedError

_log = logging.getLogger(__name__)
T = TypeVar("T")
_WORK_THREADS_MAX: Final = 32


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop: uvloop's where it is installed, else asyncio's."""
    if sys.platform != "win32":
        try:
            import uvloop
        except (ImportError, RuntimeError):
            pass  # not there; or the interpreter ends, when it cannot be imported any more
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()


def _check_threads() -> None:
    """Refuse to start a loop where threads are greenlets: it would never give way to another.

    Raises:
        NotSupportedError: gevent or eventlet has replaced the threads of this program.
    """
    gevent: Any = sys.modules.get("gevent.monkey")
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        whose, leave = "gevent", "gevent.monkey.patch_all(thread=False)"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        whose, leave = "eventlet", "eventlet.monkey_patch(thread=False)"
    else:
        return
    raise NotSupportedError(
        f"{whose} has made greenlets of this program's threads, and a client needs a thread of the "
        f"system for its connections; let threads be threads: {leave}, or run it with threads "
        "or processes (gunicorn -k gthread, celery -P threads or prefork)"
    )


class LoopThread:
    """A daemon thread that runs one event loop until ``close``.

    The thread is running when the constructor returns. Thread safe.

    Raises:
        NotSupportedError: threads are greenlets here.
    """

    def __init__(
        self,
        name: str = "rocketstream-loop",
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
    ) -> None:
        _check_threads()
        self._pid = os.getpid()
        # A callback scheduled under the lock is scheduled before the stop, so it runs or is
        # cancelled, but is never forgotten.
        self.locks: Locks = Locks()
        """The locks that this thread and users' threads take by turns."""
        self._lock = self.locks.make()
        self._closed = False
        self.loop: asyncio.AbstractEventLoop = loop_factory()
        self.loop.set_default_executor(DaemonPool(_WORK_THREADS_MAX, f"{name}-work"))
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self.loop.close()
            else:  # a signal handler raised while this waited for the thread, which runs the loop
                self._closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)
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
        # Not the future's own waiting: that holds its lock for some steps, in which a signal
        # handler may run, and the loop takes it.
        ended = Latch()
        future = self.submit(coro, ended)
        try:
            if not ended.wait(timeout_ms):
                raise TimeoutError
            return future.result()
        except concurrent.futures.CancelledError:
            if self._closed:
                raise ClientStateError("the loop was closed while it ran this call") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def submit(
        self, coro: Coroutine[Any, Any, T], ended: Latch | None = None
    ) -> concurrent.futures.Future[T]:
        """Start ``coro`` on the loop without waiting; open ``ended``, for waiting threads, at its
        end.

        Raises:
            ClientStateError: the loop is closed, or a signal handler that interrupted a call is
                about to wait for it.
            ForkedClientError: called in a forked child.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        is_handed = False
        try:
            self._check_process()
            if ended is not None:
                self.locks.check()
            with self._lock:
                self._check_open()
                is_handed = True  # before: a signal handler may raise as the loop has it already
                self.loop.call_soon_threadsafe(_begin, self.loop, coro, future, ended)
                return future
        except BaseException:
            if is_handed and not self.loop.is_closed():
                future.cancel()  # the loop has the coroutine, and may be in its midst
            else:
                coro.close()
            raise

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Schedule ``function(*args)`` on the loop; returns at once.

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
            # Noted before: the loop may end, and its waiting callers ask why, within this call.
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
            self._run_until_closed(loop)
        finally:
            try:
                _cancel_all(loop)
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                loop.close()

    def _run_until_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop, also after what users have called on it wanted to end the program.

        No thread but the main one can end that; all clients of the instance would be dead and not
        know it.
        """
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                _log.exception("what was called on the network thread wanted to end it; it goes on")
                with self._lock:
                    # The stop may have been lost with the error, or be still to come.
                    if self._closed:
                        loop.call_soon(loop.stop)
            else:
                return


def _begin(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, T],
    future: concurrent.futures.Future[T],
    ended: Latch | None,
) -> None:
    """Make a task of ``coro``, whose end is that of ``future``; cancelled with it."""
    if ended is not None:
        future.add_done_callback(lambda _: ended.open())
    if future.cancelled():
        coro.close()
        return
    task = loop.create_task(coro)

    def cancel(done: concurrent.futures.Future[T]) -> None:
        if done.cancelled() and not task.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks are over
                loop.call_soon_threadsafe(task.cancel)

    task.add_done_callback(functools.partial(_tell, future))
    future.add_done_callback(cancel)


def _tell(future: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    error = task.exception()
    if error is None:
        future.set_result(task.result())
    else:
        future.set_exception(error)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

"""Users' code, called where nothing it raises may end more than the call.

Some errors tell a generator, a task, a thread or the program to end. On a thread of ours, from a
listener, a hook or a store, they would end timers and loops that go on for others, and a
StopIteration cannot be put into a future of asyncio at all: whoever awaits it would wait for ever.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from rocketstream._util.ending import Cancellation

T = TypeVar("T")

_ENDS = (
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)
_ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)


class _Mark:
    """A context variable that a function may take along to another process, where it is new."""

    def __init__(self) -> None:
        var: ContextVar[bool] = ContextVar("rocketstream-users-code", default=False)
        self.get, self.set, self.reset = var.get, var.set, var.reset

    def __reduce__(self) -> tuple[type[_Mark], tuple[()]]:
        return _Mark, ()


IS_CALLED_BY_CLIENT: Final = _Mark()
"""True in coroutines and on threads of users' listeners, and in tasks that they begin: the end of a
client may wait for these, so they do not wait for an end that is under way."""


def called(function: Callable[..., T], *args: Any) -> T:
    """Return what a function of users returns.

    Raises:
        RuntimeError: it raised what is to end more than a call.
        SystemExit: it raised that on the main thread, the only one that ends the program with it.
        KeyboardInterrupt: the same.
    """
    try:
        return function(*args)
    except _ENDS as error:
        if isinstance(error, _ENDS_PROGRAM) and _is_main():
            raise
        raise _ordinary(error) from error


async def result_of(work: Awaitable[T]) -> T:
    """Return what a coroutine of users, or what else they want awaited, ends with.

    Raises:
        RuntimeError: as ``called``.
        CancelledError: the task that waits was cancelled.
        SystemExit: as ``called``.
        KeyboardInterrupt: the same.
    """
    task = asyncio.current_task()
    cancellation = Cancellation(task)
    before = IS_CALLED_BY_CLIENT.set(True)
    try:
        return await work
    except _ENDS as error:
        if isinstance(error, _ENDS_PROGRAM) and _is_main():
            raise
        if isinstance(error, asyncio.CancelledError) and cancellation.has_come:
            raise
        if is_thrown_away(error, task):
            raise
        raise _ordinary(error) from error
    finally:
        with contextlib.suppress(ValueError):  # thrown away, in another context
            IS_CALLED_BY_CLIENT.reset(before)


def is_thrown_away(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an error is the end of a task's coroutine that others throw away, not of users.

    So the collector ends a coroutine whose loop was closed: nothing may be called or awaited then.
    """
    if not isinstance(error, GeneratorExit):
        return False
    return asyncio._get_running_loop() is None or asyncio.current_task() is not task


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _ordinary(error: BaseException) -> RuntimeError:
    return RuntimeError(f"what was called raised {error!r}, which is to end more than a call")

"""Ends: of several steps, each is taken; of work that several wait for, each is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rocketstream.errors import ClientStateError

T = TypeVar("T")

CUT_SHORT = (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit)
"""The errors after which a coroutine can still clean up by awaiting. GeneratorExit is not one of
them: the coroutine is thrown away, as by the end of its loop, and nothing is left to wait."""


async def take_all(*steps: Callable[[], Awaitable[object]]) -> None:
    """Take one step after the other, also after one that fails.

    A cancellation ends the current step, as an error does, and the next steps are still taken: a
    caller that cancels a client's end still ends its threads and registrations.

    Raises:
        BaseException: the first that a step raised, once all were taken.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            await step()
        except CUT_SHORT as error:  # a cancellation most of all
            first = first or error
    if first is not None:
        raise first


class Cancellation:
    """Tells whether somebody cancels a task, from the making of this on.

    A CancelledError that comes up then is the task's own. Without that it is the failure of what
    was awaited; so it is after an earlier cancellation that was caught: that still counts in
    ``Task.cancelling()``, as under ``asyncio.run`` after Ctrl-C and wherever ``uncancel`` was left
    out.

    Args:
        task: by default the current one, which takes a moment to find.
    """

    __slots__ = ("_before", "_task")

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        self._task = task or asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    @property
    def has_come(self) -> bool:
        """Whether the task has been cancelled meanwhile."""
        return self._task is not None and self._task.cancelling() > self._before


async def shared(task: asyncio.Task[T], doing: str) -> T:
    """Wait for a task that others may wait for too; the cancellation of a caller leaves it running.

    Args:
        task: the task; its owner cancels it when the client ends.
        doing: what it does, for the error text.

    Raises:
        ClientStateError: the client ended meanwhile.
        BaseException: what the task raised.
    """
    cancellation = Cancellation()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and not cancellation.has_come:
            raise ClientStateError(f"the client was closed while it {doing}") from None
        raise


_UNDER_WAY: set[asyncio.Task[Any]] = set()
"""A loop itself keeps no task alive."""


async def to_the_end(
    work: Coroutine[Any, Any, T], doing: str, also: set[asyncio.Task[Any]] | None = None
) -> T:
    """Wait for ``work``, which goes on to its end though the caller is cancelled.

    Args:
        work: what is to be done; only the end of its loop cuts it short.
        doing: what it does, for the error text.
        also: has its task, too, as long as that runs.

    Raises: as ``shared``.
    """
    task = asyncio.get_running_loop().create_task(work)
    for kept in (_UNDER_WAY,) if also is None else (_UNDER_WAY, also):
        kept.add(task)
        task.add_done_callback(kept.discard)
    return await shared(task, doing)

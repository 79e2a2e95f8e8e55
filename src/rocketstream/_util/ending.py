"""Ends: of several steps, each is taken; of work that several wait for, each is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

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


def is_being_cancelled() -> bool:
    """Whether the current task is to end: a CancelledError is then its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def shared(task: asyncio.Task[T], doing: str) -> T:
    """Wait for a task that others may wait for too; the cancellation of a caller leaves it running.

    Args:
        task: the task; its owner cancels it when the client ends.
        doing: what it does, for the error text.

    Raises:
        ClientStateError: the client ended meanwhile.
        BaseException: what the task raised.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and not is_being_cancelled():
            raise ClientStateError(f"the client was closed while it {doing}") from None
        raise

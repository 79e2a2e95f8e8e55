"""Ends of several steps: each is taken, whatever became of those before.

Law: knows nothing of the steps; waits for each, and for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

CUT_SHORT = (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit)
"""What a coroutine can still clean up after by awaiting: all but being thrown away, as by the end
of its loop (GeneratorExit), when there is nothing left that could wait."""


async def take_all(*steps: Callable[[], Awaitable[object]]) -> None:
    """Take one step after the other; one that fails keeps none of the others from being taken.

    To cancel this ends the step it waits for, as to fail does: whoever has no patience left for a
    client's end has its threads and registrations ended all the same.

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

"""Ends of several steps: each step is taken, whether or not those before it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

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

"""The one rule of ``with``: entering starts a client, leaving shuts it down.

Law: decides whether to start, and warns; the client starts itself. Programs written before this
rule work on, and a warning says what to write instead: a FutureWarning, which Python shows by
default, where without a ``start()`` nothing would be consumed.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from typing import Self

from rocketstream.client.instance.service_state import ServiceState

logger = logging.getLogger("rocketstream.client")

_AT_THE_CALLER = 3
"""The ``stacklevel`` of warnings: they name the line of the user's ``with`` or ``start()``."""


class StartedByWith:
    """A client that a ``with`` block starts and shuts down."""

    state: ServiceState
    _block_started = False
    """Whether a block has started it and nobody has called ``start()`` inside yet."""

    def _lacks(self) -> tuple[str, ...]:
        """Return the keywords of the constructor that give what is still needed to be started."""
        return ()

    def _is_to_start(self) -> bool:
        """Return whether entering starts this client: not if it runs, or lacks something (warns).

        A client that was shut down is started, and that raises as ``start()`` does.
        """
        if self.state is ServiceState.RUNNING:
            return False
        lacks = self._lacks() if self.state is ServiceState.CREATE_JUST else ()
        if lacks:
            kind = type(self).__name__.removeprefix("Async")
            no_such = " and ".join(f"no {each}" for each in lacks)
            keywords = " and ".join(f"`{each}=`" for each in lacks)
            warnings.warn(
                f"`with` starts a {kind}, but this one has {no_such} yet, so it was not started "
                "and consumes nothing; make it complete before the block (give its constructor "
                f"{keywords}), or call start() inside",
                FutureWarning,
                stacklevel=_AT_THE_CALLER,
            )
        return not lacks

    def _warn_unless_started(self) -> None:
        """Log that a block ends whose client was never started: programs may hide warnings."""
        if self.state is ServiceState.CREATE_JUST:
            logger.warning(
                "a `with` block ends whose %r was never started, so it has done nothing; "
                "make it complete before the block, or call start() inside",
                self,
            )

    def _is_started_again(self) -> bool:
        """Return whether ``start()`` has nothing to do, as the ``with`` around it did it (warns).

        True once in a block: programs from before the rule call it once. A second ``start()``
        raises, as it does without ``with``.
        """
        if not self._block_started or self.state is not ServiceState.RUNNING:
            return False
        self._block_started = False
        kind = type(self).__name__.removeprefix("Async")
        warnings.warn(
            f"`with` has started this {kind} already; leave start() out",
            DeprecationWarning,
            stacklevel=_AT_THE_CALLER,
        )
        return True


class WithBlock(StartedByWith, ABC):
    """A client of the sync face as a context manager."""

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def shutdown(self) -> None:
        """End."""

    def __enter__(self) -> Self:
        if self._is_to_start():
            self.start()
            self._block_started = True
        return self

    def __exit__(self, *_: object) -> None:
        self._warn_unless_started()
        self.shutdown()


class AsyncWithBlock(StartedByWith, ABC):
    """A client of the asyncio face as a context manager."""

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def shutdown(self) -> None:
        """End."""

    async def __aenter__(self) -> Self:
        if self._is_to_start():
            await self.start()
            self._block_started = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._warn_unless_started()
        await self.shutdown()


def lacking(*, listener: bool, subscription: bool) -> tuple[str, ...]:
    """Return the keywords a consumer lacks to be started; the arguments say what it has."""
    has = {"listener": listener, "subscription": subscription}
    return tuple(keyword for keyword, is_there in has.items() if not is_there)

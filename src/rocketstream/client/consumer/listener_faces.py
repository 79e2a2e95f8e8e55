"""How a consumer with a listener ends, and how its end is waited for: once for each face.

Law: the push consumer and the consumer of lite topics end by this; what they start is theirs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from rocketstream._util.clock import Clock
from rocketstream._util.waiting import Latch
from rocketstream.arguments import checks_calls
from rocketstream.client.core.kinds import check_time
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.started import Startable
from rocketstream.client.instance.with_block import AsyncWithBlock, WithBlock
from rocketstream.errors import ClientStateError


class EndSettings(Protocol):
    """The setting an end goes by."""

    @property
    def await_termination_ms_when_shutdown(self) -> int:
        """How long running listeners are waited for, if nothing else is said."""
        ...


class ListenerMachine(Protocol):
    """What consumes while such a consumer runs."""

    @property
    def settings(self) -> EndSettings:
        """The settings it was started with."""
        ...

    def shutdown(self, await_ms: float, caller: int | None = None) -> Coroutine[Any, Any, object]:
        """End; wait ``await_ms`` for running listeners, not for one on the thread ``caller``."""
        ...


M = TypeVar("M", bound=ListenerMachine)


@checks_calls()
class ListenerConsumer(WithBlock, Startable[M]):
    """A consumer of the sync face that calls a listener until it is shut down."""

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._ended = Latch()

    def shutdown(self, await_ms: float | None = None) -> None:
        """Stop, so that nothing is lost and nothing finished is repeated.

        Nothing more is fetched, running listeners are waited for, what they finished is told to the
        brokers, then the group's other members. What no listener has finished is consumed again by
        whoever is next; that includes the batch of a listener that calls this itself. Does nothing
        unless running.

        Args:
            await_ms: how long to wait for running listeners; by default
                ``await_termination_ms_when_shutdown``. Those that take longer are left behind.
        """
        if await_ms is not None:
            check_time("await_ms", await_ms)
        started = self._begin_shutdown()
        if started is None:
            return
        if await_ms is None:
            await_ms = started.machine.settings.await_termination_ms_when_shutdown
        try:
            self._end_threaded(started, started.machine.shutdown(await_ms, threading.get_ident()))
        finally:
            self._ended.open()

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait until the consumer has been shut down, by another thread or a signal handler.

        What a program whose listener does all the work has left to do. Ctrl-C raises
        KeyboardInterrupt here at once; leaving the ``with`` block then shuts the consumer down.
        Outages end nothing: the consumer goes on when the servers are back.

        Args:
            timeout_ms: how long to wait; by default for ever.

        Returns:
            Whether it has been shut down, all of it: listeners have ended, brokers have been told.

        Raises:
            ClientStateError: not started, or called on the network thread, which would stand still.
        """
        if timeout_ms is not None:
            check_time("timeout_ms", timeout_ms)
        if self.state is not ServiceState.SHUTDOWN_ALREADY:
            engine = self._running()[0]
            if threading.get_ident() == engine.loop_thread_id:
                raise ClientStateError(
                    "wait() would block the network thread it was called on; call it on "
                    "another thread"
                )
        return self._ended.wait(timeout_ms)


@checks_calls()
class AsyncListenerConsumer(AsyncWithBlock, Startable[M]):
    """A consumer of the asyncio face that calls a listener until it is shut down."""

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._ended = asyncio.Event()

    async def shutdown(self, await_ms: float | None = None) -> None:
        """Stop, so that nothing is lost and nothing finished is repeated.

        Args:
            await_ms: how long to wait for running listeners; by default
                ``await_termination_ms_when_shutdown``. Coroutines that take longer are cancelled.
        """
        if await_ms is not None:
            check_time("await_ms", await_ms)
        started = self._begin_shutdown()
        if started is None:
            return
        if await_ms is None:
            await_ms = started.machine.settings.await_termination_ms_when_shutdown
        try:
            await self._end_here(started, started.machine.shutdown(await_ms))
        finally:
            self._ended.set()

    async def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait until the consumer has been shut down; see ``rocketstream.PushConsumer.wait``.

        Ctrl-C cancels it, as it does whatever ``asyncio.run`` runs.
        """
        if timeout_ms is not None:
            check_time("timeout_ms", timeout_ms)
        if self.state is not ServiceState.SHUTDOWN_ALREADY:
            self._running()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

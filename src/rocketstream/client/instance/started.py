"""What a client has only while it is started: begun, handed out and ended in one place.

Law: the faces of all kinds of clients start and end by this; which machine they start is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rocketstream._util.clock import Clock
from rocketstream._util.ending import CUT_SHORT
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.engine import Engine, loop_engine, threaded_engine
from rocketstream.client.instance.life_lock import LifeLock
from rocketstream.client.instance.service_state import ServiceState, StaysHere, not_running
from rocketstream.errors import ClientStateError

M = TypeVar("M")

Make = Callable[[Engine], Coroutine[Any, Any, M]]
"""Makes and starts a client's machine, on the loop of its engine."""


class Started(NamedTuple, Generic[M]):
    """A client that was started.

    Attributes:
        engine: the client instance and its loop.
        machine: what the client's calls are handed to.
    """

    engine: Engine
    machine: M


class Startable(StaysHere, Generic[M]):
    """A client with a machine: not there before ``start``, nor after ``shutdown``."""

    _kind: ClassVar[str]
    """What errors call it."""

    state: ServiceState
    _clock: Clock
    _started: Started[M] | None

    def _create(self, clock: Clock) -> None:
        """Begin its life; of the constructor."""
        self._clock = clock
        self.state = ServiceState.CREATE_JUST
        self._started = None
        self._life = LifeLock()

    # --- start ------------------------------------------------------------------------------------

    def _check_new(self) -> None:
        """Refuse a second start.

        Raises:
            ClientStateError: it was started before.
        """
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError(
                f"this {self._kind} was started before ({self.state.value}); "
                "a client cannot be started again, create a new one"
            )

    def _start_threaded(self, config: ClientConfig, make: Make[M]) -> Started[M]:
        """Start on a thread of its own; blocks. What fails leaves nothing behind."""
        self.state = ServiceState.START_FAILED
        engine: Engine | None = None
        try:
            engine = threaded_engine(config, self._clock)
            started = Started(engine, engine.run(make(engine)))
        except BaseException:
            self.state = ServiceState.CREATE_JUST
            if engine is not None:
                engine.leave()
            raise
        self._started = started
        self.state = ServiceState.RUNNING
        return started

    async def _start_here(self, config: ClientConfig, make: Make[M]) -> Started[M]:
        """Start on the running loop; what fails leaves nothing behind."""
        self.state = ServiceState.START_FAILED
        engine: Engine | None = None
        try:
            engine = await loop_engine(config, self._clock)
            started = Started(engine, await make(engine))
        except CUT_SHORT:
            self.state = ServiceState.CREATE_JUST
            if engine is not None:
                await engine.leave_here()
            raise
        self._started = started
        self.state = ServiceState.RUNNING
        return started

    # --- use --------------------------------------------------------------------------------------

    def _running(self) -> Started[M]:
        """Return what there is of a client that runs; every call that needs one asks here.

        Raises:
            ClientStateError: it does not run, or an asyncio client is used on another loop.
            ForkedClientError: called in a forked child.
        """
        started = self._started
        if self.state is not ServiceState.RUNNING or started is None:
            raise not_running(self._kind, self.state)
        started.engine.check_process()
        return started

    @property
    def _machine(self) -> M:
        return self._running().machine

    def _check_process(self) -> None:
        """Refuse to change anything in a forked child."""
        if self._started is not None:
            self._started.engine.check_process()

    # --- shutdown ---------------------------------------------------------------------------------

    def _begin_shutdown(self) -> Started[M] | None:
        """Say that it is shut down from now on; return None unless it runs."""
        self._check_process()  # before the lock: a forked child may find it held
        if self._life.puts_off_end():
            return None
        with self._life.lock:
            if self.state is not ServiceState.RUNNING:
                return None
            self.state = ServiceState.SHUTDOWN_ALREADY
            return self._started

    def _end_threaded(self, started: Started[M], ending: Coroutine[Any, Any, object]) -> None:
        """Have the machine end, then leave the engine; blocks."""
        try:
            started.engine.run(ending)
        finally:
            try:
                started.engine.leave()
            finally:
                self._started = None

    async def _end_here(self, started: Started[M], ending: Coroutine[Any, Any, object]) -> None:
        """Have the machine end, then leave the engine."""
        try:
            await ending
        finally:
            try:
                await started.engine.leave_here()
            finally:
                self._started = None

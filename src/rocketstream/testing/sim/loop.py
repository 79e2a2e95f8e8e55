"""Virtual time: one scheduler, and an event loop of its own for every simulated process."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from rocketstream.errors import NotSupportedError, SimulationError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEP_S = 1e-6
"""Time one callback takes: in a process that spins, time passes all the same."""
SPIN_STEPS = 200_000
"""As many callbacks within a second of time mean that something spins.

The busiest runs have some thousand in a second; a spin has a million, and nothing else shows one
that ends, as that does which waits for a slow disk.
"""


class Event:
    """A callback that belongs to no process: the network's, the disk's, the faults'."""

    __slots__ = ("_args", "_callback", "_cancelled", "_loop")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._loop = None

    def cancel(self) -> None:
        """Do not run the callback; harmless when it has already run."""
        self._cancelled = True

    def _run(self) -> None:
        self._callback(*self._args)


class Scheduler:
    """Runs the callbacks of all processes, one at a time, in the order of time and of scheduling.

    Attributes:
        now: virtual seconds since the simulation began.
        steps: callbacks run so far.
    """

    def __init__(self) -> None:
        self.now: float = 0.0
        self.steps: int = 0
        self._looked = 0.0
        self._heap: list[tuple[float, int, Any]] = []
        self._ready: deque[Any] = deque()
        self._sequence = itertools.count()

    def soon(self, handle: Any) -> None:
        """Run a handle after those that are ready."""
        self._ready.append(handle)

    def at(self, when: float, handle: Any) -> None:
        """Run a handle at a time."""
        heapq.heappush(self._heap, (when, next(self._sequence), handle))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Event:
        """Run a callback that belongs to no process after ``delay_s``."""
        return self.call_at(self.now + delay_s, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Event:
        """Run a callback that belongs to no process at a time."""
        event = Event(callback, args)
        self.at(when, event)
        return event

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> None:
        """Let time pass until ``until``, or until ``is_over()``, asked after each callback.

        Raises:
            SimulationError: too many callbacks ran in a second; something spins.
        """
        running: SimLoop | None = None
        before = events._get_running_loop()
        events._set_running_loop(None)
        ready = self._ready
        try:
            while self._fill(until):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                loop = handle._loop
                if loop is not None:
                    if loop.holds(handle):
                        continue
                    if loop is not running:
                        events._set_running_loop(loop)
                        running = loop
                elif running is not None:
                    events._set_running_loop(None)
                    running = None
                self.now += STEP_S
                self.steps += 1
                if not self.steps % SPIN_STEPS:
                    self._look(handle)
                handle._run()
                if is_over is not None and is_over():
                    return
        finally:
            events._set_running_loop(before)

    def _look(self, handle: Any) -> None:
        took, self._looked = self.now - self._looked, self.now
        if took < 1.0:
            raise SimulationError(
                f"{SPIN_STEPS} callbacks ran in {took:.2f} virtual seconds, {self.now:.1f} after "
                f"the beginning: something spins, as {handle!r}"
            )

    def _fill(self, until: float) -> bool:
        """Move due handles to the ready ones; return whether anything is left before ``until``."""
        heap, ready = self._heap, self._ready
        while True:
            while heap and heap[0][0] <= self.now:
                ready.append(heapq.heappop(heap)[2])
            if ready:
                return self.now <= until
            if not heap or heap[0][0] > until:
                self.now = max(self.now, until)
                return False
            when, _, handle = heapq.heappop(heap)
            if not handle._cancelled:
                self.now = when
                ready.append(handle)

    def clear(self) -> None:
        """Forget everything that was scheduled."""
        self._heap.clear()
        self._ready.clear()


class _SimTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on its address in memory."""

    def __init__(self, coro: Any, *, number: int, **arguments: Any) -> None:
        self.number = number
        super().__init__(coro, **arguments)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process, from its start to its end or crash.

    Attributes:
        address: of the machine it runs on.
        on_error: called with text and exception when a callback raises.
        network: makes connections and listens; None where there is none.
        drops_clients: its clients end with it, as those of a killed process: none is named.
    """

    drops_clients = True

    def __init__(self, scheduler: Scheduler, name: str = "", address: str = "") -> None:
        super().__init__()
        self.name = name
        self.address = address
        self.scheduler = scheduler
        self.network: Any = None
        self.on_error: Callable[[str, BaseException | None], None] | None = None
        self.executor_delay: Callable[[], float] = lambda: 0.0
        self._dead = False
        self._held: deque[Any] | None = None
        self._numbers = itertools.count(1)
        self._remains: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        state = "dead" if self._dead else "paused" if self._held is not None else "running"
        return f"<SimLoop {self.name} {state}>"

    def __del__(self) -> None:
        """Do nothing: the loop holds nothing that would have to be closed."""

    # --- the life of the process ------------------------------------------------------------------

    def die(self) -> None:
        """End at once: nothing that is scheduled runs any more, nothing can be scheduled."""
        if self._dead:
            return
        self._dead = True
        self._held = None
        # Kept, so that no coroutine ends (and runs its ``finally``) while the simulation goes on.
        self._remains = sorted(asyncio.all_tasks(self), key=lambda task: hash(task))

    def pause(self) -> None:
        """Stop, as SIGSTOP does: callbacks that fall due meanwhile run after ``resume``."""
        if not self._dead and self._held is None:
            self._held = deque()

    def resume(self) -> None:
        """Go on: run the callbacks that fell due meanwhile, in order."""
        held, self._held = self._held, None
        for handle in held or ():
            self.scheduler.soon(handle)

    @property
    def is_paused(self) -> bool:
        """Whether it is stopped now."""
        return self._held is not None

    def holds(self, handle: Any) -> bool:
        """Whether a due handle must not run now: it waits while paused, is lost when dead."""
        if self._held is not None:
            self._held.append(handle)
            return True
        return self._dead

    def bury(self) -> None:
        """Close the coroutines the dead process left unfinished, so that nothing complains later.

        ``finally`` blocks run here, where they have no effect on the simulation any more.
        """
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                while self._remains:  # closing a coroutine may create another one
                    task = self._remains.pop()
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        finally:
            events._set_running_loop(before)

    # --- scheduling -------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self.scheduler.now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback behind those that are ready."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._dead:
            self.scheduler._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback after ``delay`` seconds."""
        return self.call_at(self.scheduler.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a time, as ``time()`` tells it."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._dead:
            self.scheduler.at(when, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped when they fall due."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **arguments: Any,
    ) -> asyncio.Task[T]:
        """Start a coroutine."""
        number = next(self._numbers)
        task: asyncio.Task[T] = _SimTask(
            coro,
            number=number,
            loop=self,
            name=str(name) if name else f"task-{number}",
            context=context,
            **arguments,
        )
        if self._dead:
            self._remains.append(task)
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function a moment later, in one step, as if on another thread."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.executor_delay(), work)
        return future

    # --- the network ------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        """Connect by host and port in the simulated network."""
        return await self._net().create_connection(self, protocol_factory, *args, **options)

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        """Listen on host and port in the simulated network."""
        return await self._net().create_server(self, protocol_factory, *args, **options)

    def _net(self) -> Any:
        if self.network is None:
            raise NotSupportedError("this simulated process has no network")
        return self.network

    # --- state and errors -------------------------------------------------------------------------

    def is_running(self) -> bool:
        """Whether the process is alive."""
        return not self._dead

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._dead

    def stop(self) -> None:
        """Nothing to do: a simulated process ends with its simulation."""

    def close(self) -> None:
        """End the process."""
        self.die()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there are no threads."""

    def get_debug(self) -> bool:
        """Never in debug mode."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Nothing to do."""

    def set_exception_handler(self, handler: Any) -> None:
        """Refused: errors belong to the simulation."""
        raise NotSupportedError("errors of a simulated process go to its simulation")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report as ``call_exception_handler`` does."""
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error nobody caught; errors of a dead process do not count."""
        if not self._dead and self.on_error is not None:
            self.on_error(str(context.get("message")), context.get("exception"))


def _close(coro: Any) -> None:
    """Close a coroutine, however often it refuses by awaiting again."""
    for _ in range(100):
        try:
            coro.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" in str(error):
                continue
            return
        except BaseException:  # errors of a coroutine that is being closed concern nobody
            return
        return

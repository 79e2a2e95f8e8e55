"""The life of a client: made, started, used, shut down; with signals, forks and ``with``.

``Client`` has what both faces share, ``SyncClient`` and ``AsyncClient`` how each starts, waits and
ends; ``blocking`` makes a call of the sync face from that of the asyncio face.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import sys
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
)

from rocketstream._util.clock import Clock
from rocketstream._util.ending import CUT_SHORT
from rocketstream._util.user_code import IS_CALLED_BY_CLIENT
from rocketstream.checks import unchecked
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.engine import (
    Engine,
    check_process,
    loop_engine,
    process,
    threaded_engine,
)
from rocketstream.errors import (
    ClientStateError,
    ForkedClientError,
    NotSupportedError,
)
from rocketstream.settings import not_assignable

logger: logging.Logger = logging.getLogger("rocketstream.client")

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")


class ServiceState(enum.Enum):
    """Where a client is in its life."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


_ADVICE = {
    ServiceState.CREATE_JUST: "call start() first, once",
    ServiceState.START_FAILED: "its start is under way or has failed",
    ServiceState.RUNNING: "it is being started or shut down by another thread",
    ServiceState.SHUTDOWN_ALREADY: "it was shut down; create a new one",
}


def not_running(kind: str, state: ServiceState) -> ClientStateError:
    """Return the error of a call that needs a running client; ``kind`` is what the client is."""
    return ClientStateError(f"this {kind} is not running ({state.value}): {_ADVICE[state]}")


class LifeLock:
    """Held while a client is started or shut down.

    Attributes:
        lock: to be held while the client's state is looked at and changed.
    """

    def __init__(self) -> None:
        self.lock: threading.RLock = threading.RLock()
        self._starter: int | None = None
        self._is_unwanted = False
        self._asking = threading.RLock()
        """Held while an end is put off, and while the start sees whether one was."""

    @contextlib.contextmanager
    def starting(self, end: Callable[[], object]) -> Iterator[None]:
        """Keep other threads from starting or shutting down the client meanwhile.

        Args:
            end: called as soon as the start is over, if it was put off until then.
        """
        is_unwanted = False
        try:
            with self.lock:
                before, self._starter = self._starter, threading.get_ident()
                try:
                    yield
                finally:
                    with self._asking:
                        self._starter = before
                        is_unwanted, self._is_unwanted = self._is_unwanted, False
        finally:
            if is_unwanted:
                end()

    def puts_off_end(self) -> bool:
        """Put the end off if the start may wait for the caller; return whether it does.

        A signal handler interrupts it, and what is called on a network thread keeps its requests
        from ending: either would wait for its own thread, for ever.
        """
        on_loop = asyncio._get_running_loop() is not None
        with self._asking:
            if self._starter is None or not (on_loop or self._starter == threading.get_ident()):
                return False
            self._is_unwanted = True
            return True


class Started(NamedTuple, Generic[M]):
    """A client that was started.

    Attributes:
        engine: the client instance and its loop.
        machine: what the client's calls are handed to.
    """

    engine: Engine
    machine: M


def _is_attribute(kind: type[Any], name: str) -> bool:
    """Whether objects of a class may have an attribute."""
    if not kind.__module__.startswith("rocketstream."):
        return True
    return any(name in vars(each) or name in each.__annotations__ for each in kind.__mro__[:-1])


def weakly(method: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls a method as long as its object is there."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        if (there := found()) is not None:
            there()

    return call


_AT_THE_CALLER = 3
"""The ``stacklevel`` of warnings: they name the line of the user's ``with`` or ``start()``."""


class Client(Generic[M]):
    """A client with a machine: not there before ``start``, nor after ``shutdown``.

    It owns connections and threads, which no other process can be handed.
    """

    _kind: ClassVar[str]
    """Its name in errors."""
    _works_alone: ClassVar[bool] = False
    """Whether it works without being called, as a consumer that has a listener does."""

    state: ServiceState
    shutdown: Callable[[], Any]
    _clock: Clock
    _started: Started[M] | None
    if TYPE_CHECKING:

        @property
        def config(self) -> ClientConfig:
            """The configuration shared by all kinds of clients."""

    def _create(self, clock: Clock) -> None:
        """Begin its life; of the constructor."""
        self._clock = clock
        self.state = ServiceState.CREATE_JUST
        self._started = None
        self._made_in = process()
        self._changing = threading.RLock()  # held while a setting changes, all being one value

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse an attribute no client of this class has: a setting meant, most likely.

        A class of the user's own may keep in it what it likes.
        """
        if name[0] != "_" and not _is_attribute(type(self), name):
            whose = type(self).__name__.removeprefix("Async")
            raise not_assignable(name, whose, self._settings_kinds())
        object.__setattr__(self, name, value)

    def _settings_kinds(self) -> tuple[type[Any], ...]:
        """Return the classes of the settings its constructor takes."""
        raise NotImplementedError

    # --- start ------------------------------------------------------------------------------------

    def _begin_start(self) -> Any:
        """Check, on the caller's thread, that all is there to start it.

        Raises:
            ClientStateError: it was started before.
            ConfigurationError: something lacks, as the address of a name server.
        """
        self._check_new()
        self.config.name_servers()

    async def _make(self, engine: Engine) -> M:
        """Return the machine, started; on the loop of its engine."""
        raise NotImplementedError

    @staticmethod
    def _set_to_work(machine: M) -> None:
        """Have the machine of a client that runs now begin its work; on the loop."""

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

    def _runs(self, engine: Engine, machine: M) -> Started[M]:
        self._started = started = Started(engine, machine)
        self.state = ServiceState.RUNNING
        return started

    def __del__(self) -> None:
        """Warn of a client that was dropped while it runs; one that works only when called ends."""
        started = self.__dict__.get("_started")
        if started is None or self.state is not ServiceState.RUNNING or sys.is_finalizing():
            return
        if getattr(started.engine.loop, "drops_clients", False):  # a simulated process was killed
            return
        with contextlib.suppress(ClientStateError):  # a forked child: it is its parent's
            if started.engine.thread is not None:
                started.engine.check_process()
            goes_on = self._works_alone or started.engine.thread is None
            fate = "and goes on, out of reach" if goes_on else "and is shut down now"
            text = f"{self!r} was dropped without shutdown(), {fate}"
            logger.warning("%s", text)
            if not goes_on:
                with contextlib.suppress(RuntimeError):  # the interpreter starts no thread any more
                    threading.Thread(target=self.shutdown, name="rocketstream-dropped").start()
            warnings.warn(text, ResourceWarning, stacklevel=2)

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
        check_process(self._made_in)
        started = self._started  # another thread's shutdown takes it away
        if started is not None:
            started.engine.check_process()

    # --- shutdown ---------------------------------------------------------------------------------

    def _begin_shutdown(self) -> Started[M] | None:
        """Say that it is shut down from now on; return None unless it runs."""
        self._check_process()
        if self.state is not ServiceState.RUNNING:
            return None
        self.state = ServiceState.SHUTDOWN_ALREADY
        return self._started

    # --- with -------------------------------------------------------------------------------------
    # Entering a block starts a client, leaving it shuts it down. Programs written before this rule
    # work on, and a warning says what to write instead: a FutureWarning, which Python shows by
    # default, where without a ``start()`` nothing would be consumed.

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

    def _is_started_again(self, level: int = _AT_THE_CALLER) -> bool:
        """Return whether ``start()`` has nothing to do, as the ``with`` around it did it (warns).

        True once in a block: programs from before the rule call it once. A second ``start()``
        raises, as it does without ``with``.

        Every start asks here first, before a lock that a forked child may find held.

        Args:
            level: how many calls away the user's is.

        Raises:
            ForkedClientError: it was made before a fork. Each child would have its client id, and
                with that all queues, the locks of the others and their message ids.
        """
        check_process(self._made_in)
        if not self._block_started or self.state is not ServiceState.RUNNING:
            return False
        self._block_started = False
        kind = type(self).__name__.removeprefix("Async")
        warnings.warn(
            f"`with` has started this {kind} already; leave start() out",
            DeprecationWarning,
            stacklevel=level,
        )
        return True

    # --- what it says of itself -------------------------------------------------------------------

    def __repr__(self) -> str:
        """One line for logs and bug reports: group, state, name servers, topics; no secret.

        It needs no lock and no request. A client whose constructor failed shows the attributes it
        has.
        """
        kind = type(self).__name__
        if kind.startswith("Async"):  # as users know it
            kind = "aio." + kind.removeprefix("Async")
        config: Any = getattr(self, "config", None)
        state: Any = getattr(self, "state", None)
        parts = [f"group={getattr(self, 'group', None)!r}"]
        if state is not None:
            parts.append(f"state={state.value}")
        if config is not None:
            parts.append(f"namesrv_addr={config.shown_name_servers()!r}")
            parts += [f"{name}={_few(names)}" for name, names in self._shown().items() if names]
        return f"{kind}({', '.join(parts)})"

    if not TYPE_CHECKING:  # else every misspelt name would be an Any to type checkers

        def __getattr__(self, name: str) -> NoReturn:
            """Tell users of Java's client what a method or a setter of theirs is called here."""
            kind = type(self)
            text = f"{kind.__name__!r} object has no attribute {name!r}"
            if name[:1].islower() and not name.islower():
                from rocketstream.settings import spellings_of
                from rocketstream.suggestions import member_hint

                settings = getattr(self, "settings", None)
                classes = (ClientConfig,) if settings is None else (type(settings), ClientConfig)
                more = getattr(kind, "_keywords", ())
                text += member_hint(name, dir(kind), spellings_of(classes, more))
            raise AttributeError(text, name=name, obj=self)

    def _shown(self) -> dict[str, list[str]]:
        """Return what else ``repr`` is to show, by name; whatever the state, without waiting."""
        return {}

    def __reduce__(self) -> NoReturn:
        raise NotSupportedError(
            f"a {type(self).__name__} cannot be pickled or copied: it has connections and threads; "
            "hand over its settings and create one where it is used"
        )


_TOPICS_SHOWN_MAX = 5


def _few(names: Iterable[object]) -> str:
    every = [str(name) for name in names]
    shown = every[:_TOPICS_SHOWN_MAX]
    more = f", and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    return f"[{', '.join(shown)}{more}]"


# --- the faces ------------------------------------------------------------------------------------


IN_PEACE = contextlib.suppress(ForkedClientError)
"""Around the end of a block: a forked child leaves it too, and the client stays the parent's."""


class SyncClient(Client[M], ABC):
    """A client of the sync face: its calls wait for a loop on a thread of its own."""

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def shutdown(self) -> None:
        """End."""

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._life = LifeLock()

    def _start_and_wait(self) -> None:
        """Start on a thread of its own, unless ``with`` did so before; blocks."""
        if self._is_started_again(_AT_THE_CALLER + 1):
            return
        with self._life.starting(self.shutdown):
            self._begin_start()
            engine, machine = self._start_threaded()
            engine.loop.call_soon_threadsafe(self._set_to_work, machine)

    def _start_threaded(self) -> Started[M]:
        """Start on a thread of its own; blocks. A start that fails leaves nothing behind.

        A start that is interrupted when the machine runs already ends as a running client does:
        a listener may have finished messages by then.
        """
        self.state: ServiceState = ServiceState.START_FAILED
        engine: Engine | None = None
        made: list[M] = []

        async def begin(engine: Engine) -> None:
            made.append(await self._make(engine))

        try:
            engine = threaded_engine(self.config, self._clock)
            engine.run(begin(engine))
            return self._runs(engine, made[0])
        except BaseException:
            if engine is not None:
                with contextlib.suppress(ClientStateError):
                    engine.run(asyncio.sleep(0))  # after this ``begin`` is cancelled, or was over
            if engine is not None and made:
                self._runs(engine, made[0])
                self.shutdown()
            else:
                self.state = ServiceState.CREATE_JUST
                if engine is not None:
                    engine.leave()
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of a sync client and wait for it.

        Raises:
            ClientStateError: the client does not run.
            ForkedClientError: called in a forked child.
        """
        try:
            engine = self._running().engine
        except BaseException:
            work.close()
            raise
        return engine.run(work)

    def _call(self, body: Coroutine[Any, Any, T]) -> T:
        """Run the body of a call: where the client does not run, here; it notes, or it refuses."""
        if self.state is ServiceState.RUNNING:
            return self._wait(body)
        self._check_process()  # before the lock: a forked child may find it held
        # What is noted while another thread's start makes the machine would be in no machine; on a
        # loop's thread that start may be waiting for this call.
        is_on_loop = asyncio._get_running_loop() is not None
        with contextlib.nullcontext() if is_on_loop else self._life.lock:
            if self._started is None:
                return self._keep(body)
        return self._wait(body)

    def _keep(self, body: Coroutine[Any, Any, T]) -> T:
        try:
            body.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        body.close()
        raise not_running(self._kind, self.state)

    def _begin_shutdown(self) -> Started[M] | None:
        """Say that it is shut down from now on; return None unless it runs, or another thread does.

        A signal handler may ask for it amid a start, or amid a call whose end it would wait for.
        """
        if self._is_put_off(self):
            return None
        with self._life.lock:
            return super()._begin_shutdown()

    def _is_put_off(self, client: SyncClient[Any]) -> bool:
        """Whether its end comes later, on another thread: now it would wait for the caller.

        Args:
            client: the client whose calls its end waits for.
        """
        client._check_process()  # before the lock: a forked child may find it held
        if self._life.puts_off_end():
            return True
        started = client._started
        if started is None or not client._waits_for_itself(started):
            return False
        threading.Thread(target=self.shutdown, name="rocketstream-shutdown").start()
        return True

    def _waits_for_itself(self, started: Started[M]) -> bool:
        """Whether its end would wait for the caller.

        That is a signal handler amid a call whose end is waited for, or users' code on the network
        thread, as a hook.
        """
        engine = started.engine
        return engine.locks.are_mine or threading.get_ident() == engine.loop_thread_id

    def _end_threaded(self, started: Started[M], ending: Coroutine[Any, Any, object]) -> None:
        """Have the machine end, then leave the engine; blocks."""
        try:
            started.engine.run(ending)
        finally:
            try:
                started.engine.leave()
            finally:
                self._started = None

    def __enter__(self) -> Self:
        if self._is_to_start():
            try:
                self.start()
                self._block_started = True
            except ClientStateError:
                raise  # it may be somebody else's
            except BaseException:
                self.shutdown()  # Ctrl-C as the start was over: nobody else would
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._warn_unless_started()
        with IN_PEACE:
            self.shutdown()


class AsyncClient(Client[M], ABC):
    """A client of the asyncio face: it lives on the loop it was started on."""

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._over = asyncio.Event()
        self._starter: asyncio.Task[Any] | None = None
        """The task that starts it, while it does."""
        self._is_unwanted = False
        """Whether it is to be shut down once the start is over."""

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def shutdown(self) -> None:
        """End."""

    async def _start_and_await(self) -> None:
        """Start on the running loop, unless ``with`` did so before."""
        if self._is_started_again(_AT_THE_CALLER + 1):
            return
        self._begin_start()
        self._starter = asyncio.current_task()
        ended = self._start_ended = asyncio.Event()
        try:
            _, machine = await self._start_here()
            self._set_to_work(machine)
        finally:
            self._starter = None
            is_unwanted, self._is_unwanted = self._is_unwanted, False
            try:
                if is_unwanted:
                    await self.shutdown()
            finally:
                ended.set()

    async def _start_here(self) -> Started[M]:
        """Start on the running loop; a start that fails leaves nothing behind."""
        self.state: ServiceState = ServiceState.START_FAILED
        engine: Engine | None = None
        try:
            engine = await loop_engine(self.config, self._clock)
            machine = await self._make(engine)
        except CUT_SHORT:
            try:
                if engine is not None:
                    await engine.leave_here()
            finally:
                self.state = ServiceState.CREATE_JUST  # last: from now on it may be tried again
            raise
        engine.instance.background.when_cut_off(weakly(self._cut_off))
        return self._runs(engine, machine)

    def _cut_off(self) -> None:
        """Shut down: the tasks it lives by were cancelled, so it does not run any more."""
        if self.state is ServiceState.RUNNING:
            client: Any = self
            self._cutting = asyncio.get_running_loop().create_task(client.shutdown())

    async def _to_end(self) -> Started[M] | None:
        """Say that it is shut down from now on; return what is to be ended, None if nothing is.

        A start that is under way ends it. An end that is under way, of a start or of another call,
        is waited for, unless that may wait for the caller.
        """
        self._check_process()
        if self._starter is not None:
            self._is_unwanted = True
            if not (self._starter is asyncio.current_task() or IS_CALLED_BY_CLIENT.get()):
                await self._start_ended.wait()
            return None
        started = self._begin_shutdown()
        is_over = started is not None or self.state is not ServiceState.SHUTDOWN_ALREADY
        if not (is_over or IS_CALLED_BY_CLIENT.get()):
            await self._over.wait()
        return started

    async def _end_here(self, started: Started[M], ending: Coroutine[Any, Any, object]) -> None:
        """Have the machine end, then leave the engine."""
        try:
            await ending
        finally:
            try:
                await started.engine.leave_here()
            finally:
                self._started = None
                self._over.set()

    async def __aenter__(self) -> Self:
        if self._is_to_start():
            await self.start()
            self._block_started = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._warn_unless_started()
        with IN_PEACE:
            await self.shutdown()


def lacking(*, listener: bool, subscription: bool) -> tuple[str, ...]:
    """Return the keywords a consumer lacks to be started; the arguments say what it has."""
    has = {"listener": listener, "subscription": subscription}
    return tuple(keyword for keyword, is_there in has.items() if not is_there)


# --- calls of the sync face -----------------------------------------------------------------------

# Of each method there is one body, a coroutine of the asyncio class. The sync class runs it on the
# client's loop with the sync client as ``self``; so a body awaits no other method of the face.


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a sync client that runs that of the asyncio client and waits for it."""
    given: Any = unchecked(method)  # arguments are checked before, on the caller's thread
    body = FunctionType(
        given.__code__, given.__globals__, None, given.__defaults__, given.__closure__
    )
    body.__kwdefaults__ = given.__kwdefaults__
    body.__qualname__ = _as_users_know(given)  # Python's own errors name it

    @functools.wraps(given)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = self._call(body(self, *args, **kwargs))
        return value

    call.__qualname__ = body.__qualname__
    return call


def starting(
    method: Callable[[Any], Coroutine[Any, Any, None]],
) -> Callable[[Any], None]:
    """Return ``start`` of a sync client, documented as that of the asyncio client is."""

    @functools.wraps(method)
    def start(self: SyncClient[Any]) -> None:
        self._start_and_wait()

    start.__qualname__ = _as_users_know(method)
    return start


def _as_users_know(method: Any) -> str:
    """Return the name of an asyncio class's method in the sync class."""
    name: str = method.__qualname__
    return name.removeprefix("Async")

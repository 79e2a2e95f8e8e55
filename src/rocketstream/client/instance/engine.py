"""Client instances by id, each with its event loop; clients of one id share one, and are counted.

An instance of the sync face has a thread of its own, one of the asyncio face the caller's loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.ending import CUT_SHORT
from rocketstream._util.loops import LoopThread
from rocketstream._util.waiting import Locks
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ClientStateError, ForkedClientError

T = TypeVar("T")

_CALLBACKS_END_S = 1.0
"""How long a callback that still runs may hold up the end of its client."""


class Engine:
    """One instance and the loop it runs on; released by each of its users.

    Attributes:
        instance: the client instance; use it on ``loop`` only.
        loop: the event loop.
        loop_thread_id: the thread it runs on.
        locks: those the loop and the threads of users take by turns.
        thread: the loop's own thread; None when it is the caller's loop (asyncio face).
    """

    def __init__(
        self,
        key: tuple[object, ...],
        instance: MQClientInstance,
        loop: asyncio.AbstractEventLoop,
        loop_thread_id: int,
        thread: LoopThread | None,
    ) -> None:
        self.instance = instance
        self.loop = loop
        self.thread = thread
        self.loop_thread_id = loop_thread_id
        self.locks: Locks = Locks() if thread is None else thread.locks
        self.users: int = 1
        self._forks = _forks
        self._key = key

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait; for the sync face only.

        Raises:
            ForkedClientError: called in a child of the process that made the client.
        """
        return self._thread_for(coro).run(coro)

    def do(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` on the loop: now on the caller's, soon on that of a thread.

        Soon too where the caller's loop is another thread's: plain listeners are called on threads.
        """
        if self.thread is None and threading.get_ident() == self.loop_thread_id:
            function(*args)
        else:
            self.call_soon(function, *args)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Have ``function(*args)`` called on the loop; from any thread, returns at once.

        Raises:
            ForkedClientError: called in a child of the process that made the client.
            ClientStateError: the loop is closed.
        """
        check_process(self._forks)
        if self.thread is not None:
            self.thread.call_soon(function, *args)
            return
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._check_loop()
            raise

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop without waiting; for the sync face only.

        Raises:
            ForkedClientError: called in a child of the process that made the client.
        """
        return self._thread_for(coro).submit(coro)

    def _thread_for(self, coro: Coroutine[Any, Any, object]) -> LoopThread:
        if self.thread is None:
            coro.close()
            raise TypeError(
                "an asyncio client cannot be called from other threads: await it on its loop"
            )
        return self.thread

    def has_ended(self) -> bool:
        """Whether the loop's own thread is over; where it is about to be, this waits for it."""
        if self.thread is None or not self.thread.is_closed:
            return False
        self.thread.close()
        return True

    def leave(self) -> None:
        """Stop using it; the last user ends instance and thread (sync face). Blocks."""
        if self.thread is not None and self._is_unused_now():
            try:
                self.thread.run(self.instance.close())
            finally:
                self.thread.close()
                self.instance.callbacks.join(_CALLBACKS_END_S)

    async def leave_here(self) -> None:
        """Stop using it; the last user ends the instance (asyncio face)."""
        if self._is_unused_now():
            await self.instance.close()

    def _is_unused_now(self) -> bool:
        """Count a user less; return whether that was the last."""
        with _lock:
            self.users -= 1
            if self.users == 0 and _engines.get(self._key) is self:
                del _engines[self._key]
            return self.users == 0

    def check_process(self) -> None:
        """Refuse to go on in a forked child, or on an event loop the client does not live on.

        Raises:
            ForkedClientError: this is another process than the one that made the client.
            ClientStateError: asyncio face; its event loop is closed, or another one runs here.
        """
        check_process(self._forks)
        # On the loop itself, which then is not closed, nothing is to be asked.
        if self.thread is None and asyncio._get_running_loop() is not self.loop:
            self._check_loop()

    def _check_loop(self) -> None:
        if self.loop.is_closed() or asyncio._get_running_loop() not in (None, self.loop):
            raise ClientStateError(
                "this client was started on another event loop"
                f"{', which is closed' if self.loop.is_closed() else ''}; an asyncio client is "
                "started, used and shut down within one asyncio.run()"
            )


_lock = threading.RLock()  # a signal handler may start a client in the middle of a start
_engines: dict[tuple[object, ...], Engine] = {}
_forks = 0
"""How many forks this process is away from the first: asked for each message that is handed out,
and so not by ``getpid``, which is a system call."""


def process() -> int:
    """Return what tells this process from those it was forked from."""
    return _forks


def check_process(made_in: int) -> None:
    """Refuse to go on in a child of the process that ``process`` told of.

    Raises:
        ForkedClientError: this is another process.
    """
    if made_in != _forks:
        raise ForkedClientError(
            "this client was created before fork(); create a new one in the child process"
        )


def _begin_anew_in_child() -> None:
    """Forget the parent's engines; its threads, one of which may hold the lock, are not here."""
    global _lock, _engines, _forks
    _lock = threading.RLock()
    _engines = {}
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_begin_anew_in_child)


def _key(config: ClientConfig) -> tuple[object, ...]:
    return os.getpid(), config.client_id(), config.effective_namespace(), config.unit_mode


def threaded_engine(config: ClientConfig, clock: Clock = SYSTEM_CLOCK) -> Engine:
    """Return the engine of a client id, on a thread of its own; made if there is none (C-127).

    Users of one id share the settings of the first (C-18); what is each client's own, its
    namespace and unit mode, parts them.
    """
    client_id = config.client_id()
    key = _key(config)
    with _lock:
        engine = _engines.get(key)
        if engine is not None:
            engine.users += 1
            return engine
    thread = LoopThread(f"rocketstream-{client_id}")
    try:
        instance, thread_id = thread.run(_make(config, client_id, clock))
    except BaseException:
        thread.close()
        raise
    fresh = Engine(key, instance, thread.loop, thread_id, thread)
    with _lock:
        engine = _engines.setdefault(key, fresh)
        if engine is not fresh:
            engine.users += 1
    if engine is not fresh:
        fresh.leave()
    return engine


async def loop_engine(config: ClientConfig, clock: Clock = SYSTEM_CLOCK) -> Engine:
    """Return the engine of a client id on the running loop; made if there is none."""
    loop = asyncio.get_running_loop()
    client_id = config.client_id()
    key = (*_key(config), id(loop))
    with _lock:
        _forget(lambda engine: engine.thread is None and engine.loop.is_closed())
        engine = _engines.get(key)
        if engine is not None:
            engine.users += 1
        else:
            instance = MQClientInstance(config, client_id, clock)
            engine = _engines[key] = Engine(key, instance, loop, threading.get_ident(), None)
    try:
        await engine.instance.start()
    except CUT_SHORT:
        await engine.leave_here()
        raise
    return engine


def forget_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Drop the engines of a loop that ended without their being released; nothing is closed."""
    with _lock:
        _forget(lambda engine: engine.loop is loop)


def _forget(is_over: Callable[[Engine], bool]) -> None:
    for key in [key for key, engine in _engines.items() if is_over(engine)]:
        del _engines[key]


async def _make(config: ClientConfig, client_id: str, clock: Clock) -> tuple[MQClientInstance, int]:
    instance = MQClientInstance(config, client_id, clock)
    try:
        await instance.start()
    except CUT_SHORT:
        await instance.close()
        raise
    return instance, threading.get_ident()

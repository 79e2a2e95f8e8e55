"""The asyncio classes, called by cases that are written for threads.

Law: calls the public methods of ``rocketstream.aio`` on a loop, and knows no behaviour. A thread of
a case becomes a task of the loop, as the asyncio face goes by tasks where the other goes by
threads; a listener becomes a coroutine, which runs the case's own function in a thread and does,
in its own task, what that function asks of clients.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from rocketstream import MessageListenerOrderly, TransactionListener, aio
from rocketstream._util.ending import Cancellation
from rocketstream._util.loops import LoopThread
from rocketstream.client.consumer.offsets.user_store import AsyncOffsetStoreView

Asked = tuple[Callable[[], Any], contextvars.Context, "concurrent.futures.Future[Any]"]

LISTENERS = ("listener", "message_queue_listener", "transaction_listener", "callback")
"""Parameters of the asyncio classes that take what a user would write as a coroutine function."""
_METHODS = (
    "consume_message",
    "message_queue_changed",
    "do_pull_task",
)
"""Methods of listeners that are objects."""
_CLIENTS = (
    aio.LitePullConsumer,
    aio.MQPullConsumerScheduleService,
    aio.Producer,
    aio.PullConsumer,
    aio.PushConsumer,
    AsyncOffsetStoreView,
)
_THREADS_MAX = 256
_END_S = 10.0


class Caller:
    """A task that does what one thread asks, one thing after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: asyncio.Queue[Asked | None] = asyncio.Queue()

    def ask(self, function: Callable[[], Any]) -> Any:
        """Have ``function()`` called in the task, and awaited if it must be; return its result."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        asked = (function, contextvars.copy_context(), done)
        self._loop.call_soon_threadsafe(self._asked.put_nowait, asked)
        return done.result()

    def end(self) -> None:
        """Have ``serve`` return; nothing is asked any more."""
        self._loop.call_soon_threadsafe(self._asked.put_nowait, None)

    async def serve(self) -> None:
        """Do what is asked until ``end``."""
        while (asked := await self._asked.get()) is not None:
            function, context, done = asked
            changed = {var: var.set(value) for var, value in context.items()}
            cancellation = Cancellation()
            try:
                answer = function()
                done.set_result(await answer if inspect.isawaitable(answer) else answer)
            except BaseException as error:  # it is the thread's
                done.set_exception(error)
                if isinstance(error, asyncio.CancelledError) and cancellation.has_come:
                    raise
            finally:
                for var, token in changed.items():
                    var.reset(token)


class AsyncioFace:
    """Makes clients of ``rocketstream.aio`` for a case, on a loop of its own.

    Attributes:
        made: how many clients it has made.
    """

    def __init__(self) -> None:
        self.made = 0
        self._thread = LoopThread("case-loop")
        self._callers = threading.local()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS_MAX, "case-listener")

    def make(self, name: str, *args: Any, **settings: Any) -> Any:
        """Return a client of the class of that name."""
        self.made += 1
        kind = getattr(aio, name)
        return self.plain(self.ask(lambda: self.call(kind, args, settings)))

    def ask(self, function: Callable[[], Any]) -> Any:
        """Have ``function()`` called in the task of this thread."""
        caller = getattr(self._callers, "caller", None)
        if caller is None:
            caller = self._callers.caller = Caller(self._thread.loop)
            self._thread.call_soon(self._serve, caller)
        return caller.ask(function)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Start what a program would start as a task of its own."""
        return self._thread.submit(coroutine)

    def call(self, function: Callable[..., Any], args: Any, settings: dict[str, Any]) -> Any:
        """Call a method or class with what is its own: real clients, coroutines for listeners."""
        given = [real(value) for value in args]
        named = {name: real(value) for name, value in settings.items()}
        parameters = list(inspect.signature(function).parameters)
        for index, value in enumerate(given):
            if index < len(parameters) and parameters[index] in LISTENERS:
                given[index] = self.listener(value)
        for name in named.keys() & set(LISTENERS):
            named[name] = self.listener(named[name])
        return function(*given, **named)

    def listener(self, given: Any) -> Any:
        """Return a listener as an asyncio program has it: with coroutine functions."""
        if isinstance(given, TransactionListener):
            return _Transactions(self, given)
        if isinstance(given, MessageListenerOrderly):
            return _Orderly(self._awaited(given.consume_message))
        for name in _METHODS:
            method = getattr(given, name, None)
            if callable(method):
                return type(type(given).__name__, (), {name: staticmethod(self._awaited(method))})()
        return self._awaited(given)

    def _awaited(self, function: Any) -> Any:
        if not callable(function) or inspect.iscoroutinefunction(function):
            return function

        async def call(*args: Any) -> Any:
            return await self.in_thread(function, args)

        return functools.update_wrapper(call, function, updated=())

    async def in_thread(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``function`` in a thread; what it asks of clients is done in this task."""
        caller = Caller(self._thread.loop)
        given = [self.plain(each) for each in args]
        done = self._pool.submit(contextvars.copy_context().run, self._as, caller, function, given)
        done.add_done_callback(lambda _: caller.end())
        try:
            await caller.serve()
        except asyncio.CancelledError:
            self._serve(caller)  # the thread is not ended by that
            raise
        return done.result()

    def _as(self, caller: Caller, function: Callable[..., Any], args: list[Any]) -> Any:
        self._callers.caller = caller
        return function(*args)

    def _serve(self, caller: Caller) -> None:
        task = self._thread.loop.create_task(caller.serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def plain(self, value: Any) -> Any:
        """Return a value as a case may use it in any thread."""
        if isinstance(value, _CLIENTS):
            return Bridged(self, value)
        consumer = getattr(value, "pull_consumer", None)
        if isinstance(consumer, _CLIENTS):
            value.pull_consumer = Bridged(self, consumer)
        return value

    def close(self) -> list[str]:
        """End the loop; return what clients have left running on it, a line each."""
        self._pool.shutdown()
        try:
            return self._thread.run(self._left())
        finally:
            self._thread.close()

    async def _left(self) -> list[str]:
        own = {asyncio.current_task(), *self._tasks}
        left = asyncio.all_tasks() - own
        if left:
            _, left = await asyncio.wait(left, timeout=_END_S)
        return [f"task {task.get_coro()}" for task in left]


def real(client: Any) -> Any:
    """Return the client a case has, without what stands in between on the asyncio face."""
    return client.real if isinstance(client, Bridged) else client


class Bridged:
    """A client of the asyncio face as a case for threads sees it; its methods wait."""

    def __init__(self, face: AsyncioFace, real: Any) -> None:
        vars(self).update(face=face, real=real)

    def __getattr__(self, name: str) -> Any:
        face, real = self.face, self.real
        if name in _FUTURES and not hasattr(real, name):
            return functools.partial(self._begin, getattr(real, _FUTURES[name]))
        value = face.ask(lambda: getattr(real, name))
        if not inspect.isroutine(value):
            return face.plain(value)

        def method(*args: Any, **settings: Any) -> Any:
            found = face.ask(lambda: face.call(value, args, settings))
            is_handed_out = isinstance(found, AsyncIterator)
            return _Iteration(face, found) if is_handed_out else face.plain(found)

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        face, real = self.face, self.real
        value = face.listener(value) if name in LISTENERS else value
        face.ask(lambda: setattr(real, name, value))

    def _begin(self, method: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        return self.face.begin(method(*args, **settings))

    def __enter__(self) -> Bridged:
        self.face.ask(self.real.__aenter__)
        return self

    def __exit__(self, *raised: object) -> None:
        self.face.ask(lambda: self.real.__aexit__(*raised))

    def __iter__(self) -> Iterator[Any]:
        return _Iteration(self.face, self.real.__aiter__())

    def __repr__(self) -> str:
        return repr(self.real)


_FUTURES = {
    "pull_async": "pull",
    "pull_block_if_not_found_async": "pull_block_if_not_found",
    "request_async": "request",
    "send_async": "send",
}
"""What returns a future in the one face is a coroutine in a task of its own in the other."""


class _Iteration:
    """``for`` over what is there for ``async for``."""

    def __init__(self, face: AsyncioFace, messages: Any) -> None:
        self._face = face
        self._messages = messages

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        try:
            return self._face.ask(self._messages.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class _Orderly(MessageListenerOrderly):
    """An orderly listener whose method is a coroutine function."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.consume_message = call  # type: ignore[method-assign]

    def consume_message(self, messages: Any, context: Any) -> Any:
        """Stands for the attribute: the class would be abstract without."""
        raise NotImplementedError


class _Transactions(TransactionListener):
    """A transaction listener whose methods are coroutine functions."""

    def __init__(self, face: AsyncioFace, given: TransactionListener) -> None:
        self._face = face
        self._given = given

    async def execute_local_transaction(self, message: Any, arg: Any) -> Any:
        """Ask the case's own listener."""
        function = self._given.execute_local_transaction
        return await self._face.in_thread(function, (message, arg))

    async def check_local_transaction(self, message: Any) -> Any:
        """Ask the case's own listener."""
        return await self._face.in_thread(self._given.check_local_transaction, (message,))

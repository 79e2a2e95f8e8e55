"""Listener calls of one task: many at once, each with a deadline; a call that hangs is abandoned.

Law: only the task's own thread submits calls and takes them back; no exception of a listener leaves
this module.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.client.consumer.consume.listener_calls import mark_started
from rocketstream.client.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    Listener,
)
from rocketstream.errors import ClientStateError
from rocketstream.protocol.message_ext import MessageExt

Context = ConsumeConcurrentlyContext | ConsumeOrderlyContext

TICK_MS: Final = 5.0
"""How often the task checks whether another thread would help, and whether calls hang."""
SLOW_CALL_MS: Final = 1.0
"""Another thread helps where calls take longer than this; shorter ones would only take the
interpreter's lock from each other."""
_HANDED_BACK_AT_ONCE: Final = 256
LOOP_ANSWERS_MS: Final = 1_000.0
"""How long a loop may take to notice a cancelled call before the loop itself counts as blocked."""


def too_long(timeout_ms: float) -> str:
    """Return in words by which bound a call was left behind."""
    seconds = timeout_ms / 1000
    return f"longer than {seconds:g} s (the smaller of consumeTimeout and microBatchTimeoutMs)"


class Call:
    """One call of the listener.

    Attributes:
        messages: the batch; the listener gets a list of its own.
        context: the context in which the listener may set its wishes.
        key: the submitter's own key for the call.
        answer: the listener's return value.
        error: the exception it raised, None without one.
        left: whether the call took too long and was left behind, so that its answer no longer
            counts.
    """

    __slots__ = (
        "answer", "context", "error", "generation", "key", "left", "messages", "started_ms", "task",
    )  # fmt: skip

    def __init__(self, messages: Iterable[MessageExt], context: Context, key: object) -> None:
        self.messages: list[MessageExt] = list(messages)
        self.context: Context = context
        self.key: object = key
        self.answer: Any = None
        self.error: BaseException | None = None
        self.left: bool = False
        self.started_ms: float = 0.0
        self.generation: int = 0
        self.task: asyncio.Task[None] | None = None


class LeftBehind:
    """How many calls left behind in this process still run; shared by its tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count: int = 0

    def add(self, change: int) -> None:
        """Add ``change`` (1 or -1) to the number."""
        with self._lock:
            self.count += change


class Calls:
    """Calls waiting, running and finished; see ``ThreadCalls`` and ``TaskCalls``.

    Args:
        listener: the function to call.
        at_once: how many calls may run at a time.
        timeout_ms: how long one call may take.
        clock: measures the calls.
        left_behind: counts the calls that were left behind.
    """

    def __init__(
        self,
        listener: Listener,
        at_once: int,
        timeout_ms: float,
        clock: Clock,
        left_behind: LeftBehind,
    ) -> None:
        self._listener = listener
        self._at_once = at_once
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._left_behind = left_behind
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._waiting: deque[Call] = deque()
        self._running: set[Call] = set()
        self._finished: list[Call] = []
        self._runners = 0
        self._generation = 0
        self._parked = 0
        """Runners that wait for calls."""
        self._begun = 0
        self._waited_ms, self._begun_meanwhile = 0.0, 0
        """For how long the task has waited since the last look, and how many calls began then."""
        self._closed = False

    def submit(self, calls: Sequence[Call]) -> None:
        """Submit calls; each begins as soon as there is room."""
        with self._lock:
            self._waiting += calls
            if self._runners == self._parked:
                self._wake(1)

    def finished(self, wait_ms: float) -> list[Call]:
        """Return the calls that are finished or left behind; waits ``wait_ms`` and a tick for one.

        Raises:
            ClientStateError: too many calls of this process hang.
        """
        until_ms = self._clock.monotonic_ms() + wait_ms
        with self._lock:
            while True:
                now_ms = self._clock.monotonic_ms()
                self._leave_hanging(now_ms)
                if self._finished or now_ms >= until_ms:
                    found, self._finished = self._finished, []
                    return found
                begun = self._begun
                self._done.wait(TICK_MS / 1000)
                waited_ms = self._clock.monotonic_ms() - now_ms
                if waited_ms > limits.STANDSTILL_MS:
                    self._stood_still(waited_ms)
                else:
                    self._grow(waited_ms, self._begun - begun)

    def close(self) -> None:
        """Make no more calls; running calls are left behind."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            for call in list(self._running):
                self._leave(call)
            self._work.notify_all()

    # --- with the lock held -----------------------------------------------------------------------

    def _grow(self, waited_ms: float, begun: int) -> None:
        """Double the runners while calls wait and those that run are slow.

        Only the time in which the task waits counts: while it works, it has the interpreter's lock.
        """
        self._waited_ms += waited_ms
        self._begun_meanwhile += begun
        if self._waited_ms < TICK_MS:
            return
        awake = self._runners - self._parked
        slow = self._begun_meanwhile * SLOW_CALL_MS <= self._waited_ms * awake
        self._waited_ms, self._begun_meanwhile = 0.0, 0
        if self._waiting and slow and len(self._running) >= awake:
            self._wake(min(awake, self._at_once - awake, len(self._waiting)))

    def _stood_still(self, for_ms: float) -> None:
        """Leave out of the calls' time for how long nothing ran.

        Left behind, all would be sent back though they end soon, and the next ones of orderly
        queues begin beside them.
        """
        for call in self._running:
            call.started_ms += for_ms

    def _wake(self, count: int) -> None:
        """Have so many more runners make calls: those that wait, then new ones."""
        parked = min(count, self._parked)
        self._parked -= parked
        self._work.notify(parked)
        self._start_runners(count - parked)

    def _leave_hanging(self, now_ms: float) -> None:
        for call in [c for c in self._running if now_ms - c.started_ms >= self._timeout_ms]:
            self._leave(call)
            self._finished.append(call)
            if self._left_behind.count > limits.SPARK_CALLS_LEFT_BEHIND_MAX:
                raise ClientStateError(
                    f"{self._left_behind.count} listener calls of this Python worker took "
                    f"{too_long(self._timeout_ms)} and still run; "
                    "something all of them wait for does not answer",
                    calls=self._left_behind.count,
                )

    def _leave(self, call: Call) -> None:
        call.left = True
        self._running.discard(call)
        if call.generation == self._generation:
            self._runners -= 1
        self._left_behind.add(1)
        self._abandon(call)
        if self._waiting and self._runners == self._parked and not self._closed:
            self._wake(1)

    def _next(self) -> Call | None:
        """Take the next waiting call; None when none waits."""
        if self._closed or not self._waiting:
            return None
        call = self._waiting.popleft()
        call.started_ms = self._clock.monotonic_ms()
        call.generation = self._generation
        self._running.add(call)
        self._begun += 1
        return call

    def _ended(self, call: Call) -> bool:
        """Hand a call back; return whether its runner continues."""
        if call.left:
            self._left_behind.add(-1)
            return False
        self._running.discard(call)
        self._finished.append(call)
        if not self._waiting or len(self._finished) == _HANDED_BACK_AT_ONCE:
            self._done.notify()
        return True

    def _start_runners(self, count: int) -> None:
        raise NotImplementedError

    def _abandon(self, call: Call) -> None:
        """End a call that is left behind, as far as that is possible."""

    # --- without the lock -------------------------------------------------------------------------

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        mark_started(call.messages, int(self._clock.now_ms()))
        given = list(call.messages)
        return (given, call.context) if self._listener.takes_context else (given,)


class ThreadCalls(Calls):
    """Calls of a plain listener, on daemon threads that are started when they would help."""

    def _start_runners(self, count: int) -> None:
        self._runners += count
        for _ in range(count):
            threading.Thread(target=self._run, name="ConsumeMessageThread", daemon=True).start()

    def _run(self) -> None:
        call: Call | None = None
        while True:
            with self._lock:  # once a call: one ends, and the next begins
                if call is not None and not self._ended(call):
                    return
                while (call := self._next()) is None:
                    if self._closed:
                        return
                    self._parked += 1
                    self._work.wait()
            try:
                call.answer = self._listener.call(*self._arguments(call))
            except BaseException as error:  # whatever a listener raises counts as its answer
                call.error = error


class TaskCalls(Calls):
    """Calls of a coroutine listener, awaited on a loop of their own.

    A call that hangs is cancelled. A call that blocks the loop itself blocks the others too: the
    loop is then left behind with it, and a new loop of the next generation takes over.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = _new_loop()
        self._unanswered_ms: float | None = None

    def submit(self, calls: Sequence[Call]) -> None:
        """Submit calls; a runner ends when nothing waits, so each call brings a runner."""
        with self._lock:
            self._waiting += calls
            self._add_runners(len(calls))

    def close(self) -> None:
        """Make no more calls; running calls are cancelled, and the loop ends."""
        super().close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _add_runners(self, calls: int) -> None:
        self._start_runners(min(self._at_once - self._runners, calls))

    def _start_runners(self, count: int) -> None:
        loop, generation = self._loop, self._generation
        self._runners += count

        def start() -> None:
            for _ in range(count):
                loop.create_task(self._run(generation))

        if count > 0:
            loop.call_soon_threadsafe(start)

    def _grow(self, waited_ms: float, begun: int) -> None:
        """Do nothing: every call brings its own runner."""

    async def _run(self, generation: int) -> None:
        call: Call | None = None
        while True:
            with self._lock:
                if call is not None and not self._ended(call):
                    return
                # A runner of a loop that was left behind takes no more calls.
                call = self._next() if generation == self._generation else None
                if call is None:
                    self._runners -= generation == self._generation
                    return
            call.task = asyncio.current_task()
            try:
                call.answer = await self._listener.call(*self._arguments(call))
            except BaseException as error:  # whatever a listener raises counts as its answer
                call.error = error

    def _abandon(self, call: Call) -> None:
        task = call.task

        def cancel() -> None:
            self._unanswered_ms = None
            if task is not None:
                task.cancel()

        if call.generation == self._generation:
            if self._unanswered_ms is None:
                self._unanswered_ms = self._clock.monotonic_ms()
            self._loop.call_soon_threadsafe(cancel)

    def _leave_hanging(self, now_ms: float) -> None:
        super()._leave_hanging(now_ms)
        since_ms = self._unanswered_ms
        if since_ms is not None and now_ms - since_ms > LOOP_ANSWERS_MS:
            self._unanswered_ms = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = _new_loop()
            self._generation += 1
            self._runners = 0
            self._add_runners(len(self._waiting))


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run_loop, args=(loop,), name="ConsumeMessageLoop", daemon=True).start()
    return loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()


def new_calls(
    listener: Listener, at_once: int, timeout_ms: float, clock: Clock, left_behind: LeftBehind
) -> Calls:
    """Return the caller for a listener: on threads, or on a loop for a coroutine function."""
    kind = TaskCalls if listener.is_async else ThreadCalls
    return kind(listener, at_once, timeout_ms, clock, left_behind)

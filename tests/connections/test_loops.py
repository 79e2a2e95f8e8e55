"""The loop thread: results, errors, interruption and a clean end."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream._util.loops import LoopThread, new_event_loop
from rocketstream.errors import ClientStateError, ForkedClientError, NotSupportedError


async def _name() -> str:
    return threading.current_thread().name


async def _fail() -> None:
    raise LookupError("no such thing")


def test_result_and_error_of_a_coroutine_reach_the_caller() -> None:
    with LoopThread("rocketstream-here") as loop:
        assert loop.run(_name()) == "rocketstream-here"
        with pytest.raises(LookupError, match="no such thing"):
            loop.run(_fail())


@pytest.mark.parametrize(
    ("module", "asked", "name"),
    [("gevent.monkey", "is_module_patched", "threading"),
     ("eventlet.patcher", "is_monkey_patched", "thread")],
    ids=["gevent", "eventlet"],
)  # fmt: skip
def test_threads_that_are_greenlets_are_refused_at_once(
    module: str, asked: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop would never give way to the greenlet that waits for it."""
    patched = {name}
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: patched.__contains__}))
    with pytest.raises(NotSupportedError, match=f"{module.partition('.')[0]} has made greenlets"):
        LoopThread()
    patched.clear()  # sockets may be patched, threads may not
    with LoopThread() as loop:
        assert loop.run(_name())


def test_timeout_cancels_the_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clean-up is run; one that had not begun by then has none."""
    began, cancelled = threading.Event(), threading.Event()

    async def never() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with LoopThread() as loop:
        submit = loop.submit

        def submit_and_see_it_begin(*arguments: Any) -> Any:
            future = submit(*arguments)
            assert began.wait(5)
            return future

        monkeypatch.setattr(loop, "submit", submit_and_see_it_begin)
        with pytest.raises(TimeoutError):
            loop.run(never(), timeout_ms=10)
        assert cancelled.wait(5)


def test_a_call_that_is_interrupted_once_the_loop_has_it_is_cancelled_there() -> None:
    """Closed from the caller's thread, it is not cleaned up, or goes on where it is amid a step."""
    began, ended = threading.Event(), []

    async def never() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append((type(error), threading.current_thread().name))
            raise

    with LoopThread("rocketstream-here", loop_factory=asyncio.new_event_loop) as loop:
        plain = loop.loop.call_soon_threadsafe

        def call_soon(*args: Any, **more: Any) -> Any:
            loop.loop.call_soon_threadsafe = plain  # type: ignore[method-assign]
            plain(*args, **more)
            assert began.wait(20)
            raise KeyboardInterrupt  # as Python's own handler of SIGINT does

        loop.loop.call_soon_threadsafe = call_soon  # type: ignore[assignment,method-assign]
        with pytest.raises(KeyboardInterrupt):
            loop.run(never())
        loop.run(_name())
    assert ended == [(asyncio.CancelledError, "rocketstream-here")]


def test_a_call_that_is_cancelled_before_the_loop_begins_it_never_begins() -> None:
    began, halted, go_on = [], threading.Event(), threading.Event()

    def halt() -> None:
        halted.set()
        assert go_on.wait(20)

    async def work() -> None:
        began.append(1)

    with LoopThread() as loop:
        loop.call_soon(halt)
        assert halted.wait(20)
        coro = work()
        future = loop.submit(coro)
        assert future.cancel()
        go_on.set()
        loop.run(_name())
    assert (began, inspect.getcoroutinestate(coro)) == ([], inspect.CORO_CLOSED)


def test_a_call_that_a_loop_refuses_because_it_died_leaves_no_coroutine_behind() -> None:
    loop, coro = LoopThread(), _name()
    loop.loop.call_soon_threadsafe(loop.loop.stop)
    loop._thread.join(20)
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(coro)
    assert inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED


def test_close_cancels_what_runs_and_fails_who_waits() -> None:
    """No call hangs for ever because the loop went away below it."""
    started = threading.Event()
    errors: list[BaseException] = []

    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    def caller(loop: LoopThread) -> None:
        try:
            loop.run(never())
        except ClientStateError as error:
            errors.append(error)

    loop = LoopThread()
    thread = threading.Thread(target=caller, args=(loop,))
    thread.start()
    assert started.wait(5)
    loop.close()
    thread.join(5)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert loop.loop.is_closed()


def test_who_waits_is_told_of_a_close_that_has_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop may be gone, and its calls with it, before ``close`` comes to its next line."""
    started = threading.Event()
    told: list[type[BaseException]] = []

    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    def caller() -> None:
        try:
            loop.run(never())
        except BaseException as error:  # on another thread it would only be printed
            told.append(type(error))

    loop = LoopThread()
    thread = threading.Thread(target=caller)
    call_soon = loop.loop.call_soon_threadsafe

    def call_soon_and_see_the_loop_end(callback: Callable[[], object]) -> None:
        call_soon(callback)
        thread.join(5)

    slow = SimpleNamespace(stop=loop.loop.stop, call_soon_threadsafe=call_soon_and_see_the_loop_end)
    thread.start()
    assert started.wait(5)
    monkeypatch.setattr(loop, "loop", slow)
    loop.close()
    assert told == [ClientStateError]


def test_an_interrupted_start_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise while the start waits for the thread to come up."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LoopThread()
    started[0].join(20)
    assert not started[0].is_alive()


def test_a_thread_that_cannot_start_leaves_no_loop_open(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def make() -> asyncio.AbstractEventLoop:
        loops.append(new_event_loop())
        return loops[0]

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        LoopThread(loop_factory=make)
    assert loops[0].is_closed()


def test_closed_loop_refuses_and_leaves_no_coroutine_behind() -> None:
    loop = LoopThread()
    loop.close()
    loop.close()
    with pytest.raises(ClientStateError):
        loop.run(_name())
    with pytest.raises(ClientStateError):
        loop.call_soon(print)


def test_call_on_its_own_thread_is_refused_rather_than_hanging() -> None:
    with LoopThread() as loop:

        async def inner() -> str:
            return loop.run(_name())

        with pytest.raises(ClientStateError, match="network thread"):
            loop.run(inner())


def test_close_from_its_own_thread_ends_the_thread() -> None:
    loop = LoopThread("rocketstream-self-closing")
    loop.call_soon(loop.close)
    loop._thread.join(5)
    assert loop.loop.is_closed()


def test_call_soon_runs_on_the_loop() -> None:
    ran = threading.Event()
    with LoopThread() as loop:
        loop.call_soon(ran.set)
        assert ran.wait(5)


@pytest.mark.parametrize("make", [new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_wants_to_end_the_program_does_not_end_the_loop(
    make: Callable[[], asyncio.AbstractEventLoop],
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ends() -> None:
        raise error

    with LoopThread("rocketstream-here", loop_factory=make) as loop:
        for _ in range(2):
            loop.call_soon(ends)
            assert loop.run(_name(), timeout_ms=20_000) == "rocketstream-here"
    assert not loop._thread.is_alive()
    assert caplog.text.count("it goes on") == 2


def test_a_callback_that_wants_to_end_the_program_amid_a_close_holds_nothing_up() -> None:
    loop = LoopThread("rocketstream-self-closing", loop_factory=asyncio.new_event_loop)

    def ends() -> None:
        loop.close()
        loop.loop.stop()
        raise SystemExit

    loop.call_soon(ends)
    loop._thread.join(20)
    assert loop.loop.is_closed()


AT_THE_END = """
import asyncio, atexit
from rocketstream._util.loops import LoopThread
from rocketstream._util.workers import ThreadWorkers

def end():
    workers = ThreadWorkers()

    async def work():
        first = await asyncio.to_thread("{}{what}".format, 1, what="!")
        return first + await workers.submit(lambda: "2")

    with LoopThread() as loop:
        print(loop.run(work(), timeout_ms=20_000))
    workers.close()

atexit.register(end)
"""


def test_work_on_threads_goes_on_after_the_main_thread() -> None:
    """Offsets are stored there, and names of hosts looked up; the standard executors refuse."""
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("1!2\n", "")


def test_a_loop_that_is_closed_leaves_no_thread_of_its_work() -> None:
    with LoopThread("rocketstream-working") as loop:
        worked_on = loop.run(asyncio.to_thread(threading.current_thread))
        assert worked_on.daemon
        assert worked_on.name.startswith("rocketstream-working-work")
    assert not worked_on.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_forked_child_is_told_to_make_a_new_one() -> None:
    """In the child the thread does not exist: a call would wait for ever."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with LoopThread() as loop:

        def child() -> None:
            try:
                loop.run(_name(), timeout_ms=5000)
            except ForkedClientError:
                theirs.send("refused")
            loop.close()

        process = context.Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert ours.poll(5)
        assert ours.recv() == "refused"
    ours.close()
    theirs.close()


def test_new_event_loop_is_usable() -> None:
    loop = new_event_loop()
    try:
        assert loop.run_until_complete(_name())
    finally:
        loop.close()

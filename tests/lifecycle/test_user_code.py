"""Errors of users' code that are to end a thread, a coroutine or a task end the call alone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rocketstream._util.executors import CallbackExecutor, DaemonPool
from rocketstream._util.user_code import called, result_of

WAIT_S = 20
ENDS: list[type[BaseException]] = [
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
]


def raising(kind: type[BaseException]) -> Callable[..., Any]:
    """Return a function that raises."""

    def call(*_: object) -> None:
        raise kind("of the user")

    return call


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns or raises on a thread that is not the main one."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(function())
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    return ends[0]


@pytest.mark.parametrize("kind", ENDS)
def test_an_error_that_ends_more_than_a_call_comes_as_an_ordinary_one(
    kind: type[BaseException],
) -> None:
    error = in_a_thread(lambda: called(raising(kind), 1, 2))
    assert type(error) is RuntimeError
    assert str(error).startswith(f"what was called raised {kind.__name__}('of the user')")
    assert isinstance(error.__cause__, kind)


def test_answers_and_ordinary_errors_pass_as_they_are() -> None:
    assert called(divmod, 9, 7) == (1, 2)
    with pytest.raises(ZeroDivisionError) as caught:
        called(divmod, 9, 0)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_the_main_thread_may_be_ended(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        called(raising(kind))


@pytest.mark.parametrize("kind", ENDS)
def test_whoever_awaits_a_callback_thread_is_told(kind: type[BaseException]) -> None:
    """A StopIteration cannot be put into a future of asyncio: the wait would never end."""
    executor = CallbackExecutor(1, "rocketstream-test-raising")

    async def main() -> None:
        with pytest.raises(RuntimeError, match=kind.__name__):
            await asyncio.wait_for(executor.run(raising(kind)), WAIT_S)
        assert await asyncio.wait_for(executor.run(divmod, 9, 7), WAIT_S) == (1, 2)

    try:
        asyncio.run(main())
    finally:
        executor.close()
        executor.join(WAIT_S)


@pytest.mark.parametrize("kind", ENDS)
def test_whoever_awaits_work_on_a_loops_threads_is_told(kind: type[BaseException]) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(DaemonPool(1, "rocketstream-test-work"))
        with pytest.raises(RuntimeError, match=kind.__name__):
            await asyncio.wait_for(asyncio.to_thread(raising(kind)), WAIT_S)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_a_coroutine_of_the_users_that_says_it_was_cancelled_cancels_nothing_of_ours(
    kind: type[BaseException],
) -> None:
    async def users() -> None:
        raise kind

    async def main() -> None:
        with pytest.raises(RuntimeError, match=kind.__name__):
            await result_of(users())

    asyncio.run(main())


def test_a_cancellation_of_ours_passes_users_coroutines() -> None:
    ended: list[str] = []

    async def users() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async def main() -> None:
        task = asyncio.create_task(result_of(users()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ["ended"]


def test_a_coroutine_that_is_thrown_away_with_its_loop_ends_in_peace() -> None:
    ended: list[str] = []

    async def users() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    work = result_of(users())
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(work)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False
    work.close()
    assert ended == ["ended"]

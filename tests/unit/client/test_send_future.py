"""The future of send_async: what the standard library's users of futures rely on holds for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator

import pytest

from rocketstream.client.producer.send_future import CallbackThread, SendFuture
from rocketstream.errors import SendError, SendOutcome
from rocketstream.model import MessageQueue, SendResult, SendStatus

NO_THREAD = -1
RESULT = SendResult(SendStatus.SEND_OK, "id", "offset-id", MessageQueue("T", "b", 0), 7)
ERROR = SendError("no", SendOutcome.REJECTED)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that does not run."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def callbacks(loop: asyncio.AbstractEventLoop) -> Iterator[CallbackThread]:
    """The thread callbacks run on."""
    thread = CallbackThread(loop, NO_THREAD)
    yield thread
    thread.close()


def test_a_waiting_thread_gets_the_result(callbacks: CallbackThread) -> None:
    """Whoever waits before the end is woken by it."""
    future = SendFuture(callbacks)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.result, 30)
        future.set_result(RESULT)
        assert waiting.result(30) is RESULT
    assert future.done()
    assert future.exception() is None
    assert not future.cancel()
    assert not future.cancelled()


def test_an_error_is_raised_and_returned(callbacks: CallbackThread) -> None:
    """Both ways of asking, before and after the end."""
    future = SendFuture(callbacks)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(0)
    future.set_exception(ERROR)
    assert future.exception() is ERROR
    with pytest.raises(SendError):
        future.result()


def test_it_ends_once(callbacks: CallbackThread) -> None:
    """A second end is a mistake, and changes nothing."""
    future = SendFuture(callbacks)
    assert "running" in repr(future)
    future.set_result(RESULT)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ERROR)
    assert future.result() is RESULT
    assert "finished" in repr(future)


@pytest.mark.parametrize("amount_before", [0, 1, 3])
def test_wait_and_as_completed_take_it(callbacks: CallbackThread, amount_before: int) -> None:
    """Ended before, ended meanwhile: each comes out once."""
    futures = [SendFuture(callbacks) for _ in range(3)]
    for future in futures[:amount_before]:
        future.set_result(RESULT)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        collected = pool.submit(lambda: list(concurrent.futures.as_completed(futures, 30)))
        for future in futures[amount_before:]:
            future.set_result(RESULT)
        assert sorted(map(id, collected.result(30))) == sorted(map(id, futures))
    assert concurrent.futures.wait(futures, 30).done == set(futures)


def test_the_main_thread_waits_for_several_that_are_under_way(callbacks: CallbackThread) -> None:
    """It holds the condition of each for a moment, as only a signal handler is refused to."""
    assert threading.current_thread() is threading.main_thread()
    futures = [SendFuture(callbacks) for _ in range(3)]
    futures[0].set_result(RESULT)
    waited = concurrent.futures.wait(futures, 30, concurrent.futures.FIRST_COMPLETED)
    assert waited.done == {futures[0]}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for future in futures[1:]:
            pool.submit(future.set_result, RESULT)
        assert set(concurrent.futures.as_completed(futures, 30)) == set(futures)


def test_callbacks_run_once_whenever_they_came(callbacks: CallbackThread) -> None:
    """Before the end and after it, also when one of them raises."""
    future = SendFuture(callbacks)
    seen: list[int] = []

    def broken(_: SendFuture) -> None:
        seen.append(0)
        raise ValueError("user code")

    future.add_done_callback(broken)
    future.add_done_callback(lambda _: seen.append(1))
    future.set_result(RESULT)
    future.add_done_callback(lambda _: seen.append(2))
    assert seen == [0, 1, 2]


def test_callbacks_never_run_on_the_network_thread(loop: asyncio.AbstractEventLoop) -> None:
    """There they are collected and handed to the thread for callbacks."""
    callbacks = CallbackThread(loop, threading.get_ident())
    future = SendFuture(callbacks)
    ran_on: list[int] = []
    done = threading.Event()

    def note(_: SendFuture) -> None:
        ran_on.append(threading.get_ident())
        done.set()

    future.add_done_callback(note)
    future.set_result(RESULT)
    assert not ran_on
    callbacks.hand_over()
    assert done.wait(30)
    assert ran_on != [threading.get_ident()]
    callbacks.close()


def test_a_callback_that_raises_system_exit_keeps_no_other_from_being_called(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """It ends no thread: neither those of the same burst are lost nor those that come later."""
    callbacks = CallbackThread(loop, threading.get_ident())
    seen: list[int] = []

    def leaves(_: SendFuture) -> None:
        raise SystemExit

    for _ in range(2):
        future = SendFuture(callbacks)
        future.add_done_callback(leaves)
        future.add_done_callback(lambda _: seen.append(1))
        future.set_result(RESULT)
        callbacks.hand_over()
    callbacks.close()
    assert seen == [1, 1]


def test_asyncio_can_await_it(callbacks: CallbackThread) -> None:
    """``asyncio.wrap_future`` builds on the callbacks."""

    async def main() -> SendResult:
        future = SendFuture(callbacks)
        wrapped = asyncio.wrap_future(future)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(future.set_result, RESULT).result(30)
        return await asyncio.wait_for(wrapped, 30)

    assert asyncio.run(main()) is RESULT

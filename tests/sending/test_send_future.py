"""The future of send_async: what the standard library's users of futures rely on holds for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest

from rocketstream._util.waiting import Locks
from rocketstream.client.producer import send_future
from rocketstream.client.producer.send_future import CallbackThread, SendFuture, end_all
from rocketstream.errors import ClientStateError, SendError, SendOutcome
from rocketstream.model import MessageQueue, SendResult, SendStatus
from tests.plugins.loop_by_hand import LoopByHand
from tests.plugins.waiting import wait_until

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


# --- whoever waits, and whoever does not ----------------------------------------------------------


class Noted:
    """A waiter of ``concurrent.futures.wait``."""

    def __init__(self) -> None:
        self.told: list[tuple[str, SendFuture]] = []

    def add_result(self, future: SendFuture) -> None:
        self.told.append(("result", future))

    def add_exception(self, future: SendFuture) -> None:
        self.told.append(("error", future))


@pytest.mark.parametrize("together", [False, True])
def test_waiters_of_several_are_told_which_end_it_was(
    callbacks: CallbackThread, together: bool
) -> None:
    one, two = SendFuture(callbacks), SendFuture(callbacks)
    waiter = Noted()
    for future in (one, two):
        with future._condition:
            future._waiters.append(cast(Any, waiter))
        assert future._condition is future._condition
    if together:
        end_all(callbacks, [one, two], [RESULT, ERROR])
    else:
        one.set_result(RESULT)
        two.set_exception(ERROR)
    assert waiter.told == [("result", one), ("error", two)]
    assert (one.result(), two.exception()) == (RESULT, ERROR)


def test_whoever_waits_on_the_condition_is_woken(callbacks: CallbackThread) -> None:
    future = SendFuture(callbacks)
    holds = threading.Event()

    def wait() -> bool:
        with future._condition:
            holds.set()
            return future._condition.wait(30)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        woken = pool.submit(wait)
        assert holds.wait(30)
        future.set_result(RESULT)
        assert woken.result(30)


@pytest.mark.parametrize("end", [RESULT, ERROR])
def test_those_ended_together_wake_who_waits_for_one_of_them(
    callbacks: CallbackThread, end: SendResult | SendError
) -> None:
    futures = [SendFuture(callbacks) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(futures[1].exception, 30)
        wait_until(lambda: futures[1]._made_latch is not None, "the other waits")
        end_all(callbacks, futures, [end] * 3)
        assert waiting.result(30) is (None if end is RESULT else ERROR)
    assert all(future.done() for future in futures)
    assert [future.exception() or future.result() for future in futures] == [end] * 3


def test_those_ended_together_have_their_callbacks_called(callbacks: CallbackThread) -> None:
    """In their order, whether somebody waits for them or not; each end is its own."""
    futures = [SendFuture(callbacks) for _ in range(3)]
    seen: list[tuple[int, object]] = []

    def note(number: int) -> Any:
        return lambda future: seen.append((number, future.exception() or future.result()))

    for number in (0, 2):
        futures[number].add_done_callback(note(number))
        futures[number].add_done_callback(note(number))
    end_all(callbacks, futures, [ERROR, RESULT, RESULT])
    assert seen == [(0, ERROR), (0, ERROR), (2, RESULT), (2, RESULT)]
    with pytest.raises(concurrent.futures.InvalidStateError):
        end_all(callbacks, futures[:1], [ERROR])
    with pytest.raises(ValueError, match="shorter"):
        end_all(callbacks, [SendFuture(callbacks)], [])


def test_a_wait_that_comes_just_after_the_end_does_not_wait(callbacks: CallbackThread) -> None:
    """The end came between the look and the guard."""
    future = SendFuture(callbacks)
    future.set_result(RESULT)
    future._wait(0)
    assert future._made_latch is None


def test_waits_are_as_long_as_asked(
    callbacks: CallbackThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Patient:
        def wait(self, timeout_ms: float | None) -> bool:
            waits.append(timeout_ms)
            return timeout_ms is None

    monkeypatch.setattr(send_future, "Latch", Patient)
    future = SendFuture(callbacks)
    with pytest.raises(TimeoutError):
        future.result(1.5)
    future.exception()
    assert waits == [1_500, None]


def test_a_signal_handler_that_interrupts_a_holder_waits_for_no_future(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """It would wait for the loop, which waits for the lock."""
    assert threading.current_thread() is threading.main_thread()
    locks = Locks()
    callbacks = CallbackThread(loop, NO_THREAD, locks)
    assert callbacks.locks is locks
    future = SendFuture(callbacks)
    with callbacks.guard:
        with pytest.raises(ClientStateError, match="a signal handler"):
            future.result(30)
        with pytest.raises(ClientStateError, match="a signal handler"):
            future._condition.acquire()
    callbacks.close()


def test_its_text_says_how_it_ended(callbacks: CallbackThread) -> None:
    ended, failed = SendFuture(callbacks), SendFuture(callbacks)
    ended.set_result(RESULT)
    failed.set_exception(ERROR)
    assert repr(ended) == f"SendFuture(finished, {RESULT!r})"
    assert repr(failed) == f"SendFuture(finished, {ERROR!r})"


# --- the thread of callbacks ----------------------------------------------------------------------


def by_hand() -> tuple[LoopByHand, CallbackThread]:
    """Return a loop that is this thread's, and the callbacks of a producer on it."""
    loop = LoopByHand()
    return loop, CallbackThread(cast(asyncio.AbstractEventLoop, loop), threading.get_ident())


def test_a_burst_of_ends_wakes_the_thread_once() -> None:
    """All ends of one turn of the loop are one item; without any no thread is started."""
    loop, callbacks = by_hand()
    seen: list[int] = []

    def note(number: int, _: SendFuture) -> None:
        seen.append(number)

    for number in range(3):
        future = SendFuture(callbacks)
        future.add_done_callback(partial(note, number))
        future.set_result(RESULT)
    assert (len(loop.due), seen) == (1, [])
    assert callbacks._executor._threads == []
    loop.turn()
    assert len(callbacks._executor._threads) == 1
    callbacks.close()
    assert seen == [0, 1, 2]
    assert not callbacks._executor._threads[0].is_alive()


def test_no_callback_no_thread() -> None:
    _, callbacks = by_hand()
    end_all(callbacks, [SendFuture(callbacks)], [RESULT])
    callbacks.hand_over()
    callbacks.close()
    assert callbacks._executor._threads == []


def test_callbacks_run_one_at_a_time_and_know_where() -> None:
    loop, callbacks = by_hand()
    entered, opened = threading.Event(), threading.Event()
    seen: list[bool] = []

    def wait(_: SendFuture) -> None:
        entered.set()
        assert opened.wait(30)
        seen.append(callbacks.is_current)

    for _ in range(2):
        future = SendFuture(callbacks)
        future.add_done_callback(wait)
        future.set_result(RESULT)
        loop.turn()
        assert entered.wait(30)
    assert len(callbacks._executor._threads) == 1
    assert not callbacks.is_current
    opened.set()
    callbacks.close()
    assert seen == [True, True]


def test_what_ends_on_a_closed_loop_is_called_back_there() -> None:
    """No turn comes that would hand it over."""
    loop, callbacks = by_hand()
    loop.closed = True
    seen: list[int] = []
    future = SendFuture(callbacks)
    future.add_done_callback(lambda _: seen.append(threading.get_ident()))
    future.set_result(RESULT)
    assert seen == [threading.get_ident()]
    callbacks.close()


def test_what_ends_after_the_thread_is_called_back_all_the_same() -> None:
    """Never on the network thread: other producers of the instance go on there."""
    loop, callbacks = by_hand()
    callbacks.close()
    ran_on: list[threading.Thread] = []
    done = threading.Event()

    def note(_: SendFuture) -> None:
        ran_on.append(threading.current_thread())
        done.set()

    future = SendFuture(callbacks)
    future.add_done_callback(note)
    future.set_result(RESULT)
    loop.turn()
    assert done.wait(30)
    ran_on[0].join(30)
    assert ran_on[0].daemon
    assert ran_on != [threading.current_thread()]


def test_what_a_closed_loop_leaves_after_the_thread_is_called_back_there() -> None:
    loop, callbacks = by_hand()
    callbacks.close()
    seen: list[int] = []
    future = SendFuture(callbacks)
    future.add_done_callback(lambda _: seen.append(threading.get_ident()))
    future.set_result(RESULT)
    loop.closed = True
    loop.turn()
    assert seen == [threading.get_ident()]


@pytest.mark.parametrize("closed", [False, True])
def test_callbacks_that_find_no_thread_are_called_a_little_later(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Not lost, and not on the network thread."""
    loop, callbacks = by_hand()
    if closed:
        callbacks.close()
    called = threading.Semaphore(0)
    ran_on: list[threading.Thread] = []

    def note(_: SendFuture) -> None:
        ran_on.append(threading.current_thread())
        called.release()

    def end_one() -> None:
        future = SendFuture(callbacks)
        future.add_done_callback(note)
        future.set_result(RESULT)
        loop.turn()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        end_one()
        end_one()
    assert (ran_on, len(loop.timers)) == ([], 1)
    loop.timers[0].call()
    for _ in range(2):
        assert called.acquire(timeout=30)
    callbacks.close()
    for thread in ran_on:
        thread.join(30)
    assert threading.current_thread() not in ran_on


def test_callbacks_that_find_no_thread_at_the_end_are_called_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, callbacks = by_hand()
    seen: list[int] = []
    future = SendFuture(callbacks)
    future.add_done_callback(lambda _: seen.append(1))
    future.set_result(RESULT)
    loop.closed = True
    monkeypatch.setattr(threading.Thread, "start", refused)
    callbacks.close()
    assert seen == [1]


def refused(_: threading.Thread) -> None:
    """Start no thread, as a system that has none left."""
    raise RuntimeError("can't start new thread")

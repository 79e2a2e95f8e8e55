"""How many messages may be on their way: who finds room, who is woken, what a flush waits for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rocketstream._util.waiting import Locks
from rocketstream.client.producer import send_future
from rocketstream.client.producer.gathering import Begun
from rocketstream.client.producer.send_future import NO_ROOM, SendWindow
from rocketstream.errors import ClientStateError, SendError, SendOutcome, TooManyRequestsError
from tests.kits.interrupts import interrupted_at
from tests.plugins.waiting import wait_until

LONG_MS = 20_000.0


class Watched(SendWindow):
    """A window that counts whom it wakes."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        super().__init__(count_max, bytes_max)
        self.wakes, self.flush_wakes = 0, 0
        self._changed.notify_all = self._wake  # type: ignore[method-assign]
        self._flushed.notify_all = self._wake_flush  # type: ignore[method-assign]

    def _wake(self) -> None:
        self.wakes += 1

    def _wake_flush(self) -> None:
        self.flush_wakes += 1


def test_room_is_bounded_by_number_and_by_bytes() -> None:
    """The last one in may go over the bytes: a message larger than all of them is sent too."""
    window = SendWindow(3, 100)
    assert [window.try_enter(1) for _ in range(4)] == [0, 0, 0, NO_ROOM]
    assert window.count == 3
    window.leave(1, 0)
    assert window.try_enter(500) == 0
    window.leave_together(2, [0, 0])
    assert (window.count, window.try_enter(1)) == (1, NO_ROOM)
    window.leave(500, 0)
    assert [window.try_enter(99), window.try_enter(1), window.try_enter(1)] == [0, 0, NO_ROOM]


@pytest.mark.parametrize("size", [3, 100])
def test_who_finds_no_room_in_time_has_sent_nothing(size: int) -> None:
    window = SendWindow(1, 100)
    assert window.enter(size, LONG_MS) == 0
    text = f"1 messages of {size} bytes are on their way and none was answered within 1 ms"
    for _ in range(2):
        with pytest.raises(SendError, match=text) as raised:
            window.enter(5, 1)
        error = raised.value
        assert (error.outcome, error.retriable) == (SendOutcome.NOT_SENT, True)
        assert isinstance(error.__cause__, TooManyRequestsError)
    assert (window.count, window._waiting) == (1, 0)
    assert window.enter(5, 0, waits=False) == 0
    assert (window.count, window.failures) == (2, 0)


def test_a_wait_for_room_is_as_long_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    window = SendWindow(1, 100)
    window.enter(1, LONG_MS)
    waits: list[float | None] = []

    def waited(_: object, done: Callable[[], bool], timeout_ms: float | None) -> bool:
        waits.append(timeout_ms)
        assert window._waiting == 1
        return False

    monkeypatch.setattr(send_future, "wait_until", waited)
    with pytest.raises(SendError):
        window.enter(1, 3_500)
    assert not window.wait_empty(2_500)
    assert waits == [3_500, 2_500]
    assert window._waiting == 0


def test_a_wait_for_room_looks_for_signals_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came just before the wait would be seen only when it is over."""
    window = SendWindow(1, 100)
    window.enter(1, LONG_MS)

    def waited(timeout_s: float | None = None) -> bool:
        assert timeout_s is not None
        assert timeout_s <= 1
        raise KeyboardInterrupt

    monkeypatch.setattr(window._changed, "wait", waited)
    with pytest.raises(KeyboardInterrupt):
        window.enter(1, LONG_MS)
    with pytest.raises(KeyboardInterrupt):
        window.wait_empty(LONG_MS)
    assert (window.count, window._waiting) == (1, 0)


@pytest.mark.parametrize("together", [False, True])
def test_who_waits_for_room_gets_it_when_one_leaves(together: bool) -> None:
    window = SendWindow(1, 100)
    window.enter(10, LONG_MS)
    with ThreadPoolExecutor(1) as pool:
        entered = pool.submit(window.enter, 1, LONG_MS)
        wait_until(lambda: window._waiting == 1, "the other waits")
        if together:
            window.leave_together(10, [0])
        else:
            window.leave(10, 0)
        assert entered.result(20) == 0
    assert (window.count, window._waiting) == (1, 0)


@pytest.mark.parametrize("together", [False, True])
def test_nobody_is_woken_for_nothing(together: bool) -> None:
    """Neither while nobody waits, nor for room that is none."""
    window = Watched(2, 100)

    def leave(size: int) -> None:
        if together:
            window.leave_together(size, [0])
        else:
            window.leave(size, 0)

    for size in (200, 1, 1):
        window.enter(size, LONG_MS, waits=False)
    leave(1)
    assert window.wakes == 0
    window._waiting = 1
    leave(1)
    assert window.wakes == 0, "the bytes leave no room yet"
    window.enter(1, LONG_MS, waits=False)
    leave(200)
    assert window.wakes == 1
    leave(1)
    assert (window.wakes, window.count, window.flush_wakes) == (2, 0, 0)


@pytest.mark.parametrize("together", [False, True])
def test_a_flush_is_woken_by_what_began_before_it(together: bool) -> None:
    window = Watched(10, 100)

    def leave(begun: int) -> None:
        if together:
            window.leave_together(1, [begun])
        else:
            window.leave(1, begun)

    window.enter(1, LONG_MS)
    window.enter(1, LONG_MS)
    assert window.flush(0) == 2
    assert window.enter(1, LONG_MS) == 1
    leave(1)
    leave(0)
    assert window.flush_wakes == 0
    leave(0)
    assert window.flush_wakes == 1
    assert window.enter(1, LONG_MS) == 1
    leave(1)
    assert window.flush_wakes == 1, "nobody flushes any more"


def test_several_that_leave_together_wake_a_flush_once() -> None:
    window = Watched(10, 100)
    for _ in range(3):
        window.enter(1, LONG_MS)
    window.flush(0)
    window.leave_together(3, [0, 0, 0])
    assert (window.flush_wakes, window.count) == (1, 0)


def test_a_flush_ends_with_what_began_before_it() -> None:
    window = SendWindow(10, 100)
    assert window.flush(None) == 0
    begun = [window.enter(1, LONG_MS) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(window.flush, None)
        wait_until(lambda: window._begun.waits, "the flush has begun")
        later = window.enter(1, LONG_MS)
        window.leave(1, begun[0])
        window.leave(1, later)
        assert not flush.done()
        window.leave(1, begun[1])
        assert flush.result(20) == 0


def test_nothing_enters_amid_the_count_of_a_flush() -> None:
    """A signal handler that sends would be in no count; afterwards there is room again."""
    window = SendWindow(10, 100)
    entered: list[int] = []

    class Interrupted(Begun):
        def flush(self, under_way: int) -> int:
            entered.append(window.try_enter(1))
            return super().flush(under_way)

    window._begun = Interrupted()
    assert window.flush(0) == 0
    assert entered == [NO_ROOM]
    assert window.try_enter(1) == 0


def test_whoever_waits_for_the_end_hears_whether_it_came() -> None:
    window = SendWindow(10, 100)
    assert window.wait_empty(0)
    window.enter(1, LONG_MS)
    assert not window.wait_empty(0)
    with ThreadPoolExecutor(1) as pool:
        empty = pool.submit(window.wait_empty, LONG_MS)
        wait_until(lambda: window._waiting == 1, "the other waits")
        window.leave(1, 0)
        assert empty.result(20)
    assert window._waiting == 0


def test_a_signal_handler_neither_counts_nor_waits_amid_a_count() -> None:
    """It runs on the thread that holds the lock, so it would wait for itself."""
    assert threading.current_thread() is threading.main_thread()
    locks = Locks()
    window = SendWindow(1, 100, locks)
    with window._lock, pytest.raises(ClientStateError, match="a signal handler"):
        window.enter(1, LONG_MS)
    window.enter(1, LONG_MS)
    other = locks.make()
    waits: list[Callable[[], object]] = [
        lambda: window.enter(1, LONG_MS),
        lambda: window.wait_empty(LONG_MS),
        lambda: window.flush(LONG_MS),
    ]
    for wait in waits:
        with other, pytest.raises(ClientStateError, match="a signal handler"):
            wait()
    with other:
        assert window.enter(1, LONG_MS, waits=False) == 0


@pytest.mark.parametrize("waits", [None, False, True])
def test_an_interrupt_leaves_a_window_with_or_without_the_message(waits: bool | None) -> None:
    def enter() -> int:
        if waits is None:
            return window.try_enter(7)
        return window.enter(7, LONG_MS, waits=waits)

    for step in itertools.count():
        window = SendWindow(1, 100)
        if not interrupted_at(step, enter):
            assert step > 2
            break
        assert (window.count, window._bytes) == (0, 0), f"step {step}"
    assert (window.count, window._bytes) == (1, 7)


def test_an_interrupted_flush_leaves_the_window_as_it_was() -> None:
    """Every later message would find it full."""
    for step in itertools.count():
        window = SendWindow(2, 100)
        window.enter(7, LONG_MS)
        was_cut = interrupted_at(step, partial(window.flush, 0))
        assert window.try_enter(1) != NO_ROOM, f"step {step}"
        if not was_cut:
            assert step > 2
            break

"""Listener calls: many at once, each within its time, one that hangs left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyContext, limits
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.listener import listener_of
from rocketstream.errors import ClientStateError
from rocketstream.limits import STANDSTILL_MS
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.spark.listener.calls import Call, Calls, LeftBehind, ThreadCalls, new_calls
from rocketstream.testing.clock import ManualClock

Q = MessageQueue("T", "b", 0)
LONG_MS = 20_000
SHORT_MS = 60

Make = Callable[..., Calls]


def call(offset: int = 0) -> Call:
    message = assemble_message(Q, offset, b"x", {}, commit_log_offset=0, reconsume_times=0)
    return Call([message], ConsumeConcurrentlyContext(Q), offset)


@pytest.fixture
def left() -> LeftBehind:
    return LeftBehind()


@pytest.fixture
def make(left: LeftBehind) -> Iterator[Make]:
    """Makes calls of a listener, closed at the end."""
    made: list[Calls] = []

    def new(listener: Any, at_once: int = 4, timeout_ms: float = LONG_MS) -> Calls:
        made.append(new_calls(listener_of(listener), at_once, timeout_ms, SYSTEM_CLOCK, left))
        return made[-1]

    yield new
    for each in made:
        each.close()


def take(calls: Calls, count: int) -> list[Call]:
    found: list[Call] = []
    while len(found) < count:
        some = calls.finished(LONG_MS)
        assert some, f"only {len(found)} of {count} calls came back"
        found += some
    return found


class CountedRunners(ThreadCalls):
    """Counts threads and starts none."""

    def _start_runners(self, count: int) -> None:
        self._runners += count


def test_threads_double_while_calls_take_a_millisecond(left: LeftBehind) -> None:
    """Judged after 5 ms in which the task waits; shorter calls would only contend for the GIL."""
    calls = CountedRunners(listener_of(sync_listener), 5, LONG_MS, SYSTEM_CLOCK, left)
    calls.submit([call(number) for number in range(20)])
    seen = []
    for waited_ms, begun in ((5.0, 6), (4.9, 0), (0.1, 5), (5.0, 10), (5.0, 0), (5.0, 0)):
        with calls._lock:
            while len(calls._running) < calls._runners:
                calls._next()
            calls._grow(waited_ms, begun)
        seen.append(calls._runners)
    assert seen == [1, 1, 2, 4, 5, 5]


def test_threads_that_wait_are_woken_before_new_ones_begin(left: LeftBehind) -> None:
    """A thread that waits costs nothing; a task would end with far more than it needs."""
    calls = CountedRunners(listener_of(sync_listener), 9, LONG_MS, SYSTEM_CLOCK, left)
    with calls._lock:
        calls._runners, calls._parked = 3, 2
        calls._wake(1)
        assert (calls._runners, calls._parked) == (3, 1)
        calls._wake(3)
        assert (calls._runners, calls._parked) == (5, 0)


def test_threads_that_wait_are_not_counted_as_busy(left: LeftBehind) -> None:
    """Two busy ones of four become four, by those that wait."""
    calls = CountedRunners(listener_of(sync_listener), 9, LONG_MS, SYSTEM_CLOCK, left)
    with calls._lock:
        calls._runners, calls._parked = 4, 2
        calls._waiting.extend(call(number) for number in range(9))
        for _ in range(2):
            calls._next()
        assert calls._begun == 2
        calls._grow(5.0, 0)
        assert (calls._runners, calls._parked) == (4, 0)


def sync_listener(messages: list[MessageExt]) -> int:
    return messages[0].queue_offset


async def async_listener(messages: list[MessageExt]) -> int:
    await asyncio.sleep(0)
    return messages[0].queue_offset


@pytest.mark.parametrize("listener", [sync_listener, async_listener])
def test_every_call_comes_back_with_its_own_answer(make: Make, listener: Any) -> None:
    calls = make(listener)
    for offset in range(500):
        calls.submit([call(offset)])
    assert sorted((each.key, each.answer) for each in take(calls, 500)) == [
        (offset, offset) for offset in range(500)
    ]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_listener_raises_is_an_answer(make: Make, error: BaseException) -> None:
    def listener(_: object) -> None:
        raise error

    calls = make(listener)
    calls.submit([call()])
    (back,) = take(calls, 1)
    assert back.error is error
    calls.submit([call()])
    take(calls, 1)


def test_a_coroutine_that_raises_harms_only_its_own_call(make: Make) -> None:
    async def listener(messages: list[MessageExt]) -> str:
        if messages[0].queue_offset == 1:
            raise asyncio.CancelledError
        return "good"

    calls = make(listener)
    for offset in range(3):
        calls.submit([call(offset)])
    answers = {each.key: each.answer for each in take(calls, 3)}
    assert answers == {0: "good", 1: None, 2: "good"}


def test_slow_calls_run_side_by_side(make: Make) -> None:
    """Threads are started when they help: four listeners meet only if four run at once."""
    together = threading.Barrier(4)
    calls = make(lambda _: together.wait(LONG_MS / 1000))
    for offset in range(4):
        calls.submit([call(offset)])
    assert all(each.error is None for each in take(calls, 4))


def test_coroutines_wait_side_by_side_but_no_more_than_allowed(make: Make) -> None:
    running = most = 0

    async def listener(_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    calls = make(listener, at_once=3)
    for offset in range(12):
        calls.submit([call(offset)])
    take(calls, 12)
    assert most == 3


@pytest.mark.allow_leaks  # a thread in a listener cannot be ended; the test lets it go at the end
def test_a_call_that_hangs_is_left_behind_and_the_next_goes_on(
    make: Make, left: LeftBehind
) -> None:
    release = threading.Event()

    def listener(messages: list[MessageExt]) -> str:
        if messages[0].queue_offset == 0:
            release.wait(LONG_MS / 1000)
        return "done"

    calls = make(listener, at_once=1, timeout_ms=SHORT_MS)
    for offset in range(3):
        calls.submit([call(offset)])
    back = {each.key: each.left for each in take(calls, 3)}
    assert back == {0: True, 1: False, 2: False}
    assert left.count == 1
    release.set()


def test_one_thread_takes_the_place_of_one_that_hangs(left: LeftBehind) -> None:
    """However many calls wait: no more are made at once than the user allows."""
    clock = ManualClock()
    calls = CountedRunners(listener_of(sync_listener), 1, SHORT_MS, clock, left)
    calls.submit([call(number) for number in range(3)])
    with calls._lock:
        calls._next()
    clock.advance(SHORT_MS)
    (hanging,) = calls.finished(0)
    assert (hanging.key, hanging.left, calls._runners) == (0, True, 1)


class StoppedWhileItWaits(threading.Condition):
    """Has the process stopped while it waits first, for so long by a clock."""

    def __init__(self, lock: Any, clock: ManualClock, stopped_ms: float) -> None:
        super().__init__(lock)
        self._clock, self._stopped_ms = clock, stopped_ms

    def wait(self, timeout: float | None = None) -> bool:
        stopped_ms, self._stopped_ms = self._stopped_ms, 5.0
        self._clock.advance(stopped_ms)
        return False


@pytest.mark.parametrize(
    ("stopped_ms", "is_left"), [(STANDSTILL_MS + 1, False), (STANDSTILL_MS - 1, True)]
)
def test_a_process_that_stood_still_leaves_no_call_behind_for_it(
    left: LeftBehind, stopped_ms: float, is_left: bool
) -> None:
    """Its messages would be sent back, and the next batch of an orderly queue begin beside it."""
    clock = ManualClock()
    calls = CountedRunners(listener_of(sync_listener), 1, 9_000, clock, left)
    calls._done = StoppedWhileItWaits(calls._lock, clock, stopped_ms)
    calls.submit([call()])
    with calls._lock:
        calls._next()
    assert [each.left for each in calls.finished(8_999)] == [True] * is_left
    assert [each.left for each in calls.finished(9_001)] == [True] * (not is_left)


@pytest.mark.allow_leaks  # as above
def test_the_answer_of_a_call_left_behind_no_longer_counts(make: Make, left: LeftBehind) -> None:
    release, gone = threading.Event(), threading.Event()
    thread: list[threading.Thread] = []

    def listener(_: object) -> str:
        thread.append(threading.current_thread())
        release.wait(LONG_MS / 1000)
        gone.set()
        return "late"

    calls = make(listener, timeout_ms=SHORT_MS)
    calls.submit([call()])
    (back,) = take(calls, 1)
    assert back.left
    release.set()
    assert gone.wait(LONG_MS / 1000)
    assert calls.finished(SHORT_MS) == []
    while left.count:
        calls.finished(1)
    assert left.count == 0
    thread[0].join(LONG_MS / 1000)
    assert not thread[0].is_alive()


def test_a_coroutine_that_hangs_is_cancelled(make: Make, left: LeftBehind) -> None:
    cancelled = threading.Event()

    async def listener(messages: list[MessageExt]) -> None:
        if messages[0].queue_offset == 0:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    calls = make(listener, at_once=1, timeout_ms=SHORT_MS)
    calls.submit([call(0)])
    calls.submit([call(1)])
    assert {each.key: each.left for each in take(calls, 2)} == {0: True, 1: False}
    assert cancelled.wait(LONG_MS / 1000)


@pytest.mark.allow_leaks  # the blocked loop ends when it is let go
def test_a_coroutine_that_blocks_its_loop_is_left_behind_with_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketstream.spark.listener.calls.LOOP_ANSWERS_MS", SHORT_MS)
    release = threading.Event()
    loops: dict[int, threading.Thread] = {}

    async def listener(messages: list[MessageExt]) -> str:
        loops[messages[0].queue_offset] = threading.current_thread()
        if messages[0].queue_offset == 0:
            release.wait(LONG_MS / 1000)
        return "done"

    calls = make(listener, at_once=2, timeout_ms=SHORT_MS)
    calls.submit([call(0)])
    calls.submit([call(1)])
    back = {each.key: each.left for each in take(calls, 2)}
    assert back == {0: True, 1: False}
    assert loops[0] is not loops[1]
    release.set()
    loops[0].join(LONG_MS / 1000)
    assert not loops[0].is_alive()


@pytest.mark.allow_leaks  # as above
def test_too_many_calls_that_hang_fail_the_task(
    make: Make, left: LeftBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPARK_CALLS_LEFT_BEHIND_MAX", 1)
    release = threading.Event()
    calls = make(lambda _: release.wait(LONG_MS / 1000), at_once=2, timeout_ms=SHORT_MS)
    calls.submit([call(0)])
    assert [each.left for each in take(calls, 1)] == [True]
    for offset in range(1, 4):
        calls.submit([call(offset)])
    with pytest.raises(ClientStateError, match=r"longer than 0\.06 s \(the smaller of"):
        take(calls, 4)
    release.set()


def test_a_listener_may_change_its_list_without_changing_the_batch(make: Make) -> None:
    calls = make(lambda messages: messages.clear())
    calls.submit([call()])
    (back,) = take(calls, 1)
    assert len(back.messages) == 1


def test_listeners_see_when_their_call_began(make: Make) -> None:
    """Covers C-233."""
    calls = make(lambda messages: messages[0].get_property("CONSUME_START_TIME"))
    calls.submit([call()])
    (back,) = take(calls, 1)
    assert int(back.answer) > 1_600_000_000_000

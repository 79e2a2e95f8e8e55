"""What stands between ``send_async`` and the loop: fair to what else the loop has to do."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import ClientConfig, limits
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream._util.waiting import Locks
from rocketstream.client.instance.engine import Engine
from rocketstream.client.producer import outbox as outboxes
from rocketstream.client.producer.async_sender import AsyncSender, SendDone, policy_of
from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.outbox import Outbox
from rocketstream.client.producer.policy import ANY_QUEUE, SendTarget
from rocketstream.client.producer.send_future import SendFuture
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ClientStateError, ForkedClientError, SendError, SendOutcome
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.sends import PreparedSend
from rocketstream.testing.clock import ManualClock
from tests.kits.interrupts import interrupted_at
from tests.plugins.loop_by_hand import LoopByHand
from tests.plugins.waiting import wait_until

QUEUE = MessageQueue("T", "b", 0)
RESULT = SendResult(SendStatus.SEND_OK, "id", "offset-id", QUEUE, 7)
ERROR = SendError("no", SendOutcome.REJECTED)
LONG_MS = 20_000.0
PUT_MOST = 1_000


class Body:
    """As much of a prepared message as the way through needs."""

    body = b"x"
    topic = "T"


class HandsOn:
    """As much of an engine as the way through needs."""

    def __init__(self, loop_thread_id: int = -1) -> None:
        self.loop = LoopByHand()
        self.locks = Locks()
        self.loop_thread_id = loop_thread_id
        self.is_forked = False

    def check_process(self) -> None:
        if self.is_forked:
            raise ForkedClientError("forked")


class Flooded:
    """A sender that finds another message waiting whenever it has sent one."""

    policy = policy_of(ProducerSettings("g"), ClientConfig(), SYSTEM_CLOCK)

    def __init__(self) -> None:
        self.sent = 0
        self.refill: Callable[[], object] = lambda: None

    def send(self, *send: Any) -> None:
        self.sent += 1
        on_done: SendDone = send[-1]
        on_done(RESULT, None)
        if self.sent < PUT_MOST:
            self.refill()


def test_a_thread_that_keeps_putting_leaves_the_loop_time_for_answers() -> None:
    """Each turn of the loop takes a bounded number; none of them is forgotten."""
    engine, sender = HandsOn(), Flooded()
    outbox = Outbox(cast(Engine, engine), cast(AsyncSender, sender))
    body = cast(PreparedSend, Body())
    answered = threading.Semaphore(0)

    def put() -> None:
        outbox.put(body, SendTarget(), 1_000, lambda _: answered.release())

    sender.refill = put
    put()
    turns = 0
    while engine.loop.due:
        before = sender.sent
        engine.loop.turn()
        assert sender.sent - before < PUT_MOST / 4
        turns += 1
    assert sender.sent == PUT_MOST
    for _ in range(PUT_MOST):
        assert answered.acquire(timeout=20)
    outbox.wait_empty(0)
    outbox.close()


# --- one step at a time ---------------------------------------------------------------------------


class Bench:
    """An outbox before a sender that only remembers, on a loop that turns by hand."""

    def __init__(self, *, on_loop: bool = False, **settings: Any) -> None:
        self.settings = ProducerSettings("g", **settings)
        self.clock = ManualClock()
        self.engine = HandsOn(threading.get_ident() if on_loop else -1)
        self.loop = self.engine.loop
        self.sent: list[tuple[PreparedSend, SendTarget, float, SendDone]] = []
        self.preparer = MessagePreparer(self.settings, self.clock)
        sender = SimpleNamespace(
            policy=SimpleNamespace(settings=self.settings),
            now=self.clock.monotonic_ms,
            send=lambda *send: self.sent.append(send),
        )
        self.outbox = Outbox(cast(Engine, self.engine), cast(AsyncSender, sender))
        self.window = self.outbox._window

    def prepared(self, body: bytes = b"x") -> PreparedSend:
        return self.preparer.one(Message("T", body))

    def put(self, body: bytes = b"x", callback: Any = None) -> SendFuture:
        return self.outbox.put(self.prepared(body), ANY_QUEUE, LONG_MS, callback)

    def gather(self, body: bytes = b"x", timeout_ms: float = LONG_MS) -> SendFuture:
        message = Message("T", body)
        prepared = self.preparer.one(message)
        return self.outbox.gather(prepared, message.properties, None, timeout_ms, None)

    def parts(self, *bodies: bytes, target: SendTarget = ANY_QUEUE) -> SendFuture:
        parts = [self.prepared(body) for body in bodies]
        return self.outbox.put_parts(parts, target, LONG_MS, None)

    def bodies(self) -> list[bytes]:
        return [bytes(prepared.body) for prepared, *_ in self.sent]

    def settle(self) -> None:
        while self.loop.turn():
            pass


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.outbox.close()


@pytest.fixture
def gathering() -> Iterator[Bench]:
    """An outbox that gathers, whose loop is the test's own thread."""
    bench = Bench(on_loop=True, auto_batch=True, total_batch_max_bytes=1_000)
    yield bench
    bench.outbox.close()


def test_the_loop_is_woken_once_for_all_that_wait(bench: Bench) -> None:
    futures = [bench.put(b"%d" % n) for n in range(3)]
    assert len(bench.loop.due) == 1
    bench.settle()
    assert bench.bodies() == [b"0", b"1", b"2"]
    assert [send[1:3] for send in bench.sent] == [(ANY_QUEUE, LONG_MS)] * 3
    futures.append(bench.put(b"3"))
    assert len(bench.loop.due) == 1, "the loop has looked, so it is woken again"
    bench.settle()
    for *_, done in bench.sent:
        done(RESULT, None)
    assert [future.result(0) for future in futures] == [RESULT] * 4
    assert bench.window.count == 0


def test_a_turn_of_the_loop_sends_no_more_than_64(bench: Bench) -> None:
    for _ in range(65):
        bench.put()
    sent = []
    while bench.loop.turn():
        sent.append(len(bench.sent))
    assert sent == [64, 65]


def test_what_is_put_amid_the_last_look_is_not_forgotten(bench: Bench) -> None:
    """Between the look that finds nothing more, and the note that the loop has looked."""
    seen = bench.outbox._waiting

    class Late(type(seen)):  # type: ignore[misc]
        def popleft(self) -> Any:
            try:
                return super().popleft()
            except IndexError:
                if len(bench.sent) == 1:
                    bench.put(b"late")
                raise

    bench.outbox._waiting = Late()
    bench.put(b"first")
    bench.loop.turn()
    assert bench.bodies() == [b"first"]
    assert len(bench.loop.due) == 1
    bench.put(b"later")
    assert len(bench.loop.due) == 1, "the loop is to look already"
    bench.settle()
    assert bench.bodies() == [b"first", b"late", b"later"]


def test_callbacks_are_added_and_failures_counted(bench: Bench) -> None:
    seen: list[SendFuture] = []
    future = bench.put(callback=seen.append)
    bench.settle()
    bench.sent[0][3](None, ERROR)
    assert (seen, future.exception(0)) == ([future], ERROR)
    assert (bench.window.failures, bench.window.count) == (1, 0)
    failed = bench.outbox.failed(ERROR, seen.append)
    assert (seen, failed.exception(0)) == ([future, failed], ERROR)
    assert bench.outbox.failed(ERROR, None).done()
    assert bench.window.failures == 1, "it never entered"


def test_a_callback_enters_without_waiting_for_room(bench: Bench) -> None:
    """Only its own thread could take the answers that make room."""
    bench.window._count_max = 1
    bench.put()
    with pytest.raises(SendError, match="none was answered within 5 ms"):
        bench.outbox.put(bench.prepared(), ANY_QUEUE, 5, None)
    with ThreadPoolExecutor(1) as pool:
        callbacks = bench.outbox._callbacks
        callbacks._executor._threads.append(pool.submit(threading.current_thread).result(20))
        assert pool.submit(bench.put).result(20)
        callbacks._executor._threads.clear()
    assert bench.window.count == 2


def test_room_is_that_of_all_sends_or_of_what_is_gathered(bench: Bench, gathering: Bench) -> None:
    assert bench.window._count_max == gathering.window._count_max
    assert bench.window._count_max == limits.ASYNC_SENDS_IN_FLIGHT_MAX
    assert bench.window._bytes_max == limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX
    assert gathering.window._bytes_max == 1_000
    assert bench.outbox.settings is bench.settings


# --- the end --------------------------------------------------------------------------------------


def test_what_was_not_sent_when_it_closes_is_not_sent(bench: Bench) -> None:
    futures = [bench.put(), bench.put()]
    bench.outbox.close()
    for future in (*futures, bench.put()):
        error = future.exception(0)
        assert isinstance(error, SendError)
        assert (error.outcome, error.parameters["topic"]) == (SendOutcome.NOT_SENT, "T")
    bench.settle()
    assert (bench.sent, bench.window.count) == ([], 0)


def test_a_loop_closed_by_another_thread_leaves_nobody_waiting(bench: Bench) -> None:
    bench.loop.closed = True
    error = bench.put().exception(0)
    assert isinstance(error, SendError)
    assert error.outcome is SendOutcome.NOT_SENT


def test_close_ends_what_is_gathered_too(gathering: Bench) -> None:
    gathering.gather(b"first")
    gathering.settle()
    future = gathering.gather()
    gathering.outbox.close()
    assert isinstance(future.exception(0), SendError)
    assert gathering.window.count == 1, "the first one is under way"
    assert gathering.outbox._callbacks._executor._closed


def test_a_flush_hurries_what_is_gathered_and_says_what_is_left(gathering: Bench) -> None:
    gathering.gather(b"first")
    gathering.settle()
    gathering.gather(b"second")
    assert gathering.outbox.flush(0) == 2
    gathering.settle()
    assert gathering.bodies() == [b"first", b"second"]


def test_waiting_for_the_end_sends_what_is_gathered(gathering: Bench) -> None:
    gathering.gather(b"first")
    gathering.settle()
    gathering.gather(b"second")
    gathering.outbox.wait_empty(0)
    gathering.settle()
    assert gathering.bodies() == [b"first", b"second"]


def test_a_signal_handler_amid_a_put_flushes_nothing(bench: Bench) -> None:
    raised: list[Exception] = []

    def enter(*_: Any) -> int:
        assert bench.outbox.is_interrupted
        with pytest.raises(ClientStateError) as caught:
            bench.outbox.flush(0)
        raised.append(caught.value)
        return 0

    assert not bench.outbox.is_interrupted
    bench.window.try_enter = enter  # type: ignore[method-assign,assignment]
    bench.put()
    bench.parts(b"a")
    assert [str(error)[:16] for error in raised] == ["a signal handler"] * 2


def test_unsent_counts_what_failed_meanwhile_and_what_is_still_under_way(bench: Bench) -> None:
    far_ms = SYSTEM_CLOCK.monotonic_ms() + LONG_MS
    assert bench.outbox.unsent(far_ms) == 0
    for _ in range(3):
        bench.put()
    bench.settle()
    bench.sent[0][3](None, ERROR)
    with ThreadPoolExecutor(1) as pool:
        unsent = pool.submit(bench.outbox.unsent, far_ms)
        wait_until(lambda: bench.window._waiting, "the other waits")
        bench.sent[1][3](None, ERROR)
        bench.sent[2][3](RESULT, None)
        assert unsent.result(20) == 1, "the one before failed before"
    bench.put()
    assert bench.outbox.unsent(0) == 1
    bench.engine.is_forked = True
    with pytest.raises(ForkedClientError):
        bench.outbox.unsent(far_ms)


def test_unsent_waits_until_the_time_it_was_given(bench: Bench) -> None:
    waits: list[float] = []
    bench.outbox.wait_empty = waits.append  # type: ignore[method-assign,assignment]
    bench.outbox.unsent(SYSTEM_CLOCK.monotonic_ms() + LONG_MS)
    assert waits == [], "nothing is under way"
    bench.put()
    bench.outbox.unsent(SYSTEM_CLOCK.monotonic_ms() - 5)
    bench.outbox.unsent(SYSTEM_CLOCK.monotonic_ms() + LONG_MS)
    assert waits[0] == 0
    assert 0 < waits[1] <= LONG_MS


def test_the_end_of_the_program_names_what_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All producers share the longest time of a send; a fork's parent sends its own."""
    monkeypatch.setattr(outboxes, "SYSTEM_CLOCK", ManualClock())
    monkeypatch.setattr(outboxes, "_OPEN", set())
    forked, done, left = (
        Bench(), Bench(send_msg_timeout_ms=1_000), Bench(send_msg_timeout_ms=2_000),
    )  # fmt: skip
    assert {each.outbox for each in (forked, done, left)} == outboxes._OPEN
    until: list[float] = []

    def unsent(count: int) -> Callable[[float], int]:
        return lambda until_ms: until.append(until_ms) or count  # type: ignore[func-returns-value]

    forked.engine.is_forked = True
    done.outbox.unsent = unsent(0)  # type: ignore[method-assign,assignment]
    left.outbox.unsent = unsent(3)  # type: ignore[method-assign,assignment]
    with caplog.at_level(logging.ERROR):
        outboxes._end_of_program()
    (record,) = caplog.records
    assert "3 of the messages that send_async took of producer g" in record.getMessage()
    assert sorted(until) == [1_000, 2_000]
    for each in (forked, done, left):
        each.outbox.close()
    assert set() == outboxes._OPEN


# --- gathered, and in parts -----------------------------------------------------------------------


def test_those_gathered_end_together(gathering: Bench) -> None:
    first = gathering.gather(b"first")
    gathering.settle()
    gathering.sent[0][3](RESULT, None)
    gathering.settle()
    assert first.result(0) is RESULT
    gathering.gather(b"under way")
    gathering.settle()
    futures = [gathering.gather(b"a"), gathering.gather(b"bb")]
    gathering.sent[1][3](RESULT, None)
    gathering.settle()
    assert gathering.window.count == 2
    gathering.sent[2][3](None, ERROR.with_retriable(True))
    assert all(isinstance(future.exception(0), SendError) for future in futures)
    window = gathering.window
    assert (window.count, window._bytes, window.failures) == (0, 0, 2)


def test_those_gathered_that_are_given_up_elsewhere_end_one_by_one() -> None:
    """Futures end together on the loop's thread only."""
    bench = Bench(auto_batch=True)
    bench.gather(b"first")
    bench.settle()
    futures = [bench.gather(b"a"), bench.gather(b"b")]
    bench.outbox.close()
    assert [isinstance(future.exception(0), SendError) for future in futures] == [True, True]
    assert (bench.window.count, bench.window.failures) == (1, 2)


def test_a_message_that_cannot_be_gathered_takes_no_room(gathering: Bench) -> None:
    gatherer = gathering.outbox._gatherer
    assert gatherer is not None
    gatherer._adding = True  # as of a put that this one interrupted
    with pytest.raises(ClientStateError):
        gathering.gather(b"x")
    gatherer._adding = False
    assert (gathering.window.count, gathering.window._bytes) == (0, 0)


@pytest.mark.parametrize(
    ("auto_batch", "send"),
    [
        (False, lambda bench: bench.put()),
        (False, lambda bench: bench.parts(b"a", b"b")),
        (True, lambda bench: bench.gather()),
        (True, lambda bench: bench.gather(b"x" * 1_000)),
        (True, lambda bench: bench.parts(b"a", b"b", target=SendTarget(queue=QUEUE))),
    ],
    ids=["put", "parts", "gathered", "gathered-alone", "parts-gathered"],
)
def test_an_interrupt_leaves_nothing_counted_that_is_not_sent(
    auto_batch: bool, send: Callable[[Bench], object]
) -> None:
    """Whoever flushes would wait for it for ever."""
    for step in itertools.count():
        bench = Bench(on_loop=True, auto_batch=auto_batch)
        was_cut = interrupted_at(step, partial(send, bench))
        bench.outbox.wait_empty(0)
        bench.settle()
        while bench.sent:
            bench.sent.pop()[3](RESULT, None)
            bench.settle()
        assert (bench.window.count, bench.window._bytes) == (0, 0), f"step {step}"
        send(bench)
        bench.settle()
        assert bench.sent, f"step {step}"
        while bench.sent:
            bench.sent.pop()[3](RESULT, None)
            bench.settle()
        assert (bench.window.count, bench.window._bytes) == (0, 0), f"step {step}"
        bench.outbox.close()
        if not was_cut:
            assert step > 10
            break


def test_parts_go_one_after_the_other_to_the_queue_of_the_first(bench: Bench) -> None:
    future = bench.parts(b"a", b"bb", b"ccc")
    assert (bench.window.count, bench.window._bytes) == (1, 6)
    bench.settle()
    for sent in range(3):
        assert len(bench.sent) == sent + 1
        assert not future.done()
        bench.sent[sent][3](RESULT, None)
    assert [send[1].queue for send in bench.sent] == [None, QUEUE, QUEUE]
    assert [send[2] for send in bench.sent] == [LONG_MS] * 3
    assert future.result(0).msg_id == "id,id,id"
    assert (bench.window.count, bench.window._bytes, bench.window.failures) == (0, 0, 0)


def test_a_part_that_fails_is_the_end_and_says_what_is_stored(bench: Bench) -> None:
    future = bench.parts(b"a", b"bb", b"ccc")
    bench.settle()
    bench.sent[0][3](RESULT, None)
    error = SendError("no", SendOutcome.REJECTED)
    bench.sent[1][3](None, error)
    assert future.exception(0) is error
    assert error.parameters["sent"] == [RESULT]
    assert len(bench.sent) == 2
    assert (bench.window.count, bench.window._bytes, bench.window.failures) == (0, 0, 1)


def test_parts_for_a_queue_keep_their_place_among_what_is_gathered(gathering: Bench) -> None:
    """Those for any queue pass by; those for one go after what was put for it before."""
    message = Message("T", b"before")
    prepared = gathering.preparer.one(message)
    for _ in range(2):
        gathering.outbox.gather(prepared, message.properties, QUEUE, LONG_MS, None)
        gathering.settle()
    future = gathering.parts(b"part", target=SendTarget(queue=QUEUE))
    gathering.parts(b"anywhere")
    gathering.settle()
    assert gathering.bodies() == [b"before", b"anywhere"]
    for at in (0, 2, 3):
        gathering.sent[at][3](RESULT, None)
        gathering.settle()
    assert gathering.bodies() == [b"before", b"anywhere", b"before", b"part"]
    assert future.result(0) is RESULT

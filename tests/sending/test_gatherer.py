"""The gatherer's shell: when the loop is woken, what leaves with what, how each one ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream.client.producer.async_sender import AsyncSender, SendDone
from rocketstream.client.producer.gatherer import Gatherer, Held, end_each, errors_of
from rocketstream.client.producer.message import GatheredSend, MessagePreparer
from rocketstream.client.producer.policy import SendTarget
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ClientStateError, SendError, SendOutcome
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.record import BATCH_RECORD_BYTES
from rocketstream.protocol.sends import PreparedSend
from rocketstream.testing.clock import ManualClock
from tests.plugins.loop_by_hand import LoopByHand

QUEUE = MessageQueue("T", "b", 0)
LONG_MS = 30_000.0
DELAY_MS = 100
BUSY = SendError("busy", SendOutcome.REJECTED).with_retriable(True)


def stored(ids: str = "ID", offset: int = 7) -> SendResult:
    return SendResult(SendStatus.SEND_OK, "", ids, QUEUE, offset)


@dataclass
class Sent:
    """What the sender was asked, and how to answer it."""

    prepared: PreparedSend
    target: SendTarget
    left_ms: float
    done: SendDone

    @property
    def bodies(self) -> list[bytes]:
        if isinstance(self.prepared, GatheredSend):
            return [bytes(each.body) for each in self.prepared.members]
        return [bytes(self.prepared.body)]

    def answer(self, offset: int = 7) -> None:
        self.done(stored(",".join(f"ID{n}" for n in range(len(self.bodies))), offset), None)


class Bench:
    """A gatherer between a sender that only remembers and a loop that turns by hand."""

    def __init__(self, **settings: Any) -> None:
        shared = {"auto_batch": True, "batch_max_delay_ms": DELAY_MS, **settings}
        self.settings = ProducerSettings("g", **shared)
        self.clock = ManualClock()
        self.preparer = MessagePreparer(self.settings, self.clock)
        self.loop = LoopByHand()
        self.wakes = 0
        self.sent: list[Sent] = []
        self.ends: list[tuple[bytes, SendResult | SendError, int]] = []
        self.refuses: Exception | None = None
        sender = SimpleNamespace(
            policy=SimpleNamespace(settings=self.settings),
            now=self.clock.monotonic_ms,
            send=self._send,
        )
        self.gatherer = Gatherer(
            cast(AsyncSender, sender),
            cast(asyncio.AbstractEventLoop, self.loop),
            self._wake,
            self._end,
            loop_thread_id=-1,
        )

    def _wake(self, call: Callable[[], None]) -> None:
        self.wakes += 1
        self.loop.call_soon_threadsafe(call)

    def _send(self, *send: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append(Sent(*send))

    def _end(self, held: Sequence[Held], ends: Sequence[Any], body_bytes: int) -> None:
        assert len(held) == len(ends)
        self.ends += [
            (bytes(each.body), end, body_bytes) for (each, _), end in zip(held, ends, strict=True)
        ]

    def put(
        self,
        body: bytes,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float = LONG_MS,
        topic: str = "T",
        assigned_flag: int = 0,
        **message: Any,
    ) -> None:
        given = Message(topic, body, **message)
        given.flag = assigned_flag
        prepared = self.preparer.one(given)
        self.gatherer.put(prepared, given.properties, queue, timeout_ms, lambda *_: None)

    def settle(self) -> list[Sent]:
        """Turn until nothing is due; return what was sent meanwhile."""
        before = len(self.sent)
        while self.loop.turn():
            pass
        return self.sent[before:]

    def begin(self, **how: Any) -> Sent:
        """Put one message that leaves at once and stays under way."""
        self.put(b"first", **how)
        (sent,) = self.settle()
        return sent

    def ended(self) -> list[tuple[bytes, str]]:
        return [
            (body, end.outcome.name if isinstance(end, SendError) else str(end.queue_offset))
            for body, end, _ in self.ends
        ]


# --- what goes with what --------------------------------------------------------------------------


def test_nothing_under_way_means_nothing_waits() -> None:
    bench = Bench()
    sent = bench.begin()
    assert (sent.bodies, sent.target.queue, sent.left_ms) == ([b"first"], None, LONG_MS)
    assert not isinstance(sent.prepared, GatheredSend)
    sent.answer()
    assert bench.ended() == [(b"first", "7")]
    assert bench.ends[0][2] == len(b"first")


def test_what_waited_goes_together_once_the_way_is_free() -> None:
    bench = Bench()
    first = bench.begin()
    for body in (b"a", b"bb", b"ccc"):
        bench.put(body)
        bench.clock.advance(1)
    assert bench.settle() == []
    first.answer()
    (batch,) = bench.settle()
    assert (batch.bodies, batch.left_ms) == ([b"a", b"bb", b"ccc"], LONG_MS - 3)
    batch.answer(offset=20)
    assert bench.ended()[1:] == [(b"a", "20"), (b"bb", "21"), (b"ccc", "22")]
    assert [size for _, _, size in bench.ends[1:]] == [6] * 3, "what leaves the window at once"
    bench.put(b"d")
    assert [sent.bodies for sent in bench.settle()] == [[b"d"]], "nothing is under way any more"


@pytest.mark.parametrize(
    "second",
    [
        {"body": b"x" * 64},  # as much as a whole batch
        {"body": b"x", "timeout_ms": float(DELAY_MS)},  # no longer than it may have to wait
        {"body": b"x", "delay_level": 1},
        {"body": b"x" * 40},  # which is compressed
        {"body": b"x", "assigned_flag": 1 << 40},
    ],
    ids=["full", "hasty", "delayed", "compressed", "wide"],
)
def test_some_messages_go_alone(second: dict[str, Any]) -> None:
    bench = Bench(batch_max_bytes=64, compress_msg_body_over_howmuch=40)
    first = bench.begin()
    bench.put(b"w")
    bench.put(second.pop("body"), **second)
    assert [len(sent.bodies) for sent in bench.settle()] == [1, 1], "it waits for no other"
    bench.put(b"y")
    bench.put(b"z")
    for sent in (first, *bench.sent[1:]):
        sent.answer()
    assert [len(sent.bodies) for sent in bench.settle()] == [2]


def test_what_is_just_below_the_bounds_goes_with_others() -> None:
    bench = Bench(batch_max_bytes=64, compress_msg_body_over_howmuch=1 << 20)
    first = bench.begin()
    bench.put(b"x" * 63, timeout_ms=DELAY_MS + 1)
    bench.put(b"y", timeout_ms=DELAY_MS + 1)
    first.answer()
    assert [len(sent.bodies) for sent in bench.settle()] == [2]


def test_a_reply_goes_alone() -> None:
    """Its request is another one, which no batch can be."""
    bench = Bench()
    first = bench.begin()
    reply = Message("T", b"reply")
    reply.properties["MSG_TYPE"] = "reply"
    prepared = bench.preparer.one(reply)
    bench.gatherer.put(prepared, {}, None, LONG_MS, lambda *_: None)
    bench.put(b"y")
    first.answer()
    assert [sent.bodies for sent in bench.sent[1:] + bench.settle()] == [[b"reply"], [b"y"]]


@pytest.mark.parametrize(("letter", "taken"), [("k", 1), ("é", 3)])
def test_a_batch_is_no_longer_than_a_request_may_be(letter: str, taken: int) -> None:
    """A character that is not ASCII counts for the most bytes it can take."""

    def keyed(bench: Bench, body: bytes) -> int:
        message = Message("T", body, keys=letter)
        prepared = bench.preparer.one(message)
        bench.gatherer.put(prepared, message.properties, None, LONG_MS, lambda *_: None)
        return BATCH_RECORD_BYTES + len(body) + len(prepared.properties) * taken

    two = 2 * keyed(Bench(), b"x")
    for spare, counts in ((0, [2]), (-1, [1, 1])):
        bench = Bench(max_message_size=two + spare)
        first = bench.begin()
        keyed(bench, b"x")
        keyed(bench, b"y")
        first.answer()
        assert [len(sent.bodies) for sent in bench.sent[1:] + bench.settle()] == counts


def test_each_queue_and_each_way_to_wait_has_its_own_batch() -> None:
    bench = Bench()
    free, fixed = bench.begin(), bench.begin(queue=QUEUE)
    assert fixed.target.queue == QUEUE
    bench.put(b"a", queue=QUEUE)
    bench.put(b"b", queue=QUEUE)
    bench.put(b"c")
    bench.put(b"d", wait_store_msg_ok=False)
    bench.put(b"e", wait_store_msg_ok=False)
    fixed.answer()
    free.answer()
    sent = bench.sent[2:] + bench.settle()
    assert sorted((each.bodies, each.target.queue) for each in sent if each.target.queue) == [
        ([b"a", b"b"], QUEUE)
    ]
    assert sorted(each.bodies for each in sent if not each.target.queue) == [[b"c"], [b"d", b"e"]]
    texts = {tuple(each.bodies): each.prepared.properties for each in sent if len(each.bodies) > 1}
    assert texts == {(b"a", b"b"): "", (b"d", b"e"): "WAIT\x01false"}


def test_a_batch_that_was_cut_by_itself_keeps_its_place() -> None:
    """``put_alone`` goes after what was put for its queue before, and by itself."""
    bench = Bench()
    first = bench.begin(queue=QUEUE)
    bench.put(b"a", queue=QUEUE)
    alone = bench.preparer.one(Message("T", b"alone"))
    for _ in range(2):
        bench.gatherer.put_alone(alone, QUEUE, LONG_MS, lambda *_: None)
    bench.put(b"b", queue=QUEUE)
    order = []
    first.answer()
    while sent := bench.settle():
        order += [each.bodies for each in sent]
        for each in sent:
            each.answer()
    assert order == [[b"a"], [b"alone"], [b"alone"], [b"b"]]


# --- when the loop looks --------------------------------------------------------------------------


def test_the_loop_is_woken_once_for_all_that_is_put_until_it_looks() -> None:
    bench = Bench()
    for _ in range(5):
        bench.put(b"x")
    assert bench.wakes == 1
    bench.settle()
    bench.put(b"y")
    assert bench.wakes == 2, "for the delay, which no look knew of"
    bench.settle()
    bench.put(b"z")
    assert bench.wakes == 2, "its batch is looked at in time already"


def test_a_message_of_a_queue_wakes_the_loop_for_its_own_end() -> None:
    """Order lets it not leave earlier, so the delay is no reason; a shorter time is one."""
    bench = Bench()
    bench.begin(queue=QUEUE)
    bench.put(b"a", queue=QUEUE)
    bench.settle()
    wakes = bench.wakes
    bench.put(b"b", queue=QUEUE)
    assert bench.wakes == wakes
    bench.put(b"c", queue=QUEUE, timeout_ms=LONG_MS - 1)
    assert bench.wakes == wakes + 1


def test_what_waits_for_others_leaves_when_its_delay_is_over() -> None:
    bench = Bench()
    bench.begin()
    bench.put(b"a")
    bench.clock.advance(30)
    bench.put(b"b")
    assert bench.settle() == []
    (timer,) = bench.loop.waiting()
    assert timer.pause_s == (DELAY_MS - 30) / 1000
    bench.clock.advance(DELAY_MS - 30)
    timer.call()
    assert [sent.bodies for sent in bench.sent[1:]] == [[b"a", b"b"]]
    assert bench.loop.waiting() == [timer], "nothing waits that another look would be for"


def test_a_timer_that_is_early_enough_stays() -> None:
    bench = Bench()
    bench.begin(queue=QUEUE)
    bench.put(b"a", queue=QUEUE, timeout_ms=2_000.0)
    bench.settle()
    (timer,) = bench.loop.waiting()
    assert timer.pause_s == 2.0
    bench.put(b"b", queue=QUEUE, timeout_ms=3_000.0)
    bench.gatherer.hurry()
    bench.settle()
    assert bench.loop.waiting() == [timer]
    bench.put(b"c", queue=QUEUE, timeout_ms=1_000.0)
    bench.settle()
    assert timer.is_cancelled
    assert [each.pause_s for each in bench.loop.waiting()] == [1.0]


def test_a_timer_the_loop_is_late_for_is_not_waited_for() -> None:
    """The look that comes before it does its work, and sets the next one."""
    bench = Bench()
    bench.begin()
    bench.put(b"a")
    bench.settle()
    (late,) = bench.loop.waiting()
    bench.clock.advance(DELAY_MS)
    bench.gatherer.hurry()
    assert [sent.bodies for sent in bench.settle()] == [[b"a"]]
    assert late.is_cancelled
    assert bench.loop.waiting() == []
    bench.put(b"b")
    bench.settle()
    assert [each.pause_s for each in bench.loop.waiting()] == [DELAY_MS / 1000]


def test_a_look_that_comes_after_the_time_looks_again_at_once() -> None:
    """A batch of a queue whose way is not free is late for ever: no pause is below nothing."""
    bench = Bench()
    gatherer = bench.gatherer
    gatherer._look_at(bench.clock.monotonic_ms() - 5)
    assert [each.pause_s for each in bench.loop.waiting()] == [0.0]
    gatherer._look_at(float("inf"))
    assert bench.loop.waiting() == []


def test_hurry_sends_what_was_put_so_far_and_flush_whatever_is_put_later() -> None:
    bench = Bench()
    bench.begin()
    bench.put(b"a")
    bench.gatherer.hurry()
    assert [sent.bodies for sent in bench.settle()] == [[b"a"]]
    bench.put(b"b")
    assert bench.settle() == [], "put after the hurry"
    bench.gatherer.flush()
    assert [sent.bodies for sent in bench.settle()] == [[b"b"]]
    bench.put(b"c")
    assert [sent.bodies for sent in bench.settle()] == [[b"c"]]


def test_an_answer_lets_the_next_go_in_the_next_turn_and_looks_once() -> None:
    """Answers of one turn are taken in together, and sends that fail at once pile nothing up."""
    bench = Bench()
    first, other = bench.begin(), bench.begin(topic="U")
    bench.put(b"a")
    bench.put(b"b", topic="U")
    bench.settle()
    first.answer()
    assert len(bench.loop.due) == 1
    other.answer()
    assert len(bench.loop.due) == 1
    assert [sent.bodies for sent in bench.settle()] == [[b"a"], [b"b"]]


def test_an_answer_nobody_waited_for_has_nobody_look() -> None:
    bench = Bench()
    bench.begin().answer()
    assert bench.loop.due == []


def test_who_puts_a_lot_before_the_loop_looks_gives_way_to_it() -> None:
    """The wait is short: the loop may be busy, and the caller has more to put."""
    bench = Bench()
    waits: list[float] = []

    class Looked:
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if blocking:
                waits.append(timeout)
            return True

        def locked(self) -> bool:
            return False

    bench.gatherer._looked = cast(threading.Lock, Looked())
    for count in range(1, 200):
        bench.put(b"x")
        assert len(waits) == (count - 1) // 64
    assert set(waits) == {0.005}
    bench.gatherer._loop_thread_id = threading.get_ident()
    before = len(waits)
    for _ in range(64):
        bench.put(b"x")
    assert len(waits) == before, "the loop does not wait for itself"


def test_asyncio_callers_give_way_to_nobody() -> None:
    """They are on the loop: it goes on when they do."""
    bench = Bench()
    bench.gatherer._loop_thread_id = None
    bench.gatherer._give_way = lambda: pytest.fail("waited")  # type: ignore[method-assign]
    for _ in range(200):
        bench.put(b"x")


def test_a_look_lets_go_who_gives_way() -> None:
    bench = Bench()
    looked = bench.gatherer._looked
    bench.put(b"x")
    assert looked.acquire(blocking=False)
    bench.settle()
    assert not looked.locked()
    bench.put(b"y")
    bench.settle()
    assert not looked.locked(), "nobody gives way: nothing is let go"


def test_a_look_that_came_meanwhile_is_not_waited_for() -> None:
    bench = Bench()
    bench.put(b"x")
    bench.settle()
    bench.gatherer._give_way()
    assert bench.gatherer._looked.locked(), "taken, and not waited for"


# --- how it ends ----------------------------------------------------------------------------------


def test_a_refused_batch_is_sent_one_by_one_and_each_ends_for_itself() -> None:
    bench = Bench()
    first = bench.begin(queue=QUEUE)
    bench.put(b"a", queue=QUEUE)
    bench.put(b"bb", queue=QUEUE)
    first.answer()
    (batch,) = bench.settle()
    bench.clock.advance(1_000)
    bench.put(b"later", queue=QUEUE)
    no = SendError("illegal", SendOutcome.REJECTED)
    batch.done(None, no)
    one, two = bench.sent[2:]
    assert [(each.bodies, each.target.queue) for each in (one, two)] == [
        ([b"a"], QUEUE), ([b"bb"], QUEUE),
    ]  # fmt: skip
    assert one.left_ms == two.left_ms == LONG_MS - 1_000
    bench.ends.clear()
    two.done(None, no)
    assert bench.settle() == [], "one of them is still under way"
    one.answer()
    assert [sent.bodies for sent in bench.settle()] == [[b"later"]]
    assert [(body, size) for body, _, size in bench.ends] == [(b"bb", 2), (b"a", 1)]
    assert bench.ended() == [(b"bb", "REJECTED"), (b"a", "7")]


def test_one_that_was_alone_is_not_sent_again_for_itself() -> None:
    bench = Bench()
    first = bench.begin()
    first.done(None, SendError("illegal", SendOutcome.REJECTED))
    assert (len(bench.sent), bench.ended()) == (1, [(b"first", "REJECTED")])


@pytest.mark.parametrize("left_ms", [1.0, 0.0, -1.0])
def test_a_batch_refused_after_its_time_is_sent_no_more(left_ms: float) -> None:
    bench = Bench()
    first = bench.begin()
    bench.put(b"a")
    bench.put(b"b")
    first.answer()
    (batch,) = bench.settle()
    bench.clock.advance(LONG_MS - left_ms)
    batch.done(None, SendError("illegal", SendOutcome.REJECTED))
    if left_ms > 0:
        assert [sent.left_ms for sent in bench.sent[2:]] == [left_ms] * 2
        return
    assert len(bench.sent) == 2
    assert bench.ended()[1:] == [(b"a", "REJECTED"), (b"b", "REJECTED")]
    bench.put(b"next")
    assert [sent.bodies for sent in bench.settle()] == [[b"next"]]


def test_a_batch_that_leaves_after_its_time_has_none_left() -> None:
    """Never less than none, which would be no timeout at all."""
    bench = Bench()
    bench.begin()
    bench.put(b"a", timeout_ms=DELAY_MS + 1.0)
    bench.put(b"b", timeout_ms=DELAY_MS + 1.0)
    bench.clock.advance(DELAY_MS + 50)
    (batch,) = bench.settle()
    assert (batch.bodies, batch.left_ms) == ([b"a", b"b"], 0.0)


def test_a_batch_that_may_pass_later_fails_as_one_with_an_error_for_each() -> None:
    bench = Bench()
    first = bench.begin()
    bench.put(b"a")
    bench.put(b"b")
    first.answer()
    (batch,) = bench.settle()
    bench.ends.clear()
    batch.done(None, BUSY)
    assert len(bench.sent) == 2
    (_, one, _), (_, two, _) = bench.ends
    assert one is BUSY
    assert isinstance(two, SendError)
    assert two is not BUSY
    bench.put(b"next")
    assert [sent.bodies for sent in bench.settle()] == [[b"next"]], "nothing is under way"


def test_a_send_that_says_nothing_is_an_error() -> None:
    bench = Bench()
    bench.begin().done(None, None)
    assert bench.ended() == [(b"first", "UNKNOWN")]


def test_what_the_sender_raises_ends_its_messages_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.refuses = ValueError("spoilt")
    bench.put(b"a")
    bench.settle()
    assert bench.ended() == [(b"a", "NOT_SENT")]
    assert "the batch could not be sent: ValueError('spoilt')" in str(bench.ends[0][1])
    assert "a batch of topic T could not be sent" in caplog.text
    bench.refuses = None
    bench.put(b"b")
    assert [sent.bodies for sent in bench.settle()] == [[b"b"]]


def test_close_fails_what_was_not_sent_and_whatever_is_put_later() -> None:
    bench = Bench()
    bench.begin()
    bench.put(b"a")
    bench.put(b"bb")
    bench.settle()
    (timer,) = bench.loop.waiting()
    bench.gatherer.close()
    assert timer.is_cancelled
    assert bench.ended() == [(b"a", "NOT_SENT"), (b"bb", "NOT_SENT")]
    assert {size for _, _, size in bench.ends} == {3}
    error = bench.ends[0][1]
    assert isinstance(error, SendError)
    assert error.parameters["topic"] == "T"
    wakes = bench.wakes
    bench.put(b"c")
    bench.gatherer.hurry()
    bench.gatherer.flush()
    assert bench.ended()[2:] == [(b"c", "NOT_SENT")]
    assert bench.wakes == wakes, "nobody looks any more"


def test_close_touches_no_timer_of_a_loop_that_is_closed() -> None:
    """``close`` comes once the loop takes no more; nothing left is no call of ``end``."""
    bench = Bench()
    bench.begin()
    bench.put(b"a")
    bench.settle()
    bench.loop.closed = True
    bench.gatherer.close()
    assert [timer.is_cancelled for timer in bench.loop.timers] == [False]
    ended = len(bench.ends)
    bench.gatherer.close()
    assert len(bench.ends) == ended


def test_a_loop_closed_by_another_thread_fails_what_is_put() -> None:
    bench = Bench()
    bench.loop.closed = True
    bench.put(b"a")
    assert bench.ended() == [(b"a", "NOT_SENT")]


def test_a_signal_handler_that_comes_amid_a_put_is_refused() -> None:
    """And the put it interrupted goes on; so does one that comes after a put that raised."""
    bench = Bench()
    plain = bench.gatherer._gathering.add
    raised: list[ClientStateError] = []

    def interrupted(*how: Any, **more: Any) -> bool:
        try:
            bench.put(b"handler")
        except ClientStateError as error:
            raised.append(error)
        return plain(*how, **more)

    bench.gatherer._gathering.add = interrupted  # type: ignore[method-assign]
    bench.put(b"a")
    assert "a signal handler made this call" in str(raised[0])
    bench.gatherer._gathering.add = lambda *_, **__: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        bench.put(b"b")
    bench.gatherer._gathering.add = plain  # type: ignore[method-assign]
    bench.put(b"c")
    (one,) = bench.settle()
    assert one.bodies == [b"a", b"c"]


# --- ends -----------------------------------------------------------------------------------------


def test_each_sender_is_told_its_own_end() -> None:
    told: list[tuple[int, SendResult | None, SendError | None]] = []

    def sink(number: int) -> SendDone:
        return lambda result, error: told.append((number, result, error))

    prepared = cast(PreparedSend, None)
    result = stored()
    end_each([(prepared, sink(0)), (prepared, sink(1))], [result, BUSY], 2)
    assert told == [(0, result, None), (1, None, BUSY)]
    with pytest.raises(ValueError, match="shorter"):
        end_each([(prepared, sink(0)), (prepared, sink(1))], [result], 2)


def test_nobody_writes_into_the_error_of_another() -> None:
    error = SendError("no", SendOutcome.REJECTED, topic="T")
    error.__cause__ = cause = ValueError("why")
    one, two, three = errors_of(error, 3)
    assert one is error
    two.parameters["sent"] = [1]
    assert "sent" not in {**one.parameters, **three.parameters}
    assert [each.parameters["topic"] for each in (one, two, three)] == ["T"] * 3
    assert [each.__cause__ for each in (two, three)] == [cause] * 2
    assert {each.outcome for each in (two, three)} == {SendOutcome.REJECTED}
    assert len(errors_of(error, 1)) == 1

"""``flush`` waits for what was begun before it, both faces, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import Message, Producer, aio
from rocketstream.client.producer.gathering import Begun
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    FlushTimeoutError,
    SendError,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.headers import SendMessageResponseHeader
from tests.kits.client.fake_broker import TOPIC, WAIT_S, Asked, FakeBroker, answer, refusal
from tests.plugins.waiting import wait_until

ONE, MANY = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
LONG_MS = int(WAIT_S) * 1000
GATHERING: dict[str, Any] = {
    "auto_batch": True,
    "batch_max_delay_ms": 30_000,
    "send_msg_timeout_ms": 60_000,
}


@pytest.fixture
def held() -> Iterator[FakeBroker]:
    """A broker that answers sends when the test does."""
    with FakeBroker() as broker:
        broker.on[ONE] = broker.on[MANY] = lambda _: None
        yield broker


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def stored(broker: FakeBroker, asked: Asked, count: int = 1) -> None:
    ids = ",".join(f"ID{n}" for n in range(count))
    broker.reply(asked, answer(0, SendMessageResponseHeader(ids, 0, 0)))


def producer_of(broker: FakeBroker, **settings: Any) -> Producer:
    return Producer(
        "p", namesrv_addr=broker.address, **{"send_msg_timeout_ms": LONG_MS, **settings}
    )


def aio_producer_of(broker: FakeBroker, **settings: Any) -> aio.Producer:
    shared = {"send_msg_timeout_ms": LONG_MS, **settings}
    return aio.Producer("p", namesrv_addr=broker.address, **shared)


def flushes_of(producer: Any) -> int:
    """Return how many flushes found something under way."""
    window = producer if isinstance(producer, aio.Producer) else producer._machine.outbox._window
    return int(window._begun.now)


# --- blocking -------------------------------------------------------------------------------------


def test_flush_returns_when_what_was_begun_has_ended_and_not_later(
    held: FakeBroker, pool: ThreadPoolExecutor
) -> None:
    """What is sent after it began never ends here, and holds it up no more than it should."""
    with producer_of(held) as producer:
        before = [producer.send_async(Message(TOPIC, b"%d" % n)) for n in range(3)]
        asked = held.wait_for(ONE, 3)
        flush = pool.submit(producer.flush, LONG_MS)
        wait_until(lambda: flushes_of(producer) == 1, "the flush has begun")
        after = producer.send_async(Message(TOPIC, b"later"))
        (last,) = held.wait_for(ONE, 4)[3:]
        for each in asked[:2]:
            stored(held, each)
        before[0].result(WAIT_S), before[1].result(WAIT_S)
        assert not flush.done()
        stored(held, asked[2])
        flush.result(WAIT_S)
        assert all(future.done() for future in before)
        assert not after.done()
        stored(held, last)
        producer.flush(LONG_MS)
        assert after.done()
    producer_is_shut = pytest.raises(ClientStateError, match="SHUTDOWN_ALREADY")
    with producer_is_shut:
        producer.flush()


def test_flush_says_how_many_are_still_on_their_way(held: FakeBroker) -> None:
    """And takes nothing from them: answered later, they end."""
    with producer_of(held) as producer:
        futures = [producer.send_async(Message(TOPIC, b"x")) for _ in range(3)]
        asked = held.wait_for(ONE, 3)
        stored(held, asked[1])
        wait_until(lambda: any(future.done() for future in futures), "one is answered")
        for timeout_ms in (1, 0):
            with pytest.raises(FlushTimeoutError, match="2 messages are still on their") as raised:
                producer.flush(timeout_ms)
            assert raised.value.under_way == 2
            assert isinstance(raised.value, TimeoutError)
        for each in (asked[0], asked[2]):
            stored(held, each)
        producer.flush()
        assert all(future.result().offset_msg_id for future in futures)


def test_flush_raises_nothing_for_what_failed(held: FakeBroker) -> None:
    """The future has the error; a flush with nothing under way returns at once."""
    held.on[ONE] = refusal(ResponseCode.MESSAGE_ILLEGAL)
    with producer_of(held) as producer:
        producer.flush(0)
        future = producer.send_async(Message(TOPIC, b"x"))
        producer.flush(LONG_MS)
        assert isinstance(future.exception(0), SendError)


def test_flush_without_a_time_ends_as_the_sends_do(held: FakeBroker) -> None:
    """Nobody answers: the timeout of the sends is the bound."""
    with producer_of(held, send_msg_timeout_ms=50) as producer:
        future = producer.send_async(Message(TOPIC, b"x"))
        producer.flush()
        assert "timed out" in str(future.exception(0))


def test_flush_sends_what_is_gathered_at_once(held: FakeBroker, pool: ThreadPoolExecutor) -> None:
    """The delay, longer than this test waits, is not waited for."""
    with producer_of(held, **GATHERING) as producer:
        first = producer.send_async(Message(TOPIC, b"first"))
        (asked,) = held.wait_for(ONE)
        gathered = [producer.send_async(Message(TOPIC, b"%d" % n)) for n in range(3)]
        flush = pool.submit(producer.flush, LONG_MS)
        (batch,) = held.wait_for(MANY)
        stored(held, batch, 3)
        assert [future.result(WAIT_S).offset_msg_id for future in gathered] == ["ID0", "ID1", "ID2"]
        assert not flush.done()
        stored(held, asked)
        flush.result(WAIT_S)
        assert first.done()


def test_a_batch_in_parts_has_ended_with_its_last_part(
    held: FakeBroker, pool: ThreadPoolExecutor
) -> None:
    """A later part is sent after the flush began; it belongs to what began before."""
    messages = [Message(TOPIC, bytes(400)) for _ in range(4)]
    with producer_of(held, max_message_size=1_000) as producer:
        future = producer.send_async(messages)
        (first,) = held.wait_for(MANY)
        flush = pool.submit(producer.flush, LONG_MS)
        wait_until(lambda: flushes_of(producer) == 1, "the flush has begun")
        stored(held, first, 2)
        second = held.wait_for(MANY, 2)[1]
        assert not flush.done()
        stored(held, second, 2)
        flush.result(WAIT_S)
        assert future.done()


@pytest.mark.parametrize("way", ["alone", "gathered", "in parts"])
def test_a_future_has_ended_before_it_is_counted_out(
    held: FakeBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """So that what ``flush`` waited for is done when it returns, on whatever thread."""
    ends: list[bool] = []
    messages = [Message(TOPIC, bytes(400)) for _ in range(4)]
    settings = GATHERING if way == "gathered" else {"max_message_size": 1_000}
    with producer_of(held, **settings) as producer:
        window = producer._machine.outbox._window
        for name in ("leave", "leave_together"):
            leave = getattr(window, name)

            def watched(*told: Any, leave: Any = leave) -> None:
                ends.append(future.done())
                leave(*told)

            monkeypatch.setattr(window, name, watched)
        future = producer.send_async(messages if way == "in parts" else messages[0])
        if way == "in parts":
            for number in range(2):
                stored(held, held.wait_for(MANY, number + 1)[number], 2)
        else:
            stored(held, held.wait_for(ONE)[0])
        producer.flush(LONG_MS)
    assert ends == [True]


def test_flush_in_a_callback_waits_for_the_others(held: FakeBroker) -> None:
    """Callbacks run on a thread of their own, which no outcome needs."""
    done: list[object] = []
    with producer_of(held) as producer:

        def callback(_: object) -> None:
            producer.flush(LONG_MS)
            done.append(second.done())

        first = producer.send_async(Message(TOPIC, b"1"), callback=callback)
        second = producer.send_async(Message(TOPIC, b"2"))
        asked = held.wait_for(ONE, 2)
        for each in asked:
            stored(held, each)
        first.result(WAIT_S)
        wait_until(lambda: bool(done), "the callback has flushed")
    assert done == [True]


def test_flush_on_the_network_thread_is_refused(held: FakeBroker) -> None:
    """What flushed there would wait for itself."""
    raised: list[str] = []
    with producer_of(held) as producer:

        async def flush() -> None:
            try:
                producer.flush()
            except ClientStateError as error:
                raised.append(str(error))

        producer._running().engine.run(flush())
    assert "network thread" in raised[0]


@pytest.mark.parametrize("timeout_ms", ["1", float("nan"), True])
def test_a_time_that_is_none_is_refused(held: FakeBroker, timeout_ms: Any) -> None:
    async def scenario() -> None:
        async with aio_producer_of(held) as later:
            await later.flush(timeout_ms)

    with producer_of(held) as producer, pytest.raises(ConfigurationError, match="milliseconds"):
        producer.flush(timeout_ms)
    with pytest.raises(ConfigurationError, match="milliseconds"):
        asyncio.run(scenario())


# --- asyncio --------------------------------------------------------------------------------------


def test_an_awaited_flush_waits_for_tasks_that_were_made_before(held: FakeBroker) -> None:
    """Though none of them has run yet; those made later are not waited for."""

    async def scenario() -> None:
        async with aio_producer_of(held) as producer:
            sends = [asyncio.create_task(producer.send(Message(TOPIC, b"x"))) for _ in range(2)]
            flush = asyncio.create_task(producer.flush(LONG_MS))
            asked = await asyncio.to_thread(held.wait_for, ONE, 2)
            later = asyncio.create_task(producer.send(Message(TOPIC, b"later")))
            (last,) = (await asyncio.to_thread(held.wait_for, ONE, 3))[2:]
            await asyncio.to_thread(stored, held, asked[0])
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            assert not flush.done()
            await asyncio.to_thread(stored, held, asked[1])
            await asyncio.wait_for(flush, WAIT_S)
            assert all(send.done() for send in sends)
            assert not later.done()
            await asyncio.to_thread(stored, held, last)
            await producer.flush()
            await asyncio.wait_for(later, WAIT_S)
        with pytest.raises(ClientStateError, match="SHUTDOWN_ALREADY"):
            await producer.flush()

    asyncio.run(scenario())


def test_an_awaited_flush_says_how_many_are_still_on_their_way(held: FakeBroker) -> None:
    """One whose sender was cancelled counts: its message may be stored yet."""

    async def scenario() -> None:
        async with aio_producer_of(held) as producer:
            sends = [asyncio.create_task(producer.send(Message(TOPIC, b"x"))) for _ in range(3)]
            asked = await asyncio.to_thread(held.wait_for, ONE, 3)
            sends[0].cancel()
            for timeout_ms in (1, 0):
                with pytest.raises(FlushTimeoutError, match="3 messages are still") as raised:
                    await producer.flush(timeout_ms)
                assert raised.value.under_way == 3
            for each in asked:
                await asyncio.to_thread(stored, held, each)
            await producer.flush(LONG_MS)
            assert [send.done() for send in sends] == [True] * 3

    asyncio.run(scenario())


def test_an_awaited_flush_raises_nothing_for_what_failed(held: FakeBroker) -> None:
    """The sends do: whatever way they fail, refused, or before there was anything to send."""
    held.on[ONE] = refusal(ResponseCode.MESSAGE_ILLEGAL)

    async def scenario() -> None:
        async with aio_producer_of(held) as producer:
            ways: list[dict[str, Any]] = [{}, {"selector": lambda *_: 1 / 0}]
            refused = [
                asyncio.create_task(producer.send(Message(TOPIC, b"x"), **way)) for way in ways
            ]
            nowhere = asyncio.create_task(producer.send_oneway(Message("unknown", b"x")))
            several = asyncio.create_task(producer.send([Message("unknown", b"x")]))
            await producer.flush(LONG_MS)
            sends = [*refused, nowhere, several]
            assert all(send.done() for send in sends)
            ends = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(end, SendError | BrokerError) for end in ends), ends
            await producer.flush(0)

    del held.topics["TBW102"]
    asyncio.run(scenario())


def test_an_awaited_flush_sends_what_is_gathered_at_once(held: FakeBroker) -> None:
    """The delay, longer than this test waits, is not waited for."""

    async def scenario() -> None:
        async with aio_producer_of(held, **GATHERING) as producer:
            first = asyncio.create_task(producer.send(Message(TOPIC, b"first")))
            (asked,) = await asyncio.to_thread(held.wait_for, ONE)
            gathered = [asyncio.create_task(producer.send(Message(TOPIC, b"x"))) for _ in range(3)]
            flush = asyncio.create_task(producer.flush(LONG_MS))
            (batch,) = await asyncio.to_thread(held.wait_for, MANY)
            await asyncio.to_thread(stored, held, batch, 3)
            await asyncio.wait_for(asyncio.gather(*gathered), WAIT_S)
            assert not flush.done()
            await asyncio.to_thread(stored, held, asked)
            await asyncio.wait_for(flush, WAIT_S)
            assert first.done()

    asyncio.run(scenario())


def test_an_awaited_flush_waits_for_a_batch_in_parts(held: FakeBroker) -> None:
    """The later part is sent after the flush began."""
    messages = [Message(TOPIC, bytes(400)) for _ in range(4)]

    async def scenario() -> None:
        async with aio_producer_of(held, max_message_size=1_000) as producer:
            send = asyncio.create_task(producer.send(messages))
            (part,) = await asyncio.to_thread(held.wait_for, MANY)
            flush = asyncio.create_task(producer.flush(LONG_MS))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert flushes_of(producer) == 1
            await asyncio.to_thread(stored, held, part, 2)
            part = (await asyncio.to_thread(held.wait_for, MANY, 2))[1]
            assert not flush.done()
            await asyncio.to_thread(stored, held, part, 2)
            await asyncio.wait_for(flush, WAIT_S)
            assert send.done()

    asyncio.run(scenario())


def test_an_awaited_flush_waits_for_what_a_cancelled_send_many_has_under_way(
    held: FakeBroker,
) -> None:
    async def scenario() -> None:
        async with aio_producer_of(held) as producer:
            send = asyncio.create_task(producer.send_many(TOPIC, [b"x"] * 3))
            (part,) = await asyncio.to_thread(held.wait_for, MANY)
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
            flush = asyncio.create_task(producer.flush(LONG_MS))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not flush.done()
            assert flushes_of(producer) == 1
            await asyncio.to_thread(stored, held, part, 3)
            await asyncio.wait_for(flush, WAIT_S)

    asyncio.run(scenario())


# --- the counting ---------------------------------------------------------------------------------


def test_only_the_last_end_before_a_flush_may_be_its_end() -> None:
    """Whoever is told looks at every flush, so that is not said for each message."""
    counted = Begun()
    assert not counted.waits
    assert counted.flush(2) == 1
    assert [counted.ended(1), counted.ended(0), counted.ended(0)] == [False, False, True]
    assert not counted.waits


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "flush"]), st.integers(0, 99))))
def test_each_flush_counts_what_began_before_it(steps: list[tuple[str, int]]) -> None:
    """Against sets: whatever ends in whatever order, between however many flushes."""
    counted = Begun()
    under_way: list[tuple[int, int]] = []  # number, and what the counting said
    flushes: list[tuple[int, set[int]]] = []
    for number, (step, which) in enumerate(steps):
        if step == "begin":
            under_way.append((number, counted.now))
        elif step == "flush":
            flushes.append((counted.flush(len(under_way)), {each for each, _ in under_way}))
        elif under_way:
            ended, begun = under_way.pop(which % len(under_way))
            told = counted.waits and counted.ended(begun)
            lefts = [waited_for & {each for each, _ in under_way} for _, waited_for in flushes]
            for (_, waited_for), left in zip(flushes, lefts, strict=True):
                assert left or ended not in waited_for or told
        for flush, waited_for in flushes:
            assert counted.left(flush) == len(waited_for & {each for each, _ in under_way})

"""``wait`` of push consumers: until all of the consumer has ended, and Ctrl-C ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, MessageExt, PushConsumer, aio
from rocketstream._util import waiting
from rocketstream._util.waiting import Latch, wait_until
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.protocol.codes import RequestCode
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LONG_MS = int(WAIT_S) * 1000


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.offsets[0] = 0
        yield broker


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def consumer_of(broker: FakeBroker, listener: Any = lambda _: SUCCESS) -> PushConsumer:
    return PushConsumer(
        GROUP, namesrv_addr=broker.address, subscription={TOPIC: "*"}, listener=listener
    )


@contextmanager
def handling(number: int, handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def sent_once_waiting(consumer: PushConsumer, number: int) -> Iterator[None]:
    """Send this process a signal once its main thread waits for the consumer."""
    reached = threading.Event()
    wait = consumer._ended.wait

    def watched(timeout_ms: float | None) -> bool:
        reached.set()
        return wait(timeout_ms)

    consumer._ended.wait = watched  # type: ignore[method-assign]

    def send() -> None:
        assert reached.wait(WAIT_S)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_wait_returns_when_another_thread_has_shut_the_consumer_down(
    broker: FakeBroker, pool: ThreadPoolExecutor
) -> None:
    """All of it: while a listener still runs the offset is not stored, and the program goes on."""
    entered, leave = threading.Event(), threading.Event()

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        entered.set()
        assert leave.wait(WAIT_S)
        return SUCCESS

    def first_only(command: Any) -> Any:
        return found([0]) if command.ext_fields["queueOffset"] == "0" else None

    broker.on[RequestCode.PULL_MESSAGE] = first_only
    consumer = consumer_of(broker, listener)
    consumer.start()
    assert entered.wait(WAIT_S)
    assert not consumer.wait(1)
    waiters = [pool.submit(consumer.wait) for _ in range(2)]
    ending = threading.Thread(target=consumer.shutdown)
    ending.start()
    broker.wait_for(RequestCode.PULL_MESSAGE)
    assert not consumer.wait(1)
    assert not any(waiter.done() for waiter in waiters)
    leave.set()
    assert consumer.wait(LONG_MS)
    assert broker.asked(RequestCode.UNREGISTER_CLIENT)
    assert [waiter.result(WAIT_S) for waiter in waiters] == [True, True]
    ending.join()
    assert consumer.wait()


def test_ctrl_c_ends_the_wait_at_once(broker: FakeBroker) -> None:
    """And leaving the block shuts the consumer down."""
    consumer = consumer_of(broker)

    def program() -> None:
        with consumer, sent_once_waiting(consumer, signal.SIGINT):
            consumer.wait()

    with handling(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        program()
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY
    assert consumer.wait(0)


def test_a_signal_handler_may_shut_the_consumer_down(broker: FakeBroker) -> None:
    """It runs in the middle of the wait, on the thread that waits."""
    with consumer_of(broker) as consumer:
        with (
            handling(signal.SIGUSR1, lambda *_: consumer.shutdown()),
            sent_once_waiting(consumer, signal.SIGUSR1),
        ):
            assert consumer.wait()
        assert broker.asked(RequestCode.UNREGISTER_CLIENT)


def test_wait_needs_a_consumer_that_was_started(broker: FakeBroker) -> None:
    """It would be for ever."""
    with pytest.raises(ClientStateError, match="call start"):
        consumer_of(broker).wait()
    with pytest.raises(ConfigurationError, match="number of milliseconds"):
        consumer_of(broker).wait("1")  # type: ignore[arg-type]

    async def scenario() -> None:
        with pytest.raises(ClientStateError, match="call start"):
            await aio.PushConsumer(GROUP, namesrv_addr=broker.address).wait()
        with pytest.raises(ConfigurationError, match="number of milliseconds"):
            await aio.PushConsumer(GROUP, namesrv_addr=broker.address).wait(True)

    asyncio.run(scenario())


def test_wait_on_the_network_thread_is_refused(broker: FakeBroker) -> None:
    """Nothing would move any more."""
    with consumer_of(broker) as consumer:
        engine = consumer._running().engine

        async def there() -> None:
            with pytest.raises(ClientStateError, match="network thread"):
                consumer.wait()

        engine.run(there())


def test_an_awaited_wait_returns_when_the_consumer_has_been_shut_down(broker: FakeBroker) -> None:
    """By whichever task; cancelled, as Ctrl-C does, it raises, and the block shuts down."""

    async def scenario() -> None:
        first, second = (
            aio.PushConsumer(
                GROUP,
                namesrv_addr=broker.address,
                subscription={TOPIC: "*"},
                listener=lambda _: SUCCESS,
            )
            for _ in range(2)
        )
        async with first:
            assert not await first.wait(1)
            waiter = asyncio.create_task(first.wait())
            await first.shutdown()
            assert await asyncio.wait_for(waiter, WAIT_S)
            assert await first.wait(0)

        async def program() -> None:
            async with second:
                asyncio.get_running_loop().call_soon(running.cancel)
                await second.wait()

        running = asyncio.create_task(program())
        with pytest.raises(asyncio.CancelledError):
            await running
        assert second.state is ServiceState.SHUTDOWN_ALREADY

    asyncio.run(scenario())


# --- what waits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_s", [threading.TIMEOUT_MAX, 0.001])
def test_slices_end_no_wait_before_its_time(
    monkeypatch: pytest.MonkeyPatch, slice_s: float, pool: ThreadPoolExecutor
) -> None:
    """Windows needs them: a thread that waits hears of Ctrl-C when its wait is over."""
    monkeypatch.setattr(waiting, "_SLICE_S", slice_s)
    latch, changed, done = Latch(), threading.Condition(), threading.Event()
    assert not latch.wait(5)
    latched = [pool.submit(latch.wait, None) for _ in range(2)]
    latch.open()
    assert all(each.result(WAIT_S) for each in latched)
    assert latch.wait(0)
    with changed:
        assert not wait_until(changed, done.is_set, 5)

    def notified() -> bool:
        with changed:
            return wait_until(changed, done.is_set, None)

    notice = pool.submit(notified)
    with changed:
        done.set()
        changed.notify_all()
    assert notice.result(WAIT_S)

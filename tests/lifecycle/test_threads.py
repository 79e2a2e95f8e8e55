"""Clients used from many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import ClientConfig, Message, Producer, PushConsumer
from rocketstream._util.executors import CallbackExecutor
from rocketstream.client.instance import engine as engines
from rocketstream.errors import ClientStateError
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker
from tests.kits.listeners import Seen

THREADS = 8


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(queues=4) as running:
        running.offsets.update(dict.fromkeys(range(4), 0))
        yield running


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run ``work(number)`` on threads that begin at once; return results, errors included."""
    barrier = threading.Barrier(threads)
    results: list[Any] = [None] * threads

    def run(number: int) -> None:
        barrier.wait(WAIT_S)
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return results


def _without_number(call: Callable[[], object]) -> Callable[[int], object]:
    return lambda _: call()


def test_one_of_many_starts_wins_and_every_shutdown_returns(broker: FakeBroker) -> None:
    """Covers C-106, C-107: the others are told the state."""
    consumer = PushConsumer(GROUP, namesrv_addr=broker.address, listener=Seen())
    consumer.subscribe(TOPIC)
    clients: list[Producer | PushConsumer] = [
        consumer,
        Producer("p", namesrv_addr=broker.address),
    ]
    for made in clients:
        results = together(_without_number(made.start))
        assert results.count(None) == 1
        assert sum(isinstance(each, ClientStateError) for each in results) == THREADS - 1
        assert together(_without_number(made.shutdown)) == [None] * THREADS
    assert not engines._engines


def test_clients_of_one_id_may_come_and_go_on_many_threads(broker: FakeBroker) -> None:
    """Covers C-127, C-132: whoever is last closes the instance, nobody is left without one."""
    config = ClientConfig(namesrv_addr=broker.address, instance_name="shared")

    def work(number: int) -> None:
        for turn in range(5):
            with Producer(f"p{number}-{turn}", config=config) as producer:
                producer.send(Message(TOPIC, b"x"))

    assert together(work) == [None] * THREADS
    assert not engines._engines


def test_a_producer_serves_many_threads(broker: FakeBroker) -> None:
    with Producer("p", namesrv_addr=broker.address) as producer:

        def work(number: int) -> int:
            for _ in range(20):
                producer.send(Message(TOPIC, b"x"))
                producer.send_async(Message(TOPIC, b"y")).result(WAIT_S)
            return number

        assert together(work) == list(range(THREADS))


def test_a_consumer_may_be_told_from_many_threads(broker: FakeBroker) -> None:
    """Covers C-103, C-104, C-151."""
    made = PushConsumer(GROUP, namesrv_addr=broker.address, listener=Seen())
    made.subscribe(TOPIC)
    with made:

        def work(number: int) -> None:
            for turn in range(5):
                made.suspend()
                made.subscribe(f"T{number}", f"tag{turn}")
                made.resume()
                made.assigned_queues()
                made.unsubscribe(f"T{number}")

        assert together(work) == [None] * THREADS
        broker.wait_pull(0)


# --- the callback threads -------------------------------------------------------------------------


def test_callbacks_run_on_few_threads_and_give_results_and_errors() -> None:
    """Covers C-4: never more threads than allowed, none before it is needed."""
    executor = CallbackExecutor(3, "rocketstream-test-callback")
    assert not executor._threads
    futures = [executor.submit(divmod, number, 7) for number in range(50)]
    assert [future.result(WAIT_S) for future in futures] == [divmod(n, 7) for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(WAIT_S)
    assert executor.submit(threading.current_thread).result(WAIT_S).daemon
    assert 1 <= len(executor._threads) <= 3
    executor.close()
    executor.join(WAIT_S)
    assert not any(thread.is_alive() for thread in executor._threads)
    with pytest.raises(ClientStateError, match="shut down"):
        executor.submit(print)


def test_a_callback_that_hangs_does_not_keep_the_client_from_ending() -> None:
    """Covers C-4."""
    leave = threading.Event()
    executor = CallbackExecutor(2, "rocketstream-test-hanging")
    hanging = executor.submit(leave.wait, WAIT_S)
    assert executor.submit(lambda: 1).result(WAIT_S) == 1
    executor.close()
    executor.join(0.01)
    assert not hanging.done()
    leave.set()
    executor.join(WAIT_S)


def test_a_callback_thread_that_cannot_start_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system may have no thread left for a moment; one that there is does the work."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    executor = CallbackExecutor(2, "rocketstream-test-refused")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            executor.submit(print)
    assert executor.submit(lambda: 1).result(WAIT_S) == 1
    leave = threading.Event()
    held = executor.submit(leave.wait, WAIT_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        waiting = executor.submit(lambda: 2)
    assert executor.submit(lambda: 3).result(WAIT_S) == 3
    assert waiting.result(WAIT_S) == 2
    leave.set()
    assert held.result(WAIT_S)
    executor.close()
    executor.join(WAIT_S)
    assert not any(thread.is_alive() for thread in executor._threads)

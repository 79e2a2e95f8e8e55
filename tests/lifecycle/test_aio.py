"""What only the asyncio face has: cancellation, and plain functions beside coroutines.

Law: what both faces do is in the other modules, whose cases run on both.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    aio,
)
from rocketstream.client.consumer.consume import concurrent
from tests.kits.cluster import Cluster
from tests.kits.listeners import SUCCESS, WAIT_S, Seen, numbered
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.mark.parametrize("tasks", [1, 20])
def test_a_coroutine_left_running_is_cancelled_and_its_message_not_committed(
    cluster: Cluster, names: Names, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-120, C-121: what was consumed before it is, whoever did."""
    monkeypatch.setattr(concurrent, "FLUSH_INTERVAL_MS", 60_000)
    cluster.create_topic(names.topic, 1)

    async def scenario() -> None:
        entered = asyncio.Event()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            if messages[0].body == b"2":
                entered.set()
                await asyncio.Event().wait()
            return SUCCESS

        async with aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
            await producer.send(numbered(names.topic, range(4)))
        async with aio.PushConsumer(
            names.group, namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST,
            listener=listener, consume_thread_min=1, consume_thread_max=tasks,
        subscription={names.topic: "*"}) as consumer:  # fmt: skip
            async with asyncio.timeout(WAIT_S):
                await entered.wait()
            await consumer.shutdown(await_ms=0)

    asyncio.run(scenario())
    assert cluster.committed(names.group, names.topic, 1) == [2]


def test_a_plain_function_listens_on_worker_threads(cluster: Cluster, names: Names) -> None:
    """The asyncio consumer takes ordinary listeners too."""
    cluster.create_topic(names.topic, 2)
    seen = Seen()

    async def scenario() -> None:
        async with (
            aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
            aio.PushConsumer(
                names.group,
                namesrv_addr=cluster.namesrv_addr,
                consume_from_where=FIRST,
                listener=seen,
                subscription={names.topic: "*"},
            ),
        ):
            await producer.send(numbered(names.topic, range(30)))
            await asyncio.to_thread(seen.wait_consumed, 30)

    asyncio.run(scenario())
    assert sorted(map(int, seen.bodies)) == list(range(30))


def test_a_call_of_a_plain_listener_to_its_consumer_is_carried_out_on_the_loop(
    cluster: Cluster, names: Names
) -> None:
    """It is made on a worker thread, where nothing of a loop may be touched."""
    cluster.create_topic(names.topic, 1)

    async def scenario() -> tuple[int, int]:
        resumed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asked: list[int] = []

        def listener(_: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            asked.append(threading.get_ident())
            consumer.resume()
            return SUCCESS

        consumer = aio.PushConsumer(
            names.group,
            namesrv_addr=cluster.namesrv_addr,
            consume_from_where=FIRST,
            listener=listener,
            subscription={names.topic: "*"},
        )
        async with aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer, consumer:
            machine = consumer._machine
            machine.resume = lambda: resumed.set_result(threading.get_ident())  # type: ignore[method-assign]
            await producer.send(Message(names.topic, b"x"))
            carried_out = await asyncio.wait_for(resumed, WAIT_S)
            return asked[0], carried_out

    calling, carrying_out = asyncio.run(scenario())
    assert (calling != threading.get_ident(), carrying_out) == (True, threading.get_ident())


def test_a_call_that_runs_at_ctrl_c_is_finished_and_counts(cluster: Cluster, names: Names) -> None:
    """Covers C-120: ``asyncio.run`` cancels the task whose block then ends the consumer."""
    cluster.create_topic(names.topic, 1)
    finished: list[bytes] = []

    async def scenario() -> None:
        entered, gate = asyncio.Event(), asyncio.Event()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            entered.set()
            await gate.wait()
            finished.append(messages[0].body)
            return SUCCESS

        consumer = aio.PushConsumer(
            names.group,
            namesrv_addr=cluster.namesrv_addr,
            consume_from_where=FIRST,
            listener=listener,
            subscription={names.topic: "*"},
        )

        async def program() -> None:
            async with consumer:
                pools.append(consumer._machine.service._pool)
                await consumer.wait()

        pools: list[Any] = []
        async with aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
            await producer.send(Message(names.topic, b"x"))
        running = asyncio.create_task(program())
        await asyncio.wait_for(entered.wait(), WAIT_S)
        running.cancel()
        await asyncio.to_thread(wait_until, lambda: pools[0].stopping, "the end")
        for _ in range(20):  # so much later it has cancelled what it does not wait for
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert finished == [b"x"]
    assert cluster.committed(names.group, names.topic, 1) == [1]

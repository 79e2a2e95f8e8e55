"""The asyncio face: the same behaviour on the caller's own loop."""

from __future__ import annotations

import asyncio

import pytest

from rocketstream import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    SendStatus,
    aio,
)
from rocketstream.errors import ClientStateError, ConnectError, RouteNotFoundError, SendError
from tests.behaviour.cluster import Cluster
from tests.behaviour.conftest import Names
from tests.behaviour.support import LATER, SUCCESS, WAIT_S, Seen, numbered

FIRST = ConsumeFromWhere.FIRST_OFFSET


def raising(queues: object, message: object, arg: object) -> MessageQueue:
    raise LookupError("no queue for it")


class AsyncSeen:
    """A coroutine listener that remembers."""

    def __init__(self, fails_once: bool = False) -> None:
        self.changed = asyncio.Condition()
        self.consumed: list[MessageExt] = []
        self.running = self.most_running = 0
        self._fails_once = fails_once

    async def __call__(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        async with self.changed:
            self.running -= 1
            if self._fails_once and messages[0].reconsume_times == 0:
                return LATER
            self.consumed += messages
            self.changed.notify_all()
        return SUCCESS

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: len({m.msg_id for m in self.consumed}) >= count)


@pytest.mark.parametrize("fails_once", [False, True])
def test_send_and_consume_on_one_loop(cluster: Cluster, names: Names, fails_once: bool) -> None:
    """Everything arrives, retried or not, and the offsets are committed."""
    cluster.create_topic(names.topic, 4)

    async def scenario() -> list[str]:
        seen = AsyncSeen(fails_once)
        async with (
            aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
            aio.PushConsumer(
                names.group,
                namesrv_addr=cluster.namesrv_addr,
                consume_from_where=FIRST,
                listener=seen,
                subscription={names.topic: "*"},
            ) as consumer,
        ):
            results = await asyncio.gather(
                *(producer.send(message) for message in numbered(names.topic, range(200)))
            )
            assert {result.send_status for result in results} == {SendStatus.SEND_OK}
            await seen.wait(200)
            assert len([mq for mq in consumer.assigned_queues() if mq.topic == names.topic]) == 4
        return [m.body.decode() for m in seen.consumed]

    assert sorted(map(int, asyncio.run(scenario()))) == list(range(200))
    assert cluster.committed(names.group, names.topic, 4) == cluster.ends(names.topic, 4)


def test_coroutine_listeners_wait_in_parallel_up_to_the_bound(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-254: at most ``consume_thread_max`` calls at once, and that many if they wait."""
    cluster.create_topic(names.topic, 1)

    async def scenario() -> None:
        running = 0
        full = asyncio.Event()
        most = 0

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 5:
                full.set()
            await full.wait()
            running -= 1
            return SUCCESS

        async with (
            aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
            aio.PushConsumer(
                names.group,
                namesrv_addr=cluster.namesrv_addr,
                consume_from_where=FIRST,
                subscription={names.topic: "*"},
                listener=listener,
                consume_thread_min=1,
                consume_thread_max=5,
            ),
        ):
            await producer.send(numbered(names.topic, range(20)))
            async with asyncio.timeout(WAIT_S):
                await full.wait()
        assert most == 5

    asyncio.run(scenario())


def test_a_coroutine_left_running_is_cancelled_and_its_message_not_committed(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-120, C-121."""
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
            listener=listener,
        subscription={names.topic: "*"}) as consumer:  # fmt: skip
            async with asyncio.timeout(WAIT_S):
                await entered.wait()
            await consumer.shutdown(await_ms=0)

    asyncio.run(scenario())
    assert cluster.committed(names.group, names.topic, 1) == [2]


def test_a_coroutine_may_shut_its_own_consumer_down(cluster: Cluster, names: Names) -> None:
    """Covers C-119: it does not wait for itself."""
    cluster.create_topic(names.topic, 1)

    async def scenario() -> None:
        done = asyncio.Event()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            await consumer.shutdown()
            done.set()
            return SUCCESS

        async with aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
            await producer.send(Message(names.topic, b"x"))
        consumer = aio.PushConsumer(
            names.group, namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST,
            listener=listener,
        )  # fmt: skip
        await consumer.subscribe(names.topic)
        await consumer.start()
        async with asyncio.timeout(WAIT_S):
            await done.wait()

    asyncio.run(scenario())
    assert cluster.committed(names.group, names.topic, 1) == [0]


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


def test_every_form_of_send(cluster: Cluster, names: Names) -> None:
    """Keys, queues, selectors, batches, one-way: as the sync producer."""
    cluster.create_topic(names.topic, 4)

    async def scenario() -> None:
        async with aio.Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
            queues = await producer.fetch_publish_message_queues(names.topic)
            message = Message(names.topic, b"x")
            assert (await producer.send(message, message_queue=queues[1])).message_queue == queues[
                1
            ]
            keyed = await producer.send(message, sharding_key="k")
            assert keyed.message_queue == await producer.queue_of(names.topic, "k")
            picked = await producer.send(message, selector=lambda mqs, m, arg: mqs[arg], arg=2)
            assert picked.message_queue == queues[2]
            big = [Message(names.topic, b"x" * 1_500_000) for _ in range(4)]
            assert len(await producer.send_batch(big)) == 2
            await producer.send_oneway(message)
            with pytest.raises(SendError, match="select message queue threw"):
                await producer.send(message, selector=raising)

    asyncio.run(scenario())


def test_errors_are_those_of_the_sync_face(
    cluster: Cluster, names: Names, closed_port: int
) -> None:
    """Covers C-109, C-457, C-458."""

    async def scenario() -> None:
        producer = aio.Producer(
            "pg", namesrv_addr=cluster.namesrv_addr, create_topic_key="NoSuchTemplate"
        )
        with pytest.raises(ClientStateError, match="CREATE_JUST"):
            await producer.send(Message("T", b"x"))
        async with producer:
            with pytest.raises(RouteNotFoundError):
                await producer.send(Message(names.topic, b"x"))
        lost = aio.PushConsumer(
            names.group, namesrv_addr=f"127.0.0.1:{closed_port}", listener=AsyncSeen()
        )
        await lost.subscribe(names.topic)
        with pytest.raises(ConnectError, match=str(closed_port)):
            await lost.start()

    asyncio.run(scenario())

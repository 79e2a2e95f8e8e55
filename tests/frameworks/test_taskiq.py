"""The Taskiq broker: a task is consumed once Taskiq acknowledges it, and comes again otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq import SimpleRetryMiddleware
from taskiq.acks import AckableMessage, AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError
from taskiq.message import BrokerMessage

from rocketstream.client.config import ClientConfig
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.frameworks.taskiq import DELAY_LEVELS_S, RocketMQBroker
from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS
from tests.behaviour.cluster import Cluster
from tests.frameworks.seen import WAIT_S, Seen, committed


def workers(topic: str) -> str:
    """Return the group of a topic's workers."""
    return f"{topic}-workers"


def made(cluster: Cluster, topic: str, **settings: Any) -> RocketMQBroker:
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    return RocketMQBroker(topic, config=config, **settings)


@asynccontextmanager
async def working(broker: RocketMQBroker, **receiver: Any) -> AsyncIterator[None]:
    """Run Taskiq's own receiver beside the test; cancelled at the end."""
    await broker.startup()
    receiver.setdefault("max_async_tasks", 10)
    task = asyncio.create_task(run_receiver_task(broker, **receiver))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker.shutdown()


async def taken(broker: RocketMQBroker, count: int) -> list[AckableMessage]:
    """Take deliveries as Taskiq's receiver does, without acknowledging any."""
    found: list[AckableMessage] = []
    listening = broker.listen()
    async with asyncio.timeout(WAIT_S):
        async for delivery in listening:
            assert isinstance(delivery, AckableMessage)
            found.append(delivery)
            if len(found) == count:
                break
    await listening.aclose()
    return found


def test_every_task_is_done_and_its_message_consumed(cluster: Cluster, topic: str) -> None:
    async def scenario() -> list[int]:
        broker, done = made(cluster, topic), Seen()

        @broker.task
        async def double(number: int) -> None:
            await done.add(2 * number)

        async with working(broker):
            for number in range(50):
                await double.kiq(number)
            results = await done.wait(50)
            await committed(cluster, workers(topic), topic, 50)
        return results

    assert sorted(asyncio.run(scenario())) == [2 * number for number in range(50)]


def test_tasks_kicked_before_the_first_worker_are_done(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        client = made(cluster, topic)
        await client.startup()
        await client.kick(_message(b"early"))
        await client.shutdown()
        worker = made(cluster, topic)
        await worker.startup()
        try:
            assert [found.data for found in await taken(worker, 1)] == [b"early"]
        finally:
            await worker.shutdown()

    asyncio.run(scenario())


def _message(body: bytes, **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id=f"id-{body!r}", task_name="any", message=body, labels=labels)


def test_no_offset_passes_a_task_that_is_not_acknowledged(cluster: Cluster, topic: str) -> None:
    """A worker that dies with it leaves it to others, however many were done behind it."""

    async def scenario() -> None:
        broker = made(cluster, topic)
        await broker.startup()
        for number in range(20):
            await broker.kick(_message(b"%d" % number))
        deliveries = await taken(broker, 20)
        kept = next(found for found in deliveries if found.data == b"0")
        for found in deliveries:
            if found is not kept:
                await _ack(found)
        await committed(
            cluster, workers(topic), topic, 10
        )  # the other queue's, and nothing of this one's
        for number in (20, 21):
            await broker.kick(_message(b"%d" % number))
        for found in await taken(broker, 2):
            await _ack(found)
        await committed(
            cluster, workers(topic), topic, 11
        )  # later, and still nothing of this one's
        await _ack(kept)
        await committed(cluster, workers(topic), topic, 22)
        await broker.shutdown()

    asyncio.run(scenario())


async def _ack(found: AckableMessage) -> None:
    answer = found.ack()
    assert answer is None


def test_a_worker_that_ends_gives_back_what_it_did_not_do(cluster: Cluster, topic: str) -> None:
    """And only that: what was acknowledged behind it does not come again."""

    async def scenario() -> None:
        first = made(cluster, topic)
        await first.startup()
        for number in range(20):
            await first.kick(_message(b"%d" % number))
        deliveries = await taken(first, 20)
        for found in deliveries:
            if found.data not in (b"0", b"7"):
                await _ack(found)
        await first.shutdown()
        second = made(cluster, topic)
        await second.startup()
        try:
            for number in range(20, 24):
                await second.kick(_message(b"%d" % number))
            bodies = sorted(int(found.data) for found in await taken(second, 6))
        finally:
            await second.shutdown()
        assert bodies == [0, 7, 20, 21, 22, 23]

    asyncio.run(scenario())


def test_a_task_that_is_not_acknowledged_in_time_comes_again(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = made(cluster, topic, ack_limit_s=0.2)
        await broker.startup()
        try:
            await broker.kick(_message(b"forgotten"))
            deliveries = await taken(broker, 2)
            assert [found.data for found in deliveries] == [b"forgotten", b"forgotten"]
            await _ack(deliveries[0])  # too late: it changes nothing
        finally:
            await broker.shutdown()

    asyncio.run(scenario())
    assert "was not acknowledged within 0.2 s and comes again" in caplog.text


def test_a_worker_holds_no_more_than_it_may(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker = made(cluster, topic, max_unacked=3)
        await broker.startup()
        try:
            for number in range(10):
                await broker.kick(_message(b"%d" % number))
            held = await taken(broker, 3)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(aiter(broker.listen()))
            await _ack(held[0])
            await taken(broker, 1)
        finally:
            await broker.shutdown()

    asyncio.run(scenario())


def test_a_failed_task_is_retried_by_taskiqs_middleware(cluster: Cluster, topic: str) -> None:
    async def scenario() -> list[int]:
        broker, tries = made(cluster, topic), Seen()
        broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))

        @broker.task(retry_on_error=True, delay=0.05)
        async def fails() -> None:
            await tries.add(len(tries.items))
            raise LookupError("always")

        async with working(broker):
            await fails.kiq()
            found = await tries.wait(3)
            # All three are consumed, at the first, by middleware, or from the delay topic.
            await committed(cluster, workers(topic), topic, 3)
        return found

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_a_task_may_be_acknowledged_when_it_is_received(cluster: Cluster, topic: str) -> None:
    """Taskiq's own choice of the moment is kept: here at most once."""

    async def scenario() -> None:
        broker, begun = made(cluster, topic), Seen()
        never = asyncio.Event()

        @broker.task
        async def hangs() -> None:
            await begun.add(None)
            await never.wait()

        async with working(broker, ack_time=AcknowledgeType.WHEN_RECEIVED):
            await hangs.kiq()
            await begun.wait(1)
            await committed(cluster, workers(topic), topic, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("labels", "level"),
    [
        ({}, 0),
        ({"delay": 0}, 0),
        ({"delay": "0.5"}, 1),
        ({"delay": 1}, 1),
        ({"delay": 1.5}, 2),
        ({"delay": 7200}, 18),
        ({"delay_level": 4, "delay": 7200}, 4),
    ],
)
def test_a_delay_is_rounded_up_to_a_level(labels: dict[str, Any], level: int) -> None:
    """A task may begin late, never early."""
    assert RocketMQBroker()._delay_level(labels) == level


def test_a_delay_no_level_reaches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than the longest of the brokers, 7200 s"):
        RocketMQBroker()._delay_level({"delay": 7201})


def test_the_delay_levels_are_the_brokers_own() -> None:
    units = {"s": 1, "m": 60, "h": 3600}
    told = [int(word[:-1]) * units[word[-1]] for word in DEFAULT_DELAY_LEVELS.split()]
    assert list(DELAY_LEVELS_S) == told


def test_a_broker_that_is_not_started_says_so() -> None:
    async def scenario() -> None:
        broker = RocketMQBroker()

        @broker.task
        async def any_task() -> None:
            return

        with pytest.raises(SendTaskError) as raised:
            await any_task.kiq()
        assert isinstance(raised.value.__cause__, ClientStateError)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_unacked", 0),
        ("max_unacked", 1001),
        ("max_unacked", "5"),
        ("max_unacked", True),
        ("ack_limit_s", 0),
        ("ack_limit_s", -1),
        ("ack_limit_s", "5"),
        ("ack_limit_s", None),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_given(name: str, value: Any) -> None:
    """Not when a worker begins."""
    with pytest.raises(ConfigurationError, match=f"^{name} must be "):
        RocketMQBroker("tasks", namesrv_addr="127.0.0.1:1", **{name: value})

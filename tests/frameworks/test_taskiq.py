"""The Taskiq broker: a task is consumed once Taskiq acknowledges it, and comes again otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from taskiq import SimpleRetryMiddleware
from taskiq.acks import AckableMessage, AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError
from taskiq.formatters.json_formatter import JSONFormatter
from taskiq.message import BrokerMessage, TaskiqMessage

from rocketstream import ClientConfig
from rocketstream.errors import ClientStateError, ConfigurationError, SendError, SendOutcome
from rocketstream.frameworks.taskiq import DELAY_LEVELS_S, RocketMQBroker
from rocketstream.model import Message, MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS
from tests.frameworks.faststream_support import dead, sent_by_hand, stored
from tests.frameworks.seen import WAIT_S, Seen, committed, until
from tests.kits.client.fake_broker import TOPIC, FakeBroker, stored_as
from tests.kits.cluster import Cluster


def workers(topic: str) -> str:
    """Return the group of a topic's workers."""
    return f"{topic}-workers"


def made(cluster: Cluster, topic: str, **settings: Any) -> RocketMQBroker:
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    return RocketMQBroker(topic, config=config, **settings)


@asynccontextmanager
async def started(broker: RocketMQBroker) -> AsyncIterator[RocketMQBroker]:
    """Start a broker; shut down also where the test fails."""
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: RocketMQBroker, **receiver: Any) -> AsyncIterator[None]:
    """Run Taskiq's own receiver beside the test; cancelled at the end."""
    async with started(broker):
        receiver.setdefault("max_async_tasks", 10)
        task = asyncio.create_task(run_receiver_task(broker, **receiver))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


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
        async with started(made(cluster, topic)) as client:
            await client.kick(_message("early"))
        async with started(made(cluster, topic)) as worker:
            assert [_name(found) for found in await taken(worker, 1)] == ["early"]

    asyncio.run(scenario())


def _message(name: str) -> BrokerMessage:
    """Return a task that is told from others by its name: a worker takes nothing that is none."""
    task = TaskiqMessage(task_id=f"id-{name}", task_name=name, labels={}, args=[], kwargs={})
    return JSONFormatter().dumps(task)


def _name(found: AckableMessage) -> str:
    return JSONFormatter().loads(found.data).task_name


def test_no_offset_passes_a_task_that_is_not_acknowledged(cluster: Cluster, topic: str) -> None:
    """A worker that dies with it leaves it to others, however many were done behind it."""

    async def scenario() -> None:
        async with started(made(cluster, topic)) as broker:
            for number in range(20):
                await broker.kick(_message(f"{number}"))
            deliveries = await taken(broker, 20)
            kept = next(found for found in deliveries if _name(found) == "0")
            for found in deliveries:
                if found is not kept:
                    await _ack(found)
            # The other queue's, and nothing of this one's.
            await committed(cluster, workers(topic), topic, 10)
            for number in (20, 21):
                await broker.kick(_message(f"{number}"))
            for found in await taken(broker, 2):
                await _ack(found)
            # Later, and still nothing of this one's.
            await committed(cluster, workers(topic), topic, 11)
            await _ack(kept)
            await committed(cluster, workers(topic), topic, 22)

    asyncio.run(scenario())


async def _ack(found: AckableMessage) -> None:
    answer = found.ack()
    assert answer is None


def test_a_worker_that_ends_gives_back_what_it_did_not_do(cluster: Cluster, topic: str) -> None:
    """And only that: what was acknowledged behind it does not come again."""

    async def scenario() -> None:
        async with started(made(cluster, topic)) as first:
            for number in range(20):
                await first.kick(_message(f"{number}"))
            for found in await taken(first, 20):
                if _name(found) not in ("0", "7"):
                    await _ack(found)
        async with started(made(cluster, topic)) as second:
            for number in range(20, 24):
                await second.kick(_message(f"{number}"))
            names = sorted(int(_name(found)) for found in await taken(second, 6))
        assert names == [0, 7, 20, 21, 22, 23]

    asyncio.run(scenario())


def test_a_worker_that_ends_leaves_what_it_did_not_begin_untried(
    cluster: Cluster, topic: str
) -> None:
    """Sent back each time a worker ends, a task that waits long would become a dead letter."""

    async def scenario() -> None:
        async with started(made(cluster, topic)) as first:
            for number in range(20):
                await first.kick(_message(f"{number}"))
            (begun,) = await taken(first, 1)
        async with started(made(cluster, topic)) as second:
            names = sorted(int(_name(found)) for found in await taken(second, 20))
            retried = await asyncio.to_thread(stored, cluster, f"%RETRY%{workers(topic)}")
        assert names == list(range(20))
        assert [message.body for message in retried] == [begun.data]

    asyncio.run(scenario())


def test_tasks_that_wait_in_a_queue_that_moves_are_done_by_its_new_worker_alone(
    cluster: Cluster, topic: str
) -> None:
    async def scenario() -> None:
        async with started(made(cluster, topic)) as first, started(made(cluster, topic)) as second:
            for number in range(20):
                await first.kick(_message(f"{number}"))
            (begun,) = await taken(first, 1)
            others = {_name(found) for found in await taken(second, 9)}
            await until(lambda: len(_queues(first, topic)) == 1)
            moved = others | {_name(found) for found in await _at_hand(second)}
            kept = {_name(found) for found in await _at_hand(first)}
            assert not kept & moved
            assert len(kept | moved | {_name(begun)}) == 20

    asyncio.run(scenario())


def _queues(broker: RocketMQBroker, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic a worker has now."""
    assert broker._intake is not None
    return [mq for mq in broker._intake._consumer.assigned_queues() if mq.topic == topic]


async def _at_hand(broker: RocketMQBroker) -> list[AckableMessage]:
    """Take whatever is there; nothing more comes for a moment."""
    found: list[AckableMessage] = []
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.3):
                found += await taken(broker, 1)
    return found


def test_a_task_that_is_not_acknowledged_in_time_comes_again(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with started(made(cluster, topic, ack_limit_s=0.2)) as broker:
            await broker.kick(_message("forgotten"))
            deliveries = await taken(broker, 2)
            assert [_name(found) for found in deliveries] == ["forgotten", "forgotten"]
            await _ack(deliveries[0])  # too late: it changes nothing

    asyncio.run(scenario())
    assert "was not acknowledged within 0.2 s and comes again" in caplog.text


def test_a_worker_holds_no_more_than_it_may(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        async with started(made(cluster, topic, max_unacked=3)) as broker:
            for number in range(10):
                await broker.kick(_message(f"{number}"))
            held = await taken(broker, 3)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(aiter(broker.listen()))
            await _ack(held[0])
            await taken(broker, 1)

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


@pytest.mark.parametrize("delay", ["soon", float("nan"), [1]])
def test_a_delay_that_is_not_a_number_is_refused(delay: Any) -> None:
    with pytest.raises(ConfigurationError, match="the label delay must be a number, not "):
        RocketMQBroker()._delay_level({"delay": delay})


def test_delay_levels_need_not_grow() -> None:
    """Brokers take them as they are; the next level is the next longer one wherever it stands."""
    broker = RocketMQBroker(delay_levels_s=(100, 1, 10))
    assert [broker._delay_level({"delay": each}) for each in (1, 2, 50)] == [2, 3, 1]


def test_a_delay_no_level_reaches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than the longest of the brokers, 7200 s"):
        RocketMQBroker()._delay_level({"delay": 7201})


def test_the_delay_levels_are_the_brokers_own() -> None:
    units = {"s": 1, "m": 60, "h": 3600}
    told = [int(word[:-1]) * units[word[-1]] for word in DEFAULT_DELAY_LEVELS.split()]
    assert list(DELAY_LEVELS_S) == told


def test_what_is_no_task_becomes_a_dead_letter(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Taskiq alone takes it as done; anybody may send to a topic."""
    odd = [b"\xff\x00", b"hello", b"[1]", b"{}", b'{"task_name": "x"}']

    async def scenario() -> list[bytes]:
        broker, done = made(cluster, topic), Seen()
        await asyncio.to_thread(sent_by_hand, cluster, *(Message(topic, body) for body in odd))

        @broker.task
        async def fine(number: int) -> None:
            await done.add(number)

        async with working(broker):
            await fine.kiq(1)
            assert await done.wait(1) == [1]
            await committed(cluster, workers(topic), topic, len(odd) + 1)
        return [message.body for message in await dead(cluster, workers(topic), len(odd))]

    assert sorted(asyncio.run(scenario())) == sorted(odd)
    told = [r.getMessage() for r in caplog.records if r.name == "rocketstream.frameworks"]
    assert len(told) == len(odd)
    assert all("not a task of Taskiq's" in text for text in told)


def test_a_task_that_is_stored_but_not_safe_is_not_kicked() -> None:
    """Covers C-473: nobody sees the status, and a retry gives its original up for the copy."""

    async def scenario(address: str) -> None:
        async with started(RocketMQBroker(TOPIC, namesrv_addr=address)) as broker:
            with pytest.raises(SendError, match="it is stored, but") as raised:
                await broker.kick(_message("x"))
            assert raised.value.outcome is SendOutcome.UNKNOWN

    for code in (10, 11, 12):
        with FakeBroker() as fake:
            fake.on[RequestCode.SEND_MESSAGE_V2] = stored_as(code)
            asyncio.run(scenario(fake.address))


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
        ("delay_levels_s", ()),
        ("delay_levels_s", "1s 5s"),
        ("delay_levels_s", (1, 0)),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_given(name: str, value: Any) -> None:
    """Not when a worker begins."""
    with pytest.raises(ConfigurationError, match=f"^{name} must be "):
        RocketMQBroker("tasks", namesrv_addr="127.0.0.1:1", **{name: value})

"""A consumer that threads of users share: one dies, one is interrupted, one seeks meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import LitePullConsumer, MQPullConsumerScheduleService, PullConsumer, PushConsumer
from rocketstream.client.consumer.lite.queues import LiteCache, LiteQueue
from rocketstream.client.consumer.push.impl import PushConsumerImpl
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import ClientStateError
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import GetMinOffsetResponseHeader
from tests.kits.client.consumers import lite, quick
from tests.kits.client.fake_broker import (
    GROUP,
    TOPIC,
    WAIT_S,
    FakeBroker,
    answer,
    found,
    pull_answer,
)
from tests.plugins.waiting import wait_until

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
WAIT_MS = WAIT_S * 1000
MQ = MessageQueue(TOPIC, "broker-a", 0)
THREADS_MAX = 1_000


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        running.on[RequestCode.GET_MIN_OFFSET] = lambda _: answer(0, GetMinOffsetResponseHeader(0))
        yield running


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    return thread


def offsets(messages: list[Any]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_what_a_dead_thread_polled_is_not_committed_by_another_of_its_number(
    broker: FakeBroker,
) -> None:
    """Python gives the number of a thread that has ended to the next one."""
    consumer = lite(broker)
    broker.reply(broker.wait_pull(0), found([0, 1]))
    died = in_thread(lambda: consumer.poll(WAIT_MS))

    def close() -> None:
        if threading.get_ident() == died.ident:
            consumer.shutdown()

    for _ in range(THREADS_MAX):
        in_thread(close)
        if consumer.state is not ServiceState.RUNNING:
            break
    else:
        consumer.shutdown()
        pytest.skip("no thread was given the number of the one that ended")
    assert {asked.ext["commitOffset"] for asked in broker.asked(UPDATE)} <= {"0"}


class Interrupting:
    """A hook in which Ctrl-C comes once."""

    name = "interrupting"

    def __init__(self) -> None:
        self.is_due = True

    def consume_message_before(self, context: object) -> None:
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt

    def consume_message_after(self, context: object) -> None:
        """Nothing comes then."""


@pytest.mark.parametrize("way", ["poll", "iterate"])
def test_what_an_interrupted_caller_did_not_get_comes_again(broker: FakeBroker, way: str) -> None:
    consumer = LitePullConsumer(GROUP, config=quick(broker), subscription={TOPIC: "*"})
    consumer.register_consume_message_hook(Interrupting())
    consumer.start()
    get = iter(consumer).__next__ if way == "iterate" else lambda: consumer.poll(WAIT_MS)[0]
    broker.reply(broker.wait_pull(0), found([0]))
    with pytest.raises(KeyboardInterrupt):
        get()
    broker.reply(broker.wait_pull(0, 2), found([0]))
    assert consumer.poll(WAIT_MS)[0].queue_offset == 0
    consumer.shutdown()


def test_a_held_queue_is_pulled_again_by_the_loop_alone(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another thread took out would be nobody's if it were interrupted right then."""
    released, threads = LiteCache.released, set()

    def noting(cache: LiteCache) -> list[LiteQueue]:
        threads.add(threading.get_ident())
        return released(cache)

    monkeypatch.setattr(LiteCache, "released", noting)
    consumer = lite(broker, pull_threshold_for_queue=1)
    broker.reply(broker.wait_pull(0), found([0, 1]))
    assert offsets(consumer.poll(WAIT_MS)) == [0, 1]
    broker.reply(broker.wait_pull(2), found([2, 3]))
    assert next(iter(consumer)).queue_offset == 2
    assert threads == {consumer._running().engine.loop_thread_id}
    consumer.shutdown()


def test_a_schedule_that_runs_is_not_stopped_by_a_second_start(broker: FakeBroker) -> None:
    calls: list[MessageQueue] = []

    def task(mq: MessageQueue, context: Any) -> None:
        calls.append(mq)
        context.pull_next_delay_ms = 1

    service = MQPullConsumerScheduleService(GROUP, namesrv_addr=broker.address)
    service.register_pull_task_callback(TOPIC, task)
    service.start()
    wait_until(lambda: calls, "a call")
    with pytest.raises(ClientStateError):
        service.start()
    before = len(calls)
    wait_until(lambda: len(calls) > before + 1, "calls that go on")
    service.shutdown()
    assert not [each for each in threading.enumerate() if "pull-task" in each.name]


def test_a_schedule_interrupted_as_it_waits_for_tasks_ends_its_consumer(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = MQPullConsumerScheduleService(GROUP, namesrv_addr=broker.address)
    service.start()

    def interrupted(timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(service._executor, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        service.shutdown()
    assert service.consumer.state is ServiceState.SHUTDOWN_ALREADY


def test_what_the_callback_of_a_pull_raises_is_logged(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "rocketstream.client")
    with PullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
        consumer.fetch_subscribe_message_queues(TOPIC)
        pulled = consumer.pull_async(MQ, "*", 0, 10, lambda done: done.missing)
        broker.reply(broker.wait_pull(0), pull_answer(19, 0))
        pulled.result(WAIT_S)
    assert "a callback of pull_async raised" in caplog.text


def test_what_is_subscribed_while_another_thread_starts_is_consumed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go_on, start = threading.Event(), threading.Event(), PushConsumerImpl.start

    async def slow(machine: PushConsumerImpl) -> None:
        made.set()
        await machine.instance.callbacks.run(go_on.wait, WAIT_S)
        await start(machine)

    monkeypatch.setattr(PushConsumerImpl, "start", slow)
    consumer = PushConsumer(
        GROUP,
        config=quick(broker),
        subscription={TOPIC: "*"},
        listener=lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    )
    starting = threading.Thread(target=consumer.start)
    starting.start()
    assert made.wait(WAIT_S)
    subscribing = threading.Thread(target=consumer.subscribe, args=("U",))
    subscribing.start()
    go_on.set()
    for thread in (starting, subscribing):
        thread.join(WAIT_S)
    assert "U" in consumer._machine.subscriptions
    consumer.shutdown()

"""A client that users' code shuts down on its own network thread ends in order, a moment later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rocketstream import (
    AllocateMessageQueueAveragely,
    Message,
    MessageQueue,
    MQPullConsumerScheduleService,
    Producer,
    PushConsumer,
)
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import ClientStateError
from rocketstream.protocol.codes import RequestCode
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found
from tests.kits.listeners import SUCCESS, Seen

STORED = RequestCode.UPDATE_CONSUMER_OFFSET
GOODBYE = RequestCode.UNREGISTER_CLIENT


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


class Ending:
    """A hook of every kind that shuts its client down once.

    Attributes:
        shut_down: of the client.
        raised: what that raised.
        thread: where it was called.
    """

    name = "ending"

    def __init__(self) -> None:
        self.shut_down: Callable[[], object] | None = None
        self.raised: list[BaseException] = []
        self.thread = ""
        self._called = threading.Event()

    def __call__(self, *_: object) -> None:
        shut_down, self.shut_down = self.shut_down, None
        if shut_down is None:
            return
        self.thread = threading.current_thread().name
        try:
            shut_down()
        except BaseException as error:
            self.raised.append(error)
        self._called.set()

    filter_message = send_message_before = send_message_after = __call__
    before_request = after_response = __call__

    def wait(self) -> None:
        assert self._called.wait(WAIT_S)
        assert self.raised == []
        assert self.thread.startswith("rocketstream-")
        assert "@" in self.thread, "a client's network thread is named by its id"


class Strategy(AllocateMessageQueueAveragely):
    """The default one, whose first call ends the consumer."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending

    def allocate(self, *args: Any, **kwargs: Any) -> Sequence[MessageQueue]:
        self.ending()
        return super().allocate(*args, **kwargs)


def ended(client: Any) -> None:
    """Wait until the thread that shuts a client down has ended."""
    for thread in threading.enumerate():
        if thread.name == "rocketstream-shutdown":
            thread.join(WAIT_S)
    assert client.state is ServiceState.SHUTDOWN_ALREADY
    assert client._started is None


def test_a_filter_hook_may_shut_its_consumer_down(broker: FakeBroker) -> None:
    """What was finished before is told to the broker."""
    hook, seen = Ending(), Seen()
    consumer = PushConsumer(GROUP, namesrv_addr=broker.address, listener=seen)
    consumer.subscribe(TOPIC)
    consumer.register_filter_message_hook(hook)
    with consumer:
        broker.reply(broker.wait_pull(0), found([0]))
        second = broker.wait_pull(1)
        seen.wait_consumed(1)
        hook.shut_down = consumer.shutdown
        broker.reply(second, found([1]))
        assert consumer.wait(WAIT_S * 1000)
    hook.wait()
    ended(consumer)
    assert broker.wait_for(STORED, where=lambda asked: asked.ext["topic"] == TOPIC)[-1].ext[
        "commitOffset"
    ] in ("1", "2")
    assert len(broker.asked(GOODBYE)) >= 1


def test_an_rpc_hook_may_shut_down_what_is_being_started(broker: FakeBroker) -> None:
    """The start waits for the network thread, which cannot wait for it."""
    hook = Ending()
    consumer = PushConsumer(
        GROUP, namesrv_addr=broker.address, listener=lambda _: SUCCESS, rpc_hook=hook
    )
    consumer.subscribe(TOPIC)
    hook.shut_down = consumer.shutdown
    consumer.start()
    hook.wait()
    assert consumer.wait(WAIT_S * 1000)
    ended(consumer)
    assert len(broker.asked(GOODBYE)) == 1


def test_an_rpc_hook_may_shut_its_consumer_down(broker: FakeBroker) -> None:
    hook = Ending()
    consumer = PushConsumer(
        GROUP, namesrv_addr=broker.address, listener=lambda _: SUCCESS, rpc_hook=hook
    )
    consumer.subscribe(TOPIC)
    with consumer:
        pull = broker.wait_pull(0)
        hook.shut_down = consumer.shutdown
        broker.reply(pull, found([0]))
        assert consumer.wait(WAIT_S * 1000)
    hook.wait()
    ended(consumer)
    assert len(broker.asked(GOODBYE)) == 1


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_strategy_may_shut_its_consumer_down(broker: FakeBroker, first: bool) -> None:
    """Also the first time, when the start may wait for what it divides."""
    ending = Ending()
    consumer = PushConsumer(
        GROUP,
        namesrv_addr=broker.address,
        listener=lambda _: SUCCESS,
        allocate_message_queue_strategy=Strategy(ending),
    )
    consumer.subscribe(TOPIC)
    if first:
        ending.shut_down = consumer.shutdown
    consumer.start()
    if not first:
        broker.wait_pull(0)
        ending.shut_down = consumer.shutdown
        broker.notify_members_changed()
    ending.wait()
    assert consumer.wait(WAIT_S * 1000)
    ended(consumer)
    assert len(broker.asked(GOODBYE)) == 1


def test_a_send_hook_may_shut_its_producer_down(broker: FakeBroker) -> None:
    """The message it was called for is sent, and waited for, before."""
    hook = Ending()
    producer = Producer("p", namesrv_addr=broker.address)
    producer.register_send_message_hook(hook)
    with producer:
        hook.shut_down = producer.shutdown
        assert producer.send_async(Message(TOPIC, b"x")).result(WAIT_S).msg_id
        hook.wait()
        ended(producer)
        with pytest.raises(ClientStateError):
            producer.send(Message(TOPIC, b"y"))
    assert len(broker.asked(GOODBYE)) == 1


def test_a_strategy_may_shut_a_schedule_service_down(broker: FakeBroker) -> None:
    """Whose tasks it waits for."""
    ending = Ending()
    service = MQPullConsumerScheduleService(
        GROUP, namesrv_addr=broker.address, allocate_message_queue_strategy=Strategy(ending)
    )
    began = threading.Event()
    service.register_pull_task_callback(TOPIC, lambda *_: began.set())
    service.start()
    assert began.wait(WAIT_S)
    ending.shut_down = service.shutdown
    broker.notify_members_changed()
    ending.wait()
    ended(service.consumer)
    assert service.state is ServiceState.SHUTDOWN_ALREADY

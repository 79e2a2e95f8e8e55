"""What ends, or does not begin, leaves nothing behind: cancelled, interrupted, or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer, aio
from rocketstream._util.ending import take_all
from rocketstream.client.core.queue_rotation import ANY_QUEUE
from rocketstream.client.instance import engine as engines
from rocketstream.client.instance import started
from rocketstream.client.instance.life_lock import LifeLock
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.errors import ClientStateError, ConfigurationError, SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from tests.behaviour.support import SUCCESS
from tests.unit.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found, ok
from tests.unit.client.test_lite_push_machine import lite_broker, popped, wait_pop

TOPICS = {TOPIC: "*"}
BEAT = RequestCode.HEART_BEAT


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with lite_broker() as running:
        running.offsets[0] = 0
        yield running


def state(client: Any) -> ServiceState:
    now: ServiceState = client.state
    return now


def users() -> int:
    """Return how many clients use the one instance there is."""
    (engine,) = engines._engines.values()
    return engine.users


def consumer() -> object:
    """Return the group's consumer in the one instance there is."""
    (engine,) = engines._engines.values()
    return engine.instance.consumer(GROUP)


async def tasks_end() -> None:
    """Wait until no task but this one is left."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=WAIT_S)
    assert not [task for task in others if not task.done()]


# --- steps ----------------------------------------------------------------------------------------


def test_every_step_of_an_end_is_taken_and_the_first_error_raised() -> None:
    taken: list[str] = []

    async def step(name: str, error: Exception | None = None) -> None:
        taken.append(name)
        if error is not None:
            raise error

    async def run() -> None:
        with pytest.raises(ValueError, match="one"):
            await take_all(
                lambda: step("a", ValueError("one")),
                lambda: step("b", ValueError("two")),
                lambda: step("c"),
            )

    asyncio.run(run())
    assert taken == ["a", "b", "c"]


def test_an_end_that_is_thrown_away_takes_no_more_steps() -> None:
    """As when its loop is gone: a coroutine that is closed may await nothing."""
    taken: list[str] = []

    async def first() -> None:
        taken.append("first")
        await asyncio.Future()

    async def second() -> None:
        taken.append("second")

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        ending = take_all(first, second)
        ending.send(None)
        ending.close()
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert taken == ["first"]


def test_a_cancelled_end_takes_the_steps_that_are_left() -> None:
    taken: list[str] = []

    async def step() -> None:
        taken.append("b")

    async def run() -> None:
        end = asyncio.create_task(take_all(asyncio.Event().wait, step))
        await asyncio.sleep(0)
        end.cancel()
        with pytest.raises(asyncio.CancelledError):
            await end

    asyncio.run(run())
    assert taken == ["b"]


# --- a shutdown that is cancelled -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PushConsumer", "LitePullConsumer", "LitePushConsumer"])
def test_a_cancelled_shutdown_says_goodbye_all_the_same(broker: FakeBroker, kind: str) -> None:
    """Covers C-595: on an instance that goes on the group would stay a member, and keep queues."""

    async def run() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def listener(_: list[Any]) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        arguments: dict[str, Any] = {"subscription": TOPICS}
        if kind == "PushConsumer":
            arguments["listener"] = listener
        if kind == "LitePushConsumer":
            arguments = {"bind_topic": TOPIC, "lite_topics": ["a"], "listener": listener}
        client: Any = getattr(aio, kind)(
            GROUP, namesrv_addr=broker.address, instance_name="i", **arguments
        )
        stream = kind == "LitePullConsumer"
        other = aio.Producer(
            "p",
            namesrv_addr=broker.address,
            instance_name="i",
            enable_stream_request_type=stream,
        )
        async with other:
            await client.start()
            assert users() == 2
            if kind == "PushConsumer":
                broker.reply(await asyncio.to_thread(broker.wait_pull, 0), found([0]))
            if kind == "LitePushConsumer":
                broker.reply(await asyncio.to_thread(wait_pop, broker), popped(("a", 5)))
            if not stream:
                await asyncio.wait_for(begun.wait(), WAIT_S)
            end = asyncio.create_task(client.shutdown())
            await asyncio.sleep(0)
            end.cancel()
            with pytest.raises(asyncio.CancelledError):
                await end
            assert state(client) is ServiceState.SHUTDOWN_ALREADY
            assert (users(), consumer()) == (1, None)
            assert stream or ended.is_set()
        await tasks_end()

    asyncio.run(run())
    assert broker.wait_for(RequestCode.UNREGISTER_CLIENT, 1, lambda a: "consumerGroup" in a.ext)


# --- a start that is cancelled --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PullConsumer", "LitePullConsumer"])
def test_a_cancelled_start_leaves_nothing(broker: FakeBroker, kind: str) -> None:
    """Covers C-595: the group can be taken by another, on an instance that goes on."""
    broker.on[BEAT] = lambda _: None

    async def run() -> None:
        client: Any = getattr(aio, kind)(
            GROUP, namesrv_addr=broker.address, instance_name="i", api_timeout_ms=50,
            **({"subscription": TOPICS} if kind == "LitePullConsumer" else {}),
        )  # fmt: skip
        if kind == "PullConsumer":
            await client.register_message_queue_listener(TOPIC, lambda *_: None)
        other = aio.Producer(
            "p", namesrv_addr=broker.address, instance_name="i", enable_stream_request_type=True,
            api_timeout_ms=50,
        )  # fmt: skip
        async with other:
            start = asyncio.create_task(client.start())
            await asyncio.to_thread(
                broker.wait_for, BEAT, 1, lambda a: GROUP.encode() in bytes(a.command.body)
            )
            broker.on[BEAT] = lambda _: ok()
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
            assert state(client) is ServiceState.CREATE_JUST
            assert (users(), consumer()) == (1, None)
            await client.start()
            await client.shutdown()
        await tasks_end()

    asyncio.run(run())


def test_a_lite_pull_consumer_cancelled_at_the_end_of_its_start_leaves_nothing(
    broker: FakeBroker,
) -> None:
    """Covers C-595: it asks for the queues of topics with a listener last."""
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    usual = broker.on[route]
    broker.on[route] = lambda c: None if (c.ext_fields or {})["topic"] == "Other" else usual(c)

    async def run() -> None:
        client = aio.LitePullConsumer(
            GROUP, namesrv_addr=broker.address, subscription=TOPICS, api_timeout_ms=50_000
        )
        await client.register_topic_message_queue_change_listener("Other", lambda *_: None)
        start = asyncio.create_task(client.start())
        other = await asyncio.to_thread(
            broker.wait_for, route, 1, lambda a: a.ext["topic"] == "Other"
        )
        assert other
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert state(client) is ServiceState.CREATE_JUST
        assert not engines._engines
        await tasks_end()

    asyncio.run(run())


# --- a start that a signal handler interrupts -----------------------------------------------------


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer, LitePullConsumer, Producer])
def test_a_signal_handler_may_shut_down_what_is_being_started(
    broker: FakeBroker, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on the thread that starts, which must not wait for itself: it ends when it runs."""
    arguments: dict[str, Any] = {}
    if kind is PushConsumer:
        arguments = {"subscription": TOPICS, "listener": lambda _: SUCCESS}
    client = kind(GROUP, namesrv_addr=broker.address, **arguments)
    make = engines.threaded_engine

    def interrupted(*given: Any) -> Any:
        client.shutdown()  # what the handler does
        return make(*given)

    monkeypatch.setattr(started, "threaded_engine", interrupted)
    starter = threading.Thread(target=client.start, daemon=True)
    starter.start()
    starter.join(WAIT_S)
    assert not starter.is_alive()
    assert state(client) is ServiceState.SHUTDOWN_ALREADY
    assert not engines._engines


def test_an_end_that_was_put_off_is_forgotten_when_the_start_fails() -> None:
    ends: list[str] = []
    life = LifeLock()

    def failing() -> None:
        with life.starting(lambda: ends.append("first")):
            assert life.puts_off_end()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing()
    with life.starting(lambda: ends.append("second")):
        pass
    assert not ends
    assert not life.puts_off_end()


# --- producers ------------------------------------------------------------------------------------


def test_a_producer_whose_start_fails_leaves_nothing_on_an_instance_that_goes_on(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-595, C-446: its own connections take certificates, the instance has its own."""
    monkeypatch.setenv("ROCKETMQ_TLS_CA_FILE", "/nowhere/ca.pem")
    with Producer("p", namesrv_addr=broker.address, instance_name="i"):
        two = Producer("q", namesrv_addr=broker.address, instance_name="i", use_tls=True)
        with pytest.raises(ConfigurationError, match=r"ca\.pem"):
            two.start()
        assert state(two) is ServiceState.CREATE_JUST
        (engine,) = engines._engines.values()
        assert engine.users == 1
        assert set(engine.instance._groups.producers) == {"p"}


def test_a_cancelled_shutdown_of_a_producer_that_gathers_says_goodbye(broker: FakeBroker) -> None:
    """Covers C-448: on an instance that goes on the group could not be taken again."""
    broker.on[RequestCode.SEND_MESSAGE_V2] = lambda _: None

    async def run() -> None:
        made = aio.Producer(
            GROUP, namesrv_addr=broker.address, instance_name="i", auto_batch=True,
            send_msg_timeout_ms=60_000,
        )  # fmt: skip
        async with aio.Producer("p", namesrv_addr=broker.address, instance_name="i"):
            await made.start()
            send = asyncio.create_task(made.send(Message(TOPIC, b"x")))
            asked = await asyncio.to_thread(broker.wait_for, RequestCode.SEND_MESSAGE_V2)
            end = asyncio.create_task(made.shutdown())
            await asyncio.sleep(0)
            end.cancel()
            with pytest.raises(asyncio.CancelledError):
                await end
            (engine,) = engines._engines.values()
            assert (engine.users, set(engine.instance._groups.producers)) == (1, {"p"})
            broker.reply(asked[0], RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no"))
            await asyncio.wait([send])
            assert send.exception() is not None

    asyncio.run(run())


def test_a_request_of_a_producer_that_does_not_run_is_only_refused() -> None:
    """Nothing is begun that would warn of having been forgotten."""
    with pytest.raises(ClientStateError, match="call start"):
        Producer("p", namesrv_addr="127.0.0.1:1").request(Message(TOPIC, b"x"))


@pytest.mark.parametrize("auto_batch", [False, True])
def test_what_a_thread_hands_over_when_the_producer_is_closed_has_an_end(
    broker: FakeBroker, auto_batch: bool
) -> None:
    """Several threads were in the middle of ``send_async``: none may wait for ever."""
    with Producer("p", namesrv_addr=broker.address, auto_batch=auto_batch) as producer:
        outbox = producer._machine.outbox
    ends: list[Any] = []
    for _ in range(3):
        prepared = producer._preparer.one(Message(TOPIC, b"x"))
        if auto_batch:
            future = outbox.gather(prepared, {}, None, 1_000, None)
        else:
            future = outbox.put(prepared, ANY_QUEUE, 1_000, None)
        future.add_done_callback(lambda done: ends.append(done.exception()))
    assert [(type(end), end.outcome) for end in ends] == [(SendError, SendOutcome.NOT_SENT)] * 3
    assert outbox.flush(0) == 0

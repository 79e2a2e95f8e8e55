"""What ends, or does not begin, leaves nothing behind: cancelled, interrupted, or refused."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from collections.abc import Coroutine, Generator, Iterator
from types import coroutine
from typing import Any

import pytest

from rocketstream import (
    ConsumeOrderlyStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    aio,
)
from rocketstream._util.ending import take_all
from rocketstream.client.instance import engine as engines
from rocketstream.client.instance import life_cycle
from rocketstream.client.instance.life_cycle import LifeLock, ServiceState
from rocketstream.client.producer.policy import ANY_QUEUE
from rocketstream.errors import ClientStateError, ConfigurationError, SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageResponseHeader
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, answer, found, ok
from tests.kits.client.lite_broker import lite_broker, popped, wait_pop
from tests.kits.listeners import SUCCESS
from tests.plugins.waiting import wait_until

TOPICS = {TOPIC: "*"}
BEAT = RequestCode.HEART_BEAT
ENDED = ServiceState.SHUTDOWN_ALREADY


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
    return engine.instance.groups.consumers.get(GROUP)


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


@coroutine
def cancelled_at(place: int, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, int]:
    """Await ``work``, whose task is cancelled at one of its waits; return how many it had."""
    waits, error = 0, None
    while True:
        try:
            future = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return waits
        waits, error = waits + 1, None
        task = asyncio.current_task()
        if waits == place and task is not None:
            task.get_loop().call_soon(task.cancel)
        try:
            yield future
        except BaseException as raised:  # what comes of the wait is the work's to take
            error = raised


async def consumed(_: list[Any]) -> Any:
    return SUCCESS


async def consumed_in_order(_: list[Any]) -> Any:
    return ConsumeOrderlyStatus.SUCCESS


async def working(kind: str, group: str, servers: str) -> Any:
    """Return a client that has connections, and the tasks it has while it works."""
    client: Any
    if kind == "producer":
        client = aio.Producer(group, namesrv_addr=servers)
        await client.start()
        await client.send(Message(TOPIC, b"x"))
        return client
    if kind == "schedule":
        called = asyncio.Event()
        client = aio.MQPullConsumerScheduleService(group, namesrv_addr=servers)
        await client.register_pull_task_callback(TOPIC, lambda *_: called.set())
        await client.start()
        await called.wait()
        return client
    if kind == "lite":
        client = aio.LitePullConsumer(group, namesrv_addr=servers, subscription=TOPICS)
    else:
        client = aio.PushConsumer(group, namesrv_addr=servers, subscription=TOPICS)
        orderly = kind == "orderly"
        client.register_message_listener(
            consumed_in_order if orderly else consumed, orderly=orderly
        )
    await client.start()
    held = client.assignment if kind == "lite" else client.assigned_queues
    await asyncio.to_thread(wait_until, held, "queues")
    return client


@pytest.mark.parametrize("kind", ["producer", "push", "orderly", "lite", "schedule"])
def test_an_end_cancelled_at_any_of_its_waits_leaves_no_connection_and_no_task(kind: str) -> None:
    """Covers C-595: brokers would count on a client that beats and answers, out of reach."""

    async def run(servers: str) -> int:
        place = 0
        while True:
            place += 1
            client = await working(kind, f"{GROUP}-{place}", servers)  # whose locks are nobody's
            (engine,) = engines._engines.values()

            async def end(ending: Any, place: int = place) -> int:
                return await cancelled_at(place, ending)

            (ended,) = await asyncio.gather(end(client.shutdown()), return_exceptions=True)
            assert not engines._engines
            await tasks_end()
            assert engine.instance.remoting.connections == []
            if ended == place - 1:
                return place
            assert isinstance(ended, asyncio.CancelledError), ended

    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, 2)
        assert asyncio.run(run(cluster.namesrv_addr)) >= 4


def test_a_pull_task_that_shuts_its_service_down_ends_it_and_itself() -> None:
    """Covers C-503: tasks that wait for themselves could not be cancelled, not even at the end."""
    calls: list[MessageQueue] = []

    async def run(servers: str) -> None:
        service = aio.MQPullConsumerScheduleService(GROUP, namesrv_addr=servers)
        over = asyncio.Event()

        async def task(mq: MessageQueue, _: Any) -> None:
            calls.append(mq)
            await service.shutdown()
            over.set()

        await service.register_pull_task_callback(TOPIC, task)
        await service.start()
        await asyncio.wait_for(over.wait(), WAIT_S)
        assert state(service.consumer) is ENDED
        assert not engines._engines
        await tasks_end()

    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, 1)
        asyncio.run(run(cluster.namesrv_addr))
    assert len(calls) == 1


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

    monkeypatch.setattr(life_cycle, "threaded_engine", interrupted)
    starter = threading.Thread(target=client.start, daemon=True)
    starter.start()
    starter.join(WAIT_S)
    assert not starter.is_alive()
    assert state(client) is ServiceState.SHUTDOWN_ALREADY
    assert not engines._engines


def test_loops_that_ended_without_a_shutdown_are_not_kept(broker: FakeBroker) -> None:
    clients = [aio.Producer(f"p{number}", namesrv_addr=broker.address) for number in range(3)]

    async def run(client: aio.Producer) -> None:
        await client.start()
        if client is clients[-1]:
            await client.shutdown()

    for client in clients[:-1]:
        asyncio.run(run(client))
    assert len(engines._engines) == 1
    asyncio.run(run(clients[-1]))
    assert not engines._engines
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del client
        clients.clear()
        gc.collect()
    assert sum("was dropped without" in str(each.message) for each in said) == 2


def test_an_end_that_was_put_off_comes_also_when_the_start_fails() -> None:
    """Once: no later start has it. It ends what runs, and does nothing where nothing does."""
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
    assert ends == ["first"]
    assert not life.puts_off_end()


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer, LitePullConsumer, Producer])
def test_ctrl_c_ends_what_runs_before_its_start_returns(
    broker: FakeBroker, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would: the block around it is not entered."""
    run = engines.Engine.run

    def interrupted(engine: engines.Engine, coro: Any) -> Any:
        monkeypatch.undo()
        run(engine, coro)
        raise KeyboardInterrupt

    monkeypatch.setattr(engines.Engine, "run", interrupted)
    arguments = {"subscription": TOPICS, "listener": lambda _: SUCCESS}
    client = kind(GROUP, namesrv_addr=broker.address, **(arguments if kind is PushConsumer else {}))
    with pytest.raises(KeyboardInterrupt), client:
        pytest.fail("it is not entered")
    assert state(client) is ENDED
    assert not engines._engines


def test_what_was_consumed_before_ctrl_c_ends_the_start_is_committed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-119: the first message may be here before the main thread has its turn again."""
    seen, run = threading.Event(), engines.Engine.run

    def listener(_: list[MessageExt]) -> Any:
        seen.set()
        return SUCCESS

    def interrupted(engine: engines.Engine, coro: Any) -> Any:
        monkeypatch.undo()
        run(engine, coro)
        broker.reply(broker.wait_pull(0), found([0]))
        assert seen.wait(WAIT_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(engines.Engine, "run", interrupted)
    client = PushConsumer(
        GROUP, namesrv_addr=broker.address, subscription=TOPICS, listener=listener
    )
    with pytest.raises(KeyboardInterrupt):
        client.start()
    told = [each.ext["commitOffset"] for each in broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)]
    assert "1" in told
    assert broker.asked(RequestCode.UNREGISTER_CLIENT)


def test_ctrl_c_between_a_start_and_its_block_ends_the_client(broker: FakeBroker) -> None:
    class Interrupted(Producer):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    client = Interrupted("p", namesrv_addr=broker.address)
    with pytest.raises(KeyboardInterrupt), client:
        pytest.fail("it is not entered")
    assert state(client) is ENDED
    assert not engines._engines


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
        assert set(engine.instance.groups.producers) == {"p"}


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
            assert (engine.users, set(engine.instance.groups.producers)) == (1, {"p"})
            broker.reply(asked[0], RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no"))
            await asyncio.wait([send])
            assert send.exception() is not None

    asyncio.run(run())


SENDS: dict[str, Any] = {
    "send": lambda p: p.send(Message("U", b"x")),
    "send_many": lambda p: p.send_many("U", [b"x"]),
    "send_batch": lambda p: p.send_batch([Message("U", b"x")]),
    "send_oneway": lambda p: p.send_oneway(Message("U", b"x")),
    "request": lambda p: p.request(Message("U", b"x"), timeout_ms=WAIT_S * 1_000),
    "fetch": lambda p: p.fetch_publish_message_queues("U"),
}  # fmt: skip
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def assert_not_sent(error: object, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(error, SendError)
    assert error.outcome is SendOutcome.NOT_SENT
    gc.collect()
    assert not caplog.records  # such as of a future whose error nobody took


@pytest.mark.parametrize("name", SENDS)
def test_a_call_that_waits_for_a_route_says_that_another_thread_shut_the_producer_down(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The look-up is cancelled with the producer; nobody has cancelled the call."""
    errors: list[BaseException] = []
    with FakeBroker() as broker:
        broker.on[ROUTE] = lambda _: None
        producer = Producer(GROUP, namesrv_addr=broker.address)
        producer.start()

        def call() -> None:
            try:
                SENDS[name](producer)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        broker.wait_for(ROUTE)
        producer.shutdown()
        thread.join()
    assert_not_sent(errors[0], caplog)


@pytest.mark.parametrize("name", SENDS)
def test_a_call_that_waits_for_a_route_says_that_another_task_shut_the_producer_down(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A task group takes a cancelled task for one that it cancelled itself, and says nothing."""

    async def run(broker: FakeBroker) -> object:
        producer = aio.Producer(GROUP, namesrv_addr=broker.address)
        await producer.start()
        task = asyncio.ensure_future(SENDS[name](producer))
        await asyncio.to_thread(broker.wait_for, ROUTE)
        await producer.shutdown()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    with FakeBroker() as broker:
        broker.on[ROUTE] = lambda _: None
        assert_not_sent(asyncio.run(run(broker)), caplog)


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


@pytest.mark.parametrize("kind", ["push", "lite", "pull", "producer"])
def test_a_client_whose_tasks_somebody_cancelled_is_shut_down_and_says_so(
    broker: FakeBroker, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed RUNNING, consumed nothing and logged nothing."""
    monkeypatch.setattr("rocketstream.client.instance.background.CUT_OFF_AFTER_MS", 1)

    async def run() -> None:
        made: Any
        if kind == "push":
            made = aio.PushConsumer(GROUP, namesrv_addr=broker.address, listener=listen)
            await made.subscribe(TOPIC)
        elif kind == "lite":
            made = aio.LitePullConsumer(GROUP, namesrv_addr=broker.address)
            await made.subscribe(TOPIC)
        elif kind == "pull":
            made = aio.PullConsumer(GROUP, namesrv_addr=broker.address)
        else:
            made = aio.Producer(GROUP, namesrv_addr=broker.address)
        await made.start()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.to_thread(wait_until, lambda: state(made) is ENDED, "the end")
        await tasks_end()
        assert not engines._engines
        await made.shutdown()

    async def listen(messages: list[MessageExt]) -> Any:
        return SUCCESS

    asyncio.run(run())
    (record,) = [each for each in caplog.records if "was cut off" in each.getMessage()]
    assert record.levelname == "ERROR"


def test_a_loop_that_ends_without_a_shutdown_names_the_client_and_no_cancelled_tasks(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """``asyncio.run`` cancels all tasks as it ends."""

    async def run() -> None:
        producer = aio.Producer(GROUP, namesrv_addr=broker.address)
        await producer.start()
        await producer._started.engine.instance.remoting.close()  # type: ignore[union-attr]

    def forget() -> None:
        asyncio.run(run())
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"^aio\.Producer.* was dropped without shutdown"):
        forget()
    assert "cut off" not in caplog.text
    engines._engines.clear()


# --- the end of a program -------------------------------------------------------------------------

FORGETFUL = """
import sys
from rocketstream import Message, Producer

producer = Producer("p", namesrv_addr=sys.argv[1], auto_batch=sys.argv[2] == "True",
                    batch_max_delay_ms=900, send_msg_timeout_ms=int(sys.argv[3]))
producer.start()
for n in range(3):
    producer.send_async(Message("T", f"{n}"))
"""


def end_forgetful_program(broker: FakeBroker, *, gathers: bool, timeout_ms: int) -> str:
    """Run a program that neither waits for its messages nor shuts down; return what it logs."""
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, broker.address, str(gathers), str(timeout_ms)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


@pytest.mark.parametrize("gathers", [False, True], ids=["single", "gathered"])
def test_a_program_that_ends_sends_what_send_async_took(broker: FakeBroker, gathers: bool) -> None:
    sizes: list[int] = []

    def store(command: RemotingCommand) -> RemotingCommand:
        sizes.append(len(command.body))
        ids = "ID0,ID1,ID2" if gathers else "ID0"
        return answer(0, SendMessageResponseHeader(ids, 0, 0))

    broker.on[RequestCode.SEND_MESSAGE_V2] = broker.on[RequestCode.SEND_BATCH_MESSAGE] = store
    assert end_forgetful_program(broker, gathers=gathers, timeout_ms=20_000) == ""
    assert len(sizes) == (1 if gathers else 3)


@pytest.mark.parametrize("gathers", [False, True], ids=["single", "gathered"])
def test_a_program_that_ends_names_what_it_could_not_send(
    broker: FakeBroker, gathers: bool
) -> None:
    """In one line, after the timeout of a send at most."""
    broker.on[RequestCode.SEND_MESSAGE_V2] = lambda _: None
    broker.on[RequestCode.SEND_BATCH_MESSAGE] = lambda _: None
    said = end_forgetful_program(broker, gathers=gathers, timeout_ms=1_000).splitlines()
    assert len(said) == 1, said
    assert "3 of the messages that send_async took of producer p were not acknowledged" in said[0]


# --- clients that are left ------------------------------------------------------------------------


def drop(clients: list[Any]) -> None:
    """Let nobody have the clients any more."""
    clients.clear()
    gc.collect()


@pytest.mark.parametrize("kind", [Producer, PullConsumer, LitePullConsumer])
def test_a_client_that_is_dropped_is_named_and_ends(broker: FakeBroker, kind: Any) -> None:
    """Its thread, its loop and its sockets end as well, as those of a file do."""
    clients = [kind(GROUP, namesrv_addr=broker.address)]
    clients[0].start()
    thread = clients[0]._started.engine.thread._thread
    with pytest.warns(ResourceWarning, match=rf"{kind.__name__}.* was dropped without shutdown"):
        drop(clients)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    for other in threading.enumerate():
        if other.name == "rocketstream-dropped":
            other.join(WAIT_S)


def test_a_push_consumer_that_is_dropped_is_named_and_goes_on(broker: FakeBroker) -> None:
    """It has a listener and does its work without being called."""
    clients = [PushConsumer(GROUP, namesrv_addr=broker.address, listener=lambda _: SUCCESS)]
    clients[0].subscribe(TOPIC)
    clients[0].start()
    engine, machine = clients[0]._running()
    with pytest.warns(ResourceWarning, match="was dropped without shutdown.*goes on"):
        drop(clients)
    engine.run(machine.shutdown(0, threading.get_ident()))
    engine.leave()

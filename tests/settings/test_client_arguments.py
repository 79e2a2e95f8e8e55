"""Every public call of every client refuses an argument of another kind before anything else."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import rocketstream
from rocketstream import (
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    TransactionListener,
    aio,
)
from rocketstream.checks import arguments_of, fits
from rocketstream.errors import ConfigurationError, MessageInvalidError
from rocketstream.testing import received_message
from tests.kits.client.fake_broker import TOPIC, FakeBroker

WRONG: tuple[Any, ...] = (5, 5.5, True, "x", b"x", None, float("nan"), [5], {5: 5}, object(), int)
FITTING: tuple[Any, ...] = (
    MessageQueue(TOPIC, "broker-a", 0), Message(TOPIC, b"x"), received_message(TOPIC, b"x"),
    TOPIC, 5, [], {}, len, True, None,
)  # fmt: skip
PER_MESSAGE = {"send", "send_batch", "send_oneway", "send_async", "poll", "pull"}
"""Called for each message, or nearly: what these check, and when, is asked of a running client."""
PER_MESSAGE |= {"pull_block_if_not_found", "pull_async", "pull_block_if_not_found_async"}
BY_HAND = {"register_message_listener", "hook", "listener", "message_queue_listener", "arg"}
BY_HAND |= {"callback", "bodies", "tags", "keys", "properties", "sharding_keys"}
"""Calls and arguments that take anything with certain methods, or any column; other tests ask
them."""


class Decides(TransactionListener):
    """Of a transaction producer."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


CLIENTS: dict[str, Callable[[Any, str], Any]] = {
    "Producer": lambda face, addr: face.Producer("g", namesrv_addr=addr),
    "TransactionProducer": lambda face, addr: face.TransactionProducer(
        "t", transaction_listener=Decides(), namesrv_addr=addr
    ),
    "PushConsumer": lambda face, addr: face.PushConsumer("p", namesrv_addr=addr),
    "PullConsumer": lambda face, addr: face.PullConsumer("q", namesrv_addr=addr),
    "LitePullConsumer": lambda face, addr: face.LitePullConsumer("l", namesrv_addr=addr),
    "LitePushConsumer": lambda face, addr: face.LitePushConsumer("m", "agents", namesrv_addr=addr),
    "MQPullConsumerScheduleService": lambda face, addr: face.MQPullConsumerScheduleService(
        "s", namesrv_addr=addr
    ),
}
FACES = {"threads": rocketstream, "asyncio": aio}


def calls() -> Iterator[tuple[str, str, str]]:
    """Every public call with arguments of every client of both faces."""
    for face, module in FACES.items():
        for client in CLIENTS:
            for name, method in inspect.getmembers(getattr(module, client), inspect.isfunction):
                if name.startswith("_") or name in PER_MESSAGE or name in BY_HAND:
                    continue
                if set(arguments_of(method)[0]) - BY_HAND:
                    yield face, client, name


def call(client: Any, name: str, given: dict[str, Any]) -> None:
    result = getattr(client, name)(**given)
    if inspect.iscoroutine(result):
        asyncio.run(asyncio.wait_for(result, 10))


def fitting(kinds: Mapping[str, Any], method: Any, besides: str) -> dict[str, Any]:
    return {
        each.name: next(value for value in FITTING if fits(value, kinds[each.name]))
        for each in inspect.signature(method).parameters.values()
        if each.name not in ("self", besides) and each.default is each.empty
    }


@pytest.mark.parametrize(("face", "client", "name"), list(calls()))
def test_an_argument_of_another_kind_is_refused(face: str, client: str, name: str) -> None:
    """With its name, before the client is looked at: one that was not started says so later."""
    method = getattr(getattr(FACES[face], client), name)
    kinds = {k: v for k, v in arguments_of(method)[0].items() if k not in BY_HAND}
    made = CLIENTS[client](FACES[face], "127.0.0.1:9")
    for argument, kind in kinds.items():
        others = fitting(arguments_of(method)[0], method, argument)
        refused = [value for value in WRONG if not fits(value, kind)]
        assert refused, f"{argument} takes everything"
        for value in refused:
            with pytest.raises((ConfigurationError, MessageInvalidError)) as raised:
                call(made, name, {**others, argument: value})
            assert argument in str(raised.value), (argument, value, str(raised.value))


def test_every_client_is_looked_at() -> None:
    looked_at = {(face, client) for face, client, _ in calls()}
    assert len(looked_at) == len(FACES) * len(CLIENTS)
    assert len(list(calls())) > 150


@pytest.mark.parametrize("name", ["timeout_ms", "await_ms"])
@pytest.mark.parametrize("value", [-1, -0.5, float("inf")])
def test_no_time_is_negative_or_endless(name: str, value: float) -> None:
    """One rule for all calls that wait; those of sends look first whether the producer runs."""
    asked = []
    of_sends = {"request", "request_async", "flush", "send_message_in_transaction"}
    for face, client, call_name in calls():
        method = getattr(getattr(FACES[face], client), call_name)
        kinds = arguments_of(method)[0]
        if name not in kinds or call_name in of_sends:
            continue
        made = CLIENTS[client](FACES[face], "127.0.0.1:9")
        given = {**fitting(kinds, method, name), name: value}
        with pytest.raises(ConfigurationError, match=rf"^{name} must be a number"):
            call(made, call_name, given)
        asked.append(call_name)
    assert asked


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


SENDS: list[tuple[str, dict[str, Any], str]] = [
    ("send", {"message": 5}, "message must be a rocketstream.Message, not 5"),
    ("send", {"selector": 5}, "selector must be a function of queues, message and arg, not 5"),
    ("send", {"message_queue": 5}, "message_queue must be a MessageQueue, not 5"),
    ("send", {"sharding_key": 5}, "sharding_key must be a str, not 5"),
    ("send", {"timeout_ms": "5"}, "timeout_ms must be a number of milliseconds from 0 on, not '5'"),
    ("send", {"timeout_ms": -5}, "timeout_ms must be a number of milliseconds from 0 on, not -5"),
    ("send_oneway", {"message": 5}, "message must be a rocketstream.Message, not 5"),
    ("send_oneway", {"selector": 5}, "selector must be a function"),
    ("request", {"timeout_ms": -5}, "timeout_ms must be a number of milliseconds from 0 on"),
]


@pytest.mark.parametrize(("name", "given", "said"), SENDS)
@pytest.mark.parametrize("face", FACES)
def test_a_send_says_what_cannot_be_sent(
    broker: FakeBroker, face: str, name: str, given: dict[str, Any], said: str
) -> None:
    arguments = {"message": Message(TOPIC, b"x"), **given}
    if face == "threads":
        with (
            rocketstream.Producer("g", namesrv_addr=broker.address) as producer,
            pytest.raises((ConfigurationError, MessageInvalidError)) as raised,
        ):
            getattr(producer, name)(**arguments)
    else:

        async def story() -> None:
            async with aio.Producer("g", namesrv_addr=broker.address) as producer:
                await getattr(producer, name)(**arguments)

        with pytest.raises((ConfigurationError, MessageInvalidError)) as raised:
            asyncio.run(story())
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("face", FACES)
def test_one_message_is_no_batch(broker: FakeBroker, face: str) -> None:
    made = CLIENTS["Producer"](FACES[face], broker.address)
    with pytest.raises(MessageInvalidError, match=r"give \[message\], or call send\(\)"):
        call(made, "send_batch", {"messages": Message(TOPIC, b"x")})


def test_a_callback_that_cannot_be_called_is_refused(broker: FakeBroker) -> None:
    """At once; its error would only be in a log."""
    with rocketstream.Producer("g", namesrv_addr=broker.address) as producer:
        with pytest.raises(ConfigurationError, match="callback must be a function of the future"):
            producer.send_async(Message(TOPIC, b"x"), callback=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="callback must be a function or None, not 5"):
            producer.request_async(Message(TOPIC, b"x"), callback=5)  # type: ignore[arg-type]


ASKED_ABOUT_A_TOPIC: list[tuple[str, str, dict[str, Any]]] = [
    ("Producer", "fetch_publish_message_queues", {}),
    ("Producer", "view_message", {"msg_id": "x"}),
    ("Producer", "query_message", {"key": "k", "max_nums": 1, "since_ms": 0, "until_ms": 1}),
    ("Producer", "recall_message", {"recall_handle": "x"}),
    ("PushConsumer", "subscribe", {}),
    ("PushConsumer", "fetch_subscribe_message_queues", {}),
    ("PullConsumer", "fetch_subscribe_message_queues", {}),
    ("PullConsumer", "fetch_message_queues_in_balance", {}),
    ("LitePullConsumer", "fetch_message_queues", {}),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("namespace", [None, "ns"])
@pytest.mark.parametrize(("client", "name", "more"), ASKED_ABOUT_A_TOPIC)
@pytest.mark.parametrize("topic", ["", " ", "a b", "x" * 128])
def test_a_name_no_topic_can_have_is_refused(
    broker: FakeBroker,
    face: str,
    namespace: str | None,
    client: str,
    name: str,
    more: dict[str, Any],
    topic: str,
) -> None:
    """With a namespace in front as well, where an empty name would look like one; covers C-95."""

    async def story() -> None:
        made = getattr(FACES[face], client)("g", namesrv_addr=broker.address, namespace=namespace)
        if client == "PushConsumer":
            made.register_message_listener(lambda messages: None)
        await _awaited(made.start())
        try:
            with pytest.raises(ConfigurationError, match=r"^(a )?topic "):
                await _awaited(getattr(made, name)(topic=topic, **more))
        finally:
            await _awaited(made.shutdown())

    asyncio.run(story())


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("besides", "said"),
    [
        ({"group": "other"}, "consumer is of group 'q', and group is 'other'"),
        ({"namesrv_addr": "127.0.0.1:1"}, "namesrv_addr cannot be given beside consumer"),
        ({"max_reconsume_times": 5}, "max_reconsume_times cannot be given beside consumer"),
    ],
)
def test_a_schedule_takes_a_consumer_or_settings(
    face: str, besides: dict[str, Any], said: str
) -> None:
    """Settings beside a consumer, or another group, would be dropped without a word."""
    module = FACES[face]
    consumer = CLIENTS["PullConsumer"](module, "127.0.0.1:9")
    made = module.MQPullConsumerScheduleService("q", consumer=consumer)
    assert made.consumer is consumer
    with pytest.raises(ConfigurationError, match=said):
        module.MQPullConsumerScheduleService(**{"group": "q", "consumer": consumer, **besides})


@pytest.mark.parametrize("face", FACES)
def test_a_schedule_says_which_face_its_consumer_is_of(face: str) -> None:
    module = FACES[face]
    said = f"consumer must be a {module.__name__}.PullConsumer, not 5"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        module.MQPullConsumerScheduleService("q", consumer=5)


@pytest.mark.parametrize("number", [0, "5", True, 1.5])
def test_a_schedule_has_a_number_of_threads(number: Any) -> None:
    with pytest.raises(ConfigurationError, match="pull_thread_nums must be a whole number from 1"):
        rocketstream.MQPullConsumerScheduleService("g", pull_thread_nums=number)


def test_several_name_servers_are_joined_by_semicolons() -> None:
    """Which is not obvious."""
    with pytest.raises(ConfigurationError, match="several are separated by ';'"):
        rocketstream.Producer("g", namesrv_addr="a:1,b:2")


@pytest.mark.parametrize("face", FACES)
def test_what_a_consumer_of_lite_topics_is_bound_to_is_named(face: str) -> None:
    with pytest.raises(ConfigurationError, match="bind_topic must be a str"):
        FACES[face].LitePushConsumer("g", 5)


@pytest.mark.parametrize(
    ("client", "name"),
    [("PullConsumer", "pull"), ("PushConsumer", "subscribe"), ("LitePullConsumer", "seek")],
)
def test_a_missing_argument_is_missed_by_the_call_the_user_wrote(client: str, name: str) -> None:
    """Calls of threads are made of coroutines of another class, which the error does not name."""
    made = CLIENTS[client](rocketstream, "127.0.0.1:9")
    with pytest.raises(TypeError, match=rf"^{client}\.{name}\(\) missing"):
        getattr(made, name)()


@pytest.mark.parametrize("client", CLIENTS)
def test_both_faces_take_the_same_arguments(client: str) -> None:
    """Only what has no twin may differ: a callback, and a coroutine where a function stands."""
    sync, waits = (getattr(module, client) for module in FACES.values())
    both = {name for name in vars_of(sync) & vars_of(waits) if not name.startswith("_")}
    assert {"start", "shutdown"} < both
    for name in both:
        here, there = (inspect.signature(getattr(kind, name)) for kind in (sync, waits))
        assert [*here.parameters] == [*there.parameters], name
        defaults = [[each.default for each in s.parameters.values()] for s in (here, there)]
        assert defaults[0] == defaults[1], name
        assert inspect.getdoc(getattr(sync, name)), name


def vars_of(kind: type) -> set[str]:
    """Names of a class's methods."""
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction)}

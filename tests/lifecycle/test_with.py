"""The one rule of ``with``: it starts every client and shuts it down, on both faces."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rocketstream import (
    LitePullConsumer,
    LitePushConsumer,
    MQPullConsumerScheduleService,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
    aio,
)
from rocketstream.client.instance import engine as engines
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import BrokerError, ClientStateError, ConnectError
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.bodies import HeartbeatData
from rocketstream.protocol.codes import RequestCode, ResponseCode
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, refusal
from tests.kits.listeners import SUCCESS, Seen

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CHECK = RequestCode.CHECK_CLIENT_CONFIG
CONDITION = MessageSelector.by_sql("a > 1")


class Undecided(TransactionListener):
    """Takes part in no transaction."""

    def execute_local_transaction(self, message: Any, arg: Any) -> Any:
        """Not called."""

    def check_local_transaction(self, message: Any) -> Any:
        """Not called."""


async def listener(messages: list[Any]) -> Any:
    return SUCCESS


TOPICS = {TOPIC: "*"}
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "producer": (Producer, {}),
    "transactions": (TransactionProducer, {"transaction_listener": Undecided()}),
    "push": (PushConsumer, {"subscription": TOPICS, "listener": Seen()}),
    "pull": (PullConsumer, {}),
    "lite": (LitePullConsumer, {"subscription": TOPICS}),
    "schedule": (MQPullConsumerScheduleService, {}),
    "aio-producer": (aio.Producer, {}),
    "aio-transactions": (aio.TransactionProducer, {"transaction_listener": Undecided()}),
    "aio-push": (aio.PushConsumer, {"subscription": TOPICS, "listener": listener}),
    "aio-pull": (aio.PullConsumer, {}),
    "aio-lite": (aio.LitePullConsumer, {"subscription": TOPICS}),
    "aio-schedule": (aio.MQPullConsumerScheduleService, {}),
}
EVERY = pytest.mark.parametrize("kind", KINDS)
PUSH = pytest.mark.parametrize("kind", ["push", "aio-push"])
LITE = pytest.mark.parametrize("kind", ["lite", "aio-lite"])
CONSUMING = pytest.mark.parametrize("kind", ["push", "aio-push", "lite", "aio-lite"])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


def make(kind: str, broker: FakeBroker, **other: Any) -> Any:
    """Return a client of a kind; None takes one of its usual arguments away."""
    of_kind, settings = KINDS[kind]
    settings = {**settings, **other}
    given = {name: value for name, value in settings.items() if value is not None}
    return of_kind(GROUP, namesrv_addr=broker.address, **given)


async def done(answer: Any) -> Any:
    """Return what a call of either face gives."""
    return await answer if inspect.isawaitable(answer) else answer


@contextlib.asynccontextmanager
async def block(client: Any) -> AsyncIterator[Any]:
    """Enter ``with`` or ``async with``, whichever the client's face has."""
    if hasattr(client, "__aenter__"):
        async with client as entered:
            yield entered
    else:
        with client as entered:
            yield entered


def is_sync(client: Any) -> bool:
    """Whether ``with`` enters a client, not ``async with``."""
    return hasattr(client, "__enter__")


def state(client: Any) -> ServiceState:
    """Return a client's state now; the checker must not remember it."""
    now: ServiceState = client.state
    return now


@EVERY
def test_a_block_starts_a_client_and_shuts_it_down(broker: FakeBroker, kind: str) -> None:
    async def run() -> None:
        client = make(kind, broker)
        async with block(client) as entered:
            assert entered is client
            assert state(client) is ServiceState.RUNNING
        assert state(client) is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(ClientStateError, match="SHUTDOWN_ALREADY"):
            async with block(client):
                pass

    asyncio.run(run())


@EVERY
def test_a_start_inside_is_answered_once_with_a_hint(broker: FakeBroker, kind: str) -> None:
    """Covers C-106: programs of before the rule go on; a second start is a mistake as ever."""

    async def run() -> None:
        async with block(make(kind, broker)) as client:
            with pytest.warns(DeprecationWarning, match=r"leave start\(\) out") as hints:
                await done(client.start())
            assert [hint.filename for hint in hints] == [__file__]
            assert state(client) is ServiceState.RUNNING
            with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
                await done(client.start())

    asyncio.run(run())


@EVERY
def test_a_client_that_runs_is_only_shut_down(broker: FakeBroker, kind: str) -> None:
    """What was started by hand is started no second time, and its ``start()`` stays strict."""

    async def run() -> None:
        client = make(kind, broker)
        await done(client.start())
        async with block(client):
            with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
                await done(client.start())
        assert state(client) is ServiceState.SHUTDOWN_ALREADY

    asyncio.run(run())


@CONSUMING
def test_a_start_that_fails_on_entering_leaves_nothing(broker: FakeBroker, kind: str) -> None:
    """Covers C-117, C-595: no thread, no socket (see the leak check); it may be entered again."""
    name_server = broker.on[ROUTE]

    async def run() -> None:
        client = make(kind, broker, api_timeout_ms=30)
        broker.on[ROUTE] = lambda _: None
        with pytest.raises(ConnectError, match=broker.address):
            async with block(client):
                pytest.fail("the block was entered")
        assert state(client) is ServiceState.CREATE_JUST
        assert not engines._engines
        broker.on[ROUTE] = name_server
        async with block(client):
            assert state(client) is ServiceState.RUNNING

    asyncio.run(run())


# --- push consumers: what they need -----------------------------------------------------------


@PUSH
@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (["listener"], "has no listener yet"),
        (["subscription"], "has no subscription yet"),
        (["listener", "subscription"], "has no listener and no subscription yet"),
    ],
)
def test_an_incomplete_push_consumer_is_started_by_hand(
    broker: FakeBroker, kind: str, missing: list[str], text: str
) -> None:
    """What was written before the rule: everything inside; one hint says what to write instead."""

    async def run() -> None:
        client = make(kind, broker, **dict.fromkeys(missing))
        with pytest.warns(FutureWarning, match=text) as hints:
            await done(client.__aenter__() if kind == "aio-push" else client.__enter__())
        said = str(hints[0].message)
        assert all((f"`{each}=`" in said) is (each in missing) for each in KINDS[kind][1])
        assert state(client) is ServiceState.CREATE_JUST
        if "subscription" in missing:
            await done(client.subscribe(TOPIC))
        if "listener" in missing:
            client.register_message_listener(KINDS[kind][1]["listener"])
        await done(client.start())
        assert state(client) is ServiceState.RUNNING
        with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
            await done(client.start())
        await done(client.shutdown())

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["push", "aio-push"])
def test_the_hint_points_at_the_block(broker: FakeBroker, kind: str) -> None:
    async def run() -> None:
        consumer = make(kind, broker, listener=None)
        with warnings.catch_warnings(record=True) as hints:
            warnings.simplefilter("always")
            if kind == "push":
                with consumer:
                    pass
            else:
                async with consumer:
                    pass
        said = [(hint.category, hint.filename) for hint in hints]
        assert said == [(FutureWarning, __file__)]
        assert state(consumer) is ServiceState.CREATE_JUST

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:`with` starts a PushConsumer:FutureWarning")
@PUSH
def test_a_block_that_ends_without_a_start_is_logged(
    broker: FakeBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was consumed and nothing raised: who hides warnings reads it here."""

    async def run() -> None:
        async with block(make(kind, broker, listener=None)) as client:
            client.register_message_listener(KINDS[kind][1]["listener"])
            assert not caplog.messages
        (said,) = caplog.records
        assert said.levelname == "WARNING"
        assert said.name == "rocketstream.client"
        assert GROUP in said.getMessage()
        assert "was never started" in said.getMessage()
        assert "`listener=`" not in said.getMessage()

    asyncio.run(run())


@EVERY
def test_a_block_that_ends_with_what_it_started_logs_no_warning(
    broker: FakeBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with block(make(kind, broker)):
            pass
        assert [each for each in caplog.messages if "never started" in each] == []

    asyncio.run(run())


LITE_TOPICS = pytest.mark.parametrize("of_kind", [LitePushConsumer, aio.LitePushConsumer])


@LITE_TOPICS
def test_the_hint_names_keywords_the_class_takes(broker: FakeBroker, of_kind: Any) -> None:
    """Of a LitePushConsumer: it has no `subscription`."""

    async def run() -> None:
        client = of_kind(GROUP, TOPIC, namesrv_addr=broker.address)
        with pytest.warns(FutureWarning, match="has no listener yet") as hints:
            await done(client.__enter__() if is_sync(client) else client.__aenter__())
        said = str(hints[0].message)
        assert "starts a LitePushConsumer" in said
        named = set(re.findall(r"`(\w+)=`", said))
        assert named == {"listener"}
        assert named <= set(inspect.signature(of_kind).parameters)

    asyncio.run(run())


@PUSH
def test_what_is_set_before_the_block_counts_as_well(broker: FakeBroker, kind: str) -> None:
    async def run() -> None:
        client = make(kind, broker, listener=None, subscription=None)
        await done(client.subscribe(TOPIC))
        client.register_message_listener(KINDS[kind][1]["listener"])
        async with block(client):
            await asyncio.to_thread(broker.wait_pull, 0)

    asyncio.run(run())


@PUSH
def test_topics_may_come_inside_where_that_was_said(broker: FakeBroker, kind: str) -> None:
    """Covers C-26, C-103: an empty subscription is a subscription."""

    async def run() -> None:
        async with block(make(kind, broker, subscription={})) as client:
            assert state(client) is ServiceState.RUNNING
            await done(client.subscribe(TOPIC))
            await asyncio.to_thread(broker.wait_pull, 0)

    asyncio.run(run())


# --- lite pull consumers: they need nothing ---------------------------------------------------


def subscribed(beat: HeartbeatData) -> dict[str, str]:
    (group,) = beat.consumer_data_set
    return {each.topic: each.sub_string for each in group.subscription_data_set}


@LITE
def test_a_lite_consumer_may_subscribe_inside(broker: FakeBroker, kind: str) -> None:
    """No broker hears of the group before there is a subscription: others would lose theirs."""

    async def run() -> None:
        async with block(make(kind, broker, subscription=None)) as client:
            assert not broker.heartbeats
            await done(client.subscribe(TOPIC, "A"))
            await asyncio.to_thread(broker.wait_pull, 0)
            assert all(subscribed(beat) == {TOPIC: "A"} for beat in broker.heartbeats)

    asyncio.run(run())


@LITE
def test_a_lite_consumer_may_look_for_the_queues_it_assigns(broker: FakeBroker, kind: str) -> None:
    """Covers C-505, C-506: what is wanted of them is said before they are assigned."""

    async def run() -> None:
        async with block(make(kind, broker, subscription=None)) as client:
            queues = await done(client.fetch_message_queues(TOPIC))
            client.set_sub_expression_for_assign(TOPIC, "A")
            await done(client.assign(queues))
            assert client.assignment() == [MessageQueue(TOPIC, "broker-a", 0)]
            assert client._plan.subscription(TOPIC).sub_string == "A"
            with pytest.raises(ClientStateError, match=r"before assign\(\); queues are assigned"):
                client.set_sub_expression_for_assign(TOPIC, "B")

    asyncio.run(run())


@LITE
@pytest.mark.parametrize("before", [None, {TOPIC: "A"}])
def test_a_subscription_that_is_refused_inside_changes_nothing(
    broker: FakeBroker, kind: str, before: dict[str, str] | None
) -> None:
    """Covers C-103, C-118: the same check as in a start; what was subscribed stays."""
    broker.on[CHECK] = refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no such condition")

    async def run() -> None:
        async with block(make(kind, broker, subscription=before)) as client:
            with pytest.raises(BrokerError, match="no such condition"):
                await done(client.subscribe(TOPIC, CONDITION))
            kept = {each.topic: each.sub_string for each in client._plan.subscriptions}
            assert kept == (before or {})
            await done(client.subscribe(TOPIC, "B"))
            await asyncio.to_thread(broker.wait_pull, 0)
            assert CONDITION.expression not in [
                text for beat in broker.heartbeats for text in subscribed(beat).values()
            ]

    asyncio.run(run())


@LITE
def test_a_first_subscription_is_no_outage(
    broker: FakeBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-150, C-580: the broker that has not heard of the group yet is told, no user is."""
    members = broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP]

    def unknown_first(command: Any) -> Any:
        broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members
        return refusal(ResponseCode.SYSTEM_ERROR, "no consumer for this group")(command)

    broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = unknown_first

    async def run() -> None:
        async with block(make(kind, broker, subscription=None)) as client:
            await done(client.subscribe(TOPIC))
            await asyncio.to_thread(broker.wait_pull, 0)

    asyncio.run(run())
    assert not caplog.records

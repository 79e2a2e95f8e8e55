"""The FastStream broker in an application: routers, the test broker, AsyncAPI, FastAPI, the log."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends as FastDepends
from fastapi import FastAPI
from faststream import AckPolicy, Context, Depends, FastStream, TestApp
from faststream.exceptions import SetupError, SubscriberNotFound
from faststream.message import AckStatus
from faststream.specification import AsyncAPI
from pydantic import BaseModel, ValidationError

from rocketstream import ClientConfig
from rocketstream.errors import ConfigurationError
from rocketstream.frameworks.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQPublisher,
    RocketMQResponse,
    RocketMQRoute,
    RocketMQRouter,
    TestRocketMQBroker,
)
from rocketstream.frameworks.faststream import annotations as injected
from rocketstream.frameworks.faststream import fastapi as plugin
from rocketstream.frameworks.faststream.command import MessageOptions, PublishOptions
from rocketstream.frameworks.faststream.message import RocketMQMessage as Parsed
from rocketstream.frameworks.faststream.registrator import (
    PublisherOptions,
    RocketMQRegistrator,
    SubscriberOptions,
)
from rocketstream.frameworks.faststream.versions import END, FIRST, check_version
from rocketstream.model import MessageSelector
from tests.frameworks.faststream_support import made, running
from tests.frameworks.seen import WAIT_S, Seen, committed
from tests.kits.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


class Order(BaseModel):
    number: int


class Invoice(BaseModel):
    number: int
    sum: int = 3


async def shop() -> str:
    """Be a dependency of FastAPI's."""
    return "corner"


def alone(**settings: Any) -> RocketMQBroker:
    """Return a broker that no test here connects."""
    return RocketMQBroker("127.0.0.1:1", logger=None, **settings)


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("installed", ["0.7.5", "0.6.7", "0.8.0", "0.8.0rc1", "1.0"])
def test_a_release_with_other_private_modules_is_refused(installed: str) -> None:
    with pytest.raises(ImportError) as raised:
        check_version(installed)
    assert f"{installed} is installed: pip install 'faststream>=0.7.6,<0.8'" in str(raised.value)


@pytest.mark.parametrize("installed", ["0.7.6", "0.7.8", "0.7.10"])
def test_the_releases_of_the_extra_are_taken(installed: str) -> None:
    check_version(installed)
    text = (ROOT / "pyproject.toml").read_text()
    assert f'faststream = ["faststream>={FIRST},<{END}"]' in text


# --- routers --------------------------------------------------------------------------------------


def test_routers_bring_their_endpoints_under_a_prefix(cluster: Cluster, topic: str) -> None:
    """Of subscribers, publishers and handlers in a list; a router in a router, too."""
    name = topic.removeprefix("T")
    cluster.create_topic(f"Ta{name}-out", 2)

    async def scenario() -> None:
        seen = Seen()

        async def handle(number: int) -> int:
            await seen.add(("in", number))
            return number + 1

        made_by = RocketMQPublisher(f"{name}-out", tags="made")
        route = RocketMQRoute(handle, name, group=f"{topic}-g", publishers=[made_by])
        inner = RocketMQRouter("a", handlers=[route])

        @inner.subscriber(f"{name}-out", group=f"{topic}-o")
        async def out(number: int, message: RocketMQMessage) -> None:
            await seen.add(("out", number, message.raw_message.tags, message.raw_message.topic))

        outer = RocketMQRouter("T", routers=[inner])
        broker = made(cluster)
        broker.include_router(outer)
        cluster.create_topic(f"Ta{name}", 2)
        async with running(broker):
            await broker.publish(1, f"Ta{name}")
            found = await seen.wait(2)
        assert found == [("in", 1), ("out", 2, "made", f"Ta{name}-out")]

    asyncio.run(scenario())


def test_a_router_says_what_its_subscribers_do_not(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        seen = Seen()

        async def note(text: str) -> None:
            await seen.add(("dependency", text))

        router = RocketMQRouter(ack_policy=AckPolicy.ACK, dependencies=[Depends(note)])

        @router.subscriber(topic, group=f"{topic}-g")
        async def handle(text: str) -> None:
            await seen.add(("handler", text))
            raise LookupError("always")

        broker = made(cluster, routers=[router])
        async with running(broker):
            await broker.publish("x", topic)
            await committed(cluster, f"{topic}-g", topic, 1)
        assert seen.items == [("dependency", "x"), ("handler", "x")]

    asyncio.run(scenario())


def test_a_router_of_another_broker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a RocketMQRouter; given is a str"):
        alone().include_router("router")  # type: ignore[arg-type]


def test_several_handlers_of_a_subscriber_share_its_messages(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()
        subscriber = broker.subscriber(topic, group=f"{topic}-g")

        @subscriber(filter=lambda message: message.headers.get("kind") == "new")
        async def new(text: str) -> None:
            await seen.add(("new", text))

        @subscriber
        async def other(text: str) -> None:
            await seen.add(("other", text))

        async with running(broker):
            await broker.publish("a", topic, headers={"kind": "new"})
            await broker.publish("b", topic)
            assert sorted(await seen.wait(2)) == [("new", "a"), ("other", "b")]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "method", "besides"),
    [
        (SubscriberOptions, RocketMQRegistrator.subscriber, {"self", "topic", "group"}),
        (PublisherOptions, RocketMQRegistrator.publisher, {"self", "topic"}),
    ],
)
def test_routes_take_every_option(options: Any, method: Any, besides: set[str]) -> None:
    names = set(inspect.signature(method).parameters) - besides
    if "options" in names:
        names = names - {"options"} | set(MessageOptions.__annotations__)
    assert names == set(options.__annotations__)


@pytest.mark.parametrize("wrong", [{"tag": "t"}, {"key": 1, "delay": 2}])
def test_an_option_a_publisher_does_not_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        alone().publisher("orders", **wrong)
    assert "no option " + ", ".join(sorted(wrong)) in str(raised.value)
    assert "tags, keys, delay_level, sharding_key, headers" in str(raised.value)
    assert set(PublishOptions.__annotations__) > set(MessageOptions.__annotations__)


# --- the test broker ------------------------------------------------------------------------------


def test_handlers_are_tested_without_a_broker() -> None:
    """Types, dependencies, publishers and their mocks; what a handler raises reaches the test."""

    async def scenario() -> None:
        broker = alone()
        publisher = broker.publisher("invoices", tags="made")

        @broker.subscriber("orders", group="billing")
        @publisher
        async def bill(order: Order, message: RocketMQMessage) -> Invoice:
            assert message.raw_message.topic == "orders"
            if order.number < 0:
                raise LookupError(order.number)
            return Invoice(number=order.number)

        async with TestRocketMQBroker(broker) as tested:
            await tested.publish(Order(number=7), "orders", headers={"a": "b"})
            bill.mock.assert_called_once_with({"number": 7})
            publisher.mock.assert_called_once_with({"number": 7, "sum": 3})
            await bill.assert_called_once_with(Order(number=7), headers={"a": "b"})
            with pytest.raises(LookupError):
                await tested.publish({"number": -1}, "orders")
            with pytest.raises(ValidationError):
                await tested.publish({"number": "many"}, "orders")
            assert await tested.ping()
        with pytest.raises(SetupError):
            _ = bill.mock

    asyncio.run(scenario())


def test_a_tested_message_goes_once_to_each_group_that_wants_it() -> None:
    async def scenario() -> None:
        broker = alone()
        called: list[str] = []

        def subscribe(name: str, **options: Any) -> None:
            @broker.subscriber("orders", **options)
            async def handle(text: str) -> None:
                called.append(name)

        subscribe("all", group="all")
        subscribe("all again", group="all")
        subscribe("tagged", group="tagged", expression="new || paid")
        subscribe("dear", group="dear", expression=MessageSelector.by_sql("price > 5"))
        async with TestRocketMQBroker(broker) as tested:
            for options, wanted in (
                ({}, [["all"], ["all again"]]),
                ({"tags": "paid"}, [["all", "tagged"], ["all again", "tagged"]]),
                ({"headers": {"price": "6"}}, [["all", "dear"], ["all again", "dear"]]),
                ({"tags": "old", "headers": {"price": "5"}}, [["all"], ["all again"]]),
            ):
                called.clear()
                await tested.publish("x", "orders", **options)
                assert sorted(called) in wanted
            called.clear()
            await tested.publish("x", "elsewhere")
            assert called == []

    asyncio.run(scenario())


def test_a_tested_handler_is_asked() -> None:
    async def scenario() -> None:
        broker = alone()

        @broker.subscriber("orders", group="billing")
        async def bill(order: Order) -> RocketMQResponse:
            return RocketMQResponse(Invoice(number=order.number), headers={"by": "us"})

        async with TestRocketMQBroker(broker) as tested:
            reply = await tested.request(Order(number=7), "orders", correlation_id="c-7")
            assert await reply.decode() == {"number": 7, "sum": 3}
            assert (reply.headers["by"], reply.correlation_id) == ("us", "c-7")
            with pytest.raises(SubscriberNotFound, match="'elsewhere'"):
                await tested.request(1, "elsewhere")

    asyncio.run(scenario())


def test_a_tested_message_tells_how_it_was_settled() -> None:
    async def scenario() -> None:
        broker = alone()
        found: list[Parsed] = []

        @broker.subscriber("orders", group="billing")
        async def handle(text: str, message: RocketMQMessage) -> None:
            found.append(message)
            if text == "bad":
                await message.reject()

        async with TestRocketMQBroker(broker) as tested:
            await tested.publish("good", "orders")
            await tested.publish("bad", "orders")
        assert [message.committed for message in found] == [AckStatus.ACKED, AckStatus.REJECTED]

    asyncio.run(scenario())


def test_a_tested_application_runs_its_hooks_and_subscribers_of_the_test() -> None:
    async def scenario() -> None:
        broker, ran = alone(), []
        app = FastStream(broker)

        @app.after_startup
        async def begin() -> None:
            await broker.publish("begun", "orders")

        @broker.subscriber("orders", group="billing")
        async def handle(text: str) -> None:
            ran.append(text)

        async with TestRocketMQBroker(broker), TestApp(app):
            late = broker.subscriber("late", group="late", persistent=False)
            await late.start()
            assert late.running
            await late.stop()
        assert ran == ["begun"]

    asyncio.run(scenario())


def test_a_test_may_use_the_real_broker(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker = made(cluster)

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(number: int) -> None: ...

        async with TestRocketMQBroker(broker, with_real=True) as tested:
            await tested.publish(7, topic)
            await handle.wait_call(WAIT_S)
            handle.mock.assert_called_once_with(7)

    asyncio.run(scenario())


# --- what is injected -----------------------------------------------------------------------------


def test_types_stand_for_what_the_context_has() -> None:
    async def scenario() -> None:
        broker, found = alone(), []

        @broker.subscriber("orders", group="billing")
        async def handle(
            text: str,
            message: injected.RocketMQMessage,
            whose: injected.RocketMQBroker,
            producer: Annotated[Any, Context("broker._connection")],
        ) -> None:
            found.append((message.correlation_id, whose is broker, producer))

        async with TestRocketMQBroker(broker) as tested:
            await tested.publish("x", "orders", correlation_id="c-1")
        assert found == [("c-1", True, None)]

    asyncio.run(scenario())


# --- AsyncAPI -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0.0", "2.6.0"])
def test_asyncapi_documents_servers_channels_and_payloads(version: Any) -> None:
    broker = RocketMQBroker("a:9876; b:9876", description="shop")
    router = RocketMQRouter("shop-")

    @router.subscriber("orders", group="billing", title="Orders", description="to be billed")
    @router.publisher("invoices")
    async def bill(order: Order) -> Invoice:
        return Invoice(number=order.number)

    @router.subscriber("hidden", group="hidden", include_in_schema=False)
    async def hide(order: Order) -> None: ...

    broker.include_router(router)
    document = AsyncAPI(broker, title="Shop", schema_version=version).to_specification()
    told = document.to_jsonable()
    protocols = {server["protocol"] for server in told["servers"].values()}
    assert protocols == {"rocketmq"}
    assert len(told["servers"]) == 2
    assert set(told["channels"]) == {"Orders", "shop-invoices:Publisher"}
    assert told["channels"]["Orders"]["description"] == "to be billed"
    if version == "3.0.0":
        assert told["channels"]["Orders"]["address"] == "shop-orders"
    assert {"Order", "Invoice"} <= set(told["components"]["schemas"])


# --- FastAPI --------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[None]:
    """Run an application's lifespan, as a server does."""
    async with app.router.lifespan_context(app):
        yield


def test_a_router_of_fastapis_has_a_broker(cluster: Cluster, topic: str) -> None:
    """Started and stopped with the application; dependencies are FastAPI's."""
    cluster.create_topic(f"{topic}-out", 2)

    async def scenario() -> None:
        seen = Seen()
        config = ClientConfig(persist_consumer_offset_interval_ms=50)
        router = plugin.RocketMQRouter(cluster.namesrv_addr, config=config, logger=None)

        @router.subscriber(topic, group=f"{topic}-g", max_workers=2)
        @router.publisher(f"{topic}-out", tags="made")
        async def bill(
            order: Order,
            message: plugin.RocketMQMessage,
            name: Annotated[str, FastDepends(shop)],
        ) -> Invoice:
            await seen.add((order, name, message.raw_message.tags))
            return Invoice(number=order.number)

        @router.subscriber(f"{topic}-out", group=f"{topic}-o")
        async def handle(invoice: Invoice) -> None:
            await seen.add(invoice)

        app = FastAPI()
        app.include_router(router)
        async with serving(app):
            await router.broker.publish(Order(number=7), topic, tags="t")
            found = await seen.wait(2)
            await committed(cluster, f"{topic}-g", topic, 1)
        assert found == [(Order(number=7), "corner", "t"), Invoice(number=7)]
        assert not await router.broker.ping()

    asyncio.run(scenario())


def test_a_router_of_fastapis_is_tested_without_a_broker() -> None:
    async def scenario() -> None:
        router = plugin.RocketMQRouter("127.0.0.1:1", logger=None)
        inner = RocketMQRouter("in-")

        @inner.subscriber("orders", group="billing")
        async def bill(number: int) -> int:
            return number + 1

        router.include_router(inner)
        app = FastAPI()
        app.include_router(router)
        async with TestRocketMQBroker(router.broker) as tested, serving(app):
            assert await (await tested.request(1, "in-orders")).decode() == 2
        told = router.schema.to_specification().to_jsonable()
        assert "in-orders:Bill" in told["channels"]

    asyncio.run(scenario())


# --- the log --------------------------------------------------------------------------------------


def test_the_log_names_topic_group_and_message(
    cluster: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> str:
        broker, seen = RocketMQBroker(cluster.namesrv_addr, log_level=logging.INFO), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(text: str) -> None:
            await seen.add(text)

        async with running(broker):
            sent = await broker.publish("x", topic)
            await seen.wait(1)
        assert sent is not None
        return sent.msg_id

    msg_id = asyncio.run(scenario())
    logger = logging.getLogger("faststream.access.rocketmq")
    told = capsys.readouterr().out
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    assert f"{topic} | {topic}-g | {msg_id} - Received" in told

"""The FastStream broker publishes: bodies, headers, replies; what RocketMQ lacks is refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from faststream import BaseMiddleware, Response
from faststream.exceptions import FeatureNotSupportedException
from pydantic import BaseModel

from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    NotSupportedError,
    ReplyTimeoutError,
    SendError,
    SendOutcome,
)
from rocketstream.frameworks.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQPublishCommand,
    RocketMQResponse,
)
from rocketstream.model import Message, SendStatus
from rocketstream.protocol.codes import RequestCode
from tests.frameworks.faststream_support import dead, made, running, sent_by_hand, stored
from tests.frameworks.seen import WAIT_S, Seen, committed, until
from tests.kits.client.fake_broker import TOPIC, FakeBroker, stored_as
from tests.kits.cluster import Cluster


class Invoice(BaseModel):
    number: int


def test_a_message_carries_what_it_was_published_with(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        async with running(made(cluster)) as broker:
            sent = await broker.publish(
                Invoice(number=7),
                topic,
                tags="new",
                keys=["a", "b"],
                headers={"color": "red"},
                correlation_id="c-1",
                reply_to="elsewhere",
            )
        assert sent is not None
        assert sent.send_status is SendStatus.SEND_OK
        (found,) = await asyncio.to_thread(stored, cluster, topic)
        assert (found.body, found.tags, found.keys) == (b'{"number":7}', "new", "a b")
        assert found.msg_id == sent.msg_id
        carried = {name: found.properties.get(name) for name in ("color", "content-type")}
        assert carried == {"color": "red", "content-type": "application/json"}
        assert found.properties["correlation_id"] == "c-1"
        assert found.properties["reply_to"] == "elsewhere"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "body", "content_type"),
    [
        ("text", b"text", "text/plain"),
        (b"\x00\xff", b"\x00\xff", None),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        (None, b"null", "application/json"),
        (0, b"0", "application/json"),
    ],
)
def test_a_body_comes_back_as_it_was(
    cluster: Cluster, topic: str, given: Any, body: bytes, content_type: str | None
) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(found: Any, message: RocketMQMessage) -> None:
            await seen.add((found, message.body, message.content_type))

        async with running(broker):
            await broker.publish(given, topic)
            assert await seen.wait(1) == [(given, body, content_type)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"message": ""}, "at least one byte; given is ''"),
        ({"message": b""}, "at least one byte; given is b''"),
        ({"message": "x", "headers": {"n": 1}}, "given is 'n': 1"),
        ({"message": "x", "headers": {"TAGS": "t"}}, "property TAGS is RocketMQ's own"),
        ({"message": "x", "delay_level": "soon"}, "delay_level must be a whole number"),
        ({"message": "x", "tags": ["a"]}, "tags must be one str"),
    ],
)
def test_what_no_message_can_have_is_refused(
    cluster: Cluster, topic: str, given: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        async with running(made(cluster)) as broker:
            with pytest.raises(ConfigurationError) as raised:
                await broker.publish(topic=topic, **given)
        assert said in str(raised.value)

    asyncio.run(scenario())


def test_a_delayed_message_is_published_with_its_level(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(text: str, message: RocketMQMessage) -> None:
            await seen.add(message.raw_message.properties["DELAY"])

        async with running(broker):
            await broker.publish("later", topic, delay_level=3)
            assert await seen.wait(1) == ["3"]

    asyncio.run(scenario())


def test_a_handlers_result_is_published(cluster: Cluster, topic: str) -> None:
    """With the publisher's options; before the message counts as consumed."""
    cluster.create_topic(f"{topic}-out", 2)

    async def scenario() -> None:
        broker, group, seen = made(cluster), f"{topic}-g", Seen()

        @broker.subscriber(topic, group=group)
        @broker.publisher(f"{topic}-out", tags="made", headers={"by": "us", "n": "1"})
        async def bill(number: int) -> Invoice:
            return Invoice(number=number + 1)

        @broker.subscriber(f"{topic}-out", group=f"{topic}-out-g")
        async def handle(invoice: Invoice, message: RocketMQMessage) -> None:
            kept = {k: v for k, v in message.headers.items() if k in ("by", "n")}
            await seen.add((invoice, message.raw_message.tags, kept, message.correlation_id))

        async with running(broker):
            await broker.publish(1, topic, correlation_id="c-1")
            (found,) = await seen.wait(1)
            assert found == (Invoice(number=2), "made", {"by": "us", "n": "1"}, "c-1")

    asyncio.run(scenario())


@pytest.mark.parametrize("plain", [True, False])
def test_a_response_says_more_than_its_publisher(cluster: Cluster, topic: str, plain: bool) -> None:
    cluster.create_topic(f"{topic}-out", 2)

    async def scenario() -> None:
        broker = made(cluster)

        @broker.subscriber(topic, group=f"{topic}-g")
        @broker.publisher(f"{topic}-out", tags="made", keys="k", headers={"by": "us", "n": "1"})
        async def bill(number: int) -> Response:
            if plain:
                return Response(b"x", headers={"n": "2"})
            return RocketMQResponse(b"x", tags="own", keys=["a"], headers={"n": "2"})

        async with running(broker):
            await broker.publish(1, topic)
            await committed(cluster, f"{topic}-g", topic, 1)
        (found,) = await asyncio.to_thread(stored, cluster, f"{topic}-out")
        assert (found.tags, found.keys) == (("made", "k") if plain else ("own", "a"))
        assert (found.properties["by"], found.properties["n"]) == ("us", "2")

    asyncio.run(scenario())


def test_a_result_that_cannot_be_published_has_its_message_tried_again(
    cluster: Cluster, topic: str
) -> None:
    """At least once holds for what handlers make, too."""
    cluster.create_topic(f"{topic}-out", 2)

    async def scenario() -> None:
        broker, tries = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        @broker.publisher(f"{topic}-out")
        async def bill(number: int) -> bytes:
            await tries.add(number)
            return b"" if len(tries.items) == 1 else b"made"

        async with running(broker):
            await broker.publish(1, topic)
            assert await tries.wait(2) == [1, 1]
            await committed(cluster, f"{topic}-g", topic, 1)
        await until(lambda: bool(stored(cluster, f"{topic}-out")))
        found = await asyncio.to_thread(stored, cluster, f"{topic}-out")
        assert [message.body for message in found] == [b"made"]

    asyncio.run(scenario())


def test_a_result_that_is_stored_but_not_safe_has_its_message_tried_again() -> None:
    """Covers C-473: the message behind it would count as consumed."""

    async def scenario(address: str) -> None:
        async with running(RocketMQBroker(address, logger=None)) as broker:
            with pytest.raises(SendError, match="it is stored, but") as raised:
                await broker.publish(1, TOPIC)
            assert raised.value.outcome is SendOutcome.UNKNOWN

    for code in (10, 11, 12):
        with FakeBroker() as fake:
            fake.on[RequestCode.SEND_MESSAGE_V2] = stored_as(code)
            asyncio.run(scenario(fake.address))


def test_a_publisher_publishes_by_hand(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker = made(cluster)
        publisher = broker.publisher(topic, tags="usual", sharding_key="one")
        async with running(broker):
            await publisher.publish("a")
            await publisher.publish("b", tags="own", keys="k")
        found = await asyncio.to_thread(stored, cluster, topic)
        assert [(m.body, m.tags, m.keys) for m in found] == [
            (b"a", "usual", None),
            (b"b", "own", "k"),
        ]
        assert len({m.queue_id for m in found}) == 1

    asyncio.run(scenario())


def test_a_result_goes_to_the_topic_a_message_names(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}-answers", 2)

    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def double(number: int) -> int:
            return 2 * number

        @broker.subscriber(topic, group=f"{topic}-silent", no_reply=True)
        async def silent(number: int) -> str:
            return "never"

        @broker.subscriber(f"{topic}-answers", group=f"{topic}-a")
        async def handle(answer: int, message: RocketMQMessage) -> None:
            await seen.add((answer, message.correlation_id))

        async with running(broker):
            await broker.publish(4, topic, reply_to=f"{topic}-answers", correlation_id="c-4")
            assert await seen.wait(1) == [(8, "c-4")]
            await committed(cluster, f"{topic}-silent", topic, 1)
            await committed(cluster, f"{topic}-a", f"{topic}-answers", 1)

    asyncio.run(scenario())


def test_a_request_is_answered_with_the_handlers_result(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker = made(cluster)

        @broker.subscriber(topic, group=f"{topic}-g")
        async def double(number: int, message: RocketMQMessage) -> Response:
            return Response({"doubled": 2 * number}, headers={"tag": message.raw_message.tags})

        publisher = broker.publisher(topic, tags="usual")
        async with running(broker):
            reply = await broker.request(
                21, topic, timeout=WAIT_S, correlation_id="c-1", tags="mine"
            )
            assert await reply.decode() == {"doubled": 42}
            assert (reply.headers["tag"], reply.correlation_id) == ("mine", "c-1")
            assert reply.content_type == "application/json"
            other = await publisher.request(1, timeout=WAIT_S)
            assert (await other.decode(), other.headers["tag"]) == ({"doubled": 2}, "usual")

    asyncio.run(scenario())


def test_a_request_nobody_answers_in_time_says_so(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        async with running(made(cluster)) as broker:
            with pytest.raises(ReplyTimeoutError) as raised:
                await broker.request(1, topic, timeout=0.5)
            assert raised.value.sent

    asyncio.run(scenario())


def test_a_reply_nobody_waits_for_does_not_undo_the_handlers_work(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the message is consumed: it would come again for ever."""
    gone = Message(topic, b"1")
    gone.properties.update(REPLY_TO_CLIENT="nobody@1", CORRELATION_ID="c", TTL="3000")

    async def scenario() -> None:
        broker, seen = made(cluster, producer_settings={"retry_times_when_send_failed": 0}), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(number: int) -> int:
            await seen.add(number)
            return number

        await asyncio.to_thread(sent_by_hand, cluster, gone)
        async with running(broker):
            await committed(cluster, f"{topic}-g", topic, 1)
        assert seen.items == [1]

    with caplog.at_level(logging.WARNING, "rocketstream.frameworks"):
        asyncio.run(scenario())
    assert "nobody waits for the reply to message" in caplog.text


def test_middlewares_see_what_comes_and_what_goes(cluster: Cluster, topic: str) -> None:
    """One that raises on the way out has the message tried again, as a handler's error does."""
    cluster.create_topic(f"{topic}-out", 2)

    async def scenario() -> list[Any]:
        seen = Seen()

        class Watch(BaseMiddleware[RocketMQPublishCommand, Any]):
            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                await seen.add(("in", msg.raw_message.topic, await msg.decode()))
                return await call_next(msg)

            async def publish_scope(self, call_next: Any, cmd: RocketMQPublishCommand) -> Any:
                cmd.keys = "watched"
                await seen.add(("out", cmd.destination, cmd.body))
                return await call_next(cmd)

        broker = made(cluster, middlewares=[Watch])

        @broker.subscriber(topic, group=f"{topic}-g")
        @broker.publisher(f"{topic}-out")
        async def handle(number: int) -> int:
            return number + 1

        async with running(broker):
            await broker.publish(1, topic)
            await committed(cluster, f"{topic}-g", topic, 1)
        (found,) = await asyncio.to_thread(stored, cluster, f"{topic}-out")
        assert found.keys == "watched"
        return seen.items

    found = asyncio.run(scenario())
    assert [each[0] for each in found] == ["out", "in", "out"]
    assert [each[2] for each in found] == [1, 1, 2]


def test_a_middlewares_error_is_a_handlers_error(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        class Fails(BaseMiddleware):
            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                raise LookupError("always")

        broker = made(cluster, middlewares=[Fails])

        @broker.subscriber(topic, group=f"{topic}-g", consumer_settings={"max_reconsume_times": 1})
        async def handle(text: str) -> None: ...

        async with running(broker):
            await broker.publish("x", topic)
            await dead(cluster, f"{topic}-g")

    asyncio.run(scenario())


def test_the_users_parser_and_decoder_are_asked(cluster: Cluster, topic: str) -> None:
    """A message one's own parser made of RocketMQ's is settled all the same."""

    async def scenario() -> None:
        async def parse(raw: Any, original: Any) -> Any:
            message = await original(raw)
            message.headers["parsed"] = raw.topic
            return message

        async def decode(message: Any) -> Any:
            return message.body.decode().upper()

        broker, seen = made(cluster, parser=parse), Seen()

        @broker.subscriber(topic, group=f"{topic}-g", decoder=decode)
        async def handle(text: str, message: RocketMQMessage) -> None:
            await seen.add((text, message.headers["parsed"]))

        async with running(broker):
            await broker.publish("x", topic)
            assert await seen.wait(1) == [("X", topic)]
            await committed(cluster, f"{topic}-g", topic, 1)

    asyncio.run(scenario())


def test_a_broker_that_is_not_started_says_so() -> None:
    async def scenario() -> None:
        broker = RocketMQBroker("127.0.0.1:1")
        with pytest.raises(ClientStateError, match=r"await broker.connect\(\) first"):
            await broker.publish("x", "orders")
        assert not await broker.ping()

    asyncio.run(scenario())


def test_batches_are_refused_with_what_to_do_instead() -> None:
    async def scenario() -> None:
        broker = RocketMQBroker("127.0.0.1:1")
        with pytest.raises(FeatureNotSupportedException):
            await broker.publish_batch("a", "b", queue="orders")
        with pytest.raises(NotSupportedError, match="auto_batch"):
            await broker.config.producer.publish_batch(None)

    asyncio.run(scenario())


def test_what_is_published_at_once_can_go_out_together(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker = made(cluster, producer_settings={"auto_batch": True})
        async with running(broker):
            await asyncio.gather(*(broker.publish(number, topic) for number in range(30)))
        assert len(await asyncio.to_thread(stored, cluster, topic)) == 30

    asyncio.run(scenario())


def test_a_ping_asks_a_broker(cluster: Cluster) -> None:
    async def scenario() -> None:
        broker = made(cluster)
        async with running(broker):
            assert await broker.ping(WAIT_S)
        assert not await broker.ping()

        lost = RocketMQBroker("127.0.0.1:1", logger=None)
        await lost.connect()
        try:
            assert not await lost.ping(5)
        finally:
            await lost.stop()

    asyncio.run(scenario())


def test_a_broker_starts_again_after_it_stopped(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        broker, seen = made(cluster), Seen()

        @broker.subscriber(topic, group=f"{topic}-g")
        async def handle(number: int) -> None:
            await seen.add(number)

        for number in range(2):
            async with running(broker):
                await broker.publish(number, topic)
                await seen.wait(number + 1)
        assert seen.items == [0, 1]

    asyncio.run(scenario())

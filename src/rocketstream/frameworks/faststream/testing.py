"""A test broker: handlers without a cluster, in the memory of a test.

Law: messages are made as a broker would hand them out; nothing is sent, retried or dead here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.config import new_uuid
from rocketstream.frameworks.faststream.broker import RocketMQBroker
from rocketstream.frameworks.faststream.command import RocketMQPublishCommand
from rocketstream.frameworks.faststream.producer import REQUEST_TIMEOUT_S, RocketMQProducer
from rocketstream.frameworks.faststream.subscriber import RocketMQSubscriber
from rocketstream.model import (
    PROPERTY_UNIQ_KEY,
    MessageQueue,
    MessageSelector,
    SendResult,
    SendStatus,
)
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.protocol.sql92 import compile_expression
from rocketstream.protocol.subscription import EXPRESSION_SQL92, build_subscription

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherUsecase
    from faststream.response import Response

_BROKER_NAME, _HOST = "test-broker", ("127.0.0.1", 10_911)


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Runs a broker's handlers in memory: ``async with TestRocketMQBroker(broker) as br: ...``.

    A message goes to one subscriber of each group whose topic and expression fit, at once and in
    the call of ``publish``, which raises the handler's error. With ``with_real=True`` the real
    broker is used, and handlers and publishers keep their mocks.
    """

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: PublisherUsecase
    ) -> tuple[RocketMQSubscriber, bool]:
        """Return the recorder of a publisher's messages: a subscriber of its topic, or a new
        one."""
        topic: str = cast("Any", publisher).topic
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == topic:
                return subscriber, True
        # A prefix of the broker's own is put before the name of a subscriber, too.
        name = topic.removeprefix(broker.config.prefix)
        group = f"test-{new_uuid()}"
        return broker.subscriber(name, group=group, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Iterator[None]:
        config = broker.config.broker_config
        with (
            change_producer(config, _SimulatedProducer(broker, self.brokers)),
            mock.patch.object(config, "is_simulated", new=True),
        ):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> None:
        return None


class _SimulatedProducer(RocketMQProducer):
    """Hands messages to subscribers instead of sending them."""

    def __init__(self, broker: RocketMQBroker, brokers: tuple[RocketMQBroker, ...]) -> None:
        config = broker.config.broker_config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.codec = config.broker_codec or DefaultCodec()
        self.serializer = config.fd_config._serializer
        self._brokers = brokers
        self._offsets = itertools.count()

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        message = await self._received(cmd)
        for subscriber in self._receivers(message):
            await subscriber.process_message(message)
        msg_id = message.msg_id or ""
        queue = MessageQueue(message.topic, _BROKER_NAME, 0)
        return SendResult(SendStatus.SEND_OK, msg_id, msg_id, queue, message.queue_offset)

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        message = await self._received(cmd)
        for subscriber in self._receivers(message):
            async with asyncio.timeout(REQUEST_TIMEOUT_S if cmd.timeout is None else cmd.timeout):
                result: Response = await subscriber.process_message(message)
            reply = RocketMQPublishCommand.from_cmd(result.as_publish_command())
            reply.destination = cmd.destination
            reply.correlation_id = result.correlation_id
            return await self._received(reply)
        raise SubscriberNotFound(f"no subscriber consumes this message of {cmd.destination!r}")

    async def _received(self, cmd: RocketMQPublishCommand) -> MessageExt:
        sent = await cmd.message(self.codec, self.serializer)
        properties = {**sent.properties, PROPERTY_UNIQ_KEY: new_uuid()}
        now = SYSTEM_CLOCK.now_ms()
        record = RecordFields(
            sent.topic,
            queue_id=0,
            flag=sent.flag,
            sys_flag=0,
            born_timestamp=now,
            born_host=_HOST,
            store_timestamp=now,
            store_host=_HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=bytes(sent.body),
            properties=encode_properties(properties),
            queue_offset=next(self._offsets),
            physical_offset=0,
        )
        return decode_message(encode_record(record), _BROKER_NAME)

    def _receivers(self, message: MessageExt) -> Iterator[RocketMQSubscriber]:
        groups: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            if (
                subscriber.topic == message.topic
                and subscriber.group not in groups
                and _wants(subscriber.expression, message)
            ):
                groups.add(subscriber.group)
                yield subscriber


def _subscribers(brokers: tuple[RocketMQBroker, ...]) -> list[RocketMQSubscriber]:
    return [cast("RocketMQSubscriber", each) for broker in brokers for each in broker.subscribers]


def _wants(expression: str | MessageSelector, message: MessageExt) -> bool:
    selector = MessageSelector.of(expression)
    wanted = build_subscription(
        message.topic, selector.expression, 0, expression_type=selector.expression_type
    )
    if selector.expression_type == EXPRESSION_SQL92:
        return compile_expression(wanted.sub_string).matches(message.properties)
    return not wanted.tags_set or message.tags in wanted.tags_set

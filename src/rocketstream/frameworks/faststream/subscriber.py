"""Subscribers: members of groups whose messages FastStream's handlers settle.

Messages come from the intake; the subscriber settles those that FastStream left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from rocketstream._util.ending import Cancellation
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.frameworks.faststream.configuration import RocketMQConfig
from rocketstream.frameworks.faststream.message import (
    RocketMQMessage,
    decode_body,
    delivered,
    parse_message,
)
from rocketstream.frameworks.faststream.publisher import ReplyPublisher
from rocketstream.frameworks.intake import Delivery, Intake, logger, place_of
from rocketstream.model import MessageSelector
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto

_CANCELLING_S = 1.0
"""How long handlers that were cancelled are waited for before their messages are given back."""


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """The configuration of a subscriber."""

    _outer_config: RocketMQConfig
    topic: str
    group: str
    expression: str | MessageSelector
    max_workers: int
    orderly: bool
    ack_limit_s: float
    consumer_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's own, else its router's or broker's; a handler that raises is retried."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """The AsyncAPI configuration of a subscriber."""

    topic: str


class RocketMQSubscriberSpecification(
    SubscriberSpecification[RocketMQConfig, RocketMQSubscriberSpecificationConfig]
):
    """A subscriber as AsyncAPI documents it."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of the routers around it."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The labels of its channel."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return its channel; AsyncAPI has no binding for RocketMQ."""
        message = MessageSpec(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        spec = SubscriberSpec(
            address=self.topic,
            description=self.description,
            operation=Operation(message=message, bindings=None),
            bindings=None,
        )
        return {self.name: spec}


class RocketMQSubscriber(SubscriberUsecase[MessageExt]):
    """Consumes a topic as a member of a group; made by ``broker.subscriber``."""

    _outer_config: RocketMQConfig

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[MessageExt],
    ) -> None:
        config.parser, config.decoder = parse_message, decode_body
        super().__init__(config, specification, calls)
        self.group: str = config.group
        self.expression: str | MessageSelector = config.expression
        self.is_orderly: bool = config.orderly
        self._config = config
        self._intake: Intake | None = None
        self._arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()
        """For whoever takes messages by hand; None at the end."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def topic(self) -> str:
        """The topic with the prefixes of the routers around it."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    async def start(self) -> None:
        """Join the group; does nothing while it is a member.

        Raises:
            ConnectError: no name server answered.
            ConfigurationError: a setting out of its range.
        """
        if self._intake is not None:
            return
        await super().start()
        self._post_start()
        if self._outer_config.is_simulated:
            return
        config = self._config
        try:
            self._arrived = asyncio.Queue()
            intake = Intake(
                self.group,
                self.topic,
                self._outer_config.client,
                self._take if self.calls else self._arrived.put_nowait,
                unacked_max=config.max_workers,
                unacked_limit_s=config.ack_limit_s,
                settings=config.consumer_settings,
                expression=config.expression,
                orderly=config.orderly,
            )
            await intake.start()
        except BaseException:
            self.running = False
            raise
        self._intake = intake

    async def stop(self) -> None:
        """Leave the group. Messages that handlers do not finish within ``graceful_timeout`` come
        again."""
        intake, self._intake = self._intake, None
        if intake is not None:
            intake.drain()
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self._arrived.put_nowait(None)
        try:
            await super().stop()
            left = self._tasks - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_CANCELLING_S)
        finally:
            if intake is not None:
                await intake.close()

    def _take(self, delivery: Delivery) -> None:
        if self.running:
            delivery.begin()
            task = asyncio.create_task(self._serve(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, delivery: Delivery) -> None:
        """Handle a message; if it is not settled then, and nothing will settle it, it comes again.

        Cut short it stays open, and is given back when the group is left.
        """
        if not self.running:
            return
        cancellation = Cancellation()
        try:
            with delivered(delivery):
                await self.consume(delivery.message)
        except asyncio.CancelledError:  # which FastStream takes for the end of the subscriber
            if cancellation.has_come:
                raise
            logger.warning(
                "the handler of %s raised CancelledError, as what it waited for was cancelled; "
                "this counts as any other error", place_of(delivery.message),
            )  # fmt: skip
        if self.ack_policy is not AckPolicy.MANUAL:
            delivery.later()

    async def get_one(self, *, timeout: float = 5.0) -> RocketMQMessage | None:
        """Return the next message, to be settled by the caller; None if none comes in time, or the
        subscriber stops.

        Raises:
            ClientStateError: it has handlers, or is not started.
        """
        self._check_pulled_by_hand()
        try:
            async with asyncio.timeout(timeout):
                delivery = await self._next()
        except TimeoutError:
            return None
        return None if delivery is None else await self._handed_over(delivery)

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Yield messages as they come, to be settled by the caller, until the subscriber stops."""
        self._check_pulled_by_hand()
        while (delivery := await self._next()) is not None:
            yield await self._handed_over(delivery)

    async def _next(self) -> Delivery | None:
        """Return the next delivery, the caller's from now on; None once the subscriber stops."""
        arrived = self._arrived
        while (delivery := await arrived.get()) is not None:
            if delivery.begin():
                return delivery
        arrived.put_nowait(None)  # for others who wait
        return None

    def _check_pulled_by_hand(self) -> None:
        if self.calls:
            raise ClientStateError(
                f"the messages of {self.topic!r} go to its handlers; take messages by hand from a "
                "subscriber without any"
            )
        if self._intake is None:
            raise ClientStateError("the subscriber is not started; await subscriber.start() first")

    async def _handed_over(self, delivery: Delivery) -> RocketMQMessage:
        """Return the message for the caller, who settles it; if that fails it comes again."""
        try:
            message = await self._parsed(delivery)
            if self.ack_policy is AckPolicy.ACK_FIRST:
                await message.ack()
        except BaseException:  # a cancellation most of all
            delivery.later()
            raise
        return message

    async def _parsed(self, delivery: Delivery) -> RocketMQMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        with delivered(delivery):
            message = await process_msg(
                msg=delivery.message,
                middlewares=(
                    m(delivery.message, context=context) for m in self._broker_middlewares
                ),
                parser=parser,
                decoder=decoder,
            )
        assert isinstance(message, RocketMQMessage)
        return message

    def _make_response_publisher(
        self, message: StreamMessage[MessageExt]
    ) -> Sequence[PublisherProto]:
        if not isinstance(message, RocketMQMessage):
            return ()  # a parser of the user's made it
        return (ReplyPublisher(self._outer_config.producer, message),)

    def get_log_context(self, message: StreamMessage[MessageExt] | None) -> dict[str, str]:
        """Return what log lines of a message say besides their text."""
        return {"topic": self.topic, "group": self.group, **super().get_log_context(message)}


def create_subscriber(
    config: RocketMQSubscriberConfig,
    *,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> RocketMQSubscriber:
    """Return a subscriber of a broker or router.

    Raises:
        ConfigurationError: no group.
    """
    if not isinstance(config.group, str) or not config.group:
        raise ConfigurationError(
            f"group must be the name of a consumer group, a str; given is {config.group!r}"
        )
    calls: CallsCollection[MessageExt] = CallsCollection()
    specification = RocketMQSubscriberSpecification(
        config._outer_config,
        RocketMQSubscriberSpecificationConfig(
            topic=config.topic,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        ),
        calls,
    )
    return RocketMQSubscriber(config, specification, calls)

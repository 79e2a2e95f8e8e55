"""Publishers: they send a handler's results, or messages published by hand, to one topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from rocketstream.frameworks.faststream.command import (
    MessageOptions,
    PublishOptions,
    RocketMQPublishCommand,
)
from rocketstream.frameworks.faststream.configuration import RocketMQConfig
from rocketstream.frameworks.faststream.message import RocketMQMessage
from rocketstream.frameworks.faststream.producer import RocketMQProducer
from rocketstream.model import SendResult

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.types import PublisherMiddleware


@dataclass(kw_only=True)
class _PublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQConfig, _PublisherSpecificationConfig]
):
    """A publisher as AsyncAPI documents it."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of the routers around it."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The key of its channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel; AsyncAPI has no binding for RocketMQ."""
        message = MessageSpec(
            title=f"{self.name}:Message",
            payload=resolve_payloads(self.get_payloads(), "Publisher"),
        )
        spec = PublisherSpec(
            address=self.topic,
            description=self.config.description_,
            operation=Operation(message=message, bindings=None),
            bindings=None,
        )
        return {self.name: spec}


class RocketMQTopicPublisher(PublisherUsecase):
    """Publishes to one topic; made by ``broker.publisher``."""

    _outer_config: RocketMQConfig

    def __init__(
        self,
        config: RocketMQConfig,
        specification: PublisherSpecification[Any, Any],
        options: MessageOptions,
    ) -> None:
        super().__init__(PublisherUsecaseConfig(_outer_config=config), specification)
        self._topic: str = specification.config.topic
        self._options = options

    @property
    def topic(self) -> str:
        """The topic with the prefixes of the routers around it."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self, message: SendableMessage = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendResult | None:
        """Publish a message; return once the broker has stored it.

        Args:
            message: the body: a model, what JSON can hold, a text or bytes; None is JSON's null.
            topic: another topic than the publisher's.
            options: of ``PublishOptions``; they come before the publisher's own.

        Raises:
            SendError: no broker took it.
        """
        cmd = RocketMQPublishCommand(message, topic=topic, **options)
        cmd.correlation_id = cmd.correlation_id or self._outer_config.id_generator()
        return await self._send(cmd, ())

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish the result of a handler."""
        await self._send(RocketMQPublishCommand.from_cmd(cmd), _extra_middlewares)

    async def _send(
        self, cmd: RocketMQPublishCommand, middlewares: Iterable[PublisherMiddleware]
    ) -> SendResult | None:
        cmd.destination = cmd.destination or self.topic
        cmd.fill(self._options)
        sent: SendResult | None = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares
        )
        return sent

    async def request(
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        timeout: float | None = None,
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> RocketMQMessage:
        """Publish a message and wait for the reply; see ``broker.request``."""
        cmd = RocketMQPublishCommand(
            message,
            topic=topic or self.topic,
            timeout=timeout,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.REQUEST,
            **options,
        )
        cmd.fill(self._options)
        reply: RocketMQMessage = await self._basic_request(
            cmd, producer=self._outer_config.producer
        )
        return reply


def create_publisher(
    config: RocketMQConfig,
    topic: str,
    *,
    title: str | None,
    description: str | None,
    schema: Any,
    include_in_schema: bool,
    options: MessageOptions,
) -> RocketMQTopicPublisher:
    """Return a publisher of a broker or router."""
    specification = RocketMQPublisherSpecification(
        config,
        _PublisherSpecificationConfig(
            topic=topic,
            title_=title,
            description_=description,
            schema_=schema,
            include_in_schema=include_in_schema,
        ),
    )
    return RocketMQTopicPublisher(config, specification, options)


class ReplyPublisher(FakePublisher):
    """Sends a handler's result to who asked, or to the topic the message names."""

    def __init__(self, producer: RocketMQProducer, message: RocketMQMessage) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Address the result."""
        reply = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        if self._message.is_request:
            reply.request = self._message.raw_message
        else:
            reply.destination = self._message.reply_to
        return reply

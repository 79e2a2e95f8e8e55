"""The common part of brokers and routers: they register subscribers and publishers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.errors import ConfigurationError
from rocketstream.frameworks.faststream.command import MessageOptions
from rocketstream.frameworks.faststream.configuration import RocketMQConfig
from rocketstream.frameworks.faststream.publisher import RocketMQTopicPublisher, create_publisher
from rocketstream.frameworks.faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    create_subscriber,
)
from rocketstream.frameworks.intake import UNACKED_LIMIT_S, check_unacked
from rocketstream.model import MessageSelector
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable

MAX_WORKERS = 20
"""Messages of a subscriber handled at once: as many as RocketMQ's consumers begin with."""


class SubscriberOptions(TypedDict, total=False):
    """The options of ``subscriber`` besides topic and group."""

    expression: str | MessageSelector
    max_workers: int
    orderly: bool
    ack_limit_s: float
    consumer_settings: PushConsumerKeywords | None
    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class PublisherOptions(MessageOptions, total=False):
    """The options of ``publisher`` besides the topic."""

    persistent: bool
    title: str | None
    description: str | None
    schema: Any
    include_in_schema: bool


class RocketMQRegistrator(Registrator[MessageExt, RocketMQConfig]):
    """Registers subscribers and publishers of topics."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str,
        expression: str | MessageSelector = "*",
        max_workers: int = MAX_WORKERS,
        orderly: bool = False,
        ack_limit_s: float = UNACKED_LIMIT_S,
        consumer_settings: PushConsumerKeywords | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketMQSubscriber:
        """Subscribe a handler to a topic, as a member of a group.

        Args:
            topic: what to consume, from its first message on where the group has no offset.
            group: consumer group; its members divide the queues of the topic.
            expression: which messages: tags joined by ``||``, or ``MessageSelector.by_sql(...)``.
            max_workers: most messages handled at once, and unsettled ones; 1 to 1000.
            orderly: handle a queue's messages in order: a queue waits for the one at its head,
                which is tried again after a second, and does so until it is done or rejected.
            ack_limit_s: seconds until a message that is not settled comes again; not in order.
            consumer_settings: further settings of the push consumer.
            ack_policy: what becomes of a message; by default ``NACK_ON_ERROR``.
            no_reply: send no replies.
            dependencies: run before the handler.
            parser: makes FastStream's messages of RocketMQ's.
            decoder: makes values of bodies.
            codec: does, too.
            persistent: keep it alive when nothing else does.
            title: of its AsyncAPI channel.
            description: of its AsyncAPI channel.
            include_in_schema: whether AsyncAPI documents it.

        Raises:
            ConfigurationError: no group, or a number out of its range.
        """
        check_unacked(("max_workers", max_workers), ("ack_limit_s", ack_limit_s))
        subscriber = create_subscriber(
            RocketMQSubscriberConfig(
                _outer_config=cast("RocketMQConfig", self.config),
                _ack_policy=ack_policy,
                no_reply=no_reply,
                topic=topic,
                group=group,
                expression=expression,
                max_workers=max_workers,
                orderly=orderly,
                ack_limit_s=ack_limit_s,
                consumer_settings=dict(consumer_settings or {}),
            ),
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Unpack[MessageOptions],
    ) -> RocketMQTopicPublisher:
        """Return a publisher to a topic, which decorates handlers whose results it publishes.

        Args:
            topic: where it publishes.
            persistent: keep it alive when nothing else does.
            title: of its AsyncAPI channel.
            description: of its AsyncAPI channel.
            schema: type of the messages, if the handlers do not say it.
            include_in_schema: whether AsyncAPI documents it.
            options: of ``MessageOptions``, for every message that does not say otherwise.
        """
        publisher = create_publisher(
            cast("RocketMQConfig", self.config),
            topic,
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
            options=_checked(options),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: Registrator[MessageExt, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[MessageExt]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take over the endpoints of a router, their topics with a prefix.

        Raises:
            ConfigurationError: a router of another broker.
        """
        if not isinstance(router, RocketMQRegistrator):
            raise ConfigurationError(
                f"a router must be a RocketMQRouter; given is a {type(router).__name__}"
            )
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _checked(options: MessageOptions) -> MessageOptions:
    unknown = sorted(options.keys() - MessageOptions.__annotations__.keys())
    if unknown:
        raise ConfigurationError(
            f"a publisher has no option {', '.join(unknown)}; of a message it takes "
            f"{', '.join(MessageOptions.__annotations__)}"
        )
    return options

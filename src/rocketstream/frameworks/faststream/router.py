"""Routers: endpoints that a broker takes over later, under a prefix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from rocketstream.frameworks.faststream.configuration import RocketMQConfig
from rocketstream.frameworks.faststream.registrator import (
    PublisherOptions,
    RocketMQRegistrator,
    SubscriberOptions,
)
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class RocketMQPublisher(ArgsContainer):
    """The arguments of ``publisher``, for a ``RocketMQRoute``."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class RocketMQRoute(SubscriberRoute):
    """A handler and the arguments of its ``subscriber``, for a ``RocketMQRouter``."""

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        topic: str,
        *,
        group: str,
        publishers: Iterable[RocketMQPublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, topic, group=group, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[MessageExt, RocketMQConfig]):
    """Endpoints for ``broker.include_router``; ``prefix`` is put before their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketMQConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )

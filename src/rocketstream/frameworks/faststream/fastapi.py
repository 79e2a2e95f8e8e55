"""The plugin for FastAPI: a router of FastAPI's that has a broker; needs the package fastapi."""

from typing import Annotated, Any, Unpack, cast

from fastapi.datastructures import Default
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.frameworks.faststream import broker, message
from rocketstream.frameworks.faststream.publisher import RocketMQTopicPublisher
from rocketstream.frameworks.faststream.registrator import PublisherOptions, SubscriberOptions
from rocketstream.frameworks.faststream.subscriber import RocketMQSubscriber
from rocketstream.protocol.message_ext import MessageExt

RocketMQMessage = Annotated[message.RocketMQMessage, Context("message")]
RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
Producer = Annotated[AsyncProducer, Context("broker._connection")]

__all__ = [
    "Context",
    "ContextRepo",
    "Logger",
    "Producer",
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQRouter",
]


class ResponseOptions(SubscriberOptions, total=False):
    """Options of a subscriber whose handler is FastAPI's: how its result is made JSON."""

    response_model: Any
    response_model_include: Any
    response_model_exclude: Any
    response_model_by_alias: bool
    response_model_exclude_unset: bool
    response_model_exclude_defaults: bool
    response_model_exclude_none: bool


_USUAL: dict[str, Any] = {
    "dependencies": (),
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}


class RocketMQRouter(StreamRouter[MessageExt]):
    """A router for ``app.include_router``; its broker starts and stops with the application.

    Args:
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        context: of the broker.
        options: of ``RocketMQBroker``, of FastAPI's ``APIRouter`` (``tags`` and ``dependencies``
            are its), and FastStream's ``schema_url``, ``setup_state``, ``specification`` and
            ``specification_tags``.
    """

    broker_class: type[broker.RocketMQBroker] = broker.RocketMQBroker
    broker: broker.RocketMQBroker

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        context: ContextRepo | None = None,
        **options: Any,
    ) -> None:
        super().__init__(namesrv_addr, context=context, **options)

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str,
        **options: Unpack[ResponseOptions],
    ) -> RocketMQSubscriber:
        """Subscribe a handler; dependencies are FastAPI's. See ``RocketMQBroker.subscriber``."""
        found = super().subscriber(topic, group=group, **{**_USUAL, **options})
        return cast("RocketMQSubscriber", found)

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Unpack[PublisherOptions]
    ) -> RocketMQTopicPublisher:
        """Return a publisher; see ``RocketMQBroker.publisher``."""
        return self.broker.publisher(topic, **options)

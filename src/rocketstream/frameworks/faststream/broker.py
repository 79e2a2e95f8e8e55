"""The broker: a FastStream application is made with it, and publishes by it.

The broker opens and closes the producer; subscribers open and close themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

from fast_depends import Provider, dependency_provider
from faststream import ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import make_logger_state
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from rocketstream.client.config import ClientConfig
from rocketstream.client.keywords import ProducerKeywords
from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.frameworks.faststream.command import (
    MessageOptions,
    PublishOptions,
    RocketMQPublishCommand,
)
from rocketstream.frameworks.faststream.configuration import AccessLog, RocketMQConfig
from rocketstream.frameworks.faststream.message import RocketMQMessage
from rocketstream.frameworks.faststream.producer import RocketMQProducer
from rocketstream.frameworks.faststream.registrator import RocketMQRegistrator
from rocketstream.frameworks.faststream.subscriber import RocketMQSubscriber
from rocketstream.model import SendResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import SELF_TEST_TOPIC

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto, SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict

PRODUCER_GROUP = "faststream"
_PING_S = 3.0


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[MessageExt, AsyncProducer, RocketMQConfig]):
    """RocketMQ for a FastStream application.

    A message is handled at least once: it is consumed when FastStream acknowledges it, after the
    handler and after its results are stored. One whose handler raises comes again at RocketMQ's
    delay levels, and after ``max_reconsume_times`` (16) tries goes to ``%DLQ%<group>``. The
    messages a killed process had, and those it had finished within the last
    ``persist_consumer_offset_interval_ms`` (5 s), are handled again by the others.

    Args:
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients, as keys and TLS; ``namesrv_addr`` overrides its
            address.
        producer_group: group of the producer.
        producer_settings: of the producer, by name.
        graceful_timeout: seconds handlers have to finish when the broker stops; what they do not
            finish comes again.
        ack_policy: of subscribers that have none of their own.
        id_generator: makes correlation ids.
        specification_url: address AsyncAPI tells; None takes the name servers'.
        description: AsyncAPI's, of the server.
        tags: AsyncAPI's, of the server.

    The other arguments are FastStream's own.

    Raises:
        ConfigurationError: a value out of its range.
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        config: ClientConfig | None = None,
        producer_group: str = PRODUCER_GROUP,
        producer_settings: ProducerKeywords | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        client = config or ClientConfig()
        if namesrv_addr is not None:
            client = replace(client, namesrv_addr=namesrv_addr)
        self._producer_group = producer_group
        self._producer_settings: ProducerKeywords = producer_settings or {}
        shown = specification_url or client.shown_name_servers() or ""
        super().__init__(
            routers=routers,
            config=RocketMQConfig(
                client=client,
                producer=RocketMQProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(logger, log_level, AccessLog),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[address.strip() for address in shown.split(";")],
                protocol="rocketmq",
                protocol_version=None,
                description=description,
                tags=tags,
                security=None,
            ),
        )

    def __repr__(self) -> str:
        client = self.config.broker_config.client
        return f"RocketMQBroker(namesrv_addr={client.shown_name_servers()!r})"

    async def _connect(self) -> AsyncProducer:
        config = self.config.broker_config
        client = AsyncProducer(
            self._producer_group, config=config.client, **self._producer_settings
        )
        await client.start()
        config.producer.connect(client, config.broker_codec, config.fd_config._serializer)
        return client

    async def start(self) -> None:
        """Open the producer and have every subscriber join its group.

        Raises:
            ConnectError: no name server answered.
            ConfigurationError: no name server address, a setting out of its range, or members of
                one group that consume different things.
        """
        self._check_groups()
        await self.connect()
        await super().start()

    def _check_groups(self) -> None:
        """RocketMQ balances a group as if each member consumed all that any does."""
        first: dict[str, RocketMQSubscriber] = {}
        for found in self.subscribers:
            subscriber = cast("RocketMQSubscriber", found)
            other = first.setdefault(subscriber.group, subscriber)
            mine, others = (
                (each.topic, each.expression, each.is_orderly) for each in (subscriber, other)
            )
            if mine != others:
                raise ConfigurationError(
                    f"the members of group {subscriber.group!r} must all consume the same; one "
                    f"subscriber consumes {_shown(other)}, another {_shown(subscriber)}; give each "
                    f"a group of its own, such as '{subscriber.group}-{subscriber.topic}'"
                )

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Let subscribers leave their groups, then close the producer."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, self._connection = self._connection, None
            self.config.broker_config.producer.client = None
            if client is not None:
                await client.shutdown()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a broker answers."""
        client = self._connection
        if client is None:
            return False
        try:
            async with asyncio.timeout(timeout or _PING_S):
                queues = await client.fetch_publish_message_queues(SELF_TEST_TOPIC)
                await client.max_offset(queues[0])
        except (RocketMQError, TimeoutError):
            return False
        return True

    async def publish(
        self, message: SendableMessage, topic: str, **options: Unpack[PublishOptions]
    ) -> SendResult | None:
        """Publish a message; return once the broker has stored it.

        Args:
            message: the body: a model, what JSON can hold, a text or bytes; None is JSON's null.
            topic: where it goes.
            options: of ``PublishOptions``.

        Raises:
            SendError: no broker took it.
            ConfigurationError: what no message can have.
            ClientStateError: not connected.
        """
        cmd = RocketMQPublishCommand(message, topic=topic, **options)
        cmd.correlation_id = cmd.correlation_id or self.config.id_generator()
        sent: SendResult | None = await self._basic_publish(cmd, producer=self.config.producer)
        return sent

    async def request(  # type: ignore[override]
        self,
        message: SendableMessage,
        topic: str,
        *,
        timeout: float | None = None,
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> RocketMQMessage:
        """Publish a message and wait for the reply, which a handler's result is.

        A handler that raises sends none; nor does one that is tried again after the time is up.

        Args:
            message: the body, as of ``publish``.
            topic: where it goes.
            timeout: seconds; None takes 3.
            correlation_id: None makes one.
            options: of ``MessageOptions``.

        Raises:
            ReplyTimeoutError: no reply in time; ``sent`` tells whether the request was stored.
            SendError: no broker took it.
        """
        cmd = RocketMQPublishCommand(
            message,
            topic=topic,
            timeout=timeout,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=PublishType.REQUEST,
            **options,
        )
        reply: RocketMQMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply


def _shown(subscriber: RocketMQSubscriber) -> str:
    order = " in order" if subscriber.is_orderly else ""
    return f"{subscriber.topic!r} with expression {subscriber.expression!r}{order}"

"""What a producer asks of brokers besides storing messages: topics, offsets, messages, recall.

Law: coroutines on the engine's loop, for both faces; names come and go as the user knows them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.recall import decode_recall_handle
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.errors import (
    ConfigurationError,
    MessageInvalidError,
    NotSupportedError,
    RequestNotSupportedError,
    RocketMQError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode, version_ordinal
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketstream.protocol.names import DLQ_PREFIX, RETRY_PREFIX

logger = logging.getLogger("rocketstream.client")

TIMER_VERSION = version_ordinal(5, 0, 0)


class ProducerCalls:
    """Questions and orders of one producer."""

    def __init__(self, sender: AsyncSender, config: ClientConfig) -> None:
        self._sender = sender
        self._instance = sender.instance
        self._config = config
        self.admin = MQAdmin(sender.instance, config)

    async def announce(self, topics: Iterable[str]) -> None:
        """Have routes of topics and tell their brokers who we are; failures are logged."""
        for topic in topics:
            try:
                await self._instance.update_route(topic)
            except RocketMQError as error:
                logger.info("no route of topic %s yet: %s", topic, error)
        await self._instance.heartbeat()

    # --- topics -----------------------------------------------------------------------------------

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues messages of ``topic`` can be sent to."""
        found = await self._sender.publish_queues(self._config.topic_with_namespace(topic))
        return self._config.queues_without_namespace(found)

    # --- timed messages ---------------------------------------------------------------------------

    async def require_timers(self, topic: str, queue: MessageQueue | None) -> None:
        """See to it that the brokers of a topic hold timed messages back.

        Raises:
            MessageInvalidError: one is older than 5.0 and would deliver at once, or none answers.
            SendRouteError: the topic has no route.
        """
        queues = await self._sender.publish_queues(topic)
        names = {queue.broker_name} if queue else {each.broker_name for each in queues}
        versions = self._versions(names)
        if 0 in versions.values():
            await self._instance.heartbeat()
            versions = self._versions(names)
        old = sorted(name for name, version in versions.items() if 0 < version < TIMER_VERSION)
        if old:
            raise MessageInvalidError(
                f"broker {', '.join(old)} is older than 5.0 and would deliver the timed message "
                "at once; use delay_level, or brokers from 5.0 on",
                topic=topic,
            )
        if not any(versions.values()):
            raise MessageInvalidError(
                "no broker of the topic told its version, so it is not known whether they can "
                "hold a timed message back; try again",
                topic=topic,
            ).with_retriable(True)

    def _versions(self, names: Iterable[str]) -> dict[str, int]:
        found = {}
        for name in names:
            address = self._instance.routes.master(name)
            found[name] = self._instance.broker_version(address) if address else 0
        return found

    async def recall_message(self, topic: str, recall_handle: str, timeout_ms: float) -> str:
        """Take a timed message back before it is delivered; return its id.

        Raises:
            ConfigurationError: no topic or handle of a timed message.
            NotSupportedError: the broker cannot recall.
            BrokerError: it refuses, as when the message was delivered.
        """
        wrapped = self._config.topic_with_namespace(topic)
        if wrapped.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise ConfigurationError(f"topic is not supported: {topic}", topic=topic)
        broker_name = decode_recall_handle(recall_handle).broker_name
        await self._sender.publish_queues(wrapped)
        address = self._instance.routes.known_master(broker_name)
        header = RecallMessageRequestHeader(
            wrapped, recall_handle, self._sender.settings.producer_group, broker_name
        )
        command = RemotingCommand.request(RequestCode.RECALL_MESSAGE, header)
        api = self._instance.api
        try:
            answer = await api.invoke(api.channel(address), command, timeout_ms)
        except RequestNotSupportedError as error:
            raise NotSupportedError(
                f"broker {broker_name} ({address}) cannot recall messages: it takes 5.3.1 or later"
            ) from error
        return answer.header(RecallMessageResponseHeader).msg_id

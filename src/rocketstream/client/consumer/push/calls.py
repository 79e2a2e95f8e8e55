"""What a push consumer can be asked besides consuming: queues, offsets, messages, its own pool.

Law: names are the user's on this side and the servers' on the other (C-148); runs on the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.consumer.push.impl import PushConsumerImpl
from rocketstream.client.core.kinds import check_whole
from rocketstream.errors import RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt


class PushCalls:
    """The questions and orders of upstream's DefaultMQPushConsumer that are not about its life."""

    def __init__(self, consumer: PushConsumerImpl) -> None:
        self._consumer = consumer
        self._config = consumer.instance.config
        self._admin = MQAdmin(consumer.instance)

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted."""
        instance = self._consumer.instance
        name = self._config.with_namespace(topic)
        queues = instance.routes.subscribe_queues(name)
        if queues is None:
            await instance.update_route(name)
            queues = instance.routes.subscribe_queues(name)
        if not queues:
            raise RouteNotFoundError(f"The topic[{topic}] not exist", topic=topic)
        return self._config.queues_without_namespace(sorted(queues))

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this consumer has now."""
        return self._config.queues_without_namespace(self._consumer.assigned_queues())

    async def create_topic(
        self, key: str, new_topic: str, queue_num: int, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic on every broker that has the topic ``key``."""
        name = self._config.with_namespace(new_topic)
        await self._admin.create_topic(key, name, queue_num, topic_sys_flag)

    async def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time."""
        return await self._admin.search_offset(self._queue(mq), timestamp_ms)

    async def max_offset(self, mq: MessageQueue) -> int:
        """Return the offset the next message of a queue will get."""
        return await self._admin.max_offset(self._queue(mq))

    async def min_offset(self, mq: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await self._admin.min_offset(self._queue(mq))

    async def earliest_msg_store_time(self, mq: MessageQueue) -> int:
        """Return when the oldest message of a queue was stored."""
        return await self._admin.earliest_msg_store_time(self._queue(mq))

    async def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return the message with an id, the broker's or the sender's."""
        return self._seen(
            [await self._admin.view_message(self._config.with_namespace(topic), msg_id)]
        )[0]

    async def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[MessageExt]:
        """Return messages with a key."""
        name = self._config.with_namespace(topic)
        return self._seen(await self._admin.query_message(name, key, max_num, begin_ms, end_ms))

    async def send_message_back(
        self, message: MessageExt, delay_level: int, broker_name: str | None = None
    ) -> None:
        """Have a message consumed again later (C-273)."""
        await self._consumer.send_back.send_message_back(message, delay_level, broker_name)

    async def core_pool_size(self) -> int:
        """Return how many listener calls there may be at once."""
        return self._consumer.service.core_pool_size

    async def update_core_pool_size(self, core_pool_size: int) -> bool:
        """Change how many listener calls there may be at once."""
        check_whole("core_pool_size", core_pool_size)
        return self._consumer.service.update_core_pool_size(core_pool_size)

    def _queue(self, mq: MessageQueue) -> MessageQueue:
        return self._config.queue_with_namespace(mq)

    def _seen(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        for message in messages:
            message.topic = self._config.without_namespace(message.topic)
        return list(messages)

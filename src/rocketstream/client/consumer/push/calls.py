"""What a push consumer alone can be asked besides consuming: its queues, its own pool.

Law: names are the user's on this side and the servers' on the other (C-148); runs on the loop.
"""

from __future__ import annotations

from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.consumer.push.impl import PushConsumerImpl
from rocketstream.errors import RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt


class PushCalls:
    """The questions and orders of upstream's DefaultMQPushConsumer that are not about its life."""

    def __init__(self, consumer: PushConsumerImpl) -> None:
        self._consumer = consumer
        self._config = consumer.instance.config
        self.admin = MQAdmin(consumer.instance, self._config)

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted."""
        instance = self._consumer.instance
        name = self._config.topic_with_namespace(topic)
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
        return self._consumer.service.update_core_pool_size(core_pool_size)

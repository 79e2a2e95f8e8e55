"""What every client can be asked about topics, queues and stored messages, in both faces.

Law: one line each; what is asked and how its answer is read is in ``requests``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rocketstream.arguments import checks_calls
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

T = TypeVar("T")


@checks_calls()
class SyncAdmin:
    """Calls of producers and consumers that block for a request or two.

    All raise ClientStateError unless running, BrokerError when a broker refuses, TransportError
    when none answers, RouteNotFoundError where topic or broker is unknown.
    """

    def _ask(self, question: Callable[[MQAdmin], Coroutine[Any, Any, T]]) -> T:
        """Ask on the loop and wait for the answer."""
        raise NotImplementedError

    def create_topic(
        self, key: str, new_topic: str, queue_num: int, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic with ``queue_num`` queues on every broker that has the topic ``key``.

        Args:
            key: a topic the brokers have, ``TBW102`` for one.
            new_topic: the topic to create.
            queue_num: how many read queues, and write queues, it gets on each broker.
            topic_sys_flag: flags of the topic, as Java's ``TopicSysFlag`` has them.

        Raises:
            ConfigurationError: a name or number that cannot be used.
        """
        self._ask(lambda admin: admin.create_topic(key, new_topic, queue_num, topic_sys_flag))

    def search_offset(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset stored nearest to a time, ms since 1970 (C-372)."""
        return self._ask(lambda admin: admin.search_offset(message_queue, timestamp_ms))

    def max_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset the next message of ``message_queue`` will get."""
        return self._ask(lambda admin: admin.max_offset(message_queue))

    def min_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset of the oldest message still in ``message_queue``."""
        return self._ask(lambda admin: admin.min_offset(message_queue))

    def earliest_msg_store_time(self, message_queue: MessageQueue) -> int:
        """Return when the oldest message of a queue was stored, ms since 1970; -1 without any."""
        return self._ask(lambda admin: admin.earliest_msg_store_time(message_queue))

    def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return the message with an id: the broker's offset id, or the sender's.

        Raises:
            OffsetNotFoundError: there is none.
        """
        return self._ask(lambda admin: admin.view_message(topic, msg_id))

    def query_message(
        self, topic: str, key: str, max_nums: int, since_ms: int, until_ms: int
    ) -> list[MessageExt]:
        """Return up to ``max_nums`` messages that have ``key``, stored between two times.

        Times are ms since 1970.
        """
        return self._ask(
            lambda admin: admin.query_message(topic, key, max_nums, since_ms, until_ms)
        )


@checks_calls()
class AsyncAdmin:
    """The same as coroutines; see ``SyncAdmin`` for what they do and raise."""

    def _admin(self) -> MQAdmin:
        """Return who can be asked, while running."""
        raise NotImplementedError

    async def create_topic(
        self, key: str, new_topic: str, queue_num: int, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic on every broker that has the topic ``key``, ``TBW102`` for one."""
        await self._admin().create_topic(key, new_topic, queue_num, topic_sys_flag)

    async def search_offset(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset stored nearest to a time, ms since 1970 (C-372)."""
        return await self._admin().search_offset(message_queue, timestamp_ms)

    async def max_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset the next message of ``message_queue`` will get."""
        return await self._admin().max_offset(message_queue)

    async def min_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset of the oldest message still in ``message_queue``."""
        return await self._admin().min_offset(message_queue)

    async def earliest_msg_store_time(self, message_queue: MessageQueue) -> int:
        """Return when the oldest message of a queue was stored, ms since 1970; -1 without any."""
        return await self._admin().earliest_msg_store_time(message_queue)

    async def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return the message with an id: the broker's offset id, or the sender's."""
        return await self._admin().view_message(topic, msg_id)

    async def query_message(
        self, topic: str, key: str, max_nums: int, since_ms: int, until_ms: int
    ) -> list[MessageExt]:
        """Return up to ``max_nums`` messages that have ``key``, stored between two times."""
        return await self._admin().query_message(topic, key, max_nums, since_ms, until_ms)

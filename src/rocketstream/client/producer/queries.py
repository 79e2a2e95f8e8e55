"""The producer's calls that are not sends, in both faces: topics, offsets, messages, recall.

Law: one line each; what they do is in ``calls``.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.producer.base import ProducerBase
from rocketstream.client.producer.calls import ProducerCalls
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

T = TypeVar("T")


class _Queries(ProducerBase):
    def _open_calls(self) -> tuple[Engine, ProducerCalls]:
        engine, calls = self._engine, self._calls
        if self.state is not ServiceState.RUNNING or engine is None or calls is None:
            raise self._not_running()
        engine.check_process()
        return engine, calls


class SyncQueries(_Queries):
    """Calls that block until the answer is there.

    All raise ClientStateError unless running, BrokerError when a broker refuses, TransportError
    when none answers, RouteNotFoundError without a route.
    """

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        engine, _ = self._open_calls()
        return engine.run(work)

    def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues messages of ``topic`` can be sent to.

        Raises:
            SendRouteError: the topic has no route.
            SendConnectError: no name server answered.
        """
        return self._wait(self._open_calls()[1].publish_queues(topic))

    def create_topic(
        self, key: str, new_topic: str, queue_num: int, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic with ``queue_num`` queues on every broker that has the topic ``key``.

        Raises:
            ConfigurationError: a name or number that cannot be used.
        """
        self._wait(self._open_calls()[1].create_topic(key, new_topic, queue_num, topic_sys_flag))

    def search_offset(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset stored nearest to a time, ms since 1970."""
        return self._wait(self._open_calls()[1].search_offset(message_queue, timestamp_ms))

    def max_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset the next message of ``message_queue`` will get."""
        return self._wait(self._open_calls()[1].max_offset(message_queue))

    def min_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset of the oldest message still in ``message_queue``."""
        return self._wait(self._open_calls()[1].min_offset(message_queue))

    def earliest_msg_store_time(self, message_queue: MessageQueue) -> int:
        """Return when the oldest message of a queue was stored, ms since 1970; -1 without any."""
        return self._wait(self._open_calls()[1].earliest_msg_store_time(message_queue))

    def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return the message with an id: the broker's offset id, or the sender's.

        Raises:
            OffsetNotFoundError: there is none.
        """
        return self._wait(self._open_calls()[1].view_message(topic, msg_id))

    def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[MessageExt]:
        """Return up to ``max_num`` messages that have ``key``, stored between two times."""
        calls = self._open_calls()[1]
        return self._wait(calls.query_message(topic, key, max_num, begin_ms, end_ms))

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before it is delivered; return its id.

        Args:
            topic: topic it was sent to.
            recall_handle: ``SendResult.recall_handle``.

        Raises:
            ConfigurationError: not a handle.
            NotSupportedError: the broker cannot recall messages.
        """
        timeout_ms = self._timeout(None)
        return self._wait(self._open_calls()[1].recall_message(topic, recall_handle, timeout_ms))


class AsyncQueries(_Queries):
    """The same as coroutines; see ``SyncQueries`` for what they do and raise."""

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues messages of ``topic`` can be sent to."""
        return await self._open_calls()[1].publish_queues(topic)

    async def create_topic(
        self, key: str, new_topic: str, queue_num: int, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic on every broker that has the topic ``key``."""
        await self._open_calls()[1].create_topic(key, new_topic, queue_num, topic_sys_flag)

    async def search_offset(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset stored nearest to a time, ms since 1970."""
        return await self._open_calls()[1].search_offset(message_queue, timestamp_ms)

    async def max_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset the next message of ``message_queue`` will get."""
        return await self._open_calls()[1].max_offset(message_queue)

    async def min_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset of the oldest message still in ``message_queue``."""
        return await self._open_calls()[1].min_offset(message_queue)

    async def earliest_msg_store_time(self, message_queue: MessageQueue) -> int:
        """Return when the oldest message of a queue was stored, ms since 1970; -1 without any."""
        return await self._open_calls()[1].earliest_msg_store_time(message_queue)

    async def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return the message with an id: the broker's offset id, or the sender's."""
        return await self._open_calls()[1].view_message(topic, msg_id)

    async def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[MessageExt]:
        """Return up to ``max_num`` messages that have ``key``, stored between two times."""
        calls = self._open_calls()[1]
        return await calls.query_message(topic, key, max_num, begin_ms, end_ms)

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before it is delivered; return its id."""
        calls = self._open_calls()[1]
        return await calls.recall_message(topic, recall_handle, self._timeout(None))

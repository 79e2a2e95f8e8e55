"""The producer's calls that are not sends, in both faces: its queues, recall, what all clients ask.

Law: one line each; what they do is in ``calls`` and ``client.admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rocketstream.arguments import checks_calls
from rocketstream.client.admin.faces import AsyncAdmin, SyncAdmin
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.producer.base import ProducerBase
from rocketstream.client.producer.machine import BlockingMachine, LoopMachine
from rocketstream.model import MessageQueue

T = TypeVar("T")


@checks_calls()
class SyncQueries(ProducerBase[BlockingMachine], SyncAdmin):
    """Calls that block until the answer is there; see ``SyncAdmin`` for what they raise."""

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            engine = self._running().engine
        except BaseException:
            work.close()
            raise
        return engine.run(work)

    def _ask(self, question: Callable[[MQAdmin], Coroutine[Any, Any, T]]) -> T:
        return self._wait(question(self._machine.calls.admin))

    def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues messages of ``topic`` can be sent to.

        Raises:
            SendRouteError: the topic has no route.
            SendConnectError: no name server answered.
        """
        return self._wait(self._machine.calls.publish_queues(topic))

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
        return self._wait(self._machine.calls.recall_message(topic, recall_handle, timeout_ms))


@checks_calls()
class AsyncQueries(ProducerBase[LoopMachine], AsyncAdmin):
    """The same as coroutines; see ``SyncQueries`` for what they do and raise."""

    def _admin(self) -> MQAdmin:
        return self._machine.calls.admin

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues messages of ``topic`` can be sent to."""
        return await self._machine.calls.publish_queues(topic)

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before it is delivered; return its id."""
        calls = self._machine.calls
        return await calls.recall_message(topic, recall_handle, self._timeout(None))

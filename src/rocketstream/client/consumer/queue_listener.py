"""Listeners for changes of a topic's queues, or of a member's share of them, and their calls.

Law: calls user code where it may block, one call after the other; what it raises is logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.client")


@runtime_checkable
class MessageQueueListener(Protocol):
    """Is told of changes; a plain function with the same three arguments does as well."""

    def message_queue_changed(
        self, topic: str, mq_all: list[MessageQueue], mq_divided: list[MessageQueue]
    ) -> object:
        """The queues of ``topic`` are ``mq_all`` now, and ours ``mq_divided``."""
        ...


class _TopicQueueListener(Protocol):
    """The object form of a listener for the queues of a topic."""

    def on_changed(self, topic: str, message_queues: list[MessageQueue], /) -> object: ...


TopicQueueListener = Callable[[str, list[MessageQueue]], object] | _TopicQueueListener
QueueListener = (
    MessageQueueListener
    | Callable[[str, list[MessageQueue], list[MessageQueue]], object]
    | Callable[[str, list[MessageQueue], list[MessageQueue]], Awaitable[object]]
)


def listener_function(listener: Any) -> Callable[..., Any]:
    """Return what to call.

    Raises:
        ConfigurationError: neither a function nor an object with ``message_queue_changed``.
    """
    method = getattr(listener, "message_queue_changed", listener)
    if not callable(method):
        raise ConfigurationError(
            f"{listener!r} is not a message queue listener: give a function of topic and queues, "
            "or an object with a method message_queue_changed"
        )
    return method  # type: ignore[no-any-return]


class QueueChangeNotifier:
    """Calls listeners in order: on the callback threads, or on the loop in the asyncio face."""

    def __init__(self, instance: MQClientInstance, *, threaded: bool) -> None:
        self._instance = instance
        self._threaded = threaded
        self._lock = asyncio.Lock()

    def notify(self, listener: Any, *args: object) -> None:
        """Have a listener called soon."""
        self._instance.run_soon(self._call(listener_function(listener), args))

    async def _call(self, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        async with self._lock:
            try:
                if self._threaded:
                    await self._instance.callbacks.run(function, *args)
                    return
                answer = function(*args)
                if inspect.isawaitable(answer):
                    await answer
            except ClientStateError:
                logger.debug("topic %s changed, but the client is being shut down", args[0])
            except Exception:
                logger.exception("message queue listener failed for topic %s", args[0])

"""Listeners for changes of a topic's queues, or of a member's share of them, and their calls.

User code is called where it may block, one call after the other; its errors are logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from rocketstream.client.consumer.subscription import learn_route
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.client")

FIRST_CHECK_MS = 10_000


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

    def notify(self, listener: Any, topic: str, *queues: Iterable[MessageQueue]) -> None:
        """Have a listener called soon, with a topic and queues as the user knows them."""
        config = self._instance.config
        args = (config.without_namespace(topic), *map(config.queues_without_namespace, queues))
        self._instance.background.run_soon(self._call(listener_function(listener), args))

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


class TopicChanges:
    """The topics that have a listener for changes of their queues."""

    def __init__(
        self, instance: MQClientInstance, notifier: QueueChangeNotifier, interval_ms: int
    ) -> None:
        self._instance = instance
        self._notifier = notifier
        self._interval_ms = interval_ms
        self._listeners: dict[str, Any] = {}
        self._known: dict[str, tuple[MessageQueue, ...]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._check_forever())

    async def stop(self) -> None:
        """Ask no more, and wait until the last question has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def register(self, topic: str, listener: Any) -> None:
        """Have ``listener`` called when the queues of ``topic`` are others than now."""
        self._listeners[topic] = listener
        if topic not in self._known:
            queues = await self._queues(topic)
            if queues is not None:
                self._known[topic] = queues

    async def check(self) -> None:
        """Ask for every topic now, and notify the listeners of those that changed."""
        for topic, listener in list(self._listeners.items()):
            queues = await self._queues(topic)
            if queues is None or queues == self._known.get(topic, ()):
                continue
            self._known[topic] = queues
            self._notifier.notify(listener, topic, queues)

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        if not await learn_route(self._instance, topic):
            return None
        return tuple(sorted(self._instance.routes.subscribe_queues(topic) or ()))

    async def _check_forever(self) -> None:
        pause_ms = min(FIRST_CHECK_MS, self._interval_ms)
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._interval_ms
            try:
                await self.check()
            except Exception:
                logger.exception("the check for changed topics failed")

"""Topics as consumers want them: subscriptions as users give them, and topics' queues.

Members that subscribe differently overwrite each other's subscriptions at the broker, and messages
go to nobody (C-340, C-552): what a broker has of the group is compared with ours. Listeners for
changes of a topic's queues are users' code: called where it may block, one call after the other;
its errors are logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from rocketstream._util.user_code import called, result_of
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.bodies.admin import ConsumerConnection
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetConsumerConnectionListRequestHeader
from rocketstream.protocol.subscription import build_subscription, subscription_hint

logger: logging.Logger = logging.getLogger("rocketstream.client")

ASKED_EVERY_MS = 60_000
"""A topic is compared no more often than this."""
CONNECTIONS_TIMEOUT_MS = 3_000
FIRST_CHECK_MS = 10_000

Expression = str | MessageSelector | None
"""Which messages of a topic: tags, ``*`` or None for all, or a selector."""
Subscription = Mapping[str, Expression]
"""Topics, and which messages of each."""


def subscribed(given: Subscription | None) -> Iterable[tuple[str, Expression]]:
    """Return the topics of a consumer's keyword ``subscription``, with their expressions.

    Raises:
        ConfigurationError: not a mapping, such as the name of a topic alone.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            "subscription must be a mapping of topics to expressions, such as {'orders': '*'}, "
            f"not {given!r}"
        )
    return given.items()


def subscription_of(
    topic: str, name: str, selector: MessageSelector, now_ms: int, logger: logging.Logger
) -> SubscriptionData:
    """Return a subscription, with a warning where it is probably not meant.

    Args:
        topic: as the user calls it.
        name: as brokers call it, with its namespace.
        selector: which messages.
        now_ms: its version, ms since 1970.
        logger: of the consumer.

    Raises:
        SubscriptionError: an expression that cannot be used.
    """
    made = build_subscription(name, selector.expression, now_ms, selector.expression_type)
    if (hint := subscription_hint(made)) is not None:
        logger.warning("subscription of topic %s: %s", topic, hint)
    return made


async def topic_queues(
    instance: MQClientInstance, topic: str, *, afresh: bool
) -> list[MessageQueue]:
    """Return a topic's readable queues, sorted, whoever has them.

    Args:
        instance: knows the routes.
        topic: as brokers call it.
        afresh: ask the name server though they are known.

    Raises:
        RouteNotFoundError: the topic is unknown.
        ConnectError: no name server answered.
    """
    queues = instance.routes.subscribe_queues(topic)
    if not queues or afresh:
        await instance.route_updates.update(topic)
        queues = instance.routes.subscribe_queues(topic)
    if not queues:
        name = instance.config.without_namespace(topic)
        raise RouteNotFoundError(
            f"The topic[{name}] not exist: Can not find Message Queue for this topic; create it, "
            "or check its name",
            topic=name,
        )
    return sorted(queues)


async def learn_route(instance: MQClientInstance, topic: str) -> bool:
    """Ask the name server for a topic's route; return whether it answered, else log the outage."""
    try:
        await instance.route_updates.update(topic)
    except RocketMQError as error:
        instance.outages.failed(("route of topic", topic), error)
        return False
    return True


class SubscriptionCheck:
    """Compares one consumer's subscriptions with what a broker has of its group."""

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._compared_ms: dict[str, float] = {}

    def compare_soon(self, ours: SubscriptionData, address: str) -> None:
        """Compare soon: the broker at ``address`` does not know a subscription of ours."""
        now_ms = self._instance.clock.monotonic_ms()
        last_ms = self._compared_ms.get(ours.topic)
        if last_ms is None or now_ms - last_ms >= ASKED_EVERY_MS:
            self._compared_ms[ours.topic] = now_ms
            self._instance.background.run_soon(self._compare(ours, address))

    async def _compare(self, ours: SubscriptionData, address: str) -> None:
        # After one more heartbeat ours must be there, unless another member has overwritten it.
        await self._instance.heartbeats.send()
        if self._instance.heartbeats.is_refused(address):
            return  # it did not take ours, and that is told already
        api = self._instance.api
        header = GetConsumerConnectionListRequestHeader(self._group)
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        answer = await api.invoke(api.channel(address), command, CONNECTIONS_TIMEOUT_MS)
        members = ConsumerConnection.decode(bytes(answer.body))
        theirs = members.subscription_table.get(ours.topic)
        if theirs is not None and _text(theirs) == _text(ours):
            return
        logger.error(
            "the members of group %s do not subscribe alike: topic %s is %s here and %s at %s; "
            "all %d members must subscribe the same topics with the same expressions, or messages "
            "are lost",
            self._group, ours.topic, _text(ours),
            "not subscribed" if theirs is None else _text(theirs), address,
            len(members.connection_set),
        )  # fmt: skip


def _text(subscription: SubscriptionData) -> str:
    return f"{subscription.expression_type} {subscription.sub_string!r}"


# --- whoever is told when the queues of a topic, or a member's share of them, change --------------


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
                answer = called(function, *args)
                if inspect.isawaitable(answer):
                    await result_of(answer)
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

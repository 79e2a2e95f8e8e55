"""What the sync and the asyncio producer share: settings, state, targets, observers, batch results.

Law: no waiting and no sockets; coroutines here run on the engine's loop, whichever face it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.core.kinds import check_time
from rocketstream.client.core.other_clients import clients_with
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.queue_rotation import ANY_QUEUE, SendTarget
from rocketstream.client.core.send import queue_of_key
from rocketstream.client.hooks import (
    CheckForbiddenHook,
    CheckForbiddenHooks,
    SendHooks,
    SendMessageHook,
)
from rocketstream.client.instance.started import Startable
from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.client.producer.machine import Joining, ProducerMachine
from rocketstream.client.producer.namespaced import NamespacedPreparer
from rocketstream.client.producer.sending import MessagePreparer, PreparedSend
from rocketstream.client.producer.try_observer import TryObserver
from rocketstream.client.trace.dispatcher import PRODUCE
from rocketstream.client.trace.of_client import TRACE_SETTINGS, tracing_of
from rocketstream.errors import (
    ConfigurationError,
    FlushTimeoutError,
    MessageInvalidError,
)
from rocketstream.model import (
    PROPERTY_LITE_TOPIC,
    Message,
    MessageQueue,
)
from rocketstream.protocol.lite import lite_queue_index
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.settings import unknown_setting

logger = logging.getLogger("rocketstream.client")

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
Messages = Message | Iterable[Message]
P = TypeVar("P", bound=ProducerMachine)

TIMER_MARK = "TIMER_DE"
"""Part of every timer property's name, quick to look for in the properties' text."""
_SETTINGS = frozenset(ProducerSettings.__slots__) - {"producer_group", "unit_mode"}


@checks_calls()
class ProducerBase(Startable[P], Generic[P]):
    """Settings and state of a producer; see ``rocketstream.Producer`` for the arguments."""

    _kind = "producer"
    _settings_classes: tuple[type[Any], ...] = (ProducerSettings, ClientConfig)
    _keywords: tuple[str, ...] = ("config", "clock", *TRACE_SETTINGS)
    """What its constructor takes by name besides settings."""

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        shared = client_config(config, namesrv_addr, settings)
        self._tracing = tracing_of(settings, group, PRODUCE, shared, clock)
        self._refuse_unknown(settings)
        self.settings = ProducerSettings(
            shared.with_namespace(group), unit_mode=shared.unit_mode, **settings
        )
        self.settings.check()
        self.config = shared.with_own_instance(clock)
        self._create(clock)
        self.send_hooks = SendHooks()
        self.check_forbidden_hooks = CheckForbiddenHooks()
        self._observer: TryObserver | None = None
        self._unwrap: Callable[[MessageQueue], MessageQueue] | None = None
        self._preparer = MessagePreparer(self.settings, clock)
        if self.config.effective_namespace():
            self._unwrap = self.config.queue_without_namespace
            self._preparer = NamespacedPreparer(self.settings, clock, self.config)
        self._tracing.observe_sends(self.register_send_message_hook)
        INSTRUMENTS.made(self)

    def _refuse_unknown(self, settings: dict[str, Any]) -> None:
        wrong = sorted(settings.keys() - _SETTINGS)
        if not wrong:
            return
        kind, name = type(self).__name__.removeprefix("Async"), wrong[0]
        others = clients_with(name)
        classes, more = self._settings_classes, self._keywords
        raise unknown_setting(kind, name, classes, more, elsewhere=others)

    @property
    def group(self) -> str:
        """The producer group, without its namespace."""
        return self.config.without_namespace(self.settings.producer_group)

    @property
    def client_id(self) -> str:
        """The id brokers know this producer by."""
        return self.config.client_id()

    def _shown(self) -> dict[str, list[str]]:
        return {"topics": sorted(map(self.config.without_namespace, self._preparer.topics))}

    # --- observers --------------------------------------------------------------------------------

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Call ``hook`` before and after each try of a send; what it raises is only logged."""
        self.send_hooks.register(hook)
        self._observe_tries()

    def register_check_forbidden_hook(self, hook: CheckForbiddenHook) -> None:
        """Ask ``hook`` before each try of a send; what it raises ends the send."""
        self.check_forbidden_hooks.register(hook)
        self._observe_tries()

    def add_retry_response_code(self, code: int) -> None:
        """Try a send again when a broker answers with ``code``, besides those set (C-87)."""
        codes = frozenset({*self.settings.retry_response_codes, code})
        changed = replace(self.settings, retry_response_codes=codes)
        changed.check()
        self.settings = changed
        if self._started is not None:
            self._started.machine.policy.settings = changed

    def _observe_tries(self) -> TryObserver:
        if self._observer is None:
            self._observer = TryObserver(
                self.config, self.group, self.send_hooks, self.check_forbidden_hooks,
                None, self._clock,
            )  # fmt: skip
        started = self._started
        if started is not None:
            started.machine.sender.observer = self._observer
        return self._observer

    # --- life cycle -------------------------------------------------------------------------------

    def _begin_start(self) -> None:
        self._check_new()
        self.config.name_servers()

    def _joining(self) -> Joining:
        """Return what the machine is made of besides the engine."""
        return Joining(self.settings, self.config, None, (), self._unwrap)

    def _joined(self, machine: P) -> P:
        """Have the sends of a new machine observed; on the loop."""
        if machine.faults is not None:
            self._observe_tries().faults = machine.faults
        machine.sender.observer = self._observer
        self._tracing.start()
        return machine

    async def _close(self, machine: P) -> None:
        """Leave the instance; on the loop."""
        try:
            await machine.close()
        finally:
            await self._tracing.stop()

    def _master_address(self, broker_name: str) -> str | None:
        """Return where a broker's master is, as last heard; None unless it runs."""
        started = self._started
        return None if started is None else started.engine.instance.routes.master(broker_name)

    def _timeout(self, timeout_ms: float | None) -> float:
        if timeout_ms is None:
            return self.settings.send_msg_timeout_ms
        check_time("timeout_ms", timeout_ms)
        return timeout_ms

    def _flush_timeout(self, timeout_ms: float | None) -> float | None:
        if timeout_ms is not None:
            check_time("timeout_ms", timeout_ms)
        return timeout_ms

    # --- on the loop ------------------------------------------------------------------------------

    async def _request(self, message: Message, target: SendTarget, timeout_ms: float) -> MessageExt:
        machine = self._machine
        requests = machine.requests
        correlation_id = requests.mark(message, timeout_ms)
        prepared = self._preparer.one(message)
        if self._observer is not None:
            prepared.message = message
        if is_timed(prepared, message):
            await machine.calls.require_timers(prepared.topic, target.queue)
        reply = await requests.send(prepared, target, correlation_id, timeout_ms)
        reply.topic = self.config.without_namespace(reply.topic)
        return reply


def not_flushed(under_way: int, timeout_ms: float | None) -> FlushTimeoutError:
    """Return the error of a flush whose time is over."""
    return FlushTimeoutError(
        f"{under_way} messages are still on their way after {timeout_ms or 0:g} ms; each ends "
        "within the timeout of its own send",
        under_way=under_way,
    )


def is_timed(prepared: PreparedSend, message: Message) -> bool:
    """Whether only brokers from 5.0 on can hold the message back as long as it wants."""
    return TIMER_MARK in prepared.properties and message.is_timed


def target_of(
    message: Message,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
    arg: Any,
    sharding_key: str | None,
    unwrap: Callable[[MessageQueue], MessageQueue] | None = None,
) -> SendTarget:
    """Return where a message is to go, checking that only one way is named.

    Raises:
        ConfigurationError: more than one way, a key that is not a str, what is not a queue, or a
            way named for a message of a lite topic.
        MessageInvalidError: the queue belongs to another topic (C-469).
    """
    if queue is None and selector is None and sharding_key is None:
        if type(message) is Message and PROPERTY_LITE_TOPIC in message.properties:
            return _lite_target(message.properties[PROPERTY_LITE_TOPIC])
        return ANY_QUEUE
    if isinstance(message, Message) and message.lite_topic is not None:
        raise ConfigurationError(
            "a message of a lite topic goes to the queue its name belongs to; leave "
            "message_queue, selector and sharding_key out"
        )
    if (queue is not None) + (selector is not None) + (sharding_key is not None) > 1:
        raise ConfigurationError("give one of message_queue, selector, sharding_key, not several")
    if queue is not None:
        if not isinstance(queue, MessageQueue):
            raise ConfigurationError(
                f"message_queue must be a MessageQueue, not {queue!r}; "
                "fetch_publish_message_queues(topic) returns those of a topic"
            )
        if queue.topic != message.topic:
            raise MessageInvalidError(
                f"the message is for topic {message.topic!r} and message_queue is of "
                f"{queue.topic!r}; give a queue of the message's topic"
            )
        return SendTarget(queue=queue)
    if sharding_key is not None:
        if not isinstance(sharding_key, str):
            raise ConfigurationError(f"sharding_key must be a str, not {sharding_key!r}")
        key = sharding_key
        return SendTarget(pick=lambda queues: queue_of_key(queues, key))
    choose = selector
    if not callable(choose):
        raise ConfigurationError(
            f"selector must be a function of queues, message and arg, not {choose!r}"
        )

    def pick(queues: tuple[MessageQueue, ...]) -> MessageQueue:
        known = queues if unwrap is None else tuple(map(unwrap, queues))
        chosen: object = choose(known, message, arg)
        if chosen is None:
            raise ConfigurationError(
                "the selector returned None; it must return one of the queues it was given"
            )
        if not isinstance(chosen, MessageQueue):
            raise ConfigurationError(
                f"the selector returned {chosen!r}, which is not a MessageQueue"
            )
        return chosen

    return SendTarget(pick=pick)


def _lite_target(name: str) -> SendTarget:
    """Return the queue whose broker takes a lite topic for its own."""
    return SendTarget(pick=lambda queues: queues[lite_queue_index(name, len(queues))])

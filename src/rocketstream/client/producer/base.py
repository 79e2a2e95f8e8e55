"""The common part of both producers: settings, state, targets, observers, results of batches.

No waiting and no sockets; coroutines here run on the engine's loop, whichever face it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.checks import check_range, checks_calls
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.hooks import (
    CheckForbiddenHook,
    SendMessageHook,
    client_made,
)
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.groups import CheckTransaction
from rocketstream.client.instance.life_cycle import Client
from rocketstream.client.keyword_settings import refuse_unknown
from rocketstream.client.keywords import ProducerKeywords
from rocketstream.client.producer.async_sender import AsyncSender, policy_of
from rocketstream.client.producer.gatherer import Gatherer, end_each
from rocketstream.client.producer.many import Encoding, Many, ManySends
from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.observer import FaultStrategy, TryObserver
from rocketstream.client.producer.outbox import Outbox
from rocketstream.client.producer.policy import SendPolicy, SendTarget
from rocketstream.client.producer.request_reply import Requests
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.client.trace import PRODUCE, TRACE_SETTINGS, tracing_of
from rocketstream.errors import (
    FlushTimeoutError,
    MessageInvalidError,
    RocketMQError,
)
from rocketstream.model import Message, MessageQueue
from rocketstream.protocol.codes import version_ordinal
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.sends import PreparedSend
from rocketstream.transport.blocking_pool import BlockingPool

if TYPE_CHECKING:
    from rocketstream.columns.given import Given

logger: logging.Logger = logging.getLogger("rocketstream.client")

Messages = Message | Iterable[Message]

TIMER_MARK = "TIMER_DE"
"""Part of every timer property's name, quick to look for in the properties' text."""
TIMER_VERSION = version_ordinal(5, 0, 0)
_SETTINGS = frozenset(ProducerSettings.__slots__) - {"producer_group", "unit_mode"}


@dataclass(frozen=True, slots=True)
class Joining:
    """The parts a producer brings along when it joins its client instance.

    Attributes:
        policy: how it sends, and its settings.
        observer: told of each try.
        config: of its client.
        check: answers brokers that ask how a transaction went; None where there are none.
        announced: topics whose brokers are to know the producer, besides ``settings.topics``.
    """

    policy: SendPolicy
    observer: TryObserver
    config: ClientConfig
    check: CheckTransaction | None
    announced: Sequence[str]


class ProducerMachine:
    """A producer that has joined its client instance; made on the loop.

    Args:
        engine: the instance and its loop.
        joining: what the producer brings along.

    Attributes:
        sender: sends without waiting.
        admin: asks what is not a send.
        requests: requests that wait for a reply.

    Raises:
        ClientStateError: the instance has a producer of this group.
    """

    def __init__(self, engine: Engine, joining: Joining) -> None:
        instance, policy, config = engine.instance, joining.policy, joining.config
        settings = policy.settings
        topics = [config.with_namespace(topic) for topic in settings.topics]
        self._instance, self._group = instance, settings.producer_group
        instance.groups.add_producer(
            self._group, [settings.create_topic_key, *topics], joining.check
        )
        self.sender: AsyncSender = AsyncSender(instance, policy, joining.observer)
        self.admin: MQAdmin = MQAdmin(instance, config)
        self.requests: Requests = Requests(self.sender, config.client_id())
        self._faults: FaultStrategy | None = None
        if settings.send_latency_fault_enable:
            self._faults = FaultStrategy(policy, instance, engine.loop)
            joining.observer.tell(self._faults)
            policy.rotation = self._faults.rotation()
        # Brokers that ask us something must know us before the first send (C-446).
        instance.background.run_soon(self._announce([*topics, *joining.announced]))

    async def _announce(self, topics: Iterable[str]) -> None:
        """Have routes of topics and tell their brokers who we are; failures are logged."""
        for topic in topics:
            try:
                await self._instance.route_updates.update(topic)
            except RocketMQError as error:
                logger.info("no route of topic %s yet: %s", topic, error)
        await self._instance.heartbeats.send()

    async def close(self) -> None:
        """Leave the instance; what still waits for an answer fails."""
        if self._faults is not None:
            self._faults.close()
        self.requests.close()
        await self._instance.unregister_producer(self._group)


class BlockingMachine(ProducerMachine):
    """The machine of the sync face: sends that are waited for have sockets of their own.

    Attributes:
        pool: those sockets.
        outbox: messages on their way that nobody waits for.
    """

    def __init__(self, engine: Engine, joining: Joining, clock: Clock) -> None:
        config = joining.config
        self.pool: BlockingPool = BlockingPool(
            connect_timeout_ms=config.connect_timeout_ms,
            ssl_context=config.tls_context(),
            before_request=config.before_request(),
            after_response=config.after_response(),
            busy_wait=joining.policy.settings.busy_wait,
            clock=clock,
        )
        super().__init__(engine, joining)
        self.outbox: Outbox = Outbox(engine, self.sender)


class LoopMachine(ProducerMachine):
    """The machine of the asyncio face.

    Attributes:
        gatherer: gathers messages into batches; None without ``auto_batch``.
    """

    def __init__(self, engine: Engine, joining: Joining) -> None:
        super().__init__(engine, joining)
        self.gatherer: Gatherer | None = None
        if joining.policy.settings.auto_batch:
            loop = engine.loop
            self.gatherer = Gatherer(self.sender, loop, loop.call_soon, end_each)


P = TypeVar("P", bound=ProducerMachine)


@checks_calls()
class ProducerBase(Client[P], Generic[P]):
    """Settings, hooks, and the parts of a send, for both faces."""

    config: ClientConfig

    _kind = "producer"
    _settings_classes: tuple[type[Any], ...] = (ProducerSettings, ClientConfig)
    _keywords: tuple[str, ...] = ("config", "clock", *TRACE_SETTINGS)
    """Names its constructor takes besides settings."""

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        given: dict[str, Any] = {**settings}
        shared = client_config(config, namesrv_addr, given)
        self._tracing = tracing_of(given, group, PRODUCE, shared, clock)
        kind = type(self).__name__.removeprefix("Async")
        refuse_unknown(kind, given, _SETTINGS, self._settings_classes, self._keywords)
        own = ProducerSettings(shared.with_namespace(group), unit_mode=shared.unit_mode, **given)
        own.check()
        self.config = shared.with_own_instance(clock)
        self._policy = policy_of(own, self.config, clock)
        self._create(clock)
        self._observer = TryObserver(self.config, self.group, clock)
        self._preparer = MessagePreparer(self.settings, clock, self.config)
        self._tracing.observe_sends(self.register_send_message_hook)
        client_made(self)

    def _settings_kinds(self) -> tuple[type[Any], ...]:
        return self._settings_classes

    @property
    def settings(self) -> ProducerSettings:
        """Its settings, as they are now."""
        return self._policy.settings

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
        self._observer.call(hook)

    def register_check_forbidden_hook(self, hook: CheckForbiddenHook) -> None:
        """Ask ``hook`` before each try of a send; what it raises ends the send."""
        self._observer.ask(hook)

    def add_retry_response_code(self, code: int) -> None:
        """Try a send again when a broker answers with ``code``, besides those set (C-87)."""
        with self._changing:
            codes = frozenset({*self.settings.retry_response_codes, code})
            changed = replace(self.settings, retry_response_codes=codes)
            changed.check()
            self._policy.settings = changed

    # --- life cycle -------------------------------------------------------------------------------

    def _admin(self) -> MQAdmin:
        return self._machine.admin

    def _joining(self) -> Joining:
        """Return what the machine is made of besides the engine."""
        return Joining(self._policy, self._observer, self.config, None, ())

    def _joined(self, machine: P) -> P:
        """Take a new machine over; on the loop."""
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
        return None if started is None else started.engine.instance.routes.masters.get(broker_name)

    def _timeout(self, timeout_ms: float | None) -> float:
        if timeout_ms is None:
            return self._policy.settings.send_msg_timeout_ms
        check_range("timeout_ms", timeout_ms, 0, hint=float)
        return timeout_ms

    def _flush_timeout(self, timeout_ms: float | None) -> float | None:
        if timeout_ms is not None:
            check_range("timeout_ms", timeout_ms, 0, hint=float)
        return timeout_ms

    # --- on the loop ------------------------------------------------------------------------------

    async def _require_timers(
        self, prepared: PreparedSend, message: Message, target: SendTarget
    ) -> None:
        """See to it that the brokers of a topic hold a timed message back.

        Raises:
            MessageInvalidError: one is older than 5.0 and would deliver at once, or none answers.
            SendRouteError: the topic has no route.
        """
        if is_timed(prepared, message):
            await self._require_timers_of(prepared.topic, target.queue)

    async def _require_timers_of(self, topic: str, queue: MessageQueue | None) -> None:
        """See to it as above for any queue of a topic, or for one."""
        sender = self._machine.sender
        instance = sender.instance
        queues = await sender.publish_queues(topic)
        names = {queue.broker_name} if queue else {each.broker_name for each in queues}

        def versions_now() -> dict[str, int]:
            masters = {name: instance.routes.masters.get(name) for name in names}
            return {
                name: instance.heartbeats.broker_version(address) if address else 0
                for name, address in masters.items()
            }

        versions = versions_now()
        if 0 in versions.values():
            await instance.heartbeats.send()
            versions = versions_now()
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

    async def _many(self, topic: str, given: Given, timeout_ms: float) -> Many:
        """Return what sends the messages of a ``send_many``, step by step."""
        sender = self._machine.sender
        wrapped = self._preparer.topic(topic)
        queues = await sender.publish_queues(wrapped)
        sends = ManySends(
            sender, self._preparer, wrapped, timeout_ms, self._clock, self._require_timers_of
        )
        encoding = Encoding(wrapped, queues, given.columns, self.settings, self._clock)
        return Many(topic, given, encoding, sends)

    async def _request(self, message: Message, target: SendTarget, timeout_ms: float) -> MessageExt:
        machine = self._machine
        requests = machine.requests
        correlation_id = requests.mark(message, timeout_ms)
        prepared = self._preparer.one(message)
        await self._require_timers(prepared, message, target)
        reply = await requests.send(prepared, target, correlation_id, timeout_ms)
        reply._topic = self.config.without_namespace(reply.topic)
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

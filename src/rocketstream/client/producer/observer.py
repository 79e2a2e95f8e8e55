"""Observes each try of a send: calls the hooks around it and records how its broker did.

A producer without hooks and fault table observes nothing, and its sends cost nothing more. With
``send_latency_fault_enable`` brokers that are slow or fail are avoided, and those that could not be
reached are probed: upstream's MQFaultStrategy with 5.x's bounds and detector (C-465, C-466, C-603).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from rocketstream._util.clock import Clock
from rocketstream._util.patience import up_to
from rocketstream.client.config import ClientConfig, local_address
from rocketstream.client.hooks import (
    CheckForbiddenContext,
    CheckForbiddenHook,
    CheckForbiddenHooks,
    MessageType,
    SendHooks,
    SendMessageContext,
    SendMessageHook,
)
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.message import GatheredSend
from rocketstream.client.producer.policy import FaultAvoidingRotation, FaultTable, SendPolicy
from rocketstream.errors import (
    BrokerError,
    RocketMQError,
    SendError,
    SendOutcome,
    TooManyRequestsError,
    TransportError,
)
from rocketstream.model import PROPERTY_DELAY, Message, MessageQueue, SendResult
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetMaxOffsetRequestHeader
from rocketstream.protocol.properties import PROPERTY_TRAN_MSG
from rocketstream.protocol.sends import PreparedSend

logger: logging.Logger = logging.getLogger("rocketstream.client")

SYNC, ASYNC, ONEWAY = "SYNC", "ASYNC", "ONEWAY"


class TryObserver:
    """Calls hooks around the tries of a producer, and tells the fault table how brokers did.

    Args:
        config: says who the client is.
        group: the producer group, as hooks see it.
        clock: where durations come from.

    Attributes:
        is_on: somebody wants to know of tries; nothing is observed before.
        send_hooks: called around each try (C-475).
        check_forbidden_hooks: asked before each try (C-475).
    """

    def __init__(self, config: ClientConfig, group: str, clock: Clock) -> None:
        self.clock = clock
        self.send_hooks: SendHooks = SendHooks()
        self.check_forbidden_hooks: CheckForbiddenHooks = CheckForbiddenHooks()
        self.is_on: bool = False
        self._faults: FaultStrategy | None = None
        self._config = config
        self._group = group

    def call(self, hook: SendMessageHook) -> None:
        """Call a hook before and after each try."""
        self.send_hooks.register(hook)
        self.is_on = True

    def ask(self, hook: CheckForbiddenHook) -> None:
        """Ask a hook before each try."""
        self.check_forbidden_hooks.register(hook)
        self.is_on = True

    def tell(self, faults: FaultStrategy) -> None:
        """Tell how the broker of each try did."""
        self._faults = faults
        self.is_on = True

    def begin(
        self, prepared: PreparedSend, queue: MessageQueue, address: str, mode: str
    ) -> ObservedTry:
        """Begin to observe a try, before its request is written.

        Raises:
            SendError: a check-forbidden hook refuses it.
        """
        hooks, forbidding = self.send_hooks, self.check_forbidden_hooks
        parts = prepared.members if isinstance(prepared, GatheredSend) else (prepared,)
        if forbidding:
            for each in parts:
                self._check(each, queue, address, mode)
        contexts: list[SendMessageContext] = []
        if hooks:
            contexts = [self._context(each, queue, address, mode) for each in parts]
            for context in contexts:
                hooks.before(context)
        return ObservedTry(self, prepared, queue.broker_name, contexts, self.clock.monotonic_ms())

    def _context(
        self, prepared: PreparedSend, queue: MessageQueue, address: str, mode: str
    ) -> SendMessageContext:
        return SendMessageContext(
            self._group,
            prepared.message,
            self._config.queue_without_namespace(queue),
            address,
            self._config.client_ip or local_address(),
            mode,
            msg_type=message_type(prepared.message),
            namespace=self._config.effective_namespace(),
        )

    def _check(self, prepared: PreparedSend, queue: MessageQueue, address: str, mode: str) -> None:
        context = CheckForbiddenContext(
            self._config.namesrv_addr or "",
            self._group,
            prepared.message,
            self._config.queue_without_namespace(queue),
            address,
            mode,
            unit_mode=self._config.unit_mode,
        )
        try:
            self.check_forbidden_hooks.check(context)
        except SendError:
            raise
        except Exception as error:
            text = f"a check-forbidden hook refused the message: {error}"
            raise SendError(text, SendOutcome.NOT_SENT, topic=prepared.topic) from error


class ObservedTry:
    """One try under observation; ``ended`` is called once.

    Hooks see each message that was gathered into a batch, as if it went alone.
    """

    __slots__ = ("_broker_name", "_contexts", "_observer", "_prepared", "_started_ms")

    def __init__(
        self,
        observer: TryObserver,
        prepared: PreparedSend,
        broker_name: str,
        contexts: Sequence[SendMessageContext],
        started_ms: float,
    ) -> None:
        self._observer = observer
        self._prepared = prepared
        self._broker_name = broker_name
        self._contexts = contexts
        self._started_ms = started_ms

    def ended(self, result: SendResult | None, error: BaseException | None) -> None:
        """Tell how it ended: with a result, with an error, or with neither (one-way)."""
        observer = self._observer
        faults = observer._faults
        if faults is not None:
            now = observer.clock.monotonic_ms()
            faults.update(self._broker_name, now - self._started_ms, now, error)
        contexts = self._contexts
        results: Sequence[SendResult | None] = [result] * len(contexts)
        if result is not None and isinstance(self._prepared, GatheredSend):
            results = self._prepared.results(result)
        for context, its in zip(contexts, results, strict=False):
            context.send_result = its
            context.error = error
            observer.send_hooks.after(context)


def message_type(message: Message | Sequence[Message]) -> MessageType:
    """Return what hooks and trace call a message (C-475)."""
    if not isinstance(message, Message):
        return MessageType.NORMAL_MSG
    if message.properties.get(PROPERTY_TRAN_MSG) == "true":
        return MessageType.TRANS_MSG_HALF
    if PROPERTY_DELAY in message.properties or message.is_timed:
        return MessageType.DELAY_MSG
    return MessageType.NORMAL_MSG


class FaultStrategy:
    """Faults of brokers, as one producer knows them. ``update`` may be called from any thread."""

    def __init__(
        self, policy: SendPolicy, instance: MQClientInstance, loop: asyncio.AbstractEventLoop
    ) -> None:
        settings = policy.settings
        self.table: FaultTable = FaultTable(settings.latency_max, settings.not_available_duration)
        self._policy = policy
        self._instance = instance
        self._loop = loop
        self._now = instance.clock.monotonic_ms
        self._detecting: asyncio.Task[None] | None = None
        self._closed = False

    def rotation(self) -> FaultAvoidingRotation:
        """Return a rotation of queues that avoids the brokers in trouble."""
        return FaultAvoidingRotation(random.randrange(1 << 16), self.table, self._now)

    def update(
        self, broker_name: str, latency_ms: float, now_ms: float, error: BaseException | None
    ) -> None:
        """Take in how a try ended."""
        if error is None:
            self.table.update(broker_name, latency_ms, now_ms)
            return
        if not self._is_brokers_fault(error):
            return
        lost = isinstance(error, TransportError) and self._policy.settings.start_detector_enable
        self.table.update(broker_name, latency_ms, now_ms, isolate=True, reachable=not lost)
        if lost and not self._closed:
            try:
                self._loop.call_soon_threadsafe(self._detect_soon)
            except RuntimeError:  # the loop was closed meanwhile
                return

    def _is_brokers_fault(self, error: BaseException) -> bool:
        if isinstance(error, BrokerError):
            # A refused message says nothing of the broker; other brokers would refuse it too.
            return error.code in self._policy.settings.retry_response_codes
        return isinstance(error, TransportError) and not isinstance(error, TooManyRequestsError)

    # --- detection --------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop probing; on the loop."""
        self._closed = True
        if self._detecting is not None:
            self._detecting.cancel()

    def _detect_soon(self) -> None:
        if self._closed or (self._detecting is not None and not self._detecting.done()):
            return
        self._detecting = self._loop.create_task(self._detect(), name="rocketstream-detector")

    async def _detect(self) -> None:
        while names := self.table.unreachable():
            await asyncio.gather(*(self._probe(name) for name in names))
            if self.table.unreachable():
                await asyncio.sleep(self._policy.settings.detect_interval_ms / 1000)

    async def _probe(self, broker_name: str) -> None:
        address = self._instance.routes.masters.get(broker_name)
        if address is None:
            self.table.recovered(broker_name)  # out of every route: nothing is sent there anyway
            return
        header = GetMaxOffsetRequestHeader(self._policy.settings.create_topic_key, 0)
        command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header)
        try:
            async with up_to(self._policy.settings.detect_timeout_ms / 1000):
                await self._instance.remoting.request(
                    address, command, self._policy.settings.detect_timeout_ms
                )
        except (RocketMQError, TimeoutError) as error:
            logger.debug("broker %s at %s is still not there: %s", broker_name, address, error)
            return
        logger.info("broker %s at %s can be reached again", broker_name, address)
        self.table.recovered(broker_name)

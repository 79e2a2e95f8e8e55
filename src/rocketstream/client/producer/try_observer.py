"""Observes each try of a send: calls the hooks around it and records how its broker did.

Law: a producer without hooks and fault table has no observer, and its sends cost nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig, local_address
from rocketstream.client.hooks import (
    CheckForbiddenContext,
    CheckForbiddenHooks,
    MessageType,
    SendHooks,
    SendMessageContext,
)
from rocketstream.client.producer.fault import FaultStrategy
from rocketstream.client.producer.gathered import GatheredSend
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.errors import SendError, SendOutcome
from rocketstream.model import PROPERTY_DELAY, Message, MessageQueue, SendResult
from rocketstream.protocol.properties import PROPERTY_TRAN_MSG

SYNC, ASYNC, ONEWAY = "SYNC", "ASYNC", "ONEWAY"


@dataclass(slots=True)
class TryObserver:
    """Calls hooks around the tries of sends, and tells the fault table how brokers did.

    Attributes:
        config: says who the client is.
        group: the producer group, as hooks see it.
        send_hooks: called around each try (C-475).
        check_forbidden_hooks: asked before each try (C-475).
        faults: records how brokers did; None without fault latency.
        clock: where durations come from.
    """

    config: ClientConfig
    group: str
    send_hooks: SendHooks
    check_forbidden_hooks: CheckForbiddenHooks
    faults: FaultStrategy | None
    clock: Clock

    def begin(
        self, prepared: PreparedSend, queue: MessageQueue, address: str, mode: str
    ) -> ObservedTry:
        """Begin to observe a try, before its request is written.

        Raises:
            SendError: a check-forbidden hook refuses it.
        """
        parts = prepared.members if isinstance(prepared, GatheredSend) else (prepared,)
        if self.check_forbidden_hooks:
            for each in parts:
                self._check(each, queue, address, mode)
        contexts: list[SendMessageContext] = []
        if self.send_hooks:
            contexts = [self._context(each, queue, address, mode) for each in parts]
            for context in contexts:
                self.send_hooks.before(context)
        return ObservedTry(self, prepared, queue.broker_name, contexts, self.clock.monotonic_ms())

    def _context(
        self, prepared: PreparedSend, queue: MessageQueue, address: str, mode: str
    ) -> SendMessageContext:
        return SendMessageContext(
            self.group,
            prepared.message,
            self.config.queue_without_namespace(queue),
            address,
            self.config.client_ip or local_address(),
            mode,
            msg_type=message_type(prepared.message),
            namespace=self.config.effective_namespace(),
        )

    def _check(self, prepared: PreparedSend, queue: MessageQueue, address: str, mode: str) -> None:
        context = CheckForbiddenContext(
            self.config.namesrv_addr or "",
            self.group,
            prepared.message,
            self.config.queue_without_namespace(queue),
            address,
            mode,
            unit_mode=self.config.unit_mode,
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
        faults = observer.faults
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

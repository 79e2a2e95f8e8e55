"""What the transaction producers of both faces share: listener, settings, hooks, the half.

Law: no waiting.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.transaction import TransactionSettings, end_header, mark_half
from rocketstream.client.hooks import (
    EndTransactionContext,
    EndTransactionHook,
    EndTransactionHooks,
)
from rocketstream.client.instance.engine import Engine
from rocketstream.client.keywords import TransactionProducerKeywords
from rocketstream.client.producer.base import P, ProducerBase
from rocketstream.client.producer.machine import Joining
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.client.producer.transaction import (
    TransactionChecks,
    TransactionListener,
    checked_listener,
    end_command,
    no_listener,
)
from rocketstream.model import LocalTransactionState, Message, SendResult
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.command import RemotingCommand

logger = logging.getLogger("rocketstream.client")

_SETTINGS = tuple(TransactionSettings.__slots__)


class TransactionBase(ProducerBase[P]):
    """Arguments and state of a transaction producer; see ``rocketstream.TransactionProducer``."""

    _settings_classes = (TransactionSettings, ProducerSettings, ClientConfig)
    _keywords = ("transaction_listener", *ProducerBase._keywords)

    def __init__(
        self,
        group: str,
        *,
        transaction_listener: TransactionListener | None = None,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[TransactionProducerKeywords],
    ) -> None:
        others: dict[str, Any] = {**settings}
        own = {name: others.pop(name) for name in _SETTINGS if name in others}
        self.transaction_settings = TransactionSettings(**own)
        self.transaction_settings.check()
        self._listener = checked_listener(transaction_listener)
        self.end_transaction_hooks = EndTransactionHooks()
        super().__init__(group, namesrv_addr=namesrv_addr, config=config, clock=clock, **others)
        self._checks = TransactionChecks(
            self.settings.producer_group,
            lambda: self._listener,
            self.transaction_settings,
            self.end_transaction_hooks,
        )
        self._tracing.observe_ends(self.end_transaction_hooks)

    @property
    def transaction_listener(self) -> TransactionListener | None:
        """The listener; may be set while running."""
        return self._listener

    @transaction_listener.setter
    def transaction_listener(self, listener: Any) -> None:
        self._listener = checked_listener(listener)

    def register_end_transaction_hook(self, hook: EndTransactionHook) -> None:
        """Call ``hook`` whenever the end of a transaction is sent; what it raises is logged."""
        self.end_transaction_hooks.register(hook)

    # --- life cycle -------------------------------------------------------------------------------

    def _joining(self) -> Joining:
        # Brokers ask whoever is there, also a producer that has not sent anything yet.
        announced = (self.settings.create_topic_key,)
        return replace(super()._joining(), inner=self._checks, announced=announced)

    def _joined(self, machine: P) -> P:
        self._checks.joined(machine.sender.instance)
        return super()._joined(machine)

    async def _close(self, machine: P) -> None:
        self._checks.executor.close()
        await super()._close(machine)

    # --- the half and its end ---------------------------------------------------------------------

    def _half(self, message: Message) -> tuple[TransactionListener, PreparedSend]:
        listener = self._listener
        if listener is None:
            raise no_listener()
        mark_half(message, self.settings.producer_group)
        prepared = self._preparer.one(message)
        prepared.sys_flag |= MessageSysFlag.TRANSACTION_PREPARED
        prepared.message = message
        return listener, prepared

    def _half_stored(self, engine: Engine, result: SendResult) -> None:
        # The broker may ask before the next round of heartbeats.
        instance = engine.instance
        address = instance.routes.master(result.message_queue.broker_name)
        if address is not None and not instance.broker_version(address):
            engine.call_soon(instance.heartbeat_soon)

    def _end_request(
        self,
        engine: Engine,
        message: Message,
        result: SendResult,
        state: LocalTransactionState,
        remark: str | None,
    ) -> tuple[str, RemotingCommand]:
        """Return where to send the end of a transaction, and what; tells the hooks.

        Raises:
            RouteNotFoundError: the broker has left every route.
            RemoteProtocolError: its id of the half cannot be read.
        """
        broker_name = result.message_queue.broker_name
        address = engine.instance.routes.known_master(broker_name)  # never the fast port (C-13)
        header = end_header(self.settings.producer_group, result, state)
        if self.end_transaction_hooks:
            context = EndTransactionContext(
                # Upstream names a transaction by the message's id, not by what the broker answers.
                self.group,
                message,
                address,
                result.msg_id,
                result.msg_id,
                state.value,
            )
            self.end_transaction_hooks.end(context)
        return address, end_command(header, remark)


def end_failed(result: SendResult, state: LocalTransactionState, error: Exception) -> None:
    """Log that a broker was not told how a transaction ended: it will ask (C-484)."""
    logger.warning(
        "local transaction of %s ended with %s, but the broker could not be told: %s",
        result.msg_id,
        state.value,
        error,
    )

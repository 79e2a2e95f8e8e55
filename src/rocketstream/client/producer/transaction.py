"""Transactions: the listener, the end of a transaction, and the broker's questions about one.

Law: shared by both faces; runs on the engine's loop except for what users' listeners do.
"""

from __future__ import annotations

import abc
import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields
from typing import Any

from rocketstream.client.core.transaction import (
    LocalOutcome,
    TransactionSettings,
    checked_header,
    outcome_of_error,
    outcome_of_value,
)
from rocketstream.client.hooks import EndTransactionContext, EndTransactionHooks
from rocketstream.client.instance.callbacks import CallbackExecutor
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.model import (
    LocalTransactionState,
    Message,
    SendResult,
    TransactionSendResult,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")

CHECK_JOIN_S = 1.0
EXECUTE = "executeLocalTransactionBranch"
CHECK = "checkLocalTransactionState"
Answer = LocalTransactionState | Awaitable[LocalTransactionState]


class TransactionListener(abc.ABC):
    """What a transaction producer runs and asks; both methods may be coroutines.

    Any live producer of the group may be asked about any transaction of the group, so the answers
    must come from state they share, such as the database the local transaction is in (C-486).
    """

    @abc.abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> Answer:
        """Run the local transaction, once the broker holds ``message`` back.

        ``message.transaction_id`` is what a later question will name. UNKNOW, an exception, or
        anything else that is not a state makes the broker ask later.
        """

    @abc.abstractmethod
    def check_local_transaction(self, message: MessageExt) -> Answer:
        """Tell how the local transaction of ``message`` ended; the broker asks until it knows."""


class TransactionChecks:
    """Answers brokers that ask how a transaction ended (C-485); the producer's inner part.

    Args:
        group: the producer group as the servers know it.
        listener: whom to ask; None logs and leaves the broker without an answer.
        settings: how many threads ask, and how many questions may wait.
        hooks: told of each end.
    """

    def __init__(
        self,
        group: str,
        listener: Callable[[], TransactionListener | None],
        settings: TransactionSettings,
        hooks: EndTransactionHooks,
    ) -> None:
        self._group = group
        self._listener = listener
        self._hooks = hooks
        self._hold_max = settings.check_request_hold_max
        self._coroutines = asyncio.Semaphore(settings.check_thread_pool_max_size)
        self._held = 0
        self._instance: MQClientInstance | None = None
        self.executor = CallbackExecutor(settings.check_thread_pool_max_size, "rocketstream-check")

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    def joined(self, instance: MQClientInstance) -> None:
        """Take the instance that brokers' questions come through."""
        self._instance = instance

    def topics(self) -> Iterable[str]:
        """Return no topics: the instance keeps those it is asked to send to."""
        return ()

    def is_publish_topic_needs_update(self, topic: str) -> bool:
        """Return False, as for ``topics``."""
        return False

    async def check_transaction_state(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        """Ask the listener and tell the broker at ``address``."""
        listener = self._listener()
        if listener is None:
            logger.warning(
                "%s asks for a transaction of group %s, which has no listener", address, self._group
            )
            return
        if self._held >= self._hold_max:
            logger.warning(
                "%d questions about transactions of group %s wait already; one from %s is "
                "dropped, the broker will ask again", self._held, self._group, address,
            )  # fmt: skip
            return
        self._held += 1
        try:
            outcome = await self._ask(listener, message)
        finally:
            self._held -= 1
        await self._answer(address, message, header, outcome)

    async def _ask(self, listener: TransactionListener, message: MessageExt) -> LocalOutcome:
        call = listener.check_local_transaction
        if inspect.iscoroutinefunction(call):
            async with self._coroutines:
                return await outcome_async(CHECK, call, message)
        return await outcome_in_thread(self.executor, CHECK, call, message)

    async def _answer(
        self,
        address: str,
        message: MessageExt,
        check: CheckTransactionStateRequestHeader,
        outcome: LocalOutcome,
    ) -> None:
        header = checked_header(self._group, check, message.msg_id, outcome.state)
        if self._hooks:
            end = EndTransactionContext(
                self._group, message, address, message.msg_id, check.transaction_id,
                outcome.state.value, True,
            )  # fmt: skip
            self._hooks.end(end)
        assert self._instance is not None
        try:
            connection = await self._instance.remoting.connection(address)
            connection.oneway(end_command(header, outcome.remark))
        except RocketMQError as error:
            logger.warning(
                "the state of transaction %s could not be told to %s: %s",
                message.msg_id, address, error,
            )  # fmt: skip


def checked_listener(listener: Any) -> TransactionListener | None:
    """Return the listener if it has both methods.

    Raises:
        ConfigurationError: it has not.
    """
    if listener is None:
        return None
    for method in ("execute_local_transaction", "check_local_transaction"):
        if not callable(getattr(listener, method, None)):
            raise ConfigurationError(
                f"transaction_listener {type(listener).__name__} has no method {method}(); "
                "see rocketstream.TransactionListener"
            )
    return listener  # type: ignore[no-any-return]  # whatever has the methods


def no_listener() -> ConfigurationError:
    """Return the error of a transaction without listener (C-93, C-483)."""
    return ConfigurationError(
        "TransactionListener is null: give transaction_listener when making the producer"
    )


def end_command(header: EndTransactionRequestHeader, remark: str | None) -> RemotingCommand:
    """Return the one-way request that ends a transaction."""
    command = RemotingCommand.request(RequestCode.END_TRANSACTION, header, oneway=True)
    command.remark = remark
    return command


def transaction_result(result: SendResult, state: LocalTransactionState) -> TransactionSendResult:
    """Return a half's result with the state of its local transaction."""
    values = {field.name: getattr(result, field.name) for field in fields(SendResult)}
    values["transaction_id"] = result.transaction_id or result.msg_id
    return TransactionSendResult(**values, local_transaction_state=state)


# --- asking listeners -----------------------------------------------------------------------------


def outcome_now(where: str, call: Callable[..., Any], *args: Any) -> LocalOutcome | Awaitable[Any]:
    """Call a listener here; returns its outcome, or what is to be awaited for it."""
    try:
        value = call(*args)
    except Exception as error:
        return _raised(where, error)
    return value if inspect.isawaitable(value) else _returned(where, value)


async def outcome_async(where: str, call: Callable[..., Any], *args: Any) -> LocalOutcome:
    """Call a listener on the loop and await what it returns, if it can be."""
    value = outcome_now(where, call, *args)
    return value if isinstance(value, LocalOutcome) else await awaited(where, value)


async def awaited(where: str, value: Awaitable[Any]) -> LocalOutcome:
    """Await a listener's answer."""
    try:
        return _returned(where, await value)
    except Exception as error:
        return _raised(where, error)


async def outcome_in_thread(
    executor: CallbackExecutor, where: str, call: Callable[..., Any], *args: Any
) -> LocalOutcome:
    """Call a listener on a thread of ``executor``."""

    def guarded() -> LocalOutcome | Awaitable[Any]:
        try:
            return outcome_now(where, call, *args)
        except BaseException as error:  # such as SystemExit, which would end the loop
            return _raised(where, error)

    value = await executor.run(guarded)
    return value if isinstance(value, LocalOutcome) else await awaited(where, value)


def _raised(where: str, error: BaseException) -> LocalOutcome:
    logger.warning("%s raised; the transaction is UNKNOW", where, exc_info=error)
    return outcome_of_error(error, where)


def _returned(where: str, value: object) -> LocalOutcome:
    outcome = outcome_of_value(value)
    if outcome.remark is not None:
        logger.warning("%s: %s; the transaction is UNKNOW", where, outcome.remark)
    return outcome

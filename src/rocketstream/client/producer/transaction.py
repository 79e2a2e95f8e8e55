"""Transactions: the producer, its listener, the end of a transaction, brokers' questions about one.

On threads the local transaction runs where the caller is. With asyncio a plain function runs on a
thread of its own, never on the loop. Brokers' questions are answered on other threads (upstream's
TransactionMQProducer).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.ending import take_all, to_the_end
from rocketstream._util.executors import CallbackExecutor
from rocketstream._util.user_code import IS_CALLED_BY_CLIENT, result_of
from rocketstream.checks import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.hooks import (
    EndTransactionContext,
    EndTransactionHook,
    EndTransactionHooks,
)
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keywords import TransactionProducerKeywords
from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.client.producer.base import BlockingMachine, Joining, LoopMachine, P, ProducerBase
from rocketstream.client.producer.policy import ANY_QUEUE
from rocketstream.client.producer.producer import Producer
from rocketstream.client.producer.settings import ProducerSettings, TransactionSettings
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    MessageInvalidError,
    RocketMQError,
)
from rocketstream.limits import LOCAL_TRANSACTIONS_MAX
from rocketstream.model import (
    PROPERTY_DELAY,
    LocalTransactionState,
    Message,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from rocketstream.protocol.codes import MessageSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import PROPERTY_PGROUP, PROPERTY_TRAN_MSG
from rocketstream.protocol.sends import PreparedSend

logger: logging.Logger = logging.getLogger("rocketstream.client")

CHECK_JOIN_S = 1.0
EXECUTE = "executeLocalTransactionBranch"
CHECK = "checkLocalTransactionState"
Answer = LocalTransactionState | Awaitable[LocalTransactionState]


_END_FLAGS = {
    LocalTransactionState.COMMIT_MESSAGE: MessageSysFlag.TRANSACTION_COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: MessageSysFlag.TRANSACTION_ROLLBACK,
    LocalTransactionState.UNKNOW: MessageSysFlag.TRANSACTION_NOT,
}


@dataclass(frozen=True, slots=True)
class LocalOutcome:
    """How a local transaction ended.

    Attributes:
        state: what the broker is told.
        remark: what a listener raised, for the broker's log; None otherwise.
    """

    state: LocalTransactionState
    remark: str | None = None


NOT_STORED_OK = LocalOutcome(LocalTransactionState.ROLLBACK_MESSAGE)


def mark_half(message: Message, group: str) -> None:
    """Make a message the half of a transaction; a delay level is dropped (C-420, C-483).

    Raises:
        MessageInvalidError: it is to be delivered at a time of its own, or to a lite topic.
    """
    if not isinstance(message, Message):
        raise MessageInvalidError(f"message must be a rocketstream.Message, not {message!r}")
    if message.is_timed:
        raise MessageInvalidError(
            "a message of a transaction is delivered when it is committed; it cannot have a "
            "delivery time of its own",
            topic=message.topic,
        )
    if message.lite_topic is not None:
        raise MessageInvalidError(
            "a message of a lite topic cannot be in a transaction: it would be consumed before it "
            "is committed",
            topic=message.topic,
        )
    message.properties.pop(PROPERTY_DELAY, None)
    message.properties[PROPERTY_TRAN_MSG] = "true"
    message.properties[PROPERTY_PGROUP] = group


def may_execute(result: SendResult) -> bool:
    """Whether the local transaction is run at all: only if the half is stored as wished (C-484)."""
    return result.send_status is SendStatus.SEND_OK


def outcome_of_value(value: object) -> LocalOutcome:
    """Return the outcome a listener's answer stands for; None and junk are UNKNOW (C-484)."""
    if isinstance(value, LocalTransactionState):
        return LocalOutcome(value)
    if value is None:
        return LocalOutcome(LocalTransactionState.UNKNOW)
    remark = f"the listener returned {value!r:.100}, not a LocalTransactionState"
    return LocalOutcome(LocalTransactionState.UNKNOW, remark)


def outcome_of_error(error: BaseException, where: str) -> LocalOutcome:
    """Return the outcome of a listener that raised: UNKNOW, with its words (C-484, C-485)."""
    return LocalOutcome(
        LocalTransactionState.UNKNOW, f"{where} exception: {type(error).__name__}: {error}"
    )


def end_header(
    group: str, result: SendResult, state: LocalTransactionState
) -> EndTransactionRequestHeader:
    """Return the header that ends a transaction right after its half was stored.

    Raises:
        RemoteProtocolError: the broker's id of the half cannot be read.
    """
    _, _, commit_log_offset = decode_offset_msg_id(result.offset_msg_id)
    return EndTransactionRequestHeader(
        group,
        result.queue_offset,
        commit_log_offset,
        _END_FLAGS[state],
        result.msg_id,
        False,
        result.transaction_id,
        result.message_queue.broker_name,
    )


def checked_header(
    group: str,
    check: CheckTransactionStateRequestHeader,
    msg_id: str,
    state: LocalTransactionState,
) -> EndTransactionRequestHeader:
    """Return the header that ends a transaction the broker asked about."""
    return EndTransactionRequestHeader(
        group,
        check.tran_state_table_offset,
        check.commit_log_offset,
        _END_FLAGS[state],
        msg_id,
        True,
        check.transaction_id,
        check.bname,
    )


class TransactionListener(abc.ABC):
    """The code a transaction producer runs and asks; both methods may be coroutines.

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
    """Answers brokers that ask how a transaction ended (C-485).

    Args:
        group: the producer group as the servers know it.
        listener: whom to ask; None logs and leaves the broker without an answer.
        settings: how many threads ask, and how many questions may wait.
        hooks: told of each end.

    Attributes:
        listener: the same; may be replaced.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None,
        settings: TransactionSettings,
        hooks: EndTransactionHooks,
    ) -> None:
        self.listener = listener
        self._group = group
        self._hooks = hooks
        self._hold_max = settings.check_request_hold_max
        self._coroutines = asyncio.Semaphore(settings.check_thread_pool_max_size)
        self._held = 0
        self._instance: MQClientInstance | None = None
        self.executor: CallbackExecutor = CallbackExecutor(
            settings.check_thread_pool_max_size, "rocketstream-check"
        )

    def joined(self, instance: MQClientInstance) -> None:
        """Take the instance that brokers' questions come through."""
        self._instance = instance

    async def answer(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        """Ask the listener and tell the broker at ``address``."""
        listener = self.listener
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
        await self._tell(address, message, header, outcome)

    async def _ask(self, listener: TransactionListener, message: MessageExt) -> LocalOutcome:
        call = listener.check_local_transaction
        if inspect.iscoroutinefunction(call):
            async with self._coroutines:
                return await outcome_async(CHECK, call, message)
        return await outcome_in_thread(self.executor, CHECK, call, message)

    async def _tell(
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
            # Users' code, off the network thread; a producer that ends meanwhile tells none.
            with contextlib.suppress(ClientStateError):
                await self.executor.run(self._hooks.end, end)
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
        return _returned(where, await result_of(value))
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


_SETTINGS = tuple(TransactionSettings.__slots__)


class TransactionBase(ProducerBase[P]):
    """Arguments and state of a transaction producer; see ``rocketstream.TransactionProducer``."""

    transaction_settings: TransactionSettings
    end_transaction_hooks: EndTransactionHooks

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
        listener = checked_listener(transaction_listener)
        self.end_transaction_hooks = EndTransactionHooks()
        # Of asyncio alone; threads run a transaction where they send. Not that of the checks: a
        # broker's question may be about a transaction that takes long.
        self._local = CallbackExecutor(LOCAL_TRANSACTIONS_MAX, "rocketstream-transaction")
        super().__init__(group, namesrv_addr=namesrv_addr, config=config, clock=clock, **others)
        self._checks = TransactionChecks(
            self.settings.producer_group,
            listener,
            self.transaction_settings,
            self.end_transaction_hooks,
        )
        self._tracing.observe_ends(self.end_transaction_hooks)

    @property
    def transaction_listener(self) -> TransactionListener | None:
        """The listener; may be set while running."""
        return self._checks.listener

    @transaction_listener.setter
    def transaction_listener(self, listener: Any) -> None:
        self._checks.listener = checked_listener(listener)

    def register_end_transaction_hook(self, hook: EndTransactionHook) -> None:
        """Call ``hook`` whenever the end of a transaction is sent; what it raises is logged."""
        self.end_transaction_hooks.register(hook)

    # --- life cycle -------------------------------------------------------------------------------

    def _joining(self) -> Joining:
        # Brokers ask whoever is there, also a producer that has not sent anything yet.
        announced = (self.settings.create_topic_key,)
        return replace(super()._joining(), check=self._checks.answer, announced=announced)

    def _joined(self, machine: P) -> P:
        self._checks.joined(machine.sender.instance)
        return super()._joined(machine)

    async def _close(self, machine: P) -> None:
        self._checks.executor.close()
        self._local.close()
        await super()._close(machine)

    # --- the half and its end ---------------------------------------------------------------------

    def _half(self, message: Message) -> tuple[TransactionListener, PreparedSend]:
        listener = self._checks.listener
        if listener is None:
            raise no_listener()
        mark_half(message, self.settings.producer_group)
        prepared = self._preparer.one(message)
        prepared.sys_flag |= MessageSysFlag.TRANSACTION_PREPARED
        return listener, prepared

    def _half_stored(self, engine: Engine, result: SendResult) -> None:
        # The broker may ask before the next round of heartbeats.
        instance = engine.instance
        address = instance.routes.masters.get(result.message_queue.broker_name)
        if address is not None and not instance.heartbeats.broker_version(address):
            engine.call_soon(instance.heartbeats.send_soon)

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


@checks_calls()
class AsyncTransactionProducer(TransactionBase[LoopMachine], AsyncProducer):
    """Sends messages in transactions; arguments are those of ``rocketstream.TransactionProducer``.

    The listener's methods may be coroutines; others run on threads. ``shutdown`` waits for local
    transactions under way, up to the send timeout, so that their brokers are told.
    """

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._completing: set[asyncio.Task[Any]] = set()

    async def _close(self, machine: LoopMachine) -> None:
        close = super()._close
        await take_all(self._completed, lambda: close(machine))

    async def _completed(self) -> None:
        """Wait for local transactions under way, unless one of them waits for this."""
        if IS_CALLED_BY_CLIENT.get():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.send_msg_timeout_ms / 1000):
                while others := self._completing - {asyncio.current_task()}:
                    await asyncio.wait(others)

    async def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionSendResult:
        """Send in a transaction, as ``rocketstream.TransactionProducer`` does.

        Once the broker has answered that the message is stored, the local transaction is run and
        its broker told, though the caller is cancelled meanwhile. It runs in a task of its own:
        what it sets of context variables does not reach the caller.
        """
        engine = self._running().engine
        listener, prepared = self._half(message)
        result = await self._send(prepared, ANY_QUEUE, self._timeout(timeout_ms), self._begin())
        return await to_the_end(
            self._complete(engine, listener, message, arg, result),
            "was in a transaction",
            self._completing,
        )

    async def _complete(
        self,
        engine: Engine,
        listener: TransactionListener,
        message: Message,
        arg: Any,
        result: SendResult,
    ) -> TransactionSendResult:
        """Run the local transaction of a stored half, and tell its broker how it ended."""
        self._half_stored(engine, result)
        outcome = await self._execute(listener, message, arg, result)
        try:
            address, command = self._end_request(
                engine, message, result, outcome.state, outcome.remark
            )
            connection = await engine.instance.remoting.connection(address)
            connection.oneway(command)
        except RocketMQError as error:
            end_failed(result, outcome.state, error)
        return transaction_result(result, outcome.state)

    async def _execute(
        self, listener: TransactionListener, message: Message, arg: Any, result: SendResult
    ) -> LocalOutcome:
        if not may_execute(result):
            return NOT_STORED_OK
        call = listener.execute_local_transaction
        if inspect.iscoroutinefunction(call):
            return await outcome_async(EXECUTE, call, message, arg)
        return await outcome_in_thread(self._local, EXECUTE, call, message, arg)


@checks_calls()
class TransactionProducer(TransactionBase[BlockingMachine], Producer):
    """A producer whose messages become visible with the commit of a local transaction.

    Args:
        group: producer group; brokers ask any of its live members about open transactions.
        transaction_listener: a ``TransactionListener``; needed before the first send.
        check_thread_pool_min_size: 1; must not exceed the next.
        check_thread_pool_max_size: 1; threads that answer brokers, started when needed.
        check_request_hold_max: 2000; questions that may wait, more are dropped and asked again.
        **settings: as for ``Producer``.

    Raises:
        ConfigurationError: a setting that cannot be used; the text names it.
        NotSupportedError: ``compress_type`` needs ``rocketstream[compression]``, which is missing.
    """

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionSendResult:
        """Store a message out of sight, run the local transaction, tell the broker how it ended.

        The broker is told one way, as upstream does: if that is lost it asks later. A delay level
        of the message is dropped.

        Args:
            message: what to send.
            arg: handed to ``execute_local_transaction``.
            timeout_ms: for storing the message, all tries together.

        Raises:
            SendError: the message was not stored, or that is unknown; the listener was not called.
            ConfigurationError: there is no listener.
        """
        started = self._running()
        listener, prepared = self._half(message)
        result = self._send(prepared, ANY_QUEUE, self._timeout(timeout_ms))
        self._half_stored(started.engine, result)
        outcome = self._execute(listener, message, arg, result)
        try:
            address, command = self._end_request(
                started.engine, message, result, outcome.state, outcome.remark
            )
            self._machine.pool.oneway(address, command)
        except RocketMQError as error:
            end_failed(result, outcome.state, error)
        return transaction_result(result, outcome.state)

    def _execute(
        self, listener: TransactionListener, message: Message, arg: Any, result: SendResult
    ) -> LocalOutcome:
        if not may_execute(result):
            return NOT_STORED_OK
        value = outcome_now(EXECUTE, listener.execute_local_transaction, message, arg)
        return value if isinstance(value, LocalOutcome) else self._wait(awaited(EXECUTE, value))

    def shutdown(self) -> None:
        """As ``Producer.shutdown``; answers to brokers under way may be lost."""
        super().shutdown()
        self._checks.executor.join(CHECK_JOIN_S)

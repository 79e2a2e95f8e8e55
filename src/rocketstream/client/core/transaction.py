"""Transactions, as far as they are decisions: settings, states, what the broker is told of an end.

Law: pure; the calls of user code and the requests are made elsewhere (C-483 to C-485).
"""

from __future__ import annotations

from rocketstream.errors import ConfigurationError, MessageInvalidError
from rocketstream.late import dataclass
from rocketstream.model import (
    PROPERTY_DELAY,
    LocalTransactionState,
    Message,
    SendResult,
    SendStatus,
)
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import PROPERTY_PGROUP, PROPERTY_TRAN_MSG
from rocketstream.settings import check_values, setting

_END_FLAGS = {
    LocalTransactionState.COMMIT_MESSAGE: MessageSysFlag.TRANSACTION_COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: MessageSysFlag.TRANSACTION_ROLLBACK,
    LocalTransactionState.UNKNOW: MessageSysFlag.TRANSACTION_NOT,
}


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of a transaction producer besides those of a producer (C-91, C-92).

    Attributes:
        check_thread_pool_min_size: only checked; threads are started when they are needed.
        check_thread_pool_max_size: most threads that answer brokers' questions.
        check_request_hold_max: questions that may wait; more are dropped and asked again.
    """

    check_thread_pool_min_size: int = setting(1, low=1, unit="threads")
    check_thread_pool_max_size: int = setting(1, low=1, unit="threads")
    check_request_hold_max: int = setting(2_000, low=1, unit="questions")

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names it.
        """
        check_values(self)
        if self.check_thread_pool_min_size > self.check_thread_pool_max_size:
            raise ConfigurationError(
                f"check_thread_pool_min_size ({self.check_thread_pool_min_size}) must not be more "
                f"than check_thread_pool_max_size ({self.check_thread_pool_max_size})"
            )


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
    """Return what ends a transaction right after its half was stored (W 4.8).

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
    """Return what ends a transaction the broker asked about (W 4.8)."""
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

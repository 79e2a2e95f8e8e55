"""Pure: listeners as users give them, what they are called with, and what their answers mean."""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rocketstream.checks import check_range
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt

R = TypeVar("R")
C = TypeVar("C")
F_co = TypeVar("F_co", covariant=True)

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
USE_SETTING = -1
"""The context's suspend time before the listener touches it."""
ACK_ALL = 2**31 - 1
"""The context's ackIndex before the listener touches it."""


class HeldQueue(Protocol):
    """A queue this member has, or is giving up."""

    leaving: bool


class ConsumeConcurrentlyContext:
    """The words of a listener about its batch, besides the status.

    Attributes:
        message_queue: where the batch comes from; the retry topic's queue for retried messages.
        ack_index: with CONSUME_SUCCESS: messages up to this index succeeded, the rest failed; -1
            fails all.
        delay_level_when_next_consume: for what failed: -1 to the dead-letter topic at once, 0 the
            broker decides by the number of retries, else this delay level.
    """

    __slots__ = ("_ack_index", "_delay_level", "_held", "_untouched", "message_queue")

    def __init__(self, message_queue: MessageQueue, held: HeldQueue | None = None) -> None:
        self.message_queue: MessageQueue = message_queue
        self._ack_index = ACK_ALL
        self._delay_level = 0
        self._held = held
        self._untouched = False

    @property
    def _is_leaving(self) -> bool:
        return self._held is not None and self._held.leaving

    def __repr__(self) -> str:
        return (
            f"ConsumeConcurrentlyContext({self.message_queue!r}, ack_index={self._ack_index}, "
            f"delay_level_when_next_consume={self._delay_level})"
        )

    # Checked when they are set: the error points at the listener's own line.

    @property
    def ack_index(self) -> int:
        """Index of the last message that succeeded."""
        return self._ack_index

    @ack_index.setter
    def ack_index(self, value: int) -> None:
        check_range("ack_index", value)
        self._ack_index = value

    @property
    def delay_level_when_next_consume(self) -> int:
        """Delay level of what failed."""
        return self._delay_level

    @delay_level_when_next_consume.setter
    def delay_level_when_next_consume(self, value: int) -> None:
        check_range("delay_level_when_next_consume", value)
        self._delay_level = value


class ConsumeOrderlyContext:
    """The words of an orderly listener about its batch, besides the status.

    Attributes:
        message_queue: where the batch comes from; the retry topic's queue for retried messages.
        auto_commit: off: SUCCESS only keeps the batch; COMMIT finishes everything since the last
            one, ROLLBACK has it come again.
        suspend_current_queue_time_ms: pause before the queue goes on after SUSPEND or ROLLBACK,
            clamped to [10, 30000]; -1 takes the setting.
    """

    __slots__ = ("_suspend_millis", "auto_commit", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue: MessageQueue = message_queue
        self.auto_commit: bool = True
        self._suspend_millis = USE_SETTING

    def __repr__(self) -> str:
        return (
            f"ConsumeOrderlyContext({self.message_queue!r}, auto_commit={self.auto_commit}, "
            f"suspend_current_queue_time_ms={self._suspend_millis})"
        )

    @property
    def suspend_current_queue_time_ms(self) -> int:
        """Pause of the queue in ms, -1 for the setting."""
        return self._suspend_millis

    @suspend_current_queue_time_ms.setter
    def suspend_current_queue_time_ms(self, value: int) -> None:
        check_range("suspend_current_queue_time_ms", value)
        self._suspend_millis = value


class MessageListenerConcurrently(Protocol):
    """The object form of a listener; a plain function does as well."""

    def consume_message(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext, /
    ) -> ConsumeConcurrentlyStatus:
        """Consume a batch."""
        ...


class MessageListenerOrderly(ABC):
    """The object form of an orderly listener; its class says that the queue is to be kept in order.

    A plain function does as well, registered with ``orderly=True``. ``consume_message`` may be a
    coroutine function for a consumer of ``rocketstream.aio``.
    """

    @abstractmethod
    def consume_message(
        self, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | Awaitable[ConsumeOrderlyStatus]:
        """Consume a batch of one queue; the next one of that queue waits for the answer."""


class _Consumes(Protocol[F_co]):
    """The object form of a listener that ``F_co`` is the function form of."""

    @property
    def consume_message(self) -> F_co: ...


_Called = Callable[[list[MessageExt]], R] | Callable[[list[MessageExt], C], R]
Listening = _Called[R, C] | _Consumes[_Called[R, C]]
"""A listener that returns ``R``, and may be told a context ``C``."""
# None is none of the types: whoever forgets a ``return`` has all messages come again, and is told.
ConcurrentListener = Listening[ConsumeConcurrentlyStatus, ConsumeConcurrentlyContext]
OrderlyListener = Listening[ConsumeOrderlyStatus, ConsumeOrderlyContext] | MessageListenerOrderly
AnyConcurrentListener = (
    ConcurrentListener | Listening[Awaitable[ConsumeConcurrentlyStatus], ConsumeConcurrentlyContext]
)
AnyOrderlyListener = (
    OrderlyListener | Listening[Awaitable[ConsumeOrderlyStatus], ConsumeOrderlyContext]
)
NO_LISTENER = "there is no listener: give listener=..., or call register_message_listener()"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener: what to call, how, whether it must be awaited, and whether in order."""

    call: Callable[..., Any]
    takes_context: bool
    is_async: bool
    is_orderly: bool = False


def listener_of(given: object, *, orderly: bool = False) -> Listener:
    """Return the listener that a function or an object with ``consume_message`` is.

    Args:
        given: the function or object.
        orderly: consume in order; a ``MessageListenerOrderly`` is orderly in any case.

    Raises:
        ConfigurationError: neither, or a function that takes no messages.
    """
    if given is None:
        raise ConfigurationError(f"{NO_LISTENER} (Java: messageListener is null)")
    orderly = orderly or isinstance(given, MessageListenerOrderly)
    call = getattr(given, "consume_message", given)
    if not callable(call):
        raise ConfigurationError(
            "listener must be a function of (messages) or (messages, context), or an object "
            f"with such a method consume_message; {given!r} is neither"
        )
    return Listener(call, _takes_context(call), _is_async(call), orderly)


def _is_async(call: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - a callable object with an async __call__
    )


def _takes_context(call: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # some builtins have none
        return False
    try:
        signature.bind([], None)
    except TypeError:
        pass
    else:
        required = [
            p
            for p in signature.parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        variadic = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        # f(messages, *, x=1), f(messages, extra=1) and f(*args) were not written for a context.
        return len(required) >= 2 or (variadic and not required)
    try:
        signature.bind([])
    except TypeError:
        raise ConfigurationError(
            f"listener {call!r} must take (messages) or (messages, context)"
        ) from None
    return False


# --- what an answer means for the messages of its batch -------------------------------------------


def acknowledged(status: ConsumeConcurrentlyStatus, ack_index: int, batch_size: int) -> int:
    """Return how many messages from the front of the batch succeeded; the rest failed.

    CONSUME_SUCCESS honours ``ack_index`` (partial success); RECONSUME_LATER fails all.
    """
    if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return 0
    return max(0, min(ack_index + 1, batch_size))


# --- in order -------------------------------------------------------------------------------------


class Step(enum.Enum):
    """The fate of the messages after a listener call."""

    COMMIT = "COMMIT"
    """Everything taken is finished."""
    KEEP = "KEEP"
    """The batch stays taken until a later COMMIT or ROLLBACK."""
    ROLLBACK = "ROLLBACK"
    """Everything taken comes again after a pause."""
    AGAIN = "AGAIN"
    """The batch comes again after a pause, but for messages that had their last try."""


_MANUAL = {
    ConsumeOrderlyStatus.SUCCESS: Step.KEEP,
    ConsumeOrderlyStatus.COMMIT: Step.COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: Step.ROLLBACK,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Step.AGAIN,
}


def step_of(status: ConsumeOrderlyStatus, auto_commit: bool) -> Step:
    """Return what a status means (C-285).

    With auto-commit ROLLBACK is SUSPEND_CURRENT_QUEUE_A_MOMENT; upstream acknowledges the messages
    (C-591), which loses what the listener wanted back.
    """
    if not auto_commit:
        return _MANUAL[status]
    if status in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT):
        return Step.COMMIT
    return Step.AGAIN


class Reconsumed(Protocol):
    """A message whose tries are counted, the client's or Spark's."""

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        ...


T = TypeVar("T", bound=Reconsumed)


def split_by_tries(messages: Iterable[T], max_times: int) -> tuple[list[T], list[T]]:
    """Return the messages that had their last try, and those that come again (C-287)."""
    spent: list[T] = []
    again: list[T] = []
    for message in messages:
        (spent if message.reconsume_times >= max_times else again).append(message)
    return spent, again


def suspend_ms(asked: int, setting: int) -> int:
    """Return how long a queue pauses, within [10, 30000] ms (C-284)."""
    wanted = setting if asked == USE_SETTING else asked
    return max(SUSPEND_MS_MIN, min(wanted, SUSPEND_MS_MAX))

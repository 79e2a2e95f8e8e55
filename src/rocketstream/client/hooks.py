"""Hooks: what users may run around a send, a listener call, a pull, a transaction's end, a request.

A failure of user code is logged and goes no further; only a check-forbidden hook may stop a send,
and an RPC hook a request (upstream's client.hook package, C-232). Telemetry has a hook for new
clients.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rocketstream._util.user_code import called
from rocketstream.errors import ConfigurationError, SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import AfterResponse, BeforeRequest, RemotingCommand
from rocketstream.protocol.trace import LOCAL

if TYPE_CHECKING:
    from rocketstream.model import Message, MessageQueue, SendResult
    from rocketstream.protocol.message_ext import MessageExt

logger: logging.Logger = logging.getLogger("rocketstream.client")

CONSUME_CONTEXT_TYPE = "ConsumeContextType"
"""Key of ``ConsumeMessageContext.properties`` that holds a ``ConsumeReturnType``'s name (C-258)."""

H = TypeVar("H")


class ConsumeReturnType(enum.Enum):
    """How a listener call ended; trace writes the number (C-258, C-545)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


class MessageType(enum.Enum):
    """The kind of a message that was sent; trace writes the number (C-545)."""

    NORMAL_MSG = 0
    TRANS_MSG_HALF = 1
    TRANS_MSG_COMMIT = 2
    DELAY_MSG = 3


@dataclass(slots=True)
class ConsumeMessageContext:
    """One listener call, or one pull of a pull consumer.

    Attributes:
        consumer_group: the group.
        messages: what the listener gets; not to be changed.
        message_queue: where the messages come from.
        success: after the call: whether the listener said so.
        status: after the call: the name of the status, ``CONSUME_SUCCESS`` for one.
        namespace: namespace of the consumer, or None.
        access_channel: LOCAL or CLOUD.
        properties: after the call, ``ConsumeContextType`` names the ``ConsumeReturnType``.
        trace: where the trace keeps its part between before and after.
        error: after the call: what the listener raised, or None.
        began_ms: when a poll or pull that brought the messages began, ms since 1970; None for a
            listener call, which begins now.
        span: where OpenTelemetry keeps its part.
    """

    consumer_group: str
    messages: Sequence[MessageExt]
    message_queue: MessageQueue
    success: bool = False
    status: str | None = None
    namespace: str | None = None
    access_channel: str = LOCAL
    properties: dict[str, str] = field(default_factory=dict)
    trace: object | None = None
    error: BaseException | None = None
    began_ms: int | None = None
    span: object | None = None


@dataclass(slots=True)
class SendMessageContext:
    """One try of one send; a batch is one.

    Attributes:
        producer_group: the group.
        message: the message; for a batch the list of them.
        message_queue: the queue of this try.
        broker_address: ``host:port`` of this try.
        born_host: this client's address.
        communication_mode: SYNC, ASYNC or ONEWAY.
        send_result: after the send, None if it failed or was one-way.
        error: after the send, what was raised, or None.
        msg_type: normal, half of a transaction, or delayed.
        namespace: namespace of the producer, or None.
        properties: whatever a hook wants to find again in its after part.
        trace: where the trace keeps its part between before and after.
    """

    producer_group: str
    message: Message | Sequence[Message]
    message_queue: MessageQueue
    broker_address: str
    born_host: str = ""
    communication_mode: str = "SYNC"
    send_result: SendResult | None = None
    error: BaseException | None = None
    msg_type: MessageType = MessageType.NORMAL_MSG
    namespace: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    trace: object | None = None


@dataclass(slots=True)
class EndTransactionContext:
    """The end of a transaction, as the broker is told it.

    Attributes:
        producer_group: the group.
        message: the half message.
        broker_address: ``host:port`` told.
        msg_id: the client's id of the message.
        transaction_id: its transaction id.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        from_transaction_check: whether the broker had asked.
    """

    producer_group: str
    message: Message | MessageExt
    broker_address: str
    msg_id: str | None
    transaction_id: str | None
    transaction_state: str
    from_transaction_check: bool = False


@dataclass(slots=True)
class FilterMessageContext:
    """Messages that came with one pull; a hook removes from ``messages`` what it does not want."""

    consumer_group: str
    messages: list[MessageExt]
    message_queue: MessageQueue
    arg: Any = None
    unit_mode: bool = False


@dataclass(slots=True)
class CheckForbiddenContext:
    """A send that is about to happen; a hook raises to forbid it."""

    namesrv_addr: str
    group: str
    message: Message | Sequence[Message]
    message_queue: MessageQueue
    broker_address: str
    communication_mode: str = "SYNC"
    send_result: SendResult | None = None
    error: BaseException | None = None
    arg: Any = None
    unit_mode: bool = False


class ConsumeMessageHook(Protocol):
    """Called before and after each listener call; on the thread or loop of the listener."""

    name: str

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Look at what is about to be consumed."""
        ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Look at how it ended."""
        ...


class SendMessageHook(Protocol):
    """Called before and after each try of a send; must not block."""

    name: str

    def send_message_before(self, context: SendMessageContext) -> None:
        """Look at what is about to be sent."""
        ...

    def send_message_after(self, context: SendMessageContext) -> None:
        """Look at how it ended."""
        ...


class EndTransactionHook(Protocol):
    """Called when the end of a transaction is sent."""

    name: str

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Look at the end of a transaction."""
        ...


class FilterMessageHook(Protocol):
    """Called with the messages of each pull, on the network loop: must not block."""

    name: str

    def filter_message(self, context: FilterMessageContext) -> None:
        """Remove unwanted messages from ``context.messages``; they count as consumed."""
        ...


class CheckForbiddenHook(Protocol):
    """Called before each try of a send; whatever it raises ends the send."""

    name: str

    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        """Raise to forbid the send."""
        ...


class Hooks(Generic[H]):
    """Hooks of one kind, in the order they were registered; false while there are none."""

    __slots__ = ("_hooks",)
    methods: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._hooks: tuple[H, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __len__(self) -> int:
        return len(self._hooks)

    @property
    def names(self) -> list[str]:
        """Names of the registered hooks."""
        return [hook_name(hook) for hook in self._hooks]

    def register(self, hook: H) -> None:
        """Add a hook; takes effect with the next call.

        Raises:
            ConfigurationError: it lacks one of the methods.
        """
        for method in self.methods:
            if not callable(getattr(hook, method, None)):
                raise ConfigurationError(
                    f"{type(hook).__name__} cannot be registered: it has no method {method}(); "
                    f"needed are {', '.join(self.methods)}"
                )
        # A new tuple: a thread that goes through the old one is not disturbed.
        self._hooks = (*self._hooks, hook)
        logger.info("registered hook %s", hook_name(hook))

    def _each(self, call: Callable[[H], object]) -> None:
        for hook in self._hooks:
            try:
                called(call, hook)
            except Exception:
                logger.warning("hook %s failed; ignored", hook_name(hook), exc_info=True)


class ConsumeHooks(Hooks[ConsumeMessageHook]):
    """Around listener calls."""

    __slots__ = ()
    methods: tuple[str, ...] = ("consume_message_before", "consume_message_after")

    def before(self, context: ConsumeMessageContext) -> None:
        """Call all before a listener."""
        self._each(lambda hook: hook.consume_message_before(context))

    def after(self, context: ConsumeMessageContext) -> None:
        """Call all after a listener."""
        self._each(lambda hook: hook.consume_message_after(context))

    def handed_out(self, context: ConsumeMessageContext) -> None:
        """Call all for messages that a caller is about to get, before and after, as consumed.

        The work of the caller on them is not seen (C-495).
        """
        self.before(context)
        context.success = True
        context.status = "CONSUME_SUCCESS"
        context.properties[CONSUME_CONTEXT_TYPE] = ConsumeReturnType.SUCCESS.name
        self.after(context)


class SendHooks(Hooks[SendMessageHook]):
    """Around tries of a send."""

    __slots__ = ()
    methods: tuple[str, ...] = ("send_message_before", "send_message_after")

    def before(self, context: SendMessageContext) -> None:
        """Call all before a try."""
        self._each(lambda hook: hook.send_message_before(context))

    def after(self, context: SendMessageContext) -> None:
        """Call all after a try; set ``send_result`` or ``error`` first."""
        self._each(lambda hook: hook.send_message_after(context))


class EndTransactionHooks(Hooks[EndTransactionHook]):
    """At the end of transactions."""

    __slots__ = ()
    methods: tuple[str, ...] = ("end_transaction",)

    def end(self, context: EndTransactionContext) -> None:
        """Call all."""
        self._each(lambda hook: hook.end_transaction(context))


class FilterHooks(Hooks[FilterMessageHook]):
    """After pulls."""

    __slots__ = ()
    methods: tuple[str, ...] = ("filter_message",)

    def filter(self, context: FilterMessageContext) -> list[MessageExt]:
        """Call all and return what they have left in ``context.messages``."""
        self._each(lambda hook: hook.filter_message(context))
        return context.messages


class CheckForbiddenHooks(Hooks[CheckForbiddenHook]):
    """Before tries of a send."""

    __slots__ = ()
    methods: tuple[str, ...] = ("check_forbidden",)

    def check(self, context: CheckForbiddenContext) -> None:
        """Call all; the first that raises ends the send with what it raised."""
        for hook in self._hooks:
            called(hook.check_forbidden, context)


def hook_name(hook: object) -> str:
    """Return what a hook calls itself, or its class's name."""
    name = getattr(hook, "name", None)
    return name if isinstance(name, str) else type(hook).__name__


# --- requests -------------------------------------------------------------------------------------

REQUEST_TYPE_FIELD = "ReqT"
_STREAM_CODE = "0"

_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)


class RPCHook(Protocol):
    """Sees every request before it is written, and every answer before it is handed on.

    Called on whatever thread sends or receives; it must not block. ``before_request`` may add to
    ``command.ext_fields`` and may raise to keep the request from being sent, which makes of a send
    a ``SendError`` with outcome NOT_SENT; what ``after_response`` raises is logged.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """See ``command`` before it goes to ``address``."""
        ...

    def after_response(
        self, address: str, command: RemotingCommand, response: RemotingCommand
    ) -> None:
        """See the answer of ``address`` to ``command``."""
        ...


def before_request_of(
    hooks: Sequence[RPCHook], sign: BeforeRequest | None, *, reads_stream: bool
) -> BeforeRequest | None:
    """Return the call before each request of a client, None where none is needed.

    Args:
        hooks: the user's.
        sign: signs; it comes last, so that the signature covers what the others add.
        reads_stream: mark each request as a stream reader's (C-17).
    """
    steps: list[BeforeRequest] = []
    if reads_stream:
        steps.append(_mark_stream)
    steps += [_before_of(hook) for hook in hooks]
    if sign is not None:
        steps.append(sign)
    if len(steps) <= 1:
        return steps[0] if steps else None

    def all_steps(address: str, command: RemotingCommand) -> None:
        for step in steps:
            step(address, command)

    return all_steps


def _before_of(hook: RPCHook) -> BeforeRequest:
    """Return what asks a hook before a request; of what it raises for a send, all is known."""

    def ask(address: str, command: RemotingCommand) -> None:
        try:
            called(hook.before_request, address, command)
        except SendError:
            raise
        except Exception as error:
            if command.code not in _SENDS:
                raise
            text = f"an RPC hook kept the message from being sent: {error}"
            raise SendError(text, SendOutcome.NOT_SENT) from error

    return ask


def after_response_of(hooks: Sequence[RPCHook]) -> AfterResponse | None:
    """Return the call for each answer, None without hooks."""
    if not hooks:
        return None

    def tell(address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        for hook in hooks:
            try:
                called(hook.after_response, address, command, response)
            except Exception:
                logger.exception("RPC hook %r failed on the answer of %s", hook, address)

    return tell


def _mark_stream(_address: str, command: RemotingCommand) -> None:
    """Say that this client reads a stream (C-17, StreamTypeRPCHook)."""
    command.ext_fields = {**(command.ext_fields or {}), REQUEST_TYPE_FIELD: _STREAM_CODE}


# --- new clients ----------------------------------------------------------------------------------


class _MadeHook:
    """The function that is called with each new client, if there is one."""

    def __init__(self) -> None:
        self.function: Callable[[Any], object] | None = None

    def __reduce__(self) -> tuple[type[_MadeHook], tuple[()]]:
        # Spark may carry this code to other machines; what instruments clients stays here.
        return (_MadeHook, ())


_made_hook = _MadeHook()


def set_client_made_hook(function: Callable[[Any], object] | None) -> None:
    """Have ``function`` called with each client made from now on; None ends that."""
    _made_hook.function = function


def client_made(client: Any) -> None:
    """Call what wants to know of a new client, at the end of its making."""
    if _made_hook.function is not None:
        _made_hook.function(client)

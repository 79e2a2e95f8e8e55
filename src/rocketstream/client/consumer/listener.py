"""What users hand in to consume messages, in one shape.

Law: looks at the callable once; never calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rocketstream.client.core.consume_result import ACK_ALL
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt


class ConsumeConcurrentlyContext:
    """What a listener may say about its batch besides the status.

    Attributes:
        message_queue: where the batch comes from; the retry topic's queue for retried messages.
        ack_index: with CONSUME_SUCCESS: messages up to this index succeeded, the rest failed; -1
            fails all.
        delay_level_when_next_consume: for what failed: -1 to the dead-letter topic at once, 0 the
            broker decides by the number of retries, else this delay level.
    """

    __slots__ = ("ack_index", "delay_level_when_next_consume", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self.ack_index = ACK_ALL
        self.delay_level_when_next_consume = 0


class MessageListenerConcurrently(Protocol):
    """The object form of a listener; a plain function does as well."""

    def consume_message(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        """Consume a batch."""
        ...


Status = ConsumeConcurrentlyStatus | None
ListenerFunction = (
    Callable[[list[MessageExt]], Status]
    | Callable[[list[MessageExt], ConsumeConcurrentlyContext], Status]
)
AsyncListenerFunction = (
    Callable[[list[MessageExt]], Awaitable[Status]]
    | Callable[[list[MessageExt], ConsumeConcurrentlyContext], Awaitable[Status]]
)


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener: what to call, how, and whether it must be awaited."""

    call: Callable[..., Any]
    takes_context: bool
    is_async: bool


def listener_of(given: object) -> Listener:
    """Return the listener that a function or an object with ``consume_message`` is.

    Raises:
        ConfigurationError: neither, or a function that takes no messages.
    """
    if given is None:
        raise ConfigurationError("messageListener is null")
    call = getattr(given, "consume_message", given)
    if not callable(call):
        raise ConfigurationError(
            "messageListener must be a function of (messages) or (messages, context), or have "
            f"such a method consume_message; {given!r} is neither"
        )
    return Listener(call, _takes_context(call), _is_async(call))


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
            f"messageListener {call!r} must take (messages) or (messages, context)"
        ) from None
    return False

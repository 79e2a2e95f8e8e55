"""Spans around the sends of one producer.

Law: wraps the methods of an object, so a producer that is not traced costs nothing more; whatever
goes wrong here, the message is sent.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.otel import names
from rocketstream.client.otel.names import Attributes
from rocketstream.client.otel.spans import (
    Telemetry,
    failed,
    guarded,
    links_of,
    with_attributes,
)
from rocketstream.client.producer.base import ProducerBase
from rocketstream.model import Message, SendResult, SendStatus

_TRANSACTION: Final = "send_message_in_transaction"
_WAITING: Final = {
    "send": names.SEND,
    "send_batch": names.SEND,
    "send_oneway": names.SEND,
    "request": names.REQUEST,
    _TRANSACTION: names.SEND,
}
"""Methods that end with the send, and the operation each is."""
_FUTURES: Final = {"send_async": names.SEND, "request_async": names.REQUEST}
"""Methods that return a future."""
_MARK: Final = "traced_by_opentelemetry"


def observe_producer(telemetry: Telemetry, producer: object) -> bool:
    """Trace the sends of a producer; return whether it is a producer."""
    if not isinstance(producer, ProducerBase):
        return False
    if getattr(producer.__dict__.get("send"), _MARK, False):
        return True
    for name, operation in (_WAITING | _FUTURES).items():
        method = getattr(producer, name, None)
        if method is None:
            continue
        if name in _FUTURES:
            wrapped = _future_giving(telemetry, producer, method, operation)
        elif inspect.iscoroutinefunction(method):
            wrapped = _awaited(telemetry, producer, method, operation)
        else:
            wrapped = _blocking(telemetry, producer, method, operation)
        setattr(wrapped, _MARK, True)
        setattr(producer, name, wrapped)
    return True


def _blocking(
    telemetry: Telemetry, producer: ProducerBase[Any], method: Callable[..., Any], operation: str
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        send = _begun(telemetry, producer, method, operation, args, kwargs)
        if send is None:
            return method(*args, **kwargs)
        token = otel_context.attach(send.context)
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            send.ended(None, error)
            raise
        finally:
            otel_context.detach(token)
        send.ended(result, None)
        return result

    return call


def _awaited(
    telemetry: Telemetry, producer: ProducerBase[Any], method: Callable[..., Any], operation: str
) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        send = _begun(telemetry, producer, method, operation, args, kwargs)
        if send is None:
            return await method(*args, **kwargs)
        token = otel_context.attach(send.context)
        try:
            result = await method(*args, **kwargs)
        except BaseException as error:
            send.ended(None, error)
            raise
        finally:
            otel_context.detach(token)
        send.ended(result, None)
        return result

    return call


def _future_giving(
    telemetry: Telemetry, producer: ProducerBase[Any], method: Callable[..., Any], operation: str
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Iterator):
            args = (list(args[0]), *args[1:])  # it is gone through twice
        send = _begun(telemetry, producer, method, operation, args, kwargs)
        if send is None:
            return method(*args, **kwargs)
        try:
            future = method(*args, **kwargs)
        except BaseException as error:
            send.ended(None, error)
            raise
        future.add_done_callback(send.future_ended)
        return future

    return call


def _begun(
    telemetry: Telemetry,
    producer: ProducerBase[Any],
    method: Callable[..., Any],
    operation: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Send | None:
    """Begin a span for what is to be sent; None where there is none of its own to make."""
    message: Any = args[0] if args else kwargs.get("message", kwargs.get("messages"))
    is_batch = not isinstance(message, Message)
    # ``send`` of several messages is ``send_batch``, which is wrapped too; what is no message the
    # method itself refuses.
    if is_batch and (method.__name__ == "send" or not _are_messages(message)):
        return None
    try:
        messages: Sequence[Message] = [message] if isinstance(message, Message) else list(message)
        send = _Send(telemetry, producer, operation, messages, is_batch=is_batch)
        send.begin(kwargs.get("sharding_key"), transaction=method.__name__ == _TRANSACTION)
    except Exception:
        guarded("beginning the span of a send")
        return None
    return send


def _are_messages(given: object) -> bool:
    return (
        isinstance(given, Sequence)
        and len(given) > 0
        and all(isinstance(each, Message) for each in given)
    )


class _Send:
    """One send, of one message or of several, through all its tries."""

    def __init__(
        self,
        telemetry: Telemetry,
        producer: ProducerBase[Any],
        operation: str,
        messages: Sequence[Message],
        *,
        is_batch: bool,
    ) -> None:
        self._telemetry = telemetry
        self._producer = producer
        self._operation = operation
        self._messages = messages
        self._is_batch = is_batch
        self._injected: list[tuple[Message, list[str]]] = []
        self._attributes: Attributes = {}
        self._span: Span = trace.INVALID_SPAN
        self._began_ms = 0.0
        self.context = Context()

    def begin(self, sharding_key: str | None, *, transaction: bool) -> None:
        """Start the span and write contexts into the messages that have none."""
        messages, telemetry = self._messages, self._telemetry
        topic = messages[0].topic
        found = names.operation(self._operation, topic)
        found[names.CLIENT_ID] = self._producer.client_id
        namespace = self._producer.config.effective_namespace()
        if namespace:
            found[names.NAMESPACE] = namespace
        if self._is_batch:
            found[names.BATCH_COUNT] = len(messages)
        else:
            found |= names.of_sent(messages[0], sharding_key, transaction=transaction)
        self._attributes = found
        given = [telemetry.context_of(message.properties) for message in messages]
        bare = [m for m, context in zip(messages, given, strict=True) if context is None]
        creating = [context for context in given if context is not None]
        if self._is_batch and telemetry.create_spans:
            creating += [self._created(message) for message in bare]
            bare = []
        self._span = telemetry.tracer.start_span(
            names.span_name(self._operation, topic),
            kind=SpanKind.PRODUCER if bare else SpanKind.CLIENT,
            attributes=found,
            links=links_of(creating),
        )
        self.context = trace.set_span_in_context(self._span)
        for message in bare:
            self._inject(message, self.context)
        self._began_ms = SYSTEM_CLOCK.monotonic_ms()

    def _created(self, message: Message) -> Context:
        """Return the context of a message of a batch, made for it alone."""
        attributes = names.operation(names.CREATE, message.topic)
        attributes |= names.of_message(message.properties)
        span = self._telemetry.tracer.start_span(
            names.span_name(names.CREATE, message.topic),
            kind=SpanKind.PRODUCER,
            attributes=attributes,
        )
        span.end()
        context = trace.set_span_in_context(span)
        self._inject(message, context)
        return context

    def _inject(self, message: Message, context: Context) -> None:
        new = self._telemetry.inject(message.properties, context)
        if new:
            self._injected.append((message, new))

    def future_ended(self, future: Any) -> None:
        """End with what a future holds."""
        if future.cancelled():
            self.ended(None, None)
            return
        error = future.exception()
        self.ended(None if error is not None else future.result(), error)

    def ended(self, result: Any, error: BaseException | None) -> None:
        """End the span; the messages are as they were, so sending one anew gets a new context."""
        duration_s = (SYSTEM_CLOCK.monotonic_ms() - self._began_ms) / 1_000
        try:
            for message, new in self._injected:
                for name in new:
                    message.properties.pop(name, None)
            results = result if isinstance(result, list) else [result]
            self._set_result(results[-1])
            if error is not None:
                self._attributes[names.ERROR_TYPE] = failed(self._span, error)
            measured = names.for_metrics(self._attributes)
            self._telemetry.sent.add(len(self._messages), measured)
            self._telemetry.operation_duration.record(duration_s, measured)
        except Exception:
            guarded("ending the span of a send")
        finally:
            self._span.end()

    def _set_result(self, result: object) -> None:
        """Note where the message is stored, as far as the result tells."""
        if not isinstance(result, SendResult):
            return
        queue = result.message_queue
        found = names.of_queue(queue)
        found |= names.of_server(self._producer._master_address(queue.broker_name))
        if not self._is_batch:
            found[names.MESSAGE_ID] = result.msg_id
        if result.send_status is not SendStatus.SEND_OK:
            found[names.SEND_STATUS] = result.send_status.value
        self._attributes |= found
        with_attributes(self._span, found)

"""Spans around what producers and consumers do, switched on for one client or for all new ones.

A client that is not traced costs nothing more. A failure in here is logged, and messages are sent
and consumed all the same.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.lite.aio_consumer import LitePullConsumerBase
from rocketstream.client.consumer.lite_topics.consumer import LitePushConsumerBase
from rocketstream.client.consumer.pull.consumer import PullConsumerBase
from rocketstream.client.consumer.push.consumer import PushConsumerBase
from rocketstream.client.hooks import (
    CONSUME_CONTEXT_TYPE,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeReturnType,
    set_client_made_hook,
)
from rocketstream.client.otel import names
from rocketstream.client.otel.names import Attributes
from rocketstream.client.otel.telemetry import (
    Telemetry,
    failed,
    guarded,
    links_of,
    with_attributes,
)
from rocketstream.client.producer.base import ProducerBase
from rocketstream.errors import ConfigurationError
from rocketstream.model import Message, MessageModel, SendResult, SendStatus
from rocketstream.protocol.message_ext import MessageExt

C = TypeVar("C")
Listening = PushConsumerBase | LitePushConsumerBase
Consumer = Listening | PullConsumerBase | LitePullConsumerBase

HOOK_NAME: Final = "OpenTelemetry"
_NS_PER_MS: Final = 1_000_000
_TRANSACTION: Final = "send_message_in_transaction"
_OPERATIONS: Final = {
    "send": names.SEND,
    "send_batch": names.SEND,
    "send_oneway": names.SEND,
    "send_async": names.SEND,
    "request": names.REQUEST,
    "request_async": names.REQUEST,
    _TRANSACTION: names.SEND,
}
"""Methods of producers that send, and the operation each is."""
_WITH_FUTURE: Final = frozenset({"send_async", "request_async"})
_MARK: Final = "traced_by_opentelemetry"


# --- switching it on ------------------------------------------------------------------------------


def instrument(client: C, telemetry: Telemetry | None = None) -> C:
    """Trace one client from now on, and return it; a second time changes nothing.

    Args:
        client: a producer or consumer of either face, started or not.
        telemetry: makes spans and measurements; None for the global providers.

    Raises:
        ConfigurationError: it is not such a client.
    """
    telemetry = telemetry or Telemetry()
    if isinstance(client, ProducerBase):
        _trace_sends(telemetry, client)
    elif isinstance(client, Consumer):
        hooks: ConsumeHooks = client.consume_hooks
        if HOOK_NAME not in hooks.names:
            hooks.register(ConsumeSpans(telemetry, client))
    else:
        raise ConfigurationError(
            f"producers and consumers of rocketstream can be traced, not {type(client).__name__}"
        )
    return client


def instrument_all(telemetry: Telemetry | None = None) -> None:
    """Trace every client this process makes from now on.

    Args:
        telemetry: makes spans and measurements; None for the global providers, which may be set
            later.
    """
    chosen = telemetry or Telemetry()
    set_client_made_hook(lambda client: instrument(client, chosen))


def uninstrument_all() -> None:
    """Trace no client that is made from now on; those that are traced stay so."""
    set_client_made_hook(None)


# --- consumers ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    """The span of a listener call, between before and after."""

    span: Span
    token: Any
    attributes: Attributes
    began_ms: float


class ConsumeSpans:
    """A span ``process TOPIC`` per listener call, ``receive TOPIC`` per pull and poll."""

    name = HOOK_NAME

    def __init__(self, telemetry: Telemetry, consumer: Consumer) -> None:
        self._telemetry = telemetry
        self._consumer = consumer
        self._has_listener = isinstance(consumer, Listening)

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Start the span; a listener call runs within it."""
        messages, telemetry = context.messages, self._telemetry
        if not messages:
            return
        operation = names.PROCESS if self._has_listener else names.RECEIVE
        topic = names.one_topic(messages)
        attributes = self._attributes(operation, topic, context)
        parent = None
        if self._has_listener and len(messages) == 1 and not _is_within_a_span():
            # One message, nothing around it: the call goes on with the trace of who sent it.
            parent = telemetry.context_of(messages[0])
        span = telemetry.tracer.start_span(
            names.span_name(operation, topic),
            context=parent,
            kind=SpanKind.CONSUMER if self._has_listener else SpanKind.CLIENT,
            attributes=attributes,
            links=telemetry.links(messages),
            start_time=None if context.began_ms is None else context.began_ms * _NS_PER_MS,
        )
        token = otel_context.attach(trace.set_span_in_context(span)) if self._has_listener else None
        waited_ms = 0 if context.began_ms is None else SYSTEM_CLOCK.now_ms() - context.began_ms
        began_ms = SYSTEM_CLOCK.monotonic_ms() - max(waited_ms, 0)
        context.span = _Call(span, token, attributes, began_ms)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """End the span."""
        call = context.span
        if not isinstance(call, _Call):
            return
        telemetry = self._telemetry
        try:
            if call.token is not None:
                otel_context.detach(call.token)
            if not context.success:
                why = context.error or context.status or "FAILED"
                kind = context.properties.get(CONSUME_CONTEXT_TYPE)
                if context.error is None and kind == ConsumeReturnType.RETURNNULL.name:
                    why = kind
                call.attributes[names.ERROR_TYPE] = failed(call.span, why)
            measured = names.for_metrics(call.attributes)
            telemetry.consumed.add(len(context.messages), measured)
            took = (
                telemetry.process_duration if self._has_listener else telemetry.operation_duration
            )
            took.record((SYSTEM_CLOCK.monotonic_ms() - call.began_ms) / 1_000, measured)
        finally:
            call.span.end()

    def _attributes(
        self, operation: str, topic: str | None, context: ConsumeMessageContext
    ) -> Attributes:
        messages: Sequence[MessageExt] = context.messages
        settings, first = self._consumer.settings, messages[0]
        found = names.operation(operation, topic)
        found[names.GROUP] = self._consumer.group
        found[names.CLIENT_ID] = self._consumer.client_id
        # Lite topics are consumed in no other way.
        model = getattr(settings, "message_model", MessageModel.CLUSTERING)
        found[names.MODEL] = model.name.lower()
        if context.namespace:
            found[names.NAMESPACE] = context.namespace
        if len({message.store_host for message in messages}) == 1:
            found |= names.of_server(first.store_host)
        if len({message.message_queue for message in messages}) == 1:
            found |= names.of_queue(first.message_queue)
        if getattr(settings, "consume_message_batch_max_size", None) != 1:
            found[names.BATCH_COUNT] = len(messages)
        if len(messages) == 1:
            found[names.MESSAGE_ID] = first.msg_id
            found |= names.of_message(first.properties)
            if first.reconsume_times:
                found[names.RECONSUME_TIMES] = first.reconsume_times
        return found


def _is_within_a_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


# --- producers ------------------------------------------------------------------------------------


def _trace_sends(telemetry: Telemetry, producer: ProducerBase[Any]) -> None:
    """Trace the sends of a producer; a second time changes nothing.

    A hook sees one try of a send, and after the message is in bytes. A span is of all tries, and
    its context goes into the message: so the methods of this producer are put in brackets.
    """
    if getattr(producer.__dict__.get("send"), _MARK, False):
        return
    for name, operation in _OPERATIONS.items():
        method = getattr(producer, name, None)
        if method is not None:
            bracketed = _bracketed(telemetry, producer, method, operation)
            setattr(bracketed, _MARK, True)
            setattr(producer, name, bracketed)


def _bracketed(
    telemetry: Telemetry, producer: ProducerBase[Any], method: Callable[..., Any], operation: str
) -> Callable[..., Any]:
    """Return a method of a producer that makes a span around what it does."""

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Send | None:
        message: Any = args[0] if args else kwargs.get("message", kwargs.get("messages"))
        name, is_batch = method.__name__, not isinstance(message, Message)
        # ``send`` of several messages calls ``send_batch``, which has a span; the method itself
        # refuses what is not a message.
        if is_batch and (name == "send" or not _are_messages(message)):
            return None
        try:
            messages: list[Message] = list(message) if is_batch else [message]
            return _Send(
                telemetry, producer, operation, messages, is_batch=is_batch,
                sharding_key=kwargs.get("sharding_key"), transaction=name == _TRANSACTION,
            )  # fmt: skip
        except Exception:
            guarded("beginning the span of a send")
            return None

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        send = begin(args, kwargs)
        if send is None:
            return method(*args, **kwargs)
        with send:
            send.result = method(*args, **kwargs)
        return send.result

    @functools.wraps(method)
    async def call_awaited(*args: Any, **kwargs: Any) -> Any:
        send = begin(args, kwargs)
        if send is None:
            return await method(*args, **kwargs)
        with send:
            send.result = await method(*args, **kwargs)
        return send.result

    @functools.wraps(method)
    def call_with_future(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Iterator):
            args = (list(args[0]), *args[1:])  # it is gone through twice
        send = begin(args, kwargs)
        if send is None:
            return method(*args, **kwargs)
        try:
            future = method(*args, **kwargs)
        except BaseException as error:
            send.ended(None, error)
            raise
        future.add_done_callback(send.future_ended)
        return future

    if method.__name__ in _WITH_FUTURE:
        return call_with_future
    return call_awaited if inspect.iscoroutinefunction(method) else call


def _are_messages(given: object) -> bool:
    return (
        isinstance(given, Sequence)
        and len(given) > 0
        and all(isinstance(each, Message) for each in given)
    )


class _Send:
    """The span of one send, of one message or of several, through all its tries.

    Making it starts the span and writes contexts into the messages that have none.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        producer: ProducerBase[Any],
        operation: str,
        messages: Sequence[Message],
        *,
        is_batch: bool,
        sharding_key: str | None,
        transaction: bool,
    ) -> None:
        self._telemetry = telemetry
        self._producer = producer
        self._messages = messages
        self._is_batch = is_batch
        self._injected: list[tuple[Message, list[str]]] = []
        self.result: Any = None
        topic = messages[0].topic
        found = names.operation(operation, topic)
        found[names.CLIENT_ID] = producer.client_id
        namespace = producer.config.effective_namespace()
        if namespace:
            found[names.NAMESPACE] = namespace
        if is_batch:
            found[names.BATCH_COUNT] = len(messages)
        else:
            found |= names.of_sent(messages[0], sharding_key, transaction=transaction)
        self._attributes = found
        given = [telemetry.context_of(message.properties) for message in messages]
        bare = [m for m, context in zip(messages, given, strict=True) if context is None]
        creating = [context for context in given if context is not None]
        if is_batch and telemetry.create_spans:
            creating += [self._created(message) for message in bare]
            bare = []
        self._span = telemetry.tracer.start_span(
            names.span_name(operation, topic),
            kind=SpanKind.PRODUCER if bare else SpanKind.CLIENT,
            attributes=found,
            links=links_of(creating),
        )
        self._context = trace.set_span_in_context(self._span)
        for message in bare:
            self._inject(message, self._context)
        self._began_ms = SYSTEM_CLOCK.monotonic_ms()

    def __enter__(self) -> None:
        self._token = otel_context.attach(self._context)

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        otel_context.detach(self._token)
        self.ended(self.result, error)

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
        """End the span and take its context out of the messages: one sent again gets a new one."""
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

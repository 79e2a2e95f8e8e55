"""Spans around the listener calls, pulls and polls of one consumer.

Law: a consume hook like any other; whatever goes wrong here, messages are consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.lite.base import LitePullConsumerBase
from rocketstream.client.consumer.lite_topics.base import LitePushConsumerBase
from rocketstream.client.consumer.pull.base import PullConsumerBase
from rocketstream.client.consumer.push.base import PushConsumerBase
from rocketstream.client.hooks import (
    CONSUME_CONTEXT_TYPE,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeReturnType,
)
from rocketstream.client.otel import names
from rocketstream.client.otel.names import Attributes
from rocketstream.client.otel.spans import Telemetry, failed
from rocketstream.model import MessageModel
from rocketstream.protocol.message_ext import MessageExt

Listening = PushConsumerBase | LitePushConsumerBase
Consumer = Listening | PullConsumerBase | LitePullConsumerBase

HOOK_NAME: Final = "OpenTelemetry"
_NS_PER_MS: Final = 1_000_000


def observe_consumer(telemetry: Telemetry, consumer: object) -> bool:
    """Trace what a consumer consumes; return whether it is a consumer."""
    if not isinstance(consumer, Consumer):
        return False
    hooks: ConsumeHooks = consumer.consume_hooks
    if HOOK_NAME not in hooks.names:
        hooks.register(ConsumeSpans(telemetry, consumer))
    return True


@dataclass(slots=True)
class _Call:
    """What a listener call leaves between before and after."""

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

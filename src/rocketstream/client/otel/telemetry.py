"""Spans and measurements of OpenTelemetry, and trace contexts in the properties of messages.

It knows messages, no clients. It needs the package opentelemetry-api; the SDK, if the program has
one, decides where spans go.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from rocketstream import __version__
from rocketstream.client.otel import names
from rocketstream.client.otel.names import AttributeValue
from rocketstream.protocol.message_ext import MessageExt

logger: logging.Logger = logging.getLogger("rocketstream.client")

Carrier = Mapping[str, str] | MessageExt | str | None
"""Where a trace context stands: properties, a message, or the value of ``traceparent`` alone."""

LINKS_MAX: Final = 128
"""The SDK keeps no more of a span by default."""
_SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Telemetry:
    """Makes spans and measurements with the given providers, or the global ones.

    Args:
        tracer_provider: makes spans; None takes the global one.
        meter_provider: takes measurements; None takes the global one.
        propagator: writes and reads the context in properties; None takes the global one, W3C's
            ``traceparent``, ``tracestate`` and ``baggage`` unless the program chose another.
        create_spans: make a span ``create TOPIC`` for each message of a batch, so that each has a
            context of its own; without, all of a batch carry that of the send.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
        *,
        create_spans: bool = True,
    ) -> None:
        self.tracer: trace.Tracer = trace.get_tracer("rocketstream", __version__, tracer_provider)
        self.create_spans = create_spans
        self._propagator = propagator
        meter = metrics.get_meter("rocketstream", __version__, meter_provider)
        self.sent: metrics.Counter = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Messages a producer attempted to send."
        )
        self.consumed: metrics.Counter = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Messages given to the application."
        )
        self.operation_duration: metrics.Histogram = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "How long sends and polls took.",
            explicit_bucket_boundaries_advisory=_SECONDS_BOUNDS,
        )
        self.process_duration: metrics.Histogram = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "How long processing took.",
            explicit_bucket_boundaries_advisory=_SECONDS_BOUNDS,
        )

    # --- contexts in properties ------------------------------------------------------------------

    @property
    def propagator(self) -> TextMapPropagator:
        """The propagator that writes and reads contexts."""
        return self._propagator or propagate.get_global_textmap()

    def inject(self, properties: dict[str, str], context: Context) -> list[str]:
        """Write a context into properties; return the names that are new in them."""
        carried: dict[str, str] = {}
        self.propagator.inject(carried, context)
        new = {name: value for name, value in carried.items() if name not in properties}
        properties.update(new)
        return list(new)

    def context_of(self, carrier: Carrier) -> Context | None:
        """Return the context something carries, None where it carries none."""
        if carrier is None:
            return None
        if isinstance(carrier, str):
            carrier = {"traceparent": carrier}
        elif isinstance(carrier, MessageExt):
            carrier = carrier.properties
        context = self.propagator.extract(carrier, Context())
        return context if trace.get_current_span(context).get_span_context().is_valid else None

    def links(self, carriers: Iterable[Carrier], most: int = LINKS_MAX) -> list[Link]:
        """Return links to the spans that made messages, each once, the first ``most`` of them."""
        found: dict[tuple[int, int], Link] = {}
        for carrier in carriers:
            context = self.context_of(carrier)
            if context is None:
                continue
            span = trace.get_current_span(context).get_span_context()
            found.setdefault((span.trace_id, span.span_id), Link(span))
            if len(found) >= most:
                break
        return list(found.values())

    # --- spans -----------------------------------------------------------------------------------

    @contextmanager
    def processing(
        self,
        carriers: Iterable[Carrier],
        *,
        topic: str | None = None,
        group: str | None = None,
        message_count: int | None = None,
    ) -> Iterator[Span]:
        """Make a span ``process TOPIC`` around work on messages that no listener was called with.

        For messages a pull consumer got, rows of a Spark batch, a redrive. It links to the spans
        that made the messages; what raises within fails it.

        Args:
            carriers: the messages, their properties, or their ``traceparent`` values.
            topic: of the messages; None where messages are given, or for several topics.
            group: the consumer group, if there is one.
            message_count: how many; None counts ``carriers``.
        """
        given = list(carriers)
        messages = [each for each in given if isinstance(each, MessageExt)]
        if topic is None and len(messages) == len(given):
            topic = names.one_topic(messages)
        attributes = names.operation(names.PROCESS, topic)
        attributes[names.BATCH_COUNT] = len(given) if message_count is None else message_count
        if group is not None:
            attributes[names.GROUP] = group
        with self.tracer.start_as_current_span(
            names.span_name(names.PROCESS, topic),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=self.links(given),
            set_status_on_exception=False,
            record_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                failed(span, error)
                raise


def failed(span: Span, error: BaseException | str) -> str:
    """Note on a span how it failed; return the error type."""
    if isinstance(error, str):
        kind = error
        span.set_status(Status(StatusCode.ERROR, error))
    else:
        kind = type(error).__qualname__
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
    span.set_attribute(names.ERROR_TYPE, kind)
    return kind


def guarded(what: str) -> None:
    """Log what telemetry did wrong; call it in an ``except`` block."""
    logger.warning("OpenTelemetry: %s failed; ignored", what, exc_info=True)


def with_attributes(span: Span, attributes: Mapping[str, AttributeValue]) -> None:
    """Add attributes to a span that is recorded."""
    if span.is_recording():
        for name, value in attributes.items():
            span.set_attribute(name, value)


def links_of(contexts: Sequence[Context]) -> list[Link]:
    """Return links to the spans of contexts."""
    return [Link(trace.get_current_span(context).get_span_context()) for context in contexts]

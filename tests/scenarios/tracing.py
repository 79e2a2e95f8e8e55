"""Clients that OpenTelemetry traces in a simulated run: their spans, compared with what they did.

Law: each send that ended has a span that says how, each listener call that ended has one in the
trace of its message's send; a message is none the worse for it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rocketstream import aio, otel
from rocketstream.testing.history import Recorder
from rocketstream.testing.history.events import ListenerReturned, SendAcknowledged, SendFailed
from rocketstream.testing.sim.consuming import SimGroup
from rocketstream.testing.sim.producing import SimProducer
from rocketstream.testing.sim.world import Node, World

KEYS, TYPE = "messaging.rocketmq.message.keys", "messaging.rocketmq.message.type"
ERROR, SEND_STATUS = "error.type", "rocketstream.send_status"


class Seen(NamedTuple):
    """A span that ended.

    Attributes:
        operation: the first word of its name.
        attributes: what it says.
        trace: its trace.
        links: the traces it links to.
        ok: whether it says nothing of an error.
    """

    operation: str
    attributes: Mapping[str, Any]
    trace: int
    links: frozenset[int]
    ok: bool


class _Exporter(SpanExporter):
    """Keeps the spans of one process, beyond its end."""

    def __init__(self, node: Node) -> None:
        self._spans: list[Seen] = node.kept.setdefault("spans", [])

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            context, attributes = span.get_span_context(), dict(span.attributes or {})
            assert context is not None
            links = frozenset(link.context.trace_id for link in span.links)
            operation = span.name.partition(" ")[0]
            ok = span.status.is_unset or span.status.is_ok
            self._spans.append(Seen(operation, attributes, context.trace_id, links, ok))
        return SpanExportResult.SUCCESS


def _is_of_the_living(record: logging.LogRecord) -> bool:
    """Whether it is none of a killed process: its coroutines are closed in nobody's context."""
    error = record.exc_info[1] if record.exc_info else None
    return error is None or not isinstance(error.__context__, GeneratorExit)


logging.getLogger("opentelemetry.context").addFilter(_is_of_the_living)


def telemetry(node: Node) -> otel.Telemetry:
    """Return what traces the clients of a process."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(_Exporter(node)))
    return otel.Telemetry(provider, NoOpMeterProvider(), TraceContextTextMapPropagator())


class SimTracedProducer(SimProducer):
    """A process whose producer is traced."""

    def _made(self, producer: aio.Producer) -> aio.Producer:
        return otel.instrument(producer, telemetry(self.node))


class SimTracedGroup(SimGroup):
    """Members whose consumers are traced."""

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        return otel.instrument(super()._consumer(node, recorder), telemetry(node))


class Spans:
    """The spans of a run.

    Args:
        world: the world, when all is over.
        producers: the traced producers.
        groups: the traced groups.
    """

    def __init__(
        self, world: World, producers: Sequence[SimTracedProducer], groups: Sequence[SimTracedGroup]
    ) -> None:
        self._world, self._producers, self._groups = world, producers, groups
        self._sent: dict[str, list[Seen]] = defaultdict(list)
        """By key the spans that made its message: of its send, or in a batch of its own."""

    def check(self) -> None:
        """Fail the run where spans tell another story."""
        for producer in self._producers:
            for span in producer.node.kept.get("spans", []):
                if KEYS in span.attributes:
                    (key,) = span.attributes[KEYS]
                    self._sent[key].append(span)
                    self._check_type(producer, key, span)
        for event in self._world.history:
            if isinstance(event, SendAcknowledged | SendFailed) and self._is_traced(event.key):
                self._check_send(event)
        for group in self._groups:
            self._check_calls(group)

    def _is_traced(self, key: str) -> bool:
        """Whether one of the producers sent it."""
        return key.rpartition("-")[0] in {each.node.name for each in self._producers}

    def _check_type(self, producer: SimTracedProducer, key: str, span: Seen) -> None:
        if span.operation != "send":
            return
        habits, kind = producer.habits, span.attributes[TYPE]
        may_be = {"transaction"} if habits.transactional else {"normal"}
        if habits.sharded:
            may_be = {"fifo"}
        if habits.delayed:
            may_be |= {"delay"}
        if kind not in may_be:
            self._world.fail(f"{key} is told to be {kind}, and can be {may_be}")

    def _check_send(self, event: SendAcknowledged | SendFailed) -> None:
        spans = self._sent.get(event.key, [])
        if len(spans) != 1:
            self._world.fail(f"{event.key} was sent once, and has {len(spans)} spans")
            return
        (span,) = spans
        failed = isinstance(event, SendFailed)
        stored = failed and SEND_STATUS in span.attributes
        if span.operation == "send" and not stored and span.ok == failed:
            self._world.fail(f"{event} has a span that says {span.attributes.get(ERROR)}")

    def _check_calls(self, group: SimTracedGroup) -> None:
        spans: dict[str, list[Seen]] = defaultdict(list)
        for node in group.nodes:
            for span in node.kept.get("spans", []):
                for key in span.attributes.get(KEYS, ()):
                    spans[key].append(span)
        calls: dict[str, list[bool]] = defaultdict(list)
        for event in self._world.history:
            if isinstance(event, ListenerReturned) and event.delivery.group == group.manners.group:
                calls[event.delivery.key].append(event.success)
        for key, ends in calls.items():
            seen, traces = spans.get(key, []), {span.trace for span in self._sent[key]}
            if sum(span.ok for span in seen) < sum(ends) or len(seen) < len(ends):
                self._world.fail(f"{key} was consumed {ends}, and has spans {seen}")
            strays = [span for span in seen if traces.isdisjoint({span.trace, *span.links})]
            if strays and traces:  # a producer that is killed tells nobody of its span
                self._world.fail(f"{key} was consumed in a trace of its own: {seen}, {traces}")

"""Spans that a test made, kept in memory, and how they hang together.

Law: looks at finished spans only; waits have a deadline.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from rocketstream import otel
from tests.plugins.waiting import wait_until

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""A trace context somebody else began."""
CONTEXT_IDS = (int(CONTEXT[3:35], 16), int(CONTEXT[36:52], 16))


class Recorded:
    """Telemetry that keeps what it makes."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader])
        self.telemetry = otel.Telemetry(provider, self._meters)
        self.tracer: Tracer = provider.get_tracer("test")
        self._shut = provider.shutdown

    def close(self) -> None:
        self._shut()
        self._meters.shutdown()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Return the spans of a name, once there are so many."""

        def enough() -> list[ReadableSpan] | None:
            found = self.named(name)
            return found if len(found) >= count else None

        return wait_until(enough, f"{count} spans {name}")

    def measured(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Return attributes and value, or count of a histogram, by metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        return {
            metric.name: [
                (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", 0)))
                for point in metric.data.data_points
            ]
            for metric in metrics
        }


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})

"""One trace from a web request through RocketMQ into the consumer, with OpenTelemetry.

The spans are printed as a tree; a program of yours hands them to a collector instead, by the
exporter it sets up. The listener fails the first time: both tries hang below the same send.
"""

from __future__ import annotations

import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    otel,
)
from rocketstream.server.embedded import EmbeddedCluster

finished = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(finished))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")
billed = threading.Event()


def bill(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    with tracer.start_as_current_span("look up account"):
        if messages[0].reconsume_times == 0:
            raise LookupError("account not found yet")
    billed.set()
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def show(spans: list[ReadableSpan], parent: int | None, depth: int) -> None:
    for span in spans:
        if (span.parent.span_id if span.parent else None) == parent:
            error = (span.attributes or {}).get("error.type")
            print("  " * depth + span.name + (f"  ! {error}" if error else ""))
            context = span.get_span_context()
            if context is not None:
                show(spans, context.span_id, depth + 1)


def main() -> None:
    otel.instrument_all()
    with EmbeddedCluster() as cluster:
        consumer = PushConsumer(
            "billing",
            namesrv_addr=cluster.namesrv_addr,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            subscription={"orders": "*"},
            listener=bill,
        )
        with consumer, Producer("shop", namesrv_addr=cluster.namesrv_addr) as producer:
            with tracer.start_as_current_span("POST /orders"):
                producer.send(Message("orders", b"a bicycle"))
            billed.wait(30)
    show(sorted(finished.get_finished_spans(), key=lambda span: span.start_time or 0), None, 0)


if __name__ == "__main__":
    main()

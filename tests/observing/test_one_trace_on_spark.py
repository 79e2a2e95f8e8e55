"""Micro-batches of Spark in the traces of their messages, as docs/filtering-and-trace.md has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import Message, Producer, otel
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import run_to_end
from tests.plugins.spans import Recorded, attributes, ids, linked

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.close()


def test_each_micro_batch_links_to_the_sends_of_its_rows(
    shared_cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    stream: Callable[..., Any],
    recorded: Recorded,
    tmp_path: Any,
) -> None:
    topic, telemetry = new_topic(1), recorded.telemetry

    def send(*bodies: str) -> None:
        with Producer("till", namesrv_addr=shared_cluster.namesrv_addr) as producer:
            otel.instrument(producer, telemetry)
            for body in bodies:
                producer.send(Message(topic, body))

    def bill(batch: Any, number: int) -> None:
        traces = batch.select("properties.traceparent").distinct().limit(otel.LINKS_MAX).collect()
        carriers = [row.traceparent for row in traces]
        with telemetry.processing(carriers, topic=topic, message_count=batch.count()):
            batch.write.mode("append").parquet(str(tmp_path / "bills"))

    def run() -> None:
        run_to_end(
            stream(topic)
            .writeStream.foreachBatch(bill)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )

    send("1", "2")
    run()
    with Producer("plain", namesrv_addr=shared_cluster.namesrv_addr) as producer:
        producer.send(Message(topic, "a message without a trace"))
    send("3")
    run()
    sends = [ids(span) for span in recorded.named(f"send {topic}")]
    first, second = recorded.named(f"process {topic}")
    assert sorted(linked(first)) == sorted(sends[:2])
    assert linked(second) == sends[2:]
    assert [attributes(span)["messaging.batch.message_count"] for span in (first, second)] == [2, 2]

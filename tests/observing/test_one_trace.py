"""One trace from a Java producer through our consumer into a Spark batch, span by span."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    otel,
)
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.plugins.spans import CONTEXT, CONTEXT_IDS, Recorded, attributes, ids, linked, parent

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.close()


def test_one_trace_from_java_through_our_consumer_into_a_spark_batch(
    spark: Any, apache_cluster: ApacheCluster, java: JavaPrograms, recorded: Recorded
) -> None:
    """The Java program sets what its OpenTelemetry agent would set."""
    namesrv = apache_cluster.namesrv_addr
    orders = apache_cluster.create_topic(apache_cluster.unique("orders"), queues=1)
    bills = apache_cluster.create_topic(apache_cluster.unique("bills"), queues=1)
    group = apache_cluster.unique("billing")
    java.produce(
        namesrv=namesrv, topic=orders, group="till", mode="sync", count=1, traceparent=CONTEXT
    )
    with Producer("billing", namesrv_addr=namesrv) as producer:
        otel.instrument(producer, recorded.telemetry)

        def bill(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            producer.send(Message(bills, messages[0].body))
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = PushConsumer(
            group,
            namesrv_addr=namesrv,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            subscription={orders: "*"},
            listener=bill,
        )
        with otel.instrument(consumer, recorded.telemetry):
            (consumed,) = recorded.wait(f"process {orders}")
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", bills)
    batch = reader.load()
    traces = batch.select("properties.traceparent").distinct().limit(otel.LINKS_MAX).collect()
    with recorded.telemetry.processing(
        [row.traceparent for row in traces], topic=bills, message_count=batch.count()
    ):
        assert batch.count() == 1
    (sent,) = recorded.named(f"send {bills}")
    (landed,) = recorded.named(f"process {bills}")
    assert parent(consumed) == CONTEXT_IDS
    assert linked(consumed) == [CONTEXT_IDS]
    assert parent(sent) == ids(consumed)
    assert linked(landed) == [ids(sent)]
    assert {span[0] for span in (ids(consumed), ids(sent), *linked(landed))} == {CONTEXT_IDS[0]}
    kinds = [span.kind for span in (consumed, sent, landed)]
    assert kinds == [SpanKind.CONSUMER, SpanKind.PRODUCER, SpanKind.CONSUMER]
    assert attributes(landed)["messaging.batch.message_count"] == 1

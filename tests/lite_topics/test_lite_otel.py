"""OpenTelemetry and consumers of lite topics: the spans around their listener calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream import aio, otel
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker
from tests.kits.client.lite_broker import (
    ACK,
    LATER,
    Listener,
    consumer,
    lite_broker,
    popped,
    wait_pop,
)
from tests.plugins.spans import Recorded, attributes


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with lite_broker() as running:
        yield running


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.close()


def test_a_listener_call_is_a_span_that_names_the_lite_topic(
    broker: FakeBroker, recorded: Recorded
) -> None:
    listener = Listener()
    listener.answers[b"b6"] = [LATER]
    made = otel.instrument(consumer(broker, listener, "a", "b"), recorded.telemetry)
    with made:
        broker.reply(wait_pop(broker), popped(("a", 5), ("b", 6)))
        broker.wait_for(ACK)
        spans = recorded.wait(f"process {TOPIC}", 2)
    good, bad = sorted(spans, key=lambda span: str(attributes(span)["rocketstream.lite_topic"]))
    found = attributes(good)
    assert found["rocketstream.lite_topic"] == "a"
    assert found["messaging.consumer.group.name"] == GROUP
    assert found["messaging.rocketmq.consumption_model"] == "clustering"
    assert found["messaging.destination.partition.id"] == "broker-a:2"
    assert (good.status.is_ok, bad.status.is_ok) == (True, False)
    assert attributes(bad)["error.type"] == "RECONSUME_LATER"


def test_all_new_consumers_of_lite_topics_are_traced_while_it_is_switched_on(
    broker: FakeBroker, recorded: Recorded
) -> None:
    def traced() -> list[bool]:
        made = [consumer(broker, print), aio.LitePushConsumer(GROUP, TOPIC)]
        return [bool(one.consume_hooks) for one in made]

    otel.instrument_all(recorded.telemetry)
    try:
        assert traced() == [True, True]
    finally:
        otel.uninstrument_all()
    assert traced() == [False, False]

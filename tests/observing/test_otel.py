"""OpenTelemetry: the spans of sends, listener calls and polls, and how they hang together."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeVar

import pytest
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rocketstream import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    aio,
    otel,
)
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ConfigurationError, MessageInvalidError
from tests.kits.bridge import real
from tests.kits.cluster import Cluster
from tests.kits.faces import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from tests.kits.listeners import LATER, SUCCESS
from tests.kits.orderly import orderly_consumer
from tests.plugins.clusters import Names
from tests.plugins.spans import (
    CONTEXT,
    CONTEXT_IDS,
    Recorded,
    attributes,
    ids,
    linked,
    parent,
)
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

T = TypeVar("T")
FIRST = ConsumeFromWhere.FIRST_OFFSET
PARTITION = "messaging.destination.partition.id"
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.close()


def instrument(client: T, telemetry: otel.Telemetry) -> T:
    """Have a client of either face traced."""
    assert otel.instrument(real(client), telemetry) is real(client)
    return client


@contextmanager
def consuming(
    cluster: Cluster, names: Names, recorded: Recorded, listener: Any, **settings: Any
) -> Iterator[PushConsumer]:
    """Run a traced consumer of the case's topic."""
    made = PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        consume_from_where=FIRST,
        subscription={names.topic: "*"},
        listener=listener,
        **settings,
    )
    with instrument(made, recorded.telemetry) as consumer:
        yield consumer


def server_of(cluster: Cluster, broker_name: str) -> dict[str, Any]:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        host, _, port = client.master(broker_name).rpartition(":")
    return {"server.address": host, "server.port": int(port)}


def recorded_broker(recorded: Recorded, names: Names) -> str:
    """Return the broker that stored what was sent."""
    place: str = attributes(recorded.named(f"send {names.topic}")[0])[PARTITION]
    return place.rpartition(":")[0]


def send_one(cluster: Cluster, recorded: Recorded, topic: str, body: bytes = b"x") -> None:
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        instrument(producer, recorded.telemetry).send(Message(topic, body))


def test_one_trace_from_the_producer_into_the_listener(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    message = Message(names.topic, b"x", tags="new", keys=["a", "b"])

    def listener(_: list[MessageExt]) -> Any:
        with recorded.tracer.start_as_current_span("bill"):
            return SUCCESS

    cluster.create_topic(names.topic, 1)
    with (
        Producer("till", namesrv_addr=cluster.namesrv_addr) as producer,
        consuming(cluster, names, recorded, listener) as consumer,
    ):
        instrument(producer, recorded.telemetry)
        with recorded.tracer.start_as_current_span("checkout"):
            result = producer.send(message)
        (process,) = recorded.wait(f"process {names.topic}")
    (checkout,), (send,) = recorded.named("checkout"), recorded.named(f"send {names.topic}")
    (bill,) = recorded.named("bill")
    assert parent(send) == ids(checkout)
    assert parent(process) == ids(send)
    assert linked(process) == [ids(send)]
    assert parent(bill) == ids(process)
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert "traceparent" not in message.properties, "sent anew it would carry an old context"
    queue = result.message_queue
    both = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": names.topic,
        "messaging.destination.partition.id": f"{queue.broker_name}:{queue.queue_id}",
        "messaging.message.id": result.msg_id,
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("a", "b"),
        **server_of(cluster, queue.broker_name),
    }
    assert attributes(send) == both | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": producer.client_id,
        "messaging.rocketmq.message.type": "normal",
    }
    assert attributes(process) == both | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": consumer.client_id,
        "messaging.consumer.group.name": names.group,
        "messaging.rocketmq.consumption_model": "clustering",
    }


def test_a_message_that_is_tried_again_keeps_its_trace(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    def listener(messages: list[MessageExt]) -> Any:
        if messages[0].reconsume_times == 0:
            raise LookupError("no such account")
        return SUCCESS

    cluster.create_topic(names.topic, 1)
    with consuming(cluster, names, recorded, listener):
        send_one(cluster, recorded, names.topic)
        failed, again = recorded.wait(f"process {names.topic}", 2)
    (send,) = recorded.named(f"send {names.topic}")
    assert parent(failed) == parent(again) == ids(send)
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "LookupError"
    assert [event.name for event in failed.events] == ["exception"]
    assert again.status.status_code is StatusCode.UNSET
    assert attributes(again)["rocketstream.reconsume_times"] == 1


def test_batches_are_linked(cluster: Cluster, names: Names, recorded: Recorded) -> None:
    """Each message of a batch has a context of its own; neither side has one parent for all."""
    cluster.create_topic(names.topic, 1)
    messages = [Message(names.topic, b"%d" % n) for n in range(3)]
    messages[1].put_user_property("traceparent", CONTEXT)
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        instrument(producer, recorded.telemetry).send(iter(messages))
    (send,) = recorded.named(f"send {names.topic}")
    created = [ids(span) for span in recorded.named(f"create {names.topic}")]
    assert (len(created), send.kind) == (2, SpanKind.CLIENT)
    assert sorted(linked(send)) == sorted([*created, CONTEXT_IDS])
    assert attributes(send)["messaging.batch.message_count"] == 3
    with consuming(cluster, names, recorded, lambda _: SUCCESS, consume_message_batch_max_size=8):
        (process,) = recorded.wait(f"process {names.topic}")
    assert parent(process) is None
    assert linked(process) == [created[0], CONTEXT_IDS, created[1]]
    assert attributes(process)["messaging.batch.message_count"] == 3


def test_create_spans_can_be_left_out(cluster: Cluster, names: Names, recorded: Recorded) -> None:
    cluster.create_topic(names.topic, 1)
    recorded.telemetry.create_spans = False
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        instrument(producer, recorded.telemetry)
        producer.send_batch(messages=[Message(names.topic, b"1"), Message(names.topic, b"2")])
    (send,) = recorded.named(f"send {names.topic}")
    assert (send.kind, linked(send)) == (SpanKind.PRODUCER, [])
    assert not recorded.named(f"create {names.topic}")


def test_every_way_to_send_makes_one_span(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    cluster.create_topic(names.topic, 1)
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        instrument(producer, recorded.telemetry)
        instrument(producer, recorded.telemetry)  # changes nothing
        producer.send(message=Message(names.topic, b"1"), sharding_key="k")
        with recorded.tracer.start_as_current_span("around"):
            future = producer.send_async(Message(names.topic, b"2", delay_level=1))
        assert future.result(30).msg_id
        producer.send_oneway(Message(names.topic, b"3"))
        producer.send([Message(names.topic, b"4")])
        spans = recorded.wait(f"send {names.topic}", 4)
    spans = recorded.named(f"send {names.topic}")
    kinds = [attributes(span).get("messaging.rocketmq.message.type") for span in spans]
    assert sorted(map(str, kinds)) == ["None", "delay", "fifo", "normal"]
    around = {ids(span) for span in recorded.named("around")}
    assert {parent(span) for span in spans if span.parent} == around
    assert len(around) == 1


def test_a_send_that_fails_is_told(cluster: Cluster, names: Names, recorded: Recorded) -> None:
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        instrument(producer, recorded.telemetry)
        with pytest.raises(MessageInvalidError):
            producer.send(Message(names.topic, b""))
        with pytest.raises(MessageInvalidError):
            producer.send_async(Message(names.topic, b"")).result(30)
        with pytest.raises(MessageInvalidError, match="empty"):
            producer.send([])
    spans = recorded.named(f"send {names.topic}")
    assert [attributes(span)["error.type"] for span in spans] == ["MessageInvalidError"] * 2
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


def test_a_local_transaction_runs_within_the_send(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    cluster.create_topic(names.topic, 1)

    class Books(TransactionListener):
        def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
            with recorded.tracer.start_as_current_span("book"):
                return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

    with TransactionProducer(
        names.group, namesrv_addr=cluster.namesrv_addr, transaction_listener=Books()
    ) as producer:
        instrument(producer, recorded.telemetry)
        producer.send_message_in_transaction(Message(names.topic, b"x"))
    (send,), (book,) = recorded.named(f"send {names.topic}"), recorded.named("book")
    assert parent(book) == ids(send)
    assert attributes(send)["messaging.rocketmq.message.type"] == "transaction"


Poll = Callable[[Cluster, Names, Recorded], list[MessageExt]]


def lite(cluster: Cluster, names: Names, recorded: Recorded) -> list[MessageExt]:
    with LitePullConsumer(
        names.group, namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        consumer.subscribe(names.topic, "*")
        instrument(consumer, recorded.telemetry)
        with recorded.tracer.start_as_current_span("work"):
            return wait_until(lambda: consumer.poll(1000), "messages")


def pull(cluster: Cluster, names: Names, recorded: Recorded) -> list[MessageExt]:
    with PullConsumer(names.group, namesrv_addr=cluster.namesrv_addr) as consumer:
        instrument(consumer, recorded.telemetry)
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        # A broker of 5.x writes the queue's entry after it has answered the send.
        wait_until(lambda: consumer.max_offset(mq) == 1, "the message in its queue")
        with recorded.tracer.start_as_current_span("work"):
            return consumer.pull(mq, None, 0, 32).msg_found_list


@pytest.mark.parametrize("poll", [lite, pull])
def test_what_is_pulled_is_received_and_can_be_processed(
    cluster: Cluster, names: Names, recorded: Recorded, poll: Poll
) -> None:
    cluster.create_topic(names.topic, 1)
    send_one(cluster, recorded, names.topic)
    (message,) = poll(cluster, names, recorded)
    with (
        pytest.raises(LookupError),
        recorded.telemetry.processing([message], group=names.group),
    ):
        raise LookupError("no such account")
    (send,) = recorded.named(f"send {names.topic}")
    (receive,) = recorded.wait(f"receive {names.topic}")
    (work,), (process,) = recorded.wait("work"), recorded.named(f"process {names.topic}")
    assert (receive.kind, linked(receive)) == (SpanKind.CLIENT, [ids(send)])
    assert parent(receive) == ids(work)
    assert attributes(receive)["messaging.batch.message_count"] == 1
    assert (process.kind, linked(process)) == (SpanKind.CONSUMER, [ids(send)])
    assert attributes(process)["error.type"] == "LookupError"


def test_an_orderly_listener_runs_within_its_span(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    cluster.create_topic(names.topic, 1)
    send_one(cluster, recorded, names.topic)

    def listener(_: list[MessageExt]) -> Any:
        with recorded.tracer.start_as_current_span("bill"):
            return ConsumeOrderlyStatus.SUCCESS

    consumer = orderly_consumer(cluster.namesrv_addr, names.group, names.topic, listener)
    with instrument(consumer, recorded.telemetry):
        recorded.wait(f"process {names.topic}")
    (send,), (bill,) = recorded.named(f"send {names.topic}"), recorded.named("bill")
    (process,) = recorded.named(f"process {names.topic}")
    assert parent(bill) == ids(process)
    assert parent(process) == ids(send)


def test_a_listener_that_is_cut_off_ends_its_span(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    cluster.create_topic(names.topic, 1)
    send_one(cluster, recorded, names.topic)

    async def story() -> None:
        begun = asyncio.Event()

        async def listener(_: list[MessageExt]) -> Any:
            begun.set()
            await asyncio.Event().wait()

        consumer = aio.PushConsumer(
            names.group,
            namesrv_addr=cluster.namesrv_addr,
            consume_from_where=FIRST,
            await_termination_ms_when_shutdown=0,
            subscription={names.topic: "*"},
            listener=listener,
        )
        async with otel.instrument(consumer, recorded.telemetry):
            await begun.wait()

    asyncio.run(asyncio.wait_for(story(), 30))
    (process,) = recorded.named(f"process {names.topic}")
    assert attributes(process)["error.type"] == "CancelledError"


def test_sends_and_calls_are_measured(cluster: Cluster, names: Names, recorded: Recorded) -> None:
    cluster.create_topic(names.topic, 1)

    def listener(messages: list[MessageExt]) -> Any:
        return SUCCESS if messages[0].body == b"good" else LATER

    with consuming(cluster, names, recorded, listener, max_reconsume_times=0):
        send_one(cluster, recorded, names.topic, b"good")
        send_one(cluster, recorded, names.topic, b"bad")
        recorded.wait(f"process {names.topic}", 2)
    everywhere = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": names.topic,
        **server_of(cluster, recorded_broker(recorded, names)),
    }
    sent = everywhere | {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    consumed = everywhere | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": names.group,
    }
    both = [(consumed, 1), (consumed | {"error.type": "RECONSUME_LATER"}, 1)]
    measured = recorded.measured()
    assert measured["messaging.client.sent.messages"] == [(sent, 2)]
    assert measured["messaging.client.operation.duration"] == [(sent, 2)]
    assert sorted(measured["messaging.client.consumed.messages"], key=str) == sorted(both, key=str)
    assert sorted(measured["messaging.process.duration"], key=str) == sorted(both, key=str)


def test_it_is_off_unless_asked_for_and_then_all_new_clients_have_it(
    cluster: Cluster, names: Names, recorded: Recorded
) -> None:
    cluster.create_topic(names.topic, 1)

    def is_traced(*clients: Any) -> list[bool]:
        return [
            "send" in vars(c) if hasattr(c, "send") else bool(c.consume_hooks)
            for c in map(real, clients)
        ]

    def clients() -> list[Any]:
        made = (Producer, PushConsumer, LitePullConsumer, PullConsumer)
        return [kind("any", namesrv_addr=cluster.namesrv_addr) for kind in made]

    assert is_traced(*clients()) == [False] * 4
    otel.instrument_all(recorded.telemetry)
    try:
        with Producer("till", namesrv_addr=cluster.namesrv_addr, enable_msg_trace=True) as producer:
            # Message trace of RocketMQ's own works beside it, and is not traced itself.
            producer.send(Message(names.topic, b"x"))
        assert is_traced(*clients()) == [True] * 4
    finally:
        otel.uninstrument_all()
    assert is_traced(*clients()) == [False] * 4
    assert len(recorded.named(f"send {names.topic}")) == 1
    with pytest.raises(ConfigurationError, match="not str"):
        otel.instrument("till")


def test_the_entry_point_traces_every_client_until_it_is_taken_back(
    cluster: Cluster, names: Names
) -> None:
    """What ``opentelemetry-instrument`` does with it, of which the name is all that it knows."""
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    ((name, place),) = groups["opentelemetry_instrumentor"].items()
    instrumentor = EntryPoint(name, place, "opentelemetry_instrumentor").load()()
    assert isinstance(instrumentor, BaseInstrumentor)
    cluster.create_topic(names.topic, 1)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    try:
        with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
            producer.send(Message(names.topic, b"x"))
    finally:
        instrumentor.uninstrument()
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(Message(names.topic, b"x"))
    assert [span.name for span in exporter.get_finished_spans()] == [f"send {names.topic}"]
    provider.shutdown()


def test_messages_go_on_whatever_telemetry_does(
    cluster: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(names.topic, 1)
    recorded = Recorded()
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        instrument(producer, recorded.telemetry)

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("telemetry")

        monkeypatch.setattr(recorded.telemetry.sent, "add", broken)
        assert producer.send(Message(names.topic, b"x")).msg_id
        monkeypatch.setattr(recorded.telemetry, "tracer", None)
        assert producer.send(Message(names.topic, b"x")).msg_id
        assert producer.send_async(Message(names.topic, b"x")).result(30).msg_id
    recorded.close()

"""Message trace: what producers and consumers of both faces leave in the trace topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketstream import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
)
from rocketstream.errors import ClientStateError, RocketMQError
from rocketstream.protocol.trace import (
    TraceEndTransaction,
    TracePub,
    TraceRecord,
    TraceSubAfter,
    TraceSubBefore,
    decode_trace,
    record_keys,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from tests.kits.listeners import LATER, SUCCESS, Seen, consumer_of, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FIRST = ConsumeFromWhere.FIRST_OFFSET
DEFAULT_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def trace_messages(cluster: Cluster, topic: str) -> list[MessageExt]:
    """Everything a trace topic holds now."""
    found: list[MessageExt] = []
    with PullConsumer("trace-readers", namesrv_addr=cluster.namesrv_addr) as consumer:
        try:
            queues = consumer.fetch_subscribe_message_queues(topic)
        except RocketMQError:
            return []  # nobody has written any trace yet
        for mq in queues:
            offset = consumer.min_offset(mq)
            while offset < consumer.max_offset(mq):
                result = consumer.pull(mq, None, offset, 32)
                found += result.msg_found_list
                offset = result.next_begin_offset
    return found


def wait_records(
    cluster: Cluster, topic: str, enough: Callable[[list[TraceRecord]], bool]
) -> list[TraceRecord]:
    """Records of a topic, once there are enough, in the order of their messages' store time."""
    found: list[TraceRecord] = []

    def are_enough() -> bool:
        found.clear()
        stored = sorted(trace_messages(cluster, topic), key=lambda m: m.store_timestamp)
        for message in stored:
            found.extend(decode_trace(message.body.decode()))
        return enough(found)

    wait_until(are_enough, f"trace records in {topic}")
    return found


def trace_topic(cluster: Cluster, names: Names) -> str:
    topic = f"{names.topic}-trace"
    cluster.create_topic(topic, 2)
    cluster.create_topic(names.topic, 1)
    return topic


def test_sends_are_traced(cluster: Cluster, names: Names) -> None:
    """Covers C-541, C-543, C-545: one record per send, a batch being one; keys find it."""
    topic = trace_topic(cluster, names)
    with Producer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        enable_msg_trace=True,
        customized_trace_topic=topic,
    ) as producer:
        one = producer.send(Message(names.topic, b"one", tags="A", keys=["k1", "k2"]))
        two = producer.send_async(Message(names.topic, b"four")).result()
        late = producer.send(Message(names.topic, b"later", delay_level=1))
        many = producer.send([Message(names.topic, b"a", keys="x"), Message(names.topic, b"bc")])
        producer.send_oneway(Message(names.topic, b"one-way"))
    records = wait_records(cluster, topic, lambda found: len(found) >= 4)
    assert len(records) == 4, "a one-way send has no result to tell of"
    by_id = {record.msg_id: record for record in records if isinstance(record, TracePub)}
    first = by_id[one.msg_id]
    assert (first.topic, first.group_name, first.region_id) == (
        names.topic,
        names.group,
        "DefaultRegion",
    )
    assert (first.tags, first.keys, first.body_length, first.msg_type) == ("A", "k1 k2", 3, 0)
    assert (first.offset_msg_id, first.success) == (one.offset_msg_id, True)
    assert first.store_host is not None
    assert ":" in first.store_host
    assert first.cost_time >= 0
    assert (by_id[two.msg_id].tags, by_id[two.msg_id].keys) == (None, None)
    assert by_id[late.msg_id].msg_type == 3
    batch = by_id[many.msg_id]
    assert (batch.tags, batch.keys, batch.offset_msg_id) == (None, None, many.offset_msg_id)
    keys = {word for m in trace_messages(cluster, topic) for word in (m.keys or "").split()}
    assert keys == {word for record in records for word in record_keys(record)}
    assert {m.tags for m in trace_messages(cluster, topic)} == {None}


@pytest.mark.parametrize(
    ("answer", "success", "code"), [(SUCCESS, True, 0), (LATER, False, 4), (None, False, 3)]
)
def test_listener_calls_are_traced(
    cluster: Cluster, names: Names, answer: Any, success: bool, code: int
) -> None:
    """Covers C-542, C-545: SubBefore and SubAfter of one request id, with the return code."""
    topic = trace_topic(cluster, names)
    send_all(cluster.namesrv_addr, numbered(names.topic, [1], keys="k1 k2"))
    regions: set[str | None] = set()

    def listener(messages: list[MessageExt]) -> Any:
        regions.add(messages[0].properties.get("MSG_REGION"))
        return answer if messages[0].reconsume_times == 0 else SUCCESS

    with PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        listener=listener,
        consume_from_where=FIRST,
        enable_msg_trace=True,
        customized_trace_topic=topic,
        subscription={names.topic: "*"},
    ):
        wait_records(cluster, topic, lambda found: len(found) >= 2)
    before, after = wait_records(cluster, topic, lambda found: len(found) >= 2)[:2]
    assert isinstance(before, TraceSubBefore)
    assert isinstance(after, TraceSubAfter)
    assert (before.group_name, before.retry_times, before.keys) == (names.group, 0, "k1 k2")
    # Brokers store none before 5.x.
    assert {before.region_id} == regions
    assert (after.request_id, after.msg_id, after.keys) == (
        before.request_id,
        before.msg_id,
        "k1 k2",
    )
    assert (after.success, after.context_code, after.group_name) == (success, code, names.group)
    assert after.timestamp >= before.timestamp


def test_messages_that_say_so_are_not_traced(cluster: Cluster, names: Names) -> None:
    """Covers C-546: TRACE_ON is false."""
    topic = trace_topic(cluster, names)
    quiet, loud = numbered(names.topic, [1, 2])
    quiet.properties["TRACE_ON"] = "false"
    send_all(cluster.namesrv_addr, [quiet, loud])
    seen = Seen()
    with PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        listener=seen,
        consume_from_where=FIRST,
        enable_msg_trace=True,
        customized_trace_topic=topic,
        subscription={names.topic: "*"},
    ):
        seen.wait_consumed(2)
    records = wait_records(cluster, topic, lambda found: len(found) >= 2)
    # 5.x brokers write their own switch over the message's.
    wanted = {m.msg_id for m in seen.consumed if m.properties.get("TRACE_ON") != "false"}
    assert loud.msg_id in wanted
    assert {record.msg_id for record in records} == wanted


def test_a_batch_of_a_listener_has_one_request_id(cluster: Cluster, names: Names) -> None:
    """Covers C-545: a record per message; the time is shared out."""
    topic = trace_topic(cluster, names)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
    seen = Seen()
    with PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        listener=seen,
        consume_from_where=FIRST,
        consume_message_batch_max_size=3,
        enable_msg_trace=True,
        customized_trace_topic=topic,
        subscription={names.topic: "*"},
    ):
        seen.wait_consumed(3)
    records = wait_records(cluster, topic, lambda found: len(found) >= 6)
    before = [record for record in records if isinstance(record, TraceSubBefore)]
    after = [record for record in records if isinstance(record, TraceSubAfter)]
    assert len(before) == len(after) == 3
    assert sorted(r.request_id or "" for r in before) == sorted(r.request_id or "" for r in after)


class Decides(TransactionListener):
    """Commits, or rolls back what says so."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        if arg:
            return LocalTransactionState.ROLLBACK_MESSAGE
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@pytest.mark.parametrize(
    ("rolls_back", "state"), [(False, "COMMIT_MESSAGE"), (True, "ROLLBACK_MESSAGE")]
)
def test_transactions_are_traced(
    cluster: Cluster, names: Names, rolls_back: bool, state: str
) -> None:
    """Covers C-541, C-545: the half and its end."""
    topic = trace_topic(cluster, names)
    with TransactionProducer(
        names.group,
        transaction_listener=Decides(),
        namesrv_addr=cluster.namesrv_addr,
        enable_msg_trace=True,
        customized_trace_topic=topic,
    ) as producer:
        message = Message(names.topic, b"x", tags="A", keys="k")
        result = producer.send_message_in_transaction(message, rolls_back)
    half, end = wait_records(cluster, topic, lambda found: len(found) >= 2)
    assert isinstance(half, TracePub)
    assert (half.msg_type, half.msg_id) == (1, result.msg_id)
    assert isinstance(end, TraceEndTransaction)
    assert (end.transaction_state, end.from_transaction_check, end.msg_type) == (state, False, 2)
    assert (end.msg_id, end.transaction_id) == (result.msg_id, result.msg_id)
    assert (end.tags, end.keys, end.region_id) == ("A", "k", "DefaultRegion")


def test_polls_are_traced_as_successes(cluster: Cluster, names: Names) -> None:
    """Covers C-547: at delivery, whatever the caller does with the messages."""
    topic = trace_topic(cluster, names)
    send_all(cluster.namesrv_addr, numbered(names.topic, [1]))
    consumer = LitePullConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        consume_from_where=FIRST,
        enable_msg_trace=True,
        customized_trace_topic=topic,
    )
    consumer.subscribe(names.topic)
    consumer.start()
    try:
        assert len(consumer.poll(30_000)) == 1
    finally:
        consumer.shutdown()
    records = wait_records(cluster, topic, lambda found: len(found) >= 2)
    (after,) = [record for record in records if isinstance(record, TraceSubAfter)]
    assert (after.success, after.context_code) == (True, 0)


def test_traces_go_to_the_systems_topic(cluster: Cluster, names: Names) -> None:
    """Covers C-541, C-543: to RMQ_SYS_TRACE_TOPIC unless told otherwise."""
    cluster.create_topic(names.topic, 1)
    settings: dict[str, Any] = {"namesrv_addr": cluster.namesrv_addr, "enable_msg_trace": True}
    seen = Seen()
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, enable_msg_trace=True),
        Producer(f"{names.group}-p", **settings) as producer,
    ):
        msg_id = producer.send(Message(names.topic, b"x")).msg_id
        seen.wait_consumed(1)

    def of_message(found: list[TraceRecord]) -> list[str]:
        return sorted(record.NAME for record in found if record.msg_id == msg_id)

    wanted = ["Pub", "SubAfter", "SubBefore"]
    wait_records(cluster, DEFAULT_TOPIC, lambda found: of_message(found) == wanted)


def test_trace_is_complete_after_shutdown(cluster: Cluster, names: Names) -> None:
    """Covers C-546: what is pending at shutdown is sent; nothing more runs afterwards."""
    topic = trace_topic(cluster, names)
    producer = Producer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        enable_msg_trace=True,
        customized_trace_topic=topic,
    )
    with producer:
        sent = {producer.send(message).msg_id for message in numbered(names.topic, range(50))}
    # All of it is acknowledged by now; a broker shows what it stored a moment later.
    wait_records(cluster, topic, lambda found: {record.msg_id for record in found} == sent)
    with pytest.raises(ClientStateError):
        producer.send(Message(names.topic, b"x"))

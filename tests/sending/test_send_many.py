"""``send_many``: each message stored where its result says, by key in order, or named as failed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rocketstream.errors import ConfigurationError, MessageInvalidError, SendManyError, SendOutcome
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer
from tests.kits.listeners import stored
from tests.plugins.clusters import Names

pytestmark = pytest.mark.usefixtures("face")


def places(result: Any) -> list[tuple[int, int]]:
    rows = result.table().to_pylist()
    assert {row["status"] for row in rows} <= {"SEND_OK"}
    return [(row["queueId"], row["queueOffset"]) for row in rows]


def test_every_message_is_stored_where_its_result_says(cluster: Cluster, names: Names) -> None:
    cluster.create_topic(names.topic, 4)
    bodies = [b"%d" % number for number in range(5_000)]
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        result = producer.send_many(names.topic, bodies, tags="A", properties={"p": "v"})
    assert (len(result), result.stored_count, result.failed) == (5_000, 5_000, [])
    assert result.rest.num_rows == 0
    found = stored(cluster, names.topic, 5_000)
    assert [found[place].body for place in places(result)] == bodies
    assert len({message.msg_id for message in found.values()}) == 5_000
    some = found[places(result)[4_711]]
    assert (some.tags, some.get_property("p")) == ("A", "v")
    assert {queue_id for queue_id, _ in found} == {0, 1, 2, 3}


def test_messages_of_one_key_keep_their_order_in_the_queue_of_the_key(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-471: where a send with that sharding key goes."""
    cluster.create_topic(names.topic, 4)
    keys = [f"key-{number % 7}" for number in range(3_000)]
    bodies = [f"{key} {number}" for number, key in enumerate(keys)]
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        result = producer.send_many(names.topic, bodies, sharding_keys=keys, keys=keys)
        expected = {key: producer.queue_of(names.topic, key).queue_id for key in set(keys)}
    found = stored(cluster, names.topic, 3_000)
    numbers = defaultdict(list)
    for place in sorted(found):
        message = found[place]
        key, _, number = message.body.decode().partition(" ")
        assert (place[0], message.keys) == (expected[key], key)
        numbers[key].append(int(number))
    assert [found[place].body.decode() for place in places(result)] == bodies
    assert all(each == sorted(each) for each in numbers.values())


def test_a_table_says_all_of_its_messages(cluster: Cluster, names: Names) -> None:
    cluster.create_topic(names.topic, 2)
    table = pa.table(
        {
            "body": pa.array(["a", "b", "c"], pa.large_string()),
            "tags": pa.array(["T", None, "T"]).dictionary_encode(),
            "keys": [["k1", "k2"], [], None],
            "queueId": pa.array([1, 1, 0], pa.int8()),
            "properties": pa.array([[("p", "1")], None, []], pa.map_(pa.string(), pa.string())),
            "flag": [7, 0, 0],
            "msgId": ["id-1", "id-2", "id-3"],
        }
    )
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        assert places(producer.send_many(names.topic, reader)) == [(1, 0), (1, 1), (0, 0)]
    found = stored(cluster, names.topic, 3)
    first, second = found[1, 0], found[1, 1]
    assert (first.body, first.tags, first.keys, first.flag) == (b"a", "T", "k1 k2", 7)
    assert (first.get_property("p"), first.msg_id) == ("1", "id-1")
    assert (second.tags, second.keys, second.msg_id) == (None, None, "id-2")


def test_what_cannot_be_a_message_is_named_and_none_near_it_is_sent(
    cluster: Cluster, names: Names
) -> None:
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        with pytest.raises(
            MessageInvalidError, match="row 4500 cannot be a message: body is empty"
        ):
            producer.send_many(names.topic, [b"x"] * 4_500 + [b""])
        # Looked at some thousands at a time: those before are stored, and told of.
        with pytest.raises(MessageInvalidError, match="row 4500 ") as caught:
            producer.send_many(names.topic, [b"x"] * 4_500 + [b""])
        assert caught.value.parameters["sent"].stored_count == 4_096
        with pytest.raises(MessageInvalidError, match="bodies must be a sequence or an array"):
            producer.send_many(names.topic, "one body")
        with pytest.raises(ConfigurationError, match="tags has 2 values for 1 messages"):
            producer.send_many(names.topic, [b"x"], tags=["a", "b"])
        with pytest.raises(ConfigurationError, match="no column 'text'; column 'body' is missing"):
            producer.send_many(names.topic, pa.table({"text": ["x"]}))
        assert producer.send_many(names.topic, []).table().num_rows == 0


def test_what_a_broker_refuses_is_named_and_the_rest_can_be_sent_again(
    cluster: Cluster, names: Names
) -> None:
    """A body this producer may send, and its brokers do not take."""
    cluster.create_topic(names.topic, 1)
    great = b"x" * (5 << 20)
    bodies = [b"%d" % number for number in range(6_000)]
    bodies[4_500] = great
    with Producer(
        "pg",
        namesrv_addr=cluster.namesrv_addr,
        max_message_size=8 << 20,
        send_msg_timeout_ms=60_000,
    ) as producer:
        with pytest.raises(SendManyError, match="of 6000 messages for topic") as caught:
            producer.send_many(names.topic, bodies, tags="A")
        assert caught.value.outcome is SendOutcome.REJECTED
        result = caught.value.result
        rest = result.rest
        assert result.stored_count + rest.num_rows == len(result) == 6_000
        assert rest.column("body").to_pylist().count(great) == 1
        outcomes = result.table().column("outcome").to_pylist()
        assert outcomes[4_500] == "REJECTED"
        taken = rest.filter(pc.less(pc.binary_length(rest.column("body")), 10))
        assert producer.send_many(names.topic, taken).stored_count == taken.num_rows
    found = stored(cluster, names.topic, 5_999)
    del bodies[4_500]
    assert sorted(message.body for message in found.values()) == sorted(bodies)
    assert {message.tags for message in found.values()} == {"A"}
    assert {*taken.column("msgId").to_pylist()} < {message.msg_id for message in found.values()}


def test_observers_see_each_batch(cluster: Cluster, names: Names) -> None:
    cluster.create_topic(names.topic, 1)
    seen: list[Any] = []

    class Hook:
        name = "seen"

        def send_message_before(self, context: Any) -> None:
            """Nothing."""

        def send_message_after(self, context: Any) -> None:
            seen.append(context)

    producer = Producer("pg", namesrv_addr=cluster.namesrv_addr)
    producer.register_send_message_hook(Hook())
    with producer:
        producer.send_many(names.topic, [b"a", b"b"], tags="A")
        producer.send_many(names.topic, [b"c"])
    batch, alone = seen
    assert [message.body for message in batch.message] == [b"a", b"b"]
    assert [message.tags for message in batch.message] == ["A", "A"]
    assert alone.message.body == b"c"


def test_a_message_without_an_id_among_others_gets_one(cluster: Cluster, names: Names) -> None:
    cluster.create_topic(names.topic, 1)
    table = pa.table({"body": ["a", "b"], "msgId": pa.array([None, "mine"])})
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send_many(names.topic, table)
    found = stored(cluster, names.topic, 2)
    assert len(found[0, 0].msg_id) == 32
    assert found[0, 1].msg_id == "mine"

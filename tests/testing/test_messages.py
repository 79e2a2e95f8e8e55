"""Messages made by hand are what a consumer would have got."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LiteTopicContext,
    Message,
    Producer,
    PushConsumer,
)
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import received_message
from tests.plugins.waiting import wait_until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
GIVEN: dict[str, Any] = {
    "tags": "A",
    "keys": ["k1", "k2"],
    "properties": {"city": "Oslo", "RETRY_TOPIC": "orders"},
    "queue_id": 3,
    "queue_offset": 517,
    "reconsume_times": 2,
    "broker_name": "broker-b",
    "born_timestamp": 1_000,
    "store_timestamp": 2_000,
    "commit_log_offset": 4_096,
    "flag": -7,
    "msg_id": "0A" * 16,
}


def test_it_has_what_was_given() -> None:
    message = received_message("orders", "body", **GIVEN)
    for name, value in GIVEN.items():
        if name not in ("keys", "properties"):
            assert getattr(message, name) == value, name
    assert (message.topic, message.body, message.keys) == ("orders", b"body", "k1 k2")
    assert message.message_queue == ("orders", "broker-b", 3)
    own = {"UNIQ_KEY": "0A" * 16, "TAGS": "A", "KEYS": "k1 k2"}
    assert message.properties == {**own, "city": "Oslo", "RETRY_TOPIC": "orders"}


def test_it_is_of_a_lite_topic() -> None:
    message = received_message("agents", b"x", lite_topic="agent-7")
    assert message.lite_topic == "agent-7"
    context = LiteTopicContext("agent-7", message.message_queue, 1_000)
    assert context.lite_topic == message.lite_topic


def test_it_is_a_whole_record() -> None:
    """Stored, copied and pickled as one that was pulled."""
    message = received_message("orders", b"body", **GIVEN)
    again = decode_message(message.stored_record, "broker-b")
    again.check_crc()
    for twin in (again, copy.copy(message), pickle.loads(pickle.dumps(message))):  # noqa: S301
        assert type(twin) is MessageExt
        assert (twin.body, twin.properties) == (b"body", message.properties)
        assert twin.offset_msg_id == message.offset_msg_id


def test_what_is_not_given_is_that_of_a_first_delivery() -> None:
    message = received_message("orders", b"")
    assert (message.body, message.queue_id, message.queue_offset) == (b"", 0, 0)
    assert (message.reconsume_times, message.tags, message.keys) == (0, None, None)
    assert message.born_timestamp == message.store_timestamp > 1_700_000_000_000
    assert message.broker_name == "broker-a"


def test_ids_differ_by_place_and_are_the_same_each_time() -> None:
    places = [("orders", 0, 0), ("orders", 0, 1), ("orders", 1, 0), ("bills", 0, 0)]
    ids = [received_message(t, b"x", queue_id=q, queue_offset=o).msg_id for t, q, o in places]
    assert len(set(ids)) == len(places)
    assert ids == [
        received_message(t, b"x", queue_id=q, queue_offset=o).msg_id for t, q, o in places
    ]
    assert all(len(each) == 32 for each in ids)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"queue_offset": -1}, "queue_offset must be a whole number from 0 to"),
        ({"queue_id": 2**31}, "queue_id must be a whole number from 0 to 2147483647"),
        ({"store_timestamp": 1.5}, "store_timestamp must be a whole number"),
        ({"born_timestamp": "now"}, "born_timestamp must be .* given is 'now'"),
        ({"reconsume_times": True}, "reconsume_times must be a whole number"),
        ({"tags": 5}, "tags must be one str"),
        ({"keys": 5}, "keys must be a str"),
        ({"lite_topic": "a b"}, "lite_topic must be a str of 1 to 64 characters"),
        ({"properties": {"price": 5}}, "given is 'price': 5"),
        ({"properties": {"a": "b\x01c"}}, "without the separators"),
        ({"properties": {"a": "b" * 40_000}}, "do not fit a record"),
        ({"flag": 2**31}, "flag must be a whole number of 32 bits"),
        ({"topic": "a b"}, "illegal characters"),
        ({"body": 5}, "body must be bytes"),
    ],
)
def test_what_no_message_can_have_is_refused(wrong: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"topic": "orders", "body": b"x", **wrong}
    with pytest.raises(ConfigurationError, match=text):
        received_message(given.pop("topic"), given.pop("body"), **given)


def test_a_message_is_not_made_by_its_class() -> None:
    """The text says how."""
    with pytest.raises(TypeError, match=r"rocketstream\.testing\.received_message"):
        MessageExt()


def test_a_listener_cannot_tell_it_from_one_of_a_broker(rocketmq_cluster: EmbeddedCluster) -> None:
    """Everything a user can read of it, but what the broker alone knows."""
    address = rocketmq_cluster.namesrv_addr
    rocketmq_cluster.create_topic("orders", queues=1)
    got: list[MessageExt] = []

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        got.extend(messages)
        return SUCCESS

    with Producer("p", namesrv_addr=address) as producer:
        sent = producer.send(
            Message("orders", "7", tags="A", keys="k", properties={"city": "Oslo"})
        )
    consumer = PushConsumer(
        "g",
        namesrv_addr=address,
        subscription={"orders": "A"},
        listener=listener,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.start()
    wait_until(lambda: got, "the message is consumed")
    consumer.shutdown()
    (real,) = got
    made = received_message(
        "orders", "7", tags="A", keys="k", properties={"city": "Oslo"}, msg_id=sent.msg_id
    )
    for name in (
        "topic", "body", "tags", "keys", "flag", "msg_id", "queue_id", "queue_offset",
        "reconsume_times", "delay_level", "transaction_id", "body_crc", "body_size", "sys_flag",
        "prepared_transaction_offset", "message_queue", "stored_body",
    ):  # fmt: skip
        assert getattr(made, name) == getattr(real, name), name
    assert made.properties.items() <= real.properties.items()


def test_a_coroutine_listener_takes_it_as_well() -> None:
    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        await asyncio.sleep(0)
        return SUCCESS if messages[0].body == b"7" else ConsumeConcurrentlyStatus.RECONSUME_LATER

    assert asyncio.run(listener([received_message("orders", b"7")])) is SUCCESS

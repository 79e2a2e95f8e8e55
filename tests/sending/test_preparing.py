"""Messages made ready, rule by rule: what is looked at each time, bounds, batches, targets."""

from __future__ import annotations

import base64
import logging
from array import array
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rocketstream import ClientConfig, limits
from rocketstream.client.producer import message as messages
from rocketstream.client.producer.message import (
    GatheredSend,
    MessagePreparer,
    decode_recall_handle,
    joined,
    no_message,
    several,
    target_of,
)
from rocketstream.client.producer.policy import ANY_QUEUE, queue_of_key
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ConfigurationError, MessageInvalidError
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import decode_batch
from rocketstream.testing.clock import ManualClock

SMALL: dict[str, Any] = {"max_message_size": 11}
QUEUES = tuple(MessageQueue("T", "broker-a", at) for at in range(4))


def preparer(config: ClientConfig | None = None, **settings: Any) -> MessagePreparer:
    return MessagePreparer(ProducerSettings("pg", **settings), ManualClock(), config)


def assigned(**values: Any) -> Message:
    """Return a message with what was assigned after it was made."""
    message = Message("T", b"x")
    for name, value in values.items():
        setattr(message, name, value)
    return message


# --- one ------------------------------------------------------------------------------------------


class Special(Message):
    """A user's own kind of message."""


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (assigned(body=b""), "length is zero"),
        (assigned(body=b"x" * 11), "MAX: 10; this one has 11 bytes"),
        (assigned(body="text"), "must be bytes, not str"),
        (assigned(body=None), "body is null"),
        (assigned(topic="a b"), "illegal characters"),
        (cast(Message, "text"), "must be a rocketstream.Message, not 'text'"),
    ],
)
def test_a_topic_that_was_checked_checks_nothing_else(message: Message, text: str) -> None:
    makes = preparer(max_message_size=10)
    makes.one(Message("T", b"x" * 10))
    with pytest.raises(MessageInvalidError, match=text):
        makes.one(message)


def test_whatever_is_bytes_can_be_a_body() -> None:
    makes = preparer()
    for body in (bytearray(b"x"), memoryview(b"x"), b"x"):
        prepared = makes.one(assigned(body=body))
        assert (prepared.body, type(prepared.body)) == (b"x", bytes)
    assert makes.one(Special("T", b"x")).body == b"x"
    assert makes.topics == ["T"]


WIDE = memoryview(array("I", [1, 2, 3]))


@pytest.mark.parametrize(
    "message", [Message("T", cast(bytes, WIDE)), assigned(body=WIDE)], ids=["given", "assigned"]
)
def test_a_body_is_measured_in_bytes(message: Message) -> None:
    """Whatever the elements of a memoryview are."""
    whole = WIDE.tobytes()
    assert preparer().one(message).body == whole
    (part,) = preparer().batches([message])
    assert [item.body for item in decode_batch(part.body)] == [whole]
    for makes in (preparer(**SMALL).one, lambda it: preparer(**SMALL).batches([it])):
        with pytest.raises(MessageInvalidError, match=r"MAX: 11; this one has 12 bytes"):
            makes(message)


def test_a_body_is_shown_and_sent_as_its_bytes() -> None:
    given = Message("T", cast(bytes, memoryview(array("I", range(40)))))
    assert f"... {40 * 4} bytes" in repr(given)
    every_other = Message("T", cast(bytes, memoryview(b"abcdef")[::2]))
    assert preparer().one(every_other).body == b"ace"
    assert len(every_other.body) == 3
    empty = memoryview(array("I"))
    with pytest.raises(MessageInvalidError, match="length is zero"):
        preparer().one(Message("T", cast(bytes, empty)))


def test_a_size_too_large_says_what_may_be() -> None:
    with pytest.raises(MessageInvalidError) as caught:
        preparer(max_message_size=10).one(Message("T", b"x" * 11))
    assert (caught.value.parameters["size"], caught.value.parameters["max_bytes"]) == (11, 10)


def test_a_topic_of_the_brokers_is_refused_each_time() -> None:
    makes = preparer()
    for _ in range(2):
        with pytest.raises(MessageInvalidError, match="is the brokers' own"):
            makes.one(Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"))
    assert makes.topics == []


def test_only_so_many_topics_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_CHECKED_TOPICS_MAX", 2)
    makes = preparer()
    for topic in ("A", "B", "C", "A"):
        assert makes.one(Message(topic, b"x")).topic == topic
    assert sorted(makes.topics) == ["A", "B"]


def test_a_delay_level_beyond_those_of_brokers_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-403."""
    makes = preparer()
    with caplog.at_level(logging.WARNING):
        makes.one(Message("T", b"x", delay_level=18))
        assert caplog.text == ""
        for _ in range(2):
            makes.one(Message("T", b"x", delay_level=19))
    assert caplog.text.count("delay_level=19 is beyond the 18 levels") == 1


def test_a_reply_has_a_request_of_its_own() -> None:
    message = Message("T", b"x")
    message.properties["MSG_TYPE"] = "reply"
    prepared = preparer().one(message)
    assert (prepared.code, prepared.is_plain) == (325, False)
    message.properties["MSG_TYPE"] = "request"
    prepared = preparer().one(message)
    assert (prepared.code, prepared.is_plain) == (310, True)


def test_a_retry_topic_without_counts_begins_at_none() -> None:
    prepared = preparer().one(Message("%RETRY%g", b"x"))
    assert (prepared.reconsume_times, prepared.max_reconsume_times, prepared.is_plain) == (
        0, None, False,
    )  # fmt: skip


def test_what_was_made_ready_knows_its_message_and_its_queue() -> None:
    message = Message("T", b"x")
    prepared = preparer().one(message)
    assert prepared.message is message
    assert prepared.unwrap is None
    config = ClientConfig(namespace="ns")
    makes = preparer(config)
    message = Message("T", b"x", flag=3)
    prepared, target = makes.one_to(message, None, None, None, None)
    assert (prepared.topic, message.topic, target) == ("ns%T", "T", ANY_QUEUE)
    assert (prepared.flag, prepared.body) == (3, b"x")
    assert message.properties["INSTANCE_ID"] == "ns"
    assert message.properties["UNIQ_KEY"] == prepared.msg_id
    assert prepared.unwrap is not None
    assert prepared.unwrap(MessageQueue("ns%T", "b", 1)) == MessageQueue("T", "b", 1)
    assert makes.topics == ["ns%T"]


# --- properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["v", "é"])
def test_properties_have_a_bound_in_bytes(letter: str) -> None:
    most, width = limits.PROPERTIES_BYTES_MAX, len(letter.encode())
    message = Message("T", b"x")
    message.properties.update(UNIQ_KEY="U", p="")
    room = most - len("WAIT\x01true\x02UNIQ_KEY\x01U\x02p\x01")
    message.properties["p"] = "v" * (room % width) + letter * (room // width)
    makes = preparer()
    assert len(makes.one(message).properties.encode()) == most
    message.properties["p"] += "v"
    with pytest.raises(MessageInvalidError, match=f"take {most + 1} bytes as text, MAX: {most}"):
        makes.one(message)


@pytest.mark.parametrize(
    ("name", "value"),
    [("a\x01b", "c"), ("a", "b\x01c"), ("a\x02b", "c"), ("a", "b\x02c"), ("a", "b\x02c\x01d")],
)
def test_a_separator_in_a_property_is_refused(name: str, value: str) -> None:
    message = Message("T", b"x")
    message.properties[name] = value
    with pytest.raises(MessageInvalidError, match="separator"):
        preparer().one(message)


def test_no_properties_are_an_empty_text() -> None:
    assert messages._properties_text({}) == ""
    assert messages._properties_text({"a": "b"}) == "a\x01b"


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_has_ids_in_order_and_keeps_those_there_are() -> None:
    first, second = Message("T", b"1"), Message("T", b"2", flag=4)
    second.properties["UNIQ_KEY"] = "MINE"
    given = [first, second]
    (part,) = preparer().batches(given)
    assert part.msg_id == f"{first.properties['UNIQ_KEY']},MINE"
    assert part.message is given
    assert part.unwrap is None
    assert (part.born_timestamp, part.code, part.is_plain) == (ManualClock().now_ms(), 320, False)
    assert [(item.flag, item.body) for item in decode_batch(part.body)] == [(0, b"1"), (4, b"2")]


@pytest.mark.parametrize("spare", [0, -1])
def test_a_message_of_a_batch_has_the_bound_of_a_request(spare: int) -> None:
    message = Message("T", b"x" * 100)
    (part,) = preparer().batches([message])
    size = len(part.body)
    makes = preparer(max_message_size=size + spare)
    small = Message("T", b"y")
    if spare == 0:
        assert len(makes.batches([message, small])[0].body) == size
        return
    with pytest.raises(MessageInvalidError, match=f"MAX: {size - 1}; this one has {size} bytes"):
        makes.batches([small, message])


def test_parts_of_a_batch_carry_their_own_ids_and_wait_alike() -> None:
    given = [Message("T", b"x" * 300, wait_store_msg_ok=False) for _ in range(3)]
    parts = preparer(max_message_size=1_000).batches(given)
    ids = [each.properties["UNIQ_KEY"] for each in given]
    assert [part.msg_id for part in parts] == [",".join(ids[:2]), ids[2]]
    assert {part.properties for part in parts} == {"WAIT\x01false"}
    assert all(part.message is given for part in parts)


def test_a_batch_of_a_namespace_is_of_the_topic_servers_know() -> None:
    given = [Message("T", b"x")]
    parts, target = preparer(ClientConfig(namespace="ns")).batches_to(given, None, None, None, None)
    assert (parts[0].topic, target) == ("ns%T", ANY_QUEUE)
    assert parts[0].unwrap is not None
    assert parts[0].unwrap(MessageQueue("ns%T", "b", 1)).topic == "T"
    _, target = preparer().batches_to(given, None, None, None, "key")
    assert target.pick is not None


def with_property(name: str, value: str) -> Message:
    message = Message("T", b"x")
    message.properties[name] = value
    return message


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (Message("T", b"x", delay_time_ms=5), "delayed messages"),
        (with_property("DELAY", "1"), "delayed messages"),
        (with_property("TRAN_MSG", "true"), "transactional messages"),
        (with_property("TRAN_MSG", "false"), "transactional messages"),
        (with_property("__LITE_TOPIC", "a"), "lite topics"),
        (Message("T", b"x", wait_store_msg_ok=False), "wait_store_msg_ok"),
        (cast(Message, 5), "must be a rocketstream.Message, not 5"),
        (assigned(body=3), "must be bytes"),
        (assigned(flag=1 << 40), "does not fit a batch"),
    ],
)
def test_every_message_of_a_batch_is_looked_at(second: Message, text: str) -> None:
    with pytest.raises(MessageInvalidError, match=text):
        preparer().batches([Message("T", b"x"), second])


def test_a_level_of_none_is_no_delay() -> None:
    assert preparer().batches([with_property("DELAY", "0"), Message("T", b"x")])


# --- what was given -------------------------------------------------------------------------------


def test_what_holds_messages_is_taken_for_several() -> None:
    one, two = Message("T", b"1"), Message("T", b"2")
    assert several(each for each in (one, two)) == [one, two]
    assert several([]) == []
    with pytest.raises(MessageInvalidError, match="messages must be a list of messages, not one"):
        several(one)
    for nothing in ("text", b"bytes", 5):
        with pytest.raises(MessageInvalidError, match="message must be a rocketstream"):
            several(nothing)


def test_a_received_message_says_how_it_is_sent_on() -> None:
    class Received:
        queue_offset = 5

    assert "to send a received message m on" in str(no_message(Received()))
    assert "received" not in str(no_message(5))


# --- results --------------------------------------------------------------------------------------


def result(msg_id: str, status: SendStatus = SendStatus.SEND_OK, offset: int = 7) -> SendResult:
    return SendResult(status, msg_id, msg_id.lower(), QUEUES[0], offset, "region", False)


def test_parts_make_one_result_of_the_worst_status() -> None:
    """Covers C-478."""
    one = result("A")
    assert joined([one]) is one
    whole = joined([one, result("B", SendStatus.SLAVE_NOT_AVAILABLE, 9), result("C")])
    assert (whole.msg_id, whole.offset_msg_id) == ("A,B,C", "a,b,c")
    assert (whole.send_status, whole.queue_offset) == (SendStatus.SLAVE_NOT_AVAILABLE, 7)


def gathered(count: int, wait: str = "true", **message: Any) -> GatheredSend:
    settings, clock = ProducerSettings("pg"), ManualClock()
    makes = MessagePreparer(settings, clock)
    members = []
    for number in range(count):
        members.append(makes.one(Message("T", b"%d" % number, flag=number, **message)))
        clock.advance(1)
    return GatheredSend(settings.requests(), members, wait)


def test_a_gathered_batch_leaves_out_what_brokers_take_for_granted() -> None:
    batch = gathered(2, tags="A")
    assert (batch.properties, batch.msg_id, batch.code) == ("", "", 320)
    assert batch.born_timestamp == batch.members[0].born_timestamp
    for item in decode_batch(batch.body):
        assert "WAIT" not in decode_properties(item.properties)
    batch = gathered(2, "false", wait_store_msg_ok=False)
    assert batch.properties == "WAIT\x01false"
    assert [item.flag for item in decode_batch(batch.body)] == [0, 1]
    for item in decode_batch(batch.body):
        assert decode_properties(item.properties)["WAIT"] == "false"


@pytest.mark.parametrize(
    ("answered", "places"), [("X,Y,Z", ["X", "Y", "Z"]), ("ONE", ["ONE"] * 3), ("X,Y", ["X,Y"] * 3)]
)
def test_each_of_a_gathered_batch_gets_its_own_result(answered: str, places: list[str]) -> None:
    batch = gathered(3)
    stored = SendResult(SendStatus.FLUSH_DISK_TIMEOUT, "", answered, QUEUES[1], 20, "r", False)
    results = batch.results(stored)
    assert [each.offset_msg_id for each in results] == places
    assert [each.queue_offset for each in results] == [20, 21, 22]
    assert [each.msg_id for each in results] == [each.msg_id for each in batch.members]
    assert {
        (each.send_status, each.message_queue, each.region_id, each.trace_on) for each in results
    } == {(SendStatus.FLUSH_DISK_TIMEOUT, QUEUES[1], "r", False)}


# --- where they go --------------------------------------------------------------------------------


def first(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    return queues[0]


def test_a_message_goes_where_one_way_says() -> None:
    message = Message("T", b"x")
    assert target_of(message, None, None, None, None) is ANY_QUEUE
    assert target_of(message, QUEUES[2], None, None, None).queue == QUEUES[2]
    pick = target_of(message, None, None, None, "key").pick
    assert pick is not None
    assert pick(QUEUES) == queue_of_key(QUEUES, "key")
    seen: list[tuple[Any, ...]] = []

    def select(*call: Any) -> MessageQueue:
        seen.append(call)
        return QUEUES[3]

    pick = target_of(message, None, select, "arg", None).pick
    assert pick is not None
    assert pick(QUEUES) == QUEUES[3]
    assert seen == [(QUEUES, message, "arg")]


def test_a_selector_sees_the_queues_of_the_user() -> None:
    message = Message("T", b"x")
    makes = preparer(ClientConfig(namespace="ns"))
    wrapped = tuple(MessageQueue("ns%T", "b", at) for at in range(2))
    pick = makes.target(message, None, lambda queues, _, arg: queues[arg], 1).pick
    assert pick is not None
    assert pick(wrapped) == MessageQueue("T", "b", 1)


@pytest.mark.parametrize(
    "how",
    [
        (QUEUES[0], first, None),
        (QUEUES[0], None, "key"),
        (None, first, "key"),
        (QUEUES[0], first, "key"),
    ],
)
def test_two_ways_at_once_are_refused(how: tuple[Any, Any, Any]) -> None:
    queue, selector, key = how
    with pytest.raises(ConfigurationError, match="not several"):
        target_of(Message("T", b"x"), queue, selector, None, key)


@pytest.mark.parametrize(
    ("queue", "selector", "key", "text"),
    [
        ("q", None, None, "message_queue must be a MessageQueue, not 'q'"),
        (None, None, 5, "sharding_key must be a str, not 5"),
        (None, 5, None, "selector must be a function of queues, message and arg, not 5"),
    ],
)
def test_what_is_no_way_is_named(queue: Any, selector: Any, key: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        target_of(Message("T", b"x"), queue, selector, None, key)


def test_a_queue_of_another_topic_is_refused() -> None:
    """Covers C-469."""
    with pytest.raises(MessageInvalidError, match="is for topic 'U' and message_queue is of 'T'"):
        target_of(Message("U", b"x"), QUEUES[0], None, None, None)


def test_what_is_no_message_has_any_queue_until_it_is_checked() -> None:
    odd = cast(Message, 5)
    assert target_of(odd, None, None, None, None) is ANY_QUEUE
    assert target_of(odd, None, None, None, "key").pick is not None
    special = Special("T", b"x", lite_topic="a")
    with pytest.raises(ConfigurationError, match="lite topic goes to the queue its name"):
        target_of(special, QUEUES[0], None, None, None)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (None, "the selector returned None; it must return one of the queues"),
        (3, "the selector returned 3, which is not a MessageQueue"),
    ],
)
def test_a_selector_must_choose(chosen: Any, text: str) -> None:
    pick = target_of(Message("T", b"x"), None, lambda *_: chosen, None, None).pick
    assert pick is not None
    with pytest.raises(ConfigurationError, match=text):
        pick(QUEUES)


# --- timed messages taken back --------------------------------------------------------------------


def handle(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_handle_has_a_version_and_four_parts() -> None:
    """Further parts are for later versions; a version of another name has other parts."""
    for more in ("", " more"):
        read = decode_recall_handle(handle(f"v1 T b 17 ID{more}"))
        assert (read.topic, read.broker_name, read.timestamp, read.message_id) == (
            "T", "b", "17", "ID",
        )  # fmt: skip
    for text in ("v1 T b 17", "v2 T b 17 ID", ""):
        with pytest.raises(ConfigurationError, match="recall handle is invalid"):
            decode_recall_handle(handle(text))

"""Messages made ready: checks, ids, compression, batches (C-449 to C-456, C-476, C-477)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import BrokerError, MessageInvalidError, RemoteProtocolError
from rocketstream.model import Message, MessageQueue, SendStatus
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.compression import decompress
from rocketstream.protocol.headers import SendMessageRequestHeader, SendMessageResponseHeader
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import decode_batch
from rocketstream.testing.clock import ManualClock

QUEUE = MessageQueue("T", "broker-a", 3)


def preparer(**settings: Any) -> MessagePreparer:
    return MessagePreparer(ProducerSettings("pg", **settings), ManualClock(1_700_000_000_000))


def test_a_send_carries_everything_upstream_sends() -> None:
    """Covers C-449, C-452, C-456 and the V2 header of W 2.2."""
    message = Message("T", b"hello", tags="TagA", keys=["k1", "k2"], flag=7)
    prepared = preparer().one(message)
    command = prepared.command(QUEUE)
    header = SendMessageRequestHeader.from_ext_v2(command.ext_fields or {})
    assert (command.code, command.body) == (310, b"hello")
    assert (header.producer_group, header.topic, header.queue_id) == ("pg", "T", 3)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.sys_flag, header.flag, header.batch, header.bname) == (0, 7, False, "broker-a")
    assert header.born_timestamp == 1_700_000_000_000
    assert decode_properties(header.properties or "") == {
        "WAIT": "true",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "UNIQ_KEY": message.msg_id,
    }


def test_a_message_sent_again_keeps_its_id() -> None:
    """Covers C-449, C-463."""
    message = Message("T", b"x")
    first = preparer().one(message).msg_id
    assert preparer().one(message).msg_id == first


@pytest.mark.parametrize(("kind", "flag"), [("ZLIB", 0x301), ("LZ4", 0x101), ("ZSTD", 0x201)])
def test_bodies_from_the_threshold_on_are_compressed(kind: str, flag: int) -> None:
    """Covers C-81, C-82, C-454: at 4096 bytes, not below; the message object is left alone."""
    makes = preparer(compress_type=kind)
    message = Message("T", b"x" * 4096)
    prepared = makes.one(message)
    assert prepared.sys_flag == flag
    assert decompress(bytes(prepared.body), flag) == message.body == b"x" * 4096
    below = makes.one(Message("T", b"x" * 4095))
    assert (below.sys_flag, len(below.body)) == (0, 4095)


def with_body(body: Any) -> Message:
    """Return a message whose body was assigned after it was made."""
    message = Message("T", b"x")
    message.body = body
    return message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("", b"x"), "topic must not be blank"),
        (Message("a b", b"x"), "has illegal characters"),
        (Message("t" * 128, b"x"), "a topic has 127 characters at most"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "is the brokers' own"),
        (Message("T", b""), "CODE: 13: the message body length is zero"),
        (Message("T", b"x" * 11), "CODE: 13: the message body size over max value, MAX: 10"),
        (Message("T", b"x", properties={"a": "b\x01c"}), "separator"),
        (Message("T", b"x", properties={"a": "b" * 32768}), "the properties take"),
        (Message("T", b"x", properties={"a": "\ud800"}), "UTF-8"),
        (with_body(3), "must be bytes, not int"),
        (with_body(None), "the message body is null"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_sent(
    message: Message, text: str
) -> None:
    """Covers C-94 to C-96, C-430, C-451, C-453."""
    with pytest.raises(MessageInvalidError, match=text):
        preparer(max_message_size=10).one(message)


def test_limits_are_inclusive() -> None:
    """Covers C-86, C-95."""
    preparer().one(Message("t" * 127, b"x" * 4_194_304))
    with pytest.raises(MessageInvalidError, match="MAX: 4194304"):
        preparer().one(Message("T", b"x" * 4_194_305))
    preparer().one(Message("%RETRY%g", bytearray(b"x")))  # type: ignore[arg-type]


def test_a_retry_topic_message_carries_its_counts_in_the_header() -> None:
    """Covers C-455."""
    message = Message("%RETRY%g", b"x")
    message.properties.update({"RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "16"})
    ext = preparer().one(message).command(QUEUE).ext_fields or {}
    assert (ext["j"], ext["l"]) == ("2", "16")
    assert "RECONSUME_TIME\x012" in ext["i"]


def test_a_batch_holds_every_message_with_an_id_of_its_own() -> None:
    """Covers C-456, C-476: code 320, no compression, WAIT of the batch alone."""
    messages = [Message("T", b"x" * 5000, tags="A"), Message("T", b"y", keys="k", flag=2)]
    (part,) = preparer().batches(messages)
    command = part.command(QUEUE)
    ext = command.ext_fields or {}
    assert (command.code, ext["m"], ext["f"], ext["i"]) == (320, "true", "0", "WAIT\x01true")
    items = decode_batch(bytes(command.body))
    assert [(item.flag, item.body) for item in items] == [(0, b"x" * 5000), (2, b"y")]
    ids = [decode_properties(item.properties)["UNIQ_KEY"] for item in items]
    assert part.msg_id.split(",") == ids == [message.msg_id for message in messages]


def test_a_long_batch_is_cut_without_losing_or_reordering() -> None:
    """Covers C-477: every part fits, the encoded sizes counted."""
    messages = [Message("T", bytes([n]) * 300) for n in range(20)]
    parts = preparer(max_message_size=1000).batches(messages)
    assert all(len(part.body) <= 1000 for part in parts)
    assert len(parts) > 1
    bodies = [item.body[0] for part in parts for item in decode_batch(part.body)]
    assert bodies == list(range(20))


def delayed() -> Message:
    return Message("T", b"x", delay_level=1)


def unwaited() -> Message:
    message = Message("T", b"x")
    message.properties["WAIT"] = "false"
    return message


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (list, "it is empty"),
        (
            lambda: [Message("T", b"x"), Message("U", b"x")],
            "topic of its messages must be the same",
        ),
        (lambda: [Message("T", b"x"), unwaited()], "wait_store_msg_ok"),
        (lambda: [delayed()], "delayed messages"),
        (lambda: [Message("%RETRY%g", b"x")], "retry topic"),
        (lambda: [Message("T", b"x" * 1000)], "MAX: 1000"),
        (lambda: [Message("T", b"")], "length is zero"),
    ],
)
def test_messages_that_cannot_go_together_are_refused(
    messages: Callable[[], list[Message]], text: str
) -> None:
    """Covers C-476, C-477."""
    with pytest.raises(MessageInvalidError, match=text):
        preparer(max_message_size=1000).batches(messages())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_all_four_statuses_are_results(code: int, status: SendStatus) -> None:
    """Covers C-428, C-429, C-473; the broker may name another queue (C-425)."""
    answer = RemotingCommand.response(code, None, SendMessageResponseHeader("OFFSETID", 1, 42))
    prepared = preparer().one(Message("T", b"x"))
    result = prepared.result(answer, QUEUE, "a:1")
    assert result.send_status is status
    assert (result.msg_id, result.offset_msg_id) == (prepared.msg_id, "OFFSETID")
    assert (result.message_queue.queue_id, result.queue_offset) == (1, 42)
    assert (result.region_id, result.trace_on) == ("DefaultRegion", True)


def test_a_refusal_and_an_unreadable_answer_are_errors() -> None:
    """Covers C-474."""
    prepared = preparer().one(Message("T", b"x"))
    with pytest.raises(BrokerError, match="CODE: 13"):
        prepared.result(RemotingCommand.response(13, "too big"), QUEUE, "a:1")
    with pytest.raises(RemoteProtocolError, match="msgId"):
        prepared.result(RemotingCommand.response(0), QUEUE, "a:1")

"""Received messages: decoding, laziness, what is refused."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketstream.errors import DamagedMessageError, LocalProtocolError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import message_ext
from rocketstream.protocol.compression import compress
from rocketstream.protocol.message_ext import (
    MessageExt,
    assemble_message,
    before_damage,
    check_bodies,
    decode_message,
    decode_messages,
    decode_pulled,
    is_compressed,
    read_pulled,
    reassembled,
    taken_apart,
)
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import (
    RecordFields,
    body_crc,
    encode_batch,
    encode_record,
    read_head,
)
from tests.kits import vectors
from tests.wire.records import RECORDS, record


def test_golden_message() -> None:
    message = decode_message(vectors.RECORD_V4, "broker-a")
    assert (message.topic, message.queue_id, message.queue_offset) == ("T1", 3, 7)
    assert (message.commit_log_offset, message.store_size) == (1024, 115)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
    assert (message.born_timestamp, message.store_timestamp) == (1700000000000, 1700000000005)
    assert (message.born_host, message.store_host) == ("10.0.0.9:53211", "10.0.0.1:10911")
    assert message.prepared_transaction_offset == 0
    assert message.body == message.stored_body == b"hello"
    assert (message.body_crc, message.body_size) == (907060870, 5)
    assert message.properties == {"KEYS": "k1", "TAGS": "TagA"}
    assert (message.keys, message.tags, message.delay_level) == ("k1", "TagA", 0)
    assert message.get_property("KEYS") == "k1"
    assert message.get_property("none") is None
    assert message.message_queue == MessageQueue("T1", "broker-a", 3)
    assert not is_compressed(message)


def test_golden_message_with_ipv6_hosts() -> None:
    message = decode_message(vectors.RECORD_V6)
    assert message.born_host == "2001:db8::9:53211"
    assert message.store_host == "2001:db8::1:10911"
    assert (message.body, message.keys, message.sys_flag) == (b"hello", "k1", 48)
    assert message.offset_msg_id == "20010DB800000000000000000000000100002A9F0000000000000400"
    assert len(message.offset_msg_id) == 56


@pytest.mark.parametrize("check_crc", [False, True])
@pytest.mark.parametrize(
    ("born", "store"),
    [(("10.0.0.9", 1), ("2001:db8::1", 2)), (("2001:db8::1", 2), ("10.0.0.9", 1))],
    ids=["store v6", "born v6"],
)
def test_a_message_may_have_one_host_of_each_kind(
    born: tuple[str, int], store: tuple[str, int], check_crc: bool
) -> None:
    (message,) = decode_messages(record(born_host=born, store_host=store), check_crc=check_crc)
    assert (message.body, message.topic, message.tags) == (b"hello", "T1", "TagA")
    assert message.born_host == "{}:{}".format(*born)
    assert message.store_host == "{}:{}".format(*store)
    assert copy.copy(message).offset_msg_id == message.offset_msg_id
    packed, bits = compress(vectors.X200)
    data = record(born_host=born, store_host=store, body=packed, sys_flag=bits)
    (message,) = decode_messages(data, check_crc=check_crc)
    assert message.body == vectors.X200


def test_ids_of_a_message() -> None:
    """covers W 4.1 and 4.7: the client's id where there is one, else the broker's."""
    message = decode_message(vectors.RECORD_V4)
    assert message.offset_msg_id == "0A00000100002A9F0000000000000400"
    assert message.msg_id == message.offset_msg_id
    message.properties["UNIQ_KEY"] = "7F"
    assert message.msg_id == "7F"


def test_messages_of_one_buffer_keep_their_order_and_parts() -> None:
    parts = [vectors.RECORD_V4, vectors.RECORD_V6, record(topic="t" * 128, queue_offset=8)]
    buffer = b"".join(parts)
    for given_buffer in (buffer, bytearray(buffer), memoryview(buffer)):
        messages = decode_messages(given_buffer, "b")
        assert [m.topic for m in messages] == ["T1", "T1", "t" * 128]
        assert [m.queue_offset for m in messages] == [7, 7, 8]
        assert [m.body for m in messages] == [b"hello"] * 3
        assert [m.store_size for m in messages] == [len(part) for part in parts]
        assert [m.keys for m in messages] == ["k1"] * 3
    assert decode_messages(b"") == []


def test_mutable_buffer_is_copied_once_not_followed() -> None:
    buffer = bytearray(vectors.RECORD_V4)
    message = decode_message(buffer)
    buffer[:] = bytes(len(buffer))
    assert message.body == b"hello"


@pytest.mark.parametrize(
    "name", ["topic", "broker_name", "queue_id", "queue_offset", "reconsume_times", "tags", "body"]
)
def test_nothing_a_client_finds_a_message_by_can_be_assigned(name: str) -> None:
    """A listener that did wedged its queue: neither finished nor sent back, and nothing said so."""
    message = decode_message(vectors.RECORD_V4, "b")
    before = getattr(message, name)
    with pytest.raises(AttributeError, match=name):
        setattr(message, name, 5)
    assert getattr(message, name) == before


def test_what_is_seen_of_a_retried_message_is_its_first_topic() -> None:
    """A retried message gets its original topic back; see W 7.3 number 11."""
    first, second = decode_messages(vectors.RECORD_V4 * 2)
    first._topic, first._reconsume_times, first._broker_name = "Origin", 3, "b"
    assert first.message_queue == MessageQueue("Origin", "b", 3)
    assert (second.topic, second.reconsume_times) == ("T1", 0)


def test_changed_properties_stay_with_their_message() -> None:
    first, second = decode_messages(vectors.RECORD_V4 * 2)
    first.properties["X"] = "1"
    assert second.get_property("X") is None
    assert first.properties_bytes == second.properties_bytes == b"KEYS\x01k1\x02TAGS\x01TagA"


def test_extra_properties_are_added_to_each_message() -> None:
    """covers W 4.3: MIN_OFFSET and MAX_OFFSET are added by the consumer after a pull."""
    extra = {"MIN_OFFSET": "0", "MAX_OFFSET": "9"}
    first, second = decode_messages(vectors.RECORD_V4 * 2, extra_properties=extra)
    first.properties["MIN_OFFSET"] = "5"
    assert second.properties == {"KEYS": "k1", "TAGS": "TagA", **extra}


def test_consume_start_time_becomes_a_property() -> None:
    """covers W 4.3: CONSUME_START_TIME is added by the consumer."""
    message = decode_message(vectors.RECORD_V4)
    message._consume_start_ms = 5
    assert message.get_property("CONSUME_START_TIME") == "5"


def test_messages_come_from_decoding_only() -> None:
    with pytest.raises(TypeError, match="received_message makes one"):
        MessageExt()


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_a_compressed_message_is_shown_without_being_inflated(kind: str) -> None:
    packed, bits = compress(vectors.X200, kind)
    message = decode_message(record(body=packed, sys_flag=bits))
    assert f"body={len(packed)} bytes, compressed" in repr(message)
    assert message.body == vectors.X200
    assert "compressed" not in repr(message)


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_body_is_inflated_once(kind: str) -> None:
    packed, bits = compress(vectors.X200, kind)
    message = decode_message(record(body=packed, sys_flag=bits))
    assert is_compressed(message)
    assert message.body == vectors.X200
    assert message.body is message.body
    assert message.stored_body == packed


def test_old_zlib_body_without_type_bits_is_inflated() -> None:
    """covers W 4.2: producers before 4.9.4 send bit 0 alone."""
    message = decode_message(record(body=vectors.X200_ZLIB, sys_flag=1))
    assert message.body == vectors.X200


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x601, 0x701])
def test_unknown_compression_type_is_refused_when_the_body_is_asked_for(sys_flag: int) -> None:
    """covers W 4.2: the rest of the message stays readable."""
    message = decode_message(record(body=b"x", sys_flag=sys_flag))
    assert message.keys == "k1"
    with pytest.raises(RemoteProtocolError, match="compression type"):
        _ = message.body


def test_crc_is_checked_on_demand() -> None:
    data = bytearray(vectors.RECORD_V4)
    data[88] ^= 1
    assert decode_message(data).body == b"iello"
    with pytest.raises(RemoteProtocolError, match="CRC"):
        decode_messages(data, check_crc=True)
    decode_messages(vectors.RECORD_V4 + vectors.RECORD_V6, check_crc=True)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("DELAY\x013", 3),
        ("DELAY\x01x", 0),
        ("DELAY\x01999999999", 999_999_999),
        ("DELAY\x011000000000", 0),
        ("DELAY\x01" + "9" * 5000, 0),
    ],
)
def test_delay_level_is_a_number_or_none(text: str, level: int) -> None:
    assert decode_message(record(properties=text)).delay_level == level


@pytest.mark.parametrize("golden", [vectors.RECORD_V4, vectors.RECORD_V6], ids=["v4", "v6"])
def test_buffer_cut_anywhere_is_refused(golden: bytes) -> None:
    for size in range(1, len(golden)):
        with pytest.raises(RemoteProtocolError):
            decode_messages(golden[:size])
        with pytest.raises(RemoteProtocolError):
            decode_messages(vectors.RECORD_V4 + golden[:size])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\0\0\0\x72"),
        (0, b"\0\0\0\x74"),
        (0, b"\0\0\0\0"),
        (0, b"\xff\xff\xff\xff"),
        (4, b"\0\0\0\0"),
        (4, b"\xcb\xd4\x31\x94"),
        (4, b"\xda\xa3\x20\xab"),
        (84, b"\xff\xff\xff\xff"),
        (84, b"\x7f\xff\xff\xff"),
        (84, b"\0\0\0\x06"),
        (93, b"\xff"),
        (93, b"\x03"),
        (94, b"\xff\xff"),
        (96, b"\xff\xff"),
        (96, b"\0\x10"),
    ],
)
def test_impossible_length_is_refused(at: int, value: bytes) -> None:
    data = bytearray(vectors.RECORD_V4)
    data[at : at + len(value)] = value
    with pytest.raises(RemoteProtocolError):
        decode_messages(data)


@pytest.mark.parametrize("size", [-1, -128, -(2**15)])
def test_negative_topic_length_of_v2_is_refused(size: int) -> None:
    data = bytearray(record(topic="t" * 128))
    data[93:95] = size.to_bytes(2, "big", signed=True)
    with pytest.raises(RemoteProtocolError, match=f"a topic length of {size} is impossible"):
        decode_messages(data)


@pytest.mark.parametrize("other", ["T2", "", "t" * 128])
def test_a_topic_is_read_once_for_the_messages_that_follow_each_other(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages of a pull share it but for those of a retry topic that were put there."""
    read: list[int] = []
    usual = message_ext._read_topic

    def noted(data: bytes, at: int, magic: int) -> Any:
        read.append(magic)
        return usual(data, at, magic)

    monkeypatch.setattr(message_ext, "_read_topic", noted)
    data = record() * 3 + record(topic=other) * 2 + record(topic="t" * 129) + record()
    messages = decode_messages(data)
    assert [message.topic for message in messages] == ["T1"] * 3 + [other] * 2 + ["t" * 129, "T1"]
    assert len(read) == (5 if len(other) == 128 else 4)


def test_the_longer_head_may_have_an_empty_topic_too() -> None:
    data = record(topic="t" * 128)
    short = bytearray(data[:93] + bytes(2) + data[95 + 128 :])
    short[:4] = len(short).to_bytes(4, "big")
    message = decode_message(short)
    assert (message.topic, message.tags) == ("", "TagA")
    assert read_head(short).topic == ""


def test_topic_that_is_not_utf8_is_refused() -> None:
    data = bytearray(vectors.RECORD_V4)
    data[94] = 0xFF
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        decode_messages(data)


def test_properties_that_are_not_utf8_do_not_keep_a_message_from_being_consumed() -> None:
    data = bytearray(vectors.RECORD_V4)
    data[-1] = 0xFF
    message = decode_message(data)
    assert message.body == b"hello"
    assert message.tags == "Tag\ufffd"


@pytest.mark.parametrize("data", [b"", vectors.RECORD_V4 * 2])
def test_one_message_means_one(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="one message"):
        decode_message(data)


@given(st.lists(RECORDS, max_size=4))
def test_messages_round_trip(records: list[RecordFields]) -> None:
    messages = decode_messages(b"".join(encode_record(fields) for fields in records))
    for message, fields in zip(messages, records, strict=True):
        assert message.topic == fields.topic
        assert message.stored_body == fields.body
        assert message.queue_offset == fields.queue_offset
        assert message.commit_log_offset == fields.physical_offset
        assert message.properties_bytes.decode() == fields.properties


def test_topic_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ext, "_TOPICS_MAX", 2)
    monkeypatch.setattr(message_ext, "_topics", {})
    for number in range(10):
        assert decode_message(record(topic=f"topic{number}")).topic == f"topic{number}"
    assert len(message_ext._topics) <= 2


def test_message_is_light_and_shares_its_buffer() -> None:
    buffer = vectors.RECORD_V4 * 2
    first, second = decode_messages(buffer)
    assert not hasattr(first, "__dict__")
    assert sys.getsizeof(first) <= 160
    assert first._buffer is second._buffer is buffer
    assert isinstance(first, MessageExt)
    assert "queue_offset=7" in repr(first)


# --- one property alone ---------------------------------------------------------------------------

PIECES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "X", "TagA", "\x01", "\x01", "\x02", "é", ""])


@given(st.lists(PIECES, max_size=12).map("".join), st.binary(max_size=3))
@example("TAGS\x01A\x02X\x01y\x02TAGS\x01B", b"")
@example("MYTAGS\x01A\x02X\x01TAGS\x01B", b"")
@example("TAGS\x01", b"\xe2\x82")
def test_a_property_read_alone_is_what_reading_all_of_them_gives(text: str, odd: bytes) -> None:
    """Names within values, twice, without value, and bytes that are not UTF-8 included."""
    data = bytearray(record(properties=text + "~" * len(odd)))
    data[len(data) - len(odd) :] = odd
    message = decode_message(data)
    all_of_them = decode_properties(message.properties_bytes)
    alone = (message.tags, message.keys, message.msg_id)
    assert alone == (
        all_of_them.get("TAGS"),
        all_of_them.get("KEYS"),
        all_of_them.get("UNIQ_KEY") or message.offset_msg_id,
    )


def test_properties_that_were_changed_or_added_count_for_one_read_alone() -> None:
    message = decode_message(vectors.RECORD_V4)
    message.properties["TAGS"] = "Mine"
    assert message.tags == "Mine"
    (message,) = decode_messages(vectors.RECORD_V4, extra_properties={"TAGS": "Added"})
    assert message.tags == "Added"


# --- copies ---------------------------------------------------------------------------------------


def seen(message: MessageExt) -> dict[str, Any]:
    """Everything a message says of itself."""
    names = [name for name in dir(type(message)) if not name.startswith("_")]
    found = {name: getattr(message, name) for name in names}
    return {name: value for name, value in found.items() if not callable(value)}


@pytest.mark.parametrize("take", [copy.copy, lambda m: pickle.loads(pickle.dumps(m))])  # noqa: S301
@pytest.mark.parametrize("golden", [vectors.RECORD_V4, vectors.RECORD_V6], ids=["v4", "v6"])
def test_a_copy_holds_its_own_record_and_no_more(golden: bytes, take: Any) -> None:
    """One that is kept for long, or sent to another process, does not drag the answer along."""
    buffer = vectors.RECORD_V4 + golden + vectors.RECORD_V6
    message = decode_messages(buffer, "b", extra_properties={"MIN_OFFSET": "0"})[1]
    message._topic, message._reconsume_times, message._consume_start_ms = "Origin", 3, 5
    other = take(message)
    assert other._buffer == golden == other.stored_record
    assert seen(other) == seen(message)
    assert seen(take(message)) == seen(message)
    other.properties["X"] = "1"
    assert message.get_property("X") is None


def test_an_assembled_message_is_copied_too() -> None:
    queue = MessageQueue("T", "b", 1)
    message = assemble_message(
        queue, 7, b"body", {"TAGS": "A"}, commit_log_offset=9, reconsume_times=2
    )
    other = copy.copy(message)
    assert (other.body, other.tags, other.queue_offset, other.store_size) == (
        b"body",
        "A",
        7,
        message.store_size,
    )


# --- CRCs, on the way -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, 8_191, 8_192, 20_000])
def test_a_body_that_differs_from_its_crc_is_noticed_at_any_size(size: int) -> None:
    queue = MessageQueue("T1", "b", 3)
    good = record(body=b"x" * size)
    messages, whole, own = decode_pulled(good * 2, queue, check_crc=True)
    assert whole
    assert own
    assert [m.body for m in messages] == [b"x" * size] * 2
    bad = bytearray(good)
    bad[8] ^= 1
    assert decode_pulled(bad, queue, check_crc=False)[1]
    messages, whole, _ = decode_pulled(good + bytes(bad) + good, queue, check_crc=True)
    assert not whole
    assert len(messages) == 3
    assert len(check_bodies(messages, queue)) == 1
    with pytest.raises(RemoteProtocolError):
        decode_messages(good + bytes(bad), check_crc=True)


@pytest.mark.parametrize("topic", ["T2", "T", "~" * 200])
def test_records_of_another_queue_are_noticed(topic: str) -> None:
    queue, good = MessageQueue("T1", "b", 3), record()
    for bad in (record(topic=topic), record(queue_id=77)):
        for data in (bad, good + bad, bad + good, good + bad + good):
            messages, whole, own = decode_pulled(data, queue, check_crc=True)
            assert b"".join(each.stored_record for each in messages) == data
            assert (whole, own) == (True, False)


def test_a_checked_body_that_is_compressed_is_inflated_when_asked_for() -> None:
    packed = record(body=vectors.X200_ZLIB, sys_flag=1)
    ((message,), whole, _) = decode_pulled(packed, MessageQueue("T1", "b", 3), check_crc=True)
    assert whole
    assert message.stored_body == vectors.X200_ZLIB
    assert message.body == b"x" * 200


BATCH = encode_batch(
    [(n, b"body %d" % n, f"UNIQ_KEY\x01ID{n}\x02TAGS\x01t{n}".encode()) for n in range(3)]
)
WRAPPED = 0x40 | 0x80


def stored_batch(**changes: object) -> list[MessageExt]:
    """A batch that a 5.x broker stored as one record, and a message behind it."""
    packed = {"body": BATCH, "sys_flag": WRAPPED, "queue_offset": 7} | changes
    data = record(**packed) + record(queue_offset=10)
    return decode_messages(data, "broker-a", extra_properties={"MAX_OFFSET": "11"})


@pytest.mark.parametrize("first", [7, 8, 9])
def test_a_batch_stored_as_one_record_is_its_messages(first: int) -> None:
    """Covers W 7.2; of one that began before, only what was asked for."""
    whole = stored_batch()
    found = taken_apart(whole, first, check_crc=True)
    assert [each.queue_offset for each in found] == [*range(first, 10), 10]
    for each in found[:-1]:
        n = each.queue_offset - 7
        assert (each.body, each.flag, each.tags, each.msg_id) == (
            b"body %d" % n,
            n,
            f"t{n}",
            f"ID{n}",
        )
        assert each.get_property("MAX_OFFSET") == "11"
        assert (each.sys_flag, each.topic, each.broker_name) == (0, whole[0].topic, "broker-a")
        told = (each.store_host, each.store_timestamp, each.born_host, each.commit_log_offset)
        assert told == (
            whole[0].store_host, whole[0].store_timestamp, whole[0].born_host,
            whole[0].commit_log_offset,
        )  # fmt: skip
    assert found[-1] is whole[1]


def test_a_batch_stored_compressed_is_its_messages() -> None:
    body, bits = compress(BATCH)
    found = taken_apart(stored_batch(body=body, sys_flag=WRAPPED | bits), 7)
    assert not any(is_compressed(each) for each in found)
    assert [each.body for each in found[:3]] == [b"body 0", b"body 1", b"body 2"]


def test_a_batch_has_as_many_messages_as_its_broker_counts() -> None:
    """A queue of 5.x counts the messages of a batch in 16 bits with a sign."""
    most = encode_batch([(0, b"", b"")] * 32_767)
    assert len(taken_apart(stored_batch(body=most), 0)) == 32_767 + 1
    with pytest.raises(RemoteProtocolError, match="32767"):
        taken_apart(stored_batch(body=most + encode_batch([(0, b"", b"")])), 0)


@pytest.mark.parametrize("body", [b"", BATCH[:-1], b"no batch at all"])
def test_a_batch_that_is_none_is_refused_and_not_handed_out(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        taken_apart(stored_batch(body=body), 7)


def test_messages_stored_by_themselves_are_left_as_they_are() -> None:
    messages = stored_batch(sys_flag=0x80)  # of another flag, which nobody is to take apart
    assert taken_apart(messages, 9) is messages


def test_messages_are_whole_up_to_the_first_damaged_one() -> None:
    queue = MessageQueue("T1", "broker-a", 3)
    good, bad = record(), bytearray(record())
    bad[8] ^= 1  # of its CRC
    whole = decode_messages(good + good)
    assert check_bodies(whole, queue) is whole
    assert before_damage(whole, queue, 9) == (whole, 9)
    torn = decode_messages(good + bytes(bad) + good)
    assert check_bodies(torn, queue) == torn[:1]
    assert before_damage(torn, queue, 9) == (torn[:1], torn[1].queue_offset)
    with pytest.raises(DamagedMessageError) as found:
        check_bodies(torn[1:], queue)
    assert (found.value.parameters["queue"], found.value.parameters["offset"]) == (
        queue,
        torn[1].queue_offset,
    )


def test_an_assembled_message_has_no_more_properties_than_a_record_holds() -> None:
    queue = MessageQueue("T1", "broker-a", 3)
    most = 0xFFFF - len("a\x01")
    made = assemble_message(
        queue, 7, b"x", {"a": "b" * most}, commit_log_offset=1, reconsume_times=0
    )
    assert made.properties == {"a": "b" * most}
    with pytest.raises(LocalProtocolError, match="65536 bytes; a record holds 65535"):
        assemble_message(
            queue, 7, b"x", {"a": "b" * (most + 1)}, commit_log_offset=1, reconsume_times=0
        )


def test_an_assembled_message_without_hosts_has_none() -> None:
    made = assemble_message(
        MessageQueue("T1", "b", 3), 7, b"x", {}, commit_log_offset=0, reconsume_times=0
    )
    assert (made.born_host, made.store_host) == ("0.0.0.0:0", "0.0.0.0:0")
    assert made.offset_msg_id == "0" * 32


@pytest.mark.parametrize(
    "text", ["XTAGS\x01no", "a\x01b\x02XTAGS\x01no\x02c\x01d", "a\x01TAGS\x01no"]
)
def test_a_tag_is_not_found_in_the_end_of_another_name(text: str) -> None:
    assert decode_message(record(properties=text)).tags is None


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (0, "is longer than its buffer"),
        (2, "is longer than its buffer"),
        (3, "do not add up"),
        (4, "do not add up"),
    ],
)
@pytest.mark.parametrize("check_crc", [False, True])
def test_a_body_leaves_three_bytes_of_its_record_for_topic_and_properties(
    left: int, text: str, check_crc: bool
) -> None:
    """The lengths of both; what is wrong with them is said by itself."""
    data = bytearray(record(properties="\x7f" * 60))
    data[84:88] = (len(data) - 88 - left).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match=text):
        decode_pulled(data, MessageQueue("T1", "b", 3), check_crc=check_crc)


def test_properties_of_more_than_a_byte_can_count_are_whole() -> None:
    text = "a\x01" + "x" * 700 + "\x02TAGS\x01t"
    message = decode_message(record(properties=text))
    assert message.properties_bytes == text.encode()
    assert message.tags == "t"
    assert copy.copy(message).properties_bytes == text.encode()


@pytest.mark.parametrize("topic", ["T1", "~" * 9])
def test_a_tag_of_the_next_message_is_not_found_in_one_without(topic: str) -> None:
    """Whatever the bytes before its properties are."""
    data = record(topic=topic, properties="a\x01b") + record(properties="TAGS\x01t")
    first, second = decode_messages(data)
    assert (first.tags, second.tags) == (None, "t")


@pytest.mark.parametrize("size", [0, 5, 500])
def test_a_copy_of_an_assembled_message_has_its_bytes(size: int) -> None:
    made = assemble_message(
        MessageQueue("T1", "b", 3),
        7,
        b"x" * size,
        {"TAGS": "t"},
        commit_log_offset=9,
        reconsume_times=2,
    )
    for take in (copy.copy, copy.deepcopy):
        other = take(made)
        assert (other.stored_body, other.tags) == (b"x" * size, "t")
        assert other.properties_bytes == made.properties_bytes


@pytest.mark.parametrize("size", [0, 5, 8_191, 8_192, 20_000])
def test_a_checked_body_is_bytes_at_any_size(size: int) -> None:
    """A listener may use it as a key, or send it on."""
    queue = MessageQueue("T1", "b", 3)
    (message,), *_ = decode_pulled(record(body=b"x" * size), queue, check_crc=True)
    assert type(message.body) is bytes


def test_a_batch_stored_as_one_record_is_compared_with_its_crc_when_asked() -> None:
    data = bytearray(record(body=BATCH, sys_flag=WRAPPED, queue_offset=7))
    data[8] ^= 1
    messages = decode_messages(bytes(data))
    assert len(taken_apart(messages, 7)) == 3
    assert len(taken_apart(messages, 7, check_crc=False)) == 3
    with pytest.raises(RemoteProtocolError, match="body CRC"):
        taken_apart(messages, 7, check_crc=True)


def test_properties_read_alone_need_no_reading_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever they stand; a consumer that asks for the tag alone makes no dictionary."""

    def unread(*_: object) -> object:
        raise AssertionError("all properties were read")

    monkeypatch.setattr(message_ext, "decode_properties", unread)
    pairs = ["TAGS\x01tag", "KEYS\x01key", "UNIQ_KEY\x01id"]
    for shift in range(3):
        text = "\x02".join(pairs[shift:] + pairs[:shift])
        for end in ("", "\x02"):
            message = decode_message(record(properties=text + end))
            assert (message.tags, message.keys, message.msg_id) == ("tag", "key", "id")
    for golden in (vectors.RECORD_V4, vectors.RECORD_V6):
        (message,) = decode_messages(golden, extra_properties={"MIN_OFFSET": "0"})
        assert (message.tags, message.keys) == ("TagA", "k1")
        assert message.msg_id == message.offset_msg_id
    assert decode_message(record(properties="")).tags is None


def test_the_properties_of_an_assembled_message_are_as_a_record_has_them() -> None:
    for size in (0, 1, 300):
        made = assemble_message(
            MessageQueue("T1", "b", 3),
            7,
            b"x" * size,
            {"TAGS": "t", "KEYS": "k" * size} if size else {},
            commit_log_offset=9,
            reconsume_times=2,
        )
        text = b"TAGS\x01t\x02KEYS\x01" + b"k" * size if size else b""
        assert made.properties_bytes == text
        assert made.stored_body == made.body == b"x" * size
        assert made.body_crc == body_crc(b"x" * size)
        assert (made.body_size, made.consume_start_ms) == (size, 0)
        assert (made.prepared_transaction_offset, made.flag, made.sys_flag) == (0, 0, 0)
        assert (made.born_timestamp, made.store_timestamp) == (0, 0)
        assert made.store_size == 91 + size + len(b"T1") + len(text)
        made.check_crc()


@pytest.mark.parametrize("size", [5, 8_191, 8_192])
def test_a_short_body_that_was_checked_is_not_copied_again(size: int) -> None:
    """A long one is checked where it is: nobody may ask for it."""
    data = record(body=b"x" * size) + record(body=b"x" * size, sys_flag=2)
    for message in decode_messages(data, check_crc=True):
        assert (message._body is None) == (size == 8_192)
    (packed,) = decode_messages(record(body=vectors.X200_ZLIB, sys_flag=1), check_crc=True)
    assert packed._body is None


def test_the_fixed_part_of_a_usual_message_is_read_on_first_use() -> None:
    """Most consumers ask for none of it."""
    message = decode_message(record(sys_flag=0x10F))
    assert message._head is None
    assert message.sys_flag == 0x10F
    assert message._head is not None


def test_a_plain_body_is_not_given_to_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    def unused(*_: object) -> object:
        raise AssertionError("inflated")

    monkeypatch.setattr(message_ext, "decompress", unused)
    (message,) = decode_messages(record(sys_flag=2))
    assert message.body == b"hello"


def test_messages_that_were_looked_at_are_left_as_they_are() -> None:
    messages = decode_messages(record() + record(queue_offset=8))
    assert [message.flag for message in messages] == [0, 0]
    assert taken_apart(messages, 9) is messages


def test_a_message_is_shown_with_its_tag_and_keys() -> None:
    message = decode_message(vectors.RECORD_V4, "b")
    assert repr(message) == (
        "MessageExt(topic='T1', broker_name='b', queue_id=3, queue_offset=7, reconsume_times=0, "
        "msg_id='0A00000100002A9F0000000000000400', tags='TagA', keys='k1', body=b'hello')"
    )
    shown = repr(decode_message(record(properties="a\x01b")))
    assert "tags" not in shown
    assert "keys" not in shown


def test_the_lite_topic_of_a_message_is_its_property() -> None:
    """5.x names it ``__LITE_TOPIC``."""
    assert decode_message(record(properties="__LITE_TOPIC\x01room 7")).lite_topic == "room 7"
    assert decode_message(vectors.RECORD_V4).lite_topic is None


def test_a_message_of_a_transaction_has_its_id() -> None:
    """covers C-220."""
    for text, wanted in (
        ("UNIQ_KEY\x01ID\x02TRAN_MSG\x01true", "ID"),
        ("UNIQ_KEY\x01ID\x02TRAN_MSG\x01false", None),
        ("UNIQ_KEY\x01ID", None),
        ("TRAN_MSG\x01true", None),
    ):
        assert decode_message(record(properties=text)).transaction_id == wanted


def test_a_pull_is_read_with_its_batches_taken_apart() -> None:
    """From the offset that was asked for on; bodies are compared with their CRCs if wanted."""
    queue = MessageQueue("T1", "broker-a", 3)
    data = record(body=BATCH, sys_flag=WRAPPED, queue_offset=7) + record(queue_offset=10)
    extra = {"MAX_OFFSET": "11"}
    messages, whole, own = read_pulled(data, queue, 8, check_crc=True, extra_properties=extra)
    assert own
    assert [each.queue_offset for each in messages] == [8, 9, 10]
    assert whole
    assert {each.broker_name for each in messages} == {"broker-a"}
    assert {each.get_property("MAX_OFFSET") for each in messages} == {"11"}
    bad = bytearray(data)
    bad[-len(record()) + 8] ^= 1
    messages, whole, _ = read_pulled(bytes(bad), queue, 8, check_crc=True, extra_properties=extra)
    assert (len(messages), whole) == (3, False)
    bad[8] ^= 1
    with pytest.raises(RemoteProtocolError, match="body CRC"):
        read_pulled(bytes(bad), queue, 8, check_crc=True, extra_properties=extra)
    assert read_pulled(bytes(bad), queue, 8, check_crc=False, extra_properties=extra)[1]


def test_an_assembled_message_is_made_again_as_it_was() -> None:
    queue = MessageQueue("T1", "b", 3)
    made = assemble_message(
        queue, 7, b"x", {"TAGS": "t"}, commit_log_offset=9, reconsume_times=2, flag=5, sys_flag=2,
        born_timestamp=11, born_host=bytes([10, 0, 0, 9, 0, 0, 0, 1]), store_timestamp=12,
        store_host=bytes([10, 0, 0, 1, 0, 0, 0, 2]),
    )  # fmt: skip
    before = seen(copy.deepcopy(made))
    made._topic, made._reconsume_times, made._broker_name = "Other", 9, "c"
    made.properties["X"] = "1"
    assert seen(reassembled(made, queue)) == before
    assert (made.flag, made.sys_flag, made.born_timestamp, made.store_timestamp) == (5, 2, 11, 12)
    assert (made.born_host, made.store_host) == ("10.0.0.9:1", "10.0.0.1:2")

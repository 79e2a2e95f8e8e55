"""Stored records and batch bodies (wire-and-storage 4.1, 4.5, 4.6)."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import limits
from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import (
    HEAD_V4,
    MAGIC_V1,
    MAGIC_V2,
    SEAL_BYTES,
    BatchItem,
    RecordFields,
    RecordState,
    body_crc,
    check_record,
    decode_batch,
    encode_batch,
    encode_record,
    new_draft,
    pack_host,
    read_head,
    record_of,
    sealable,
    unpack_host,
)
from tests.kits import vectors
from tests.wire.records import RECORDS, V4
from tests.wire.strategies import INT32


def test_record_with_ipv4_hosts_is_byte_equal_to_java() -> None:
    assert encode_record(V4) == vectors.RECORD_V4


def test_record_with_ipv6_hosts_is_byte_equal_to_java() -> None:
    fields = RecordFields(**{name: getattr(V4, name) for name in RecordFields.__slots__})
    fields.born_host = ("2001:db8::9", 53211)
    fields.store_host = ("2001:db8::1", 10911)
    assert encode_record(fields) == vectors.RECORD_V6


def test_head_of_the_golden_record() -> None:
    head = read_head(b"????" + vectors.RECORD_V4 + b"rest", 4)
    assert (head.total_size, head.magic, head.body_crc) == (115, MAGIC_V1, 907060870)
    assert (head.queue_id, head.queue_offset, head.physical_offset) == (3, 7, 1024)
    assert (head.born_timestamp, head.store_timestamp) == (1700000000000, 1700000000005)
    assert unpack_host(head.born_host_bytes) == ("10.0.0.9", 53211)
    assert unpack_host(head.store_host_bytes) == ("10.0.0.1", 10911)
    record = vectors.RECORD_V4
    assert record[head.body_start : head.body_start + head.body_size] == b"hello"
    end = head.properties_start + head.properties_size
    assert record[head.properties_start : end] == b"KEYS\x01k1\x02TAGS\x01TagA"
    assert end == len(record)


@given(RECORDS)
def test_record_round_trip(fields: RecordFields) -> None:
    record = encode_record(fields)
    head = read_head(record)
    assert head.total_size == len(record)
    assert head.magic == (MAGIC_V1 if len(fields.topic) <= 127 else MAGIC_V2)
    assert head.topic == fields.topic
    assert head.sys_flag & ~0x30 == fields.sys_flag & ~0x30
    for name in ("queue_id", "flag", "queue_offset", "physical_offset", "reconsume_times"):
        assert getattr(head, name) == getattr(fields, name)
    for name in ("born_timestamp", "store_timestamp", "prepared_transaction_offset"):
        assert getattr(head, name) == getattr(fields, name)
    assert unpack_host(head.born_host_bytes)[1] == fields.born_host[1]
    assert pack_host(*unpack_host(head.store_host_bytes)) == head.store_host_bytes
    assert record[head.body_start : head.body_start + head.body_size] == fields.body
    assert bytes(record[head.properties_start :]).decode() == fields.properties
    check = check_record(record, 0)
    assert (check.state, check.size) == (RecordState.OK, len(record))


@pytest.mark.parametrize(("size", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2)])
def test_a_topic_over_127_bytes_takes_the_longer_head(size: int, magic: int) -> None:
    """Java reads the one byte of the shorter as signed."""
    head = read_head(encode_record(dataclasses.replace(V4, topic="t" * size)))
    assert (head.magic, head.topic) == (magic, "t" * size)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_record_that_ends_within_the_length_of_its_properties_is_refused(missing: int) -> None:
    """At the end of a buffer there is nothing left to read either."""
    data = bytearray(encode_record(dataclasses.replace(V4, properties="")))[:-missing]
    data[:4] = len(data).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError):
        read_head(data)
    with pytest.raises(RemoteProtocolError):
        read_head(data + b"\0\0")


def test_empty_record_has_91_bytes() -> None:
    record = record_of(new_draft("", 0, 0, 0, 0, bytes(8), bytes(8), b"", b""), 0, 0, 0)
    assert len(record) == 91
    assert read_head(record).topic == ""


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "t" * 40_000},
        {"properties": "p" * 32_768},
        {"queue_id": 2**31},
        {"sys_flag": -(2**31) - 1},
        {"born_timestamp": 2**63},
        {"born_host": ("localhost", 1)},
        {"store_host": ("10.0.0.1", 2**31)},
    ],
)
def test_what_a_record_cannot_carry_is_refused_here(change: dict[str, object]) -> None:
    values = {name: getattr(V4, name) for name in RecordFields.__slots__}
    with pytest.raises(LocalProtocolError):
        encode_record(RecordFields(**{**values, **change}))


def test_host_with_a_scope_is_packed_without_it() -> None:
    assert pack_host("fe80::1%eth0", 1) == pack_host("fe80::1", 1)


@pytest.mark.parametrize("size", [0, 7, 9, 16, 21])
def test_host_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_host(bytes(size))


@pytest.mark.parametrize("golden", [vectors.RECORD_V4, vectors.RECORD_V6], ids=["v4", "v6"])
def test_record_cut_anywhere_is_refused(golden: bytes) -> None:
    for size in range(len(golden)):
        with pytest.raises(RemoteProtocolError):
            read_head(golden[:size])
        with pytest.raises(RemoteProtocolError):
            read_head(b"?" * 40 + golden[:size], 40)
        assert check_record(golden[:size], 0).state in (RecordState.BAD, RecordState.END)
    with pytest.raises(RemoteProtocolError):
        read_head(golden, -1)


# --- recovery ----------------------------------------------------------------------------------


def test_blank_marker_of_a_full_file() -> None:
    """covers W 5.2: a 4096-byte file ends at 3557 with 0000021B CBD43194."""
    file = bytes(3557) + bytes.fromhex("0000021BCBD43194") + bytes(531)
    check = check_record(file, 3557)
    assert (check.state, check.size) == (RecordState.BLANK, 539)
    assert check_record(bytes.fromhex("00000008CBD43194"), 0).state is RecordState.BLANK
    for size in ("00000007", "0000000A", "FFFFFFFF"):
        data = bytes.fromhex(size + "CBD43194")
        assert check_record(data, 0)[:2] == (RecordState.BAD, 0)


def test_zeroes_and_short_tails_are_the_end() -> None:
    assert check_record(bytes(100), 0).state is RecordState.END
    assert check_record(bytes(7), 0).state is RecordState.END
    assert check_record(vectors.RECORD_V4, 115).state is RecordState.END


def test_wrong_crc_is_bad_unless_it_is_not_checked() -> None:
    """covers W 5.6: checkCRCOnRecover."""
    record = bytearray(vectors.RECORD_V4)
    record[88] ^= 1
    check = check_record(record, 0)
    assert (check.state, check.size) == (RecordState.BAD, 0)
    assert "CRC" in check.reason
    assert check_record(record, 0, crc=False).state is RecordState.OK


def test_check_hands_the_head_on() -> None:
    check = check_record(memoryview(vectors.RECORD_V6), 0)
    assert check.head is not None
    assert check.head.topic == "T1"


@given(st.binary(max_size=200), st.integers(0, 210))
def test_check_never_raises(data: bytes, position: int) -> None:
    check_record(data, position)


# --- CRC and batch -----------------------------------------------------------------------------


def test_crc_is_javas() -> None:
    """covers W 4.6."""
    assert body_crc(b"hello") == 907060870
    assert body_crc(b"") == 0
    assert all(body_crc(bytes([n])) < 2**31 for n in range(256))


def test_batch_is_byte_equal_to_java() -> None:
    item = BatchItem(0, b"hello", b"WAIT\x01true\x02TAGS\x01TagA")
    assert encode_batch([item]) == vectors.BATCH
    assert decode_batch(vectors.BATCH) == [item]
    assert decode_batch(memoryview(vectors.BATCH * 2)) == [item, item]
    assert decode_batch(b"") == []


@given(st.lists(st.tuples(INT32, st.binary(max_size=30), st.binary(max_size=30)), max_size=5))
def test_batch_round_trip(items: list[tuple[int, bytes, bytes]]) -> None:
    assert decode_batch(encode_batch(items)) == items


def test_batch_cut_anywhere_is_refused() -> None:
    data = vectors.BATCH * 2
    for size in range(1, len(data)):
        if size != len(vectors.BATCH):
            with pytest.raises(RemoteProtocolError):
                decode_batch(data[:size])


@pytest.mark.parametrize("item", [(2**31, b"", b""), (0, b"", bytes(32_768))])
def test_message_that_does_not_fit_a_batch_is_refused_here(item: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([item])


def _sealed(text: bytes, host: bytes = bytes(8), physical: int = 1 << 33) -> bytearray:
    draft = new_draft("T", 3, 0, 0, 1, host, bytes(8), b"body", sealable(text))
    return bytearray(record_of(draft, 5, physical, 1_700_000_000_000))


@pytest.mark.parametrize("host", [bytes(8), bytes(20)])
@pytest.mark.parametrize("text", [b"", b"a\x01b", b"a\x01b\x02", b"a\x01\0"])
def test_any_flipped_bit_of_a_sealed_record_is_seen(text: bytes, host: bytes) -> None:
    """Or it is in the place that the seal names: then it is none, and the message is the same.

    The log offset, which stands in bytes 28 to 35, is compared by who reads the log.
    """
    record = _sealed(text, host)
    assert check_record(record, 0).state is RecordState.OK
    message = decode_messages(bytes(record))[0]
    assert message.properties == decode_properties(text)
    for bit in range(len(record) * 8):
        record[bit // 8] ^= 1 << bit % 8
        if check_record(record, 0).state is RecordState.OK:
            assert bit // 8 >= len(record) - 8 or 28 <= bit // 8 < 36
            assert decode_messages(bytes(record))[0].properties == decode_properties(text)
        record[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("text", [b"", b"a\x01b\x02", b"a\x01\0"])
def test_a_sector_lost_with_the_seal_is_seen(text: bytes) -> None:
    """Zeros up to the end: what they leave was served as a record without a seal."""
    size = len(_sealed(text))
    tail = size - HEAD_V4.size - len(b"body")
    for lost in range(1, tail + 1):
        record = _sealed(text, physical=(1 << 33) - size + lost)
        assert check_record(record, 0).state is RecordState.OK
        record[-lost:] = bytes(lost)
        if check_record(record, 0).state is RecordState.OK:
            assert lost <= 2
            assert decode_messages(bytes(record))[0].properties == decode_properties(text)


@pytest.mark.parametrize("end", range(1, 6))
def test_a_record_without_properties_may_end_in_a_sectors_first_bytes(end: int) -> None:
    """A broker of upstream writes no seal: its last bytes are the length of no properties."""
    draft = new_draft("T", 0, 0, 0, 1, bytes(8), bytes(8), b"x", b"")
    record = record_of(draft, 5, 4096 - len(record_of(draft, 0, 0, 0)) + end, 1_700_000_000_000)
    assert check_record(record, 0).state is RecordState.OK


def test_the_seal_of_another_record_is_none() -> None:
    """A broker of upstream stores a copy of all properties of a message it delivers again."""
    stale = bytes(_sealed(b"a\x01b"))[-SEAL_BYTES:]
    draft = new_draft("T", 0, 0, 0, 1, bytes(8), bytes(8), b"x", b"c\x01d\x02" + stale)
    record = record_of(draft, 5, 4096, 1_700_000_000_000)
    assert check_record(record, 0).state is RecordState.OK
    assert decode_messages(record)[0].properties == {"c": "d"}


def test_a_seal_that_would_make_properties_too_long_is_left_out() -> None:
    longest = b"a" * (limits.PROPERTIES_BYTES_MAX - SEAL_BYTES - 1)
    assert len(sealable(longest)) == limits.PROPERTIES_BYTES_MAX
    assert sealable(b"a" + longest) == b"a" + longest


def test_a_batch_has_as_many_messages_as_it_may_and_no_more() -> None:
    body = encode_batch([(0, b"x", b"")] * 3)
    assert len(decode_batch(body, messages_max=3)) == 3
    with pytest.raises(RemoteProtocolError, match="more than the maximum of 2 messages"):
        decode_batch(body, messages_max=2)


# --- lengths ------------------------------------------------------------------------------------


def with_body_of(size: int, record: bytes) -> bytes:
    """A record that says its body is so long."""
    return record[:84] + size.to_bytes(4, "big", signed=True) + record[88:]


def short(number: int) -> bytes:
    return number.to_bytes(2, "big", signed=True)


LONG = bytes(encode_record(dataclasses.replace(V4, topic="t" * 128)))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\x74" + vectors.RECORD_V4[4:], "is longer than its buffer"),
        (vectors.RECORD_V4[:4] + bytes(4) + vectors.RECORD_V4[8:], "magic 0x0 at 7 is unknown"),
        (with_body_of(-1, vectors.RECORD_V4), "is longer than its buffer"),
        (with_body_of(-3, vectors.RECORD_V4), "is longer than its buffer"),
        (with_body_of(115 - 88 - 2, vectors.RECORD_V4), "is longer than its buffer"),
        (with_body_of(115 - 88 - 3, vectors.RECORD_V4), "passes the record's end"),
        (vectors.RECORD_V4[:93] + bytes([20]) + vectors.RECORD_V4[94:], "passes the record's end"),
        (vectors.RECORD_V4[:93] + bytes([19]) + vectors.RECORD_V4[94:], "do not sum to its size"),
        (vectors.RECORD_V4[:96] + short(16) + vectors.RECORD_V4[98:], "do not sum to its size"),
        (vectors.RECORD_V4[:96] + short(18) + vectors.RECORD_V4[98:], "do not sum to its size"),
        (vectors.RECORD_V4[:96] + short(-17) + vectors.RECORD_V4[98:], "do not sum to its size"),
        (LONG[:93] + short(-1) + LONG[95:], "passes the record's end"),
        (LONG[:93] + short(146) + LONG[95:], "passes the record's end"),
        (LONG[:93] + short(145) + LONG[95:], "do not sum to its size"),
    ],
)
def test_a_length_that_cannot_be_is_refused_with_its_place(data: bytes, text: str) -> None:
    """At the end of a buffer, where what follows cannot be read for it."""
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        read_head(b"?" * 7 + data, 7)
    assert " at 7 " in caught.value.message
    check = check_record(b"?" * 7 + data, 7)
    assert (check.state, check.size, check.reason) == (RecordState.BAD, 0, caught.value.message)


@pytest.mark.parametrize("hosts", [("10.0.0.9", "10.0.0.1"), ("2001:db8::9", "2001:db8::1")])
@pytest.mark.parametrize("topic", ["", "T1", "t" * 128])
def test_the_smallest_records_are_read_at_the_end_of_a_buffer(
    hosts: tuple[str, str], topic: str
) -> None:
    born, store = hosts
    fields = dataclasses.replace(
        V4, topic=topic, body=b"", properties="", born_host=(born, 1), store_host=(store, 2)
    )
    record = encode_record(fields)
    head = read_head(b"?" * 7 + record, 7)
    assert (head.topic, head.body_size, head.properties_size) == (topic, 0, 0)
    assert (head.total_size, head.properties_start) == (len(record), len(record))
    assert check_record(b"?" * 7 + record, 7).state is RecordState.OK


@pytest.mark.parametrize("size", [32_767, 32_768])
def test_topic_and_properties_have_16_bits_for_their_length(size: int) -> None:
    for fields in (
        dataclasses.replace(V4, topic="t" * size),
        dataclasses.replace(V4, properties="p" * size),
    ):
        if size == 32_767:
            assert read_head(encode_record(fields)).total_size > size
        else:
            with pytest.raises(LocalProtocolError, match=f"{size} .*bytes do not fit a record"):
                encode_record(fields)


def batch_item(size: int, body_size: int, rest: bytes) -> bytes:
    """A message of a batch that says how long it and its body are."""
    return struct.pack(">iiiii", size, 0, 0, 0, body_size) + rest


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (batch_item(22, 0, b"")[:19], "ends inside a message at 0"),
        (batch_item(22, 0, b"\0"), "ends inside a message at 0"),
        (batch_item(23, 0, b"\0\0"), "is longer than its batch"),
        (batch_item(21, 0, b"\0\0"), "is longer than its batch"),
        (batch_item(22, 1, b"\0\0"), "is longer than its batch"),
        (batch_item(22, -1, b"\0\0"), "is longer than its batch"),
        (batch_item(0, 0, b"\0\0"), "is longer than its batch"),
        (batch_item(22, 0, b"\0\1"), "do not add up"),
        (batch_item(22, 0, b"\xff\xff"), "do not add up"),
        (batch_item(23, 0, b"\0\0?"), "do not add up"),
        (batch_item(24, 1, b"?\0\0?"), "do not add up"),
    ],
)
def test_a_batch_whose_lengths_cannot_be_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        decode_batch(data)
    good = encode_batch([(5, b"", b"")])
    assert decode_batch(good) == [(5, b"", b"")]
    with pytest.raises(RemoteProtocolError, match=text.replace(" at 0", " at 22")):
        decode_batch(good + data)


def test_a_batch_has_as_many_messages_by_default_as_a_broker_takes() -> None:
    body = encode_batch([(0, b"", b"")] * limits.BATCH_MESSAGES_MAX)
    assert len(decode_batch(body)) == limits.BATCH_MESSAGES_MAX
    with pytest.raises(RemoteProtocolError, match="send several") as caught:
        decode_batch(body + encode_batch([(0, b"", b"")]))
    assert caught.value.parameters["messages_max"] == limits.BATCH_MESSAGES_MAX

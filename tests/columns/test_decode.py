"""Records to Arrow: layouts of wire-and-storage 4.1, both decoders, hostile bytes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.columns import decode as decoding
from rocketstream.columns import properties as splitting
from rocketstream.columns.decode import decode
from rocketstream.columns.layout import Piece
from rocketstream.columns.table import ALL_COLUMNS, Column
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.compression import compress
from rocketstream.protocol.record import RecordFields, encode_record
from tests.kits.records import WAYS, piece, record, rows

VECTOR_V4 = bytes.fromhex(
    "00000073DAA320A73610A686000000030000000000000000000000070000000000000400000000000000018BCFE5"
    "68000A0000090000CFDB0000018BCFE568050A00000100002A9F00000000000000000000000000000005"
    "68656C6C6F02543100114B455953016B3102544147530154616741"
)
VECTOR_V6 = bytes.fromhex(
    "0000008BDAA320A73610A686000000030000000000000000000000070000000000000400000000300000018BCFE5"
    "680020010DB80000000000000000000000090000CFDB0000018BCFE5680520010DB8000000000000000000000001"
    "00002A9F0000000000000000000000000000000568656C6C6F02543100114B455953016B31025441475301546167"
    "41"
)


@WAYS
def test_v4_vector_decodes_to_its_row(way: str) -> None:
    """Covers the IPv4 vector of 4.1 and the offset message id of 4.7."""
    (row,) = rows([piece(VECTOR_V4)], way)
    born, stored = row.pop("bornTimestamp"), row.pop("storeTimestamp")
    assert (int(born.timestamp() * 1000), stored.microsecond) == (1_700_000_000_000, 5_000)
    assert row == {
        "topic": "T1", "brokerName": "broker-a", "queueId": 3, "queueOffset": 7,
        "msgId": "0A00000100002A9F0000000000000400", "tags": "TagA", "keys": "k1",
        "body": b"hello", "properties": [("KEYS", "k1"), ("TAGS", "TagA")], "flag": 0,
        "bornHost": "10.0.0.9:53211", "storeHost": "10.0.0.1:10911", "reconsumeTimes": 0,
        "sysFlag": 0, "commitLogOffset": 1024,
    }  # fmt: skip


@WAYS
def test_v6_vector_decodes_to_its_row(way: str) -> None:
    """Covers the IPv6 vector of 4.1, next to an IPv4 record in one buffer."""
    v6, v4 = rows([piece(VECTOR_V6, record(8))], way)
    assert (v6["bornHost"], v6["storeHost"]) == ("2001:db8::9:53211", "2001:db8::1:10911")
    assert v6["msgId"] == "20010DB800000000000000000000000100002A9F0000000000000400"
    assert (v6["body"], v6["tags"], v4["bornHost"]) == (b"hello", "TagA", "10.0.0.9:53211")


@WAYS
def test_v2_magic_carries_a_long_topic(way: str) -> None:
    """Covers the 16-bit topic length of 5.x (4.1), mixed with V1."""
    long = b"t" * 300
    found = rows([piece(record(1, topic=long), topic="t" * 300), piece(record(2))], way)
    assert [row["topic"] for row in found] == ["t" * 300, "T1"]


@WAYS
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a\x011\x02", [("a", "1")]),
        (b"a\x011\x02b\x012", [("a", "1"), ("b", "2")]),
        (b"a\x01\x02b\x012", [("b", "2")]),
        (b"\x01x\x02b\x012\x02\x02", [("b", "2")]),
        (b"a\x01x\x01y", [("a", "x\x01y")]),
        (b"WAIT\x01true\x02t\x01x\x02WAIT\x01false", [("WAIT", "false"), ("t", "x")]),
        (b"a\x01\xff\xfe", [("a", "\ufffd\ufffd")]),
        ("名\x01前".encode(), [("名", "前")]),
        (b"nothing", []),
    ],
)
def test_properties_are_read_by_the_rules(
    way: str, text: bytes, expected: list[tuple[str, str]]
) -> None:
    """Covers 4.3: trailing separator, empty parts, repeated names; bad UTF-8 is replaced."""
    found = rows([piece(record(1), record(2, properties=text), record(3))], way)
    assert found[1]["properties"] == expected
    assert [found[0]["tags"], found[2]["tags"]] == ["TagA", "TagA"]


ODD = [b"", b"a\x01\x02b\x012", b"\x01x\x02", b"\x02\x02", b"a\x01x\x01y", b"no mark",
       b"a\x00\x01\x00", b"a\x01\xff\xfe\x02\xc3\x01b", "名\x01前".encode()]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_property_does_not_slow_the_others_down(
    odd: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One empty value sent all messages of a batch through the loop, four times the work."""
    monkeypatch.setattr(splitting, "properties_of", mock.Mock(side_effect=AssertionError))
    found = rows([piece(record(1), record(2, properties=odd), record(3))], "vector")
    monkeypatch.undo()
    assert found == rows([piece(record(1), record(2, properties=odd), record(3))], "plain")


dense = st.lists(
    st.sampled_from([b"a", b"\x00", b"\x01", b"\x01", b"\x02", b"\x02", b"\xff", b"\xc3\xa9"])
).map(b"".join)


@given(st.lists(dense, min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_texts_are_split_as_one_by_one(texts: list[bytes]) -> None:
    """Separators in every place, names twice, NULs and broken characters."""
    pieces = [piece(*(record(at, properties=text) for at, text in enumerate(texts)))]
    columns = tuple(Column(name, name) for name in ("properties", "tags", "keys", "msgId"))
    assert rows(pieces, "vector", columns=columns) == rows(pieces, "plain", columns=columns)


@WAYS
@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_bodies_are_inflated_among_plain_ones(way: str, kind: str) -> None:
    """Covers 4.6; sizes around Arrow's 12-byte inline views too."""
    bodies = [b"", b"123456789012", b"1234567890123", b"x" * 5_000, b"short"]
    records = []
    for offset, body in enumerate(bodies * 2):
        stored, bits = compress(body, kind) if offset % 2 else (body, 0)
        records.append(record(offset, stored, sys_flag=bits))
    assert [row["body"] for row in rows([piece(*records)], way)] == bodies * 2


@WAYS
def test_inflated_bodies_end_a_batch_before_it_grows_too_large(way: str) -> None:
    """A few KiB of zlib may be gigabytes: batches are cut by inflated bytes."""
    stored, bits = compress(bytes(1000), "ZLIB")
    records = [record(offset, stored, sys_flag=bits) for offset in range(10)]
    with (
        mock.patch.object(decoding, "BATCH_BODY_BYTES_MAX", 2_500),
        mock.patch.object(decoding, "VECTOR_RECORDS_MIN", 0 if way == "vector" else 10**9),
    ):
        batches = list(decode([piece(*records)], ALL_COLUMNS))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]
    assert [o for b in batches for o in b["queueOffset"].to_pylist()] == list(range(10))


@WAYS
def test_only_the_wanted_offsets_are_decoded(way: str) -> None:
    """An answer may end behind what was asked; several queues share a batch."""
    other = Piece(
        MessageQueue("T1", "broker-b", 0), 0, 9, record(0, queue_id=0) + record(4, queue_id=0)
    )
    found = rows([piece(*map(record, range(3, 10)), begin=3, end=6), other], way)
    assert [(row["brokerName"], row["queueOffset"]) for row in found] == [
        ("broker-a", 3), ("broker-a", 4), ("broker-a", 5), ("broker-b", 0), ("broker-b", 4),
    ]  # fmt: skip


@WAYS
def test_tags_are_compared_exactly(way: str) -> None:
    """Covers C-382: brokers compare hashes; 'Aa' and 'BB' share one."""
    records = [
        record(offset, properties=tag)
        for offset, tag in enumerate([b"TAGS\x01Aa", b"TAGS\x01BB", b"", b"TAGS\x01Aa"])
    ]
    for columns in (ALL_COLUMNS, (Column("queueOffset", "at"),)):
        found = rows([piece(*records)], way, tags={"Aa"}, columns=columns)
        assert [row.get("queueOffset", row.get("at")) for row in found] == [0, 3]
    assert rows([piece(*records)], way, tags={"other"}) == []


@WAYS
def test_a_choice_of_columns_is_decoded_in_its_order_and_spelling(way: str) -> None:
    """Covers S 8: the schema is the column selection."""
    columns = (Column("tags", "TAGS"), Column("body", "body"), Column("queueId", "queueid"))
    (row,) = rows([piece(record())], way, columns=columns)
    assert list(row.items()) == [("TAGS", "TagA"), ("body", b"hello"), ("queueid", 3)]


@WAYS
@pytest.mark.parametrize(
    "bad",
    [
        record(size=90),
        record(size=0),
        record(size=-5),
        record(size=1 << 30),
        record()[:-1],
        record(magic=0xCBD43194),
        record(body_size=-1),
        record(body_size=1 << 30),
        record(body_size=0x7FFFFFFF),
        record(properties_size=9_999),
        record(properties_size=0),
        record(topic=b"\xff\xfe"),
        record(5) + record(5),
        record(5) + record(4),
        record(sys_flag=0x30)[:100],
        b"\x00" * 200,
        b"\x00\x00",
    ],
)
def test_malformed_records_are_refused_not_misread(way: str, bad: bytes) -> None:
    """Covers the checks of 4.1; never IndexError or struct.error."""
    with pytest.raises(RemoteProtocolError):
        rows([piece(record(1), record(2)), piece(bad)], way)


@WAYS
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_flipped_byte_gives_rows_or_a_protocol_error(way: str, data: st.DataObject) -> None:
    """Peers' bytes are hostile: nothing but RemoteProtocolError may come out."""
    raw = bytearray(VECTOR_V4 + VECTOR_V6 + record(9))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    columns = tuple(column for column in ALL_COLUMNS if column.name != "body")
    with mock.patch.object(decoding, "VECTOR_RECORDS_MIN", 0 if way == "vector" else 10**9):
        try:
            for batch in decode([piece(bytes(raw))], columns):
                batch.validate(full=True)
        except RemoteProtocolError:
            pass


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=6)
wild = st.binary(max_size=12)
tame = st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "WAIT", "UNIQ_KEY", "u"]), texts))
property_bytes = wild | st.builds(
    lambda pairs, end: "\x02".join(f"{k}\x01{v}" for k, v in pairs).encode() + end,
    tame,
    st.sampled_from([b"", b"\x02"]),
)
message = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=30),
        "properties": property_bytes,
        "sys_flag": st.sampled_from([0, 0, 0x10, 0x20, 0x30]),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "physical": st.integers(-(2**63), 2**63 - 1),
        "born_ms": st.integers(-(2**45), 2**45),
        "port": st.integers(0, 65_535),
        "reconsume": st.integers(0, 16),
        "wide_topic": st.booleans(),
    }
)


topics = st.sampled_from(["T1", "T2", "主题"])


@given(st.lists(st.tuples(topics, st.lists(message, max_size=6)), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_both_ways_give_the_same_rows(replies: list[tuple[str, list[dict[str, Any]]]]) -> None:
    """The plain loop and the arrays are two writings of one function."""
    pieces = [
        piece(
            *(record(at, topic=topic.encode(), **fields) for at, fields in enumerate(reply)),
            topic=topic,
        )
        for topic, reply in replies
    ]
    columns = tuple(c for c in ALL_COLUMNS if "Timestamp" not in c.name)
    assert rows(pieces, "vector", columns=columns) == rows(pieces, "plain", columns=columns)
    stamps = (Column("bornTimestamp", "b"), Column("storeTimestamp", "s"))
    assert _batches(pieces, stamps, 0) == _batches(pieces, stamps, 10**9)


def _batches(pieces: list[Piece], columns: tuple[Column, ...], least: int) -> Any:
    with mock.patch.object(decoding, "VECTOR_RECORDS_MIN", least):
        return list(decode(pieces, columns))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 63, 64, 65, 300])), max_size=6),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_runs_of_one_size_are_found_record_by_record(runs: list[tuple[int, int]], cut: int) -> None:
    """Records of one size are found many at a time, others singly, torn ones never."""
    sizes = [size for size, count in runs for _ in range(count)]
    records = [record(at, body=b"b" * size) for at, size in enumerate(sizes)]
    half = len(records) // 2
    pieces = [piece(*records[:half], end=half), piece(*records[half:], begin=half)]
    columns = (Column("queueOffset", "at"), Column("body", "body"))
    found = rows(pieces, "vector", columns=columns)
    assert [(row["at"], len(row["body"])) for row in found] == list(enumerate(sizes))
    if cut and records:
        torn = piece(b"".join(records)[:-cut])
        with pytest.raises(RemoteProtocolError, match="bytes left"):
            rows([torn], "vector", columns=columns)


def test_a_wrong_size_in_a_run_is_refused() -> None:
    """What looks like the next record of a run says another size."""
    records = [record(at) for at in range(200)]
    records[150] = record(150, size=90)
    with pytest.raises(RemoteProtocolError, match="a record of 90 bytes"):
        rows([piece(*records)], "vector")


@WAYS
def test_times_beyond_sparks_range_are_clamped(way: str) -> None:
    """A hostile timestamp must not wrap around."""
    stamps = (Column("bornTimestamp", "b"),)
    least = 0 if way == "vector" else 10**9
    records = [record(0, born_ms=2**63 - 1), record(1, born_ms=-(2**63))]
    (batch,) = _batches([piece(*records)], stamps, least)
    assert batch["b"].cast(pa.int64()).to_pylist() == [
        9_223_372_036_854_775_000, -9_223_372_036_854_775_000,
    ]  # fmt: skip


def test_the_switch_to_arrays_is_at_two_hundred_records() -> None:
    """Both sides of the bound give all rows, through the real switch."""
    for count in (199, 200, 201):
        records = [
            bytes(encode_record(RecordFields(
                "T1", 3, 0, 0, 0, ("10.0.0.1", 1), 0, ("10.0.0.1", 2), 0, 0, b"b", "", offset
            )))
            for offset in range(count)
        ]  # fmt: skip
        (batch,) = decode([piece(*records)], ALL_COLUMNS)
        assert batch["queueOffset"].to_pylist() == list(range(count))
    assert list(decode([piece()], ALL_COLUMNS)) == []

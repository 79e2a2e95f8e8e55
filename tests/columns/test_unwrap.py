"""Batches that a 5.x broker stores as one record: a row for each message, at its own offset."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.columns import records as taking_apart
from rocketstream.columns.records import Checks
from rocketstream.columns.table import ALL_COLUMNS, Column
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.protocol.compression import compress
from rocketstream.protocol.record import BatchItem, encode_batch
from tests.kits.records import QUEUE, THREE, WAYS, WRAPPED, batch, piece, record, rows

OFFSETS = (Column("queueOffset", "queueOffset"),)


@WAYS
def test_each_message_of_a_stored_batch_is_a_row_at_its_own_offset(way: str) -> None:
    """Covers W 7.2 and MessageDecoder.decodeMessage: offset plus place, own properties and body."""
    gaps: list[Any] = []
    found = rows(
        [piece(record(4), batch(5, reconsume=0), record(8), begin=4, end=9)],
        way,
        checks=Checks(lambda *gap: gaps.append(gap), body_crc=True),
    )
    columns = ("queueOffset", "flag", "tags", "keys", "body", "sysFlag")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (4, 0, "TagA", None, b"hello", 0),
        (5, 7, "A", "k1", b"one", 0),
        (6, 8, None, None, b"", 0),
        (7, 9, "B", None, b"three" * 9, 0),
        (8, 0, "TagA", None, b"hello", 0),
    ]
    of_record = ("bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "commitLogOffset")
    assert len({tuple(row[name] for name in of_record) for row in found[1:4]}) == 1
    assert [row["msgId"] for row in found[1:4]] == [
        "ID1",
        *["0A00000100002A9F0000000000001005"] * 2,
    ]
    assert gaps == []


@WAYS
@pytest.mark.parametrize("fields", [{"sys_flag": WRAPPED | 0x30}, {"wide_topic": True}])
def test_batches_of_wide_hosts_and_topics_are_taken_apart(way: str, fields: Any) -> None:
    """The head of the record is kept as it is, whatever its form."""
    found = rows([piece(batch(5, **fields))], way)
    assert [row["body"] for row in found] == [item.body for item in THREE]
    assert {row["topic"] for row in found} == {"T1"}
    if fields.get("sys_flag"):
        assert found[2]["bornHost"].startswith("1:203:")


@WAYS
def test_an_answer_may_begin_and_end_inside_a_batch(way: str) -> None:
    """The broker answers with the record that holds the offset asked for."""
    found = rows([piece(batch(3), batch(6), begin=5, end=8)], way, columns=OFFSETS)
    assert [row["queueOffset"] for row in found] == [5, 6, 7]
    with pytest.raises(RemoteProtocolError, match="asked from offset 9, answered offset 6"):
        rows([piece(batch(6), begin=9)], way)


@WAYS
def test_offsets_missing_beside_batches_are_named(way: str) -> None:
    """A batch takes as many offsets as it holds messages."""
    gaps: list[Any] = []
    checks = Checks(lambda *gap: gaps.append(gap))
    rows([piece(batch(2), batch(7), begin=2, end=12)], way, checks=checks)
    assert gaps == [(QUEUE, 5, 7), (QUEUE, 10, 12)]


@WAYS
@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_a_deflated_batch_is_inflated_once(way: str, kind: str) -> None:
    """The codec is the record's; the messages in it are plain."""
    body, flags = compress(encode_batch(THREE * 10), kind)
    found = rows(
        [piece(batch(0, THREE * 10, body=body, sys_flag=WRAPPED | flags))],
        way,
        checks=Checks(body_crc=True),
    )
    assert [row["body"] for row in found] == [item.body for item in THREE] * 10


@WAYS
def test_large_batches_are_handed_on_in_parts(way: str) -> None:
    """A few KiB of a deflated batch may be gigabytes of records."""
    pieces = [piece(batch(0), batch(3), begin=1, end=5), piece(record(0), batch(1), begin=0, end=4)]
    gaps: list[Any] = []
    with mock.patch.object(taking_apart, "GROUP_BYTES", 200):
        groups = list(taking_apart.unwrapped(pieces, True))
        checks = Checks(lambda *gap: gaps.append(gap))
        found = rows(pieces, way, columns=OFFSETS, checks=checks)
    assert len(groups) > 3
    assert [row["queueOffset"] for row in found] == [1, 2, 3, 4, 0, 1, 2, 3]
    assert gaps == []


@WAYS
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"body": b"\x00\x00"}, "inside a message"),
        ({"body": encode_batch(THREE)[:-3]}, "longer than its batch"),
        ({"items": []}, "holds no message"),
        ({"told": 4}, "holds 3 messages and says 4"),
        ({"crc": 5}, "is damaged: its CRC"),
        ({"sys_flag": WRAPPED | 1, "body": b"nonsense"}, "cannot be inflated"),
        ({"topic": b"T2"}, "a message of topic 'T2'"),
        ({"queue_id": 9}, "a message of queue 9"),
    ],
)
def test_a_batch_that_cannot_be_taken_apart_is_named(way: str, fields: Any, text: str) -> None:
    """Never a row of nonsense, never a message less."""
    with pytest.raises(RemoteProtocolError, match=rf"(?s)topic 'T1', broker.*{text}") as caught:
        rows([piece(record(1), batch(2, **fields))], way, checks=Checks(body_crc=True))
    assert "offset 2" in str(caught.value)


@WAYS
def test_a_batch_nobody_is_to_take_apart_is_refused(way: str) -> None:
    """Covers C-627: flag 0x80 without 0x40; its messages would be one row of nonsense."""
    with pytest.raises(NotSupportedError, match=r"offset 2 of topic 'T1'.*sysFlag 0x80"):
        rows([piece(record(1), record(2, sys_flag=0x80))], way)


items = st.lists(
    st.builds(BatchItem, st.integers(-5, 5), st.binary(max_size=20), st.binary(max_size=12)),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(st.lists(items | st.none(), max_size=5), st.integers(0, 8), st.integers(0, 12))
def test_both_ways_take_the_same_messages_out(
    sent: list[list[BatchItem] | None], begin: int, end: int
) -> None:
    """Batches among plain messages, any part of them asked for."""
    records: list[bytes] = []
    offsets: list[int] = []
    at = 0
    for each in sent:
        count = 1 if each is None else len(each)
        if at + count > begin:
            records.append(record(at) if each is None else batch(at, each))
            offsets += range(at, at + count)
        at += count
    pieces = [piece(*records, begin=begin, end=end)]
    columns = tuple(c for c in ALL_COLUMNS if "Timestamp" not in c.name)
    found = rows(pieces, "vector", columns=columns)
    assert found == rows(pieces, "plain", columns=columns)
    assert [row["queueOffset"] for row in found] == [o for o in offsets if begin <= o < end]

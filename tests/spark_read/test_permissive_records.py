"""Option mode=permissive: a record that cannot be decoded is a row that says so, at its offset."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.columns import decode as decoding
from rocketstream.columns import undecodable
from rocketstream.columns.decode import decode_permissive
from rocketstream.columns.layout import Piece
from rocketstream.columns.records import Checks
from rocketstream.columns.table import ALL_COLUMNS, ERROR, Column, RequestedColumn, choose, ddl
from rocketstream.errors import ConfigurationError, DataLossError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import message_ext
from rocketstream.protocol.compression import compress
from rocketstream.spark.losses import KeptAside
from rocketstream.spark.options import is_permissive, read_options
from rocketstream.spark.scan import new_scan
from tests.kits.records import QUEUE, THREE, WAYS, batch, piece, record

WITH_ERROR = (*ALL_COLUMNS, Column(ERROR, ERROR))
SHORT = tuple(Column(name, name) for name in ("queueOffset", "body", ERROR))


def refuse(queue: MessageQueue, begin: int, end: int) -> None:
    """A gap is a loss."""
    raise DataLossError(f"{begin} to {end - 1} of {queue}")


WHOLE = Checks(refuse, body_crc=True)
"""What an unfiltered read checks."""


def permissive(
    pieces: list[Piece], way: str = "vector", columns: Any = SHORT, **options: Any
) -> list[dict[str, Any]]:
    """Decode as mode=permissive does and return plain rows."""
    told: list[Any] = []
    options.setdefault("checks", WHOLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "VECTOR_RECORDS_MIN", 0 if way == "vector" else 10**9)
        batches = list(decode_permissive(pieces, columns, tell=told.append, **options))
    for each in batches:
        each.validate(full=True)
    found = [row for each in batches for row in each.to_pylist()]
    if options.get("tags") is None and any(column.name == ERROR for column in columns):
        assert len([row for row in found if row[ERROR] is not None]) == len(told)
    return found


def offsets(found: list[dict[str, Any]]) -> list[int]:
    return [row["queueOffset"] for row in found]


def wrong(found: list[dict[str, Any]]) -> dict[int, bytes | None]:
    """The raw records kept aside, by offset."""
    return {row["queueOffset"]: row["body"] for row in found if row[ERROR] is not None}


DAMAGED = {
    "its CRC is": record(2, crc=5),
    "cannot be inflated": record(2, b"nonsense", sys_flag=1),
    "type 7": record(2, b"nonsense", sys_flag=1 | 0x700),
    "cannot be inflated with zstd": record(2, b"nonsense", sys_flag=1 | 0x200),
    "magic": record(2, magic=0xCBD43194),
    "longer than its buffer": record(2, body_size=-1),
    "longer": record(2, body_size=1 << 30),
    "do not add up": record(2, properties_size=9_999),
    "queue 9": record(2, queue_id=9),
    "topic 'T2'": record(2, topic=b"T2"),
    "not UTF-8": record(2, topic=b"\xff\xfe"),
    "out of order": record(0),
    "offset, 77, is out of order": record(77),
    "sysFlag 0x80": record(2, sys_flag=0x80),
    "length makes no sense": record(2, size=0),
    "length makes no": record(2, size=-5),
    "no sense": record(2, size=1 << 30),
    "record that cannot be decoded: its length makes no sense": record(2)[:60],
}


@WAYS
@pytest.mark.parametrize("text", DAMAGED)
def test_a_record_that_cannot_be_decoded_keeps_its_offset_and_its_bytes(
    way: str, text: str
) -> None:
    """The rows around it are as they would be without it."""
    raw = DAMAGED[text]
    answer = piece(record(0), record(1), raw, record(3), record(4), begin=0, end=5)
    found = permissive([piece(record(9), begin=9, end=10), answer], way)
    assert offsets(found) == [9, 0, 1, 2, 3, 4]
    assert wrong(found) == {2: raw}
    assert text in found[3][ERROR]
    assert [row["body"] for row in found if row[ERROR] is None] == [b"hello"] * 5


@WAYS
@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize("raw", [{"crc": 5}, {"size": 0}, {"body_size": -1}])
def test_the_first_and_the_last_record_keep_their_offsets_too(
    way: str, place: int, raw: Any
) -> None:
    """Where only one neighbour tells the place."""
    records = [record(at, **(raw if at == 10 + place else {})) for at in range(10, 15)]
    found = permissive([piece(*records, begin=10, end=15)], way)
    assert offsets(found) == [*range(10, 15)]
    assert wrong(found) == {10 + place: records[place]}


def test_what_can_be_read_of_an_undecodable_record_is_in_its_row() -> None:
    """A damaged body has a good head; of a record without shape its queue is known."""
    good_head = record(1, crc=5, flag=77, properties=b"TAGS\x01x\x02KEYS\x01k")
    no_shape = record(2, magic=0)
    head, shape = permissive([piece(good_head, no_shape, begin=1, end=3)], columns=WITH_ERROR)
    assert (head["tags"], head["keys"], head["flag"], head["bornHost"]) == (
        "x", "k", 77, "10.0.0.9:53211",
    )  # fmt: skip
    assert head["msgId"] == "0A00000100002A9F0000000000001001"
    known = {"topic", "brokerName", "queueId", "queueOffset", "body", ERROR}
    assert {name for name, value in shape.items() if value is not None} == known
    assert (shape["topic"], shape["brokerName"], shape["queueId"]) == QUEUE


@WAYS
def test_several_undecodable_records_in_a_row_each_keep_their_row(way: str) -> None:
    """Where their lengths are right each is one row; where not, the bytes are with the first."""
    spoiled = [record(1, magic=0), record(2, magic=0), record(3, crc=1), record(4, magic=0)]
    found = permissive([piece(record(0), *spoiled, record(5), begin=0, end=6)], way)
    assert offsets(found) == [*range(6)]
    assert wrong(found) == dict(zip(range(1, 5), spoiled, strict=True))
    torn = [record(1, size=5), record(2, size=5)]
    found = permissive([piece(record(0), *torn, record(3), begin=0, end=4)], way)
    assert offsets(found) == [0, 1, 2, 3]
    assert wrong(found) in ({1: torn[0], 2: torn[1]}, {1: b"".join(torn), 2: None})


@WAYS
def test_a_batch_that_cannot_be_taken_apart_keeps_all_its_offsets(way: str) -> None:
    """As many rows as it says it holds; the record is in the first, its good neighbours are out."""
    bad = batch(3, told=3, body=b"\x00\x00")
    answer = piece(batch(0), bad, record(6), begin=1, end=7)
    found = permissive([answer], way)
    assert offsets(found) == [*range(1, 7)]
    assert wrong(found) == {3: bad, 4: None, 5: None}
    assert [row["body"] for row in found if row[ERROR] is None] == [
        THREE[1].body, THREE[2].body, b"hello",
    ]  # fmt: skip


@WAYS
def test_rows_yielded_before_the_fault_are_not_yielded_again(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inflated bodies end batches early, so a fault may come when some are out already."""
    stored, bits = compress(bytes(1_000), "ZLIB")
    records = [record(at, stored, sys_flag=bits) for at in range(10)]
    records[7] = record(7, b"nonsense", sys_flag=1)
    monkeypatch.setattr(decoding, "BATCH_BODY_BYTES_MAX", 2_500)
    found = permissive([piece(*records, begin=0, end=10)], way)
    assert offsets(found) == [*range(10)]
    assert wrong(found) == {7: records[7]}


@WAYS
def test_offsets_that_are_missing_are_a_loss_in_every_mode(way: str) -> None:
    """What is not there is no matter of decoding."""
    answer = piece(record(1), record(2, crc=5), record(4), begin=1, end=5)
    with pytest.raises(DataLossError, match="3 to 3"):
        permissive([answer], way)
    assert offsets(permissive([answer], way, checks=Checks(body_crc=True))) == [1, 2, 4]


@WAYS
def test_behind_a_filter_what_nobody_can_read_is_kept(way: str) -> None:
    """Its tag is not known; a damaged body has one and is filtered by it."""
    records = [
        record(1, properties=b"TAGS\x01a"), record(4, magic=0), record(6, crc=5),
        record(8, crc=5, properties=b"TAGS\x01a"),
    ]  # fmt: skip
    found = permissive(
        [piece(*records, begin=1, end=20)], way, tags={"a"}, checks=Checks(body_crc=True)
    )
    assert offsets(found) == [1, 4, 8]
    assert wrong(found) == {4: records[1], 8: records[3]}


@WAYS
def test_records_behind_the_range_are_left_to_others(way: str) -> None:
    """An answer may go on where another pull begins."""
    answer = piece(record(1), record(2), record(3, magic=0), record(4, crc=1), begin=1, end=3)
    assert offsets(permissive([answer], way)) == [1, 2]


@WAYS
def test_only_what_is_read_can_be_undecodable(way: str) -> None:
    """Without the body nobody looks at it."""
    columns = tuple(column for column in SHORT if column.name != "body")
    found = permissive([piece(record(1, crc=5), begin=1, end=2)], way, columns)
    assert found == [{"queueOffset": 1, ERROR: None}]


@WAYS
def test_a_null_under_not_null_stays_an_error(way: str) -> None:
    """The schema promises Spark otherwise."""
    columns = (*SHORT, Column("flag", "flag", nullable=False))
    assert permissive([piece(record(1, crc=5), begin=1, end=2)], way, columns)[0]["flag"] == 0
    with pytest.raises(RemoteProtocolError, match=r"'flag' is NOT NULL.*offset 1"):
        permissive([piece(record(1, magic=0), begin=1, end=2)], way, columns)


def test_an_answer_of_garbage_is_bounded() -> None:
    """As many rows as records could have been in it; the offsets beyond are missing."""
    garbage = piece(b"\x00" * 200, begin=0, end=1 << 40)
    with pytest.raises(DataLossError, match=f"2 to {(1 << 40) - 1}"):
        permissive([garbage])
    many = piece(record(0, magic=0) * 20_000, begin=0, end=20_000)
    assert offsets(permissive([many])) == [*range(20_000)]


def test_lengths_that_all_reach_far_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record claims nearly all that is left: copying that every time would be gigabytes."""
    seen: list[int] = []

    def decode_messages(raw: bytes, broker_name: str = "") -> Any:
        seen.append(len(raw))
        return message_ext.decode_messages(raw, broker_name)

    monkeypatch.setattr(undecodable, "decode_messages", decode_messages)
    count = 2_000
    one = len(record(0))
    many = [record(at, size=max(0, (count - at) * one - 50)) for at in range(count)]
    found = permissive([piece(*many, begin=0, end=count)])
    assert offsets(found) == [*range(count)]
    assert sum(seen) <= count * one


flips = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=2)


@given(flips, st.booleans())
@settings(max_examples=200, deadline=None)
def test_whatever_bytes_are_flipped_every_offset_has_its_row(
    flipped: list[tuple[int, int]], wrapped: bool
) -> None:
    """The records nobody touched are as they were."""
    records = [record(at, b"body-%d" % at) for at in range(8)]
    if wrapped:
        records[3:6] = [batch(3)]
    raw = bytearray(b"".join(records))
    touched = set()
    for at, change in flipped:
        raw[at % len(raw)] ^= change
        touched.add(at % len(raw))
    found = permissive([piece(bytes(raw), begin=0, end=8)], checks=Checks(lambda *_: None, True))
    placed = [offset for offset in offsets(found) if offset is not None]
    assert placed == sorted(set(placed))
    clean: set[int] = set()
    at = 0
    for one in records:
        if not touched & set(range(at, at + len(one))) and b"INNER_NUM" not in one:
            clean.add(int.from_bytes(one[20:28], "big"))
        at += len(one)
    assert clean <= set(placed)
    # One may be among the bytes of a neighbour whose length was hit, never anything else.
    bodies = {row["queueOffset"]: row["body"] for row in found if row[ERROR] is None}
    assert {offset: bodies.get(offset, b"body-%d" % offset) for offset in clean} == {
        offset: b"body-%d" % offset for offset in clean
    }
    assert len(clean - set(bodies)) <= len(flipped)


def test_the_mode_is_failfast_or_permissive() -> None:
    """Spark's names, in any case; what would drop rows is refused with another way."""
    options = {"nameServer": "h:1", "topic": "T"}
    assert not read_options(options, "batch").permissive
    for text in ("PERMISSIVE", " permissive "):
        assert read_options({**options, "MODE": text}, "stream").permissive
    assert not read_options({**options, "mode": "FAILFAST"}, "batch").permissive
    with pytest.raises(ConfigurationError, match=r"'mode' is 'DROPMALFORMED'.*error IS NULL"):
        read_options({**options, "mode": "DROPMALFORMED"}, "batch")
    with pytest.raises(ConfigurationError, match="'mode' is 'lenient'; give failFast or perm"):
        is_permissive({"Mode": "lenient"})


def test_permissive_rows_can_be_told_from_others() -> None:
    """The default schema has the column then; a schema without it is refused."""
    permissive_options = read_options(
        {"nameServer": "h:1", "topic": "T", "mode": "permissive"}, "batch"
    )
    assert ddl(True) == f"{ddl()}, error string"
    with pytest.raises(ConfigurationError, match=r"no column 'error'.*Add 'error STRING'"):
        new_scan(permissive_options, ALL_COLUMNS)
    assert new_scan(permissive_options, SHORT).columns == SHORT
    assert choose([("Error", "string")]) == (Column(ERROR, "Error"),)
    with pytest.raises(ConfigurationError, match="'error' is null where"):
        choose([RequestedColumn(ERROR, "string", False)])


@WAYS
def test_the_column_is_null_where_nothing_is_wrong(way: str) -> None:
    """One schema for both modes."""
    found = permissive([piece(record(1), record(2), begin=1, end=3)], way)
    assert [row[ERROR] for row in found] == [None, None]


def test_the_first_of_each_queue_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A topic of them does not fill the log."""
    caplog.set_level(logging.DEBUG, "rocketstream.spark")
    aside = KeptAside()
    aside.add(QUEUE, 7, "why")
    aside.add(QUEUE, None, "why")
    aside.add(MessageQueue("T1", "broker-b", 0), 1, "why")
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "DEBUG", "WARNING"]
    assert "offset 7 of topic 'T1', broker 'broker-a', queue 3: why" in caplog.text

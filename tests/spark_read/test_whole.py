"""Answers held against what was asked: no row of another queue, none missing, none damaged."""

from __future__ import annotations

import pytest

from rocketstream.columns.records import Checks
from rocketstream.columns.table import Column
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.compression import compress
from tests.kits.records import QUEUE, WAYS, piece, record, rows

OFFSETS = (Column("queueOffset", "queueOffset"),)
BODIES = (Column("body", "body"),)


class Gaps(list[tuple[MessageQueue, int, int]]):
    """What was found missing."""

    def add(self, queue: MessageQueue, begin: int, end: int) -> None:
        self.append((queue, begin, end))


@WAYS
def test_offsets_missing_in_an_answer_are_named(way: str) -> None:
    """At its beginning, in the middle and at its end; the pieces around it are whole."""
    gaps = Gaps()
    holed = piece(*map(record, (12, 13, 16, 19)), begin=10, end=22)
    whole = [
        piece(*map(record, range(5)), end=5),
        piece(*map(record, range(22, 25)), begin=22, end=25),
    ]
    found = rows([whole[0], holed, whole[1]], way, columns=OFFSETS, checks=Checks(gaps.add))
    assert [row["queueOffset"] for row in found] == [*range(5), 12, 13, 16, 19, *range(22, 25)]
    assert gaps == [(QUEUE, 10, 12), (QUEUE, 14, 16), (QUEUE, 17, 19), (QUEUE, 20, 22)]


@WAYS
def test_an_answer_of_only_other_offsets_is_one_gap(way: str) -> None:
    """Records behind the piece are not its own."""
    gaps = Gaps()
    assert (
        rows([piece(*map(record, range(7, 9)), begin=3, end=6)], way, checks=Checks(gaps.add)) == []
    )
    assert gaps == [(QUEUE, 3, 6)]


@WAYS
def test_gaps_are_normal_where_nobody_asks(way: str) -> None:
    """A filter leaves offsets out."""
    assert len(rows([piece(record(4), record(9), end=20)], way)) == 2


@WAYS
@pytest.mark.parametrize(
    ("stray", "text"),
    [
        (record(9), r"asked from offset 10, answered offset 9"),
        (record(10, queue_id=4), r"answered with a message of queue 4"),
        (record(10, topic=b"T2"), r"answered with a message of topic 'T2'"),
        (record(10, topic=b"T10"), r"answered with a message of topic 'T10'"),
    ],
)
def test_a_row_of_another_place_is_refused(way: str, stray: bytes, text: str) -> None:
    """Whatever the broker's reason: it would be a row in the wrong place."""
    pieces = [piece(record(1)), piece(stray, record(11), begin=10)]
    with pytest.raises(
        RemoteProtocolError, match=rf"topic 'T1', broker 'broker-a', queue 3.*{text}"
    ):
        rows(pieces, way, columns=OFFSETS)


@WAYS
def test_a_body_that_does_not_match_its_crc_is_refused(way: str) -> None:
    """Never a silently wrong row; where the body is not read nothing is wrong."""
    pieces = [piece(record(1), record(2, crc=5), record(3))]
    with pytest.raises(
        RemoteProtocolError,
        match=r"offset 2 of topic 'T1', broker 'broker-a', queue 3 is damaged.*checkBodyCrc=false",
    ):
        rows(pieces, way, columns=BODIES, checks=Checks(body_crc=True))
    assert len(rows(pieces, way, columns=BODIES, checks=Checks(body_crc=False))) == 3
    assert len(rows(pieces, way, columns=OFFSETS, checks=Checks(body_crc=True))) == 3


@WAYS
def test_the_crc_is_of_the_stored_body(way: str) -> None:
    """Compressed bodies are checked before they are inflated."""
    stored, bits = compress(b"hello" * 100, "ZLIB")
    pieces = [piece(record(0, stored, sys_flag=bits), record(1, b""))]
    found = rows(pieces, way, columns=BODIES, checks=Checks(body_crc=True))
    assert [row["body"] for row in found] == [b"hello" * 100, b""]

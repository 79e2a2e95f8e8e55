"""Compressed bodies: read without any extra, bounded, and errors that say which message it is."""

from __future__ import annotations

import struct
import sys
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from rocketstream.columns import records as checking
from rocketstream.columns.table import Column
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.compression import compress
from tests.kits.records import WAYS, piece, record, rows

BODIES = (Column("body", "body"),)
FLAGS = {
    "lz4": MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4,
    "zstd": MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD,
}
CODECS = pytest.mark.parametrize("codec", ["lz4", "zstd"])


def stored(codec: str, body: bytes) -> bytes:
    """A body as a producer that streams it writes it: the frame does not tell its size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(body)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


@WAYS
@CODECS
def test_bodies_are_inflated_without_any_extra(
    way: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow, which Spark needs anyway, knows both codecs."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    texts = [b"", b"hello" * 1_000, bytes(3_000_000)]
    records = [
        record(at, stored(codec, text), sys_flag=FLAGS[codec]) for at, text in enumerate(texts)
    ]
    assert [row["body"] for row in rows([piece(*records)], way, columns=BODIES)] == texts


@WAYS
@CODECS
def test_bodies_of_other_writers_are_inflated_too(way: str, codec: str) -> None:
    """What this package's producers send; their frames differ in what their heads tell."""
    packed, flag = compress(b"hello" * 1_000, codec.upper())
    found = rows([piece(record(0, packed, sys_flag=flag))], way, columns=BODIES)
    assert found == [{"body": b"hello" * 1_000}]


@WAYS
@CODECS
def test_a_codec_that_is_missing_is_named_with_the_message(
    way: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pyarrow built without it, and no extra: what to install, and which offset it was."""
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(checking, "pa", mock.Mock(Codec=mock.Mock(is_available=lambda name: False)))
    bad = piece(record(1), record(2, stored(codec, b"x" * 50), sys_flag=FLAGS[codec]))
    package = {"lz4": "lz4", "zstd": "zstandard"}[codec]
    with pytest.raises(
        NotSupportedError,
        match=rf"offset 2 of topic 'T1', broker 'broker-a', queue 3 .*{codec}.*package {package}.*"
        r"rocketstream\[compression\]",
    ):
        rows([bad], way, columns=BODIES)


@WAYS
@pytest.mark.parametrize(
    ("body", "flag", "text"),
    [
        (stored("lz4", b"x" * 500)[:-3], FLAGS["lz4"], "lz4"),
        (stored("zstd", b"x" * 500)[:-3], FLAGS["zstd"], "zstd"),
        (b"nonsense", FLAGS["lz4"], "lz4"),
        (b"nonsense", FLAGS["zstd"], "zstd"),
        (b"", FLAGS["zstd"], "zstd"),
        (b"nonsense", 1, "zlib"),
        (b"nonsense", 1 | 0x700, "type 7"),
    ],
)
def test_a_body_that_cannot_be_inflated_is_named(
    way: str, body: bytes, flag: int, text: str
) -> None:
    """Offset, queue and codec, so that somebody can look at it."""
    with pytest.raises(RemoteProtocolError, match=rf"offset 7 of topic 'T1'.*queue 3.*{text}"):
        rows([piece(record(7, body, sys_flag=flag))], way, columns=BODIES)


@WAYS
@CODECS
def test_a_body_that_inflates_without_end_is_refused(way: str, codec: str) -> None:
    """The bound of the other codecs."""
    bomb = stored(codec, bytes(100_000))
    with (
        mock.patch.object(checking, "BODY_BYTES_MAX", 65_536),
        pytest.raises(RemoteProtocolError, match=r"offset 0 .*more than 65536 bytes"),
    ):
        rows([piece(record(0, bomb, sys_flag=FLAGS[codec]))], way, columns=BODIES)


def test_the_packed_head_of_a_record_holds_the_flags() -> None:
    """The fixtures above mean what they say."""
    made: Any = record(0, b"", sys_flag=FLAGS["zstd"])
    assert struct.unpack_from(">i", made, 36) == (0x201,)

"""Stored records made from the layout alone, and decoding them in one of the two ways."""

from __future__ import annotations

import struct
import zlib
from typing import Any
from unittest import mock

import pytest

from rocketstream.columns import decode as decoding
from rocketstream.columns.arrays import arrow_schema
from rocketstream.columns.decode import decode
from rocketstream.columns.layout import Piece
from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.model import MessageQueue
from rocketstream.protocol.record import BatchItem, encode_batch

QUEUE = MessageQueue("T1", "broker-a", 3)


def record(
    offset: int = 0,
    body: bytes = b"hello",
    properties: bytes = b"TAGS\x01TagA",
    topic: bytes = b"T1",
    **fields: Any,
) -> bytes:
    """A record built from the layout alone, so that it can also be wrong."""
    sys_flag = fields.get("sys_flag", 0)
    born = bytes(range(16)) if sys_flag & 0x10 else b"\x0a\x00\x00\x09"
    store = bytes(range(16, 32)) if sys_flag & 0x20 else b"\x0a\x00\x00\x01"
    wide = fields.get("wide_topic", len(topic) > 127)
    rest = struct.pack(
        ">iiiqqiq", fields.get("crc", zlib.crc32(body) & 0x7FFFFFFF), fields.get("queue_id", 3),
        fields.get("flag", 0), offset,
        fields.get("physical", 4096 + offset), sys_flag, fields.get("born_ms", 1_700_000_000_000),
    )  # fmt: skip
    rest += born + struct.pack(">i", fields.get("port", 53211))
    rest += struct.pack(">q", 1_700_000_000_005) + store + struct.pack(">i", 10911)
    rest += struct.pack(">iqi", fields.get("reconsume", 0), 0, fields.get("body_size", len(body)))
    rest += body + struct.pack(">h" if wide else ">B", len(topic)) + topic
    rest += struct.pack(">H", fields.get("properties_size", len(properties))) + properties
    magic = fields.get("magic", 0xDAA320AB if wide else 0xDAA320A7)
    return struct.pack(">iI", fields.get("size", len(rest) + 8), magic) + rest


def piece(*records: bytes, begin: int = 0, end: int = 1 << 62, topic: str = "T1") -> Piece:
    return Piece(MessageQueue(topic, "broker-a", 3), begin, end, b"".join(records))


def rows(pieces: list[Piece], way: str, **options: Any) -> list[dict[str, Any]]:
    """Decode by one of the two ways and return plain rows."""
    with mock.patch.object(decoding, "VECTOR_RECORDS_MIN", 0 if way == "vector" else 10**9):
        columns = options.pop("columns", ALL_COLUMNS)
        batches = list(decode(pieces, columns, **options))
    for batch in batches:
        assert batch.schema.equals(arrow_schema(columns))
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


WAYS = pytest.mark.parametrize("way", ["vector", "plain"])

WRAPPED = 0xC0
THREE = [
    BatchItem(7, b"one", b"TAGS\x01A\x02KEYS\x01k1\x02UNIQ_KEY\x01ID1"),
    BatchItem(8, b"", b""),
    BatchItem(9, b"three" * 9, b"TAGS\x01B\x02"),
]


def batch(offset: int, items: list[BatchItem] = THREE, **fields: Any) -> bytes:
    """A record that holds several messages, as SendMessageProcessor of 5.x has it stored."""
    told = f"TAGS\x01outer\x02INNER_NUM\x01{fields.pop('told', len(items))}\x02".encode()
    flags = fields.pop("sys_flag", WRAPPED)
    body = fields.pop("body", encode_batch(items))
    return record(offset, body, told, sys_flag=flags, **fields)

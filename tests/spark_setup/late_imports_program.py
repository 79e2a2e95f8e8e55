"""A task's work in a process of its own, which ends badly if it imports what ``prepare`` did not.

Law: no test library, which would have imported half of it; all of ours comes before ``prepare``.
"""

from __future__ import annotations

import socket
import sys

from rocketstream.columns.decode import decode_permissive
from rocketstream.columns.layout import Piece
from rocketstream.columns.table import ALL_COLUMNS, ERROR, Column
from rocketstream.model import MessageQueue
from rocketstream.protocol.compression import compress
from rocketstream.protocol.record import RecordFields, encode_batch, encode_record
from rocketstream.spark.executor import fetch
from rocketstream.spark.worker import prepare
from rocketstream.transport.blocking_connection import BlockingConnection

QUEUE = MessageQueue("T1", "broker-a", 3)
WRAPPED = 0xC0


def record(
    offset: int, body: bytes = b"x", text: str = "TAGS\x01a", flags: int = 0, host: str = "10.0.0.9"
) -> bytes:
    """One stored record."""
    place = (host, 9)
    fields = RecordFields("T1", 3, 0, flags, 1, place, 2, place, 0, 0, body, text, offset, offset)
    return bytes(encode_record(fields))


def task() -> int:
    """Decode what there is to decode, and connect; return the rows."""
    packed = [compress(b"x" * 100, kind) for kind in ("ZLIB", "LZ4", "ZSTD")]
    records = [record(at, body, flags=flags) for at, (body, flags) in enumerate(packed)]
    records += [record(3, host="2001:db8::1"), record(4, text="a\x01\x02b\x01ü")]
    records += [record(5, encode_batch([(0, b"1", b""), (0, b"2", b"")]), flags=WRAPPED)]
    records += [record(7, b"no zlib", flags=1)]
    few = Piece(QUEUE, 0, 8, b"".join(records))
    many = Piece(QUEUE, 8, 308, b"".join(record(at) for at in range(8, 308)))
    columns = (*ALL_COLUMNS, Column(ERROR, ERROR))
    count = 0
    for pieces in ([few, many], [few], [many]):
        for tags in (None, {"a"}):
            count += sum(each.num_rows for each in decode_permissive(pieces, columns, tags))
    with socket.create_server(("127.0.0.1", 0)) as server:
        BlockingConnection(f"localhost:{server.getsockname()[1]}").close()
    return count


assert fetch.read_rows is not None
prepare()
loaded = set(sys.modules)
assert task() > 1_200
late = sorted(set(sys.modules) - loaded)
assert not late, f"imported after prepare(): {late}"

"""Stored records to Arrow: one function, two ways, the same rows.

Pure: bytes in, record batches out. Only the columns asked for are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.columns.arrays import (
    VectorColumns,
    arrow_schema,
    plain_batches,
    refuse_nulls,
    typed,
)
from rocketstream.columns.layout import Layout, Piece, count_records, disordered, too_early
from rocketstream.columns.records import (
    NO_CHECKS,
    Checks,
    check_layout,
    check_messages,
    is_wrapped,
    unwrapped,
)
from rocketstream.columns.table import Column
from rocketstream.columns.undecodable import Undecodable, sifted
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.protocol.message_ext import MessageExt, decode_messages

VECTOR_RECORDS_MIN: Final = 200
"""Below this many records the plain loop is faster: numpy costs 0.5 to 1 ms at first.
"""
BATCH_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A record batch ends at this size: inflated bodies can be a thousand times as large as the pulled
ones."""


def decode(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None = None,
    checks: Checks = NO_CHECKS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records of ``pieces`` as record batches, in order.

    Usually yields one batch; more when inflated bodies would make it too large; none without
    records.

    Args:
        pieces: replies of pulls; records outside their ranges are left out.
        columns: the columns to decode, in this order.
        tags: exact tags to keep, None for all; brokers compare only hashes (C-382).
        checks: what else to check of the records.

    Raises:
        RemoteProtocolError: the bytes are not whole, consistent records of the right queue.
        NotSupportedError: a body is compressed by a codec that is not installed.
        DataLossError: offsets are missing, and ``checks.gap`` raises it.
    """
    enough = VECTOR_RECORDS_MIN
    for piece in pieces:
        enough -= count_records(piece.body, enough)
        if enough <= 0:
            yield from _decode_vectors(pieces, columns, tags, checks)
            return
    yield from _decode_plain(pieces, columns, tags, checks)


def decode_permissive(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None = None,
    checks: Checks = NO_CHECKS,
    tell: Callable[[Undecodable], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield as ``decode`` does, but a record that cannot be decoded as a row with its ``error``.

    Its ``body`` is the whole record; unknown columns are null, and every offset has its row. An
    answer with such a record is decoded one by one, some 20 us a row.

    Args:
        pieces, columns, tags, checks: as for ``decode``.
        tell: called for each record that cannot be decoded.

    Raises:
        DataLossError: offsets are missing, and ``checks.gap`` raises it.
        RemoteProtocolError: a null in a column that is NOT NULL in the schema.
    """
    done = 0
    try:
        for batch in decode(pieces, columns, tags, checks):
            done += batch.num_rows
            yield batch
    except (RemoteProtocolError, NotSupportedError):
        # All rows yielded so far came before the first bad record.
        for batch in _decode_sifted(pieces, columns, tags, checks, tell):
            rest = batch.slice(min(done, batch.num_rows))
            done -= batch.num_rows - rest.num_rows
            if rest.num_rows:
                yield rest


def _decode_sifted(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None,
    checks: Checks,
    tell: Callable[[Undecodable], None] | None,
) -> Iterator[pa.RecordBatch]:
    bodies = any(column.name == "body" for column in columns)
    rows = [row for piece in pieces for row in sifted(piece, checks, bodies)]
    for row in rows:
        if tell is not None and type(row) is Undecodable:
            tell(row)
    yield from plain_batches(rows, columns, tags, BATCH_BODY_BYTES_MAX)


def _decode_vectors(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None,
    checks: Checks,
) -> Iterator[pa.RecordBatch]:
    layout = Layout(pieces)
    if layout.wrapped:
        for group in unwrapped(pieces, checks.body_crc):
            yield from decode(group, columns, tags, checks)
        return
    check_layout(layout, pieces, checks, any(column.name == "body" for column in columns))
    if not len(layout):
        return
    maker = VectorColumns(layout, pieces, BATCH_BODY_BYTES_MAX)
    made = {c.name: maker.column(c.name) for c in columns if c.name != "body"}
    keep = None if tags is None else _with_tags(made.get("tags") or maker.column("tags"), tags)
    for column in columns:
        if not column.nullable:
            refuse_nulls(column, made.get(column.name), keep, maker.place)
    schema = arrow_schema(columns)
    if "body" not in (column.name for column in columns):
        yield from _filtered(_batch(made, columns, schema), keep)
        return
    for rows, body in maker.bodies():
        count = rows.stop - rows.start
        part = {name: array.slice(rows.start, count) for name, array in made.items()}
        mask = None if keep is None else keep.slice(rows.start, count)
        yield from _filtered(_batch(part | {"body": body}, columns, schema), mask)


def _batch(made: dict[str, Any], columns: Sequence[Column], schema: Any) -> pa.RecordBatch:
    arrays = [typed(made[column.name], schema.field(i).type) for i, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_tags(column: Any, tags: Collection[str]) -> Any:
    return pc.is_in(column, value_set=pa.array(sorted(tags), pa.string()))


def _filtered(batch: pa.RecordBatch, keep: Any) -> Iterator[pa.RecordBatch]:
    if keep is not None and not pc.all(keep).as_py():
        batch = batch.filter(keep)
    if batch.num_rows:
        yield batch


def _decode_plain(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None,
    checks: Checks,
) -> Iterator[pa.RecordBatch]:
    with_body = any(column.name == "body" for column in columns)
    found = [decode_messages(piece.body, piece.queue.broker_name) for piece in pieces]
    if any(is_wrapped(message.sys_flag) for messages in found for message in messages):
        for group in unwrapped(pieces, checks.body_crc):
            yield from decode(group, columns, tags, checks)
        return
    rows: list[MessageExt] = []
    for piece, messages in zip(pieces, found, strict=True):
        part = _wanted(piece, messages)
        check_messages(piece, part, checks, with_body)
        rows += part
    yield from plain_batches(rows, columns, tags, BATCH_BODY_BYTES_MAX)


def _wanted(piece: Piece, messages: list[MessageExt]) -> list[MessageExt]:
    before = -1
    if messages and messages[0].queue_offset < piece.begin:
        raise too_early(piece, messages[0].queue_offset)
    for message in messages:
        if message.queue_offset <= before:
            raise disordered(piece, message.queue_offset)
        before = message.queue_offset
    return [m for m in messages if m.queue_offset < piece.end]

"""Stored records to Arrow: one function, two ways, the same rows.

Law: bytes in, record batches out; no Spark, no sockets. Only the columns asked for are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.spark.arrow.bodies import inflate_body
from rocketstream.spark.arrow.layout import Layout, Piece, count_records, disordered, too_early
from rocketstream.spark.arrow.properties import MAP, properties_of
from rocketstream.spark.arrow.vector import TIMESTAMP, TIMESTAMP_MS_MAX, VectorColumns
from rocketstream.spark.arrow.whole import NO_CHECKS, Checks, check_layout, check_messages
from rocketstream.spark.columns import COLUMNS, FROM_PROPERTIES, Column
from rocketstream.spark.losses import described

VECTOR_RECORDS_MIN: Final = 200
"""Below this many records the plain loop is faster: numpy costs 0.5 to 1 ms before the first."""
BATCH_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A record batch ends here: inflated bodies can be a thousand times what was pulled."""

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP,
    "map<string,string>": MAP,
}


def decode(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None = None,
    checks: Checks = NO_CHECKS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records of ``pieces`` as record batches, in order.

    Usually one batch; more when inflated bodies would make it too large; none without records.

    Args:
        pieces: replies of pulls; records outside their ranges are left out.
        columns: what to decode, in this order.
        tags: exact tags to keep, None for all; brokers compare only hashes (C-382).
        checks: what else to hold the records against.

    Raises:
        RemoteProtocolError: bytes that are not whole, consistent records of the right queue.
        NotSupportedError: a body compressed by a codec nobody here knows, or a stored batch.
        DataLossError: offsets are missing, and ``checks.gap`` raises it.
    """
    enough = VECTOR_RECORDS_MIN
    for piece in pieces:
        enough -= count_records(piece.body, enough)
        if enough <= 0:
            yield from _decode_vectors(pieces, columns, tags, checks)
            return
    yield from _decode_plain(pieces, columns, tags, checks)


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Return the Arrow schema of a choice of columns, exactly as Spark wants it."""
    return pa.schema(
        [pa.field(column.label, _type_of(column), column.nullable) for column in columns]
    )


def _type_of(column: Column) -> Any:
    kind = COLUMNS[column.name]
    if kind.startswith("map") and not column.values_nullable:
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return _TYPES[kind]


def _decode_vectors(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None,
    checks: Checks,
) -> Iterator[pa.RecordBatch]:
    layout = Layout(pieces)
    check_layout(layout, pieces, checks, any(column.name == "body" for column in columns))
    if not len(layout):
        return
    maker = VectorColumns(layout, pieces, BATCH_BODY_BYTES_MAX)
    made = {c.name: maker.column(c.name) for c in columns if c.name != "body"}
    keep = None if tags is None else _with_tags(made.get("tags") or maker.column("tags"), tags)
    for column in columns:
        if not column.nullable:
            _refuse_nulls(column, made.get(column.name), keep, maker.place)
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
    arrays = [_typed(made[column.name], schema.field(i).type) for i, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(array: Any, kind: Any) -> Any:
    """Return an array under the exact type: a map whose values may not be null is another one."""
    if array.type.equals(kind) or not pa.types.is_map(kind):
        return array
    return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, kind)


def _refuse_nulls(
    column: Column, array: Any, keep: Any, place: Callable[[int], tuple[MessageQueue, int]]
) -> None:
    """Refuse nulls where the user's schema says there are none; Spark reads anything from them."""
    if array is None or not array.null_count:
        return
    nulls = array.is_null() if keep is None else pc.and_(array.is_null(), keep)
    row = pc.index(nulls, True).as_py()
    if row >= 0:
        queue, offset = place(row)
        raise RemoteProtocolError(
            f"column {column.label!r} is NOT NULL in the schema given, but the message at offset "
            f"{offset} of {described(queue)} has none; leave NOT NULL out",
            queue=tuple(queue),
            offset=offset,
        )


def _with_tags(column: Any, tags: Collection[str]) -> Any:
    return pc.is_in(column, value_set=pa.array(sorted(tags), pa.string()))


def _filtered(batch: pa.RecordBatch, keep: Any) -> Iterator[pa.RecordBatch]:
    if keep is not None and not pc.all(keep).as_py():
        batch = batch.filter(keep)
    if batch.num_rows:
        yield batch


# --- the plain loop -------------------------------------------------------------------------------


def _decode_plain(
    pieces: Sequence[Piece],
    columns: Sequence[Column],
    tags: Collection[str] | None,
    checks: Checks,
) -> Iterator[pa.RecordBatch]:
    wanted = {column.name for column in columns}
    with_body = "body" in wanted
    messages = []
    for piece in pieces:
        part = _messages(piece)
        check_messages(piece, part, checks, with_body)
        messages += part
    if not messages:
        return
    schema = arrow_schema(columns)
    tables = None
    if tags is not None or wanted & FROM_PROPERTIES:
        tables = [properties_of(message.properties_bytes) for message in messages]
    if tags is not None and tables is not None:
        kept = [i for i, table in enumerate(tables) if table.get("TAGS") in tags]
        messages, tables = [messages[i] for i in kept], [tables[i] for i in kept]
    for rows, bodies in _runs(messages, with_body):
        part = messages[rows]
        columns_of = _PlainColumns(part, tables[rows] if tables else [], bodies)
        arrays = [
            pa.array(columns_of.values(column.name), schema.field(i).type)
            for i, column in enumerate(columns)
        ]
        for column, array in zip(columns, arrays, strict=True):
            if not column.nullable:
                _refuse_nulls(column, array, None, columns_of.place)
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _place(message: MessageExt) -> tuple[MessageQueue, int]:
    return message.message_queue, message.queue_offset


def _messages(piece: Piece) -> list[MessageExt]:
    messages = decode_messages(piece.body, piece.queue.broker_name)
    before = -1
    if messages and messages[0].queue_offset < piece.begin:
        raise too_early(piece, messages[0].queue_offset)
    for message in messages:
        if message.queue_offset <= before:
            raise disordered(piece, message.queue_offset)
        before = message.queue_offset
    return [m for m in messages if m.queue_offset < piece.end]


def _runs(messages: Sequence[MessageExt], with_body: bool) -> Iterator[tuple[slice, list[bytes]]]:
    """Yield runs of messages with their bodies, a new run whenever inflating has made enough."""
    if not with_body:
        yield slice(0, len(messages)), []
        return
    first, total = 0, 0
    bodies: list[bytes] = []
    for row, message in enumerate(messages):
        body = message.stored_body
        if message.sys_flag & 1:
            body = inflate_body(body, message.sys_flag, *_place(message))
            total += len(body)
        bodies.append(body)
        if total >= BATCH_BODY_BYTES_MAX:
            yield slice(first, row + 1), bodies
            first, total, bodies = row + 1, 0, []
    if bodies:
        yield slice(first, len(messages)), bodies


class _PlainColumns:
    """Values of messages by column, as lists."""

    def __init__(
        self,
        messages: Sequence[MessageExt],
        tables: Sequence[dict[str, str]],
        bodies: Sequence[bytes],
    ) -> None:
        self._messages = messages
        self._tables = tables
        self._bodies = bodies

    def place(self, row: int) -> tuple[MessageQueue, int]:
        """Return where a message stands."""
        return _place(self._messages[row])

    def values(self, name: str) -> list[Any]:
        if name in FROM_PROPERTIES:
            return self._from_properties(name)
        if name == "body":
            return list(self._bodies)
        read = _READERS[name]
        return [read(message) for message in self._messages]

    def _from_properties(self, name: str) -> list[Any]:
        if name == "properties":
            return [list(table.items()) for table in self._tables]
        if name == "msgId":
            return [
                table.get("UNIQ_KEY") or message.offset_msg_id
                for table, message in zip(self._tables, self._messages, strict=True)
            ]
        return [table.get(name.upper()) for table in self._tables]


def _micros(millis: int) -> int:
    return max(-TIMESTAMP_MS_MAX, min(TIMESTAMP_MS_MAX, millis)) * 1000


_READERS: Final[dict[str, Callable[[MessageExt], Any]]] = {
    "topic": lambda m: m.topic,
    "brokerName": lambda m: m.broker_name,
    "queueId": lambda m: m.queue_id,
    "queueOffset": lambda m: m.queue_offset,
    "flag": lambda m: m.flag,
    "bornTimestamp": lambda m: _micros(m.born_timestamp),
    "storeTimestamp": lambda m: _micros(m.store_timestamp),
    "bornHost": lambda m: m.born_host,
    "storeHost": lambda m: m.store_host,
    "reconsumeTimes": lambda m: m.reconsume_times,
    "sysFlag": lambda m: m.sys_flag,
    "commitLogOffset": lambda m: m.commit_log_offset,
}

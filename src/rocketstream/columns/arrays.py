"""The columns of records: their Arrow schema, exactly Spark's, and how each is built.

Pure: numpy and Arrow for many records at once, plain loops for a few and for records that cannot be
decoded; both give the same rows. The records were checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.columns.layout import Array, Layout, Piece, gather
from rocketstream.columns.properties import Properties, properties_of, table_of
from rocketstream.columns.records import inflate_body
from rocketstream.columns.table import ERROR, EVERY_PROPERTY, TABLE, Column, described
from rocketstream.columns.undecodable import Undecodable
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.record import unpack_host

TIMESTAMP: Final = pa.timestamp("us", "UTC")
MAP: Final = pa.map_(pa.string(), pa.string())

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP,
    "map<string,string>": MAP,
}
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_COMPRESSED: Final = 1

Row = MessageExt | Undecodable


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Return the Arrow schema of the chosen columns, exactly as Spark expects it."""
    return pa.schema(
        [pa.field(column.label, _type_of(column), column.nullable) for column in columns]
    )


def typed(array: Any, kind: Any) -> Any:
    """Return an array with the exact type: a map without null values is a type of its own."""
    if array.type.equals(kind) or not pa.types.is_map(kind):
        return array
    return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, kind)


def refuse_nulls(
    column: Column,
    array: Any,
    keep: Any,
    place: Callable[[int], tuple[MessageQueue, int | None]],
) -> None:
    """Refuse nulls where the user's schema is NOT NULL; Spark would read anything from them.

    Args:
        column: the column.
        array: its values, None if there are none.
        keep: which rows will stay, None for all.
        place: returns the queue and offset of a row.

    Raises:
        RemoteProtocolError: there is a null; the error names the first.
    """
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


def _type_of(column: Column) -> Any:
    kind = TABLE[column.name].kind
    if kind.startswith("map") and not column.values_nullable:
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return _TYPES[kind]


# --- of many records at once ----------------------------------------------------------------------


class VectorColumns:
    """Makes Arrow columns of the records of one layout.

    Args:
        layout: where the records are.
        pieces: the pulls they came from.
        body_bytes_max: after this many inflated bytes a new run of bodies begins.
    """

    def __init__(self, layout: Layout, pieces: Sequence[Piece], body_bytes_max: int) -> None:
        self._layout = layout
        self._pieces = pieces
        self._body_bytes_max = body_bytes_max
        self._properties: Properties | None = None

    def column(self, name: str) -> Any:
        """Return one column by name, except ``body``."""
        maker = _MAKERS.get(name)
        if maker is not None:
            return maker(self)
        source = TABLE[name]
        if source.property is not None:
            return self.properties().value_column(source.property)
        values = self._layout.fields[source.field or name]
        return _timestamps(values) if source.kind == "timestamp" else pa.array(values)

    def topic(self) -> Any:
        """Topic as stored."""
        layout = self._layout
        size = int(layout.topic_size[0])
        if (layout.topic_size == size).all():
            texts = layout.packed(layout.topic, size) if size else None
            if texts is None or (texts == texts[0]).all():
                return _repeated(b"" if texts is None else texts[0].tobytes(), len(layout))
        binary = gather(layout.bytes, layout.topic, layout.topic_size)
        try:
            return binary.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise RemoteProtocolError(f"topic of a message is not UTF-8: {error}") from None

    def broker_name(self) -> Any:
        """The broker each record was pulled from."""
        names = [piece.queue.broker_name for piece in self._pieces]
        if len(set(names)) == 1:
            return pa.repeat(pa.scalar(names[0], pa.string()), len(self._layout))
        return pa.array(names, pa.string()).take(pa.array(self._layout.piece))

    def host(self, at: Array, wide: Array) -> Any:
        """Return packed hosts as ``ip:port``; few differ, so each is formatted once."""
        layout = self._layout
        if wide.any():
            raw = layout.bytes
            sizes = np.where(wide, 20, 8)
            packed = [
                raw[start : start + size].tobytes()
                for start, size in zip(at.tolist(), sizes.tolist(), strict=True)
            ]
            texts = {host: _host_text(host) for host in set(packed)}
            return pa.array([texts[host] for host in packed], pa.string())
        numbers = layout.number(at)
        if (numbers == numbers[0]).all():
            return _repeated(_host_text(int(numbers[0]).to_bytes(8, "big")).encode(), len(layout))
        distinct, which = np.unique(numbers, return_inverse=True)
        names = [_host_text(number.to_bytes(8, "big")) for number in distinct.tolist()]
        return pa.array(names, pa.string()).take(pa.array(which))

    def properties(self) -> Properties:
        """All properties, split once."""
        if self._properties is None:
            self._properties = table_of(self._layout)
        return self._properties

    def message_id(self) -> Any:
        """The sender's id, or the broker's where the sender set none."""
        given = self.properties().value_column("UNIQ_KEY")
        if not given.null_count:
            return given
        layout = self._layout
        missing = np.flatnonzero(given.is_null().to_numpy(zero_copy_only=False))
        made: list[str | None] = [None] * len(layout)
        for row in missing.tolist():
            start = int(layout.store_host[row])
            host = layout.bytes[start : start + (20 if layout.wide_store[row] else 8)].tobytes()
            offset = int(layout.fields["commitLogOffset"][row]) & 0xFFFFFFFFFFFFFFFF
            made[row] = f"{host.hex().upper()}{offset:016X}"
        return pc.coalesce(given, pa.array(made, pa.string()))

    def bodies(self) -> Iterator[tuple[slice, Any]]:
        """Yield runs of rows with their bodies, a new run whenever inflating has made enough."""
        layout = self._layout
        packed = (layout.fields["sysFlag"] & _COMPRESSED) != 0
        if not packed.any():
            yield slice(0, len(layout)), gather(layout.bytes, layout.body, layout.body_size)
            return
        first, inflated, total = 0, [], 0
        for row in np.flatnonzero(packed).tolist():
            inflated.append(self._inflate(row))
            total += len(inflated[-1])
            if total >= self._body_bytes_max:
                yield self._run(first, row + 1, packed, inflated)
                first, inflated, total = row + 1, [], 0
        if first < len(layout):
            yield self._run(first, len(layout), packed, inflated)

    def place(self, row: int) -> tuple[MessageQueue, int]:
        """Return the queue and offset of a record."""
        layout = self._layout
        return self._pieces[int(layout.piece[row])].queue, int(layout.fields["queueOffset"][row])

    def _inflate(self, row: int) -> bytes:
        start = int(self._layout.body[row])
        stored = self._layout.bytes[start : start + int(self._layout.body_size[row])].tobytes()
        return inflate_body(stored, int(self._layout.fields["sysFlag"][row]), *self.place(row))

    def _run(
        self, first: int, last: int, packed: Array, inflated: Sequence[bytes]
    ) -> tuple[slice, Any]:
        rows = slice(first, last)
        starts = self._layout.body[rows].copy()
        sizes = self._layout.body_size[rows].copy()
        moved = packed[rows]
        lengths = np.fromiter((len(body) for body in inflated), np.int64, len(inflated))
        sizes[moved] = lengths
        starts[moved] = np.cumsum(lengths) - lengths
        extra = b"".join(inflated)
        return rows, gather(self._layout.bytes, starts, sizes, extra, moved)


def _timestamps(millis: Array) -> Any:
    """Return times in Spark's microseconds."""
    millis = np.clip(millis, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX)
    return pa.Array.from_buffers(TIMESTAMP, len(millis), [None, pa.py_buffer(millis * 1000)])


def _host_text(packed: bytes) -> str:
    host, port = unpack_host(packed)
    return f"{host}:{port}"


def _repeated(text: bytes, count: int) -> Any:
    try:
        return pa.repeat(pa.scalar(text.decode(), pa.string()), count)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"topic of a message is not UTF-8: {error}") from None


# Columns that are neither one property nor one fixed field of a record.
_MAKERS: Final[dict[str, Callable[[VectorColumns], Any]]] = {
    "topic": VectorColumns.topic,
    "brokerName": VectorColumns.broker_name,
    "bornHost": lambda c: c.host(c._layout.born_host, c._layout.wide_born),
    "storeHost": lambda c: c.host(c._layout.store_host, c._layout.wide_store),
    "properties": lambda c: c.properties().map_column(),
    "msgId": VectorColumns.message_id,
    ERROR: lambda c: pa.nulls(len(c._layout), pa.string()),
}

# --- record by record -----------------------------------------------------------------------------


def plain_batches(
    rows: Sequence[Row],
    columns: Sequence[Column],
    tags: Collection[str] | None,
    body_bytes_max: int,
) -> Iterator[pa.RecordBatch]:
    """Yield messages as record batches, a new one whenever inflated bodies have made enough.

    Raises:
        RemoteProtocolError: a body cannot be inflated, or there is a null in a NOT NULL column.
        NotSupportedError: a body is compressed by a codec that is not installed.
    """
    schema = arrow_schema(columns)
    wanted = {column.name for column in columns}
    tables: list[dict[str, str] | None] | None = None
    if tags is not None or any(TABLE[name].property for name in wanted):
        tables = [_table(row) for row in rows]
    if tags is not None and tables is not None:
        # The tag of a record that cannot be read is unknown too: the record is kept.
        kept = [i for i, table in enumerate(tables) if table is None or table.get("TAGS") in tags]
        rows, tables = [rows[i] for i in kept], [tables[i] for i in kept]
    for run, bodies in _runs(rows, "body" in wanted, body_bytes_max):
        values = _Values(rows[run], tables[run] if tables else [], bodies)
        arrays = [
            pa.array(values.of(column.name), schema.field(i).type)
            for i, column in enumerate(columns)
        ]
        for column, array in zip(columns, arrays, strict=True):
            if not column.nullable:
                refuse_nulls(column, array, None, values.place)
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _table(row: Row) -> dict[str, str] | None:
    text = row.properties_bytes
    return None if text is None else properties_of(text)


def _runs(
    rows: Sequence[Row], with_body: bool, bytes_max: int
) -> Iterator[tuple[slice, list[bytes | None]]]:
    """Yield runs of messages with their bodies, a new run whenever inflating has made enough."""
    if not with_body:
        if rows:
            yield slice(0, len(rows)), []
        return
    first, total = 0, 0
    bodies: list[bytes | None] = []
    for at, row in enumerate(rows):
        body = row.stored_body
        if type(row) is MessageExt and row.sys_flag & 1:
            body = inflate_body(row.stored_body, row.sys_flag, row.message_queue, row.queue_offset)
            total += len(body)
        bodies.append(body)
        if total >= bytes_max:
            yield slice(first, at + 1), bodies
            first, total, bodies = at + 1, 0, []
    if bodies:
        yield slice(first, len(rows)), bodies


class _Values:
    """Values of messages by column, as lists."""

    def __init__(
        self,
        rows: Sequence[Row],
        tables: Sequence[dict[str, str] | None],
        bodies: Sequence[bytes | None],
    ) -> None:
        self._rows = rows
        self._tables = tables
        self._bodies = bodies

    def place(self, at: int) -> tuple[MessageQueue, int | None]:
        """Return the queue and offset of a message."""
        row = self._rows[at]
        return row.message_queue, row.queue_offset

    def of(self, name: str) -> list[Any]:
        """Return one column by name."""
        source = TABLE[name]
        if name == "body":
            return list(self._bodies)
        if name == ERROR:
            return [row.error if type(row) is Undecodable else None for row in self._rows]
        if source.property is not None:
            return self._of_property(name, source.property)
        values = list(map(attrgetter(source.attribute or name), self._rows))
        return [_micros(ms) for ms in values] if source.kind == "timestamp" else values

    def _of_property(self, name: str, key: str) -> list[Any]:
        tables = self._tables
        if key == EVERY_PROPERTY:
            return [None if table is None else list(table.items()) for table in tables]
        if name == "msgId":
            return [
                (table and table.get(key)) or row.offset_msg_id
                for table, row in zip(tables, self._rows, strict=True)
            ]
        return [None if table is None else table.get(key) for table in tables]


def _micros(millis: int | None) -> int | None:
    if millis is None:
        return None
    return max(-TIMESTAMP_MS_MAX, min(TIMESTAMP_MS_MAX, millis)) * 1000

"""Columns built record by record: for a few records, and for records that cannot be decoded.

Pure: the rows are those ``vector`` makes of many records. The messages were checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.spark.arrow.bodies import inflate_body
from rocketstream.spark.arrow.properties import properties_of
from rocketstream.spark.arrow.schema import arrow_schema, refuse_nulls
from rocketstream.spark.arrow.undecodable import Undecodable
from rocketstream.spark.arrow.vector import TIMESTAMP_MS_MAX
from rocketstream.spark.columns import ERROR, FROM_PROPERTIES, Column

Row = MessageExt | Undecodable


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
    if tags is not None or wanted & FROM_PROPERTIES:
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
        if name in FROM_PROPERTIES:
            return self._from_properties(name)
        if name == "body":
            return list(self._bodies)
        read = _READERS[name]
        return [read(row) for row in self._rows]

    def _from_properties(self, name: str) -> list[Any]:
        if name == "properties":
            return [None if table is None else list(table.items()) for table in self._tables]
        if name == "msgId":
            return [
                (table and table.get("UNIQ_KEY")) or row.offset_msg_id
                for table, row in zip(self._tables, self._rows, strict=True)
            ]
        key = name.upper()
        return [None if table is None else table.get(key) for table in self._tables]


def _micros(millis: int | None) -> int | None:
    if millis is None:
        return None
    return max(-TIMESTAMP_MS_MAX, min(TIMESTAMP_MS_MAX, millis)) * 1000


_READERS: Final[dict[str, Callable[[Row], Any]]] = {
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
    ERROR: lambda m: m.error if type(m) is Undecodable else None,
}

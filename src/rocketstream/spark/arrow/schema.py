"""The Arrow schema of the chosen columns, exactly Spark's, and the promise of NOT NULL.

Pure: types and nullability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.spark.columns import KINDS, Column
from rocketstream.spark.losses import described

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
    kind = KINDS[column.name]
    if kind.startswith("map") and not column.values_nullable:
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return _TYPES[kind]

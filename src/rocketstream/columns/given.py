"""Messages as users have them in columns: sequences, Arrow arrays and tables, data frames.

Pure: whatever is given becomes record batches under the names of Spark's sink. Nothing is looked at
value by value here but what Python sequences hold; ``messages.Encoder`` judges the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from rocketstream.columns.values import wrong_together
from rocketstream.errors import ConfigurationError, MessageInvalidError
from rocketstream.protocol.properties import split_keys

ROWS: Final = 4_096
"""Rows that are encoded at a time: some milliseconds of work."""
_MAP: Final = pa.map_(pa.string(), pa.string())
COLUMNS: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "body": (pa.binary(), pa.string()),
    "tags": (pa.string(),),
    "keys": (pa.string(), pa.list_(pa.string())),
    "properties": (_MAP,),
    "shardingKey": (pa.string(),),
    "queueId": (pa.int64(),),
    "brokerName": (pa.string(),),
    "delayLevel": (pa.int64(),),
    "deliverTime": (pa.timestamp("us", "UTC"),),
    "flag": (pa.int64(),),
    "msgId": (pa.string(),),
}
"""The columns a table of messages may have, and their types; others that fit are cast."""
_UNFIT: Final = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    AttributeError,
    OverflowError,
    UnicodeEncodeError,  # half a surrogate pair, as of undecodable arguments
)
"""Errors of values no column can have."""


class Given:
    """The messages of one call, as record batches.

    Args:
        bodies: a table (``pyarrow`` table, batch or reader, a data frame of pandas or polars),
            whose columns are among ``COLUMNS``; or the bodies: a sequence, array or series.
        more: further columns by name: a value for all messages, or one for each; None for none.

    Attributes:
        columns: the place of each column in the record batches.
        streams: whether rows are read only as they are sent, so that they cannot be read twice.
        is_between: whether all rows that were read have been yielded.

    Raises:
        ConfigurationError: columns that are unknown, missing or exclude each other.
        MessageInvalidError: values that no column can have.
    """

    streams: bool

    def __init__(self, bodies: Any, more: Mapping[str, Any]) -> None:
        table, self.streams = _table_of(bodies)
        if table is None:
            array = _array("body", bodies)
            table = pa.table({"body": array})
        wanted = {name: value for name, value in more.items() if value is not None}
        names = list(table.schema.names)
        _check_names([*names, *wanted])
        types = [_type_of(field.name, field.type) for field in table.schema]
        count = None if self.streams else len(table)
        self._added = [_added(name, value, count) for name, value in wanted.items()]
        self.columns: dict[Any | str, int] = {
            name: place for place, name in enumerate([*names, *wanted])
        }
        self._schema = pa.schema(list(zip(names, types, strict=True)))
        self._table = table
        self.is_between: bool = True

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, some thousands at a time."""
        at = 0
        batches = self._table if self.streams else self._table.to_batches()
        for batch in batches:
            for first in range(0, len(batch), ROWS):
                part = _cast(batch.slice(first, ROWS), self._schema)
                count = len(part)
                self.is_between = first + count >= len(batch)
                added = [
                    each.take(pa.repeat(0, count)) if len(each) == 1 else each.slice(at, count)
                    for each in self._added
                ]
                yield pa.RecordBatch.from_arrays([*part.columns, *added], names=list(self.columns))
                at += count


def _table_of(given: Any) -> tuple[Any, bool]:
    """Return what was given as a table or a reader, and which; None where it is a column."""
    if isinstance(given, pa.Table):
        return given, False
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given]), False
    if isinstance(given, pa.RecordBatchReader):
        return given, True
    # Of several columns, or a series, which has no columns.
    if not hasattr(given, "__arrow_c_stream__") or not hasattr(given, "columns"):
        return None, False
    try:
        return pa.table(given), False
    except _UNFIT as error:
        raise MessageInvalidError(f"the table cannot be read: {error}") from None


def _array(name: str, values: Any) -> Any:
    """Return a column of values.

    Raises:
        MessageInvalidError: values of types that the column cannot have, or of several.
    """
    if isinstance(values, str | bytes | Mapping) or (
        not isinstance(values, Sequence)
        and not hasattr(values, "__arrow_c_array__")
        and not hasattr(values, "__arrow_c_stream__")
        and not hasattr(values, "__array__")
    ):
        raise MessageInvalidError(
            f"{_LABELS[name]} must be a sequence or an array with a value for each message, not "
            f"{type(values).__name__}: {values!r:.80}"
        )
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            found = values
        elif name == "properties":
            found = pa.array([None if v is None else list(v.items()) for v in values], _MAP)
        elif hasattr(values, "__arrow_c_stream__"):
            found = pa.chunked_array(values)
        elif name == "keys" and any(isinstance(each, list | tuple) for each in values):
            found = pa.array(
                [split_keys(each) if isinstance(each, str) else each for each in values]
            )
        else:
            found = pa.array(values)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        return found.cast(_type_of(name, found.type))
    except _UNFIT as error:
        kinds = " or ".join(map(str, COLUMNS[name]))
        raise MessageInvalidError(
            f"{_LABELS[name]} cannot be a column of {kinds}: {error}"
        ) from None


_LABELS: Final = {
    "body": "bodies", "shardingKey": "sharding_keys", "tags": "tags", "keys": "keys",
    "properties": "properties",
}  # fmt: skip


def _added(name: str, value: Any, count: int | None) -> Any:
    """Return a further column; of one value where that is for all messages."""
    if isinstance(value, str) or (name == "properties" and isinstance(value, Mapping)):
        return _array(name, [value])
    if count is None:
        raise ConfigurationError(
            f"{_LABELS[name]} of messages that are read as they are sent must be one value for "
            "all, or a column of theirs"
        )
    found = _array(name, value)
    if len(found) != count:
        raise ConfigurationError(
            f"{_LABELS[name]} has {len(found)} values for {count} messages; give one for each, or "
            "one for all"
        )
    return found


def _check_names(names: Sequence[str]) -> None:
    wrong = [f"no column {name!r}" for name in names if name not in COLUMNS]
    wrong += [
        f"{name!r} is given twice" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if "body" not in names:
        wrong.append("column 'body' is missing")
    wrong += wrong_together(names, names)
    if wrong:
        accepted = ", ".join(f"{n} {' or '.join(map(str, k))}" for n, k in COLUMNS.items())
        raise ConfigurationError(
            f"a table cannot be sent as messages: {'; '.join(wrong)}. Select, rename and cast to: "
            f"{accepted}",
            columns=list(names),
        )


def _type_of(name: str, given: Any) -> Any:
    """Return the type a column is cast to; raises where nobody would expect it to become that."""
    kinds = COLUMNS[name]
    if given in kinds:
        return given
    if pa.types.is_dictionary(given):
        given = given.value_type
    for kind in kinds:
        if _is_like(given, kind):
            return kind
    raise MessageInvalidError(
        f"column {name!r} is {given}; accepted is {' or '.join(map(str, kinds))}: cast it"
    )


def _is_like(given: Any, kind: Any) -> bool:
    types = pa.types
    like = types.is_null(given) or given == kind
    if kind == pa.string():
        like = like or types.is_large_string(given) or types.is_string_view(given)
    elif kind == pa.binary():
        like = like or types.is_large_binary(given) or types.is_binary_view(given)
        like = like or types.is_fixed_size_binary(given)
    elif kind == pa.int64():
        like = like or types.is_integer(given)
    elif types.is_timestamp(kind):
        like = like or (types.is_timestamp(given) and given.tz is not None)
    elif types.is_list(kind):
        listed = types.is_list(given) or types.is_large_list(given)
        like = like or (listed and _is_like(given.value_type, pa.string()))
    elif types.is_map(given):
        like = _is_like(given.key_type, pa.string()) and _is_like(given.item_type, pa.string())
    return bool(like)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return batch if batch.schema.equals(schema) else batch.cast(schema)

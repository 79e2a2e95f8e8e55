"""Plain rows to Arrow: small tables that never were stored records.

Pure: values of the named Spark types; an unknown value is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_US_PER_MS: Final = 1_000


def plain_batch(
    columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]
) -> pa.RecordBatch:
    """Return rows as a record batch; timestamps are given in ms since 1970.

    Args:
        columns: name and Spark type of each.
        rows: values in the order of the columns.
    """
    arrays = []
    for index, (_, kind) in enumerate(columns):
        values = [row[index] for row in rows]
        if kind == "timestamp":
            values = [None if ms is None else ms * _US_PER_MS for ms in values]
        arrays.append(pa.array(values, _TYPES[kind]))
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

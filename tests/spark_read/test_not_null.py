"""Schemas with NOT NULL columns: exactly what Spark expects, and no null under that promise."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from rocketstream.columns.arrays import arrow_schema
from rocketstream.columns.table import COLUMNS
from rocketstream.errors import RemoteProtocolError
from rocketstream.spark.source import columns_of
from tests.kits.records import WAYS, piece, record, rows

KINDS: dict[str, Any] = {
    "string": types.StringType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}


def schema(*fields: tuple[str, bool]) -> Any:
    """A Spark schema of our columns, each with whether it may be null."""
    kinds = {name.lower(): KINDS[kind] for name, kind in COLUMNS.items()}
    return types.StructType(
        [types.StructField(name, kinds[name.lower()], nullable) for name, nullable in fields]
    )


@pytest.mark.parametrize("values_null", [True, False])
def test_the_arrow_schema_is_sparks_own_nullability_included(values_null: bool) -> None:
    """Covers S 1, SPARK-55583: one flag off and every batch is refused."""
    asked = schema(*((name, place % 2 == 0) for place, name in enumerate(COLUMNS)))
    text = types.StringType()
    asked["properties"].dataType = types.MapType(text, text, values_null)
    columns = columns_of(asked)
    assert arrow_schema(columns).equals(to_arrow_schema(asked, timezone="UTC"))
    assert pickle.loads(pickle.dumps(columns)) == columns  # noqa: S301


@WAYS
def test_maps_whose_values_are_never_null_are_read(way: str) -> None:
    """Another Arrow type with the same data."""
    asked = schema(("properties", False))
    text = types.StringType()
    asked["properties"].dataType = types.MapType(text, text, False)
    found = rows([piece(record(3), record(4))], way, columns=columns_of(asked))
    assert found == [{"properties": [("TAGS", "TagA")]}] * 2


@WAYS
def test_columns_that_are_never_null_are_read(way: str) -> None:
    """The data is the same, the schema says more."""
    columns = columns_of(schema(("body", False), ("properties", False)))
    (row,) = rows([piece(record(4))], way, columns=columns)
    assert row == {"body": b"hello", "properties": [("TAGS", "TagA")]}


@WAYS
def test_a_null_in_a_column_that_has_none_is_an_error_naming_it(way: str) -> None:
    """Spark would read anything from it."""
    columns = columns_of(schema(("Tags", False)))
    bad = piece(record(4), record(5, properties=b""), record(6))
    with pytest.raises(RemoteProtocolError, match=r"'Tags' is NOT NULL.*offset 5 of topic 'T1'"):
        rows([bad], way, columns=columns)
    found = rows([bad], way, columns=columns, tags={"TagA"})
    assert found == [{"Tags": "TagA"}, {"Tags": "TagA"}]


@WAYS
def test_nullable_arrays_are_as_before(way: str) -> None:
    """Without NOT NULL a missing tag is null."""
    columns = columns_of(schema(("tags", True)))
    assert rows([piece(record(5, properties=b""))], way, columns=columns) == [{"tags": None}]
    assert arrow_schema(columns) == pa.schema([pa.field("tags", pa.string())])

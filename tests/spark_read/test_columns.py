"""One table has all columns: schema, decoders, readers and the page of the connector follow it."""

from __future__ import annotations

import contextlib
import re
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketstream.columns.arrays import arrow_schema
from rocketstream.columns.decode import decode_permissive
from rocketstream.columns.table import TABLE, Column, Source, choose, ddl
from rocketstream.spark.options import store_options
from rocketstream.spark.store.rows import StoreRead, new_store_scan
from rocketstream.spark.store.snapshot import Snapshot, store_plans, store_ranges
from tests.kits.records import piece, record, rows
from tests.kits.stores import opened, put

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
CRC = zlib.crc32(b"hello") & 0x7FFFFFFF


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> tuple[Column, ...]:
    """The columns of a table with two lines more: a property, and a fixed field of records."""
    monkeypatch.setitem(TABLE, "buyerId", Source("string", property="buyer"))
    monkeypatch.setitem(TABLE, "bodyCrc", Source("int", "body_crc", "crc"))
    return choose([("queueOffset", "bigint"), ("buyerId", "string"), ("BODYCRC", "int")])


def test_added_column_is_in_the_schemas(grown: tuple[Column, ...]) -> None:
    assert ddl().endswith("buyerId string, bodyCrc int")
    assert arrow_schema(grown).field(1).type == pa.string()
    assert arrow_schema(grown).field(2).type == pa.int32()


@pytest.mark.parametrize("way", ["vector", "plain"])
def test_added_column_is_decoded(grown: tuple[Column, ...], way: str) -> None:
    records = [record(0, properties=b"buyer\x01ada\x02TAGS\x01a"), record(1)]
    assert rows([piece(*records)], way, columns=grown) == [
        {"queueOffset": 0, "buyerId": "ada", "BODYCRC": CRC},
        {"queueOffset": 1, "buyerId": None, "BODYCRC": CRC},
    ]


def test_added_column_is_decoded_beside_a_damaged_record(grown: tuple[Column, ...]) -> None:
    records = record(0, properties=b"buyer\x01ada"), record(1, properties_size=9_000)
    found: list[dict[str, Any]] = []
    for batch in decode_permissive([piece(*records, end=2)], grown):
        found += batch.to_pylist()
    assert found == [
        {"queueOffset": 0, "buyerId": "ada", "BODYCRC": CRC},
        {"queueOffset": 1, "buyerId": None, "BODYCRC": None},
    ]


def test_added_column_is_read_from_a_store(grown: tuple[Column, ...], tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"hello", tags="a")
    options = store_options({"storePath": str(tmp_path), "topic": "T1"})
    with contextlib.closing(Snapshot(options)) as snapshot:
        (plan,) = store_plans(snapshot, store_ranges(options, snapshot), 1)
    (batch,) = StoreRead(new_store_scan(options, grown), plan).batches()
    assert batch.to_pylist() == [{"queueOffset": 0, "buyerId": None, "BODYCRC": CRC}]


def test_page_names_every_column_and_its_type() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Columns\n\n")[1].split("\n\n")[0]
    shown: dict[str, str] = {}
    for line in section.splitlines()[2:]:
        names, kinds = (re.sub("[` ]", "", cell).split(",") for cell in line.split("|")[1:3])
        kinds = [",".join(kinds)] if "map<" in kinds[0] else kinds
        shown |= dict(zip(names, kinds if len(kinds) > 1 else kinds * len(names), strict=True))
    assert shown == {name: source.kind for name, source in TABLE.items()}

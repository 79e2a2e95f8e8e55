"""Protobuf bodies without Spark: which columns a message has, and what its values become."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.bodies import bodies_of
from rocketstream.pipelines.protobuf import batch_decoder, columns, decode
from tests.landing.descriptors import (
    KNOWN,
    descriptor_set,
    field,
    file_of,
    message_class,
    nested,
)

ORDER = nested(
    "Order",
    field("id", "INT64", 1),
    field("small", "UINT32", 2),
    field("big", "FIXED64", 3),
    field("note", "STRING", 4),
    field("raw", "BYTES", 5),
    field("state", "ENUM", 6, of=".shop.Order.State"),
    field("at", "MESSAGE", 7, of=".google.protobuf.Timestamp"),
    field("took", "MESSAGE", 8, of=".google.protobuf.Duration"),
    field("maybe", "MESSAGE", 9, of=".google.protobuf.Int32Value"),
    field("extra", "MESSAGE", 10, of=".google.protobuf.Struct"),
    field("lines", "MESSAGE", 11, of=".shop.Order.Line", repeated=True),
    field("counts", "MESSAGE", 12, of=".shop.Order.CountsEntry", repeated=True),
    field("gift", "MESSAGE", 13, of=".google.protobuf.Empty"),
    field("any", "MESSAGE", 14, of=".google.protobuf.Any"),
)
ORDER.enum_type.add(name="State").value.add(name="OPEN", number=0)
ORDER.enum_type[0].value.add(name="PAID", number=1)
ORDER.nested_type.append(nested("Line", field("sku", "STRING", 1), field("price", "FLOAT", 2)))
ENTRY = nested("CountsEntry", field("key", "STRING", 1), field("value", "SINT32", 2))
ENTRY.options.map_entry = True
ORDER.nested_type.append(ENTRY)
SET = descriptor_set(*KNOWN, file_of("order.proto", ORDER, "proto3"))
NAME = "shop.Order"


def test_every_type_has_a_column_that_holds_all_its_values() -> None:
    assert columns(SET, NAME) == (
        "`id`: BIGINT, `small`: BIGINT, `big`: DECIMAL(20,0), `note`: STRING, `raw`: BINARY, "
        "`state`: STRING, `at`: TIMESTAMP, `took`: INTERVAL DAY TO SECOND, `maybe`: INT, "
        "`extra`: STRING, `lines`: ARRAY<STRUCT<`sku`: STRING, `price`: FLOAT>>, "
        "`counts`: MAP<STRING, INT>, `gift`: BOOLEAN, `any`: STRING"
    )


def filled() -> Any:
    made = message_class(SET, NAME)()
    made.id, made.small, made.big, made.note = -1, 2**32 - 1, 2**64 - 1, "für"
    made.raw, made.state = b"\xff", 1
    made.at.seconds, made.at.nanos = -1, 999_999_000
    made.took.seconds, made.took.nanos = -1, -500_000_000
    made.maybe.value = 0
    made.extra["x"] = 1
    made.lines.add(sku="a", price=0.5)
    made.counts["n"] = -3
    made.gift.SetInParent()
    return made


def test_values_survive() -> None:
    (row,) = decode(SET, NAME, [filled().SerializeToString()]).to_pylist()
    assert row == {
        "id": -1,
        "small": 2**32 - 1,
        "big": Decimal(2**64 - 1),
        "note": "für",
        "raw": b"\xff",
        "state": "PAID",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "took": timedelta(seconds=-1.5),
        "maybe": 0,
        "extra": '{"x": 1.0}',
        "lines": [{"sku": "a", "price": 0.5}],
        "counts": [("n", -3)],
        "gift": True,
        "any": None,
    }


def test_what_was_not_sent_is_null_where_protobuf_knows_it_and_its_default_elsewhere() -> None:
    (row,) = decode(SET, NAME, [b""]).to_pylist()
    assert (row["id"], row["note"], row["state"], row["lines"]) == (0, "", "OPEN", [])
    assert [name for name, value in row.items() if value is None] == [
        "at", "took", "maybe", "extra", "gift", "any",
    ]  # fmt: skip


def test_a_body_that_is_no_such_message_is_null_among_others() -> None:
    """Bytes, text that is not UTF-8, an Any of a type nobody described; a new enum is a number."""
    unknown = message_class(SET, NAME)()
    unknown.any.type_url = "type.googleapis.com/shop.Nobody"
    good, newer = filled(), message_class(SET, NAME)(state=7)
    bodies = [b"\xff", good.SerializeToString(), b"\x22\x02\xff\xfe", unknown.SerializeToString()]
    rows = decode(SET, NAME, [*bodies, newer.SerializeToString(), None]).to_pylist()
    assert [row is not None for row in rows] == [False, True, False, False, True, False]
    assert rows[4]["state"] == "7"


def test_a_time_that_is_none_to_protobuf_is_null_among_others() -> None:
    """Nanoseconds in the place of seconds, once by mistake: the others still land."""
    made = [message_class(SET, NAME)() for _ in range(5)]
    made[0].at.seconds = 1_764_000_000 * 10**9
    made[1].at.seconds = 253_402_300_800
    made[2].at.seconds = 253_402_300_799
    made[3].took.seconds = -(2**63)
    made[4].took.seconds = -315_576_000_000
    found = decode(SET, NAME, [each.SerializeToString() for each in made])
    assert found.is_valid().to_pylist() == [False, False, True, False, True]


def test_a_required_field_that_is_missing_is_seen() -> None:
    old = nested("Old", field("id", "INT32", 1, required=True), field("note", "STRING", 2))
    old_set = descriptor_set(file_of("old.proto", old, "proto2"))
    rows = decode(old_set, "shop.Old", [b"", b"\x08\x07", b"\x12\x01x"]).to_pylist()
    assert rows == [None, {"id": 7, "note": None}, None]


def test_a_batch_keeps_its_columns_and_gains_one() -> None:
    import pyarrow as pa

    batch = pa.record_batch({"body": [filled().SerializeToString(), b"\xff"], "n": [1, 2]})
    (found,) = batch_decoder(SET, NAME, "_parsed")(iter([batch]))
    assert found.schema.names == ["body", "n", "_parsed"]
    assert found.column("_parsed").is_valid().to_pylist() == [True, False]


def test_the_file_of_a_descriptor_names_the_landing(tmp_path: Path) -> None:
    """Its columns are known before Spark; another descriptor is another landing."""
    place = tmp_path / "order.desc"
    place.write_bytes(SET)
    bodies = bodies_of(None, None, None, str(place), NAME)
    assert (bodies.format, (bodies.columns() or [])[:2]) == ("protobuf", ["id", "small"])
    other = nested("Order", field("id", "INT64", 2))
    place.write_bytes(descriptor_set(file_of("order.proto", other, "proto3")))
    again = bodies_of("protobuf", None, None, str(place), NAME)
    assert bodies.identity()["descriptor"] != again.identity()["descriptor"]
    assert again.identity()["message"] == NAME


CIRCLE = nested("Node", field("next", "MESSAGE", 1, of=".shop.Node"))
TAKEN = nested("Taken", field("_topic", "STRING", 1))
TWICE = nested("Twice", field("id", "STRING", 1), field("ID", "STRING", 2))
CASES = descriptor_set(file_of("cases.proto", [CIRCLE, TAKEN, TWICE, nested("None")], "proto3"))
PARTIAL = descriptor_set(file_of("order.proto", ORDER, "proto3"))


@pytest.mark.parametrize(
    ("content", "message", "text"),
    [
        (b"syntax = 'proto3';", "shop.Order", "is not a Protobuf descriptor set; make one with"),
        (b"", "shop.Order", "is not a Protobuf descriptor set"),
        (CASES, None, r"no message is named; .* has shop.Node, shop.None, shop.Taken, shop.Twice"),
        (CASES, "Node", "message 'Node' is not there"),
        (CASES, "shop.Node", "contains itself .shop.Node → shop.Node."),
        (CASES, "shop.None", "has no fields"),
        (CASES, "shop.Taken", "names _topic"),
        (CASES, "shop.Twice", "names ID, id twice"),
        (PARTIAL, NAME, "is not whole.*--include_imports"),
    ],
)
def test_descriptors_that_cannot_be_columns_are_refused(
    tmp_path: Path, content: bytes, message: str | None, text: str
) -> None:
    place = tmp_path / "x.desc"
    place.write_bytes(content)
    with pytest.raises(ConfigurationError, match=text):
        bodies_of("protobuf", None, None, str(place), message)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("protobuf", None), "needs a descriptor set.*protoc --include_imports"),
        (("protobuf", "id INT", None, "x", "y"), "takes no schema"),
        (("protobuf", None, {"mode": "FAILFAST"}, "x", "y"), "has no options; given are mode"),
        (("protobuf", None, None, "/nowhere.desc", "y"), "cannot be read: No such file"),
        (("json", "id INT", None, "x", "y"), "are for format protobuf"),
        ((None, "id INT", None, "x", None), "are for format protobuf"),
    ],
)
def test_words_that_do_not_go_with_protobuf_are_refused(
    arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        bodies_of(*arguments)


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rocketstream\[spark,protobuf\]'"):
        bodies_of("protobuf", None, None, "x", "y")


def test_the_well_known_types_are_those_of_the_package() -> None:
    """The set above is what protoc makes: their files come along."""
    names = {file.name for file in descriptor_pb2.FileDescriptorSet.FromString(SET).file}
    for module in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        assert module.DESCRIPTOR.name in names

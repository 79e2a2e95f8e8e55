"""Messages as users have them in columns: accepted kinds, casts, refusals with their texts."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rocketstream.columns.given import COLUMNS, ROWS, Given
from rocketstream.errors import ConfigurationError, MessageInvalidError

pd: Any = pytest.importorskip("pandas")


def rows(bodies: Any, **more: Any) -> list[dict[str, Any]]:
    return [row for batch in Given(bodies, more).batches() for row in batch.to_pylist()]


class Streamed:
    """A data frame of another package: known by Arrow's stream interface alone."""

    columns = ("body", "tags")

    def __arrow_c_stream__(self, requested: object = None) -> object:
        views = pa.array(["x", "y"], pa.string_view())
        return pa.table({"body": views, "tags": ["a", None]}).__arrow_c_stream__(requested)


class Series:
    """A column of another package."""

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return pa.chunked_array([[b"x"], [b"y"]]).__arrow_c_stream__(requested)


BOTH = [{"body": b"x"}, {"body": b"y"}]


@pytest.mark.parametrize(
    "bodies",
    [
        [b"x", b"y"],
        (b"x", b"y"),
        pa.array([b"x", b"y"]),
        pa.array([b"x", b"y"], pa.large_binary()),
        pa.array([b"x", b"y"], pa.binary_view()),
        pa.array([b"x", b"y"], pa.binary(1)),
        pa.array([b"x", b"y"]).dictionary_encode(),
        pa.chunked_array([[b"x"], [b"y"]]),
        pa.table({"body": [b"x", b"y"]}),
        pa.record_batch({"body": [b"x", b"y"]}),
        pa.table({"body": [b"x", b"y"]}).to_reader(max_chunksize=1),
        np.array([b"x", b"y"], object),
        pd.Series([b"x", b"y"]),
        pd.DataFrame({"body": [b"x", b"y"]}),
        Series(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_bodies_may_be_held_in_anything(bodies: Any) -> None:
    assert rows(bodies) == BOTH


def test_a_frame_of_another_package_is_known_by_arrows_interface() -> None:
    given = Given(Streamed(), {})
    assert (given.streams, given.columns) == (False, {"body": 0, "tags": 1})
    assert rows(Streamed()) == [{"body": "x", "tags": "a"}, {"body": "y", "tags": None}]


def test_text_stays_text() -> None:
    assert rows(["a", "ü"]) == [{"body": "a"}, {"body": "ü"}]


def test_one_value_is_that_of_all_messages_and_a_sequence_has_one_for_each() -> None:
    found = rows(
        [b"x", b"y"], tags="A", keys=[["k", "l"], []], properties=[{"p": "1"}, None],
        shardingKey=pa.array(["s", None]),
    )  # fmt: skip
    assert found == [
        {"body": b"x", "tags": "A", "keys": ["k", "l"], "properties": [("p", "1")],
         "shardingKey": "s"},
        {"body": b"y", "tags": "A", "keys": [], "properties": None, "shardingKey": None},
    ]  # fmt: skip
    assert [row["properties"] for row in rows([b"x", b"y"], properties={"p": "1"})] == [
        [("p", "1")]
    ] * 2
    # One message is no reason to take its value for that of all others.
    assert rows([b"x"], keys=["k"]) == [{"body": b"x", "keys": "k"}]


def test_some_messages_may_have_one_key_and_others_several() -> None:
    """As ``Message(keys=)`` takes both: blanks part the keys of one text."""
    keys = ["k", ["l", "m"], ("n",), None, "o p"]
    found = [row["keys"] for row in rows([b"x"] * 5, keys=keys)]
    assert found == [["k"], ["l", "m"], ["n"], None, ["o", "p"]]
    (white, _) = rows([b"x"] * 2, keys=["k\u00a0x  l\t", ["m"]])
    assert white["keys"] == ["k\u00a0x", "l\t"], "only blanks part them"


def test_rows_come_some_thousands_at_a_time_with_their_own_values() -> None:
    count = 2 * ROWS + 1
    given = Given([b"x"] * count, {"keys": [str(number) for number in range(count)]})
    batches = list(given.batches())
    assert [len(batch) for batch in batches] == [ROWS, ROWS, 1]
    keys = [key for batch in batches for key in batch.column("keys").to_pylist()]
    assert keys == [str(number) for number in range(count)]


def test_a_reader_is_read_as_its_rows_are_taken() -> None:
    read: list[int] = []

    def reading() -> Any:
        for number in range(3):
            read.append(number)
            yield pa.record_batch({"body": [b"x"] * (ROWS + 1)})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("body", pa.binary())]), reading())
    given = Given(reader, {"tags": "A"})
    assert given.streams
    batches = given.batches()
    assert (len(next(batches)), given.is_between, read) == (ROWS, False, [0])
    assert (len(next(batches)), given.is_between, read) == (1, True, [0])
    assert (len(next(batches)), given.is_between, read) == (ROWS, False, [0, 1])


def test_columns_are_cast_to_what_messages_have() -> None:
    moment = datetime.datetime(2030, 1, 2, 3, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "body": pa.array(["a"], pa.large_string()),
            "keys": pa.array([["k"]], pa.large_list(pa.large_string())),
            "properties": pa.array([[("p", "1")]], pa.map_(pa.large_string(), pa.large_string())),
            "queueId": pa.array([1], pa.int8()),
            "brokerName": pa.array([None]),
            "deliverTime": pa.array([moment], pa.timestamp("ns", "Europe/Oslo")),
            "flag": pa.array([2], pa.uint16()),
        }
    )
    ((batch),) = Given(table, {}).batches()
    assert [field.type for field in batch.schema] == [COLUMNS[name][-1] if name in ("body", "keys")
        else COLUMNS[name][0] for name in table.schema.names]  # fmt: skip
    assert batch.column("deliverTime")[0].as_py() == moment


class Frame:
    """A data frame whose text Arrow cannot have, which it says when it is read."""

    columns = ("body",)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table({"body": ["x\ud800"]}).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    ("bodies", "more", "text"),
    [
        ("abc", {}, "bodies must be a sequence or an array with a value for each message, not str"),
        (b"abc", {}, "bodies must be a sequence .* not bytes"),
        ({"body": 1}, {}, "bodies must be a sequence .* not dict"),
        (5, {}, "bodies must be a sequence .* not int: 5"),
        (iter([b"x"]), {}, "bodies must be a sequence .* not list_iterator"),
        ([1, 2], {}, "column 'body' is int64; accepted is binary or string: cast it"),
        ([b"x", 1], {}, "bodies cannot be a column of binary or string"),
        ([b"x"], {"keys": [1]}, "column 'keys' is int64; accepted is string or list"),
        ([b"x"], {"properties": ["p"]}, "properties cannot be a column of map"),
        ([b"x"], {"properties": [{"p": 1}]}, "properties cannot be a column of map"),
        ([b"x"], {"tags": {"a": "b"}}, "tags must be a sequence"),
        (["x\ud800"], {}, "bodies cannot be a column of binary or string: .*surrogate"),
        ([b"x"], {"tags": "\ud800"}, "tags cannot be a column of string: .*surrogate"),
        ([b"x"], {"tags": ["\ud800"]}, "tags cannot be a column of string: .*surrogate"),
        ([b"x"] * 2, {"keys": [["\ud800"], "k"]}, "keys cannot be a column of .*surrogate"),
        ([b"x"], {"properties": {"p": "\ud800"}}, "properties cannot be a column of .*surrogate"),
        ([2**70], {}, "bodies cannot be a column of binary or string: .* too large"),
        (Frame(), {}, "the table cannot be read: .*surrogate"),
        (pa.table({"body": ["x"], "deliverTime": [datetime.datetime(2030, 1, 1)]}), {},
         r"column 'deliverTime' is timestamp\[us\]; accepted is timestamp\[us, tz=UTC\]"),
        (pa.table({"body": ["x"], "queueId": [1.5]}), {}, "column 'queueId' is double"),
        (pa.table({"body": ["x"], "properties": pa.nulls(1, pa.map_(pa.string(), pa.int32()))}),
         {}, "column 'properties' is map<string, int32"),
        (pa.table({"body": ["x"], "properties": pa.nulls(1, pa.map_(pa.int32(), pa.string()))}),
         {}, "column 'properties' is map<int32, string"),
    ],
)  # fmt: skip
def test_values_no_column_can_have_are_refused(bodies: Any, more: Any, text: str) -> None:
    with pytest.raises(MessageInvalidError, match=text):
        Given(bodies, more)


@pytest.mark.parametrize(
    ("columns", "more", "text"),
    [
        (("text",), {}, "no column 'text'; column 'body' is missing.*Select, rename and cast to: "),
        (("body", "brokerName"), {}, "'brokerName' needs 'queueId' beside it"),
        (("body", "queueId"), {"shardingKey": ["a"]}, "'queueId' and 'shardingKey' exclude"),
        (("body", "delayLevel", "deliverTime"), {}, "'delayLevel' and 'deliverTime' exclude"),
        (("body", "tags"), {"tags": "A"}, "'tags' is given twice"),
        (("body",), {"tags": ["a", "b"]}, "tags has 2 values for 1 messages; give one for each"),
    ],
)
def test_columns_that_are_wrong_together_are_told_with_those_accepted(
    columns: tuple[str, ...], more: Any, text: str
) -> None:
    table = pa.table({name: pa.nulls(1, COLUMNS.get(name, (pa.string(),))[0]) for name in columns})
    with pytest.raises(ConfigurationError, match=text):
        Given(table, more)


def test_a_reader_has_one_value_for_all_or_a_column_of_its_own() -> None:
    reader = pa.table({"body": ["x"]}).to_reader()
    with pytest.raises(ConfigurationError, match="read as they are sent must be one value for all"):
        Given(reader, {"keys": ["k"]})
    assert rows(pa.table({"body": ["x"]}).to_reader(), properties={"p": "1"}, tags="A") == [
        {"body": "x", "properties": [("p", "1")], "tags": "A"}
    ]


def test_no_bodies_are_no_messages() -> None:
    assert rows([]) == []
    assert rows(pa.table({"body": pa.array([], pa.binary())})) == []

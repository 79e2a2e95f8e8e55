"""Record batches as messages: every column, every null, and what is refused as a whole."""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.client.producer.policy import queue_of_key
from rocketstream.columns.messages import Block, Encoder, Run, runs
from rocketstream.errors import ConfigurationError, MessageInvalidError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import BatchItem, decode_batch, encode_batch
from rocketstream.spark.sink.columns import Identity
from rocketstream.spark.sink.writer import task_encoder

MAP = pa.map_(pa.string(), pa.string())
BESIDE = 22 + 69 + 127 + 64
"""What a row takes besides body and properties: in a batch, and what its broker may add (C-430)."""
QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]


def encoder(
    batch: pa.RecordBatch,
    *,
    body_bytes_max: int = 1_000,
    drop_reserved: bool = False,
    query_id: str = "query",
) -> Encoder:
    numbers = itertools.count()

    def new_ids(count: int) -> Any:
        return pa.array([f"ID{next(numbers)}" for _ in range(count)], pa.string())

    columns = {name: place for place, name in enumerate(batch.schema.names)}
    identity = Identity(query_id, 7, 2)
    return task_encoder(columns, body_bytes_max, identity, new_ids, drop_reserved=drop_reserved)


def block_of(columns: dict[str, Any], **rules: Any) -> Block:
    batch = pa.record_batch({name: pa.array(*values) for name, values in columns.items()})
    return encoder(batch, **rules).block(batch)


def sent(block: Block) -> list[BatchItem]:
    """What a broker finds in a batch of all rows."""
    return decode_batch(block.batch(0, len(block)))


def own(items: Sequence[BatchItem]) -> list[dict[str, str]]:
    """Each message's properties without those every message has."""
    found = [decode_properties(bytes(item.properties)) for item in items]
    common = ("UNIQ_KEY", "SPARK_QUERY_ID", "SPARK_BATCH_ID", "SPARK_PARTITION", "SPARK_SEQUENCE")
    return [{k: v for k, v in each.items() if k not in common} for each in found]


def test_a_delay_level_beyond_those_of_brokers_is_told_once_a_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-403: brokers take their longest, which whoever means seconds does not expect."""
    write = uuid.uuid4().hex  # a worker remembers which writes it has warned
    for levels in ([18, None], [0, 99], [None, 3600]):
        given = {"body": ([b"a", b"b"],), "delayLevel": (levels, pa.int32())}
        assert len(sent(block_of(given, query_id=write))) == 2
    (told,) = caplog.records
    assert told.getMessage().startswith("column delayLevel: 99 is beyond the 18 levels brokers ")


def test_each_message_says_which_write_it_belongs_to() -> None:
    """Numbered through all record batches of the partition."""
    batch = pa.record_batch({"body": pa.array([b"a", b"b"])})
    making = encoder(batch)
    first, second = making.block(batch), making.block(batch)
    found = [decode_properties(bytes(i.properties)) for b in (first, second) for i in sent(b)]
    assert found[3] == {
        "UNIQ_KEY": "ID3",
        "SPARK_QUERY_ID": "query",
        "SPARK_BATCH_ID": "7",
        "SPARK_PARTITION": "2",
        "SPARK_SEQUENCE": "3",
    }
    assert [each["SPARK_SEQUENCE"] for each in found] == ["0", "1", "2", "3"]
    assert making.rows == 4


def test_all_columns_arrive_and_nulls_are_left_out() -> None:
    """Binary and text bodies, keys of both forms, unicode, negative flags."""
    block = block_of(
        {
            "body": ([b"\x00\x01\x02\xff", "ü🚀".encode(), b"c"],),
            "tags": (["红", None, ""], pa.string()),
            "keys": ([["k1", "k2"], [], ["k"]], pa.list_(pa.string())),
            "properties": ([[("p", "1"), ("q", "ö = 2")], [], None], MAP),
            "flag": ([-5, None, 2**31 - 1], pa.int64()),
            "delayLevel": ([None, 3, 0], pa.int32()),
        }
    )
    items = sent(block)
    assert [bytes(item.body) for item in items] == [b"\x00\x01\x02\xff", "ü🚀".encode(), b"c"]
    assert [item.flag for item in items] == [-5, 0, 2**31 - 1]
    assert own(items) == [
        {"TAGS": "红", "KEYS": "k1 k2", "p": "1", "q": "ö = 2"},
        {"DELAY": "3"},
        {"KEYS": "k"},
    ]
    assert block.delayed.tolist() == [False, True, False]
    assert not block.timed


def test_the_first_level_holds_back_and_level_0_does_not() -> None:
    block = block_of({"body": ([b"a", b"b", b"c"],), "delayLevel": ([1, 0, 18], pa.int32())})
    assert own(sent(block)) == [{"DELAY": "1"}, {}, {"DELAY": "18"}]
    assert block.delayed.tolist() == [True, False, True]


def test_the_bytes_are_those_of_the_protocol() -> None:
    """The vectorised form and the plain one are the same."""
    block = block_of({"body": ([b"x" * n for n in (1, 12, 13, 700)],), "tags": (["a"] * 4,)})
    rows = [block.one(row) for row in range(1, 4)]
    assert block.batch(1, 4) == encode_batch(
        [(flag, body, properties.encode()) for body, properties, flag in rows]
    )


def test_a_request_says_of_one_message_what_a_batch_says_in_its_records() -> None:
    """As the client's do: a batch of its own has neither flag nor tag."""
    block = block_of({"body": ([b"a", b"b"],), "tags": (["t", "u"],), "flag": ([3, 4],)})
    body, own_text, _ = block.one(1)
    assert block.request(1, 2) == (
        body, f"WAIT\x01true\x02{own_text}", 4, RequestCode.SEND_MESSAGE_V2,
    )  # fmt: skip
    assert block.request(0, 2) == (
        block.batch(0, 2), "WAIT\x01true", 0, RequestCode.SEND_BATCH_MESSAGE,
    )  # fmt: skip


PLAIN = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9)
FILLED = st.tuples(st.sampled_from(["x", " x", "ü", "键"]), PLAIN).map("".join)
ROW = st.tuples(
    st.binary(min_size=1, max_size=40),
    st.none() | PLAIN,
    st.none() | st.lists(FILLED, max_size=3),
    st.none() | st.lists(st.tuples(FILLED, FILLED), max_size=3),
    st.none() | st.integers(-(2**31), 2**31 - 1),
)


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.booleans(), st.data())
def test_any_rows_and_any_part_of_them_are_the_bytes_of_the_protocol(
    rows: list[Any], listed: bool, data: st.DataObject
) -> None:
    """Of a record batch that is a slice of another, cut anywhere."""
    bodies, tags, words, properties, flags = zip(*rows, strict=True)
    keys = [None if each is None else " ".join(each) for each in words]
    whole = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "tags": pa.array(tags, pa.string()),
            "keys": pa.array(words, pa.list_(pa.string()))
            if listed
            else pa.array(keys, pa.string()),
            "properties": pa.array(properties, MAP),
            "flag": pa.array(flags, pa.int64()),
        }
    )
    first = data.draw(st.integers(0, len(rows) - 1))
    begin = data.draw(st.integers(first, len(rows) - 1))
    end = data.draw(st.integers(begin + 1, len(rows)))
    part = whole.slice(first)
    wanted = []
    for row in range(begin, end):
        number = row - first
        pairs = [
            ("UNIQ_KEY", f"ID{number}"),
            ("TAGS", tags[row]),
            ("KEYS", keys[row]),
            ("SPARK_QUERY_ID", "query"),
            ("SPARK_BATCH_ID", "7"),
            ("SPARK_PARTITION", "2"),
            ("SPARK_SEQUENCE", str(number)),
            *(properties[row] or ()),
        ]
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs if value)
        wanted.append((flags[row] or 0, bodies[row], text.encode()))
    block = encoder(part).block(part)
    assert block.batch(begin - first, end - first) == encode_batch(wanted)


def test_what_is_sent_cannot_be_changed_by_whoever_sends_it() -> None:
    """A request that has to be sent again is the same request."""
    assert block_of({"body": ([b"a"],)}).batch(0, 1).readonly


def test_large_offsets_and_slices_are_read_as_well() -> None:
    """Covers spark.sql.execution.arrow.useLargeVarTypes."""
    large = {
        "body": pa.array(["a", "b", "c"], pa.large_string()),
        "tags": pa.array(["t", None, "u"], pa.large_string()),
        "keys": pa.array([["k"], None, ["l", "m"]], pa.large_list(pa.large_string())),
        "properties": pa.array(
            [[("p", "1")], None, [("q", "2"), ("r", "3")]],
            pa.map_(pa.large_string(), pa.large_string()),
        ),
    }
    batch = pa.record_batch(large).slice(1)
    items = sent(encoder(batch).block(batch))
    assert [bytes(item.body) for item in items] == [b"b", b"c"]
    assert own(items) == [{}, {"TAGS": "u", "KEYS": "l m", "q": "2", "r": "3"}]


def test_a_time_of_delivery_is_in_milliseconds() -> None:
    at = datetime.datetime(2033, 5, 18, 3, 33, 20, 123_999, datetime.UTC)
    first = datetime.datetime(1970, 1, 1, 0, 0, 0, 1_000, datetime.UTC)
    times = ([at, None, first], pa.timestamp("us", "UTC"))
    block = block_of({"body": ([b"a", b"b", b"c"],), "deliverTime": times})
    assert own(sent(block)) == [
        {"TIMER_DELIVER_MS": "2000000000123"}, {}, {"TIMER_DELIVER_MS": "1"},
    ]  # fmt: skip
    assert (block.timed, block.delayed.tolist()) == (True, [True, False, True])


def test_reserved_names_are_refused_or_left_out() -> None:
    """A topic's properties as they are read hold the system's own, and those of another write."""
    columns = {
        "body": ([b"a", b"b", b"c"],),
        "properties": (
            [
                [("p", "1")],
                [("UNIQ_KEY", "X"), ("q", "2"), ("SPARK_SEQUENCE", "9")],
                [("WAIT", "true")],
            ],
            MAP,
        ),
    }
    with pytest.raises(
        MessageInvalidError,
        match=r"row 1 of partition 2 cannot be a message: properties has the reserved name "
        r"'UNIQ_KEY'.*"
        r"reservedProperties=drop.*None of the 3 rows",
    ):
        block_of(columns)
    items = sent(block_of(columns, drop_reserved=True))
    assert own(items) == [{"p": "1"}, {"q": "2"}, {}]
    assert decode_properties(bytes(items[1].properties))["SPARK_SEQUENCE"] == "1"


def test_a_null_of_properties_has_none_whatever_lies_in_its_place() -> None:
    """Arrow allows entries there, as other libraries leave them; no reader sees those."""
    properties = pa.MapArray.from_arrays(
        pa.array([0, 1, 3, 4, 5], pa.int32()),
        pa.array(["p", "UNIQ_KEY", " ", "q", "r"]),
        pa.array(["1", "X", None, "2", "3"]),
        mask=pa.array([False, True, False, True]),
    )
    bodies = pa.array([b"a", b"b", b"c", b"d"])
    batch = pa.record_batch({"body": bodies, "properties": properties})
    assert own(sent(encoder(batch).block(batch))) == [{"p": "1"}, {}, {"q": "2"}, {}]
    part = batch.slice(1, 2)
    assert own(sent(encoder(part).block(part))) == [{}, {"q": "2"}]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": ([b"a", None],)}, "row 1 of partition 2 cannot be a message: body is null"),
        ({"body": ([b"a", b""],)}, "row 1 .* body is empty"),
        ({"body": ([b"a", b"x" * 1_001],)}, r"row 1 .* larger than 1000 bytes \(option maxMessa"),
        ({"body": ([b"a"],), "topic": ([None], pa.string())}, "topic is null or empty"),
        ({"body": ([b"a"],), "topic": ([""],)}, "topic is null or empty"),
        ({"body": ([b"a"],), "tags": (["x\x01y"],)}, r"tags contains U\+0001"),
        ({"body": ([b"a"],), "keys": (["x\x02y"],)}, r"keys contains U\+0001 or U\+0002"),
        ({"body": ([b"a"],), "keys": ([["x", None]],)}, "keys has a null in it"),
        ({"body": ([b"a"],), "keys": ([["x", " "]],)}, "keys has an empty word in it"),
        ({"body": ([b"a"],), "properties": ([[("p", None)]], MAP)}, "a value that is null or bl"),
        ({"body": ([b"a"],), "properties": ([[(" ", "v")]], MAP)}, "a name that is null or blank"),
        ({"body": ([b"a"],), "properties": ([[("p", "a\x02b")]], MAP)}, "properties contains U"),
        ({"body": ([b"a"],), "properties": ([[("p", "")]], MAP)}, "a value that is null or blank"),
        ({"body": ([b"a"],), "properties": ([[("", "v")]], MAP)}, "a name that is null or blank"),
        (
            {"body": ([b"a"],), "properties": ([[("p", "v"), ("q", "\u3000\u2003")]], MAP)},
            "a value that is null or blank",
        ),
        ({"body": ([b"a"],), "properties": ([[("p\x01", "v")]], MAP)}, "properties contains U"),
        ({"body": ([b"a"],), "properties": ([[("p", "v" * 40_000)]], MAP)}, "more than 32767 by"),
        ({"body": ([b"a"],), "queueId": ([-1],)}, "queueId is not from 0 to"),
        ({"body": ([b"a"],), "delayLevel": ([-1],)}, "delayLevel is not from 0 to"),
        ({"body": ([b"a"],), "flag": ([2**31],)}, "flag is not from -2147483648 to 2147483647"),
        (
            {"body": ([b"a"],), "deliverTime": ([999], pa.timestamp("us", "UTC"))},
            "deliverTime is before 1970",
        ),
    ],
)
def test_a_row_that_is_no_message_is_named_and_none_is_made(
    columns: dict[str, Any], text: str
) -> None:
    with pytest.raises(MessageInvalidError, match=text):
        block_of(columns)


@pytest.mark.parametrize("bad", [None, "", " \t", "\u3000", "\x01", "a\x02b"])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_the_row_of_a_bad_value_is_named_in_a_slice_too(bad: str | None, at: int) -> None:
    """Rows before and after the slice are no concern of it; rows have one, none and two values."""
    good: list[list[tuple[str, str | None]] | None] = [
        [("p", "1")], [], [("p", "1")], None, [("é", "2"), ("q", "ü")], [("p", "1")],
    ]  # fmt: skip
    outside = [[("p", bad)], *good[1:5], [("p", bad)]]
    whole = pa.record_batch({"body": pa.array([b"a"] * 6), "properties": pa.array(outside, MAP)})
    clean = whole.slice(1, 4)
    assert len(own(sent(encoder(clean).block(clean)))) == 4
    outside[at] = [("p", "1"), ("q", bad)]
    whole = pa.record_batch({"body": pa.array([b"a"] * 6), "properties": pa.array(outside, MAP)})
    part = whole.slice(1, 4)
    why = "contains U" if bad and bad.strip() else "a value that is null or blank"
    with pytest.raises(MessageInvalidError, match=rf"row {at - 1} of partition 2 .*{why}"):
        encoder(part).block(part)


def test_a_blank_value_is_found_by_its_first_byte_in_a_slice() -> None:
    """Among plain values only, where nothing else calls for a look at each; covers its place."""
    pairs = [[("p", "123")], [("p", "4")], [("p", "  ")], [("p", "5")]]
    whole = pa.record_batch({"body": pa.array([b"a"] * 4), "properties": pa.array(pairs, MAP)})
    with pytest.raises(MessageInvalidError, match=r"row 1 of .*a value that is null or blank"):
        encoder(whole.slice(1)).block(whole.slice(1))
    clean = whole.slice(3)
    assert own(sent(encoder(clean).block(clean))) == [{"p": "5"}]


def test_a_null_value_is_found_whatever_bytes_lie_under_it() -> None:
    """Arrow leaves open what a null's place holds."""
    places = [pa.py_buffer(b"\x01"), pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"vw")]
    values = pa.Array.from_buffers(pa.string(), 2, places)
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array(["p", "q"]), values)
    batch = pa.record_batch({"body": pa.array([b"a"] * 2), "properties": maps})
    with pytest.raises(MessageInvalidError, match=r"row 1 of .*a value that is null or blank"):
        encoder(batch).block(batch)


def test_values_may_begin_with_white_space() -> None:
    """Only values of nothing else are refused."""
    pairs = [(" p", "\tv "), ("q", "\u3000x"), ("\u00e4", "\x7f")]
    block = block_of({"body": ([b"a"],), "properties": ([pairs], MAP)})
    assert own(sent(block)) == [dict(pairs)]


def test_a_record_batch_without_rows_makes_no_messages() -> None:
    """Spark sends such ones."""
    kinds = {"body": pa.binary(), "keys": pa.string(), "tags": pa.string(), "properties": MAP}
    assert len(block_of({name: ([], kind) for name, kind in kinds.items()})) == 0


def told(found: list[Run]) -> dict[tuple[str, Any, bool], list[bytes]]:
    """The bodies of each lane, in their order."""
    return {
        (run.topic, run.queue and run.queue[1:], run.delayed): [
            run.block.one(row)[0] for row in range(len(run.block))
        ]
        for run in found
    }


def test_rows_of_one_lane_keep_their_order() -> None:
    """By topic, queue and delay."""
    block = block_of(
        {
            "body": ([b"0", b"1", b"2", b"3", b"4", b"5"],),
            "topic": (["U", "T", "U", "T", "T", "T"],),
            "queueId": ([None, 1, None, 1, None, 0], pa.int32()),
            "brokerName": (["a", "b", None, "a", None, "b"],),
            "delayLevel": ([None, None, None, None, 4, None], pa.int32()),
            "flag": ([0, 1, 2, 3, 4, 5],),
        }
    )
    found = list(runs(block, None, lambda topic: QUEUES, queue_of_key))
    assert told(found) == {
        ("U", None, False): [b"0", b"2"],
        ("T", ("b", 1), False): [b"1"],
        ("T", ("a", 1), False): [b"3"],
        ("T", None, True): [b"4"],
        ("T", ("b", 0), False): [b"5"],
    }
    for run in found:
        assert [run.block.one(row)[2] for row in range(len(run.block))] == [
            int(run.block.one(row)[0]) for row in range(len(run.block))
        ]

    def sizes(run: Run) -> list[int]:
        return [
            BESIDE + len(body) + len(text)
            for body, text, _ in map(run.block.one, range(len(run.block)))
        ]

    assert [run.block.ends.tolist() for run in found] == [
        list(itertools.accumulate(sizes(run))) for run in found
    ]


def test_rows_of_several_topics_go_to_any_queue_of_their_own() -> None:
    block = block_of({"body": ([b"0", b"1", b"2"],), "topic": (["T", "U", "T"],)})
    assert told(list(runs(block, None, lambda topic: QUEUES, queue_of_key))) == {
        ("T", None, False): [b"0", b"2"],
        ("U", None, False): [b"1"],
    }


def test_equal_sharding_keys_go_where_the_client_sends_them() -> None:
    """Java's hash modulo the queues, C-471: "a" is 97, "b" 98; no key, any queue."""
    block = block_of(
        {"body": ([b"0", b"1", b"2", b"3"],), "shardingKey": (["a", "b", None, "a"], pa.string())}
    )
    assert told(list(runs(block, "T", lambda topic: QUEUES, queue_of_key))) == {
        ("T", ("a", 1), False): [b"0", b"3"],
        ("T", ("b", 0), False): [b"1"],
        ("T", None, False): [b"2"],
    }


def test_a_key_goes_to_the_queue_of_its_own_topic() -> None:
    """Topics have other queues each, and the same keys."""
    block = block_of(
        {
            "body": ([b"0", b"1", b"2", b"3"],),
            "topic": (["T", "U", "U", "V"],),
            "shardingKey": (["a", "a", "b", "b"], pa.string()),
        }
    )

    def queues_of(topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, topic.lower(), queue_id) for queue_id in range(4)]

    found = [run.queue for run in runs(block, None, queues_of, queue_of_key)]
    assert set(found) == {("T", "t", 1), ("U", "u", 1), ("U", "u", 2), ("V", "v", 2)}


def test_a_column_of_nulls_asks_for_nothing() -> None:
    """And rows that all go one way are not copied."""
    block = block_of({"body": ([b"0", b"1"],), "shardingKey": ([None, None], pa.string())})
    (run,) = runs(block, "T", lambda topic: [], queue_of_key)
    assert run.block is block


@pytest.mark.parametrize(
    ("queue_id", "broker", "text"),
    [
        (0, None, "queue 0 of topic 'T' is on several brokers: add a column brokerName.*a/0, a/1"),
        (2, None, "queue 2 of topic 'T' cannot be written to"),
        (0, "c", "queue 0 of broker 'c' of topic 'T' cannot be written to"),
    ],
)
def test_a_queue_that_is_not_there_is_refused(queue_id: int, broker: str | None, text: str) -> None:
    columns = {"body": ([b"0"],), "queueId": ([queue_id],), "brokerName": ([broker], pa.string())}
    with pytest.raises(MessageInvalidError, match=text):
        list(runs(block_of(columns), "T", lambda topic: QUEUES, queue_of_key))


def test_an_error_of_the_route_is_told_as_it_is() -> None:
    def unknown(topic: str) -> list[MessageQueue]:
        raise ConfigurationError(f"topic {topic!r} has no queue")

    block = block_of({"body": ([b"0"],), "shardingKey": (["a"],)})
    with pytest.raises(ConfigurationError, match="topic 'T' has no queue"):
        list(runs(block, "T", unknown, queue_of_key))

"""What a write accepts: options, columns, and how rows are cut into requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.columns.messages import cut
from rocketstream.errors import ConfigurationError
from rocketstream.spark.options import WRITE_OPTIONS, WriteOptions, write_options
from rocketstream.spark.sink.columns import COLUMNS, choose


def parse(**given: str) -> WriteOptions:
    return write_options({"nameserver": "h:1"} | given, "batch")


def test_options_match_in_any_case_and_have_defaults() -> None:
    """Only where the cluster is must be said; Spark's own options are left alone."""
    found = parse(TOPIC=" T ", checkpointLocation="/x", queryName="q")
    assert (found.topic, found.producer_group, found.write_id) == ("T", "rocketstream-spark", None)
    assert (found.max_message_size, found.sends_in_flight) == (4_194_304, 8)
    assert parse(sendsinflight="3", RESERVEDPROPERTIES="Drop").drop_reserved
    assert parse().topic is None
    assert "secret" not in repr(parse(accessKey="a", secretKey="secret"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOffsets": "earliest"}, "unknown option 'startingOffsets'.*Accepted: topic, pro"),
        ({"path": "other"}, "a path is given, 'other', but this format has no files: give options"),
        ({"sendInFlight": "8"}, "did you mean 'sendsInFlight'"),
        ({"sendBatchSize": "0"}, "'sendBatchSize' is '0'; give a whole number from 1 to 4096"),
        ({"maxMessageSize": "20000000"}, "'maxMessageSize' is '20000000'; give a whole number fr"),
        ({"reservedProperties": "keep"}, "'reservedProperties' is 'keep'; give fail, or drop"),
        ({"writeId": "a\x01b"}, "'writeId' is 'a.x01b'; give text without control characters"),
        ({"tlsCaFile": "/ca"}, "'tlsCaFile' needs option 'useTls'"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_accepted(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        parse(**given)


def test_a_streams_messages_are_named_by_its_query() -> None:
    with pytest.raises(ConfigurationError, match="'writeId' is for batch writes"):
        write_options({"nameServer": "h:1", "writeId": "mine"}, "stream")
    assert write_options({"nameServer": "h:1"}, "stream").write_id is None


def test_the_documented_options_are_those_that_are_parsed() -> None:
    """Each in the list is accepted under its documented spelling, once."""
    assert len(WRITE_OPTIONS) == len({name.lower() for name in WRITE_OPTIONS})


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, kinds in COLUMNS.items() for k in kinds])
def test_every_column_is_found_in_each_of_its_types(name: str, kind: str) -> None:
    """By name, in any case, beside what it cannot be without."""
    others = [("body", "binary"), ("topic", "string"), ("queueId", "int")]
    fields = [field for field in others if field[0] != name]
    if name == "shardingKey":
        fields = fields[:2]
    assert choose([*fields, (name.upper(), kind)], None)[name] == len(fields)


def test_a_collation_makes_no_difference() -> None:
    assert choose([("Body", "string collate UNICODE_CI")], "T") == {"body": 0}


def test_option_topic_wins_over_the_column() -> None:
    """As in Spark's Kafka sink."""
    assert choose([("topic", "string"), ("body", "binary")], "T") == {"body": 1}


@pytest.mark.parametrize(
    ("fields", "topic", "texts"),
    [
        ([("value", "binary")], "T", ["no column 'value'", "column 'body' is missing"]),
        ([("body", "int")], "T", ["'body' is binary or string, not int"]),
        ([("body", "binary"), ("keys", "array<int>")], "T", ["'keys' is string or array<string>"]),
        ([("body", "binary"), ("BODY", "binary")], "T", ["'BODY' is given twice"]),
        ([("body", "binary")], None, ["neither option 'topic' nor a column 'topic'"]),
        ([("body", "binary"), ("topic", "int")], "T", ["'topic' is string, not int"]),
        ([("body", "binary"), ("brokerName", "string")], "T", ["'brokerName' needs 'queueId'"]),
        (
            [("body", "string"), ("deliverTime", "timestamp_ntz"), ("flag", "double")],
            "T",
            ["'deliverTime' is timestamp, not timestamp_ntz", "'flag' is int or bigint"],
        ),
        (
            [("body", "string"), ("queueId", "int"), ("shardingKey", "string")],
            "T",
            ["'queueId' and 'shardingKey' exclude each other: both say which queue"],
        ),
        (
            [("body", "string"), ("delayLevel", "int"), ("deliverTime", "timestamp")],
            "T",
            ["'delayLevel' and 'deliverTime' exclude each other"],
        ),
    ],
)
def test_all_mistakes_of_a_schema_are_told_at_once(
    fields: list[tuple[str, str]], topic: str | None, texts: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as told:
        choose(fields, topic)
    for text in [*texts, "Select, rename and cast to: body binary or string, topic string"]:
        assert text in str(told.value)


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120), st.integers(1, 9))
def test_cuts_are_whole_consecutive_within_bounds_and_as_long_as_they_can_be(
    sizes: list[int], bytes_max: int, count_max: int
) -> None:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    spans = list(cut(ends, bytes_max, count_max))
    assert [row for begin, end in spans for row in range(begin, end)] == list(range(len(sizes)))
    for begin, end in spans:
        size = sum(sizes[begin:end])
        assert 1 <= end - begin <= count_max
        assert size <= bytes_max or end - begin == 1
        full = end - begin == count_max or end == len(sizes)
        assert full or size + sizes[end] > bytes_max

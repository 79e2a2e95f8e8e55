"""Which queues a user may choose, and where a read of them begins and ends."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.options import Position, ReadOptions, read_options, since_1970

A0, A1 = MessageQueue("A", "b", 0), MessageQueue("A", "b", 1)
HOUR_MS = 3_600_000


def parse(**given: str) -> ReadOptions:
    return read_options({"nameServer": "h:1", "group": "g"} | given, "batch")


@pytest.mark.parametrize(
    ("given", "of_a", "of_b"),
    [
        ({"topic": "A"}, True, False),
        ({"topics": "B,A"}, True, True),
        ({"topicPattern": "A|C"}, True, False),
        ({"assign": '{"A":{"b":[0,1]},"B":{"b":[1]}}'}, True, False),
    ],
)
def test_topics_are_named_or_match_or_are_assigned(
    given: dict[str, str], of_a: bool, of_b: bool
) -> None:
    """As in Spark's Kafka source: subscribe, subscribePattern, assign."""
    choice = parse(**given).choice
    assert (choice.wants(A0), choice.wants(MessageQueue("B", "b", 0))) == (of_a, of_b)


def test_a_pattern_matches_whole_names() -> None:
    """As in Spark's Kafka source: part of a name is no match."""
    choice = parse(topicPattern="orders-.*").choice
    assert choice.has("orders-eu")
    assert not choice.has("old-orders-eu")
    assert not choice.has("orders")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "exactly one of the options 'topic' .*'topicPattern' and 'assign': none is"),
        ({"topic": "A", "assign": "{}"}, "'topic' and 'assign' are given"),
        ({"topic": "A", "topics": "A"}, "'topic' and 'topics' are given"),
        ({"topicPattern": "("}, r"'topicPattern' is '\('; give a regular expression"),
        ({"assign": "A"}, "'assign' is 'A'; give queues as"),
        ({"assign": "{}"}, "give queues as"),
        ({"assign": '{"A":{"b":[]}}'}, "give queues as"),
        ({"assign": '{"A":{"b":["0"]}}'}, "give queues as"),
        ({"assign": '{"A":{"b":[true]}}'}, "give queues as"),
        ({"assign": '{"A":{"b":[-1]}}'}, "give queues as"),
        ({"assign": '{"A":[0]}'}, "give queues as"),
        (
            {"assign": '{"A":{"b":[0]}}', "startingOffsets": '{"A":{"b":{"1":5}}}'},
            "only for queues that are read",
        ),
    ],
)
def test_a_choice_that_is_none_is_refused(given: dict[str, str], text: str) -> None:
    """Option, value, remedy."""
    with pytest.raises(ConfigurationError, match=text):
        parse(**given)


def test_a_value_in_place_of_a_broker_or_topic_is_that_of_all_its_queues() -> None:
    """The nearest one counts."""
    given = '{"A":{"b":{"0":5},"c":7},"B":-1}'
    table = parse(topic="A,B", startingOffsets=given).start.table
    assert table is not None
    queues = [A0, A1, MessageQueue("A", "c", 9), MessageQueue("B", "x", 3)]
    assert [table.of(queue) for queue in queues] == [5, None, 7, -1]


def test_a_position_may_be_spelled_in_any_case() -> None:
    """Words, in JSON too; names of topics keep their case."""
    assert parse(topic="A", startingOffsets="earLiEst", endingOffsets=" laTest ").start == Position(
        "earliest"
    )
    table = parse(topic="A,B", startingOffsets='{"A":"eArLiEst","B":{"b":"Latest"}}').start.table
    assert table is not None
    assert table.of(A1) == -2
    assert table.of(MessageQueue("B", "b", 0)) == -1
    for wrong in ('{"a":"earliest"}', '{"A":"newest"}', '{"A":"group"}'):
        with pytest.raises(ConfigurationError, match="option 'startingOffsets'"):
            parse(topic="A", startingOffsets=wrong)


@pytest.mark.parametrize(
    ("text", "before_now_ms"),
    [("-10m", 600_000), ("-2h", 2 * HOUR_MS), ("-1d", 24 * HOUR_MS), ("- 90 s", 90_000)],
)
def test_times_may_be_told_from_now(text: str, before_now_ms: int) -> None:
    """Whoever plans the read looks at the clock; parsing does not."""
    start = parse(topic="A", startingTimestamp=text).start
    assert since_1970(start.timestamp_ms, 10**12) == 10**12 - before_now_ms
    later = parse(topic="A", startingTimestamp="1700000000077").start
    assert since_1970(later.timestamp_ms, 10**12) == 1_700_000_000_077


def test_a_queue_may_have_a_time_of_its_own() -> None:
    """As startingOffsetsByTimestamp in Spark's Kafka source, times in every form."""
    given = '{"A":{"b":{"0":1700000000000,"1":"2023-11-14T22:13:20Z"},"c":"-1h"}}'
    options = parse(
        topic="A", startingOffsetsByTimestamp=given, endingOffsetsByTimestamp='{"A":0}',
        startingOffsetsByTimestampStrategy="error",
    )  # fmt: skip
    start, end = options.start, options.end
    assert start.table is not None
    assert end.table is not None
    assert (start.table.of(A0), start.table.of(A1)) == (1_700_000_000_000,) * 2
    assert start.table.of(MessageQueue("A", "c", 0)) == -HOUR_MS
    assert (start.kind, start.must_match, end.must_match) == ("timestamps", True, False)
    assert end.table.of(A0) == 0


def test_without_a_strategy_a_time_nothing_was_stored_after_is_the_end() -> None:
    """Nothing is lost by it, and quiet queues are the rule, not an error."""
    assert not parse(topic="A", startingTimestamp="-10m").start.must_match


def test_a_group_may_say_where_to_begin_and_where_to_end() -> None:
    """What it has consumed, or what it has not."""
    assert parse(topic="A", startingOffsets="group").start == Position("group")
    assert parse(topic="A", endingOffsets="GROUP").end == Position("group")
    assert read_options(
        {"nameServer": "h:1", "topic": "A", "group": "g", "startingOffsets": "group"}, "stream"
    ).start == Position("group")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"startingOffsets": "earliest", "startingTimestamp": "5"},
            "'startingOffsets' and 'startingTimestamp' both say where the read begins",
        ),
        (
            {"endingOffsetsByTimestamp": '{"A":5}', "endingTimestamp": "5"},
            "'endingTimestamp' and 'endingOffsetsByTimestamp' both say where the read ends",
        ),
        ({"startingOffsets": "group", "endingOffsets": "group"}, "a batch from 'group' begins"),
        ({"startingOffsets": "group", "group": ""}, "say whose offsets by option 'group'"),
        ({"startingTimestamp": "-10"}, "or a time before now such as -10m"),
        ({"startingTimestamp": "-10x"}, "or a time before now such as -10m"),
        ({"startingTimestamp": "-0m"}, "or a time before now such as -10m"),
        ({"startingTimestamp": "10m"}, "or a time before now such as -10m"),
        ({"startingOffsetsByTimestamp": "5"}, "with times: milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"A":{"b":{"0":-5}}}'}, "with times: "),
        ({"startingOffsetsByTimestamp": '{"A":1700000000}'}, "with times: "),
        ({"startingOffsetsByTimestamp": '{"A":true}'}, "with times: "),
        ({"startingOffsetsByTimestamp": '{"A":{"b":{"0":{"c":5}}}}'}, "with times: "),
        ({"startingOffsetsByTimestampStrategy": "first"}, "give error or latest"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "is for a read that begins at a time"),
        (
            {"startingOffsetsByTimestampStrategy": "error", "startingOffsets": "earliest"},
            "is for a read that begins at a time",
        ),
    ],
)
def test_a_position_that_is_none_is_refused(given: dict[str, str], text: str) -> None:
    """An option that would be ignored is a mistake too."""
    with pytest.raises(ConfigurationError, match=text):
        parse(**{"topic": "A"} | given)

"""What a user may write in option(...) and .schema(...), and what is answered."""

from __future__ import annotations

import dataclasses

import pytest

from rocketstream.columns.table import ALL_COLUMNS, COLUMNS, Column, choose
from rocketstream.errors import ConfigurationError, SubscriptionError
from rocketstream.model import MessageQueue
from rocketstream.spark.options import (
    AT_EARLIEST,
    AT_LATEST,
    READ_OPTIONS,
    Mode,
    Position,
    ReadOptions,
    read_options,
)
from rocketstream.spark.options.reading import (
    CLIENT_SETTINGS,
    END_OPTIONS,
    LIMIT_OPTIONS,
    START_OPTIONS,
    STRATEGY_OPTION,
    TOPIC_OPTIONS,
)
from rocketstream.spark.scan import new_scan


def parse(**given: str) -> ReadOptions:
    return parse_for("batch", **given)


def parse_for(mode: Mode, **given: str) -> ReadOptions:
    return read_options({"nameserver": "h:1", "TOPIC": "T"} | given, mode)


def test_names_match_in_any_case_and_defaults_follow_kafkas_source() -> None:
    """A batch reads everything, a stream what comes."""
    batch, stream = parse(), parse_for("stream")
    assert (batch.name_server, batch.topics, batch.group) == ("h:1", ("T",), None)
    assert (batch.start, batch.end) == (AT_EARLIEST, AT_LATEST)
    assert stream.start == AT_LATEST
    assert (batch.fail_on_data_loss, batch.tags) == (True, "*")
    assert (
        parse_for("stream", MaxOffsetsPerTrigger="7", failondataloss="FALSE").limits.rows_max == 7
    )


def test_topics_are_a_list() -> None:
    """Spaces and repeats do not matter."""
    assert parse(TOPIC=" a, b,,a ").topics == ("a", "b")


def test_what_spark_adds_is_left_alone() -> None:
    """Its own settings, and the empty path of some of its calls."""
    assert parse(path="", **{"spark.sql.something": "1"}).topics == ("T",)


def test_a_path_is_no_way_to_say_what_is_read() -> None:
    """Whoever writes load("orders") means the topic."""
    with pytest.raises(ConfigurationError, match=r"path is given, 'orders'.*Accepted: topic,"):
        parse(path="orders")


@pytest.mark.parametrize("text", ["localhost", "h:1,i:2", "http://h:1", "h:port", ":1"])
def test_name_servers_are_looked_at_before_one_is_asked(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option 'nameServer' is '.*separated by ';'"):
        parse(nameserver=text)
    assert parse(nameserver="h:1; [::1]:2;").name_server == "h:1; [::1]:2;"


def test_a_group_nobody_can_have_is_refused_before_a_task_runs() -> None:
    with pytest.raises(ConfigurationError, match=r"option 'group' is 'a b': .*illegal"):
        parse(group="a b")
    assert parse(group=" ").group is None


@pytest.mark.parametrize(
    "text",
    ["1", "1700000000", "20240501", "202405011200", "4102444800000", "1700000000000000"],
)
def test_numbers_that_mean_another_time_are_not_taken_for_milliseconds(text: str) -> None:
    """Everything would be read, from a day of 1970, or nothing, before the year 55840."""
    with pytest.raises(ConfigurationError, match=rf"'{text}'; give milliseconds .* \(13 digits: "):
        parse(startingTimestamp=text)


@pytest.mark.parametrize("first", [0, 10**12, 4_102_444_799_999])
def test_milliseconds_are_those_of_this_century_and_zero(first: int) -> None:
    assert parse(startingTimestamp=str(first)).start.timestamp_ms == first


def test_an_expression_that_is_wrong_is_named_with_its_option() -> None:
    """In one line: what compiles it has no more to say."""
    with pytest.raises(SubscriptionError, match=r"option 'sql' is 'price >': the SQL92") as caught:
        new_scan(parse(sql="price >"), ALL_COLUMNS)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'.*Accepted: topic, "),
        ({"subscribe": "T"}, "unknown option 'subscribe'; did you mean 'topic'"),
        ({"kafka.bootstrap.servers": "h:1"}, "did you mean 'nameServer'"),
        ({"whatever": "1"}, "unknown option 'whatever'. Accepted: "),
        ({"nameserver": " "}, "'nameServer' is missing: give host:port"),
        ({"nameserver": ";"}, "'nameServer' is ';'; give host:port"),
        ({"nameserver": "h:1;h:70000"}, "'nameServer' is 'h:1;h:70000'"),
        ({"TOPIC": ""}, "exactly one of the options .*: option 'topic' is empty"),
        ({"TOPIC": ","}, "option 'topic' is ','"),
        ({"minPartitions": "0"}, "'minPartitions' is '0'; give a whole number of at least 1"),
        ({"minPartitions": "x"}, "'minPartitions' is 'x'"),
        ({"pullsInFlight": "65"}, "a whole number from 1 to 64"),
        ({"failOnDataLoss": "yes"}, "'failOnDataLoss' is 'yes'; give true or false"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970 UTC .*ISO 8601 "),
        ({"startingOffsets": "latest"}, "a batch ends there"),
        ({"endingOffsets": "earliest"}, "a batch begins there"),
        ({"startingOffsets": "{"}, "-2 earliest, -1 latest"),
        ({"startingOffsets": "7"}, "-2 earliest"),
        ({"startingOffsets": "{}"}, "-2 earliest"),
        ({"startingOffsets": '{"T":{"b":{"0":-3}}}'}, "-2 earliest"),
        ({"startingOffsets": '{"T":{"b":{"0":true}}}'}, "-2 earliest"),
        ({"startingOffsets": '{"T":{"b":{"x":1}}}'}, "-2 earliest"),
        ({"startingOffsets": '{"T":{"b":[1]}}'}, "-2 earliest"),
        ({"startingOffsets": '{"T2":{"b":{"0":1}}}'}, r"only for queues that are read \(T\)"),
    ],
)
def test_a_mistake_is_named_with_what_is_accepted(given: dict[str, str], text: str) -> None:
    """Option, value, remedy."""
    with pytest.raises(ConfigurationError, match=text):
        parse(**given)


def test_a_stream_has_no_end() -> None:
    """Ending options would be ignored silently otherwise."""
    with pytest.raises(ConfigurationError, match="'endingTimestamp' is for batch reads"):
        parse_for("stream", endingTimestamp="1")


def test_offsets_are_nested_json() -> None:
    """Topic, broker, queue: the shape of Spark's Kafka source with the broker added."""
    table = parse(startingOffsets='{"T":{"b":{"0":5,"1":-2},"c":{"0":-1}}}').start.table
    assert table is not None
    assert table.values == {("T", "b", 0): 5, ("T", "b", 1): -2, ("T", "c", 0): -1}
    assert table.of(MessageQueue("T", "b", 2)) is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
    ],
)
def test_times_are_milliseconds_or_iso(text: str, milliseconds: int) -> None:
    """Without a zone it is UTC, the same on every machine."""
    wanted = Position("timestamp", timestamp_ms=milliseconds)
    assert parse(startingTimestamp=text).start == wanted
    assert parse(endingTimestamp=text).end == wanted


def test_secrets_are_not_shown() -> None:
    """Plans and logs print options."""
    tls = {"useTls": "true", "tlsCertFile": "/cert.pem", "tlsKeyPassword": "s3cret"}
    options = parse(accessKey="user", secretKey="s3cret", **tls)
    assert options.secret_key == "s3cret"
    assert "s3cret" not in repr(options)


def test_tls_is_off_unless_asked_for_and_its_options_need_it() -> None:
    """Certificates without TLS would be a secret sent in plain text."""
    assert not parse().use_tls
    options = parse(useTLS="true", tlsCaFile="/ca.pem", tlsCheckHostname="true")
    assert (options.use_tls, options.tls_ca_file, options.tls_verify) == (True, "/ca.pem", True)
    assert options.tls_check_hostname
    with pytest.raises(ConfigurationError, match=r"'tlsCaFile' needs option 'useTls' to be true"):
        parse(tlsCaFile="/ca.pem")
    with pytest.raises(ConfigurationError, match=r"'tlsKeyFile' needs option 'tlsCertFile'"):
        parse(useTls="true", tlsKeyFile="/key.pem")


def test_every_option_is_read_somewhere() -> None:
    """The list users see is the list that works."""
    fields = {field.name.replace("_", "") for field in dataclasses.fields(ReadOptions)}
    gathered = (
        dict.fromkeys(TOPIC_OPTIONS, "choice")
        | dict.fromkeys((*START_OPTIONS, STRATEGY_OPTION), "start")
        | dict.fromkeys(END_OPTIONS, "end")
        | {"mode": "permissive"}
        | dict.fromkeys(LIMIT_OPTIONS, "limits")
    )
    assert {gathered.get(name, name.lower()) for name in READ_OPTIONS} == fields


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sql": " "}, "'sql' is ' '; give a condition such as price > 5"),
        ({"sql": "a > 1", "tags": "b"}, "'tags' and 'sql' both select messages"),
        ({"commitOffsets": "true", "group": "g"}, "a batch moves no group"),
        ({"commitOffsets": "true"}, "a batch moves no group"),
        ({"groupMember": "me", "group": "g"}, "none are reported"),
        ({"rocketmq.pullBatchSizes": "1"}, "did you mean 'rocketmq.pullBatchSize'"),
        ({"rocketmq.whatever": "1"}, "Accepted: rocketmq.namesrv.addr, rocketmq.namesrvAddr"),
        ({"rocketmq.instanceName": "x"}, "has no effect here: a read joins no group"),
        ({"rocketmq.consumeFromWhere": "x"}, "say where to begin by 'startingOffsets'"),
        ({"rocketmq.namesrv.addr": "h:1"}, "'nameserver' and 'rocketmq.namesrv.addr' are the same"),
    ],
)
def test_an_option_without_effect_is_refused(given: dict[str, str], text: str) -> None:
    """Ignored it would be believed in."""
    with pytest.raises(ConfigurationError, match=text):
        parse(**given)


def test_settings_of_rocketmqs_own_clients_are_understood() -> None:
    """By Java's names, behind ``rocketmq.``, in any case."""
    given = {
        "rocketmq.namesrv.addr": "n:9876", "ROCKETMQ.pullbatchsize": "7", "topic": "T",
        "rocketmq.consumerGroup": "g", "rocketmq.mqClientApiTimeout": "50",
        "rocketmq.accessKey": "user", "rocketmq.secretKey": "s3cret", "rocketmq.useTLS": "true",
    }  # fmt: skip
    options = read_options(given, "stream")
    assert (options.name_server, options.pull_batch_size, options.group) == ("n:9876", 7, "g")
    assert (options.request_timeout_ms, options.access_key, options.use_tls) == (50, "user", True)
    for name in CLIENT_SETTINGS.values():
        assert name in READ_OPTIONS


def test_a_stream_with_a_group_reports_unless_told_not_to() -> None:
    """A batch never does; a group may be named for other reasons."""
    assert parse_for("stream", group="g").commit_offsets
    assert not parse_for("stream", group="g", commitOffsets="false").commit_offsets
    assert not parse_for("stream").commit_offsets
    assert not parse(group="g").commit_offsets
    with pytest.raises(ConfigurationError, match="say for which group"):
        parse_for("stream", commitOffsets="true")


def test_a_condition_is_checked_before_anything_is_read() -> None:
    """And messages it leaves out are no loss."""
    assert new_scan(parse(sql="price > 5 AND TAGS = 'a'"), ALL_COLUMNS).filtered
    assert new_scan(parse(tags="a"), ALL_COLUMNS).filtered
    assert not new_scan(parse(), ALL_COLUMNS).filtered
    with pytest.raises(SubscriptionError):
        new_scan(parse(sql="price >"), ALL_COLUMNS)


def test_tags_become_the_exact_set() -> None:
    """Covers C-99 to C-101."""
    assert new_scan(parse(), ALL_COLUMNS).tags is None
    assert new_scan(parse(tags="a || b"), ALL_COLUMNS).tags == frozenset({"a", "b"})
    with pytest.raises(SubscriptionError):
        new_scan(parse(tags="||"), ALL_COLUMNS)


def test_columns_are_chosen_by_schema() -> None:
    """Any subset, any order, the user's spelling."""
    assert choose([("BODY", "binary"), ("tags", "string")]) == (
        Column("body", "BODY"),
        Column("tags", "tags"),
    )
    assert choose(list(COLUMNS.items())) == ALL_COLUMNS


def test_all_mistakes_of_a_schema_are_named_at_once() -> None:
    """And what there is to choose from."""
    with pytest.raises(ConfigurationError) as caught:
        choose([("value", "string"), ("body", "string"), ("tags", "string"), ("TAGS", "string")])
    text = str(caught.value)
    assert "no column 'value'; 'body' is binary, not string; 'TAGS' is given twice" in text
    assert "properties map<string,string>" in text
    with pytest.raises(ConfigurationError, match="no column at all"):
        choose([])

"""A stream's writer that holds the group: from before the query's start until after its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.columns.table import COLUMNS
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ConnectError,
    NotSupportedError,
)
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.listener import claim as claiming
from rocketstream.spark.listener import queries
from rocketstream.spark.listener.claim import GroupClaim, live_members
from rocketstream.spark.listener.consume import (
    ConsumingWriter,
    consume,
    query_claim,
    sink,
    told_settings,
)
from rocketstream.spark.listener.sink import RocketMQConsumerSink, sink_options
from tests.kits.spark.support import numbered, send

QUEUE = MessageQueue("orders", "broker-a", 0)
LONG_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders", queues=1)
        send(running, "orders", 0, numbered(0, 4))
        yield running


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "LEAVING_MS", 0)


def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class Query:
    """A query that ends when told to; it has read the first four messages."""

    def __init__(self) -> None:
        self.over = threading.Event()

    @property
    def isActive(self) -> bool:
        return not self.over.is_set()

    @property
    def lastProgress(self) -> Any:
        offset = json.dumps(StreamOffset({QUEUE: 4}).to_json())
        return SimpleNamespace(sources=[SimpleNamespace(endOffset=offset, latestOffset=None)])

    def awaitTermination(self) -> None:
        assert self.over.wait(LONG_S)


class Writer:
    """Spark's writer, which keeps what it is given."""

    def __init__(self, chosen: list[Any] | None = None) -> None:
        self.chosen = [] if chosen is None else chosen
        self.given: dict[str, Any] = {}
        self.query = Query()
        self.failure: Exception | None = None

    def format(self, name: str) -> Writer:
        self.chosen.append(name)
        return self

    def mode(self, mode: str) -> Writer:
        self.chosen.append(mode)
        return self

    def option(self, name: str, value: Any) -> Writer:
        self.given[name] = value
        return self

    def options(self, **given: Any) -> Writer:
        self.given |= given
        return self

    def queryName(self, name: str) -> Writer:
        return self.option("queryName", name)

    def outputMode(self, mode: str) -> Writer:
        return self.option("outputMode", mode)

    def trigger(self, **trigger: Any) -> Writer:
        return self.option("trigger", trigger)

    def start(self, **options: Any) -> Query:
        if self.failure is not None:
            raise self.failure
        self.given |= options
        return self.query


def made(
    writer: Writer, cluster: EmbeddedCluster, group: str, claim: bool | GroupClaim = True
) -> ConsumingWriter:
    options = sink_options(listener, False, {"GROUP": group, "nameserver": cluster.namesrv_addr})
    return ConsumingWriter(None, writer, options, claim)


def ended() -> None:
    for _, thread in list(queries._endings):
        thread.join(LONG_S)


def test_a_started_query_holds_its_group_until_its_end(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """Covers C-111: tools see a member, another one is refused; at the end its offsets stand."""
    writer = Writer()
    consuming = made(writer, cluster, "held").option("checkpointLocation", "/c").queryName("q")
    query = consuming.outputMode("append").options(a="1").trigger(availableNow=True).start(b="2")
    assert query is writer.query
    assert writer.given == {
        "checkpointLocation": "/c", "queryName": "q", "outputMode": "append", "a": "1", "b": "2",
        "trigger": {"availableNow": True},
    }  # fmt: skip
    (member,) = live_members(admin, "held")
    with pytest.raises(ClientStateError, match=r"live members: .* handed to consume\(") as caught:
        made(Writer(), cluster, "held").start()
    assert member in str(caught.value)
    with Admin(cluster.namesrv_addr) as operator:
        (info,) = operator.groups.running_info("held")
        assert [(each.topic, each.commit_offset) for each in info.queues] == [("orders", 4)]
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert [each.locked for each in info.queues] == [False]

    writer.query.over.set()
    ended()
    assert live_members(admin, "held") == frozenset()
    assert admin.query_consumer_offset("held", QUEUE) == 4


def test_tools_see_that_a_query_consumes_in_order(cluster: EmbeddedCluster) -> None:
    """And nothing of how far it is before it is started."""
    options = sink_options(
        lambda _: ConsumeOrderlyStatus.SUCCESS, True,
        {"group": "ordered", "nameServer": cluster.namesrv_addr, "consumeThreadMax": 3},
    )  # fmt: skip
    with (
        query_claim(None, options, lambda: None),
        Admin(cluster.namesrv_addr) as operator,
    ):
        (info,) = operator.groups.running_info("ordered")
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
    assert list(info.queues) == []
    assert "sparkQuery" not in info.properties


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"consumeThreadMax": "0"}, "consumeThreadMax"),
        ({"group": ""}, "group"),
        ({"consumethreads": "3"}, "unknown option 'consumethreads'"),
    ],
)
def test_a_wrong_option_is_refused_before_spark_plans_anything(
    given: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        sink_options(listener, False, {"group": "g", "nameServer": "h:1"} | given)


def test_options_are_told_under_a_push_consumers_names() -> None:
    """Of running info, which knows no options of Spark."""
    given = {
        "consumeThreadMax": 3, "consumeMessageBatchMaxSize": 5, "maxReconsumeTimes": 7,
        "suspendCurrentQueueTimeMillis": 900, "consumeTimeout": 2, "sendBackCause": "true",
    }  # fmt: skip
    told = told_settings(sink_options(listener, False, {"group": "g", "nameServer": "h:1"} | given))
    assert (told.consumer_group, told.consume_thread_max) == ("g", 3)
    assert (told.consume_message_batch_max_size, told.max_reconsume_times) == (5, 7)
    assert (told.suspend_current_queue_time_ms, told.consume_timeout_minutes) == (900, 2)
    assert told.send_back_cause


def test_a_process_that_ends_waits_for_the_goodbyes_of_ended_queries_alone(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """Otherwise the last offsets would be lost by a race with the end of the interpreter."""
    going, over = Writer(), Writer()
    made(going, cluster, "going").start()
    made(over, cluster, "over").start()
    over.query.over.set()
    queries._finish()
    assert live_members(admin, "over") == frozenset()
    assert live_members(admin, "going")
    going.query.over.set()
    ended()


def test_a_query_that_does_not_start_leaves_the_group(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    writer = Writer()
    writer.failure = ValueError("no checkpoint")
    with pytest.raises(ValueError, match="no checkpoint"):
        made(writer, cluster, "failed").start()
    assert live_members(admin, "failed") == frozenset()


def test_a_claim_is_left_out_when_asked(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    assert made(Writer(), cluster, "alone", claim=False).start()
    assert live_members(admin, "alone") == frozenset()


def test_a_claim_of_the_users_own_stays_beyond_the_query(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """It must be this group's, and live: a claim that is none would leave the group open."""
    own = GroupClaim("own", {"orders": "*"}, nameServer=cluster.namesrv_addr)
    with pytest.raises(ConfigurationError, match="has not begun"):
        made(Writer(), cluster, "own", own).start()
    with own:
        with pytest.raises(ConfigurationError, match="of group 'own', not of 'other'"):
            made(Writer(), cluster, "other", own).start()
        writer = Writer()
        made(writer, cluster, "own", own).start()
        writer.query.over.set()
        ended()
        assert live_members(admin, "own") == {own.client_id}


def test_a_process_that_cannot_reach_the_cluster_is_told_what_to_do() -> None:
    """With Spark Connect the client may be where no broker is."""
    options = sink_options(listener, False, {"group": "far", "nameServer": "127.0.0.1:1"})
    with pytest.raises(ConnectError, match=r"Spark Connect that is the client.*claim=False"):
        ConsumingWriter(None, Writer(), options, True).start()


@pytest.mark.parametrize("is_streaming", [True, False])
def test_a_streams_sink_is_looked_up_in_its_own_session(is_streaming: bool) -> None:
    """A thread that the user began has none that is active, and Spark would look elsewhere."""
    done: list[Any] = []
    writer = Writer(done)
    session = SimpleNamespace(
        dataSource=SimpleNamespace(register=done.append),
        createDataFrame=lambda rows, schema: done.append(rows),
    )
    rows = SimpleNamespace(isStreaming=is_streaming, writeStream=writer, write=writer)
    assert sink(session, rows, {"group": "g"}) is writer
    how: list[Any] = [[]] if is_streaming else ["append"]
    assert done == [RocketMQConsumerSink, *how, "rocketmq-consumer"]
    assert writer.given == {"group": "g"}


def test_only_what_a_listener_leaves_open_can_be_set(cluster: EmbeddedCluster) -> None:
    consuming = made(Writer(), cluster, "strict")
    for name in ("toTable", "foreachBatch", "format"):
        with pytest.raises(NotSupportedError, match=f"no '{name}'"):
            getattr(consuming, name)
    for setting in (
        lambda: consuming.option("consumethreadmax", 3),
        lambda: consuming.options(group="g"),
        lambda: consuming.start(listener="x"),
    ):
        with pytest.raises(ConfigurationError, match="give it to consume"):
            setting()


class Frame:
    """A DataFrame of messages, which keeps how it is distributed."""

    def __init__(self, writer: Writer, is_streaming: bool) -> None:
        self.isStreaming = is_streaming
        self.writeStream = self.write = writer
        self.distributed: list[tuple[str, ...]] = []
        self.sparkSession = SimpleNamespace(
            conf=SimpleNamespace(get=lambda name, default: default),
            dataSource=SimpleNamespace(register=lambda source: None),
            createDataFrame=lambda rows, schema: None,
        )
        types = [SimpleNamespace(simpleString=lambda kind=kind: kind) for kind in COLUMNS.values()]
        fields = [SimpleNamespace(name=n, dataType=t) for n, t in zip(COLUMNS, types, strict=True)]
        self.schema = SimpleNamespace(fields=fields)

    def repartition(self, *names: str) -> Frame:
        self.distributed.append(names)
        return self


def test_a_stream_is_consumed_by_a_writer_that_claims_and_a_batch_by_sparks_own() -> None:
    """A batch moves no offsets, so it holds no group."""
    writer = Writer()
    options: dict[str, Any] = {"group": "g", "nameServer": "h:1"}
    assert isinstance(consume(Frame(writer, True), listener, **options), ConsumingWriter)
    assert consume(Frame(writer, False), listener, **options) is writer


@pytest.mark.parametrize("orderly", [False, True])
def test_the_rows_of_a_queue_are_in_one_task_where_they_are_consumed_in_order(
    orderly: bool,
) -> None:
    frame = Frame(Writer(), is_streaming=True)
    consume(frame, listener, orderly=orderly, group="g", nameServer="h:1")
    assert frame.distributed == [("topic", "brokerName", "queueId")] * orderly


def test_a_claim_is_a_claim_or_a_yes_or_no() -> None:
    conf = SimpleNamespace(get=lambda name, default: default)
    frame = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf), isStreaming=True)
    with pytest.raises(ConfigurationError, match="claim is True, False or a GroupClaim, not 'no'"):
        consume(frame, listener, group="g", nameServer="h:1", claim="no")  # type: ignore[arg-type]


def test_rows_a_listener_cannot_have_are_refused_before_the_group_is_claimed() -> None:
    conf = SimpleNamespace(get=lambda name, default: default)
    body = SimpleNamespace(name="body", dataType=SimpleNamespace(simpleString=lambda: "binary"))
    schema = SimpleNamespace(fields=[body])
    frame = SimpleNamespace(
        sparkSession=SimpleNamespace(conf=conf), isStreaming=True, schema=schema
    )
    with pytest.raises(ConfigurationError, match=r"topic \(string\) is missing"):
        consume(frame, listener, group="g", nameServer="h:1")

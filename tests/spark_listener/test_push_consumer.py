"""The facade before any Spark is there: what it takes, and what it refuses with a reason."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import rocketstream.spark
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.client.keyword_settings import properties_of
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    NotSupportedError,
    SubscriptionError,
)
from rocketstream.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageModel,
    MessageQueue,
    MessageSelector,
)
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import SparkPushConsumer
from rocketstream.spark.listener.consume import told_settings
from rocketstream.spark.listener.push_consumer import sources_of
from rocketstream.spark.listener.queries import STARTS_MAX
from rocketstream.spark.listener.sink import sink_options
from tests.kits.spark.micro_batches import Query, Topics
from tests.kits.spark.support import Sent, send
from tests.plugins.waiting import wait_until


def consumer(**settings: Any) -> SparkPushConsumer:
    conf = SimpleNamespace(get=lambda name, default: settings.pop("speculation", default))
    spark = SimpleNamespace(conf=conf, version="4.3.0")
    conf.get = (lambda value: lambda name, default: value or default)(
        settings.pop("speculation", None)
    )
    given = {"namesrv_addr": "127.0.0.1:1"} | settings
    return SparkPushConsumer("billing", spark, "/checkpoints/billing", **given)


def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def test_settings_have_the_push_consumers_names_and_defaults() -> None:
    made = consumer(consume_message_batch_max_size=16, message_model=MessageModel.CLUSTERING)
    assert (made.group, made.settings.consume_message_batch_max_size) == ("billing", 16)
    assert made.settings.consume_timeout_minutes == 15
    assert made.state is ServiceState.CREATE_JUST
    assert (made.query, made.client_id) == (None, None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pull_threshold_for_queue": 5}, "has no meaning on Spark"),
        ({"message_model": MessageModel.BROADCASTING}, "has no meaning on Spark"),
        ({"batch_size": 5}, "has no setting 'batch_size'; did you mean 'pull_batch_size'"),
        ({"tls": True}, "has no setting 'tls'; did you mean 'options'"),
        ({"zzz_qqq": True}, "has no setting 'zzz_qqq'; settings are await_termination_ms"),
        ({"consume_thread_maxx": 5}, "did you mean 'consume_thread_max'"),
        ({"consumeThreadMax": 5}, "did you mean 'consume_thread_max'"),
        ({"listeners": None}, "did you mean 'listener'"),
        (
            {"consume_message_batch_max_size": 0},
            "consume_message_batch_max_size must be a whole number from ",
        ),
        ({"micro_batch_timeout_ms": 0}, "must be a whole number of milliseconds from 1 on"),
        ({"micro_batch_timeout_ms": "30s"}, "must be a whole number of milliseconds"),
        ({"micro_batch_timeout": 30}, "did you mean 'micro_batch_timeout_ms'"),
        ({"options": {"topic": "t"}}, "unknown option 'topic'"),
        ({"options": {"MODE": "permissive"}}, "filter.'error IS NULL'"),
        ({"options": {"useTsl": "true"}}, "did you mean 'useTls'"),
        ({"options": {"accessKey": "a", "useTls": "maybe"}}, "true or false"),
        ({"namesrv_addr": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        consumer(**settings)


def test_the_name_server_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    consumer(namesrv_addr=None)
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ConfigurationError, match="No name server address"):
        consumer(namesrv_addr=None)


def test_a_start_needs_a_listener_and_a_topic() -> None:
    made = consumer()
    with pytest.raises(ConfigurationError, match="messageListener is null"):
        made.start()
    made.register_message_listener(listener)
    with pytest.raises(ConfigurationError, match="call subscribe"):
        made.start()
    made.subscribe("orders")
    made.unsubscribe("orders")
    with pytest.raises(ConfigurationError, match="call subscribe"):
        made.start()


def test_speculation_is_refused_before_anything_is_asked_of_the_cluster() -> None:
    made = consumer(listener=listener, subscription={"orders": "*"}, speculation="true")
    with pytest.raises(ConfigurationError, match="speculation is true"):
        made.start()
    assert made.state is ServiceState.CREATE_JUST


def test_what_splits_a_queue_is_refused_in_order() -> None:
    made = consumer(subscription={"orders": "*"}, options={"minPartitions": 8})
    made.register_message_listener(lambda _: ConsumeOrderlyStatus.SUCCESS, orderly=True)
    with pytest.raises(ConfigurationError, match="'minPartitions' splits queues"):
        made.start()


def test_subscriptions_select_by_tags_or_by_a_condition() -> None:
    made = consumer(subscription={"cheap": MessageSelector.by_sql("price < 5")})
    made.subscribe("orders", " a || b ")
    with pytest.raises(SubscriptionError, match="SQL92 expression is wrong"):
        made.subscribe("orders", MessageSelector.by_sql("a >"))
    with pytest.raises(SubscriptionError):
        made.subscribe("orders", "||")
    with pytest.raises(ConfigurationError, match="illegal characters"):
        made.subscribe("or ders")


def test_topics_of_one_expression_are_one_source_in_an_order_of_their_own() -> None:
    """A checkpoint knows its sources by their number: the order of the calls must not matter."""
    condition = MessageSelector.by_sql("a > 1")
    tags = MessageSelector.by_tag
    given = {"d": tags("b"), "c": condition, "b": tags("*"), "a": tags("b")}
    assert sources_of(given, "%RETRY%g") == [
        (tags("*"), ["%RETRY%g", "b"]),
        (tags("b"), ["a", "d"]),
        (condition, ["c"]),
    ]


class Frames:
    """A session's ``readStream``: keeps the options of each frame that is loaded."""

    def __init__(self) -> None:
        self.loaded: list[dict[str, str]] = []
        self.given: dict[str, str] = {}

    def format(self, _: str) -> Frames:
        self.given = {}
        return self

    def schema(self, _: object) -> Frames:
        return self

    def options(self, **given: str) -> Frames:
        self.given |= given
        return self

    def option(self, name: str, value: str) -> Frames:
        return self.options(**{name: value})

    def load(self) -> Frames:
        self.loaded.append(self.given)
        return self

    def unionAll(self, _: object) -> Frames:
        return self


def sources(cluster: EmbeddedCluster, expressions: dict[str, str]) -> list[dict[str, str]]:
    """The options of the sources of a consumer that begins with the first messages."""
    frames = Frames()
    given = {"namesrv_addr": cluster.namesrv_addr, "subscription": expressions}
    made = consumer(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **given)
    made._spark.readStream = frames
    made._rows()
    return frames.loaded


def plan(queries: list[Query]) -> None:
    """Ask each source, as Spark does before it begins a micro-batch."""
    for query in queries:
        query.plan()


@pytest.mark.parametrize(
    "changed",
    [
        {"orders": "paid", "refunds": "pending", "fees": "pending"},
        {"orders": "paid", "refunds": "open", "fees": "paid"},
    ],
    ids=["the sources change places", "a topic changes its source"],
)
def test_a_checkpoint_whose_topics_are_other_sources_now_is_refused(
    topics: Topics, query: Callable[..., Query], changed: dict[str, str]
) -> None:
    """Each source would find topics new to it, and consume them from their oldest message."""
    before = {"orders": "paid", "refunds": "open", "fees": "open"}
    topics.cluster.create_topic("%RETRY%billing", queues=1)
    for topic in before:
        topics.delete(topic)
        topics.cluster.create_topic(topic, queues=1)
        send(topics.cluster, topic, 0, [Sent(b"1", {"TAGS": tag}) for tag in ("paid", "open")])
    queries = [query(**given) for given in sources(topics.cluster, before)]
    assert [each.drain() for each in queries] == [[], [1, 1], [1]]
    for each, given in zip(queries, sources(topics.cluster, changed), strict=True):
        each.restart(**given)
    with pytest.raises(ConfigurationError, match="begin a new checkpoint directory"):
        plan(queries)


def test_a_changed_expression_that_moves_no_topic_goes_on_where_it_was(
    topics: Topics, query: Callable[..., Query]
) -> None:
    for topic in ("%RETRY%billing", "bills", "letters"):
        topics.cluster.create_topic(topic, queues=1)
    before = sources(topics.cluster, {"bills": "paid", "letters": "open"})
    queries = [query(**given) for given in before]
    assert [each.drain() for each in queries] == [[], [], []]
    send(topics.cluster, "letters", 0, [Sent(b"7", {"TAGS": "opened"})])
    after = sources(topics.cluster, {"bills": "paid", "letters": "opened"})
    pairs = list(zip(queries, after, strict=True))
    assert [each.restart(**given).drain() for each, given in pairs] == [[], [7], []]


def test_a_comma_between_tags_is_told(caplog: pytest.LogCaptureFixture) -> None:
    consumer(subscription={"orders": "a,b"})
    assert "subscription of topic orders: the comma in 'a,b'" in caplog.text


def test_few_threads_are_no_contradiction() -> None:
    """The least number of Java's pool, 20, is no setting here, so it must not forbid fewer."""
    assert consumer(consume_thread_max=5).settings.consume_thread_max == 5
    with pytest.raises(ConfigurationError, match="consumeThreadMax"):
        consumer(consume_thread_max=0)


@pytest.mark.parametrize("threads", [1, 5, 64])
def test_facade_and_writer_tell_the_cluster_the_same_of_their_threads(threads: int) -> None:
    made = consumer(consume_thread_max=threads)
    given = {"nameServer": "127.0.0.1:1", "group": "billing", "consumeThreadMax": str(threads)}
    told = properties_of(told_settings(sink_options(listener, False, given)))
    shown = properties_of(made.settings)
    for name in ("consumeThreadMin", "consumeThreadMax"):
        assert int(told[name]) == int(shown[name]) <= threads


def test_what_needs_a_running_consumer_says_so() -> None:
    made = consumer()
    for call in (made.suspend, made.resume, made.await_termination):
        with pytest.raises(ClientStateError, match="call start"):
            call()
    made.shutdown()
    assert made.state is ServiceState.CREATE_JUST


def test_a_consumer_stays_in_its_process() -> None:
    with pytest.raises(NotSupportedError, match="SparkPushConsumer cannot be pickled"):
        pickle.dumps(consumer())


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'SparkPullConsumer'"):
        _ = rocketstream.spark.SparkPullConsumer  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscription": {"orders": "*"}}, "has no listener yet"),
        ({"listener": listener}, "has no subscription yet"),
    ],
)
def test_a_block_leaves_what_is_incomplete_with_a_hint(given: dict[str, Any], text: str) -> None:
    """As PushConsumer's: ``start()`` inside, which says what is missing, is still to come."""
    made = consumer(**given)
    with pytest.warns(FutureWarning, match=text):
        made.__enter__()
    assert made.state is ServiceState.CREATE_JUST


def test_a_block_starts_what_is_complete() -> None:
    """Here as far as the refusal that comes before any request."""
    made = consumer(speculation="true", listener=listener, subscription={"orders": "*"})
    with pytest.raises(ConfigurationError, match="speculation"), made:
        pytest.fail("the block was entered")
    assert made.state is ServiceState.CREATE_JUST


class Claim:
    """A claim on a group that says whether it is held."""

    client_id = "spark@1"

    def __init__(self) -> None:
        self.is_held = False

    def begin(self) -> None:
        self.is_held = True

    def report(self, ends: dict[MessageQueue, int]) -> None:
        assert self.is_held
        assert ends == {}

    def end(self) -> None:
        self.is_held = False


class Running:
    """A query that has failed, or ends when it is stopped."""

    def __init__(self, failure: str | None = None) -> None:
        self._failure = failure
        self._ended = threading.Event()

    @property
    def lastProgress(self) -> None:
        return None

    @property
    def isActive(self) -> bool:
        return self._failure is None and not self._ended.is_set()

    def awaitTermination(self, timeout_s: float | None = None) -> bool:
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return self._ended.wait(timeout_s)

    def exception(self) -> str | None:
        return self._failure

    def stop(self) -> None:
        self._ended.set()


LATE = "[STREAM_FAILED] Query terminated: Python worker failed to connect back."


def started(
    monkeypatch: pytest.MonkeyPatch, *queries: Running | Exception
) -> tuple[SparkPushConsumer, Claim]:
    """A consumer whose starts get these queries one after the other."""
    made, claim, given = consumer(), Claim(), iter(queries)

    def start_query(_: Any, options: Any) -> Running:
        query = next(given)
        if isinstance(query, Exception):
            raise query
        return query

    monkeypatch.setattr(SparkPushConsumer, "_start_query", start_query)
    monkeypatch.setattr(SparkPushConsumer, "_sink_options", lambda _: {})
    monkeypatch.setattr(SparkPushConsumer, "_new_claim", lambda *_: claim)
    made.subscribe("orders")
    made.register_message_listener(listener)
    made.start()
    return made, claim


def test_a_query_whose_python_started_late_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    third = Running()
    made, claim = started(monkeypatch, Running(LATE), Running(LATE), third)
    assert made.await_termination(timeout_ms=1) is False
    assert made.query is third
    assert claim.is_held
    third.stop()
    assert made.await_termination() is True
    wait_until(lambda: not claim.is_held, "the group's end")


def test_a_python_that_never_starts_fails_the_query_and_leaves_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, claim = started(monkeypatch, *(Running(LATE) for _ in range(STARTS_MAX)))
    with pytest.raises(RuntimeError, match="failed to connect back"):
        made.await_termination()
    wait_until(lambda: not claim.is_held, "the group's end")
    assert made.state is ServiceState.SHUTDOWN_ALREADY


@pytest.mark.parametrize("failure", ["Python worker exited unexpectedly", LATE])
def test_a_failed_query_leaves_the_group_where_it_cannot_be_started_again(
    monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    made, claim = started(monkeypatch, Running(failure), OSError("the broker is gone"))
    with pytest.raises(RuntimeError, match="Python worker"):
        made.await_termination()
    wait_until(lambda: not claim.is_held, "the group's end")

"""Settings of the pull and the lite pull consumer: names, defaults, ranges, texts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rocketstream import (
    AllocateMessageQueueAveragely,
    ClientConfig,
    ConsumeFromWhere,
    LitePullConsumer,
    MessageModel,
    PullConsumer,
    aio,
)
from rocketstream.client.consumer.settings import LitePullConsumerSettings, PullConsumerSettings
from rocketstream.errors import ConfigurationError
from rocketstream.testing.clock import ManualClock

KINDS: list[type[Any]] = [
    PullConsumer,
    LitePullConsumer,
    aio.PullConsumer,
    aio.LitePullConsumer,
]


def values(settings: object) -> dict[str, Any]:
    return {each.name: getattr(settings, each.name) for each in fields(settings)}  # type: ignore[arg-type]


def test_defaults_of_the_pull_consumer() -> None:
    """Covers C-49 to C-58."""
    found = values(PullConsumerSettings("g"))
    strategy = found.pop("allocate_message_queue_strategy")
    assert isinstance(strategy, AllocateMessageQueueAveragely)
    assert found == {
        "consumer_group": "g",
        "broker_suspend_max_time_ms": 20_000,
        "consumer_timeout_ms_when_suspend": 30_000,
        "consumer_pull_timeout_ms": 10_000,
        "message_model": MessageModel.CLUSTERING,
        "register_topics": (),
        "message_queue_listener": None,
        "max_reconsume_times": 16,
        "unit_mode": False,
        "check_crc": True,
        "offset_store": None,
    }


def test_defaults_of_the_lite_pull_consumer() -> None:
    """Covers C-59 to C-72, C-74, C-76."""
    found = values(LitePullConsumerSettings("g"))
    strategy = found.pop("allocate_message_queue_strategy")
    assert isinstance(strategy, AllocateMessageQueueAveragely)
    assert found == {
        "consumer_group": "g",
        "broker_suspend_max_time_ms": 20_000,
        "consumer_timeout_ms_when_suspend": 30_000,
        "consumer_pull_timeout_ms": 10_000,
        "message_model": MessageModel.CLUSTERING,
        "auto_commit": True,
        "auto_commit_interval_ms": 5_000,
        "pull_thread_nums": 20,
        "pull_batch_size": 10,
        "pull_threshold_for_all": 10_000,
        "pull_threshold_for_queue": 1_000,
        "pull_threshold_size_for_queue": 100,
        "consume_max_span": 2_000,
        "poll_timeout_ms": 5_000,
        "topic_metadata_check_interval_ms": 30_000,
        "consume_from_where": ConsumeFromWhere.LAST_OFFSET,
        "consume_timestamp": "19700101000000",
        "message_queue_listener": None,
        "offset_store": None,
        "unit_mode": False,
        "check_crc": True,
    }


def test_the_time_to_begin_is_half_an_hour_ago() -> None:
    """Covers C-73."""
    clock = ManualClock(now_ms=1_700_000_000_000)
    consumer = LitePullConsumer("g", namesrv_addr="h:1", clock=clock)
    assert consumer.settings.consume_timestamp_ms() == 1_700_000_000_000 - 30 * 60_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_group_is_checked(kind: type[Any]) -> None:
    """Covers C-48, C-59: refused, and said why."""
    for group in ("", " ", "a b", "x" * 256):
        with pytest.raises(ConfigurationError, match="group"):
            kind(group, namesrv_addr="h:1")
    with pytest.raises(ConfigurationError, match="must be a name of your own, not 'DEFAULT_C"):
        kind("DEFAULT_CONSUMER", namesrv_addr="h:1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_blocking_pull_outlasts_the_brokers_hold(kind: type[Any]) -> None:
    """Covers C-50, C-59."""
    with pytest.raises(
        ConfigurationError,
        match=r"^consumer_timeout_ms_when_suspend must be at least broker_suspend_max_time_ms "
        r"\(20000\), not 19999 \(Java: consumerTimeoutMillisWhenSuspend\)$",
    ):
        kind("g", namesrv_addr="h:1", consumer_timeout_ms_when_suspend=19_999)
    kind("g", namesrv_addr="h:1", consumer_timeout_ms_when_suspend=20_000)


@pytest.mark.parametrize("kind", KINDS)
def test_models_and_strategies_are_needed(kind: type[Any]) -> None:
    """Covers C-52, C-53, C-60, C-61."""
    with pytest.raises(ConfigurationError, match=r"^message_model must be a MessageModel"):
        kind("g", namesrv_addr="h:1", message_model=None)
    with pytest.raises(ConfigurationError, match=r"^allocate_message_queue_strategy must be"):
        kind("g", namesrv_addr="h:1", allocate_message_queue_strategy=None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_setting_is_named_with_those_there_are(kind: type[Any]) -> None:
    with pytest.raises(ConfigurationError, match="has no setting 'pol_timeout_ms'"):
        kind("g", namesrv_addr="h:1", pol_timeout_ms=1)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("register_topics", "T", "register_topics must be a list, tuple or set of str"),
        ("register_topics", ["a b"], "illegal characters"),
        (
            "max_reconsume_times",
            2**31,
            r"^max_reconsume_times must be a whole number from 0 to 2147483647.*, not 2147483648",
        ),
        (
            "max_reconsume_times",
            -1,
            r"^max_reconsume_times must be .*, not -1 \(Java: maxReconsumeTimes\)$",
        ),
        ("message_queue_listener", 5, "not a message queue listener"),
        (
            "broker_suspend_max_time_ms",
            0,
            r"^broker_suspend_max_time_ms must be .*, not 0 \(Java: brokerSuspendMaxTimeMillis\)$",
        ),
        (
            "consumer_pull_timeout_ms",
            0,
            r"^consumer_pull_timeout_ms must be .*, not 0 \(Java: consumerPullTimeoutMillis\)$",
        ),
    ],
)
def test_what_a_pull_consumer_refuses(name: str, value: object, text: str) -> None:
    """Covers C-49, C-51, C-54 to C-56."""
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError, match=text):
        PullConsumer("g", namesrv_addr="h:1", **settings)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "auto_commit_interval_ms",
            999,
            "^auto_commit_interval_ms must be a whole number from 1000",
        ),
        ("pull_thread_nums", 0, r"^pull_thread_nums must be .*, not 0 \(Java: pullThreadNums\)$"),
        ("pull_batch_size", 0, r"^pull_batch_size must be .*, not 0 \(Java: pullBatchSize\)$"),
        (
            "pull_threshold_for_all",
            0,
            r"^pull_threshold_for_all must be .*, not 0 \(Java: pullThresholdForAll\)$",
        ),
        (
            "pull_threshold_for_queue",
            0,
            r"^pull_threshold_for_queue must be .*, not 0 \(Java: pullThresholdForQueue\)$",
        ),
        (
            "pull_threshold_size_for_queue",
            0,
            r"^pull_threshold_size_for_queue must be .*not 0 \(Java: pullThresholdSizeForQueue\)",
        ),
        ("consume_max_span", 0, r"^consume_max_span must be .*, not 0 \(Java: consumeMaxSpan\)$"),
        ("poll_timeout_ms", -1, "^poll_timeout_ms must be a whole number from 0 on, not -1"),
        (
            "topic_metadata_check_interval_ms",
            0,
            r"^topic_metadata_check_interval_ms must .* \(Java: topicMetadataCheckIntervalMillis\)",
        ),
        ("consume_from_where", "LAST", "^consume_from_where must be a ConsumeFromWhere"),
        ("consume_timestamp", "yesterday", "^consume_timestamp must be a local time"),
        ("message_queue_listener", 5, "not a message queue listener"),
    ],
)
def test_what_a_lite_pull_consumer_refuses(name: str, value: object, text: str) -> None:
    """Covers C-63 to C-74."""
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError, match=text):
        LitePullConsumer("g", namesrv_addr="h:1", **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_pulling_clients_say_that_they_read_a_stream(kind: type[Any]) -> None:
    """Covers C-17, C-19, C-114: in the client id; in broadcasting the name stays as given."""
    config = ClientConfig(namesrv_addr="h:1", client_ip="1.2.3.4")
    assert kind("g", config=config).client_id.endswith("@STREAM")
    assert "DEFAULT" not in kind("g", config=config).client_id
    broadcasting = kind("g", config=config, message_model=MessageModel.BROADCASTING)
    assert broadcasting.client_id == "1.2.3.4@DEFAULT@STREAM"


def test_a_pull_asks_for_at_least_what_brokers_give_at_once() -> None:
    """Covers C-65: a poll returns less, so that one answer serves several polls."""
    assert LitePullConsumerSettings("g").wire_batch_size() == 256
    assert LitePullConsumerSettings("g").wire_batch_size(in_columns=True) == 1_000
    assert LitePullConsumerSettings("g", pull_batch_size=500).wire_batch_size() == 500
    small = LitePullConsumerSettings("g", pull_threshold_for_queue=5)
    assert small.wire_batch_size(in_columns=True) == 32
    large = LitePullConsumerSettings("g", pull_threshold_for_queue=5_000)
    assert (large.wire_batch_size(), large.wire_batch_size(in_columns=True)) == (256, 1_024)


def test_message_trace_is_off_unless_asked_for() -> None:
    """Covers C-75: a hook around what is handed out; other than flags and topics are refused."""
    for kind in (LitePullConsumer, aio.LitePullConsumer):
        assert not kind("g", namesrv_addr="h:1").consume_hooks
        traced = kind(
            "g", namesrv_addr="h:1", enable_msg_trace=True, customized_trace_topic="MyTrace"
        )
        assert len(traced.consume_hooks) == 1
        with pytest.raises(ConfigurationError, match="enable_msg_trace must be"):
            kind("g", namesrv_addr="h:1", enable_msg_trace="yes")  # type: ignore[arg-type]

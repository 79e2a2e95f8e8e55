"""Every setting of the push consumer: attribute, constructor argument, check at start."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest

from rocketstream import (
    AllocateMessageQueueAveragelyByCircle,
    ClientConfig,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageModel,
    MessageSelector,
    PushConsumer,
)
from rocketstream.client.consumer.push.consumer import CHANGEABLE, PushConsumerBase, Setting
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.errors import ClientStateError, ConfigurationError, SubscriptionError


def consumer(**settings: Any) -> PushConsumer:
    return PushConsumer("g", namesrv_addr="127.0.0.1:1", **settings)


def test_defaults_are_upstreams() -> None:
    """Covers C-22, C-23, C-25, C-28 to C-43, C-46; await_termination alone is 30 s, not 0."""
    made = consumer()
    assert made.message_model is MessageModel.CLUSTERING
    assert made.consume_from_where is ConsumeFromWhere.LAST_OFFSET
    assert made.allocate_message_queue_strategy.name == "AVG"
    assert (made.consume_thread_min, made.consume_thread_max) == (20, 20)
    assert made.consume_concurrently_max_span == 2_000
    assert (made.pull_threshold_for_queue, made.pull_threshold_for_topic) == (1_000, -1)
    assert (made.pull_threshold_size_for_queue, made.pull_threshold_size_for_topic) == (100, -1)
    assert (made.pull_interval_ms, made.pull_batch_size) == (0, 32)
    assert made.consume_message_batch_max_size == 1
    assert made.adjust_thread_pool_nums_threshold == 100_000
    assert made.post_subscription_when_pull is False
    assert made.max_reconsume_times == -1
    assert made.suspend_current_queue_time_ms == 1_000
    assert made.local_retry_delay_ms == 5_000
    assert made.consume_timeout_minutes == 15
    assert made.await_termination_ms_when_shutdown == 30_000


def test_every_setting_is_an_attribute_too() -> None:
    """Covers C-21 to C-43: what the constructor takes can be assigned before start."""
    names = {field.name for field in fields(PushConsumerSettings)} - {"consumer_group"}
    attributes = {
        name
        for kind in PushConsumer.__mro__
        for name, v in vars(kind).items()
        if type(v) is Setting
    }
    assert attributes == names
    assert names > CHANGEABLE
    made = consumer(consume_thread_max=64)
    made.consume_thread_min = 40  # more than the maximum for a moment would do no harm either
    made.pull_batch_size = 64
    made.allocate_message_queue_strategy = AllocateMessageQueueAveragelyByCircle()
    assert made.settings.pull_batch_size == 64
    assert made.settings.allocate_message_queue_strategy.name == "AVG_BY_CIRCLE"
    assert PushConsumer.pull_batch_size is vars(PushConsumerBase)["pull_batch_size"]


UPSTREAMS_ORDER: list[tuple[dict[str, Any], str]] = [
    ({"message_model": None}, "^message_model must be a MessageModel"),
    ({"consume_from_where": None}, "^consume_from_where must be a ConsumeFromWhere"),
    ({"consume_timestamp": "now"}, "^consume_timestamp must be a local time as yyyyMMddHHmm"),
    (
        {"allocate_message_queue_strategy": None},
        "^allocate_message_queue_strategy must be an object with",
    ),
    ({"_listener": None}, "messageListener is null"),
    ({"consume_thread_min": 0}, "consume_thread_min must be a whole number from 1 to 1000"),
    ({"consume_thread_max": 1_001}, "consume_thread_max must be a whole number from 1 to 1000"),
    (
        {"consume_concurrently_max_span": 65_536},
        "consume_concurrently_max_span must be a whole number from ",
    ),
    ({"pull_threshold_for_queue": 0}, "pull_threshold_for_queue must be a whole number from "),
    (
        {"pull_threshold_for_topic": 6_553_501},
        "pull_threshold_for_topic must be a whole number from ",
    ),
    (
        {"pull_threshold_size_for_queue": 0},
        "pull_threshold_size_for_queue must be a whole number from ",
    ),
    (
        {"pull_threshold_size_for_topic": 102_401},
        "pull_threshold_size_for_topic must be a whole number from ",
    ),
    ({"pull_interval_ms": 65_536}, "pull_interval_ms must be a whole number from "),
    (
        {"consume_message_batch_max_size": 0},
        "consume_message_batch_max_size must be a whole number from ",
    ),
    ({"pull_batch_size": 0}, "pull_batch_size must be a whole number from "),
]


def test_start_checks_everything_in_upstreams_order() -> None:
    """Covers C-21 to C-37: with everything wrong, each repair brings up the next message."""
    made = consumer(listener=lambda messages: None)
    good = {name: getattr(made, name) for wrong, _ in UPSTREAMS_ORDER for name in wrong}
    for wrong, _ in UPSTREAMS_ORDER:
        for name, value in wrong.items():
            setattr(made, name, value)
    for wrong, text in UPSTREAMS_ORDER:
        with pytest.raises(ConfigurationError, match=text):
            made.start()
        for name in wrong:
            setattr(made, name, good[name])
    made.settings.check()
    assert made.state.value == "CREATE_JUST"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"message_model": "CLUSTERING"},
            r"^message_model must be a MessageModel \(\w+, \w+\), not 'CLUSTERING'",
        ),
        ({"consume_from_where": "FIRST"}, "^consume_from_where must be a ConsumeFromWhere"),
        (
            {"allocate_message_queue_strategy": "AVG"},
            r"a method allocate\(consumer_group.*, not 'AVG'",
        ),
        (
            {"max_reconsume_times": 2**31},
            "^max_reconsume_times must be a whole number from 0 to 2147483647",
        ),
        ({"pull_batch_size": True}, "pull_batch_size must be a whole number from "),
        (
            {"offset_store": object()},
            "offset_store must be an instance of a subclass of rocketstream.OffsetStore",
        ),
    ],
)
def test_values_of_another_kind_are_refused(settings: dict[str, Any], text: str) -> None:
    """Covers C-22, C-23, C-25, C-37, C-44: Java's types, checked here."""
    with pytest.raises(ConfigurationError, match=text):
        consumer(**settings)


def test_settings_of_later_versions_are_unknown() -> None:
    """Covers C-47: what 4.9 does not have is named as unknown, not ignored."""
    with pytest.raises(ConfigurationError, match="no setting 'pop_batch_nums'"):
        consumer(pop_batch_nums=32)


def test_subscriptions_may_be_given_at_once_and_none_is_legal() -> None:
    """Covers C-26, C-103: a map of topic to expression; a later subscribe replaces."""
    made = consumer(subscription={"A": "x || y", "B": MessageSelector.by_sql("a > 5")})
    made.subscribe("A", "z")
    kinds = {d.topic: (d.sub_string, d.expression_type) for d in made._subscriptions.values()}
    assert kinds == {"A": ("z", "TAG"), "B": ("a > 5", "SQL92")}
    made.unsubscribe("B")
    assert list(made._subscriptions) == ["A"]
    assert not consumer()._subscriptions


def test_a_condition_with_a_mistake_is_refused_when_subscribing() -> None:
    """Covers C-100, C-583: known here before any broker says so."""
    made = consumer()
    with pytest.raises(SubscriptionError):
        made.subscribe("T", MessageSelector.by_sql("a >"))
    with pytest.raises(SubscriptionError):
        made.subscribe("T", "a ? b", expression_type="SQL92")
    assert not made._subscriptions


def test_broadcasting_consumers_keep_the_default_instance_name() -> None:
    """Covers C-19, C-114, C-115: the place of local offsets stays; clustering ones differ."""
    config = ClientConfig(namesrv_addr="127.0.0.1:1", client_ip="192.0.2.2")
    one = PushConsumer("g", config=config, message_model=MessageModel.BROADCASTING)
    two = PushConsumer("h", config=config)
    three = PushConsumer("h", config=config)
    assert one.client_id == "192.0.2.2@DEFAULT"
    assert two.client_id != three.client_id
    three.message_model = MessageModel.BROADCASTING
    assert three.client_id == one.client_id
    named = PushConsumer("g", config=config, instance_name="n1", unit_name="u")
    assert named.client_id == "192.0.2.2@n1@u"


def test_two_threads_change_two_settings_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings are one value: the second change is made from what the first one left."""
    made, both = consumer(), threading.Barrier(2)

    def meet(settings: PushConsumerSettings, **change: Any) -> PushConsumerSettings:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.05)  # passed only where both threads are here
        return replace(settings, **change)

    monkeypatch.setattr("rocketstream.client.consumer.push.consumer.replace", meet)
    other = threading.Thread(target=lambda: setattr(made, "pull_interval_ms", 7))
    other.start()
    made.pull_batch_size = 8
    other.join()
    assert (made.pull_interval_ms, made.pull_batch_size) == (7, 8)


def test_names_get_their_namespace() -> None:
    """Covers C-46, C-110, C-146, C-148: topics as the servers know them, the group at start."""
    made = consumer(namespace="NS")
    made.subscribe("T")
    assert list(made._subscriptions) == ["NS%T"]
    assert made.group == "g"
    made.unsubscribe("T")
    assert not made._subscriptions


def test_the_listener_is_set_before_start() -> None:
    """Covers C-27."""
    made = consumer()
    with pytest.raises(ConfigurationError, match="messageListener is null"):
        made.register_message_listener(None)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="listener must be"):
        made.register_message_listener(7)  # type: ignore[call-overload]
    made.state = type(made.state).SHUTDOWN_ALREADY
    with pytest.raises(ClientStateError, match="before start"):
        made.register_message_listener(lambda messages: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)

"""Settings: ranges, order of checks and texts of upstream (C-21 to C-45, C-77, C-94)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rocketstream import ClientConfig, Message, Producer, PushConsumer
from rocketstream.client.config import local_address, month_start_ms, unique_ids
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import ConsumeConcurrentlyStatus


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"message_model": None}, r"^message_model must be a MessageModel \(\w+"),
        ({"consume_from_where": None}, "^consume_from_where must be a ConsumeFromWhere"),
        (
            {"consume_timestamp": "2024-01-01"},
            "^consume_timestamp must be a local time as yyyyMMddHHmmss",
        ),
        (
            {"consume_timestamp": "20241301000000"},
            r"not '20241301000000' \(Java: consumeTimestamp\)",
        ),
        (
            {"allocate_message_queue_strategy": None},
            "^allocate_message_queue_strategy must be an object with",
        ),
        ({"consume_thread_min": 0}, "consume_thread_min must be a whole number from 1 to 1000"),
        ({"consume_thread_max": 1001}, "consume_thread_max must be a whole number from 1 to 1000"),
        (
            {"consume_thread_min": 30},
            r"consume_thread_min \(30\) is larger than consume_thread_max \(20\)",
        ),
        (
            {"consume_concurrently_max_span": 0},
            "consume_concurrently_max_span must be a whole number from 1 to 65535",
        ),
        (
            {"pull_threshold_for_queue": 65_536},
            "pull_threshold_for_queue must be a whole number from 1 to 65535",
        ),
        (
            {"pull_threshold_for_topic": 0},
            "pull_threshold_for_topic must be a whole number from 1 to 6553500",
        ),
        (
            {"pull_threshold_size_for_queue": 1025},
            "pull_threshold_size_for_queue must be a whole number from 1 to 1024",
        ),
        (
            {"pull_threshold_size_for_topic": -2},
            "pull_threshold_size_for_topic must be a whole number from 1 to 102400",
        ),
        ({"pull_interval_ms": -1}, "pull_interval_ms must be a whole number from 0 to 65535"),
        (
            {"consume_message_batch_max_size": 0},
            "consume_message_batch_max_size must be a whole number from 1 to 1024",
        ),
        ({"pull_batch_size": 1025}, "pull_batch_size must be a whole number from 1 to 1024"),
        (
            {"consume_timeout_minutes": 0},
            "^consume_timeout_minutes must be a number greater than 0, not 0",
        ),
        ({"await_termination_ms_when_shutdown": -1}, "must be a whole number from 0 on"),
    ],
)
def test_consumer_settings_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    """Covers C-22 to C-43."""
    with pytest.raises(ConfigurationError, match=text):
        PushConsumerSettings("g", **settings).check()


def test_the_first_wrong_setting_in_upstreams_order_is_reported() -> None:
    """Covers C-28 before C-30 before C-37."""
    wrong = PushConsumerSettings(
        "g", pull_batch_size=0, consume_concurrently_max_span=0, consume_thread_min=0
    )
    with pytest.raises(ConfigurationError, match="consume_thread_min"):
        wrong.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"consume_thread_min": 1, "consume_thread_max": 1000},
        {"pull_threshold_for_topic": -1, "pull_threshold_size_for_topic": -1},
        {"pull_threshold_for_topic": 6_553_500, "pull_threshold_size_for_topic": 102_400},
        {"pull_interval_ms": 0, "pull_batch_size": 1024, "consume_message_batch_max_size": 1024},
        {"consume_timestamp": "20240101000000"},
    ],
)
def test_consumer_settings_at_their_bounds_are_accepted(settings: dict[str, Any]) -> None:
    """Covers C-24 to C-37."""
    PushConsumerSettings("g", **settings).check()


@pytest.mark.parametrize("kind", [PushConsumer, Producer])
@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("", "group must not be blank"),
        ("a b", "has illegal characters"),
        ("x" * 256, "a group has 255 characters at most"),
    ],
)
def test_group_names_are_checked(kind: Any, group: str, text: str) -> None:
    """Covers C-94."""
    with pytest.raises(ConfigurationError, match=text):
        kind(group)


def test_group_too_long_for_its_retry_topic_is_for_producers_only() -> None:
    Producer("g" * 249)
    with pytest.raises(ConfigurationError, match="248 are the most"):
        PushConsumer("g" * 249)


def test_default_groups_are_refused() -> None:
    """Covers C-21, C-77."""
    with pytest.raises(ConfigurationError, match="must be a name of your own, not 'DEFAULT_C"):
        PushConsumer("DEFAULT_CONSUMER")
    with pytest.raises(ConfigurationError, match="must be a name of your own, not 'DEFAULT_P"):
        Producer("DEFAULT_PRODUCER")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"send_msg_timeout_ms": 0}, "send_msg_timeout_ms must be a whole number from 1 on"),
        ({"retry_times_when_send_failed": -1}, "must be a whole number from 0 on"),
        ({"compress_type": "GZIP"}, "compress_type must be one of ZLIB, LZ4, ZSTD"),
    ],
)
def test_producer_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ProducerSettings("g", **settings).check()


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting 'pull_size'.*pull_batch_size"):
        PushConsumer("g", pull_size=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="pull_size"):
        Producer("g", pull_size=3)  # type: ignore[call-arg]


# --- state --------------------------------------------------------------------------------------


def test_a_client_that_is_not_running_refuses_work() -> None:
    """Covers C-109, C-108."""
    producer = Producer("g", namesrv_addr="127.0.0.1:1")
    with pytest.raises(ClientStateError, match=r"is not running \(CREATE_JUST"):
        producer.send(Message("T", b"x"))
    producer.shutdown()
    consumer = PushConsumer("g", namesrv_addr="127.0.0.1:1")
    with pytest.raises(ClientStateError, match="CREATE_JUST"):
        consumer.assigned_queues()
    consumer.shutdown()


def test_a_consumer_without_listener_does_not_start() -> None:
    """Covers C-27."""
    with pytest.raises(ConfigurationError, match="messageListener is null"):
        PushConsumer("g", namesrv_addr="127.0.0.1:1").start()


def test_a_coroutine_listener_belongs_to_the_asyncio_face() -> None:
    async def listener(messages: object) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer("g", namesrv_addr="127.0.0.1:1", listener=listener)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"use rocketstream\.aio\.PushConsumer"):
        consumer.start()


# --- listeners ----------------------------------------------------------------------------------


def test_listeners_of_every_shape_are_recognised() -> None:
    class Object:
        def consume_message(self, messages: object, context: object) -> None: ...

    class Callable:
        async def __call__(self, messages: object) -> None: ...

    async def coroutine(messages: object, context: object) -> None: ...

    def with_default(messages: object, extra: int = 1) -> None: ...

    shapes = [
        (lambda messages: None, False, False),
        (lambda messages, context: None, True, False),
        (lambda *args: None, True, False),
        (with_default, False, False),
        ([].extend, False, False),
        (Object(), True, False),
        (coroutine, True, True),
        (Callable(), False, True),
    ]
    for given, takes_context, is_async in shapes:
        listener = listener_of(given)
        assert (listener.takes_context, listener.is_async) == (takes_context, is_async), given


@pytest.mark.parametrize("given", [3, "x", lambda: None, lambda a, b, c: None])
def test_what_cannot_take_messages_is_no_listener(given: object) -> None:
    """Covers C-27."""
    with pytest.raises(ConfigurationError, match=r"^listener "):
        listener_of(given)


# --- identity -----------------------------------------------------------------------------------


def test_no_name_server_is_said_with_how_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-1, C-458."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigurationError, match="No name server address, please set it"):
        Producer("g").start()
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert ClientConfig().name_servers() == ["a:1", "b:2"]
    assert ClientConfig(namesrv_addr="c:3").name_servers() == ["c:3"]


def test_a_default_instance_gets_a_name_of_its_own() -> None:
    """Covers C-19, C-114."""
    first = ClientConfig(client_ip="192.0.2.2").with_own_instance()
    second = ClientConfig(client_ip="192.0.2.2").with_own_instance()
    assert first.client_id().startswith(f"192.0.2.2@{os.getpid()}#")
    assert first.client_id() != second.client_id()
    named = ClientConfig(client_ip="h", instance_name="mine", unit_name="u").with_own_instance()
    assert named.client_id() == "h@mine@u"


def test_config_numbers_are_checked_and_secrets_not_shown() -> None:
    """Covers C-7 to C-9, which upstream does not check."""
    with pytest.raises(ConfigurationError, match="heartbeat_broker_interval_ms must be a whole"):
        Producer("g", config=ClientConfig(heartbeat_broker_interval_ms=0))
    assert "s3cret" not in repr(ClientConfig(access_key="a", secret_key="s3cret"))


def test_message_ids_are_unique_and_carry_the_time_in_the_month() -> None:
    """Covers C-449."""
    ids = unique_ids()
    now = 1_700_000_000_000
    made = {ids.next(now) for _ in range(1000)}
    assert len(made) == 1000
    assert {len(each) for each in made} <= {32, 56}
    assert 0 <= now - month_start_ms(now) < 31 * 86_400_000
    assert local_address()


def test_importing_the_package_is_cheap() -> None:
    """The names are there, and nothing heavy is loaded before they are used."""
    import subprocess
    import sys

    code = (
        "import sys, rocketstream; "
        "assert 'asyncio' not in sys.modules and 'orjson' not in sys.modules; "
        "assert rocketstream.Message and set(rocketstream.__all__) <= set(dir(rocketstream)); "
        "[getattr(rocketstream, name) for name in rocketstream.__all__]"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, cwd=Path(__file__).parent
    )


@pytest.mark.parametrize("most", [1, 8, 18])
def test_fewer_threads_than_the_usual_minimum_need_no_minimum(most: int) -> None:
    """Covers C-28, C-29: the minimum bounds the maximum only where somebody chose it."""
    PushConsumerSettings("g", consume_thread_max=most).check()
    with pytest.raises(ConfigurationError, match="is larger than consume_thread_max"):
        PushConsumerSettings("g", consume_thread_min=most + 1, consume_thread_max=most).check()

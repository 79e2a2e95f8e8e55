"""Names users are likely to try for a setting bring up the one they mean, never the whole list."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

import rocketstream
from rocketstream import (
    LitePullConsumer,
    LitePushConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    aio,
)
from rocketstream.errors import ConfigurationError
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import SparkPushConsumer
from rocketstream.suggestions import NAMES_MAX, likely_names

CLIENTS = [
    Producer,
    TransactionProducer,
    PushConsumer,
    PullConsumer,
    LitePullConsumer,
    LitePushConsumer,
    aio.Producer,
    aio.TransactionProducer,
    aio.PushConsumer,
    aio.PullConsumer,
    aio.LitePullConsumer,
    aio.LitePushConsumer,
]


def refusal(kind: Any, name: str) -> str:
    """Return what a class says of a setting it does not have."""
    where: tuple[Any, ...] = ("g",)
    if kind is EmbeddedCluster:
        where = ()
    elif kind is SparkPushConsumer:
        where = ("g", None, "/nowhere")
    elif kind in (LitePushConsumer, aio.LitePushConsumer):
        where = ("g", "T")
    with pytest.raises(ConfigurationError) as caught:
        kind(*where, **{name: 1})
    return str(caught.value)


def offered(kind: Any, name: str) -> list[str]:
    """Return the names offered instead; none when all were listed."""
    _, _, meant = refusal(kind, name).partition("; did you mean ")
    return re.findall(r"'(\w+)'", meant)


@pytest.mark.parametrize(
    ("kind", "name", "first"),
    [
        (PushConsumer, "threads", "consume_thread_max"),
        (PushConsumer, "thread_max", "consume_thread_max"),
        (PushConsumer, "max_workers", "consume_thread_max"),
        (PushConsumer, "retries", "max_reconsume_times"),
        (PushConsumer, "max_retries", "max_reconsume_times"),
        (PushConsumer, "timeout", "consume_timeout_minutes"),
        (PushConsumer, "trace", "enable_msg_trace"),
        (PushConsumer, "topic", "subscription"),
        (PushConsumer, "topics", "subscription"),
        (PushConsumer, "message_listener", "listener"),
        (PushConsumer, "messageListener", "listener"),
        (PushConsumer, "on_message", "listener"),
        (PushConsumer, "from_where", "consume_from_where"),
        (PushConsumer, "auto_offset_reset", "consume_from_where"),
        (PushConsumer, "crc", "check_crc"),
        (PushConsumer, "batch_size", "pull_batch_size"),
        (LitePushConsumer, "topics", "bind_topic"),
        (LitePushConsumer, "callback", "listener"),
        (LitePushConsumer, "threads", "consume_thread_max"),
        (LitePullConsumer, "topics", "subscription"),
        (LitePullConsumer, "threads", "pull_thread_nums"),
        (LitePullConsumer, "timeout_ms", "poll_timeout_ms"),
        (LitePullConsumer, "enable_auto_commit", "auto_commit"),
        (PullConsumer, "topics", "register_topics"),
        (PullConsumer, "timeout_ms", "consumer_pull_timeout_ms"),
        (Producer, "timeout", "send_msg_timeout_ms"),
        (Producer, "timeout_ms", "send_msg_timeout_ms"),
        (Producer, "retries", "retry_times_when_send_failed"),
        (Producer, "retry_times", "retry_times_when_send_failed"),
        (Producer, "linger_ms", "batch_max_delay_ms"),
        (Producer, "compression_type", "compress_type"),
        (TransactionProducer, "listener", "transaction_listener"),
        (TransactionProducer, "retries", "retry_times_when_send_failed"),
        (EmbeddedCluster, "ssl", "ssl_context"),
        (EmbeddedCluster, "port", "broker_port"),
        (EmbeddedCluster, "topics", "auto_create_topics"),
        (SparkPushConsumer, "threads", "consume_thread_max"),
        (SparkPushConsumer, "retries", "max_reconsume_times"),
        (SparkPushConsumer, "timeout", "consume_timeout_minutes"),
        (SparkPushConsumer, "tls", "options"),
        (SparkPushConsumer, "topic", "subscription"),
        (SparkPushConsumer, "message_listener", "listener"),
        (SparkPushConsumer, "checkpoint", "checkpoint_location"),
        (SparkPushConsumer, "consumer_group", "group"),
        (SparkPushConsumer, "from_where", "consume_from_where"),
    ],
)
def test_a_likely_guess_brings_up_the_setting_first(kind: Any, name: str, first: str) -> None:
    assert offered(kind, name)[:1] == [first]
    assert len(offered(kind, name)) <= NAMES_MAX


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tls", {"use_tls", "ssl_context"}),
        ("ssl", {"use_tls", "ssl_context"}),
        ("consumer_group", {"group"}),
        ("producer_group", {"group"}),
        ("consumerGroup", {"group"}),
        ("producerGroup", {"group"}),
        ("group_id", {"group"}),
        ("bootstrap_servers", {"namesrv_addr"}),
        ("name_server", {"namesrv_addr"}),
        ("nameserver_address", {"namesrv_addr"}),
        ("password", {"access_key", "secret_key"}),
        ("callback_threads", {"client_callback_executor_threads"}),
    ],
)
def test_what_every_client_has_is_found_in_each(kind: Any, name: str, meant: set[str]) -> None:
    assert set(offered(kind, name)) == meant


@pytest.mark.parametrize("kind", [*CLIENTS, EmbeddedCluster, SparkPushConsumer])
@pytest.mark.parametrize("name", ["threads", "timeout", "trace_topic_of_mine", "retry", "max_size"])
def test_no_more_than_three_are_offered(kind: Any, name: str) -> None:
    assert len(offered(kind, name)) <= NAMES_MAX


@pytest.mark.parametrize("kind", [*CLIENTS, EmbeddedCluster, SparkPushConsumer])
def test_what_resembles_nothing_has_all_settings_listed(kind: Any) -> None:
    assert "; settings are " in refusal(kind, "zzz_qqq")


def test_a_cluster_has_no_group_to_offer() -> None:
    assert "group" not in offered(EmbeddedCluster, "consumer_group")


NAMES = {name: name for name in ("send_timeout_ms", "group_of_sends", "aside")}


@pytest.mark.parametrize(
    ("guess", "meant"),
    [
        ("send_timeout", ["send_timeout_ms"]),  # the very words, but for the unit
        ("SendTimeoutMillis", ["send_timeout_ms"]),
        ("timeouts_send", ["send_timeout_ms"]),  # any order, any number
        ("sends", ["send_timeout_ms", "group_of_sends"]),  # what has fewer other words first
        ("sent_timeout_ms", ["send_timeout_ms"]),  # a slip of the pen in a word
        ("asides", ["aside"]),
        ("ms", []),  # units alone say nothing
        ("", []),
    ],
)
def test_whole_words_count_before_letters(guess: str, meant: list[str]) -> None:
    assert likely_names(guess, NAMES) == meant


@pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [
        (Producer, "setNamesrvAddr", "give namesrv_addr= when the client is made"),
        (Producer, "setSendMsgTimeout", "give send_msg_timeout_ms= when the client is made"),
        (Producer, "fetchPublishMessageQueues", "use fetch_publish_message_queues"),
        (Producer, "sendOneway", "use send_oneway"),
        (TransactionProducer, "sendMessageInTransaction", "use send_message_in_transaction"),
        (PushConsumer, "setNamesrvAddr", "give namesrv_addr= when the client is made"),
        (PushConsumer, "setConsumeThreadMax", "give consume_thread_max= when the client is made"),
        (PushConsumer, "setMessageListener", "give listener= when the client is made"),
        (PushConsumer, "registerMessageListener", "use register_message_listener"),
        (PushConsumer, "getConsumeThreadMax", "use consume_thread_max"),
        (LitePullConsumer, "setAutoCommit", "give auto_commit= when the client is made"),
        (aio.Producer, "setInstanceName", "give instance_name= when the client is made"),
        (aio.PushConsumer, "getNamesrvAddr", "it is the setting namesrv_addr"),
    ],
)
def test_methods_of_javas_client_are_answered_with_ours(kind: Any, theirs: str, ours: str) -> None:
    client = kind("g", namesrv_addr="127.0.0.1:1")
    with pytest.raises(AttributeError, match=rf"no attribute {theirs!r}; {re.escape(ours)}$"):
        getattr(client, theirs)


@pytest.mark.parametrize("name", ["nonsense", "setWarpFactor", "_private", "Upper"])
def test_what_nobody_has_is_just_not_there(name: str) -> None:
    client = Producer("g", namesrv_addr="127.0.0.1:1")
    with pytest.raises(AttributeError, match=rf"^'Producer' object has no attribute {name!r}$"):
        getattr(client, name)
    assert not hasattr(client, name)


def test_classes_of_javas_client_are_answered_with_ours() -> None:
    """The text of an AttributeError would be lost in "from rocketstream import"."""
    with pytest.raises(ImportError, match=r"no DefaultMQPushConsumer; use PushConsumer$"):
        from rocketstream import DefaultMQPushConsumer  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"no DefaultMQProducer; use Producer$"):
        _ = rocketstream.DefaultMQProducer  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'Nonsense'$"):
        _ = rocketstream.Nonsense  # type: ignore[attr-defined]
    assert not hasattr(rocketstream, "Nonsense")


@pytest.mark.parametrize("module", ["rocketstream.errors", "rocketstream.admin.sweep"])
def test_no_start_loads_the_names_that_only_a_wrong_one_needs(module: str) -> None:
    """Python asks the package for a module of it before it looks for the file."""
    program = f"import sys, {module}; print('rocketstream.suggestions' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"

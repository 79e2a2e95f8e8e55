"""What every client can be told, where defaults come from, and who it then is (C-1 to C-20)."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    LitePullConsumer,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from rocketstream.client.config import client_config
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.codes import LanguageCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.signing import sign

NAMESRV = "127.0.0.1:9876"


def test_defaults_are_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-3, C-5 to C-15, C-17: what nobody sets."""
    for name in list(os.environ):
        if name.startswith("ROCKETMQ_") or name == "NAMESRV_ADDR":
            monkeypatch.delenv(name)
    config = ClientConfig()
    assert config.namesrv_addr is None
    assert config.instance_name == "DEFAULT"
    assert config.namespace is None
    assert config.access_channel == "LOCAL"
    assert config.poll_name_server_interval_ms == 30_000
    assert config.heartbeat_broker_interval_ms == 30_000
    assert config.persist_consumer_offset_interval_ms == 5_000
    assert config.pull_time_delay_ms_when_exception == 1_000
    assert config.rebalance_interval_ms == 20_000
    assert (config.unit_mode, config.unit_name) == (False, None)
    assert not config.vip_channel_enabled
    assert not config.use_tls
    assert config.api_timeout_ms == 3_000
    assert config.connect_timeout_ms == 3_000
    assert not config.enable_stream_request_type


def test_environment_variables_stand_for_system_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-1, C-3, C-13, C-14, C-130, C-149: each is read when a configuration is made."""
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    monkeypatch.setenv("ROCKETMQ_CLIENT_NAME", "mine")
    monkeypatch.setenv("ROCKETMQ_VIP_CHANNEL", "true")
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "TRUE")
    monkeypatch.setenv("ROCKETMQ_REBALANCE_WAIT_INTERVAL_MS", "1234")
    config = ClientConfig()
    assert config.name_servers() == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert config.instance_name == "mine"
    assert config.vip_channel_enabled
    assert config.use_tls
    assert config.rebalance_interval_ms == 1234
    assert ClientConfig(instance_name="own", use_tls=False).instance_name == "own"


def test_a_tls_switch_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken as false it would send everything in the clear."""
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "yes please")
    with pytest.raises(ConfigurationError, match="ROCKETMQ_TLS_ENABLE must be true or false"):
        ClientConfig()
    assert ClientConfig(use_tls=True).use_tls


def test_a_bad_number_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_REBALANCE_WAIT_INTERVAL_MS", "soon")
    with pytest.raises(ConfigurationError, match="ROCKETMQ_REBALANCE_WAIT_INTERVAL_MS"):
        ClientConfig()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1", ["a:1"]),
        (" a:1 ; b:2;", ["a:1", "b:2"]),
        ("http://a.example:80", ["a.example:80"]),
        ("http://MQ_INST_1_b.mq.example:8080", ["MQ_INST_1_b.mq.example:8080"]),
    ],
)
def test_name_servers_are_a_list_or_one_endpoint(given: str, expected: list[str]) -> None:
    """Covers C-1: the scheme of an endpoint is not part of the address."""
    assert ClientConfig(namesrv_addr=given).name_servers() == expected


def test_without_any_name_server_the_text_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-1."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigurationError, match="No name server address, please set it"):
        ClientConfig().name_servers()


@pytest.mark.parametrize(
    ("unit", "url"),
    [
        (None, "http://jm.example:8080/rocketmq/nsaddr"),
        (" ", "http://jm.example:8080/rocketmq/nsaddr"),
        ("u1", "http://jm.example:8080/rocketmq/nsaddr-u1?nofix=1"),
    ],
)
def test_the_address_servers_url(
    monkeypatch: pytest.MonkeyPatch, unit: str | None, url: str
) -> None:
    """Covers C-12, C-130: domain, subgroup and unit name make the URL."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    config = ClientConfig(namesrv_domain="jm.example", unit_name=unit)
    assert config.address_server_url() == url
    assert config.name_servers() == []
    other = ClientConfig(namesrv_domain="jm.example:80", namesrv_domain_subgroup="x")
    assert other.address_server_url() == "http://jm.example:80/rocketmq/x"
    given = ClientConfig(namesrv_domain="jm.example", namesrv_addr=NAMESRV)
    assert given.address_server_url() is None


def test_the_client_id_has_all_parts_in_order() -> None:
    """Covers C-2, C-3, C-12, C-17, C-19."""
    make = ClientConfig
    assert make(client_ip="1.2.3.4", instance_name="a").client_id() == "1.2.3.4@a"
    assert make(client_ip="h", instance_name="a", unit_name="u").client_id() == "h@a@u"
    assert make(client_ip="h", instance_name="a", unit_name=" ").client_id() == "h@a"
    stream = make(client_ip="h", instance_name="a", unit_name="u", enable_stream_request_type=True)
    assert stream.client_id() == "h@a@u@STREAM"
    local = make(instance_name="a").client_id().partition("@")[0]
    assert re.fullmatch(r"[0-9a-fA-F.:]+", local)


def test_only_the_literal_default_becomes_a_name_of_its_own() -> None:
    """Covers C-3, C-114, C-597: two clients of one process never share by accident."""
    one, two = (ClientConfig().with_own_instance().instance_name for _ in range(2))
    assert re.fullmatch(rf"{os.getpid()}#\d+", one)
    assert one != two
    assert ClientConfig(instance_name="default").with_own_instance().instance_name == "default"


@pytest.mark.parametrize("name", ["poll_name_server_interval_ms", "api_timeout_ms"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1"])
def test_intervals_must_be_positive_whole_milliseconds(name: str, value: Any) -> None:
    """Covers C-7 to C-9, where upstream takes anything and spins."""
    with pytest.raises(ConfigurationError, match=name):
        ClientConfig(**{name: value}).checked()


def test_the_access_channel_is_local_or_cloud() -> None:
    """Covers C-6."""
    assert ClientConfig(access_channel="CLOUD").checked().access_channel == "CLOUD"
    with pytest.raises(ConfigurationError, match="LOCAL or CLOUD"):
        ClientConfig(access_channel="cloud").checked()


def test_callback_threads_default_to_the_processors() -> None:
    """Covers C-4: none or fewer are 4."""
    assert ClientConfig().callback_threads() == (os.cpu_count() or 4)
    assert ClientConfig(client_callback_executor_threads=7).callback_threads() == 7
    assert ClientConfig(client_callback_executor_threads=-1).callback_threads() == 4


def test_tls_is_the_given_context_or_the_systems() -> None:
    """Covers C-14."""
    assert ClientConfig(use_tls=False).tls_context() is None
    made = ClientConfig(use_tls=True).tls_context()
    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert ClientConfig(ssl_context=own).tls_context() is own


def test_every_request_names_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-16."""
    assert RemotingCommand.request(10).language == LanguageCode.PYTHON


# --- namespaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "namespace"),
    [
        ("http://MQ_INST_12_ab.mq.example:80", "MQ_INST_12_ab"),
        ("MQ_INST_12_ab.mq.example:80", "MQ_INST_12_ab"),
        ("http://mq.example:80", None),
        ("MQ_INST_12.mq.example:80", None),
        (NAMESRV, None),
    ],
)
def test_a_namespace_comes_from_the_endpoint_unless_one_is_given(
    address: str, namespace: str | None
) -> None:
    """Covers C-5."""
    assert ClientConfig(namesrv_addr=address).effective_namespace() == namespace
    assert ClientConfig(namesrv_addr=address, namespace="own").effective_namespace() == "own"


def test_names_are_wrapped_on_the_way_out_and_unwrapped_on_the_way_in() -> None:
    """Covers C-148: topics, groups and queues."""
    config = ClientConfig(namespace="ns")
    mq = MessageQueue("T", "b", 3)
    assert config.with_namespace("g") == "ns%g"
    assert config.without_namespace("%RETRY%ns%g") == "%RETRY%g"
    assert config.queue_with_namespace(mq) == MessageQueue("ns%T", "b", 3)
    assert config.queues_without_namespace([config.queue_with_namespace(mq)]) == [mq]
    assert ClientConfig(namesrv_addr=NAMESRV).queue_with_namespace(mq) is mq


# --- how clients take them ------------------------------------------------------------------------


def test_every_setting_is_a_keyword_of_every_client() -> None:
    """Covers C-10: a value given to the constructor reaches the machine, unlike a late setter."""
    base = ClientConfig(namesrv_addr=NAMESRV, api_timeout_ms=5)
    settings: dict[str, Any] = {"unit_name": "u", "namespace": "ns", "pull_batch_size": 3}
    made = client_config(base, None, settings)
    assert (made.unit_name, made.namespace, made.api_timeout_ms) == ("u", "ns", 5)
    assert settings == {"pull_batch_size": 3}
    assert client_config(base, "b:1", {}).namesrv_addr == "b:1"
    producer = Producer("p", namesrv_addr=NAMESRV, unit_name="u", unit_mode=True)
    assert producer.config.unit_mode
    assert producer.client_id.endswith("@u")
    for kind in (PullConsumer, LitePullConsumer):
        pulling = kind("c", config=base, unit_name="u", namespace="ns")
        assert pulling.client_id.endswith("@u@STREAM")
        assert pulling.config.effective_namespace() == "ns"
    consumer = PushConsumer("c", config=base, pull_time_delay_ms_when_exception=7)
    assert consumer.config.pull_time_delay_ms_when_exception == 7


def test_a_configuration_cannot_be_changed_behind_a_clients_back() -> None:
    """Covers C-10, C-599: there is no setter that would be taken and not reach the machine."""
    consumer = PushConsumer("c", namesrv_addr=NAMESRV)
    with pytest.raises(FrozenInstanceError):
        consumer.config.pull_time_delay_ms_when_exception = 7  # type: ignore[misc]


def test_a_shared_setting_is_checked_by_each_client() -> None:
    with pytest.raises(ConfigurationError, match="heartbeat_broker_interval_ms"):
        Producer("p", namesrv_addr=NAMESRV, heartbeat_broker_interval_ms=0)


@pytest.mark.parametrize("address", ["nowhere", "host:99999", "host:1;:2", "http://host"])
@pytest.mark.parametrize("client", [Producer, PushConsumer, LitePullConsumer])
def test_an_address_nobody_can_have_is_refused_where_the_client_is_made(
    client: Callable[..., object], address: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"not an address: .*give host:port"):
        client("g", namesrv_addr=address)


def test_secrets_are_not_shown() -> None:
    text = repr(ClientConfig(access_key="ak", secret_key="sk", security_token="st"))
    assert not re.search(r"ak\b|\bsk\b|\bst\b", text)


# --- around requests ------------------------------------------------------------------------------


class Hook:
    """Marks requests, remembers answers."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.answers: list[int] = []

    def before_request(self, address: str, command: RemotingCommand) -> None:
        command.ext_fields = {**(command.ext_fields or {}), self.mark: address}

    def after_response(
        self, address: str, command: RemotingCommand, response: RemotingCommand
    ) -> None:
        self.answers.append(response.code)
        raise RuntimeError("a hook that fails")


def test_stream_mark_and_hooks_come_before_the_signature() -> None:
    """Covers C-17, C-18: what is added is signed too."""
    hooks = [Hook("one"), Hook("two")]
    config = ClientConfig(
        access_key="ak", secret_key="sk", enable_stream_request_type=True, rpc_hook=hooks
    )
    before = config.before_request()
    assert before is not None
    command = RemotingCommand.request(11)
    command.ext_fields = {"topic": "T"}
    before("a:1", command)
    ext = command.ext_fields
    assert ext is not None
    assert (ext["ReqT"], ext["one"], ext["two"]) == ("0", "a:1", "a:1")
    unsigned = {k: v for k, v in ext.items() if k in ("topic", "ReqT", "one", "two")}
    assert ext["Signature"] == sign(unsigned, b"", "ak", "sk", None)["Signature"]


def test_answers_go_to_every_hook_even_if_one_fails() -> None:
    one, two = Hook("one"), Hook("two")
    after = ClientConfig(rpc_hook=(one, two)).after_response()
    assert after is not None
    after("a:1", RemotingCommand.request(11), RemotingCommand.response(17))
    assert one.answers == two.answers == [17]


def test_without_hooks_nothing_is_called() -> None:
    assert ClientConfig().before_request() is None
    assert ClientConfig().after_response() is None

"""One table of settings: checks, keyword types and documentation say the same."""

from __future__ import annotations

import enum
import inspect
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from rocketstream.aio import LitePullConsumer as AioLitePullConsumer
from rocketstream.aio import Producer as AioProducer
from rocketstream.aio import PullConsumer as AioPullConsumer
from rocketstream.aio import PushConsumer as AioPushConsumer
from rocketstream.aio import TransactionProducer as AioTransactionProducer
from rocketstream.client import keywords as client_keywords
from rocketstream.errors import ConfigurationError
from rocketstream.server import keywords as server_keywords
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.settings import about, keyword_fields
from scripts.settings_tables import TABLES, Table, files, keyword_type, meanings

KINDS: dict[str, list[type[Any]]] = {
    "ProducerKeywords": [Producer, AioProducer],
    "TransactionProducerKeywords": [TransactionProducer, AioTransactionProducer],
    "PushConsumerKeywords": [PushConsumer, AioPushConsumer],
    "PullConsumerKeywords": [PullConsumer, AioPullConsumer],
    "LitePullConsumerKeywords": [LitePullConsumer, AioLitePullConsumer],
    "EmbeddedKeywords": [EmbeddedCluster],
}
CLIENTS = [kind for kinds in KINDS.values() for kind in kinds if kind is not EmbeddedCluster]
BY_NAME = {table.name: table for table in TABLES}


@pytest.mark.parametrize(("path", "text"), files().items(), ids=[p.name for p in files()])
def test_what_is_generated_is_fresh(path: Path, text: str) -> None:
    """Run `python -m scripts.settings_tables` when this fails."""
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_keyword_types_have_the_tables_names_and_types(table: Table) -> None:
    module = server_keywords if table.name == "EmbeddedKeywords" else client_keywords
    keys = {
        name: said.__forward_arg__.replace("'", '"')
        for name, said in getattr(module, table.name).__annotations__.items()
    }
    assert keys == {each.name: keyword_type(each) for each in every_field(table)}


def every_field(table: Table) -> list[Field[Any]]:
    """Return the settings of a table and of its bases."""
    bases = [field for base in table.bases for field in every_field(BY_NAME[base])]
    return [*bases, *table.fields]


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_every_setting_says_what_it_means(table: Table) -> None:
    said = meanings(table.kind)
    assert {each.name for each in fields(table.kind)} - set(said) == set()
    assert all(len(said[each.name]) > 8 for each in table.fields)


@pytest.mark.parametrize(("name", "kinds"), KINDS.items(), ids=KINDS)
def test_constructors_take_their_keyword_type(name: str, kinds: list[type[Any]]) -> None:
    for kind in kinds:
        parameters = inspect.signature(kind).parameters.values()
        annotations = [p.annotation for p in parameters if p.kind is p.VAR_KEYWORD]
        assert annotations == [f"Unpack[{name}]"], kind


def given(name: str) -> dict[str, Any]:
    """Return every keyword of a keyword type with its default."""
    table = BY_NAME[name]
    found = {} if name == "EmbeddedKeywords" else {"namesrv_addr": "127.0.0.1:1"}
    for base in table.bases:
        found |= given(base)
    made = {each.name: each for each in table.fields}
    return found | {
        key: each.default_factory() if callable(each.default_factory) else each.default
        for key, each in made.items()
    }


@pytest.mark.parametrize(("name", "kinds"), KINDS.items(), ids=KINDS)
def test_every_keyword_is_accepted_by_the_constructor(name: str, kinds: list[type[Any]]) -> None:
    for kind in kinds:
        keywords = given(name)
        kind(**keywords) if kind is EmbeddedCluster else kind("g", **keywords)


def beyond(field: Any) -> list[Any]:
    """Return values just outside of a setting's bounds."""
    more = about(field)
    low = (
        [more.low - 1 if more.also != more.low - 1 else more.low - 2]
        if more.low is not None
        else []
    )
    high = [more.high + 1] if more.high is not None else []
    above = [more.above] if more.above is not None else []
    kinds = ["x"] if isinstance(field.default, enum.Enum) else []
    return [*low, *high, *above, *kinds]


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_a_refusal_names_the_python_setting_what_it_takes_and_what_was_given(table: Table) -> None:
    kinds = [k for name, made in KINDS.items() for k in made if inherits(name, table.name)]
    for kind in kinds:
        for field in table.fields:
            for value in beyond(field):
                where = () if kind is EmbeddedCluster else ("g",)
                with pytest.raises(ConfigurationError) as caught:
                    kind(*where, **{field.name: value})
                said = str(caught.value)
                assert said.startswith(f"{field.name} must be a"), said
                assert f", not {value!r}" in said


def inherits(name: str, base: str) -> bool:
    """Whether a keyword type has the keys of another."""
    return name == base or any(inherits(each, base) for each in BY_NAME[name].bases)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("namesrv_adr", "namesrv_addr"),
        ("namesrvAddr", "namesrv_addr"),
        ("heartbeatBrokerInterval", "heartbeat_broker_interval_ms"),
        ("clok", "clock"),
    ],
)
def test_a_name_that_is_none_brings_up_the_one_meant(kind: Any, name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no setting '{name}'; did you mean '{meant}'"):
        kind("g", **{name: 1})


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (Producer, "tls", "use_tls"),
        (Producer, "zzz_qqq", None),
        (Producer, "retries_of_sends", "retry_times_when_send_failed"),
        (Producer, "retry_timez", "retry_times_when_send_failed"),
        (Producer, "heartbeat", "heartbeat_broker_interval_ms"),
        (Producer, "retryTimesWhenSendFailed", "retry_times_when_send_failed"),
        (Producer, "send_timeout_ms", "send_msg_timeout_ms"),
        (TransactionProducer, "checkRequestHoldMax", "check_request_hold_max"),
        (PushConsumer, "consume_threads_max", "consume_thread_max"),
        (PushConsumer, "consumeTimeout", "consume_timeout_minutes"),
        (PushConsumer, "subscriptions", "subscription"),
        (PullConsumer, "registerTopics", "register_topics"),
        (LitePullConsumer, "autocommit", "auto_commit"),
    ],
)
def test_javas_names_and_slips_are_recognised(kind: Any, name: str, meant: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind("g", **{name: 1})
    said = str(caught.value)
    assert (f"did you mean {meant!r}" in said) if meant else ("; settings are " in said)


def test_the_group_is_offered_as_no_keyword() -> None:
    with pytest.raises(ConfigurationError) as caught:
        PushConsumer("g", no_such_thing=1)  # type: ignore[call-arg]
    assert "consumer_group" not in str(caught.value)
    assert {each.name for each in keyword_fields(ClientConfig)} <= set(
        str(caught.value).replace(",", "").split()
    )

"""A broker of 5.x with authentication and authorization: with keys, with wrong ones, without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
)
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import AccessDeniedError, SendError
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.watch import Collector
from tests.kits.apache.cluster import ApacheCluster
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until
from tests.security.accounts import KEYS_HINT, SECRETS, TOPICS, account, send_three_each, with_keys

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

CREATE_USER, CREATE_ACL = 3001, 3006
PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({}, f"username cannot be null (access control, code 16.*; .*{KEYS_HINT}"),
    "unknown key": (
        {"access_key": "nobody-known", "secret_key": "whatever"},
        "User:nobody-known is not found .*no account of this access key",
    ),
    "wrong secret": (
        {"access_key": "operator", "secret_key": "wrong-secret"},
        "check signature failed .*the secret key does not match the access key",
    ),
}


def put(client: BlockingAdminClient, code: int, ext: dict[str, str], body: object) -> None:
    """Make an account, or give it rights, as an operator's own request does."""
    command = RemotingCommand(code)
    command.ext_fields = ext
    command.body = json.dumps(body).encode()
    client.request(client.master("broker-a"), command)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A broker whose first account is in its settings; ``salesdesk`` may use one of two topics."""
    root: Path = tmp_path_factory.mktemp("accounts")
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authConfigPath": str(root / "auth"),
        "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
        "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
        "initAuthenticationUser": json.dumps(
            {"username": "operator", "password": SECRETS["operator"]}
        ),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "inner", "secretKey": "secret-of-brokers"}
        ),
    }
    cluster = ApacheCluster(prepared("5.5.0"), root, broker_settings=settings)
    try:
        cluster.start()
        keys = account("operator")
        with BlockingAdminClient(cluster.namesrv_addr, **keys) as client:
            user = {"username": "salesdesk", "password": SECRETS["salesdesk"], "userType": "Normal"}
            put(client, CREATE_USER, {"username": "salesdesk"}, user)
            allowed = [
                {"resource": resource, "actions": actions, "decision": "Allow"}
                for resource, actions in (
                    ("Topic:orders", ["Pub", "Sub"]),
                    ("Group:desk", ["Sub"]),
                )
            ]
            acl = {"subject": "User:salesdesk", "policies": [{"entries": allowed}]}
            put(client, CREATE_ACL, {"subject": "User:salesdesk"}, acl)
        with Admin(cluster.namesrv_addr, **keys) as admin:
            for topic in TOPICS:
                admin.topics.create(topic, queues=1)
            with Producer("till", config=config_of(cluster, keys)) as producer:
                send_three_each(producer)
            admin.changes.apply(admin.changes.group_create_plan("shop", {}))
            plan = admin.changes.group_create_plan("desk", {})
            admin.changes.apply(plan)
            wait_until(lambda: admin.messages.query("orders", "k0"), "the index of keys")
        yield cluster
    finally:
        cluster.stop(kill=True)


def config_of(cluster: ApacheCluster, keys: Mapping[str, Any]) -> ClientConfig:
    return ClientConfig(namesrv_addr=cluster.namesrv_addr, **keys)


@pytest.fixture
def as_(monkeypatch: pytest.MonkeyPatch, guarded: ApacheCluster) -> Any:
    """Gives the command line with keys in its environment."""

    return with_keys(monkeypatch, guarded.namesrv_addr)


def test_producers_and_consumers_work_with_the_rights_they_have(guarded: ApacheCluster) -> None:
    """Binary and JSON headers, batches, push and lite pull; with the account of a shop's desk."""
    config = config_of(guarded, account("salesdesk"))
    with Producer("till", config=config) as producer:
        producer.send(Message("orders", "by hand", keys="mine"))
        producer.send([Message("orders", "one"), Message("orders", "two")])
        lacking = r"Topic:salaries .*the account lacks this right"
        with pytest.raises(SendError, match=lacking) as refused:
            producer.send(Message("salaries", "mine"))
        assert isinstance(refused.value.__cause__, AccessDeniedError)
    seen: list[str] = []

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        seen.extend(bytes(message.body).decode() for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer("desk", config=config, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders", "*")
    consumer.register_message_listener(listener)
    with consumer:
        wait_until(lambda: {"orders 0", "by hand", "two"} <= set(seen), "all messages", 60)
    with Admin(guarded.namesrv_addr, **account("operator")) as admin:
        wait_until(
            lambda: admin.groups.lag("desk", "orders")[0].committed_offset == len(seen),
            "the offset of everything",
        )
    lite = LitePullConsumer("desk", config=config)
    lite.subscribe("orders", "*")
    with Producer("till", config=config) as producer, lite:
        producer.send(Message("orders", "for lite"))
        got: list[MessageExt] = []
        wait_until(lambda: got.extend(lite.poll(500)) or got, "a message of lite pull", 60)  # type: ignore[func-returns-value]
        assert [bytes(each.body) for each in got] == [b"for lite"]


def test_commands_work_with_keys_of_the_environment(as_: Any) -> None:
    run = as_(account("operator"))
    assert {row["topic"] for row in run("topic", "list", "--json").worked().json} >= {
        "orders", "salaries",
    }  # fmt: skip
    run("group", "reset", "shop", "orders", "--to-earliest", "--yes", "--new-group").worked()
    (row,) = run("group", "lag", "shop", "--json").worked().json
    assert (row["topic"], row["lag"] >= 3) == ("orders", True)
    assert run("group", "why", "shop", "--json").code in (0, 3)
    assert "orders 0" in run("message", "query", "orders", "k0").worked().out
    run("topic", "create", "made").worked()
    run("topic", "update", "made", "--perm", "r", "--yes").worked()
    run("topic", "delete", "made", "--yes").worked()
    wait_until(lambda: run("broker", "list", "--json").worked().json[0]["figures"], "figures")


@pytest.mark.parametrize("why", REFUSED)
def test_a_command_that_is_refused_says_what_is_missing_and_does_nothing(
    as_: Any, why: str, guarded: ApacheCluster, tmp_path: Path
) -> None:
    keys, said = REFUSED[why]
    run = as_(keys)
    for words in (
        ("topic", "list"),
        ("topic", "status", "orders"),
        ("topic", "create", "stray"),
        ("topic", "delete", "orders", "--yes"),
        ("group", "list"),
        ("group", "lag", "desk", "--max", "100"),
        ("group", "why", "desk"),
        ("group", "reset", "desk", "orders", "--to-latest", "--yes"),
        ("message", "query", "orders", "k0"),
        ("export", str(tmp_path / "export.json")),
        ("send", "orders", "x"),
        ("consume", "orders", "-g", "desk", "--max", "1", "--idle", "1"),
    ):
        line = run(*words).failed()
        assert re.search(said.replace("(", r"\(").replace(")", r"\)"), line), (words, line)
    assert not list(tmp_path.iterdir()), "what was refused left something"
    with Admin(guarded.namesrv_addr, **account("operator")) as admin:
        assert "stray" not in {row.topic for row in admin.topics.all()}


def test_a_right_that_is_missing_is_named(as_: Any) -> None:
    run = as_(account("salesdesk"))
    run("send", "orders", "more").worked()
    for words, resource in (
        (("send", "salaries", "x"), "Topic:salaries"),
        (("message", "query", "salaries", "k0"), "Topic:salaries"),
        (("consume", "orders", "-g", "others", "--max", "1", "--idle", "1"), "Group:others"),
        (("topic", "create", "stray"), "Topic:stray"),
    ):
        line = run(*words).failed()
        assert f"User:salesdesk has no permission to access {resource}" in line, (words, line)
        assert re.search(r"\(access control, code 16.*; the account lacks this right", line), words


def test_collection_works_with_keys_and_says_who_is_not_let_in(guarded: ApacheCluster) -> None:
    with Collector(lambda: Admin(guarded.namesrv_addr, **account("operator"))) as collector:
        assert collector.refresh(30)
        assert collector.outage() is None
        state = collector.latest()
        assert state is not None
        assert "desk" in state.groups
    for keys, said in REFUSED.values():
        with Collector(lambda keys=keys: Admin(guarded.namesrv_addr, **keys)) as collector:  # type: ignore[misc]
            collector.refresh(30)
            outage = collector.outage()
            assert outage is not None
            assert said.split(" (")[0].split(" .*")[0] in str(outage)

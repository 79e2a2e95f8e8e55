"""The operator's tools on a cluster with access control: with keys, with wrong ones, without."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from rocketstream import ClientConfig, Producer
from rocketstream.admin import Admin
from rocketstream.admin import aio as admin_aio
from rocketstream.agents.server import serving
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.watch import Collector
from rocketstream.watch.metrics import scrape
from tests.dashboard.rig import browsing_live
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.scraped import read
from tests.plugins.apache import prepared
from tests.plugins.commands import Cli
from tests.plugins.waiting import wait_until
from tests.security.accounts import KEYS_HINT, TOPICS, account, send_three_each, with_keys

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

ACCOUNTS = """accounts:
- accessKey: salesdesk
  secretKey: secret-of-sales
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
- accessKey: operator
  secretKey: secret-of-operator
  whiteRemoteAddress:
  admin: true
"""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({}, f"No accessKey is configured (access control, code 1.*; .*{KEYS_HINT}"),
    "unknown key": (
        {"access_key": "nobody-known", "secret_key": "whatever"},
        "No acl config for nobody-known .*no account of this access key",
    ),
    "wrong secret": (
        {"access_key": "operator", "secret_key": "wrong-secret"},
        "Check signature failed for accessKey=operator .*the secret key does not match",
    ),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A broker with access control, two topics and a group that is behind in one of them."""
    root: Path = tmp_path_factory.mktemp("guarded")
    cluster = ApacheCluster(prepared("4.9.7"), root, broker_settings={"aclEnable": "true"})
    conf = root / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    try:
        cluster.start()
        settings = account("operator")
        with Admin(cluster.namesrv_addr, **settings) as admin:
            for topic in TOPICS:
                admin.topics.create(topic, queues=1)
            config = ClientConfig(namesrv_addr=cluster.namesrv_addr, **settings)
            with Producer("till", config=config) as producer:
                send_three_each(producer)
            admin.changes.apply(admin.changes.group_create_plan("shop", {}))
            with BlockingAdminClient(cluster.namesrv_addr, **settings) as client:
                client.update_consumer_offset("shop", MessageQueue("orders", "broker-a", 0), 1)
            wait_until(lambda: admin.messages.query("orders", "k0"), "the index of keys")
        yield cluster
    finally:
        cluster.stop(kill=True)


@pytest.fixture
def as_(monkeypatch: pytest.MonkeyPatch, guarded: ApacheCluster) -> Any:
    """Gives the command line with keys in its environment."""

    return with_keys(monkeypatch, guarded.namesrv_addr)


def test_commands_work_with_keys_of_the_environment(as_: Any) -> None:
    run = as_(account("operator"))
    assert {row["topic"] for row in run("topic", "list", "--json").worked().json} >= {
        "orders", "salaries",
    }  # fmt: skip
    (row,) = run("group", "lag", "shop", "--json").worked().json
    assert (row["topic"], row["lag"]) == ("orders", 2)
    assert run("group", "why", "shop", "--json").code in (0, 3)
    assert "orders 0" in run("message", "query", "orders", "k0").worked().out
    wait_until(  # Apache's fails to answer request 28 in its first second
        lambda: run("broker", "list", "--json").worked().json[0]["figures"],
        "figures of a broker that has just started",
    )
    run("send", "orders", "more").worked()
    consumed = run("consume", "orders", "-g", "desk", "--from", "earliest", "--max", "1").worked()
    assert "orders 0" in consumed.out


def test_keys_of_a_file_work_and_are_in_no_process_table(
    as_: Any, guarded: ApacheCluster, tmp_path: Path
) -> None:
    as_({})
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: operator\nsecretKey: secret-of-operator\n")
    for words in (
        ("--key-file", str(path), "group", "lag", "shop", "--json"),
        ("group", "lag", "shop", "--json", f"--key-file={path}"),
    ):
        (row,) = Cli(guarded.namesrv_addr)(*words).worked().json
        assert row["lag"] in (2, 3)


@pytest.mark.parametrize("why", REFUSED)
def test_a_command_that_is_refused_says_what_is_missing_and_does_nothing(
    as_: Any, why: str, guarded: ApacheCluster, tmp_path: Path
) -> None:
    keys, said = REFUSED[why]
    run = as_(keys)
    file = str(tmp_path / "export.json")
    for words in (
        ("topic", "list"),
        ("topic", "status", "orders"),
        ("topic", "create", "stray"),
        ("topic", "delete", "orders", "--yes"),
        ("group", "list"),
        ("group", "lag", "shop", "--max", "100"),
        ("group", "why", "shop"),
        ("group", "members", "shop"),
        ("group", "reset", "shop", "orders", "--to-latest", "--yes"),
        ("message", "query", "orders", "k0"),
        ("export", file),
        ("send", "orders", "x"),
        ("consume", "orders", "-g", "desk", "--max", "1", "--idle", "1"),
    ):
        line = run(*words).failed()
        assert re.search(said.replace("(", r"\(").replace(")", r"\)"), line), (words, line)
        assert "org.apache" not in line, words
    assert not list(tmp_path.iterdir()), "what was refused left something"
    with Admin(guarded.namesrv_addr, **account("operator")) as admin:
        assert "stray" not in {row.topic for row in admin.topics.all()}
        (row,) = admin.groups.lag("shop", "orders")
        assert row.committed_offset == 1


def test_a_right_to_a_topic_that_is_missing_is_said_of_that_topic(
    as_: Any, guarded: ApacheCluster
) -> None:
    """Brokers of 4.9 ask for it where messages are sent or read, an administrator's to change."""
    run = as_(account("salesdesk"))
    assert "orders 0" in run("message", "query", "orders", "k0").worked().out
    lacking = r"permission for topic:salaries \(access control, code 1.*; the account lacks"
    for words in (
        ("message", "query", "salaries", "k0"),
        ("message", "search", "salaries"),
        ("send", "salaries", "x"),
    ):
        assert re.search(lacking, run(*words).failed()), words
    line = run("topic", "create", "stray").failed()
    assert "Need admin permission for request code=17" in line
    assert "only an administrator's account may do this" in line
    refused = run("topic", "delete", "orders", "--yes")
    assert refused.code == 1
    assert refused.err.rstrip().endswith("only an administrator's account may do this")
    assert "orders" in {row["topic"] for row in run("topic", "list", "--json").worked().json}
    (row,) = run("group", "lag", "shop", "--json").worked().json
    assert row["lag"] is not None


@pytest.mark.parametrize("why", REFUSED)
def test_collection_and_metrics_say_who_is_not_let_in(why: str, guarded: ApacheCluster) -> None:
    """What top and the dashboard draw, too: an outage with its reason, and no empty cluster."""
    keys, said = REFUSED[why]
    with Collector(lambda: Admin(guarded.namesrv_addr, **keys)) as collector:
        collector.refresh(30)
        outage = collector.outage()
        assert outage is not None
        assert said.split(" (")[0].split(" .*")[0] in str(outage)
        text = scrape(collector)
    scraped = read(text)
    assert "rocketmq_producer_offset" not in scraped
    assert scraped["rocketstream_up"] == {(): 0}


def test_collection_works_with_keys(guarded: ApacheCluster) -> None:
    settings = account("operator")
    with Collector(lambda: Admin(guarded.namesrv_addr, **settings)) as collector:
        assert collector.refresh(30)
        assert collector.outage() is None
        state = collector.latest()
        assert state is not None
        assert state.groups["shop"].lag is not None


def test_the_dashboard_works_with_keys_and_says_which_topic_they_do_not_open(
    guarded: ApacheCluster, tmp_path: Path
) -> None:
    namesrv = guarded.namesrv_addr
    with browsing_live(namesrv, tmp_path, reached=account("salesdesk")) as (browser, rig):
        rig.sweep()
        assert "shop" in browser.get("/").text
        assert "k0" in browser.get("/messages?topic=orders&key=k0").text
        text = browser.get("/messages?topic=salaries&key=k0").text
        assert "No default permission for topic:salaries" in text
        assert "org.apache" not in text


@pytest.mark.parametrize("why", REFUSED)
def test_the_dashboard_says_on_every_page_that_it_is_not_let_in(
    why: str, guarded: ApacheCluster, tmp_path: Path
) -> None:
    keys, said = REFUSED[why]
    begin = said.split(" (")[0].split(" .*")[0]
    with browsing_live(guarded.namesrv_addr, tmp_path, reached=keys) as (browser, rig):
        rig.sweep()
        for path in ("/", "/topics", "/brokers", "/letters", "/group?name=shop",
                     "/messages?topic=orders&key=k0"):  # fmt: skip
            answer = browser.get(path)
            assert begin in answer.text, path
            assert "Traceback" not in answer.text
            assert "org.apache" not in answer.text, path


def of_agents(namesrv: str, keys: Mapping[str, Any], tool: str, **arguments: Any) -> Any:
    async def story() -> Any:
        async with (
            admin_aio.Admin(namesrv, **keys) as admin,
            serving(admin, lambda: Collector(lambda: Admin(namesrv, **keys))) as server,
            Client(server) as client,
        ):
            return await client.call_tool(tool, arguments)

    return asyncio.run(asyncio.wait_for(story(), 30))


def test_agents_are_told_what_is_missing(guarded: ApacheCluster) -> None:
    namesrv = guarded.namesrv_addr
    told = of_agents(namesrv, account("operator"), "group_progress", group="shop")
    assert told.structured_content["queues"][0]["lag"] is not None
    for keys, said in REFUSED.values():
        begin = said.split(" (")[0].split(" .*")[0]
        for tool, arguments in (("group_progress", {"group": "shop"}), ("list_groups", {})):
            told = of_agents(namesrv, keys, tool, **arguments)
            text = json.dumps(told.structured_content) + str(told.content)
            assert begin in text, (tool, text)
            assert "org.apache" not in text

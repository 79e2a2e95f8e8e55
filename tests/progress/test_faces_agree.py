"""One group, every face: command line, metrics, dashboard, agents' tools and Spark's rows agree."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mcp import Client
from starlette.testclient import TestClient

from rocketstream import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from rocketstream.admin import Admin
from rocketstream.admin import aio as admin_aio
from rocketstream.admin.messages.masking import Masking
from rocketstream.admin.state import QueueKind
from rocketstream.agents.server import serving
from rocketstream.dashboard import Cluster as Shown
from rocketstream.dashboard import create_app
from rocketstream.protocol.names import retry_topic
from rocketstream.watch import Collector
from rocketstream.watch.metrics import render
from tests.kits.cluster import Cluster
from tests.kits.listeners import LATER, SUCCESS
from tests.kits.scraped import read
from tests.plugins.clusters import Names
from tests.plugins.commands import Quick
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

Lags = dict[tuple[str, str, int], int]
"""Lag by topic, broker and queue."""
_ROW = re.compile(
    r'data-label="Topic">.*?>([^<]+)</a>.*?data-label="Broker" class="name[^"]*">([^<]+)<'
    r'.*?data-label="Queue">(\d+)<.*?data-label="Lag">(?:<[^>]*>)?([^<]+)<',
    re.DOTALL,
)


@dataclass(frozen=True)
class Behind:
    """A group at rest: six messages wait in two queues, one was given up.

    Attributes:
        collector: has swept the cluster.
    """

    cluster: Cluster
    group: str
    topic: str
    collector: Collector
    admin: Admin


def lags_of_sweep(behind: Behind) -> Lags:
    state = behind.collector.latest()
    assert state is not None
    queues = state.groups[behind.group].of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    return {(q.topic, q.broker_name, q.queue_id): q.lag for q in queues if q.lag is not None}


def lags_of_admin(behind: Behind) -> Lags:
    rows = behind.admin.groups.lag(behind.group)
    return {(r.topic, r.broker_name, r.queue_id): r.lag for r in rows if r.lag is not None}


def lags_of_spark(behind: Behind) -> Lags:
    """What ``rocketmq-progress`` renders."""
    rows = behind.admin.groups.progress([behind.group])
    return {
        (row.topic, row.broker_name, row.queue_id): row.lag
        for row in rows
        if row.topic and row.broker_name and row.queue_id is not None and row.lag is not None
    }


def lags_of_command_line(behind: Behind) -> Lags:
    rows = Quick(behind.cluster.namesrv_addr)("group", "lag", behind.group, "--json").worked().json
    return {(row["topic"], row["brokerName"], row["queueId"]): row["lag"] for row in rows}


def lags_of_metrics(behind: Behind) -> Lags:
    update = behind.collector.update()
    samples = read(render(update))["rocketmq_consumer_lag_messages"]
    return {
        (of["topic"], of["node_id"], int(of["queue_id"])): int(value)
        for of, value in ((dict(labels), value) for labels, value in samples.items())
        if of["consumer_group"] == behind.group
    }


def lags_of_dashboard(behind: Behind) -> Lags:
    app = create_app(Shown("", behind.collector, lambda: behind.admin))
    with TestClient(app, "http://127.0.0.1:8976", client=("127.0.0.1", 50000)) as browser:
        text = browser.get(f"/group?name={behind.group}").text
    return {
        (topic, broker, int(queue)): int(lag.replace(",", ""))
        for topic, broker, queue, lag in _ROW.findall(text)
        if lag.replace(",", "").strip("-").isdecimal()
    }


def of_agents(behind: Behind, tool: str, **arguments: Any) -> Any:
    namesrv = behind.cluster.namesrv_addr

    async def story() -> Any:
        async with (
            admin_aio.Admin(namesrv, masking=Masking()) as admin,
            serving(admin, lambda: Collector(lambda: Admin(namesrv))) as server,
            Client(server) as client,
        ):
            return (await client.call_tool(tool, arguments)).structured_content

    return asyncio.run(asyncio.wait_for(story(), 30))


def lags_of_agents(behind: Behind) -> Lags:
    told = of_agents(behind, "group_progress", group=behind.group)
    return {
        (queue["topic"], queue["broker_name"], queue["queue_id"]): queue["lag"]
        for queue in told["queues"]
        if queue["kind"] != "dead letter"
    }


FACES: list[Callable[[Behind], Lags]] = [
    lags_of_sweep,
    lags_of_admin,
    lags_of_spark,
    lags_of_command_line,
    lags_of_metrics,
    lags_of_dashboard,
    lags_of_agents,
]


@pytest.fixture
def behind(cluster: Cluster, names: Names) -> Any:
    cluster.create_topic(names.topic, 2)

    def listener(messages: list[MessageExt]) -> Any:
        return LATER if messages[0].body == b"bad" else SUCCESS

    with (
        Admin(cluster.namesrv_addr, masking=Masking()) as admin,
        Producer("till", namesrv_addr=cluster.namesrv_addr) as producer,
    ):
        for body in ("1", "bad", "2", "3"):
            producer.send(Message(names.topic, body))

        def is_at_rest() -> bool:
            state = admin.groups.state(names.group)
            return (state.lag, state.delayed, state.dead_letters) == (0, 0, 1)

        with PushConsumer(
            names.group,
            namesrv_addr=cluster.namesrv_addr,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            max_reconsume_times=0,
            persist_consumer_offset_interval_ms=100,
            subscription={names.topic: "*"},
            listener=listener,
        ):
            wait_until(is_at_rest, "a group that consumed all")
        for number in range(6):
            producer.send(Message(names.topic, f"{number}"))
        with Collector(lambda: Admin(cluster.namesrv_addr)) as collector:
            assert collector.refresh(30)
            yield Behind(cluster, names.group, names.topic, collector, admin)


def test_every_face_tells_the_same_lag_of_every_queue(behind: Behind) -> None:
    told = {face.__name__: face(behind) for face in FACES}
    broker = next(iter(told["lags_of_sweep"]))[1]
    expected = {
        (behind.topic, broker, 0): 3,
        (behind.topic, broker, 1): 3,
        (retry_topic(behind.group), broker, 0): 0,
    }
    assert told == dict.fromkeys(told, expected)


def test_every_list_of_groups_tells_the_same(behind: Behind) -> None:
    update = behind.collector.update()
    assert update.state is not None
    swept = update.state.groups[behind.group]
    expected = (6, 1, 0)  # lag, dead letters, members
    assert (swept.lag, swept.dead_letters, len(swept.members or ())) == expected
    rows = Quick(behind.cluster.namesrv_addr)("group", "list", "--json").worked().json
    (row,) = [row for row in rows if row["group"] == behind.group]
    assert (row["lag"], row["deadLetters"], row["members"]) == expected
    (line,) = of_agents(behind, "list_groups", matching=behind.group)["groups"]
    assert (line["lag"], line["dead_letters"], line["members"]) == expected
    text = render(update)
    label = f'{{group="{behind.group}"}}'
    for name, value in zip(("lag_messages", "dead_letters", "members"), expected, strict=True):
        assert f"rocketstream_group_{name}{label} {float(value)}\n" in text

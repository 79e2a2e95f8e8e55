"""Messages behind a group: when they are told, to an Airflow that is not here."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rocketstream import ClientConfig, Message, Producer
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ConfigurationError
from rocketstream.frameworks.airflow import provider_info, watcher
from rocketstream.frameworks.airflow.backlog import Backlog, Position
from rocketstream.frameworks.airflow.watcher import (
    arguments_of,
    backlogs,
    checked_group,
    checked_seconds,
    checked_topics,
    config_of,
)
from rocketstream.model import MessageQueue
from tests.frameworks.seen import QUEUES, WAIT_S
from tests.kits.cluster import Cluster

FIRST, SECOND = (MessageQueue("orders", "broker-a", each) for each in range(2))
OTHER = MessageQueue("payments", "broker-a", 0)
REPEAT_MS = 1000.0


def at(committed: int | None, end: int, low: int = 0) -> Position:
    return Position(low, committed, end)


# --- what is behind -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "behind"),
    [
        (at(None, 0), 0),
        (at(None, 3), 3),
        (at(3, 3), 0),
        (at(1, 3), 2),
        (at(None, 9, low=4), 5),
        (at(2, 9, low=4), 5),
        (at(70, 3), 3),
        (at(4, 4, low=4), 0),
    ],
    ids=["empty", "new", "done", "some", "old-gone", "passed", "made-anew", "all-gone"],
)
def test_messages_behind_are_those_kept_and_not_committed(position: Position, behind: int) -> None:
    assert position.behind == behind


def test_what_waits_is_told_by_topic() -> None:
    seen = {FIRST: at(0, 2), SECOND: at(None, 3), OTHER: at(1, 2)}
    assert Backlog(REPEAT_MS).look(seen, 0) == {"orders": 5, "payments": 1}
    assert Backlog(REPEAT_MS).look({FIRST: at(2, 2), OTHER: at(0, 1)}, 0) == {"payments": 1}


def test_nothing_is_told_where_nothing_waits() -> None:
    backlog = Backlog(REPEAT_MS)
    assert backlog.look({}, 0) is None
    assert backlog.look({FIRST: at(4, 4)}, 1) is None


def test_what_was_told_is_not_told_again_while_it_is_worked_on() -> None:
    backlog = Backlog(REPEAT_MS)
    assert backlog.look({FIRST: at(0, 2), SECOND: at(0, 2)}, 0) == {"orders": 4}
    assert backlog.look({FIRST: at(0, 2), SECOND: at(0, 2)}, 1) is None
    assert backlog.look({FIRST: at(2, 9), SECOND: at(1, 2)}, 2) is None


def test_what_came_meanwhile_is_told_once_the_group_has_come_past_what_was_told() -> None:
    backlog = Backlog(REPEAT_MS)
    assert backlog.look({FIRST: at(0, 2)}, 0) == {"orders": 2}
    assert backlog.look({FIRST: at(2, 5)}, 1) == {"orders": 3}
    assert backlog.look({FIRST: at(2, 7)}, 2) is None
    assert backlog.look({FIRST: at(7, 7)}, 3) is None
    assert backlog.look({FIRST: at(7, 8)}, 4) == {"orders": 1}


def test_messages_of_another_queue_wait_until_the_run_they_were_not_told_to_is_over() -> None:
    """One event at a time: the run that is queued already may take them along."""
    backlog = Backlog(REPEAT_MS)
    assert backlog.look({FIRST: at(0, 2), SECOND: at(0, 0)}, 0) == {"orders": 2}
    assert backlog.look({FIRST: at(0, 2), SECOND: at(0, 6)}, 1) is None
    assert backlog.look({FIRST: at(2, 2), SECOND: at(0, 6)}, 2) == {"orders": 6}


def test_what_still_waits_is_told_again_after_a_while() -> None:
    backlog = Backlog(REPEAT_MS)
    assert backlog.look({FIRST: at(0, 2)}, 0) == {"orders": 2}
    assert backlog.look({FIRST: at(0, 3)}, REPEAT_MS - 1) is None
    assert backlog.look({FIRST: at(0, 3)}, REPEAT_MS) == {"orders": 3}
    assert backlog.look({FIRST: at(0, 3)}, REPEAT_MS + 1) is None
    assert backlog.look({FIRST: at(0, 3)}, 2 * REPEAT_MS) == {"orders": 3}


def test_a_new_watcher_tells_what_the_last_one_told() -> None:
    """A triggerer that was killed had perhaps not stored the event."""
    assert Backlog(REPEAT_MS).look({FIRST: at(0, 2)}, 0) == Backlog(REPEAT_MS).look(
        {FIRST: at(0, 2)}, 0
    )


def test_a_queue_that_is_gone_keeps_nothing_from_being_told() -> None:
    backlog = Backlog(REPEAT_MS)
    assert backlog.look({FIRST: at(0, 2), SECOND: at(0, 2)}, 0) == {"orders": 4}
    assert backlog.look({SECOND: at(2, 3)}, 1) == {"orders": 1}


# --- settings -------------------------------------------------------------------------------------


@dataclass
class Stored:
    """The fields of an Airflow Connection."""

    conn_id: str = "rocketmq_default"
    host: str | None = "10.0.0.1"
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra_dejson: Mapping[str, Any] = field(default_factory=dict)


def test_a_connection_is_an_address_an_account_and_settings() -> None:
    assert config_of(Stored()) == ClientConfig(namesrv_addr="10.0.0.1:9876")
    assert config_of(Stored(port=7)).namesrv_addr == "10.0.0.1:7"
    assert config_of(Stored(host="a:1;b:2", port=7)).namesrv_addr == "a:1;b:2"
    extra = {"use_tls": True, "security_token": "t", "api_timeout_ms": 9}
    found = config_of(Stored(login="who", password="how", extra_dejson=extra))
    assert (found.access_key, found.secret_key, found.security_token) == ("who", "how", "t")
    assert (found.use_tls, found.api_timeout_ms) == (True, 9)


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (Stored(host=None), "'rocketmq_default' has no host"),
        (
            Stored(extra_dejson={"use_tsl": True}),
            "'use_tsl' in Extra, which ClientConfig does not have",
        ),
        (Stored(extra_dejson={"secret_key": "how"}), "secret_key is its password"),
        (Stored(extra_dejson={"use_tls": "yes"}), "use_tls must be True or False"),
        (Stored(host="a:x"), "a:x"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(connection: Stored, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        config_of(connection)
    assert words in str(refusal.value)
    assert "how" not in str(refusal.value).replace("show", "")


def test_a_uri_stands_for_arguments() -> None:
    assert arguments_of("rocketmq://h:9876/orders,payments?group=landing") == {
        "namesrv_addr": "h:9876", "topics": ["orders", "payments"], "group": "landing",
    }  # fmt: skip
    assert arguments_of("rocketmq:///orders") == {"topics": ["orders"]}
    assert arguments_of("rocketmq://") == {}
    assert arguments_of("rocketmq:///%25DLQ%25billing?poll_interval_s=5&repeat_after_s=0.5") == {
        "topics": ["%DLQ%billing"], "poll_interval_s": 5.0, "repeat_after_s": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("poll_interval_s=soon", "poll_interval_s must be a number of seconds above 0, not 'soon'"),
        ("repeat_after_s=0", "repeat_after_s must be a number of seconds above 0, not 0"),
        ("grup=landing", "has 'grup'; accepted after .* are group, "),
    ],
)
def test_a_uri_with_an_argument_that_cannot_be_used_is_refused(given: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        arguments_of(f"rocketmq:///orders?{given}")


def test_a_uri_with_keys_is_refused_without_telling_them() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        arguments_of("rocketmq://who:how@h:9876/orders")
    assert "rocketmq_conn_id" in str(refusal.value)
    assert "how@" not in str(refusal.value)


def test_arguments_are_checked_where_the_dag_is_read() -> None:
    assert checked_topics("orders") == ["orders"]
    assert checked_topics(("payments", "orders", "orders")) == ["orders", "payments"]
    for topics in ([], ["or ders"], [""]):
        with pytest.raises(ConfigurationError, match="topic"):
            checked_topics(topics)
    with pytest.raises(ConfigurationError, match="group"):
        checked_group("")
    assert checked_seconds("repeat_after_s", 0.5) == 0.5
    for seconds in (0, -1, float("nan"), "1", True):
        with pytest.raises(ConfigurationError, match="repeat_after_s must be a number of seconds"):
            checked_seconds("repeat_after_s", seconds)  # type: ignore[arg-type]


def test_airflow_is_told_of_classes_that_are_there() -> None:
    """Read, not imported: Airflow is not in this environment."""
    info = provider_info()
    assert info["package-name"] == "rocketstream"
    (module,) = info["triggers"][0]["python-modules"]
    path = Path(watcher.__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(path.read_text("utf-8"))
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for queue in info["queues"]:
        assert queue.rpartition(".")[0] == module
        assert queue.rpartition(".")[2] in classes


# --- a cluster ------------------------------------------------------------------------------------


class Looks(Backlog):
    """Counts its looks; a test waits for some to pass."""

    made: list[Looks]

    def __init__(self, repeat_after_ms: float) -> None:
        super().__init__(repeat_after_ms)
        self.looked = asyncio.Semaphore(0)
        self.made.append(self)

    def look(self, positions: Any, now_ms: float) -> dict[str, int] | None:
        self.looked.release()
        return super().look(positions, now_ms)

    async def pass_by(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                await self.looked.acquire()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Looks]:
    monkeypatch.setattr(watcher, "Backlog", Looks)
    monkeypatch.setattr(Looks, "made", [], raising=False)
    return Looks.made


def send(cluster: Cluster, topic: str, count: int) -> None:
    with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
        for _ in range(count):
            producer.send(Message(topic, b"{}"))


def commit_all(cluster: Cluster, group: str, topic: str) -> None:
    """Report that a group has consumed all there is, as a landing does."""
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        for queue, end in client.max_offsets(client.subscribe_queues(topic)).items():
            client.update_consumer_offset(group, queue, end)


def test_an_event_comes_with_a_message_and_none_before(
    cluster: Cluster, topic: str, looks: list[Looks]
) -> None:
    async def scenario() -> None:
        async def configure() -> ClientConfig:
            return ClientConfig(namesrv_addr=cluster.namesrv_addr)

        watched = backlogs(
            configure, [topic], f"{topic}-landing", poll_interval_s=0.01, repeat_after_s=600
        )
        event = asyncio.ensure_future(anext(watched))
        await asyncio.sleep(0)  # it has begun
        await looks[0].pass_by(3)
        assert not event.done()
        await asyncio.to_thread(send, cluster, topic, 1)
        assert await event == {topic: 1}

        event = asyncio.ensure_future(anext(watched))
        await asyncio.to_thread(send, cluster, topic, 1)
        await looks[0].pass_by(looks[0].looked._value + 3)
        assert not event.done()
        await asyncio.to_thread(commit_all, cluster, f"{topic}-landing", topic)
        await asyncio.to_thread(send, cluster, topic, 1)
        assert await event == {topic: 1}
        await watched.aclose()
        assert sum(cluster.committed(f"{topic}-landing", topic, QUEUES)) == 2

    asyncio.run(scenario())


def test_the_group_is_not_joined_and_not_moved(cluster: Cluster, topic: str) -> None:
    """A landing refuses a group that has members, and begins where its offsets are."""

    async def scenario() -> None:
        async def configure() -> ClientConfig:
            return ClientConfig(namesrv_addr=cluster.namesrv_addr)

        send(cluster, topic, 2)
        watched = backlogs(
            configure, [topic], f"{topic}-quiet", poll_interval_s=0.01, repeat_after_s=0.01
        )
        assert [await anext(watched) for _ in range(3)] == [{topic: 2}] * 3
        await watched.aclose()

    asyncio.run(scenario())
    assert max(cluster.committed(f"{topic}-quiet", topic, QUEUES)) <= 0
    with Admin(cluster.namesrv_addr) as admin:
        assert f"{topic}-quiet" not in admin.groups.names()


def test_a_cluster_that_cannot_be_asked_is_asked_again_with_new_settings(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A Connection may have been changed because the cluster did not answer."""

    async def scenario() -> dict[str, int]:
        addresses = ["127.0.0.1:1", "127.0.0.1:1", cluster.namesrv_addr]

        async def configure() -> ClientConfig:
            return ClientConfig(namesrv_addr=addresses.pop(0), connect_timeout_ms=500)

        send(cluster, topic, 1)
        watched = backlogs(configure, [topic], "g", poll_interval_s=0.01, repeat_after_s=600)
        told = await anext(watched)
        await watched.aclose()
        assert not addresses
        return told

    assert asyncio.run(scenario()) == {topic: 1}
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text for text in warned if "is not known now" in text] == warned
    assert len(warned) == 1


def test_a_topic_may_come_later(cluster: Cluster, topic: str) -> None:
    async def scenario() -> dict[str, int]:
        tries = iter(range(100))
        later = f"{topic}-later"

        async def configure() -> ClientConfig:
            if next(tries) == 1:
                await asyncio.to_thread(cluster.create_topic, later, QUEUES)
                await asyncio.to_thread(send, cluster, later, 1)
            return ClientConfig(namesrv_addr=cluster.namesrv_addr)

        watched = backlogs(configure, [later], "g", poll_interval_s=0.01, repeat_after_s=600)
        told = await anext(watched)
        await watched.aclose()
        return told

    assert asyncio.run(scenario()) == {f"{topic}-later": 1}


def test_settings_that_no_cluster_can_be_asked_with_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    async def scenario() -> None:
        async def configure() -> ClientConfig:
            return ClientConfig()

        async for _ in backlogs(configure, ["t"], "g", poll_interval_s=1, repeat_after_s=1):
            raise AssertionError

    with pytest.raises(ConfigurationError, match="No name server address"):
        asyncio.run(scenario())

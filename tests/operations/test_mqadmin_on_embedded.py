"""Apache's tools move and look into groups of Java consumers through our broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstream.admin import Admin
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import SHORT_DELAYS, JavaPrograms, committed_offsets, run_mqadmin
from tests.kits.apache.jvm import Jvm
from tests.kits.apache.messages import read_received
from tests.kits.apache.ours import send_many
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COUNT = 60
QUEUES = 2
TOPIC, GROUP = "orders", "shop"


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """Our servers with a topic of some messages."""
    with EmbeddedCluster(
        tmp_path / "store", delay_levels=SHORT_DELAYS, transaction_check_interval_ms=3_600_000
    ) as cluster:
        cluster.create_topic(TOPIC, queues=QUEUES)
        send_many(cluster.namesrv_addr, TOPIC, COUNT)
        yield cluster


@pytest.fixture
def mqadmin(apache: Referee, ours: EmbeddedCluster, tmp_path: Path) -> MqAdmin:
    return MqAdmin(apache, tmp_path / "tools", ours.namesrv_addr)


class MqAdmin:
    """The tools of one version, asking our name server."""

    def __init__(self, referee: Referee, root: Path, namesrv: str) -> None:
        self.is_5 = referee.version.startswith("5")
        self._about = (referee, root, namesrv)

    def __call__(self, *arguments: str) -> str:
        return run_mqadmin(*self._about, *arguments)


def stored(cluster: EmbeddedCluster, group: str = GROUP) -> int:
    """The sum of a group's offsets, as our file has them."""
    return sum(committed_offsets(cluster.store_dir, TOPIC, group).values())


@contextmanager
def java_member(java: JavaPrograms, cluster: EmbeddedCluster, out: Path) -> Iterator[Jvm]:
    """A Java consumer that has consumed and committed everything."""
    namesrv = cluster.namesrv_addr
    with java.start(
        "JavaPushConsumer", namesrv=namesrv, topic=TOPIC, group=GROUP, count=COUNT, out=out
    ) as consumer:
        consumer.wait_event("done", timeout_s=120)
        wait_until(lambda: stored(cluster) == COUNT, "the commits", timeout_s=60)
        with Admin(namesrv) as admin:
            wait_until(
                lambda: all(
                    row.committed_offset is not None for row in admin.groups.lag(GROUP, TOPIC)
                ),
                "an offset of every queue",
            )
        yield consumer
        consumer.end_input()
        consumer.wait_event("closed")
        assert consumer.wait() == 0


def test_tools_look_into_a_java_member(
    java: JavaPrograms, ours: EmbeddedCluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    """Covers C-538, C-540: 203, 204, 221 and 223, 307 with jstack, 309."""
    with java_member(java, ours, tmp_path / "out"):
        with Admin(ours.namesrv_addr) as admin:
            (member,) = admin.groups.members(GROUP)
            (info,) = admin.groups.running_info(GROUP, stacks=True)
            status = admin.groups.consumer_status(GROUP, TOPIC)
            message = admin.messages.query(TOPIC, "m-0")[0]
            row = admin.messages.consume(GROUP, member.client_id, TOPIC, message.msg_id)
            owners = {row.client_id for row in admin.groups.lag(GROUP, TOPIC)}
        connection = mqadmin("consumerConnection", "-g", GROUP)
        running = mqadmin("consumerStatus", "-g", GROUP, "-i", member.client_id, "-s", "true")
        where = ["-t", TOPIC] if mqadmin.is_5 else []
        direct = mqadmin(
            "queryMsgById", "-i", message.offset_msg_id, "-g", GROUP,
            "-d", member.client_id, *where,
        )  # fmt: skip

    assert member.client_id in connection
    assert re.search(r"subscription|orders", connection)
    assert "PROP_CONSUMEORDERLY" in running
    assert "ConsumeMessageThread" in running
    assert "consumeResult=CR_SUCCESS" in direct
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert "ConsumeMessageThread" in (info.stacks or "")
    assert sum(queue.commit_offset for queue in info.queues if queue.topic == TOPIC) == COUNT
    assert sum(status[member.client_id].values()) >= COUNT
    assert row.result == "CR_SUCCESS"
    assert owners == {member.client_id}
    again = [each for each in read_received(tmp_path / "out") if each.sent.keys == "m-0"]
    assert len(again) == 3


def test_tools_reset_a_java_member(
    java: JavaPrograms,
    ours: EmbeddedCluster,
    mqadmin: MqAdmin,
    tmp_path: Path,
) -> None:
    """Covers C-531, C-532, C-535: both ends unmodified; all messages come a second time."""
    with java_member(java, ours, tmp_path / "out"):
        text = mqadmin("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "1", "-f", "true")
        assert TOPIC in text
        # Its offsets may be back for an instant only: what it consumed tells of the second time.
        wait_until(lambda: len(read_received(tmp_path / "out")) >= 2 * COUNT, "the second time", 60)
        wait_until(lambda: stored(ours) == COUNT, "the commits", timeout_s=60)
    received = read_received(tmp_path / "out")
    assert len(received) == 2 * COUNT
    assert len({each.sent.keys for each in received}) == COUNT


def test_tools_move_groups_at_rest(
    java: JavaPrograms, ours: EmbeddedCluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    """Covers C-534, C-536, C-537: resets fall back to the old way, offsets are copied."""
    with java_member(java, ours, tmp_path / "out"):
        pass
    mqadmin("cloneGroupOffset", "-s", GROUP, "-d", "copy", "-t", TOPIC, "-o", "true")
    wait_until(lambda: stored(ours, "copy") == COUNT, "the copy", timeout_s=60)
    mqadmin("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "1", "-f", "true")
    wait_until(lambda: stored(ours) == 0, "the reset", timeout_s=60)
    mqadmin("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC, "-f", "true")
    wait_until(lambda: stored(ours) == COUNT, "the skip", timeout_s=60)
    text = mqadmin("consumerProgress", "-g", GROUP)
    assert re.search(r"Diff Total: 0", text), text

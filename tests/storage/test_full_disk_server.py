"""A broker whose disk is full: what it refuses, what it still does, and that it recovers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream.protocol.bodies import OffsetMovedEvent, SubscriptionGroupConfig
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.server.store import Files
from tests.kits.peer import Peer, ext
from tests.plugins.waiting import wait_until


class FullDisk(Files):
    """Has no room for new files while told so; what is reserved can be written.

    ``turn`` is taken by whoever writes a small file: who has it makes the disk slow.
    """

    is_full = False
    is_full_for_small_files = False

    def __init__(self) -> None:
        self.turn = threading.Lock()

    def reserve(self, handle: int, start: int, size: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().reserve(handle, start, size)

    def write_bytes(self, path: Path, data: bytes) -> None:
        if self.is_full or self.is_full_for_small_files:
            raise OSError(errno.ENOSPC, "No space left on device")
        with self.turn:
            super().write_bytes(path, data)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def rocketmq_cluster(tmp_path: Path, disk: FullDisk) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path, store_config=SMALL_STORE, files=disk) as cluster:
        yield cluster
        disk.is_full = False


def has_route(namesrv: Peer, topic: str) -> bool:
    return namesrv.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}).code == 0


def test_topic_that_cannot_be_written_down_is_refused_and_made_later(
    disk: FullDisk, broker_peer: Peer, namesrv_peer: Peer
) -> None:
    """Nothing is acknowledged in a topic no consumer will ever hear of."""
    disk.is_full_for_small_files = True
    for _ in range(2):
        refused = broker_peer.send("T1")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no room" in (refused.remark or "")
    fields = {"topic": "T1", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields).code != 0
    group = SubscriptionGroupConfig("wanted").encode()
    refused = broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    assert "no room" in (refused.remark or "")
    assert not has_route(namesrv_peer, "T1")
    disk.is_full_for_small_files = False
    assert broker_peer.send("T1").code == 0
    wait_until(lambda: has_route(namesrv_peer, "T1"), "a route")


def test_slow_disk_holds_up_only_who_makes_topics(
    tmp_path: Path, rocketmq_cluster: EmbeddedCluster, disk: FullDisk, broker_peer: Peer
) -> None:
    """The loop waited for topics.json: 280 ms with 20,000 topics on a busy disk.

    The first message of a topic is acknowledged when the topic is written down, not earlier.
    """
    assert broker_peer.send("T1").code == 0
    with Peer(rocketmq_cluster.broker_addr) as one, Peer(rocketmq_cluster.broker_addr) as other:
        with disk.turn:
            answers = [(one, one.submit_send("T2")), (one, one.submit_send("T2"))]
            answers.append((other, other.submit_send("T2")))
            topics = rocketmq_cluster.broker.controller.topics
            wait_until(lambda: b"T2" in topics.snapshot().encode(), "the new topic")
            assert broker_peer.send("T1").code == 0
            assert topics.get("T2") is None, "its message could be stored"
            assert "T2" not in (tmp_path / "config" / "topics.json").read_text()
        answer = one.answer(answers[0][1])
        assert answer.code == 0
        assert "T2" in (tmp_path / "config" / "topics.json").read_text()
        assert ext(one.answer(answers[1][1]))["queueOffset"] != ext(answer)["queueOffset"]
        assert other.answer(answers[2][1]).code == 0


def test_group_is_written_down_while_others_are_served(
    tmp_path: Path, rocketmq_cluster: EmbeddedCluster, disk: FullDisk, broker_peer: Peer
) -> None:
    """20,000 groups held everybody up for 250 ms, once for each change by an administrator."""
    assert broker_peer.send("T1").code == 0
    with Peer(rocketmq_cluster.broker_addr) as admin:
        with disk.turn:
            command = RemotingCommand.request(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=SubscriptionGroupConfig("wanted").encode(),
            )
            opaque = admin.submit(command)
            groups = rocketmq_cluster.broker.controller.groups
            wait_until(lambda: groups.get("wanted") is not None, "the new group")
            assert broker_peer.send("T1").code == 0
        assert admin.answer(opaque).code == 0
    assert "wanted" in (tmp_path / "config" / "subscriptionGroup.json").read_text()


def test_new_consumers_may_work_a_full_disk_off(
    tmp_path: Path, disk: FullDisk, broker_peer: Peer, namesrv_peer: Peer
) -> None:
    """A heartbeat makes group and retry topic even if they cannot be written down yet."""
    broker_peer.send("T1", b"early")
    disk.is_full = True
    assert broker_peer.heartbeat("c1", topics={"T1": "*"}).code == 0
    assert broker_peer.pull("T1", 0, expression=None, sub_version=1).code == 0
    wait_until(lambda: has_route(namesrv_peer, "%RETRY%cg"), "a route")
    disk.is_full = False
    for name in ("topics.json", "subscriptionGroup.json"):
        file = tmp_path / "config" / name
        wait_until(lambda file=file: "cg" in file.read_text(), name)  # type: ignore[misc]


def test_pull_outside_its_queue_is_answered_on_a_full_disk(
    disk: FullDisk, broker_peer: Peer
) -> None:
    """Covers C-359, C-364: the event cannot be stored, the consumer is told all the same."""
    broker_peer.send("T1")
    disk.is_full = True
    answer = broker_peer.pull("T1", 9)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert ext(answer)["nextBeginOffset"] == "1"
    disk.is_full = False
    broker_peer.pull("T1", 9)
    (event,) = broker_peer.messages("OFFSET_MOVED_EVENT")
    assert OffsetMovedEvent.decode(event.body).offset_request == 9

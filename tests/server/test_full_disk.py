"""A broker whose disk is full: what it refuses, what it still does, and that it recovers."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream.protocol.bodies import OffsetMovedEvent
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.server.store import Files
from tests.plugins.waiting import wait_until
from tests.server.peer import Peer, ext


class FullDisk(Files):
    """Has no room for new files while told so; what is reserved can be written."""

    is_full = False
    is_full_for_small_files = False

    def reserve(self, handle: int, start: int, size: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().reserve(handle, start, size)

    def write_bytes(self, path: Path, data: bytes) -> None:
        if self.is_full or self.is_full_for_small_files:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_bytes(path, data)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def cluster(tmp_path: Path, disk: FullDisk) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path, store_config=SMALL_STORE, files=disk) as cluster:
        yield cluster
        disk.is_full = False


def has_route(namesrv: Peer, topic: str) -> bool:
    return namesrv.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}).code == 0


def test_topic_that_cannot_be_written_down_is_refused_and_made_later(
    disk: FullDisk, broker: Peer, namesrv: Peer
) -> None:
    """Nothing is acknowledged in a topic no consumer will ever hear of."""
    disk.is_full_for_small_files = True
    for _ in range(2):
        refused = broker.send("T1")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no room" in (refused.remark or "")
    fields = {"topic": "T1", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields).code != 0
    assert not has_route(namesrv, "T1")
    disk.is_full_for_small_files = False
    assert broker.send("T1").code == 0
    wait_until(lambda: has_route(namesrv, "T1"), "a route")


def test_new_consumers_may_work_a_full_disk_off(
    tmp_path: Path, disk: FullDisk, broker: Peer, namesrv: Peer
) -> None:
    """A heartbeat makes group and retry topic even if they cannot be written down yet."""
    broker.send("T1", b"early")
    disk.is_full = True
    assert broker.heartbeat("c1", topics={"T1": "*"}).code == 0
    assert broker.pull("T1", 0, expression=None, sub_version=1).code == 0
    wait_until(lambda: has_route(namesrv, "%RETRY%cg"), "a route")
    disk.is_full = False
    for name in ("topics.json", "subscriptionGroup.json"):
        file = tmp_path / "config" / name
        wait_until(lambda file=file: "cg" in file.read_text(), name)  # type: ignore[misc]


def test_pull_outside_its_queue_is_answered_on_a_full_disk(disk: FullDisk, broker: Peer) -> None:
    """Covers C-359, C-364: the event cannot be stored, the consumer is told all the same."""
    broker.send("T1")
    disk.is_full = True
    answer = broker.pull("T1", 9)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert ext(answer)["nextBeginOffset"] == "1"
    disk.is_full = False
    broker.pull("T1", 9)
    (event,) = broker.messages("OFFSET_MOVED_EVENT")
    assert OffsetMovedEvent.decode(event.body).offset_request == 9

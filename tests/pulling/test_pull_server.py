"""Pulls over the wire: status codes, next offsets, filtering, waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.record import BatchItem, encode_batch
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.store import Files
from tests.kits.peer import Peer, ext


class SlowFiles(Files):
    """A disk that can be held up."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.syncing = threading.Event()

    def sync(self, handle: int) -> None:
        if not self.go_on.is_set():
            self.syncing.set()
        assert self.go_on.wait(10)
        super().sync(handle)


def fill(broker: Peer, topic: str = "T1", count: int = 40) -> None:
    """Store messages with tags A, B, A, B, … in queue 0."""
    items = [BatchItem(0, b"m%d" % i, b"TAGS\x01" + b"AB"[i % 2 :][:1]) for i in range(count)]
    assert broker.send(topic, encode_batch(items), batch=True).code == 0


def next_offset(answer: RemotingCommand) -> int:
    return int(ext(answer)["nextBeginOffset"])


@pytest.mark.parametrize(
    ("offset", "code", "remark", "following"),
    [
        (0, ResponseCode.SUCCESS, "FOUND", 32),
        (40, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 40),
        (41, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 40),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_offsets_of_a_queue_of_forty(
    broker_peer: Peer, offset: int, code: int, remark: str, following: int
) -> None:
    """Covers C-359, C-360, C-367: all four longs are there on codes 0, 19 and 21."""
    fill(broker_peer)
    answer = broker_peer.pull("T1", offset)
    assert (answer.code, answer.remark) == (code, remark)
    assert next_offset(answer) == following
    assert (ext(answer)["minOffset"], ext(answer)["maxOffset"]) == ("0", "40")
    assert ext(answer)["suggestWhichBrokerId"] == "0"


def test_empty_queue(broker_peer: Peer) -> None:
    """Covers C-360: offset 0 is NOT_FOUND, any other OFFSET_MOVED to 0."""
    fill(broker_peer, count=1)
    answer = broker_peer.pull("T1", 0, queue_id=1)
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_NOT_FOUND, 0)
    answer = broker_peer.pull("T1", 5, queue_id=1)
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_OFFSET_MOVED, 0)


def test_offset_moved_leaves_an_event(broker_peer: Peer) -> None:
    """Covers C-364."""
    fill(broker_peer)
    broker_peer.pull("T1", 99, group="g9")
    [event] = broker_peer.messages("OFFSET_MOVED_EVENT")
    assert (event.tags, event.keys) == ("g9", "g9")
    assert b'"offsetRequest":99' in event.body
    assert b'"offsetNew":40' in event.body


def test_tag_filter_counts_what_it_skips(broker_peer: Peer) -> None:
    """Covers C-360, C-369: 5 of every second message end at 9; nothing matched ends at 40."""
    fill(broker_peer)
    answer = broker_peer.pull("T1", 0, expression="A", count=5)
    assert [m.tags for m in decode_messages(bytes(answer.body))] == ["A"] * 5
    assert next_offset(answer) == 9
    answer = broker_peer.pull("T1", 0, expression="nobody")
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 40)
    answer = broker_peer.pull("T1", 0, expression="A || B", count=3)
    assert len(decode_messages(bytes(answer.body))) == 3


def test_lite_pull_code_is_the_same_pull(broker_peer: Peer) -> None:
    """Covers W 2.9: 361 is answered as 11."""
    fill(broker_peer)
    assert broker_peer.pull("T1", 0, code=RequestCode.LITE_PULL_MESSAGE).code == 0


def test_waiting_pull_is_answered_on_arrival(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Covers C-375, C-376 and the fix of C-582: no loop has to come by."""
    fill(broker_peer, count=2)
    with Peer(rocketmq_cluster.broker_addr) as other:
        waiting = other.submit_pull("T1", 2, suspend_ms=60_000)
        assert other.offset("cg", "T1") == 0  # the pull before it has been handled
        assert not other.has_answer(waiting)
        broker_peer.send("T1", b"new")
        answer = other.answer(waiting)
    assert answer.code == 0
    assert [m.body for m in decode_messages(bytes(answer.body))] == [b"new"]


def test_sync_flush_answers_a_waiting_pull_when_the_message_is_on_the_disk(tmp_path: Path) -> None:
    """Before that a power loss may give its offset to another message."""
    files = SlowFiles()
    with (
        EmbeddedCluster(tmp_path / "store", flush="sync", files=files) as cluster,
        Peer(cluster.broker_addr) as sender,
        Peer(cluster.broker_addr) as other,
    ):
        fill(sender, count=1)
        waiting = other.submit_pull("T1", 1, suspend_ms=60_000)
        assert other.offset("cg", "T1") == 0
        files.go_on.clear()
        sender.send_oneway("T1", b"new")
        assert files.syncing.wait(10)
        assert other.offset("cg", "T1") == 0
        assert not other.has_answer(waiting)
        assert other.pull("T1", 1).remark == "OFFSET_OVERFLOW_ONE"
        files.go_on.set()
        assert [m.body for m in decode_messages(bytes(other.answer(waiting).body))] == [b"new"]


def test_waiting_pull_ignores_other_tags(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Covers C-375: only a matching tag wakes it; the answer then skips what did not match."""
    fill(broker_peer, count=2)
    with Peer(rocketmq_cluster.broker_addr) as other:
        waiting = other.submit_pull("T1", 2, expression="A", suspend_ms=60_000)
        other.offset("cg", "T1")
        broker_peer.send("T1", b"b", tags="B")
        other.offset("cg", "T1")
        assert not other.has_answer(waiting)
        broker_peer.send("T1", b"a", tags="A")
        answer = other.answer(waiting)
    assert [m.body for m in decode_messages(bytes(answer.body))] == [b"a"]
    assert next_offset(answer) == 4


def test_waiting_pull_ends_at_its_own_deadline(broker_peer: Peer) -> None:
    """Covers the fix of C-377: not before the time asked for, and not at a 5 s grid."""
    fill(broker_peer, count=1)
    began = time.monotonic()
    answer = broker_peer.pull("T1", 1, suspend_ms=200)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert time.monotonic() - began >= 0.199


def test_pull_of_a_closed_connection_is_forgotten(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """A held pull goes with its connection; later messages find nobody waiting."""
    fill(broker_peer, count=1)
    other = Peer(rocketmq_cluster.broker_addr)
    other.submit_pull("T1", 1, suspend_ms=60_000)
    other.heartbeat("c1", "cg2", {"T1": "*"})
    with Peer(rocketmq_cluster.broker_addr) as watcher:
        watcher.heartbeat("c2", "cg2", {"T1": "*"})
        watcher.next_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        other.close()
        watcher.next_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert rocketmq_cluster.broker.held_pulls == 0
    assert broker_peer.send("T1").code == 0


def test_unknown_topic_group_and_queue(broker_peer: Peer) -> None:
    """Covers C-357 rows 4 and 6, with upstream's texts."""
    fill(broker_peer)
    answer = broker_peer.pull("none", 0)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith("topic[none] not exist, apply first please!")
    answer = broker_peer.pull("T1", 0, queue_id=9)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(
        "queueId[9] is illegal, topic:[T1] topicConfig.readQueueNums:[4] consumer:[127.0.0.1:"
    )
    assert broker_peer.pull("T1", 0, queue_id=-1).code == ResponseCode.SYSTEM_ERROR
    assert (
        broker_peer.pull("T1", 0, group="bad group").code
        == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    )


def test_pull_without_subscription_uses_the_groups(broker_peer: Peer) -> None:
    """Covers C-357 rows 8, 10, 11 and C-340."""
    fill(broker_peer)
    assert broker_peer.pull("T1", 0, expression=None).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker_peer.heartbeat("c1", "cg", {"T2": "*"})
    assert broker_peer.pull("T1", 0, expression=None).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker_peer.heartbeat("c1", "cg", {"T1": "B"}, version_ms=5)
    answer = broker_peer.pull("T1", 0, expression=None, sub_version=6)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    answer = broker_peer.pull("T1", 0, expression=None, sub_version=5, count=2)
    assert [m.tags for m in decode_messages(bytes(answer.body))] == ["B", "B"]


def test_tags_that_name_no_tag_are_refused(broker_peer: Peer) -> None:
    """Covers C-357 row 7."""
    fill(broker_peer)
    assert broker_peer.pull("T1", 0, expression="||").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_commit_rides_on_the_first_pass_only(broker_peer: Peer) -> None:
    """Covers C-365 and C-380: held or moved pulls commit too, refused ones do not."""
    fill(broker_peer)
    broker_peer.pull("T1", 41, commit=7)
    assert broker_peer.offset("cg", "T1") == 7
    waiting = broker_peer.submit_pull("T1", 40, commit=8, suspend_ms=60_000)
    assert broker_peer.offset("cg", "T1") == 8
    broker_peer.commit("cg", "T1", 0, 20)
    broker_peer.send("T1")
    broker_peer.answer(waiting)
    assert broker_peer.offset("cg", "T1") == 20
    broker_peer.pull("T1", 0, queue_id=9, commit=1)
    assert broker_peer.offset("cg", "T1") == 20


def test_a_pull_that_waits_is_told_that_its_topic_is_deleted(broker_peer: Peer) -> None:
    """Made anew, the topic has other messages at the offsets that are waited for."""
    fill(broker_peer)
    fill(broker_peer, "T2")
    other = broker_peer.submit_pull("T2", 40, suspend_ms=60_000)
    waiting = broker_peer.submit_pull("T1", 40, suspend_ms=60_000)
    broker_peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T1"})
    broker_peer.send("T1")
    assert broker_peer.answer(waiting).code == ResponseCode.TOPIC_NOT_EXIST
    broker_peer.send("T2")
    assert broker_peer.answer(other).code == ResponseCode.SUCCESS


def test_disabled_group_may_not_pull(broker_peer: Peer) -> None:
    """Covers C-357 row 3."""
    fill(broker_peer)
    body = b'{"groupName":"off","consumeEnable":false}'
    broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert broker_peer.pull("T1", 0, group="off").code == ResponseCode.NO_PERMISSION

"""Positions and progress over the wire."""

from __future__ import annotations

import pytest

from rocketstream.protocol.bodies import ConsumerOffsetTable
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import UpdateConsumerOffsetRequestHeader
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer, ext
from tests.plugins.peers import MakeCluster


def ask(broker: Peer, code: int, topic: str, queue_id: int, **more: object) -> int:
    fields = {"topic": topic, "queueId": str(queue_id)}
    fields.update({name: str(value) for name, value in more.items()})
    found = ext(broker.call(code, ext=fields))
    return int(found.get("offset", found.get("timestamp", "")))


def test_new_group_starts_at_zero_of_a_young_queue(broker_peer: Peer) -> None:
    """Covers C-195, C-333, C-335: 0 and not "not found" while the queue starts in memory."""
    broker_peer.send("T1")
    assert broker_peer.offset("new", "T1") == 0
    assert broker_peer.offset("new", "T1", 3) == 0
    assert broker_peer.offset("new", "no such topic") == 0


def test_set_zero_if_not_found_false_asks_for_the_truth(broker_peer: Peer) -> None:
    """Covers W 2.9: a 5.x client can ask for QUERY_NOT_FOUND instead."""
    broker_peer.send("T1")
    assert broker_peer.offset("new", "T1", set_zero_if_not_found=False) is None
    assert broker_peer.offset("new", "T1", set_zero_if_not_found=True) == 0


def test_commit_is_read_back_and_may_go_back(broker_peer: Peer) -> None:
    """Covers C-324, C-325: resets are accepted."""
    for _ in range(3):
        broker_peer.send("T1")
    assert broker_peer.commit("cg", "T1", 0, 3).code == 0
    assert broker_peer.offset("cg", "T1") == 3
    assert broker_peer.commit("cg", "T1", 0, 1).code == 0
    assert broker_peer.offset("cg", "T1") == 1
    assert broker_peer.offset("other", "T1") == 0


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "code"),
    [
        ("none", 0, 1, ResponseCode.TOPIC_NOT_EXIST),
        ("T1", 4, 1, ResponseCode.SYSTEM_ERROR),
        ("T1", -1, 1, ResponseCode.SYSTEM_ERROR),
        ("T1", 0, -1, ResponseCode.SYSTEM_ERROR),
        ("T1", 0, 2, ResponseCode.SYSTEM_ERROR),
        ("T1", 0, 10**15, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_nonsense_is_not_stored(
    broker_peer: Peer, topic: str, queue_id: int, offset: int, code: int
) -> None:
    """Covers the fix of C-567."""
    broker_peer.send("T1")
    assert broker_peer.commit("cg", topic, queue_id, offset).code == code
    body = bytes(broker_peer.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert b"cg" not in body


def test_a_group_without_a_name_has_no_offsets(broker_peer: Peer) -> None:
    """The broker could not be started again with one: its file names topic and group of each."""
    broker_peer.send("T1")
    assert broker_peer.commit("cg", "T1", 0, 1).code == 0
    assert broker_peer.commit("", "T1", 0, 1).code == ResponseCode.SYSTEM_ERROR
    fields = {"srcGroup": "cg", "destGroup": "", "topic": "T1", "offline": "true"}
    answer = broker_peer.call(RequestCode.CLONE_GROUP_OFFSET, ext=fields)
    assert (answer.code, answer.remark) == (1, "offsets not cloned: the group is blank")
    body = bytes(broker_peer.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert ConsumerOffsetTable.decode_file(body).offset_table == {"T1@cg": {0: 1}}


def test_oneway_commit_is_stored(broker_peer: Peer) -> None:
    """Java sends code 15 one-way (W 2.3)."""
    for _ in range(3):
        broker_peer.send("T1")
    header = UpdateConsumerOffsetRequestHeader("cg", "T1", 0, 3)
    command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=True)
    broker_peer.submit(command)
    assert broker_peer.offset("cg", "T1") == 3


def test_bounds_of_queues(broker_peer: Peer) -> None:
    """Covers C-373 and code 32: 0 for unknown queues, -1 as the time of nothing."""
    for _ in range(3):
        broker_peer.send("T1")
    assert ask(broker_peer, RequestCode.GET_MAX_OFFSET, "T1", 0) == 3
    assert ask(broker_peer, RequestCode.GET_MIN_OFFSET, "T1", 0) == 0
    assert ask(broker_peer, RequestCode.GET_MAX_OFFSET, "T1", 1) == 0
    assert ask(broker_peer, RequestCode.GET_MAX_OFFSET, "none", 7) == 0
    assert ask(broker_peer, RequestCode.GET_MIN_OFFSET, "none", 7) == 0
    assert ask(broker_peer, RequestCode.GET_EARLIEST_MSG_STORETIME, "T1", 1) == -1
    assert ask(broker_peer, RequestCode.GET_EARLIEST_MSG_STORETIME, "T1", 0) > 0


def test_a_queue_taken_from_the_topic_still_tells_its_bounds(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers C-373: its messages are there, and who read it must see that some are unread."""
    cluster = rocketmq_cluster_factory()
    cluster.create_topic("T1", queues=2)
    with Peer(cluster.broker_addr) as broker:
        broker.send("T1", queue_id=1)
        cluster.create_topic("T1", queues=1)
        assert ask(broker, RequestCode.GET_MAX_OFFSET, "T1", 1) == 1
        assert ask(broker, RequestCode.GET_MIN_OFFSET, "T1", 1) == 0
        assert ask(broker, RequestCode.GET_MAX_OFFSET, "T1", 7) == 0
        assert ask(broker, RequestCode.GET_MAX_OFFSET, "T1", -1) == 0


def test_search_by_time_is_nearest(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-372: exact, nearest, before the first, and past the end the last message."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    start = clock.now_ms()
    with Peer(cluster.broker_addr) as broker:
        for _ in range(4):
            broker.send("T1")
            clock.advance(100)

        def search(timestamp: int) -> int:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            return ask(broker, code, "T1", 0, timestamp=timestamp)

        assert search(0) == 0
        assert search(start + 100) == 1
        assert search(start + 140) == 1
        assert search(start + 160) == 2
        assert search(start + 150) == 1
        assert search(1 << 60) == 3
        assert ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "T1", 1, timestamp=0) == 0


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (RequestCode.PULL_MESSAGE, {"sysFlag": "5", "commitOffset": "1", "subscription": "*"}),
        (RequestCode.LITE_PULL_MESSAGE, {"sysFlag": "4", "subscription": "*"}),
        (RequestCode.QUERY_CONSUMER_OFFSET, {}),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": "1"}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "0"}),
        (RequestCode.GET_MAX_OFFSET, {}),
        (RequestCode.GET_MIN_OFFSET, {}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, {}),
    ],
)
def test_a_queue_of_another_broker_is_not_taken_for_one_of_this(
    broker_peer: Peer, code: int, more: dict[str, str]
) -> None:
    """It had this address before: its members' offsets would pass over this one's messages."""
    broker_peer.send("T1")
    fields = {
        "consumerGroup": "cg", "topic": "T1", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0", **more,
    }  # fmt: skip
    refused = broker_peer.call(code, ext=fields | {"bname": "broker-b"})
    assert refused.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert broker_peer.offset("cg", "T1") == 0
    assert broker_peer.call(code, ext=fields | {"bname": "broker-a"}).code == 0

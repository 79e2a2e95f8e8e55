"""Delays, messages sent back, dead letters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import LockBatchRequestBody
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer, ext
from tests.plugins.peers import MakeCluster

FAST_LEVELS = " ".join(["10ms"] * 18)


@pytest.fixture
def rocketmq_cluster(rocketmq_cluster_factory: MakeCluster) -> EmbeddedCluster:
    return rocketmq_cluster_factory(delay_levels=FAST_LEVELS)


@pytest.fixture
def first(broker_peer: Peer) -> MessageExt:
    """A message of topic T1, stored and read."""
    broker_peer.send("T1", b"work", tags="TagA", properties={"u": "v"})
    return broker_peer.messages("T1")[0]


def test_delayed_message_arrives_with_its_marks(broker_peer: Peer) -> None:
    """Covers C-404, C-406, C-407: DELAY, REAL_TOPIC and REAL_QID stay visible."""
    broker_peer.send("T1", b"early", queue_id=1)
    broker_peer.send("T1", b"late", tags="TagA", queue_id=1, properties={"DELAY": "2"})
    message = broker_peer.wait_message("T1", 1, queue_id=1)
    assert message.body == b"late"
    properties = dict(message.properties)
    assert properties["DELAY"] == "2"
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T1", "1")
    assert properties["WAIT"] == "true"
    parked = broker_peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)
    assert [m.body for m in parked] == [b"late"]


@pytest.mark.parametrize("hours", [73, -73])
def test_wall_clock_that_jumps_leaves_a_delay_as_it_is(
    rocketmq_cluster_factory: MakeCluster, hours: int
) -> None:
    """Covers C-405: neither hurried nor held up while the broker runs."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock, delay_levels="1h")
    with Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"later", properties={"DELAY": "1"})
        clock.jump(hours * 3_600_000)
        look_now(cluster)
        assert peer.messages("T1") == []
        clock.advance(3_600_000)
        look_now(cluster)
        assert [message.body for message in peer.messages("T1")] == [b"later"]


def look_now(cluster: EmbeddedCluster) -> None:
    """Let the broker look at its first delay level once."""

    async def look() -> None:
        schedule = cluster.broker._schedule
        assert schedule is not None
        schedule._run(1)

    thread = cluster._thread
    assert thread is not None
    thread.run(look())


def test_delayed_message_is_filtered_by_its_own_tag(broker_peer: Peer) -> None:
    """Covers C-406: the tags code is computed anew on delivery."""
    broker_peer.send("T1", b"x", tags="TagA", properties={"DELAY": "1"})
    broker_peer.wait_message("T1", 0)
    answer = broker_peer.pull("T1", 0, expression="TagA")
    assert answer.code == 0


def test_pull_of_the_schedule_topic_does_not_stop_it(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Somebody who watches parked messages arrive is woken besides the delivery, not instead."""
    with Peer(rocketmq_cluster.broker_addr) as watcher:
        waiting = watcher.submit_pull("SCHEDULE_TOPIC_XXXX", 0, suspend_ms=60_000)
        watcher.offset("cg", "T1")
        broker_peer.send("T1", b"x", properties={"DELAY": "1"})
        assert watcher.answer(waiting).code == 0
    assert broker_peer.wait_message("T1", 0).body == b"x"


def test_delay_that_makes_properties_too_long_is_illegal(broker_peer: Peer) -> None:
    """Covers C-430: REAL_TOPIC and REAL_QID count."""
    given = {"DELAY": "1", "u": "x" * 32_700}
    assert broker_peer.send("T1", properties=given).code == ResponseCode.MESSAGE_ILLEGAL


def test_level_above_the_last_is_the_last(broker_peer: Peer) -> None:
    """Covers C-403."""
    broker_peer.send("T1", b"x", properties={"DELAY": "99"})
    assert dict(broker_peer.wait_message("T1", 0).properties)["DELAY"] == "18"
    broker_peer.send("T1", b"y", properties={"DELAY": "0"})
    assert broker_peer.messages("T1")[1].body == b"y"


def test_sent_back_message_comes_again(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-398 and C-276: retry topic, level 3 + reconsumeTimes, count, origin."""
    assert broker_peer.send_back("cg", first).code == 0
    again = broker_peer.wait_message("%RETRY%cg", 0)
    properties = dict(again.properties)
    assert again.body == b"work"
    assert again.reconsume_times == 1
    assert properties["RETRY_TOPIC"] == "T1"
    assert properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
    assert properties["DELAY"] == "3"
    assert properties["WAIT"] == "false"
    assert properties["u"] == "v"
    assert (again.born_timestamp, again.born_host) == (first.born_timestamp, first.born_host)
    assert again.tags == "TagA"
    broker_peer.send_back("cg", again)
    third = broker_peer.wait_message("%RETRY%cg", 1)
    assert third.reconsume_times == 2
    assert dict(third.properties)["DELAY"] == "4"
    assert dict(third.properties)["ORIGIN_MESSAGE_ID"] == first.offset_msg_id


def test_explicit_level_is_used(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-276."""
    broker_peer.send_back("cg", first, level=1)
    assert dict(broker_peer.wait_message("%RETRY%cg", 0).properties)["DELAY"] == "1"


def test_negative_level_is_a_dead_letter_at_once(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-276, C-399: no delay, reconsumeTimes + 1, DELAY=0."""
    assert broker_peer.send_back("cg", first, level=-1).code == 0
    [dead] = broker_peer.messages("%DLQ%cg")
    assert dead.reconsume_times == 1
    assert dict(dead.properties)["DELAY"] == "0"
    assert dict(dead.properties)["RETRY_TOPIC"] == "T1"


def test_two_retries_then_the_dead_letter_topic(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-275: N = 2 gives deliveries 0, 1, 2 and a dead letter with count 3."""
    message = first
    for number in range(2):
        broker_peer.send_back("cg", message, most=2)
        message = broker_peer.wait_message("%RETRY%cg", number)
    assert message.reconsume_times == 2
    broker_peer.send_back("cg", message, most=2)
    assert [m.reconsume_times for m in broker_peer.messages("%DLQ%cg")] == [3]


def test_group_settings_limit_retries(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-398 step 7: the header counts for clients since 3.4.9 only."""
    body = b'{"groupName":"cg","retryMaxTimes":0}'
    broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    broker_peer.send_back("cg", first, most=9, version=120)
    assert len(broker_peer.messages("%DLQ%cg")) == 1
    broker_peer.send_back("cg", first, most=9, version=121)
    assert len(broker_peer.messages("%DLQ%cg")) == 1


def test_group_without_retry_queues_drops(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-398 step 3."""
    body = b'{"groupName":"cg","retryQueueNums":0}'
    broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert broker_peer.send_back("cg", first).code == 0
    assert broker_peer.messages("%RETRY%cg") == []


def test_a_message_tried_as_often_as_can_be_told_can_be_sent_back(broker_peer: Peer) -> None:
    """One more did not fit its record: the message could go nowhere."""
    broker_peer.send("T1", b"work", reconsume_times=2**31 - 1)
    assert broker_peer.send_back("cg", broker_peer.messages("T1")[0]).code == 0
    [dead] = broker_peer.messages("%DLQ%cg")
    assert dead.reconsume_times == 2**31 - 1


def test_a_group_that_is_given_more_retry_queues_finds_its_retries_in_all_of_them(
    broker_peer: Peer, first: MessageExt
) -> None:
    """Its retry topic had one queue: what was put into the others could never be pulled."""
    broker_peer.heartbeat("c1", "cg", {"T1": "*"})
    body = b'{"groupName":"cg","retryQueueNums":4}'
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    for _ in range(4):
        assert broker_peer.send_back("cg", first, level=1).code == 0
    for queue_id in range(4):
        assert broker_peer.wait_message("%RETRY%cg", 0, queue_id=queue_id).body == b"work"


@pytest.mark.parametrize("read", [1, 4])
def test_retries_of_a_topic_made_smaller_than_its_group_says_are_pulled(
    broker_peer: Peer, first: MessageExt, read: int
) -> None:
    """Whatever the topic had, it has as many queues as the retries are dealt to."""
    body = b'{"groupName":"cg","retryQueueNums":2}'
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    broker_peer.send_back("cg", first, level=1)
    fields = {"topic": "%RETRY%cg", "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    queues = {"readQueueNums": str(read), "writeQueueNums": str(5 - read)}
    given = fields | queues | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=given).code == 0
    broker_peer.send_back("cg", first, level=1)
    for queue_id in range(2):
        assert broker_peer.wait_message("%RETRY%cg", 0, queue_id=queue_id).body == b"work"


@pytest.mark.parametrize("offset", [-1, 3, 1 << 40])
def test_send_back_of_nothing(broker_peer: Peer, first: MessageExt, offset: int) -> None:
    """Covers C-398 step 5."""
    fields = {"offset": str(offset), "group": "cg", "delayLevel": "0"}
    answer = broker_peer.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext=fields)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")
    topics = broker_peer.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert b"%RETRY%cg" not in bytes(topics.body)  # what is refused leaves no topic


def test_another_message_than_was_sent_back_is_nobodys_retry(broker_peer: Peer) -> None:
    """A power loss had given its place to another, which came to a group that never asked for it.

    By the sender's ID, as Java's clients name it; others give the broker's, or none.
    """
    sent = ext(broker_peer.send("T1", b"another's", properties={"UNIQ_KEY": "U2"}))
    _, _, offset = decode_offset_msg_id(sent["msgId"])

    def send_back(name: str | None) -> RemotingCommand:
        header = ConsumerSendMsgBackRequestHeader(offset, "cg", 0, name, "T1", False)
        return broker_peer.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    refused = send_back("U1")
    assert (refused.code, refused.remark) == (1, f"look message by offset failed, {offset}")
    assert broker_peer.messages("%RETRY%cg") == []
    assert [send_back(name).code for name in ("U2", sent["msgId"], None)] == [0, 0, 0]


def test_send_back_of_an_impossible_group(broker_peer: Peer, first: MessageExt) -> None:
    """Covers C-398 step 1."""
    answer = broker_peer.send_back("bad group", first)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(("attempts", "dead"), [(2, False), (3, True)])
def test_plain_send_to_the_retry_topic_obeys_the_same_rule(
    broker_peer: Peer, attempts: int, dead: bool
) -> None:
    """Covers C-401 with the fixes of C-587, C-592: more than the limit is dead, without delay."""
    broker_peer.heartbeat("c1", "cg", {"T1": "*"})
    given = {"DELAY": "5", "RETRY_TOPIC": "T1"}
    answer = broker_peer.send(
        "%RETRY%cg", b"x", properties=given, reconsume_times=attempts, max_reconsume_times=2
    )
    assert answer.code == 0
    if dead:
        assert [m.reconsume_times for m in broker_peer.messages("%DLQ%cg")] == [3]
    else:
        assert broker_peer.wait_message("%RETRY%cg", 0).reconsume_times == 2


def test_ordered_group_gives_up_at_the_limit(broker_peer: Peer) -> None:
    """An ordered consumer sends only what it gave up, with the count at the limit (C-592)."""
    broker_peer.heartbeat("c1", "cg", {"T1": "*"})
    body = LockBatchRequestBody("cg", "c1", {MessageQueue("T1", "broker-a", 0)}).encode()
    broker_peer.call(RequestCode.LOCK_BATCH_MQ, body=body)
    given = {"DELAY": "5", "RETRY_TOPIC": "T1"}
    broker_peer.send("%RETRY%cg", properties=given, reconsume_times=2, max_reconsume_times=2)
    assert len(broker_peer.messages("%DLQ%cg")) == 1


def test_retry_send_of_an_unknown_group_is_refused(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers W 2.2: code 26 when the group has no settings and gets none."""
    cluster = rocketmq_cluster_factory(auto_create_groups=False)
    with Peer(cluster.broker_addr) as broker:
        answer = broker.send("%RETRY%none")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "MSG_REGION" in ext(answer)


def test_sync_flush_covers_send_back(rocketmq_cluster_factory: MakeCluster) -> None:
    """An acknowledged send-back is on the disk."""
    cluster = rocketmq_cluster_factory(flush="sync", delay_levels=FAST_LEVELS)
    with Peer(cluster.broker_addr) as broker:
        broker.send("T1", b"x")
        stored = broker.messages("T1")[0]
        assert broker.send_back("cg", stored, level=-1).code == 0
        [dead] = broker.messages("%DLQ%cg")
        assert cluster.broker.store.flushed_offset > dead.commit_log_offset


@pytest.fixture
def broker_peer(rocketmq_cluster: EmbeddedCluster) -> Iterator[Peer]:
    with Peer(rocketmq_cluster.broker_addr) as peer:
        yield peer


def test_delayed_message_is_delivered_once_with_sync_flush(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers C-408, C-607: a delivery does not wait for the disk, so no wait can repeat it."""
    cluster = rocketmq_cluster_factory(delay_levels=FAST_LEVELS, flush="sync")
    with Peer(cluster.broker_addr) as broker:
        for number in range(5):
            assert broker.send("T1", b"%d" % number, properties={"DELAY": "1"}).code == 0
        bodies = [b"%d" % number for number in range(5)]
        assert [broker.wait_message("T1", number).body for number in range(5)] == bodies
        assert [message.body for message in broker.messages("T1")] == bodies

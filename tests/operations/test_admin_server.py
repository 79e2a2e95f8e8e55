"""What tools ask a broker for."""

from __future__ import annotations

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    KVTable,
    QueryConsumeTimeSpanBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import CreateTopicRequestHeader
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer, ext


def create(broker: Peer, topic: str, queues: int = 2, perm: int = 6) -> RemotingCommand:
    header = CreateTopicRequestHeader(topic, "TBW102", queues, queues, perm)
    return broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def topics(broker: Peer) -> dict[str, tuple[int, int]]:
    body = bytes(broker.call(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    table = TopicConfigSerializeWrapper.decode(body).topic_config_table
    return {name: (config.write_queue_nums, config.perm) for name, config in table.items()}


def test_system_topics_are_there_from_the_start(broker_peer: Peer) -> None:
    """Covers C-421, W 5.9."""
    assert topics(broker_peer) == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
    }
    answer = broker_peer.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert TopicList.decode(bytes(answer.body)).topic_list == set(topics(broker_peer))


def test_created_topic_is_routed_when_the_answer_comes(
    broker_peer: Peer, namesrv_peer: Peer
) -> None:
    """Covers code 17: no wait, no retry."""
    for number in range(5):
        assert create(broker_peer, f"T{number}", queues=3).code == 0
        answer = namesrv_peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": f"T{number}"})
        assert answer.code == 0
        [queues] = TopicRouteData.decode(bytes(answer.body)).queue_datas
        assert (queues.read_queue_nums, queues.write_queue_nums) == (3, 3)
    create(broker_peer, "T0", queues=6, perm=4)
    assert topics(broker_peer)["T0"] == (6, 4)


@pytest.mark.parametrize(
    ("topic", "queues", "perm", "text"),
    [
        ("bad topic", 1, 6, "illegal characters"),
        ("", 1, 6, "The specified topic is blank"),  # upstream's words
        ("TBW102", 1, 6, "The topic[TBW102] is conflict with system topic."),
        ("DefaultCluster", 1, 6, "conflict with system topic"),
        ("T1", 0, 6, "readQueueNums 0"),
        ("T1", 70_000, 6, "readQueueNums 70000"),
        ("T1", 1, 9, "perm 9"),
    ],
)
def test_bad_topic_settings_are_refused(
    broker_peer: Peer, topic: str, queues: int, perm: int, text: str
) -> None:
    """Covers W 2.5: code 1 and a text that says what is wrong."""
    answer = create(broker_peer, topic, queues, perm)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert text in (answer.remark or "")


@pytest.mark.parametrize("kind", ["multi_tag", "", "SINGLE_TAG "])
def test_a_filter_type_no_file_can_hold_is_refused(broker_peer: Peer, kind: str) -> None:
    """The broker could not be started again with it."""
    header = CreateTopicRequestHeader("T1", "TBW102", 1, 1, 6, kind)
    answer = broker_peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    text = f"topicFilterType {kind!r} is not accepted: give SINGLE_TAG or MULTI_TAG"
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, text)
    assert "T1" not in topics(broker_peer)


@pytest.mark.parametrize("kind", ["SINGLE_TAG", "MULTI_TAG"])
def test_both_filter_types_are_kept(broker_peer: Peer, kind: str) -> None:
    header = CreateTopicRequestHeader("T1", "TBW102", 1, 1, 6, kind)
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header).code == 0
    body = bytes(broker_peer.call(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    table = TopicConfigSerializeWrapper.decode_file(body).topic_config_table
    assert table["T1"].topic_filter_type == kind


def test_deleted_topic_begins_anew(broker_peer: Peer) -> None:
    """Covers code 215: its queues and the groups' progress go with it."""
    broker_peer.send("T1")
    broker_peer.commit("cg", "T1", 0, 1)
    assert broker_peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T1"}).code == 0
    assert broker_peer.pull("T1", 0).code == ResponseCode.TOPIC_NOT_EXIST
    assert ext(broker_peer.send("T1"))["queueOffset"] == "0"
    assert broker_peer.offset("cg", "T1") == 0
    answer = broker_peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "TBW102"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_topic_status(broker_peer: Peer) -> None:
    """Covers code 202."""
    create(broker_peer, "T1")
    broker_peer.send("T1")
    broker_peer.send("T1")
    answer = broker_peer.call(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": "T1"})
    table = TopicStatsTable.decode(bytes(answer.body)).offset_table
    first = table[MessageQueue("T1", "broker-a", 0)]
    assert (first.min_offset, first.max_offset) == (0, 2)
    assert first.last_update_timestamp > 0
    second = table[MessageQueue("T1", "broker-a", 1)]
    assert (second.max_offset, second.last_update_timestamp) == (0, 0)
    answer = broker_peer.call(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": "none"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_one_topics_settings(broker_peer: Peer) -> None:
    """Code 351 of 5.x tools: topicStatus and consumerProgress of 5.5 need it."""
    create(broker_peer, "T1")
    answer = broker_peer.call(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T1", "lo": "true"})
    config = TopicConfig.decode(bytes(answer.body))
    assert (config.topic_name, config.read_queue_nums, config.perm) == ("T1", 2, 6)
    answer = broker_peer.call(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "none"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_consumer_progress(broker_peer: Peer) -> None:
    """Covers codes 208, 317, 300, 303: lag, last consumed time, who consumes."""
    create(broker_peer, "T1")
    for _ in range(5):
        broker_peer.send("T1")
    broker_peer.commit("cg", "T1", 0, 3)
    for fields in ({"consumerGroup": "cg"}, {"consumerGroup": "cg", "topic": "T1"}):
        answer = broker_peer.call(RequestCode.GET_CONSUME_STATS, ext=fields)
        table = ConsumeStats.decode(bytes(answer.body)).offset_table
        wrapper = table[MessageQueue("T1", "broker-a", 0)]
        assert (wrapper.broker_offset, wrapper.consumer_offset) == (5, 3)
        assert wrapper.last_timestamp > 0
        assert table[MessageQueue("T1", "broker-a", 1)].broker_offset == 0
    broker_peer.pull("T1", 0, group="cg")
    answer = broker_peer.call(RequestCode.GET_BROKER_CONSUME_STATS, ext={"isOrder": "false"})
    listed = ConsumeStatsList.decode(bytes(answer.body))
    assert listed.total_diff == 2
    assert [list(entry) for entry in listed.consume_stats_list] == [["cg"]]
    broker_peer.heartbeat("c1", "online", {"T1": "*"})
    answer = broker_peer.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ext={"topic": "T1"})
    assert GroupList.decode(bytes(answer.body)).group_list == {"cg", "online"}
    fields = {"topic": "T1", "group": "cg"}
    answer = broker_peer.call(RequestCode.QUERY_CONSUME_TIME_SPAN, ext=fields)
    spans = QueryConsumeTimeSpanBody.decode(bytes(answer.body)).consume_time_span_set
    assert len(spans) == 2
    assert spans[0].consume_time_stamp > 0


def test_group_settings_are_changed_and_removed(broker_peer: Peer) -> None:
    """Covers codes 200, 201, 207 (both names of the switch)."""
    broker_peer.send("T1")
    body = b'{"groupName":"cg","retryMaxTimes":3}'
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    broker_peer.commit("cg", "T1", 0, 1)
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    assert broker_peer.call(code, ext={"groupName": "cg"}).code == 0
    assert broker_peer.offset("cg", "T1") == 1
    assert broker_peer.call(code, ext={"groupName": "cg", "cleanOffset": "true"}).code == 0
    assert broker_peer.offset("cg", "T1") == 0
    groups = bytes(broker_peer.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert b'"cg"' not in groups
    body = b'{"groupName":"a b"}'
    answer = broker_peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_runtime_figures_are_what_tools_read(broker_peer: Peer) -> None:
    """Covers code 28: what clusterList parses is there and parses."""
    broker_peer.send("T1")
    table = KVTable.decode(bytes(broker_peer.call(RequestCode.GET_BROKER_RUNTIME_INFO).body)).table
    assert table["brokerVersionDesc"] == "V4_9_8"
    for key in ("putTps", "getTransferedTps"):
        assert len([float(part) for part in table[key].split(" ")]) == 3
    for key in (
        "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "pageCacheLockTimeMills",
        "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
        "earliestMessageTimeStamp", "msgPutTotalTodayNow", "commitLogMaxOffset",
    ):  # fmt: skip
        assert int(table[key]) >= 0
    assert 0 < float(table["commitLogDiskRatio"]) <= 1


def test_settings_are_shown_and_cannot_be_changed(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Covers codes 25 and 26; design decision 11: no setting changes over the wire."""
    answer = broker_peer.call(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in bytes(answer.body).decode().splitlines())
    assert lines["brokerName"] == "broker-a"
    assert lines["namesrvAddr"] == rocketmq_cluster.namesrv_addr
    assert "version" in ext(answer)
    answer = broker_peer.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=2\n")
    assert answer.code == ResponseCode.NO_PERMISSION


def test_what_is_left_out_says_so(broker_peer: Peer) -> None:
    """Unknown and unsupported codes get code 3."""
    for code in (999, 50, 52, 370, 400, 200_050):
        answer = broker_peer.call(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"

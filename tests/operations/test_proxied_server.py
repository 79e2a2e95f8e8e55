"""Requests a broker passes on to consumers, and what operators ask of a broker itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    TopicList,
)
from rocketstream.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryCorrectionOffsetRequestHeader,
    ResetOffsetRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from rocketstream.protocol.message_ext import decode_message
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer, ext
from tests.plugins.peers import MakeCluster

T, G, BROKER = "T1", "cg", "broker-a"
QUEUES = [MessageQueue(T, BROKER, queue_id) for queue_id in range(4)]


@pytest.fixture
def member(rocketmq_cluster: EmbeddedCluster, broker_peer: Peer) -> Iterator[Peer]:
    """A consumer of group ``cg``; queue 0 has five messages, three of them consumed."""
    for number in range(5):
        broker_peer.send(T, b"%d" % number)
    for queue_id in range(4):
        broker_peer.commit(G, T, queue_id, 3 if queue_id == 0 else 0)
    with Peer(rocketmq_cluster.broker_addr) as peer:
        peer.heartbeat("c1", G, {T: "*"})
        yield peer


def reset(timestamp: int, *, group: str = G, topic: str = T, force: bool = True) -> RemotingCommand:
    header = ResetOffsetRequestHeader(topic, group, timestamp, force)
    return RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


def ask(peer: Peer, command: RemotingCommand) -> RemotingCommand:
    return peer.answer(peer.submit(command))


# --- resetting ------------------------------------------------------------------------------------


def test_members_are_told_their_new_offsets(broker_peer: Peer, member: Peer) -> None:
    """Covers C-531: 220 oneway to the member, the table to the caller, ours unchanged."""
    answer = ask(broker_peer, reset(0))
    expected = dict.fromkeys(QUEUES, 0)
    assert answer.code == 0
    assert ResetOffsetBody.decode(bytes(answer.body)).offset_table == expected
    told = member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert told.is_oneway
    header = told.header(ResetOffsetRequestHeader)
    assert (header.topic, header.group, header.timestamp) == (T, G, 0)
    assert bytes(told.body).startswith(b'{"offsetTable":{{')
    assert ResetOffsetBody.decode(bytes(told.body)).offset_table == expected
    assert broker_peer.offset(G, T) == 3


def test_reset_to_the_end_and_forward_only_when_forced(broker_peer: Peer, member: Peer) -> None:
    """Covers C-531, C-536: -1 is the end; without force nobody is moved forward."""
    forced = ResetOffsetBody.decode(bytes(ask(broker_peer, reset(-1)).body)).offset_table
    assert forced[QUEUES[0]] == 5
    gentle = ResetOffsetBody.decode(
        bytes(ask(broker_peer, reset(-1, force=False)).body)
    ).offset_table
    assert gentle[QUEUES[0]] == 3
    back = ResetOffsetBody.decode(bytes(ask(broker_peer, reset(0, force=False)).body)).offset_table
    assert back[QUEUES[0]] == 0


def test_caller_in_cpp_makes_the_list_form(broker_peer: Peer, member: Peer) -> None:
    """Covers C-531: the body's form goes by the language of the admin request."""
    command = reset(0)
    command.language = LanguageCode.CPP
    answer = ask(broker_peer, command)
    told = member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert bytes(told.body).startswith(b'{"offsetTable":[{')
    assert bytes(answer.body).startswith(b'{"offsetTable":{{')


def test_reset_that_cannot_be_done_says_why(broker_peer: Peer, member: Peer) -> None:
    """Covers C-531: unknown topic, a queue never committed, nobody online."""
    unknown = ask(broker_peer, reset(0, topic="Unknown"))
    assert unknown.code == ResponseCode.SYSTEM_ERROR
    assert "no topic in this broker. topic=Unknown" in (unknown.remark or "")
    never = ask(broker_peer, reset(0, group="other"))
    assert never.code == ResponseCode.SYSTEM_ERROR
    assert never.remark == "THe consumer group <other> not exist"
    for queue_id in range(4):
        broker_peer.commit("offline", T, queue_id, 0)
    offline = ask(broker_peer, reset(0, group="offline"))
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert (offline.remark or "").startswith("Consumer not online, so can not reset offset")


def test_5_x_tools_can_move_one_queue(broker_peer: Peer, member: Peer) -> None:
    """Covers C-535: 4.9 would move all queues to the timestamp instead."""
    one = ResetOffsetRequestHeader(T, G, -1, True, 0, 2)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    answer = broker_peer.call(code, one)
    assert ResetOffsetBody.decode(bytes(answer.body)).offset_table == {QUEUES[0]: 2}
    answer = broker_peer.call(code, ResetOffsetRequestHeader(T, G, -1, True, 0, -1))
    assert ResetOffsetBody.decode(bytes(answer.body)).offset_table == {QUEUES[0]: 5}
    answer = broker_peer.call(code, ResetOffsetRequestHeader(T, G, 0, True, -1, 4))
    assert ResetOffsetBody.decode(bytes(answer.body)).offset_table == dict.fromkeys(QUEUES, 0)
    for queue_id, offset in ((0, 6), (9, 0)):
        refused = broker_peer.call(code, ResetOffsetRequestHeader(T, G, -1, True, queue_id, offset))
        assert refused.code == ResponseCode.SYSTEM_ERROR


# --- asking ---------------------------------------------------------------------------------------


def test_status_is_collected_from_all_members(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, member: Peer
) -> None:
    """Covers C-538: 223 asks every member with 221; one that refuses is left out."""
    with Peer(rocketmq_cluster.broker_addr) as second, Peer(rocketmq_cluster.broker_addr) as silent:
        second.heartbeat("c2", G, {T: "*"})
        silent.heartbeat("c3", G, {T: "*"})
        header = GetConsumerStatusRequestHeader(T, G)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        opaque = broker_peer.submit(RemotingCommand.request(code, header))
        for number, peer in enumerate((member, second)):
            asked = peer.next_asked(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
            assert asked.header(GetConsumerStatusRequestHeader).topic == T
            table = {QUEUES[number]: number + 6}
            peer.reply(asked, body=GetConsumerStatusBody(message_queue_table=table).encode())
        silent.reply(silent.next_asked(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT), 1)
        answer = broker_peer.answer(opaque)
        assert answer.code == 0
        assert GetConsumerStatusBody.decode(bytes(answer.body)).consumer_table == {
            "c1": {QUEUES[0]: 6},
            "c2": {QUEUES[1]: 7},
        }


def test_status_of_one_member_and_of_nobody(broker_peer: Peer, member: Peer) -> None:
    """Covers C-538."""
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    one = GetConsumerStatusRequestHeader(T, G, "nobody")
    answer = broker_peer.call(code, one)
    assert GetConsumerStatusBody.decode(bytes(answer.body)).consumer_table == {}
    answer = broker_peer.call(code, GetConsumerStatusRequestHeader(T, "unknown"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "No Any Consumer online in the consumer group: [unknown]"


def test_running_info_is_relayed(broker_peer: Peer, member: Peer) -> None:
    """Covers C-538: the member's own answer, its errors too."""
    header = GetConsumerRunningInfoRequestHeader(G, "c1", True)
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    opaque = broker_peer.submit(command)
    asked = member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert asked.header(GetConsumerRunningInfoRequestHeader).jstack_enable is True
    info = ConsumerRunningInfo(properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}, jstack="x")
    member.reply(asked, body=info.encode())
    answer = broker_peer.answer(opaque)
    assert (answer.code, bytes(answer.body)) == (0, info.encode())

    opaque = broker_peer.submit(command)
    asked = member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.reply(asked, ResponseCode.SYSTEM_ERROR, remark="no such group here")
    answer = broker_peer.answer(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no such group here")


def test_member_that_is_not_there_or_leaves(broker_peer: Peer, member: Peer) -> None:
    """Covers C-538."""
    header = GetConsumerRunningInfoRequestHeader(G, "c9", False)
    answer = broker_peer.call(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The Consumer <cg> <c9> not online"
    header = GetConsumerRunningInfoRequestHeader(G, "c1", False)
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    opaque = broker_peer.submit(command)
    member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.close()
    answer = broker_peer.answer(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("invoke consumer <cg> <c1> Exception: ")


def test_message_is_consumed_by_the_member_named(broker_peer: Peer, member: Peer) -> None:
    """Covers C-538: 309 carries the stored message and the broker's name."""
    stored = broker_peer.messages(T)[2]
    header = ConsumeMessageDirectlyResultRequestHeader(G, "c1", stored.offset_msg_id)
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    opaque = broker_peer.submit(RemotingCommand.request(code, header))
    asked = member.next_asked(code)
    assert ext(asked)["brokerName"] == BROKER
    assert decode_message(bytes(asked.body)).body == b"2"
    result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", spent_time_mills=3)
    member.reply(asked, body=result.encode())
    answer = broker_peer.answer(opaque)
    assert ConsumeMessageDirectlyResult.decode(bytes(answer.body)) == result

    gone = stored.offset_msg_id[:-8] + "7FFFFFF0"
    for msg_id in (gone, "no id", None):
        header = ConsumeMessageDirectlyResultRequestHeader(G, "c1", msg_id)
        assert broker_peer.call(code, header).code == ResponseCode.SYSTEM_ERROR
    assert [command.code for command in member.asked if command.code == code] == []


# --- progress -------------------------------------------------------------------------------------


def clone(broker: Peer, source: str, target: str, topic: str | None, *, offline: bool) -> None:
    header = CloneGroupOffsetRequestHeader(source, target, topic, offline)
    assert broker.call(RequestCode.CLONE_GROUP_OFFSET, header).code == 0


def test_offsets_are_not_cloned_where_a_commit_would_be_refused(
    broker_peer: Peer, member: Peer
) -> None:
    """Cloned to names of any length, they passed every bound of what a broker keeps of groups."""
    long = "g" * 256
    header = CloneGroupOffsetRequestHeader(G, long, T, True)
    answer = broker_peer.call(RequestCode.CLONE_GROUP_OFFSET, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "256 characters" in (answer.remark or "")
    offsets = broker_peer.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert long.encode() not in bytes(offsets.body)


def test_offsets_are_cloned(broker_peer: Peer, member: Peer) -> None:
    """Covers C-537: one topic, or all, which upstream meant and does not do; C-330."""
    broker_peer.send("T2")
    broker_peer.commit(G, "T2", 0, 1)
    clone(broker_peer, G, "one", T, offline=True)
    assert (
        broker_peer.offset("one", T),
        broker_peer.offset("one", "T2", set_zero_if_not_found=False),
    ) == (
        3,
        None,
    )
    clone(broker_peer, G, "all", None, offline=True)
    assert (broker_peer.offset("all", T), broker_peer.offset("all", "T2")) == (3, 1)
    clone(broker_peer, G, "online", "", offline=False)
    assert broker_peer.offset("online", T) == 3
    assert broker_peer.offset("online", "T2", set_zero_if_not_found=False) is None
    clone(broker_peer, "nobody", "all", T, offline=True)
    clone(broker_peer, G, "all", "Unknown", offline=True)
    assert broker_peer.offset("all", T) == 3


def test_correction_offsets_leave_offsets_alone(broker_peer: Peer, member: Peer) -> None:
    """Covers C-332: the minimum over groups; nothing is deleted (C-569)."""
    broker_peer.commit("slow", T, 0, 1)
    broker_peer.commit("slower", T, 0, 0)

    def ask_for(compare: str, left_out: str | None = None) -> dict[int, int]:
        header = QueryCorrectionOffsetRequestHeader(compare, T, left_out)
        answer = broker_peer.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
        return QueryCorrectionOffsetBody.decode(bytes(answer.body)).correction_offsets

    assert ask_for(G)[0] == 0
    assert ask_for(G, "slower")[0] == 1
    assert ask_for("slower", "slower")[0] == 0x7FFF_FFFF_FFFF_FFFF
    assert broker_peer.offset("slower", T, set_zero_if_not_found=False) == 0


# --- the broker itself ----------------------------------------------------------------------------


def test_index_entries_are_shown(broker_peer: Peer, member: Peer) -> None:
    """Covers W 2.5, code 321."""

    def ask_for(index: int, group: str | None = None, queue_id: int = 0) -> RemotingCommand:
        header = QueryConsumeQueueRequestHeader(T, queue_id, index, 2, group)
        return broker_peer.call(RequestCode.QUERY_CONSUME_QUEUE, header)

    body = QueryConsumeQueueResponseBody.decode(bytes(ask_for(1, G).body))
    offsets = [m.commit_log_offset for m in broker_peer.messages(T)[1:3]]
    assert [entry.physic_offset for entry in body.queue_data] == offsets
    assert (body.min_queue_index, body.max_queue_index) == (0, 5)
    assert body.subscription_data is not None
    offline = QueryConsumeQueueResponseBody.decode(bytes(ask_for(1, "other").body))
    assert offline.filter_data == "other@T1 is not online!"
    beyond = ask_for(9)
    assert (beyond.code, beyond.remark) == (0, "Index 9 of 0@T1 is not exist!")
    before = ask_for(-1)
    assert (before.code, before.remark) == (0, "Index -1 of 0@T1 is not exist!")
    missing = ask_for(0, queue_id=3)
    assert (missing.code, missing.remark) == (1, "3@T1 is not exist!")


def test_producers_are_listed(broker_peer: Peer) -> None:
    """Covers C-348, code 328."""
    broker_peer.heartbeat("c1", producer="pg")
    answer = broker_peer.call(RequestCode.GET_ALL_PRODUCER_INFO)
    (info,) = ProducerTableInfo.decode(bytes(answer.body)).data["pg"]
    assert info.client_id == "c1"
    assert info.remote_ip.startswith("/127.0.0.1:")


def test_broker_tidies_up_when_told(rocketmq_cluster: EmbeddedCluster, broker_peer: Peer) -> None:
    """Covers codes 306, 316 and 329: nothing that is needed goes."""
    broker_peer.send(T, b"kept")
    for code in (
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    ):
        assert broker_peer.call(code).code == 0
    assert [m.body for m in broker_peer.messages(T)] == [b"kept"]


def test_given_up_transaction_can_be_checked_again(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers C-418 and code 323: back into the half queue, its checks at zero."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(
        clock=clock, transaction_check_interval_ms=3_600_000, transaction_check_max=0
    )
    with Peer(cluster.broker_addr) as broker:
        broker.send(T, b"half", properties={"TRAN_MSG": "true", "PGROUP": "pg"}, sys_flag=4)
        cluster.check_transactions()
        (given_up,) = broker.messages("TRANS_CHECK_MAX_TIME_TOPIC")
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        header = ResumeCheckHalfMessageRequestHeader(given_up.offset_msg_id)
        assert broker.call(code, header).code == 0
        resumed = broker.messages("RMQ_SYS_TRANS_HALF_TOPIC")[1]
        assert resumed.properties["TRANSACTION_CHECK_TIMES"] == "0"
        plain = ext(broker.send(T, b"plain"))["msgId"]
        # As one that was committed, which may stand where a lost one was given up.
        like_a_half = {"PGROUP": "pg", "REAL_TOPIC": T, "REAL_QID": "0"}
        committed = ext(broker.send(T, b"committed", properties=like_a_half))["msgId"]
        for name in (plain, committed):
            answer = broker.call(code, ResumeCheckHalfMessageRequestHeader(name))
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len(broker.messages("RMQ_SYS_TRANS_HALF_TOPIC")) == 2


def test_topics_of_units_are_told_apart(
    rocketmq_cluster: EmbeddedCluster, namesrv_peer: Peer, broker_peer: Peer
) -> None:
    """Covers C-338, C-422: unit flags of topics made by a send and of retry topics."""
    send_ext = {"a": "pg", "b": "UnitT", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    body_ext = {**send_ext, "h": "0", "i": "", "j": "0", "k": "true", "m": "false"}
    assert broker_peer.call(RequestCode.SEND_MESSAGE_V2, ext=body_ext, body=b"x").code == 0
    body = (
        b'{"clientID":"c1","consumerDataSet":[{"groupName":"ug","messageModel":"CLUSTERING",'
        b'"subscriptionDataSet":[],"unitMode":true}],"producerDataSet":[]}'
    )
    assert broker_peer.call(RequestCode.HEART_BEAT, body=body).code == 0
    rocketmq_cluster.create_topic("Later")  # known to the name server, so the others are

    def topics(code: int) -> set[str]:
        return TopicList.decode(bytes(namesrv_peer.call(code).body)).topic_list

    assert topics(RequestCode.GET_UNIT_TOPIC_LIST) == {"UnitT"}
    assert topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"%RETRY%ug"}
    assert topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"%RETRY%ug"}


def test_name_server_shows_its_settings_and_keeps_them(namesrv_peer: Peer) -> None:
    """Covers codes 318 and 319."""
    answer = namesrv_peer.call(RequestCode.GET_NAMESRV_CONFIG)
    assert b"listenPort=" in bytes(answer.body)
    answer = namesrv_peer.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"listenPort=1\n")
    assert answer.code == ResponseCode.NO_PERMISSION

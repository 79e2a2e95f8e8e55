"""Replies to requests made as messages."""

from __future__ import annotations

import pytest

from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeader
from rocketstream.protocol.properties import decode_properties, encode_properties
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import BORN_MS, Peer, ext
from tests.plugins.peers import MakeCluster

TOPIC = "DefaultCluster_REPLY_TOPIC"
WAITING = {
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "client1",
    "MSG_TYPE": "reply",
    "TTL": "3000",
}


def submit_reply(
    broker: Peer,
    properties: dict[str, str] | None = None,
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    v1: bool = False,
) -> int:
    header = SendMessageRequestHeader(
        "pg", topic, "TBW102", 4, queue_id, 0, BORN_MS, 5,
        encode_properties(WAITING if properties is None else properties), 0,
    )  # fmt: skip
    code = RequestCode.SEND_REPLY_MESSAGE if v1 else RequestCode.SEND_REPLY_MESSAGE_V2
    command = RemotingCommand.request(code, header, b"the answer")
    if not v1:
        command.ext_fields = header.to_ext_v2()
    return broker.submit(command)


@pytest.mark.parametrize("v1", [True, False])
def test_reply_is_pushed_and_stored(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, v1: bool
) -> None:
    """Covers C-481, C-482: to the client named, with PUSH_REPLY_TIME, stored without it."""
    with Peer(rocketmq_cluster.broker_addr) as requester:
        requester.heartbeat("client1", producer="requesters")
        opaque = submit_reply(broker_peer, v1=v1)
        pushed = requester.next_asked(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        header = pushed.header(ReplyMessageRequestHeader)
        properties = decode_properties(header.properties or "")
        assert int(properties.pop("PUSH_REPLY_TIME")) > BORN_MS
        assert properties == WAITING
        assert (header.topic, header.producer_group, header.flag) == (TOPIC, "pg", 5)
        assert header.store_host == rocketmq_cluster.broker_addr
        assert header.born_host.startswith("127.0.0.1:")
        assert bytes(pushed.body) == b"the answer"
        assert not broker_peer.has_answer(opaque)
        requester.reply(pushed)

        answer = broker_peer.answer(opaque)
        assert answer.code == 0
        (stored,) = broker_peer.messages(TOPIC)
        assert ext(answer)["msgId"] == stored.offset_msg_id
        assert ext(answer)["queueOffset"] == "0"
        assert dict(stored.properties) == WAITING


def test_reply_need_not_be_stored(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-481: storeReplyMessageEnable; the id is 0 then."""
    cluster = rocketmq_cluster_factory(store_reply_message=False)
    with Peer(cluster.broker_addr) as requester, Peer(cluster.broker_addr) as broker:
        requester.heartbeat("client1", producer="requesters")
        opaque = submit_reply(broker)
        requester.reply(requester.next_asked(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT))
        answer = broker.answer(opaque)
        assert (answer.code, ext(answer)["msgId"]) == (0, "0")
        assert broker.messages(TOPIC) == []


def test_reply_nobody_waits_for_fails(rocketmq_cluster: EmbeddedCluster, broker_peer: Peer) -> None:
    """Covers C-481: no such client, a client that is gone, no client named; stored all the same."""
    with Peer(rocketmq_cluster.broker_addr) as requester:
        requester.heartbeat("client1", producer="requesters")
        requester.call(RequestCode.UNREGISTER_CLIENT, ext={"clientID": "client1"})
        unknown = broker_peer.answer(
            submit_reply(broker_peer, {**WAITING, "REPLY_TO_CLIENT": "nobody"})
        )
    requester.close()
    nameless = broker_peer.answer(submit_reply(broker_peer, {"CORRELATION_ID": "c-1"}))
    assert unknown.code == nameless.code == ResponseCode.SYSTEM_ERROR
    assert unknown.remark == "push reply message fail, channel of <nobody> not found."
    assert nameless.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    assert len(broker_peer.messages(TOPIC)) == 2


def test_client_that_refuses_or_leaves_fails_the_reply(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Covers C-481: a client's error, and a connection that ends meanwhile."""
    with Peer(rocketmq_cluster.broker_addr) as requester:
        requester.heartbeat("client1", producer="requesters")
        opaque = submit_reply(broker_peer)
        pushed = requester.next_asked(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        requester.reply(pushed, ResponseCode.SYSTEM_ERROR, remark="nobody waits")
        answer = broker_peer.answer(opaque)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "push reply message to client1fail."
        opaque = submit_reply(broker_peer)
        requester.next_asked(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert broker_peer.answer(opaque).code == ResponseCode.SYSTEM_ERROR


def test_reply_topic_is_checked_like_any_other(broker_peer: Peer) -> None:
    """Covers C-425: as a send is."""
    illegal = broker_peer.answer(submit_reply(broker_peer, queue_id=9))
    assert illegal.code == ResponseCode.SYSTEM_ERROR
    assert "queueId[9] is illegal" in (illegal.remark or "")
    forbidden = broker_peer.answer(submit_reply(broker_peer, topic="SCHEDULE_TOPIC_XXXX"))
    assert forbidden.code == ResponseCode.NO_PERMISSION
    blank = broker_peer.answer(submit_reply(broker_peer, topic=" "))
    assert blank.code == ResponseCode.SYSTEM_ERROR

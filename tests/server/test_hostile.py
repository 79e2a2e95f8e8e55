"""Bytes and values nobody should send."""

from __future__ import annotations

import pytest

from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from tests.server.peer import Peer, ext

EVERY_CODE = [
    10, 310, 320, 11, 361, 12, 33, 14, 15, 29, 30, 31, 32, 34, 35, 38, 41, 42, 46, 36, 17, 215,
    202, 300, 303, 200, 207, 208, 203, 204,
]  # fmt: skip


@pytest.mark.parametrize("code", EVERY_CODE)
def test_empty_request_is_answered_with_an_error(broker: Peer, code: int) -> None:
    """A missing field is named in code 1; nothing crashes, the connection goes on (W 1.3)."""
    command = RemotingCommand(code)
    command.ext_fields = None
    answer = broker.answer(broker.submit(command))
    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark
    assert "internal error" not in answer.remark
    assert broker.send("T1").code == 0


@pytest.mark.parametrize("code", [34, 41, 42, 46, 200])
@pytest.mark.parametrize("body", [b"junk", b"[1,2]", b'{"clientID":5', b"\xff\xfe", b'{"mqSet":7}'])
def test_junk_body_is_answered_with_an_error_or_ignored(
    broker: Peer, code: int, body: bytes
) -> None:
    """A body that is no JSON object is refused; the connection goes on."""
    answer = broker.call(code, body=body)
    assert "internal error" not in (answer.remark or "")
    assert broker.send("T1").code == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"queueId": "x"},
        {"queueId": "99999999999"},
        {"queueOffset": "9" * 30},
        {"maxMsgNums": "-5"},
        {"suspendTimeoutMillis": str(1 << 62), "sysFlag": "6"},
        {"subscription": "\x00\x01"},
        {"consumerGroup": ""},
        {"topic": "../../etc"},
    ],
)
def test_strange_pull_is_answered(broker: Peer, fields: dict[str, str]) -> None:
    """Whatever the fields hold, an answer comes."""
    broker.send("T1")
    given = {
        "consumerGroup": "cg", "topic": "T1", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0", "subscription": "*", **fields,
    }  # fmt: skip
    answer = broker.call(RequestCode.PULL_MESSAGE, ext=given)
    assert "internal error" not in (answer.remark or "")


def test_malformed_frame_closes_that_connection_only(
    cluster: EmbeddedCluster, broker: Peer
) -> None:
    """Covers W 1.1: closed without a reply."""
    for junk in (
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\x04oops",
        b"GET / HTTP/1.1\r\n",
    ):
        with Peer(cluster.broker_addr) as peer:
            peer.send_bytes(junk)
            peer.wait_end()
    assert broker.send("T1").code == 0


def test_topic_names_never_leave_the_store(cluster: EmbeddedCluster, broker: Peer) -> None:
    """Names are validated once and never used as paths unencoded (design decision 11)."""
    for topic in ("../../evil", "a/b", "..", "%RETRY%../x"):
        assert broker.send(topic).code != 0
        broker.heartbeat("c1", topic, {"T1": "*"})
        broker.call(RequestCode.GET_MAX_OFFSET, ext={"topic": topic, "queueId": "0"})
        broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})
    folder = cluster.store_dir / "consumequeue"
    assert [path.name for path in folder.iterdir()] == []
    assert not list(cluster.store_dir.parent.glob("evil*"))


def test_oneway_of_every_code_is_never_answered(broker: Peer) -> None:
    """Covers W 1.4: the next answer belongs to the next two-way request."""
    opaques = []
    for code in [*EVERY_CODE, 999]:
        opaques.append(broker.submit(RemotingCommand.request(code, oneway=True)))
    assert ext(broker.send("T1"))["queueOffset"] == "0"
    assert not any(broker.has_answer(opaque) for opaque in opaques)

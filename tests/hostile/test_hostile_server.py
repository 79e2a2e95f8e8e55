"""Bytes and values nobody should send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer

NEEDS_NOTHING = {
    21, 25, 26, 28, 43, 45, 201, 305, 306, 316, 317, 328, 329,  # broker
    106, 206, 304, 311, 312, 313, 318, 319,  # name server
}  # fmt: skip
"""Questions and chores without a field or a body, and edits of no setting, done at once as upstream
does: the only ones an empty request is enough for."""
JUNK = (b"junk", b"[1,2]", b'{"clientID":5', b"\xff\xfe", b'{"mqSet":7}')
DECIDED: dict[int, dict[str, str]] = {RequestCode.END_TRANSACTION: {"commitOrRollback": "8"}}
"""An undecided end of a transaction is the one request that is never answered."""
UNKNOWN = 999
MISSING = re.compile(r"field (\w+) is missing")


@pytest.fixture(params=["broker", "name server"])
def server(request: pytest.FixtureRequest, rocketmq_cluster: EmbeddedCluster) -> Iterator[Server]:
    """Each server, with every code of its own dispatch table."""
    if request.param == "broker":
        address, codes = rocketmq_cluster.broker_addr, rocketmq_cluster.broker.codes
    else:
        address, codes = rocketmq_cluster.namesrv_addr, rocketmq_cluster.nameserver.dispatcher.codes
    assert codes
    with Peer(address) as peer:
        yield Server(peer, codes)


@dataclass(frozen=True, slots=True)
class Server:
    """A peer of a server, and what that one answers."""

    peer: Peer
    codes: list[int]

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the answer to a request, which must not be a mistake of the server."""
        command = RemotingCommand(code, body=body)
        command.ext_fields = fields
        answer = self.peer.answer(self.peer.submit(command))
        assert "internal error" not in (answer.remark or ""), (code, fields, body)
        return answer

    def ask_filled(self, code: int, value: str, body: bytes) -> RemotingCommand:
        """Ask with the same value in each field that the server says is missing."""
        fields = dict(DECIDED.get(code, {}))
        while True:
            answer = self.ask(code, fields, body)
            missing = MISSING.search(answer.remark or "")
            if missing is None or missing[1] in fields:
                return answer
            fields[missing[1]] = value


def test_empty_request_is_answered_with_an_error(server: Server) -> None:
    """A missing field is named in code 1; nothing crashes, the connection goes on (W 1.3)."""
    for code in server.codes:
        answer = server.ask(code)
        assert (answer.code == ResponseCode.SUCCESS) == (code in NEEDS_NOTHING), (code, answer)
        assert answer.remark or code in NEEDS_NOTHING, code


def test_junk_body_is_answered(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read is refused; the connection goes on."""
    for code in server.codes:
        for body in JUNK:
            server.ask(code, body=body)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("value", ["", "x", "-1", "7", "9" * 30, "../../etc", "\x00\x01", "true"])
def test_junk_in_every_field_is_answered(
    server: Server, rocketmq_cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """Whatever a request's fields hold, an answer comes and no file leaves the store."""
    for code in server.codes:
        for body in (b"", b"{}"):
            server.ask_filled(code, value, body)
    assert "Traceback" not in caplog.text
    assert not list(rocketmq_cluster.store_dir.parent.glob("etc*"))


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
def test_strange_pull_is_answered(broker_peer: Peer, fields: dict[str, str]) -> None:
    """Whatever the fields hold, an answer comes."""
    broker_peer.send("T1")
    given = {
        "consumerGroup": "cg", "topic": "T1", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0", "subscription": "*", **fields,
    }  # fmt: skip
    answer = broker_peer.call(RequestCode.PULL_MESSAGE, ext=given)
    assert "internal error" not in (answer.remark or "")


def test_malformed_frame_closes_that_connection_only(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Covers W 1.1: closed without a reply."""
    for junk in (
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\x04oops",
        b"GET / HTTP/1.1\r\n",
    ):
        with Peer(rocketmq_cluster.broker_addr) as peer:
            peer.send_bytes(junk)
            peer.wait_end()
    assert broker_peer.send("T1").code == 0


def test_topic_names_never_leave_the_store(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Names are validated once and never used as paths unencoded (design decision 11)."""
    for topic in ("../../evil", "a/b", "..", "%RETRY%../x"):
        assert broker_peer.send(topic).code != 0
        broker_peer.heartbeat("c1", topic, {"T1": "*"})
        broker_peer.call(RequestCode.GET_MAX_OFFSET, ext={"topic": topic, "queueId": "0"})
        broker_peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})
    folder = rocketmq_cluster.store_dir / "consumequeue"
    assert [path.name for path in folder.iterdir()] == []
    assert not list(rocketmq_cluster.store_dir.parent.glob("evil*"))


def test_oneway_of_every_code_is_never_answered(server: Server) -> None:
    """Covers W 1.4: the next answer belongs to the next two-way request."""
    opaques = [
        server.peer.submit(RemotingCommand.request(code, oneway=True))
        for code in [*server.codes, UNKNOWN]
    ]
    assert server.ask(UNKNOWN).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert not any(server.peer.has_answer(opaque) for opaque in opaques)

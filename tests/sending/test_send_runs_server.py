"""Usual sends that come together: stored with one write, answered in order, as one by one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from rocketstream import ClientConfig, Message, Producer
from rocketstream.errors import FlushFailedError
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import encode_properties
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.server.store.files import Files
from tests.kits.peer import BORN_MS, Peer, ext
from tests.plugins.peers import MakeCluster

TOPIC = "T1"
BEFORE = 1
"""So many sends go the general way: the first one makes the topic."""


def frame(
    opaque: int,
    body: bytes,
    *,
    queue_id: int = 0,
    properties: dict[str, str] | None = None,
    flag: int = 0,
    topic: str = TOPIC,
    reconsume_times: int = 0,
    code: int = RequestCode.SEND_MESSAGE_V2,
) -> bytes:
    """A send as clients write it."""
    given = {"UNIQ_KEY": f"{opaque:032X}", "WAIT": "true", **(properties or {})}
    header = SendMessageRequestHeader(
        "pg", topic, "TBW102", 4, queue_id, 0, BORN_MS, 0, encode_properties(given),
        reconsume_times, False, None, False,
    )  # fmt: skip
    command = RemotingCommand(code, opaque, flag)
    is_v2 = code == RequestCode.SEND_MESSAGE_V2
    command.ext_fields, command.body = header.to_ext_v2() if is_v2 else header.to_ext(), body
    return command.frame()


class Writes(Files):
    """Notes what is written at once, and fails when told to."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.is_broken = False

    def pwrite(self, handle: int, data: bytes | bytearray, position: int) -> int:
        if self.is_broken and len(data) > 91:
            super().pwrite(handle, data[: len(data) * 2 // 3], position)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.sizes.append(len(data))
        return super().pwrite(handle, data, position)


@pytest.fixture
def files() -> Writes:
    return Writes()


@pytest.fixture
def rocketmq_cluster(tmp_path: Path, files: Writes) -> Iterable[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "store", store_config=SMALL_STORE, files=files) as cluster:
        yield cluster
        files.is_broken = False


def begin(broker: Peer, **kind: object) -> None:
    """Send what makes the topic; the offsets behind it begin at ``BEFORE``."""
    for opaque in range(1000, 1000 + BEFORE):
        broker.send_bytes(frame(opaque, b"first", **kind))  # type: ignore[arg-type]
        assert broker.answer(opaque).code == 0


def test_sends_that_come_together_are_stored_with_one_write(
    broker_peer: Peer, files: Writes
) -> None:
    """Order and offsets are those of the frames, and every answer says its own."""
    begin(broker_peer)
    before = len(files.sizes)
    broker_peer.send_bytes(b"".join(frame(n, b"%d" % n, queue_id=n % 2) for n in range(1, 41)))
    answers = [broker_peer.answer(n) for n in range(1, 41)]
    large = [size for size in files.sizes[before:] if size > 91]
    assert len(large) < 20
    for number, answer in enumerate(answers, start=1):
        fields = ext(answer)
        assert (answer.code, fields["queueId"]) == (0, str(number % 2))
        stored = broker_peer.messages(TOPIC, queue_id=number % 2)[int(fields["queueOffset"])]
        assert stored.body == b"%d" % number
        assert stored.properties["UNIQ_KEY"] == f"{number:032X}"
        assert decode_offset_msg_id(fields["msgId"])[2] == stored.commit_log_offset
    bodies = [message.body for message in broker_peer.messages(TOPIC)][BEFORE:]
    assert bodies == [b"%d" % n for n in range(2, 41, 2)]


def test_what_is_taken_together_is_stored_as_what_is_not(broker_peer: Peer) -> None:
    given = {"TAGS": "A%", "KEYS": "k1 k2", "u": "v w"}
    begin(broker_peer, properties=given)
    frames = [
        frame(1, b"a", properties=given),
        frame(2, b"a", properties={**given, "u": "ü"}),
        frame(3, b"a", properties=given, reconsume_times=1),
    ]
    for opaque, one in enumerate(frames, start=1):
        broker_peer.send_bytes(one)
        assert broker_peer.answer(opaque).code == 0
    first, *_, last = broker_peer.messages(TOPIC)
    usual, other, again = broker_peer.messages(TOPIC)[BEFORE:]
    assert dict(other.properties)["u"] == "ü"
    assert dict(usual.properties) == {
        "UNIQ_KEY": f"{1:032X}", **given, "CLUSTER": "DefaultCluster"
    }  # fmt: skip
    assert list(usual.properties) == list(first.properties)
    # Without the ids in front, and without the seals, which differ with the place in the log.
    assert usual.properties_bytes[41:-16] == again.properties_bytes[41:-16]
    for name in ("topic", "flag", "sys_flag", "born_timestamp", "born_host", "store_host", "tags"):
        assert getattr(usual, name) == getattr(last, name), name


def test_requests_between_sends_are_done_in_their_order(broker_peer: Peer) -> None:
    begin(broker_peer)
    pull = RemotingCommand(RequestCode.GET_MAX_OFFSET, 3)
    pull.ext_fields = {"topic": TOPIC, "queueId": "0"}
    special = frame(4, b"tagged", properties={"DELAY": "0", "TAGS": "B"})
    parts = [frame(1, b"1"), frame(2, b"2"), pull.frame(), special, frame(5, b"5")]
    broker_peer.send_bytes(b"".join(parts))
    offsets = [ext(broker_peer.answer(n)).get("queueOffset") for n in (1, 2, 4, 5)]
    assert offsets == [str(BEFORE + n) for n in range(4)]
    assert ext(broker_peer.answer(3))["offset"] == str(BEFORE + 2)


def test_frames_in_any_pieces_are_taken_whole(broker_peer: Peer) -> None:
    begin(broker_peer)
    stream = b"".join(frame(n, b"x" * n) for n in range(1, 8))
    for at in range(0, len(stream), 97):
        broker_peer.send_bytes(stream[at : at + 97])
    assert [broker_peer.answer(n).code for n in range(1, 8)] == [0] * 7
    assert [len(m.body) for m in broker_peer.messages(TOPIC)[BEFORE:]] == list(range(1, 8))


def test_a_write_that_fails_refuses_every_send_of_it(broker_peer: Peer, files: Writes) -> None:
    """And nothing of them is there: not now, and not for who is served after them."""
    begin(broker_peer)
    files.is_broken = True
    broker_peer.send_bytes(b"".join(frame(n, b"lost") for n in range(1, 9)))
    answers = [broker_peer.answer(n) for n in range(1, 9)]
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert ext(answers[0]) == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    files.is_broken = False
    broker_peer.send_bytes(b"".join(frame(n, b"kept") for n in (21, 22)))
    assert [ext(broker_peer.answer(n))["queueOffset"] for n in (21, 22)] == [
        str(BEFORE),
        str(BEFORE + 1),
    ]
    assert [m.body for m in broker_peer.messages(TOPIC)[BEFORE:]] == [b"kept", b"kept"]


def test_one_way_sends_are_stored_and_not_answered(broker_peer: Peer) -> None:
    begin(broker_peer)
    broker_peer.send_bytes(frame(1, b"silent", flag=2) + frame(2, b"heard"))
    assert ext(broker_peer.answer(2))["queueOffset"] == str(BEFORE + 1)
    assert not broker_peer.has_answer(1)


def test_a_topic_that_changes_is_seen_by_the_next_send(broker_peer: Peer) -> None:
    begin(broker_peer, queue_id=3)
    broker_peer.send_bytes(frame(1, b"x", queue_id=3))
    assert broker_peer.answer(1).code == 0
    fields = {"topic": TOPIC, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    made = {**fields, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert broker_peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=made).code == 0
    broker_peer.send_bytes(frame(2, b"x", queue_id=3) + frame(3, b"x", queue_id=1))
    refused = broker_peer.answer(2)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "request queueId[3] is illegal" in (refused.remark or "")
    assert broker_peer.answer(3).code == 0


def test_a_body_over_the_bound_is_refused_as_ever(broker_peer: Peer) -> None:
    begin(broker_peer)
    broker_peer.send_bytes(frame(1, b"x") + frame(2, b"x" * (4 * 1024 * 1024 + 1)) + frame(3, b"x"))
    codes = [broker_peer.answer(n).code for n in (1, 2, 3)]
    assert codes == [0, ResponseCode.MESSAGE_ILLEGAL, 0]


def test_two_kinds_in_turn_are_both_taken_together(broker_peer: Peer, files: Writes) -> None:
    begin(broker_peer)
    begin(broker_peer, properties={"TAGS": "A"})
    before = len(files.sizes)
    frames = [frame(n, b"x", properties={"TAGS": "A"} if n % 2 else None) for n in range(1, 31)]
    broker_peer.send_bytes(b"".join(frames))
    assert {broker_peer.answer(n).code for n in range(1, 31)} == {0}
    assert len([size for size in files.sizes[before:] if size > 91]) < 15
    tags = [message.tags for message in broker_peer.messages(TOPIC)[2 * BEFORE :]]
    assert tags == ["A", None] * 15 or tags == ["A", ""] * 15


def test_a_waiting_pull_hears_of_a_message_of_a_run(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    begin(broker_peer)
    with Peer(rocketmq_cluster.broker_addr) as consumer:
        held = consumer.submit_pull(TOPIC, BEFORE, suspend_ms=9_000)
        consumer.call(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"})
        broker_peer.send_bytes(b"".join(frame(n, b"%d" % n) for n in range(1, 5)))
        assert consumer.answer(held).code == 0


def test_with_sync_flush_sends_of_a_run_are_answered_once_on_the_disk(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    class Counted(Files):
        syncs = 0

        def sync(self, handle: int) -> None:
            super().sync(handle)
            Counted.syncs += 1

    cluster = rocketmq_cluster_factory(flush="sync", files=Counted())
    with Peer(cluster.broker_addr) as broker:
        begin(broker)
        before = Counted.syncs
        broker.send_bytes(b"".join(frame(n, b"x") for n in range(1, 41)))
        assert {broker.answer(n).code for n in range(1, 41)} == {0}
        assert 0 < Counted.syncs - before < 40
        assert len(broker.messages(TOPIC)) == BEFORE + 40


def test_with_sync_flush_a_failed_fsync_is_told_to_all_of_a_run(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    class Failing(Files):
        fails = False

        def sync(self, handle: int) -> None:
            if Failing.fails:  # until it is closed, when small files are written too
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().sync(handle)

    cluster = rocketmq_cluster_factory(flush="sync", files=Failing())
    with Peer(cluster.broker_addr) as broker:
        begin(broker)
        Failing.fails = True
        broker.send_bytes(b"".join(frame(n, b"x") for n in range(1, 9)))
        answers = [broker.answer(n) for n in range(1, 9)]
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert len(broker.messages(TOPIC)) == BEFORE
    Failing.fails = False
    with pytest.raises(FlushFailedError):
        cluster.close()


def test_where_rights_are_asked_for_no_send_gets_around_them(
    rocketmq_cluster_factory: MakeCluster, tmp_path: Path
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: abcdefg\n  secretKey: hijklmnop\n  admin: true\n")
    cluster = rocketmq_cluster_factory(acl=accounts)
    config = ClientConfig(
        namesrv_addr=cluster.namesrv_addr, access_key="abcdefg", secret_key="hijklmnop"
    )
    with Producer("pg", config=config) as producer:
        for _ in range(BEFORE):
            producer.send(Message(TOPIC, b"x"))
    stored = cluster.broker.store.physical_max_offset
    with Peer(cluster.broker_addr) as broker:
        for opaque in range(1, 2 * BEFORE):
            broker.send_bytes(frame(opaque, b"x"))
            answer = broker.answer(opaque)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "No accessKey is configured" in (answer.remark or "")
    assert cluster.broker.store.physical_max_offset == stored


def test_sends_of_ever_new_kinds_are_taken_together(broker_peer: Peer, files: Writes) -> None:
    begin(broker_peer)
    before = len(files.sizes)
    frames = [frame(n, b"%d" % n, properties={f"kind{n}": "1"}) for n in range(50, 80)]
    broker_peer.send_bytes(b"".join(frames))
    assert {broker_peer.answer(n).code for n in range(50, 80)} == {0}
    assert [m.body for m in broker_peer.messages(TOPIC)[-30:]] == [b"%d" % n for n in range(50, 80)]
    assert len([size for size in files.sizes[before:] if size > 91]) < 15


@pytest.mark.parametrize(
    "odd",
    [
        {"WAIT": "false"},
        {"WAIT": "TRUE"},
        {"CLUSTER": "mine"},
        {"PROPERTIES_CRC": "0" * 16},
        {"DELAY": "0"},
        {"u": ""},
        {"": "v"},
        {"u": "a\x01b"},
        {"u": "a\\b"},
        {"u": 'a"b'},
    ],
    ids=str,
)
def test_odd_properties_among_usual_ones_are_stored_as_the_general_way_does(
    broker_peer: Peer, odd: dict[str, str]
) -> None:
    """As a send of code 10, which is never taken together with others."""
    begin(broker_peer)
    parts = [frame(2, b"x"), frame(3, b"odd", properties=odd), frame(4, b"x")]
    broker_peer.send_bytes(b"".join(parts))
    assert [broker_peer.answer(n).code for n in (2, 3, 4)] == [0] * 3
    broker_peer.send_bytes(frame(3, b"odd", properties=odd, code=RequestCode.SEND_MESSAGE))
    assert broker_peer.answer(3).code == 0
    among, alone = broker_peer.messages(TOPIC)[BEFORE + 1], broker_peer.messages(TOPIC)[-1]
    assert (among.body, alone.body) == (b"odd", b"odd")
    assert among.properties_bytes[:-16] == alone.properties_bytes[:-16]

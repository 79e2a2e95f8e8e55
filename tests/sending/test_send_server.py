"""Sends over the wire: what is stored, what is answered, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream import limits
from rocketstream.errors import FlushFailedError
from rocketstream.protocol.bodies import TopicList
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import EndTransactionRequestHeader, SendMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import BatchItem, encode_batch, has_seal
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.store import StoreConfig
from rocketstream.server.store.files import Files
from rocketstream.server.store.log_walk import WalkEnd, walk
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer, ext
from tests.plugins.peers import MakeCluster


def test_send_creates_the_topic_and_answers_where_it_is(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Covers C-422 (auto-creation with the header's queues) and C-429 (reply fields)."""
    answer = broker_peer.send("T1", tags="TagA", queue_id=2, properties={"KEYS": "k1"})
    fields = ext(answer)
    assert answer.code == ResponseCode.SUCCESS
    assert answer.remark is None
    assert (fields["queueId"], fields["queueOffset"]) == ("2", "0")
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
    host, port, physical = decode_offset_msg_id(fields["msgId"])
    assert f"{host}:{port}" == rocketmq_cluster.broker_addr
    assert physical == 0


def test_stored_message_carries_cluster_and_no_wait(broker_peer: Peer) -> None:
    """Covers C-427: CLUSTER is added, WAIT is dropped, born host is the connection's address."""
    broker_peer.send("T1", b"body", tags="TagA", properties={"u": "v"}, reconsume_times=2)
    [message] = broker_peer.messages("T1")
    assert message.body == b"body"
    assert dict(message.properties) == {"u": "v", "TAGS": "TagA", "CLUSTER": "DefaultCluster"}
    assert message.born_host.startswith("127.0.0.1:")
    assert message.reconsume_times == 2


def test_every_stored_record_has_a_seal(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """Of usual sends, batches, delayed, retried and half messages, and what becomes of them."""
    broker_peer.send("T1", tags="A")
    broker_peer.send(
        "T1", encode_batch([BatchItem(0, b"m", b""), (0, b"n", b"a\x01b")]), batch=True
    )
    broker_peer.send("T1", properties={"DELAY": "3"})
    half = broker_peer.send("T1", sys_flag=4, properties={"TRAN_MSG": "true", "PGROUP": "pg"})
    at = decode_offset_msg_id(ext(half)["msgId"])[2]
    header = EndTransactionRequestHeader("pg", int(ext(half)["queueOffset"]), at, 8, "")
    assert broker_peer.call(RequestCode.END_TRANSACTION, header).code == 0
    broker_peer.heartbeat("c", "cg", {"T1": "*"})
    assert broker_peer.send_back("cg", broker_peer.messages("T1")[0], level=3).code == 0

    store = rocketmq_cluster.broker.store
    entries = list(walk(store._log, WalkEnd(0)))
    assert {entry.topic for entry in entries} == {
        "T1", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    }  # fmt: skip
    assert [each for each in entries if not has_seal(each.properties, each.physical_offset)] == []


FUTURE_MS = str(10**15)


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "5"},
        {"TIMER_DELAY_MS": "5"},
        {"TIMER_DELIVER_MS": FUTURE_MS},
        {"TIMER_DELIVER_MS": FUTURE_MS, "DELAY": "0"},
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELIVER_MS": FUTURE_MS, "TRAN_MSG": "true", "PGROUP": "pg"},
    ],
    ids=str,
)
def test_time_of_delivery_is_refused_as_by_a_5x_broker_without_timers(
    broker_peer: Peer, properties: dict[str, str]
) -> None:
    """A 4.9 broker delivers at once: a 5.x client's delay would be lost without a word."""
    for _ in range(6):  # more than what usual sends are learnt from
        answer = broker_peer.send("T1", properties=properties)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable is false" in (answer.remark or "")
    assert broker_peer.messages("T1") == []


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": "1000"},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1000"},
    ],
    ids=str,
)
def test_time_of_delivery_that_is_over_holds_nothing_up(
    broker_peer: Peer, properties: dict[str, str]
) -> None:
    """Such as that of a message a 5.x broker has kept and delivered, and somebody copies."""
    assert broker_peer.send("T1", properties=properties).code == ResponseCode.SUCCESS
    [message] = broker_peer.messages("T1")
    assert properties.items() <= dict(message.properties).items()


def test_send_with_the_old_header_is_the_same(broker_peer: Peer) -> None:
    """Code 10 carries the same fields under long names (W 2.2)."""
    header = SendMessageRequestHeader("pg", "T1", "TBW102", 4, 1, 0, 1, 7, "TAGS\x01A\x02")
    answer = broker_peer.call(RequestCode.SEND_MESSAGE, header, b"x")
    assert answer.code == 0
    [message] = broker_peer.messages("T1", queue_id=1)
    assert (message.flag, message.tags) == (7, "A")


def test_the_short_way_of_a_usual_send_stores_the_same(broker_peer: Peer) -> None:
    """A number beyond the usual ones (here the retry limit) takes the general way."""
    for _ in range(4):  # what is learnt from
        broker_peer.send("T1", properties={"KEYS": "k", "TAGS": "A", "u": "v"})
    answers, stored = [], []
    for number, limit in enumerate((5, 5_000), start=1):
        header = SendMessageRequestHeader(
            "pg", "T1", "TBW102", 4, 0, 1 << 1, 1_700_000_000_000, 9,
            "WAIT\x01true\x02KEYS\x01k l\x02TAGS\x01A\x02u\x01v\x02", max_reconsume_times=limit,
        )  # fmt: skip
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2)
        command.ext_fields = header.to_ext_v2()
        command.body = b"x"
        answers.append(broker_peer.answer(broker_peer.submit(command)))
        stored.append(broker_peer.messages("T1")[3 + number])
    usual, general = stored
    assert usual.properties_bytes[:-16] == general.properties_bytes[:-16]  # the CRCs differ
    for name in ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "body"):
        assert getattr(usual, name) == getattr(general, name), name
    first, second = (ext(answer) for answer in answers)
    assert first.keys() == second.keys()
    assert (first["queueOffset"], second["queueOffset"]) == ("4", "5")


def test_an_unreadable_header_is_answered_without_fields(broker_peer: Peer) -> None:
    """As Apache does: the region is told only by what looked at the message."""
    header = SendMessageRequestHeader("pg", "T1", "TBW102", 4, 0, 0, 1, 0, "")
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2)
    command.ext_fields = {**header.to_ext_v2(), "e": "x"}
    answer = broker_peer.answer(broker_peer.submit(command))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not answer.ext_fields


def test_absent_body_is_accepted(broker_peer: Peer) -> None:
    """Covers W 2.2: a null body is stored with length 0."""
    assert broker_peer.send("T1", b"").code == 0
    assert broker_peer.messages("T1")[0].body == b""


def test_negative_queue_takes_any_write_queue(broker_peer: Peer) -> None:
    """Covers C-425: queueId < 0 lets the broker choose, and the reply says which."""
    chosen = {int(ext(broker_peer.send("T1", queue_id=-1))["queueId"]) for _ in range(8)}
    assert chosen <= {0, 1, 2, 3}
    assert len(chosen) > 1


def test_queue_out_of_range_is_refused_with_upstreams_text(broker_peer: Peer) -> None:
    """Covers C-425."""
    broker_peer.send("T1")
    answer = broker_peer.send("T1", queue_id=9)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith(
        "request queueId[9] is illegal, TopicConfig [topicName=T1, readQueueNums=4, "
        "writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] "
        "Producer: 127.0.0.1:"
    )
    assert ext(answer)["MSG_REGION"] == "DefaultRegion"


@pytest.mark.parametrize("topic", ["bad topic", "a/b", "..", "", "t" * 128, "ä"])
def test_bad_topic_name_is_refused(broker_peer: Peer, topic: str) -> None:
    """Covers C-95 at the broker: names become directories, so nothing else gets through."""
    answer = broker_peer.send(topic)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in (answer.remark or "")


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC"]
)
def test_system_topics_take_no_messages_of_clients(broker_peer: Peer, topic: str) -> None:
    """Covers C-96."""
    answer = broker_peer.send(topic)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."


def test_unknown_topic_is_refused_without_auto_creation(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers C-422: the switch is off."""
    cluster = rocketmq_cluster_factory(auto_create_topics=False)
    with Peer(cluster.broker_addr) as broker:
        answer = broker.send("T1")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert (answer.remark or "").startswith("topic[T1] not exist, apply first please!")


def test_topic_without_inherit_is_no_template(broker_peer: Peer) -> None:
    """Covers C-422: the default topic must exist and carry the inherit bit."""
    broker_peer.send("T1")
    assert broker_peer.send("T2", default_topic="T1").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker_peer.send("T2", default_topic="none").code == ResponseCode.TOPIC_NOT_EXIST


def test_body_of_4_mib_is_the_most(broker_peer: Peer) -> None:
    """Covers C-430: one byte more is MESSAGE_ILLEGAL with upstream's text."""
    most = limits.MESSAGE_BODY_BYTES_MAX
    assert broker_peer.send("T1", bytes(most)).code == 0
    answer = broker_peer.send("T1", bytes(most + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "msg body length limit 4194304B" in (answer.remark or "")
    assert ext(answer) == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert len(broker_peer.messages("T1")) == 1


def test_what_no_log_file_holds_is_refused_for_good(tmp_path: Path) -> None:
    """It was "not available now": sent again and again, and in doubt afterwards."""
    config = StoreConfig(commit_log_file_bytes=4_096)
    with (
        EmbeddedCluster(tmp_path, store_config=config) as cluster,
        Peer(cluster.broker_addr) as peer,
    ):
        assert peer.send("T1", bytes(1_000)).code == 0
        items = encode_batch([BatchItem(0, bytes(1_500), b"")] * 3)
        for refused in (peer.send("T1", bytes(4_096)), peer.send("T1", items, batch=True)):
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            assert "do not fit a commit log file of 4096" in (refused.remark or "")
        assert peer.send("T1", bytes(1_000)).code == 0
        assert len(peer.messages("T1")) == 2


def test_properties_of_32767_bytes_are_the_most(broker_peer: Peer) -> None:
    """Covers C-430: what is stored counts, the added CLUSTER included."""
    added = len("u\x01\x02CLUSTER\x01DefaultCluster")
    most = limits.PROPERTIES_BYTES_MAX
    assert broker_peer.send("T1", properties={"u": "x" * (most - added)}).code == 0
    answer = broker_peer.send("T1", properties={"u": "x" * (most - added + 1)})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_batch_gets_consecutive_offsets(broker_peer: Peer) -> None:
    """Covers C-431 and W 4.5: one reply, ids joined by commas, common properties added."""
    broker_peer.send("T1", b"before")
    items = [BatchItem(0, b"m%d" % i, b"TAGS\x01T%d" % i) for i in range(3)]
    answer = broker_peer.send("T1", encode_batch(items), batch=True)
    fields = ext(answer)
    assert answer.code == 0
    assert fields["queueOffset"] == "1"
    ids = fields["msgId"].split(",")
    stored = broker_peer.messages("T1")[1:]
    assert [m.body for m in stored] == [b"m0", b"m1", b"m2"]
    assert [m.queue_offset for m in stored] == [1, 2, 3]
    assert [m.commit_log_offset for m in stored] == [decode_offset_msg_id(i)[2] for i in ids]
    assert dict(stored[0].properties) == {
        "TAGS": "T0",
        "WAIT": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_messages_of_a_batch_keep_their_own_ids(broker_peer: Peer) -> None:
    """5.x clients give the batch itself a UNIQ_KEY too; the messages' own must win."""
    items = [BatchItem(0, b"m", b"UNIQ_KEY\x01U%d" % number) for number in range(2)]
    broker_peer.send("T1", encode_batch(items), batch=True, properties={"UNIQ_KEY": "BATCH"})
    assert [m.msg_id for m in broker_peer.messages("T1")] == ["U0", "U1"]


@pytest.mark.parametrize(
    "own",
    [
        b"a\x01b\x02c\x01d",
        b"a\x01b\x02",
        b"a\x01b\x01c",
        b"\x01b\x02c\x01d",
        b"a\x01\x02c\x01d",
        b"a\x02c\x01d",
        b"a\x01b\x02a\x01c",
        b"WAIT\x01false\x02a\x01b",
        b"a\x01\xff\xfe",
        "ä\x01é".encode(),
        b"",
    ],
)
def test_texts_of_a_batch_put_together_are_what_writing_anew_gives(
    broker_peer: Peer, own: bytes
) -> None:
    """Odd properties are written anew; the others are copied as they came."""
    broker_peer.send("T1", encode_batch([BatchItem(0, b"m", own)]), batch=True)
    (stored,) = broker_peer.messages("T1")
    common = {"WAIT": "true", "CLUSTER": "DefaultCluster"}
    expected = {**common, **decode_properties(own)}
    assert stored.properties == expected
    assert stored.properties_bytes.count(b"WAIT\x01") == 1


def test_batch_with_delay_is_illegal(broker_peer: Peer) -> None:
    """Covers C-431."""
    items = encode_batch([BatchItem(0, b"m", b"DELAY\x013")])
    assert broker_peer.send("T1", items, batch=True).code == ResponseCode.MESSAGE_ILLEGAL


def test_torn_batch_body_is_answered_not_stored(broker_peer: Peer) -> None:
    """Bytes that are no batch get code 1, and the connection goes on."""
    answer = broker_peer.send("T1", b"\x00\x00\x00\x99junk", batch=True)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker_peer.send("T1").code == 0


def test_oneway_send_is_stored_and_never_answered(broker_peer: Peer) -> None:
    """Covers W 1.4: the next answer on the connection belongs to the next request."""
    header = SendMessageRequestHeader("pg", "T1", "TBW102", 4, 0, 0, 1, 0, "")
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, body=b"oneway", oneway=True)
    command.ext_fields = header.to_ext_v2()
    opaque = broker_peer.submit(command)
    assert broker_peer.send("T1", b"second").code == 0
    assert [m.body for m in broker_peer.messages("T1")] == [b"oneway", b"second"]
    assert not broker_peer.has_answer(opaque)


def test_sync_flush_answers_after_the_flush(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-434: with sync flush an acknowledged message is below the flushed offset."""
    cluster = rocketmq_cluster_factory(flush="sync")
    with Peer(cluster.broker_addr) as broker:
        for number in range(3):
            answer = broker.send("T1", b"m%d" % number)
            assert answer.code == 0
            physical = decode_offset_msg_id(ext(answer)["msgId"])[2]
            assert cluster.broker.store.flushed_offset > physical
        header = SendMessageRequestHeader("pg", "T1", "TBW102", 4, 0, 0, 1, 0, "")
        opaques = []
        for _ in range(50):
            command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, body=b"x")
            command.ext_fields = header.to_ext_v2()
            opaques.append(broker.submit(command))
        assert all(broker.answer(opaque).code == 0 for opaque in opaques)


def test_failed_flush_is_final_and_said(
    rocketmq_cluster_factory: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync that failed acknowledges nothing, now or later (code 14)."""
    cluster = rocketmq_cluster_factory(flush="sync")
    with Peer(cluster.broker_addr) as broker:
        assert broker.send("T1").code == 0

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(Files, "sync", fail)
            answer = broker.send("T1")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        for _ in range(2):
            answer = broker.send("T1")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert ext(answer)["MSG_REGION"] == "DefaultRegion"
    with pytest.raises(FlushFailedError):
        cluster.close()


def test_vip_port_takes_sends_but_no_pulls(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers W 1.4, 1.7: two ports below, everything but PULL_MESSAGE."""
    cluster = rocketmq_cluster_factory(vip_port=True)
    host, port = cluster.broker_addr.rsplit(":", 1)
    with Peer(f"{host}:{int(port) - 2}") as peer:
        assert peer.send("T1").code == 0
        assert peer.pull("T1", 0).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_message_is_found_by_key_and_by_offset(broker_peer: Peer) -> None:
    """Covers codes 12 and 33 (W 2.3)."""
    unique = "7F0000017A315FFD2B276611F2110000"
    broker_peer.send("T1", b"a", properties={"KEYS": "k1 k2", "UNIQ_KEY": unique})
    stored = broker_peer.messages("T1")[0]
    for key, flag in (("k1", "false"), ("k2", "false"), (unique, "true")):
        fields = {
            "topic": "T1", "key": key, "maxNum": "8", "beginTimestamp": "0",
            "endTimestamp": str(1 << 60), "_UNIQUE_KEY_QUERY": flag,
        }  # fmt: skip
        answer = broker_peer.call(RequestCode.QUERY_MESSAGE, ext=fields)
        assert answer.code == 0
        assert bytes(answer.body)
    fields["key"] = "nobody"
    answer = broker_peer.call(RequestCode.QUERY_MESSAGE, ext=fields)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    view = {"offset": str(stored.commit_log_offset)}
    answer = broker_peer.call(RequestCode.VIEW_MESSAGE_BY_ID, ext=view)
    assert answer.code == 0
    assert b"a" in bytes(answer.body)
    answer = broker_peer.call(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": "5"})
    assert (answer.code, answer.remark) == (1, "can not find message by the offset, 5")


def found_by_key(broker: Peer, **changes: object) -> list[MessageExt]:
    fields = {"topic": "T1", "key": "many", "maxNum": 64, "beginTimestamp": 0} | changes
    fields.setdefault("endTimestamp", 1 << 60)
    ext = {name: str(value) for name, value in fields.items()}
    answer = broker.call(RequestCode.QUERY_MESSAGE, ext=ext)
    assert answer.code in (0, 22)
    return decode_messages(bytes(answer.body)) if answer.code == 0 else []


def test_of_many_messages_with_one_key_the_newest_are_found(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """As many as are asked for, 64 at most, the oldest first; the rest by an earlier end."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    with Peer(cluster.broker_addr) as broker:
        for number in range(100):
            clock.advance(1_000)
            broker.send("T1", str(number).encode(), properties={"KEYS": "many"})
        found = found_by_key(broker, maxNum=1_000)
        assert [int(message.body) for message in found] == list(range(36, 100))
        before = found_by_key(broker, endTimestamp=found[0].store_timestamp - 1)
        assert [int(message.body) for message in before] == list(range(36))
        assert [int(message.body) for message in found_by_key(broker, maxNum=3)] == [97, 98, 99]
        assert found_by_key(broker, maxNum=0) == []


def test_messages_found_by_key_fit_one_answer(broker_peer: Peer) -> None:
    for number in range(5):
        broker_peer.send("T1", bytes([number]) * 3_000_000, properties={"KEYS": "many"})
    found = found_by_key(broker_peer)
    assert [message.body[0] for message in found] == [3, 4]


def test_topics_made_at_once_are_all_registered(
    rocketmq_cluster: EmbeddedCluster, namesrv_peer: Peer, broker_peer: Peer
) -> None:
    """Covers C-422, C-442: what is registered and its version are of the same moment."""
    topics = {f"Made{number}" for number in range(20)}
    opaques = [broker_peer.submit(send_command(topic)) for topic in sorted(topics)]
    for opaque in opaques:
        assert broker_peer.answer(opaque).code == 0
    rocketmq_cluster.create_topic("Later")
    answer = namesrv_peer.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert topics <= TopicList.decode(bytes(answer.body)).topic_list


def send_command(topic: str) -> RemotingCommand:
    ext_fields = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, None, b"x")
    command.ext_fields = {**ext_fields, "h": "0", "i": "", "j": "0"}
    return command

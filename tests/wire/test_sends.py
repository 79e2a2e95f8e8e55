"""Sends and their answers in their quick form: what the general way says, or the general way."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import limits
from rocketstream.errors import LocalProtocolError
from rocketstream.model import MessageQueue, SendStatus
from rocketstream.protocol.codes import FLAG_ONEWAY, SerializeType
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.sends import (
    ANSWER_BYTES_MAX,
    AnswerDecoder,
    AnswerReader,
    PreparedSend,
    SendRequests,
    StoredAnswer,
)
from tests.wire.frames import decode_frame

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
INT = st.integers(-(2**31), 2**31 - 1)
REQUESTS = st.builds(SendRequests, TEXT, TEXT, INT, unit_mode=st.booleans())
QUEUE = st.builds(MessageQueue, st.just("T") | TEXT, TEXT, INT)
ONE = MessageQueue("T", "b", 7)


def send(
    requests: SendRequests,
    body: bytes = b"x",
    properties: str = "p",
    born: int = 1,
    flag: int = 0,
    sys_flag: int = 0,
) -> PreparedSend:
    return PreparedSend(requests, "T", body, properties, "id", born, flag, sys_flag)


SENDS = st.builds(
    send,
    REQUESTS,
    st.binary(max_size=9),
    TEXT,
    st.integers(-(2**63), 2**63 - 1),
    INT,
    INT,
)


def special(plain: PreparedSend) -> PreparedSend:
    """The same message, made the general way."""
    plain.is_plain = False
    return plain


@given(SENDS, QUEUE, st.integers(0, 2**31 - 1))
def test_the_template_writes_the_same_bytes(
    prepared: PreparedSend, queue: MessageQueue, opaque: int
) -> None:
    """Names with a percent sign, quotes or other scripts, and a queue of any topic included."""
    quick = prepared.command(queue)
    general = special(prepared).command(queue)
    assert type(quick) is not type(general)
    quick.opaque = general.opaque = opaque
    assert quick.frame() == general.frame()


@given(SENDS, SENDS, QUEUE)
def test_a_template_serves_every_message_of_its_queue(
    first: PreparedSend, other: PreparedSend, queue: MessageQueue
) -> None:
    first.command(queue)
    second = PreparedSend(
        first._requests, "T", other.body, other.properties, "id", other.born_timestamp, other.flag,
        other.sys_flag,
    )  # fmt: skip
    quick, general = second.command(queue), special(second).command(queue)
    assert quick.frame() == general.frame()


@given(SENDS, QUEUE)
def test_fields_that_were_looked_at_are_what_is_sent(
    prepared: PreparedSend, queue: MessageQueue
) -> None:
    """A hook that signs adds fields to the map it is shown (W 6.2)."""
    quick = prepared.command(queue)
    expected = special(prepared).command(queue).ext_fields
    fields = quick.ext_fields
    assert fields is not None
    assert fields == expected
    fields["Signature"] = "s"
    assert decode_frame(quick.frame()[4:]).ext_fields == {**expected, "Signature": "s"}
    quick.ext_fields = None
    assert decode_frame(quick.frame()[4:]).ext_fields == {}


def test_flag_and_serialize_type_count() -> None:
    """One-way sends and binary headers are written as any other request."""
    prepared = send(SendRequests("g", "TBW102", 4))
    for oneway in (False, True):
        for kind in SerializeType:
            quick = prepared.command(ONE)
            general = special(send(SendRequests("g", "TBW102", 4))).command(ONE)
            for each in (quick, general):
                each.flag = FLAG_ONEWAY if oneway else 0
                each.serialize_type = kind
            assert quick.frame() == general.frame()


def test_a_frame_of_just_the_maximum_is_made() -> None:
    requests = SendRequests("g", "TBW102", 4)
    room = limits.FRAME_BYTES_MAX - len(send(requests, b"").command(ONE).frame())
    whole = send(requests, bytes(room)).command(ONE).frame()
    assert len(whole) == limits.FRAME_BYTES_MAX
    over = limits.FRAME_BYTES_MAX + 1
    with pytest.raises(LocalProtocolError, match=f"a frame of {over} bytes is over"):
        send(requests, bytes(room + 1)).command(ONE).frame()


# --- answers --------------------------------------------------------------------------------------

APACHE_4 = (
    '{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    '"msgId":"%s","queueOffset":"%d"},"flag":1,"language":"JAVA","opaque":%d,'
    '"serializeTypeCurrentRPC":"JSON","version":401}'
)
APACHE_5 = (
    '{"code":0,"extFields":{"queueId":"%d","transactionId":"0A0B","TRACE_ON":"false",'
    '"MSG_REGION":"eu (1)","msgId":"%s","queueOffset":"%d"},"flag":1,"language":"JAVA",'
    '"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":505}'
)
OURS = (
    '{"opaque":%d,"code":0,"extFields":{"msgId":"%s","queueId":"%d","queueOffset":"%d"},'
    '"flag":1,"language":"PYTHON","version":401}'
)
ID = "7F00000100002A9F00000000000F4240"


def frame(header: str, body: bytes = b"") -> bytes:
    data = header.encode()
    return struct.pack(">iI", 4 + len(data) + len(body), len(data)) + data + body


def values(command: RemotingCommand) -> dict[str, object]:
    return {name: getattr(command, name) for name in RemotingCommand.__slots__}


def decoder_of(header: str) -> AnswerDecoder:
    """A decoder that has seen an answer."""
    decoder = AnswerDecoder(limits.FRAME_BYTES_MAX, limits.FRAME_BYTES_MAX, limits.FRAME_BYTES_MAX)
    (answer,) = decoder.feed(frame(header))
    assert not isinstance(answer, StoredAnswer)
    return decoder


def is_learned(header: str) -> bool:
    """Whether a second answer like the first is read by its places."""
    (answer,) = decoder_of(header).feed(frame(header))
    assert values(answer) == values(decode_frame(frame(header)[4:]))
    return isinstance(answer, StoredAnswer)


def test_the_longest_answer_that_is_learned_has_1024_bytes() -> None:
    """A longer one is read the general way each time: its pattern would be as long."""
    usual = json.loads(APACHE_4 % (3, ID, 4, 5))
    for size, expected in ((ANSWER_BYTES_MAX, True), (ANSWER_BYTES_MAX + 1, False)):
        ext = {**usual["extFields"], "MSG_REGION": ""}
        bare = len(frame(json.dumps({**usual, "extFields": ext}, separators=(",", ":"))))
        ext["MSG_REGION"] = "r" * (size - bare)
        whole = json.dumps({**usual, "extFields": ext}, separators=(",", ":"))
        assert len(frame(whole)) == size
        assert is_learned(whole) == expected


@given(
    st.integers(0, 999_999_999),
    st.integers(0, 10**18 - 1),
    st.integers(0, 2**31 - 1),
    st.lists(st.integers(0, 2**128 - 1).map("{:032X}".format), min_size=1, max_size=3),
)
def test_it_reads_what_the_general_way_reads(
    queue_id: int, offset: int, opaque: int, ids: list[str]
) -> None:
    """Of both generations of brokers and any order of fields; of batches too."""
    text = ",".join(ids)
    for header, given_values in (
        (APACHE_4, (queue_id, text, offset, opaque)),
        (APACHE_5, (queue_id, text, offset, opaque)),
        (OURS, (opaque, text, queue_id, offset)),
    ):
        decoder = decoder_of(header % ((7, ID, 3, 9) if header is not OURS else (9, ID, 7, 3)))
        whole = frame(header % given_values)
        quick, same = decoder.feed(whole + whole)
        general = decode_frame(whole[4:])
        assert isinstance(quick, StoredAnswer)
        prepared = send(SendRequests("g", "TBW102", 4))
        assert prepared.result(quick, ONE, "b:1") == prepared.result(general, ONE, "b:1")
        assert values(quick) == values(general)
        assert prepared.result(same, ONE, "b:1") == prepared.result(quick, ONE, "b:1")


def test_an_answer_that_somebody_changed_is_read_as_changed() -> None:
    """A hook that sees answers may write into them."""
    (answer,) = decoder_of(APACHE_4 % (1, ID, 2, 3)).feed(frame(APACHE_4 % (1, ID, 2, 3)))
    prepared = send(SendRequests("g", "TBW102", 4))
    (answer.ext_fields or {})["queueOffset"] = "77"
    assert prepared.result(answer, ONE, "b:1").queue_offset == 77
    answer.code = 10
    assert prepared.result(answer, ONE, "b:1").send_status is SendStatus.FLUSH_DISK_TIMEOUT


@pytest.mark.parametrize("size", [1, 3, 7, 100, 500])
def test_however_bytes_arrive_the_answers_are_the_same(size: int) -> None:
    decoder = decoder_of(APACHE_4 % (1, ID, 2, 3))
    data = b"".join(
        [frame(APACHE_4 % (n, ID, n, n)) for n in range(5)]
        + [frame('{"code":1,"flag":1,"language":"JAVA","opaque":9,"version":401}', b"body")]
        + [frame(APACHE_4 % (n, ID, n, n)) for n in range(5)]
    )
    got = [c for at in range(0, len(data), size) for c in decoder.feed(data[at : at + size])]
    assert [c.opaque for c in got] == [0, 1, 2, 3, 4, 9, 0, 1, 2, 3, 4]
    assert decoder.bytes_pending == 0


@pytest.mark.parametrize(
    "changed",
    [
        frame(APACHE_4.replace('"code":0', '"code":1') % (1, ID, 2, 3)),
        frame(APACHE_4 % (1, ID, 2, 3), b"body"),
        frame(APACHE_4.replace('"version', '"remark":"x","version') % (1, ID, 2, 3)),
        frame(APACHE_4 % (1, ID, -2, 3)),
        frame(APACHE_4 % (1, "it's", 2, 3)),
        frame(APACHE_4.replace("DefaultRegion", "Default_egion") % (1, ID, 2, 3)),
    ],
)
def test_whatever_else_an_answer_says_is_read_the_general_way(changed: bytes) -> None:
    """Another code, a body, a remark, odd numbers, another way to write the header."""
    (answer,) = decoder_of(APACHE_4 % (1, ID, 2, 3)).feed(changed)
    assert not isinstance(answer, StoredAnswer)
    assert values(answer) == values(decode_frame(changed[4:]))


@pytest.mark.parametrize(
    "changed",
    [
        frame(APACHE_4 % (1, ID, 2, 10**10)),
        frame(APACHE_4 % (1, ID, 2, 2**31)),
        b"\x00\x00\x01\x00\x01" + frame(APACHE_4 % (1, ID, 2, 3))[5:] + bytes(200),
    ],
)
def test_nonsense_in_the_known_form_is_refused_as_ever(changed: bytes) -> None:
    """An opaque id that is none, and lengths that contradict each other."""
    with pytest.raises(Exception) as general:
        decode_frame(changed[4:])
    with pytest.raises(type(general.value)):
        decoder_of(APACHE_4 % (1, ID, 2, 3)).feed(changed)


@pytest.mark.parametrize(
    "header",
    [
        APACHE_4.replace('"code":0', '"code":10') % (1, ID, 2, 3),
        APACHE_4.replace('"flag":1', '"flag":3') % (1, ID, 2, 3),
        APACHE_4.replace('"version', '"remark":"","version') % (1, ID, 2, 3),
        APACHE_4.replace('"TRACE_ON"', '"recallHandle"') % (1, ID, 2, 3),
        APACHE_4.replace('"queueOffset"', '"offset"') % (1, ID, 2, 3),
        APACHE_4.replace("DefaultRegion", "x" * 2_000) % (1, ID, 2, 3),
        APACHE_4 % (1, "not hex", 2, 3),
        '{"code":0,"flag":1,"language":"JAVA","opaque":3,"version":401}',
    ],
)
def test_nothing_is_learnt_of_an_answer_that_is_not_usual(header: str) -> None:
    assert not is_learned(header)


def test_a_region_that_looks_like_a_number_does_not_mislead() -> None:
    is_learned(APACHE_4.replace("DefaultRegion", '\\"opaque\\":3') % (1, ID, 2, 3))


def test_a_server_that_changes_its_form_all_the_time_is_not_learned_from_for_ever() -> None:
    """Each form costs a pattern."""
    reader = AnswerReader()
    learned = []
    for number in range(40):
        whole = bytearray(frame(APACHE_4.replace("DefaultRegion", f"r{number}") % (1, ID, 2, 3)))
        reader.decode(whole, 0, len(whole))
        learned.append(type(reader.decode(whole, 0, len(whole))) is StoredAnswer)
    assert learned == [True] * 32 + [False] * 8

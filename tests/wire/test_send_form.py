"""Headers of usual sends recognised by their fixed places: what the general way says, or none."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketstream.model import MessageQueue
from rocketstream.protocol import plain_json
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import (
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.sends import PreparedSend, SendRequests
from rocketstream.protocol.usual_sends import read_lane, send_matcher, stored_properties
from tests.wire.frames import decode_frame

CLUSTER = "Default%Cluster"
MATCH = send_matcher(["CLUSTER", "DELAY"])
NAMES = ("KEYS", "UNIQ_KEY", "WAIT", "TAGS", "trace.id")
JAVA = (
    b'{"code":310,"extFields":{"a":"grp","b":"T1","c":"TBW102","d":"4","e":"3","f":"0",'
    b'"g":"1700000000000","h":"7","i":"KEYS\\u0001k1 k2\\u0002UNIQ_KEY\\u00010A\\u0002WAIT\\u0001'
    b'true\\u0002TAGS\\u0001A","j":"0","k":"false","l":"0","m":"false"},"flag":0,"language":"JAVA",'
    b'"opaque":12,"serializeTypeCurrentRPC":"JSON","version":401}'
)
VALUES = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x2FF), max_size=6)


def general(header: bytes) -> tuple[object, ...]:
    """What the general way reads of a header, and stores of its properties."""
    command = decode_frame(len(header).to_bytes(4, "big") + header)
    ext = command.ext_fields or {}
    send = SendMessageRequestHeader.from_ext_v2(ext)
    properties = decode_properties(send.properties or "")
    stored = {**properties, "CLUSTER": CLUSTER}
    stored.pop("WAIT", None)
    is_usual = not send.batch and not send.reconsume_times and command.code == 310
    assert is_usual, "a form took what is no usual send"
    assert properties.get("WAIT", "true") == "true"
    return (
        (send.topic, send.queue_id, send.sys_flag), send.born_timestamp, send.flag,
        encode_properties(stored).encode(), properties.get("TAGS"), properties.get("KEYS"),
        properties.get("UNIQ_KEY"), command.flag, command.opaque,
    )  # fmt: skip


def quick(header: bytes) -> tuple[object, ...] | None:
    """The same as it is read quickly; None where it is left to the general way."""
    found = MATCH(b"before" + header + b"behind", 6, 6 + len(header))
    if found is None:
        return None
    groups = found.groups()
    keys = [value and value.decode() for value in groups[4:7]]
    return (
        read_lane(groups[0]), int(groups[1]), int(groups[2]),
        stored_properties(groups[3], f"\x02CLUSTER\x01{CLUSTER}".encode()),
        keys[2], keys[1], keys[0], int(groups[7]), int(groups[8]),
    )  # fmt: skip


def test_what_java_writes_is_taken() -> None:
    assert quick(JAVA) == general(JAVA)


def test_message_without_properties_is_taken() -> None:
    text = JAVA[JAVA.index(b'"i":"') + 5 : JAVA.index(b'","j"')]
    header = JAVA.replace(text, b"")
    assert quick(header) == general(header) is not None


def test_what_our_client_writes_is_taken() -> None:
    text = encode_properties({"UNIQ_KEY": "0A", "WAIT": "true"})
    requests = SendRequests("g", "TBW102", 4)
    prepared = PreparedSend(requests, "T1", b"", text, "id", 1_700_000_000_000, 0, 1)
    header = prepared.command(MessageQueue("T1", "b", 3)).frame()[8:]
    assert quick(header) == general(header) is not None


@given(st.dictionaries(st.sampled_from(NAMES), VALUES), VALUES, st.integers(-2, 2**31 - 1))
@example({"KEYS": 'a"b'}, "T1", 1)
@example({"KEYS": "a\\b", "TAGS": "ü"}, "T1", 1)
@example({"KEYS": "a\x01b\x02TAGS\x01c"}, "T1", 1)
@example({"WAIT": "false"}, "T1", 1)
def test_a_quick_reader_says_what_the_general_way_says(
    properties: dict[str, str], topic: str, number: int
) -> None:
    text = encode_properties(properties)
    send = SendMessageRequestHeader(
        "g", topic, "TBW102", 4, abs(number) % 2000, number & 3, abs(number), number & 1023, text
    )
    command = {
        "code": 310, "extFields": send.to_ext_v2(), "flag": number & 2, "language": "JAVA",
        "opaque": number, "serializeTypeCurrentRPC": "JSON", "version": 401,
    }  # fmt: skip
    header = plain_json.dumps(command)
    read = quick(header)
    assert read is None or read == general(header)
    plain = all(
        v.isascii() and v.isprintable() and v and not {*v} & {*'"\\'} for v in properties.values()
    )
    is_usual = properties.get("WAIT", "true") == "true" and topic.isascii() and topic.isprintable()
    if plain and is_usual and topic and not {*topic} & {*'"\\'} and abs(number) < 999:
        assert read is not None or number < 0


@pytest.mark.parametrize("byte", [b'"', b"\\", b"\x01", b"0", b"-", b",", b"\xc3", b" ", b"{"])
def test_a_header_with_one_byte_wrong_is_read_as_the_general_way_reads_it(byte: bytes) -> None:
    taken = 0
    for at in range(len(JAVA)):
        for damaged in (JAVA[:at] + byte + JAVA[at + 1 :], JAVA[:at] + byte + JAVA[at:]):
            read = quick(damaged)
            if read is not None:
                taken += 1
                assert read == general(damaged), damaged
    assert taken or byte not in (b"0", b" ")


def test_a_second_field_of_the_same_name_is_left_to_the_general_way() -> None:
    for text in (b'"h":"7"', b'"k":"false"', b'"flag":0', b'"b":"T1"', b'"l":"0"', b'"m":"false"'):
        assert quick(JAVA.replace(text, text + b"," + text)) is None
    assert quick(JAVA.replace(b'"m":"false"', b'"m":"true"')) is None
    assert quick(JAVA.replace(b'"j":"0"', b'"j":"1"')) is None


@pytest.mark.parametrize(
    "text",
    [
        rb"a",
        rb"a\u0001",
        rb"\u0001b",
        rb"a\u0001b\u0001c",
        rb"a\u0001b\u0002\u0002",
        rb"\u0002a\u0001b",
        rb"a\u0001b\u0003",
        rb"a\u0001b\\",
        rb"a\u0001\\u0001",
        rb"a\u0001\n",
        rb"WAIT\u0001truest",
        rb"WAIT\u0001false",
        rb"DELAY\u00010",
        rb"CLUSTER\u0001c",
        rb"a\u0001b\u0002DELAY\u00011",
        rb"TAGS\u0001",
        rb"TAGS\u0001a\u0001b",
    ],
)
def test_properties_in_doubt_are_left_to_the_general_way(text: bytes) -> None:
    written = JAVA[JAVA.index(b'"i":"') + 5 : JAVA.index(b'","j"')]
    assert quick(JAVA.replace(written, text)) is None


@pytest.mark.parametrize(
    "text",
    [
        rb"a\u0001b\u0002",
        rb"xWAIT\u0001true\u0002WAITS\u0001true\u0002a\u0001WAIT",
        rb"WAIT\u0001true",
        rb"WAIT\u0001true\u0002",
        rb"a\u0001b\u0002WAIT\u0001true\u0002",
        rb"DELAYED\u00010\u0002UNIQ_KEYS\u0001a\u0002XTAGS\u0001b\u0002KEYS \u0001c",
    ],
)
def test_names_that_only_look_like_others_are_read_as_they_are(text: bytes) -> None:
    written = JAVA[JAVA.index(b'"i":"') + 5 : JAVA.index(b'","j"')]
    header = JAVA.replace(written, text)
    assert quick(header) == general(header) is not None


def test_of_a_property_given_twice_the_last_counts() -> None:
    header = JAVA.replace(b"TAGS", b"KEYS")
    read, expected = quick(header), general(header)
    assert read is not None
    assert read[4:7] == expected[4:7] == (None, "A", "0A")
    assert isinstance(read[3], bytes)
    assert isinstance(expected[3], bytes)
    assert decode_properties(read[3]) == decode_properties(expected[3])


def test_the_frame_of_a_run_is_that_of_the_general_way() -> None:
    from rocketstream.protocol.command import RemotingCommand
    from rocketstream.protocol.usual_sends import SendAnswer, SendAnswerPlan

    plan = SendAnswerPlan('r%"x')
    frames = plan.frames(b"7F00", [(255, 9), (256, 10), (1, 2)],
                         [(3, b"12", True), (0, b"13", False), (4, b"14", True)])  # fmt: skip
    expected = b""
    for opaque, msg_id, queue_id, offset in ((12, "00FF", 3, 9), (14, "0001", 4, 2)):
        answer = SendAnswer(plan, "7F00" + msg_id.rjust(16, "0"), queue_id, offset)
        expected += RemotingCommand(310, opaque).answer(answer).frame()
    assert frames == expected

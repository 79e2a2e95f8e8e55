"""Frames of both header codecs, whole and in pieces (wire-and-storage 1.1, 1.2, 7.1)."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import limits
from rocketstream.errors import (
    FrameTooLargeError,
    LocalProtocolError,
    MalformedFrameError,
    RemoteProtocolError,
)
from rocketstream.protocol import framing
from rocketstream.protocol.codes import LanguageCode, RequestCode, SerializeType
from rocketstream.protocol.command import OversizedCommand, RemotingCommand
from rocketstream.protocol.framing import (
    FrameDecoder,
    decode_frame_within,
)
from rocketstream.protocol.headers import GetRouteInfoRequestHeader, PullMessageResponseHeader
from tests.kits import vectors
from tests.wire.frames import decode_frame
from tests.wire.strategies import BINARY_EXT, EXT, INT32, TEXT


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """Return a frame around a header of any bytes."""
    word = kind << 24 | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


def same(left: RemotingCommand, right: RemotingCommand) -> bool:
    """Tell whether two commands hold the same values."""
    return all(getattr(left, name) == getattr(right, name) for name in RemotingCommand.__slots__)


def send_command(kind: SerializeType) -> RemotingCommand:
    """Return the command of the golden send frames."""
    return RemotingCommand(
        RequestCode.SEND_MESSAGE_V2,
        9,
        0,
        LanguageCode.JAVA,
        409,
        None,
        dict(vectors.SEND_V2_EXT),
        b"hi",
        kind,
    )


FRAMES = {
    "send json": vectors.SEND_V2_JSON,
    "send binary": vectors.SEND_V2_BINARY,
    "minimal response": vectors.MINIMAL_RESPONSE,
    "binary response": frame(vectors.BINARY_RESPONSE_HEADER, kind=1),
}


@pytest.mark.parametrize("kind", list(SerializeType))
def test_send_frame_is_byte_equal_to_java(kind: SerializeType) -> None:
    golden = vectors.SEND_V2_JSON if kind is SerializeType.JSON else vectors.SEND_V2_BINARY
    assert send_command(kind).frame() == golden
    assert same(decode_frame(golden[4:]), send_command(kind))


def test_minimal_response_is_byte_equal_to_java() -> None:
    command = RemotingCommand(0, 9, 1, LanguageCode.JAVA)
    assert command.frame() == vectors.MINIMAL_RESPONSE
    decoded = decode_frame(vectors.MINIMAL_RESPONSE[4:])
    assert decoded.is_response
    assert decoded.ext_fields is None
    assert decoded.remark is None
    assert decoded.body == b""


def test_binary_response_without_remark_and_ext_has_21_bytes() -> None:
    decoded = decode_frame(FRAMES["binary response"][4:])
    assert (decoded.code, decoded.version, decoded.opaque, decoded.flag) == (0, 409, 1001, 1)
    assert (decoded.remark, decoded.ext_fields) == (None, None)
    assert decoded.frame() == FRAMES["binary response"]


@pytest.mark.parametrize("name", list(FRAMES))
def test_frame_split_at_each_byte_decodes_the_same(name: str) -> None:
    data = FRAMES[name]
    whole = decode_frame(data[4:])
    for cut in range(len(data) + 1):
        decoder = FrameDecoder()
        commands = decoder.feed(data[:cut]) + decoder.feed(data[cut:])
        assert len(commands) == 1
        assert same(commands[0], whole)
        assert decoder.bytes_pending == 0


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
def test_a_frame_in_the_middle_of_a_buffer_is_read_and_the_buffer_free_again(data: bytes) -> None:
    """What the command keeps is a copy: the next frames overwrite the place."""
    buffer = bytearray(b"before" + data + b"behind")
    command = decode_frame_within(buffer, 10, 6 + len(data))
    buffer[:] = bytes(len(buffer))
    buffer.clear()
    assert same(command, decode_frame(data[4:]))
    assert type(command.body) is bytes


def test_frames_fed_byte_by_byte_come_out_in_order() -> None:
    stream = b"".join(FRAMES.values()) * 2
    decoder = FrameDecoder()
    commands = [c for at in range(len(stream)) for c in decoder.feed(stream[at : at + 1])]
    wanted = [decode_frame(data[4:]) for data in FRAMES.values()] * 2
    assert len(commands) == len(wanted)
    assert all(same(a, b) for a, b in zip(commands, wanted, strict=True))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_feed_takes_any_buffer_and_keeps_no_hold_on_it(kind: type) -> None:
    source = bytearray(vectors.SEND_V2_JSON + vectors.SEND_V2_BINARY[:50])
    decoder = FrameDecoder()
    (command,) = decoder.feed(kind(source))
    source[:] = b"\0" * len(source)
    assert command.body == b"hi"
    (second,) = decoder.feed(kind(vectors.SEND_V2_BINARY[50:]))
    assert second.ext_fields == vectors.SEND_V2_EXT


@given(st.data())
def test_stream_in_random_pieces_decodes_the_same(data: st.DataObject) -> None:
    stream = b"".join(FRAMES.values())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    commands = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        commands += decoder.feed(stream[start:end])
    wanted = [decode_frame(one[4:]) for one in FRAMES.values()]
    assert len(commands) == len(wanted)
    assert all(same(a, b) for a, b in zip(commands, wanted, strict=True))


@given(INT32, INT32, INT32, INT32, st.none() | TEXT, st.none() | EXT, st.binary(max_size=40))
def test_json_frame_round_trip(
    code: int,
    opaque: int,
    flag: int,
    version: int,
    remark: str | None,
    ext: dict[str, str] | None,
    body: bytes,
) -> None:
    command = RemotingCommand(
        code, opaque, flag, LanguageCode.PYTHON, version, remark, ext, body, SerializeType.JSON
    )
    assert same(decode_frame(command.frame()[4:]), command)


@given(
    st.integers(-(2**15), 2**15 - 1),
    INT32,
    INT32,
    st.integers(0, 255),
    st.integers(-(2**15), 2**15 - 1),
    st.none() | TEXT.filter(bool),
    st.none() | BINARY_EXT.filter(bool),
    st.binary(max_size=40),
)
def test_binary_frame_round_trip(
    code: int,
    opaque: int,
    flag: int,
    language: int,
    version: int,
    remark: str | None,
    ext: dict[str, str] | None,
    body: bytes,
) -> None:
    command = RemotingCommand(
        code, opaque, flag, language, version, remark, ext, body, SerializeType.ROCKETMQ
    )
    assert same(decode_frame(command.frame()[4:]), command)


def test_own_commands_announce_python_and_4_9_8() -> None:
    """covers W 1.5: a Python peer announces 409; W 1.4: responses carry the own version."""
    request = RemotingCommand.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader("T")
    )
    response = request.answer(RemotingCommand.response(0))
    for command in (request, response):
        header = json.loads(command.frame()[8:])
        assert (header["language"], header["version"]) == ("PYTHON", 409)


def test_request_without_header_still_has_an_ext_map() -> None:
    """covers W 1.2: a missing extFields makes several Java processors fail."""
    command = RemotingCommand.request(RequestCode.HEART_BEAT)
    assert command.ext_fields == {}
    assert json.loads(command.frame()[8:])["extFields"] == {}


def test_oneway_flag_is_two_and_response_flag_one() -> None:
    oneway = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True)
    assert (oneway.flag, oneway.is_oneway, oneway.is_response) == (2, True, False)
    response = RemotingCommand.response(0)
    assert (response.flag, response.is_oneway, response.is_response) == (1, False, True)


def test_answer_takes_opaque_and_serialize_type_of_the_request() -> None:
    request = decode_frame(vectors.SEND_V2_BINARY[4:])
    header = PullMessageResponseHeader(0, 4, 0, 4)
    response = request.answer(RemotingCommand.response(19, "OFFSET_OVERFLOW_ONE", header, b"body"))
    assert (response.opaque, response.serialize_type) == (9, SerializeType.ROCKETMQ)
    decoded = decode_frame(response.frame()[4:])
    assert (decoded.code, decoded.remark, decoded.body) == (19, "OFFSET_OVERFLOW_ONE", b"body")
    assert decoded.ext_fields == vectors.PULL_RESPONSE_EXT


@pytest.mark.parametrize("kind", list(SerializeType))
def test_frame_head_and_body_parts_make_the_whole_frame(kind: SerializeType) -> None:
    command = send_command(kind)
    command.body = b""
    head = command.frame_head(2)
    command.body = memoryview(b"hi")
    assert head + b"hi" == command.frame()


# --- what Java's reader tolerates (wire-and-storage 1.2) ---------------------------------------


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (b'{"code":1,"opaque":2}', LanguageCode.JAVA),
        (b'{"code":1,"opaque":2,"language":null}', LanguageCode.JAVA),
        (b'{"code":1,"opaque":2,"language":"CPP"}', LanguageCode.CPP),
        (b'{"code":1,"opaque":2,"language":"cpp"}', LanguageCode.CPP),
        (b'{"code":1,"opaque":2,"language":3}', LanguageCode.PYTHON),
        (b'{"code":1,"opaque":2,"language":"KLINGON"}', LanguageCode.OTHER),
        (b'{"code":1,"opaque":2,"language":99}', LanguageCode.OTHER),
        (b'{"code":1,"opaque":2,"language":[]}', LanguageCode.OTHER),
    ],
)
def test_any_language_is_accepted(header: bytes, language: int) -> None:
    command = decode_frame(frame(header)[4:])
    assert (command.code, command.opaque, command.language) == (1, 2, language)


@pytest.mark.parametrize(
    "header",
    [
        b'{"version":0,"opaque":2,"extFields":{"q":"1","t":"true","d":"1.5"},"code":10,"zz":[{}]}',
        b'{"code":10,"opaque":2,"extFields":{"q":1,"t":true,"d":1.5,"gone":null}}',
        b'{"code":"10","opaque":"2","extFields":{"q":1,"t":true,"d":"1.5"}}',
        b"{'code':10,opaque:2,\"extFields\":{'q':1,t:true,'d':'1.5',},}",
        b' { "code" : 10 , "opaque" : 2 , "extFields" : {"q":"1","t":"true","d":"1.5"} } ',
    ],
)
def test_tolerated_json_headers_read_alike(header: bytes) -> None:
    """Any key order, unknown keys, missing fields, non-text values, fastjson's loose syntax."""
    command = decode_frame(frame(header)[4:])
    assert (command.code, command.opaque, command.flag, command.version) == (10, 2, 0, 0)
    assert command.ext_fields == {"q": "1", "t": "true", "d": "1.5"}


def test_nested_ext_value_becomes_its_json_text() -> None:
    command = decode_frame(frame(b'{"code":1,"extFields":{"a":{"b":[1]}},"remark":5}')[4:])
    assert command.ext_fields == {"a": '{"b":[1]}'}
    assert command.remark == "5"


def test_control_characters_are_escaped_and_text_is_raw_utf8() -> None:
    command = RemotingCommand(1, ext_fields={"i": "键\x01值\x02"})
    data = command.frame()
    assert "键\\u0001值\\u0002".encode() in data
    assert decode_frame(data[4:]).ext_fields == {"i": "键\x01值\x02"}


def test_empty_binary_ext_value_is_lost_as_in_java() -> None:
    command = RemotingCommand(
        1, ext_fields={"empty": "", "full": "x"}, serialize_type=SerializeType.ROCKETMQ
    )
    assert decode_frame(command.frame()[4:]).ext_fields == {"full": "x"}


def test_unknown_binary_language_code_is_kept() -> None:
    data = bytearray(FRAMES["binary response"])
    data[10] = 77
    assert decode_frame(bytes(data[4:])).language == 77


def test_unknown_language_is_written_as_other_in_json() -> None:
    assert b'"language":"OTHER"' in RemotingCommand(1, language=77).frame()


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        bytes.fromhex("00000005") + b"{}",
        b"\x02\0\0\0",
        frame(b"")[4:],
        frame(b"[]")[4:],
        frame(b"null")[4:],
        frame(b"{")[4:],
        frame(b"\xff\xfe")[4:],
        frame(b'{"code":{}}')[4:],
        frame(b'{"code":"x"}')[4:],
        frame(b'{"code":true}')[4:],
        frame(b'{"code":2147483648}')[4:],
        frame(b'{"code":1,"opaque":1e400}')[4:],
        frame(b'{"code":1,"opaque":99999999999999999999}')[4:],
        frame(b'{"code":1,"extFields":[]}')[4:],
        frame(b'{"code":1,"extFields":"x"}')[4:],
        frame(b"[" * 5000)[4:],
        frame(b'{"a":' * 5000)[4:],
        frame(b'{"code":1,"extFields":{"a":' + b"[" * 100 + b"]" * 100 + b"}}")[4:],
        frame(b"", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:20], kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:13] + b"\xff\xff\xff\xff\0\0\0\0", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:13] + b"\0\0\0\x05\0\0\0\0", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\0\0\0\x05abcd", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\xff\xff\xff\xff", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\0\0\0\x03\0\x01a", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\0\0\0\x02\xff\xff", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\0\0\0\x01\0", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\0\0\0\x08\0\x01a\0\0\0\x02b", kind=1)[4:],
        frame(vectors.BINARY_RESPONSE_HEADER[:17] + b"\0\0\0\x08\0\x01\xff\0\0\0\x01b", kind=1)[4:],
    ],
)
def test_malformed_frame_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode_frame(data)


@pytest.mark.parametrize("length", [-1, -(2**31), limits.FRAME_BYTES_MAX - 3, 2**31 - 1])
def test_length_over_the_maximum_is_refused_before_its_bytes_come(length: int) -> None:
    """covers W 1.1: larger or negative lengths close the connection."""
    with pytest.raises(FrameTooLargeError):
        FrameDecoder().feed(struct.pack(">i", length))


def test_largest_frame_is_accepted() -> None:
    header = b'{"code":1}'
    body = bytes(limits.FRAME_BYTES_MAX - 8 - len(header))
    (command,) = FrameDecoder().feed(frame(header, body))
    assert len(command.body) == len(body)
    command.frame_head(limits.FRAME_BYTES_MAX - 4096)
    with pytest.raises(LocalProtocolError):
        command.frame_head(limits.FRAME_BYTES_MAX)


def test_a_frame_of_just_the_maximum_is_written() -> None:
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1)
    empty = len(command.frame_head(0))
    most = limits.FRAME_BYTES_MAX - empty
    head = command.frame_head(most)
    assert len(head) + most == limits.FRAME_BYTES_MAX
    assert FrameDecoder().feed(head) == []
    with pytest.raises(
        LocalProtocolError, match=f"of {limits.FRAME_BYTES_MAX + 1} bytes is over"
    ) as caught:
        command.frame_head(most + 1)
    assert caught.value.parameters["frame_bytes"] == limits.FRAME_BYTES_MAX + 1


def test_the_size_of_a_frame_is_known_as_far_as_it_came() -> None:
    """``held`` offers what may be read elsewhere, and nothing once the stream is broken."""
    decoder, whole = FrameDecoder(), vectors.SEND_V2_JSON
    assert (decoder.frame_bytes, decoder.bytes_pending) == (0, 0)
    for size, known in ((2, 4), (4, len(whole)), (9, len(whole))):
        decoder = FrameDecoder()
        assert decoder.feed(whole[:size]) == []
        assert (decoder.frame_bytes, decoder.bytes_pending) == (known, size)
    assert len(decoder.feed(whole[9:])) == 1
    assert (decoder.frame_bytes, decoder.bytes_pending) == (0, 0)
    decoder.put(whole)
    assert decoder.held == (whole, 0)
    assert decoder.bytes_pending == len(whole)
    decoder.skip_to(len(whole))
    assert decoder.next() is None
    broken = frame(b"[]")
    decoder.put(broken + whole)
    with pytest.raises(MalformedFrameError):
        decoder.next()
    assert decoder.held == (b"", 0)


@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_a_number_of_a_header_has_32_bits(name: str) -> None:
    fields = {"code": 1, "opaque": 2, "flag": 0, "version": 3, "language": "JAVA"}
    for edge in (2**31 - 1, -(2**31)):
        command = decode_frame(frame(json.dumps({**fields, name: edge}).encode())[4:])
        assert getattr(command, name) == edge
    for over in (2**31, -(2**31) - 1):
        with pytest.raises(MalformedFrameError, match=f"{name} of a command header"):
            decode_frame(frame(json.dumps({**fields, name: over}).encode())[4:])


@pytest.mark.parametrize("length", [0, 3])
def test_length_without_room_for_a_header_is_refused(length: int) -> None:
    with pytest.raises(MalformedFrameError):
        FrameDecoder().feed(struct.pack(">i", length))


def test_decoder_stays_broken_after_an_error() -> None:
    decoder = FrameDecoder()
    with pytest.raises(MalformedFrameError):
        decoder.feed(frame(b"[]"))
    with pytest.raises(MalformedFrameError):
        decoder.feed(vectors.SEND_V2_JSON)


def test_own_frame_maximum_is_kept() -> None:
    decoder = FrameDecoder(frame_bytes_max=len(vectors.SEND_V2_JSON))
    assert len(decoder.feed(vectors.SEND_V2_JSON)) == 1
    with pytest.raises(FrameTooLargeError):
        FrameDecoder(frame_bytes_max=len(vectors.SEND_V2_JSON) - 1).feed(vectors.SEND_V2_JSON)


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(200050, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, remark="\ud800"),
        RemotingCommand(1, remark="\ud800", serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, ext_fields={"a" * 40_000: "b"}, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(1, ext_fields={"a": "b" * 2**24}),
    ],
    ids=["code over 16 bits", "lone surrogate", "lone surrogate binary", "long name", "large"],
)
def test_what_a_header_cannot_carry_is_refused_here(command: RemotingCommand) -> None:
    """covers W 1.2: codes over 32767 cannot travel in binary headers."""
    with pytest.raises(LocalProtocolError):
        command.frame()


def test_repr_names_kind_and_size() -> None:
    assert "request code=310" in repr(decode_frame(vectors.SEND_V2_JSON[4:]))
    assert "response" in repr(RemotingCommand.response(0))
    assert "oneway" in repr(RemotingCommand.request(34, oneway=True))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"\0\x01a\0\0\0", "ext name of 1 bytes is longer"),
        (b"\0\x01a\0\0\0\0", None),
        (b"\0\0\0\0\0\0", None),
        (b"\0\x01a\0\0\0\x01v", None),
        (b"\0\x01a\0\0\0\x02v", "ext value of 2 bytes is longer"),
        (b"\0\x01a\xff\xff\xff\xff", "ext value of -1 bytes is longer"),
        (b"\xff\xff\0\0\0\0\0\0", "ext name of -1 bytes is longer"),
    ],
)
def test_names_and_values_of_a_binary_block_end_within_it(block: bytes, text: str | None) -> None:
    """Whatever follows the block in its header."""
    length = len(block).to_bytes(4, "big")
    header = vectors.BINARY_RESPONSE_HEADER[:17] + length + block + b"\0" * 9
    if text is None:
        assert decode_frame(frame(header, kind=1)[4:]).code == 0
    else:
        with pytest.raises(MalformedFrameError, match=text):
            decode_frame(frame(header, kind=1)[4:])


@pytest.mark.parametrize(
    ("size", "text"), [(-1, "remark of -1 bytes is longer"), (5, "remark of 5 bytes is longer")]
)
def test_a_remark_of_a_binary_header_ends_within_it(size: int, text: str) -> None:
    """With the length of the block behind it."""
    header = vectors.BINARY_RESPONSE_HEADER[:13] + struct.pack(">i", size) + b"\0" * 8
    with pytest.raises(MalformedFrameError, match=text):
        decode_frame(frame(header, kind=1)[4:])
    header = vectors.BINARY_RESPONSE_HEADER[:13] + struct.pack(">i", 4) + b"text" + b"\0" * 4
    assert decode_frame(frame(header, kind=1)[4:]).remark == "text"


@pytest.mark.parametrize("kind", SerializeType)
def test_a_frame_has_as_many_fields_as_it_may(kind: SerializeType) -> None:
    ext = {f"f{number}": "1" for number in range(limits.HEADER_FIELDS_MAX)}
    made = RemotingCommand(1, ext_fields=ext, serialize_type=kind).frame()
    assert decode_frame(made[4:]).ext_fields == ext
    numbers = json.dumps({"code": 1, "extFields": dict.fromkeys(ext, 1)}).encode()
    assert decode_frame(frame(numbers)[4:]).ext_fields == ext


def test_truth_values_are_no_numbers_of_a_header() -> None:
    header = b'{"code":true,"opaque":true,"flag":true,"version":true,"language":"JAVA"}'
    with pytest.raises(MalformedFrameError):
        decode_frame(frame(header)[4:])


# --- the quick way --------------------------------------------------------------------------------


def unreadable(*_: object) -> object:
    raise AssertionError("the tolerant reader was asked")


@pytest.mark.parametrize(
    "ext",
    [None, {}, {"a": "b", "c": ""}, {f"f{n}": "" for n in range(limits.HEADER_FIELDS_MAX)}],
    ids=["none", "empty", "two", "most"],
)
@pytest.mark.parametrize("remark", [None, "", "text"])
@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_a_usual_header_is_read_without_the_tolerant_reader(
    name: str, remark: str | None, ext: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is most of what reading a small frame costs; the greatest number is usual too."""
    command = RemotingCommand(1, 2, 1, LanguageCode.JAVA, 3, remark, ext)
    setattr(command, name, 2**31 - 1)
    monkeypatch.setattr(framing, "_decode_unusual_json", unreadable)
    assert same(decode_frame(command.frame()[4:]), command)


@pytest.mark.parametrize("kind", SerializeType)
def test_a_header_has_as_many_bytes_as_it_may(kind: SerializeType) -> None:
    made = send_command(kind).frame()
    size = len(made) - 8 - len(b"hi")
    assert len(FrameDecoder(header_bytes_max=size).feed(made)) == 1
    with pytest.raises(MalformedFrameError, match=f"a header of {size} bytes is over the maximum"):
        FrameDecoder(header_bytes_max=size - 1).feed(made)


def test_the_head_of_a_frame_with_a_great_body_is_judged_when_it_is_there() -> None:
    """Not when the first byte of the body comes: that may take as long as the peer likes."""
    decoder = FrameDecoder(body_bytes_max=10)
    with pytest.raises(MalformedFrameError, match="not JSON"):
        decoder.feed(struct.pack(">iI", 1_000, 0))
    header = RemotingCommand(1, 7).frame_head(1_000)
    decoder = FrameDecoder(body_bytes_max=10)
    assert decoder.feed(header[:-1]) == []
    assert decoder.feed(header[-1:]) == []
    assert (decoder.bytes_pending, decoder.frame_bytes) == (0, 0)
    (command,) = decoder.feed(bytes(1_000))
    assert isinstance(command, OversizedCommand)
    assert (command.opaque, command.body_bytes) == (7, 1_000)


def test_a_frame_of_four_bytes_has_a_header_length_and_no_header() -> None:
    with pytest.raises(MalformedFrameError, match="header is not JSON"):
        decode_frame(bytes(4))


@pytest.mark.parametrize("length", [0, 3, -1, limits.FRAME_BYTES_MAX - 3])
def test_a_length_is_judged_with_its_fourth_byte(length: int) -> None:
    """Its sender need not send more for the connection to be closed."""
    assert FrameDecoder().feed(struct.pack(">i", 4)) == []
    decoder, data = FrameDecoder(), struct.pack(">i", length)
    assert decoder.feed(data[:3]) == []
    with pytest.raises(RemoteProtocolError, match=f"a frame length of {length} "):
        decoder.feed(data[3:])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_was_put_is_kept_until_it_is_read(kind: type) -> None:
    """Whatever becomes of the buffer it came in, and however much more comes."""
    one, other = vectors.SEND_V2_JSON, vectors.SEND_V2_BINARY
    source, decoder = bytearray(one + other[:50]), FrameDecoder()
    decoder.put(kind(source))
    source[:] = bytes(len(source))
    decoder.put(kind(other[50:] + one))
    decoder.put(kind(other[:9]))
    found = [decoder.next() for _ in range(3)]
    assert [each.serialize_type for each in found if each] == [0, 1, 0]
    assert all(each and each.ext_fields == vectors.SEND_V2_EXT for each in found)
    assert (decoder.next(), decoder.bytes_pending) == (None, 9)
    decoder.put(other[9:] + one)
    decoder.skip_to(len(other))
    assert decoder.bytes_pending == len(one)
    decoder.put(other)
    assert [each.serialize_type for each in decoder.feed(b"")] == [0, 1]

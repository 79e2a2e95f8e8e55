"""What one text or header may cost whoever reads it: bounds by size and by count, not by luck."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable

import pytest

from rocketstream import limits
from rocketstream.errors import MalformedFrameError, RemoteProtocolError
from rocketstream.protocol import fastjson, plain_json
from rocketstream.protocol.bodies import (
    Body,
    DataVersion,
    HeartbeatData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketstream.protocol.command import OversizedCommand, RemotingCommand
from rocketstream.protocol.framing import (
    FrameDecoder,
    decode_frame_within,
)
from tests.kits.registrations import compressed
from tests.plugins.steps import drained
from tests.wire.frames import decode_frame


def json_frame(header: bytes) -> bytes:
    return struct.pack(">I", len(header)) + header


def header_with(fields: str) -> bytes:
    text = f'{{"code":1,"opaque":1,"flag":0,"version":1,"language":"JAVA","extFields":{fields}}}'
    return text.encode()


def unreadable(*_: object) -> object:
    raise AssertionError("the tolerant reader was asked")


def test_header_over_its_bound_is_refused_before_it_is_read() -> None:
    """The header says how long it is; nothing of it is parsed when that is too much."""
    header = b" " * (limits.HEADER_BYTES_MAX + 1)
    decoder = FrameDecoder(header_bytes_max=limits.HEADER_BYTES_MAX)
    frame = struct.pack(">i", len(header) + 4) + json_frame(header)
    with pytest.raises(MalformedFrameError, match="header of 262145 bytes is over the maximum"):
        decoder.feed(frame)


def test_header_with_the_longest_properties_is_read() -> None:
    """32,767 bytes of properties fit however they are written in JSON."""
    command = RemotingCommand.request(310)
    command.ext_fields = {"i": "\x01" * limits.PROPERTIES_BYTES_MAX, "b": "x" * 127}
    decoder = FrameDecoder(header_bytes_max=limits.HEADER_BYTES_MAX)
    (read,) = decoder.feed(command.frame())
    assert read.ext_fields == command.ext_fields


def test_answer_to_the_greatest_batch_is_longer_than_any_request() -> None:
    """It names each message by 32 characters in its header."""
    answer = RemotingCommand.response(0)
    answer.ext_fields = {"msgId": ",".join(["0" * 32] * limits.BATCH_MESSAGES_MAX)}
    frame = answer.frame()
    assert len(frame) > limits.HEADER_BYTES_MAX
    (read,) = FrameDecoder().feed(frame)
    assert read.ext_fields == answer.ext_fields


def test_long_header_that_is_no_json_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of 1 MiB that was no JSON took 1.8 s."""
    monkeypatch.setattr(fastjson, "_Reader", unreadable)
    with pytest.raises(MalformedFrameError, match="too long to be read as fastjson's dialect"):
        decode_frame(json_frame(b"{" + b"a:1," * 5_000 + b"}"))


def test_short_header_in_the_dialect_is_read() -> None:
    """Covers W 3.1: single quotes, bare names and trailing commas are fastjson's."""
    command = decode_frame(json_frame(b"{code:34,'opaque':7,flag:0,version:1,extFields:{a:'b',},}"))
    assert (command.code, command.opaque, command.ext_fields) == (34, 7, {"a": "b"})


@pytest.mark.parametrize("value", ['"x"', "1", "{}"])
def test_header_of_too_many_fields_is_refused(value: str) -> None:
    fields = ",".join(f'"f{n}":{value}' for n in range(limits.HEADER_FIELDS_MAX + 1))
    with pytest.raises(MalformedFrameError, match="more than the maximum of 1024 fields"):
        decode_frame(json_frame(header_with(f"{{{fields}}}")))


def test_binary_header_of_too_many_fields_is_refused() -> None:
    pair = struct.pack(">h", 1) + b"a" + struct.pack(">i", 1) + b"b"
    ext = pair * (limits.HEADER_FIELDS_MAX + 1)
    header = struct.pack(">hBhiiii", 1, 0, 1, 1, 0, 0, len(ext)) + ext
    with pytest.raises(MalformedFrameError, match="more than the maximum of 1024 fields"):
        decode_frame(struct.pack(">I", 1 << 24 | len(header)) + header)


def test_great_frame_is_copied_once() -> None:
    """A frame of 16 MiB was copied twice when its last piece came, in one go."""
    command = RemotingCommand.request(10, body=b"x" * (limits.FRAME_BYTES_MAX - 4096))
    frame = command.frame()
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for start in range(0, len(frame), 262_144):
            assert decoder.next() is None
            decoder.put(frame[start : start + 262_144])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    read = decoder.next()
    assert read is not None
    assert type(read.body) is bytes
    assert read.body == command.body
    assert decoder.next() is None
    assert most < 1.5 * len(frame)


def test_great_body_is_copied_out_of_its_buffer_once() -> None:
    """A slice of the buffer would be a second copy of it."""
    command = RemotingCommand.request(10, body=bytes(4_000_000))
    buffer = bytearray(command.frame())
    tracemalloc.start()
    try:
        read = decode_frame_within(buffer, 4, len(buffer))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read.body == command.body
    assert most < 1.5 * len(buffer)


@pytest.mark.parametrize("step", [1, 7, 4_096, 262_144])
def test_body_over_the_maximum_is_thrown_away_as_it_comes(step: int) -> None:
    """The request can still be answered, and what follows is read; memory holds a piece of it."""
    size = 40_000 if step < 4_096 else 4_000_000
    great = RemotingCommand.request(310, body=b"x" * size)
    great.opaque = 7
    small = RemotingCommand.request(34, body=b"y" * 10_000)
    frames = great.frame() + small.frame()
    decoder = FrameDecoder(body_bytes_max=10_000)
    found: list[RemotingCommand] = []
    most = 0
    for start in range(0, len(frames), step):
        found += decoder.feed(frames[start : start + step])
        most = max(most, decoder.bytes_pending)
    refused, read = found
    assert isinstance(refused, OversizedCommand)
    assert (refused.code, refused.opaque, refused.body_bytes, refused.body) == (310, 7, size, b"")
    assert type(read) is RemotingCommand
    assert read.body == small.body
    assert most < 20_000 + step
    assert decoder.bytes_pending == 0


def test_header_of_a_frame_whose_body_is_thrown_away_is_still_checked() -> None:
    header = b"{junk"
    frame = struct.pack(">iI", 4 + len(header) + 50_000, len(header)) + header
    decoder = FrameDecoder(body_bytes_max=10_000)
    with pytest.raises(MalformedFrameError):
        decoder.feed(frame)
    with pytest.raises(MalformedFrameError):
        decoder.feed(b"more")


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"0,"])
def test_request_of_too_many_values_is_refused_unread(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MiB of empty lists took 3 s: values are counted first, which takes some milliseconds."""
    monkeypatch.setattr(plain_json, "loads", unreadable)
    data = b"[" + unit * limits.REQUEST_JSON_VALUES_MAX + b"0]"
    with pytest.raises(RemoteProtocolError, match="is over the maximum of 65536"):
        HeartbeatData.decode_request(data)


@pytest.mark.parametrize(
    ("read", "size"),
    [
        (HeartbeatData.decode_request, limits.REQUEST_JSON_BYTES_MAX),
        (lambda data: list(RegisterBrokerBody.decoding(data)), limits.REGISTRATION_BYTES_MAX),
    ],
)
def test_request_of_too_many_bytes_is_refused_unread(
    read: Callable[[bytes], object], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One string of 16 MiB kept a broker from all others for 35 ms."""
    text = b'{"a":"' + b"x" * (size - 8) + b'"}'
    read(text)
    monkeypatch.setattr(plain_json, "loads", unreadable)
    with pytest.raises(RemoteProtocolError, match=f"is over the maximum of {size};"):
        read(text + b" ")


def test_heartbeat_of_two_thousand_subscriptions_is_read() -> None:
    """What a client with many topics sends is far from the bound."""
    one = {
        "topic": "T", "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": [],
        "classFilterMode": False, "expressionType": "TAG",
    }  # fmt: skip
    group = {"groupName": "g", "subscriptionDataSet": [one] * 2_000}
    data = HeartbeatData.decode_request(
        json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
    )
    assert len(data.consumer_data_set[0].subscription_data_set) == 2_000


def test_lenient_request_is_shorter_than_a_lenient_answer() -> None:
    text = b"{" + b"a:1," * 20_000 + b"}"
    assert fastjson.loads(text) == {"a": 1}
    with pytest.raises(RemoteProtocolError, match="at most 65536"):
        HeartbeatData.decode_request(text)


def test_answer_of_too_many_values_is_refused() -> None:
    """A lying broker does not hang a client with a body of 16 MiB."""
    with pytest.raises(RemoteProtocolError, match="is over the maximum of 1000000"):
        fastjson.loads(b"[" + b"[]," * limits.JSON_VALUES_MAX + b"0]")


def test_compressed_registration_inflates_within_its_bound() -> None:
    import zlib

    bomb = zlib.compress(b"\0" * (limits.REGISTRATION_BYTES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="inflates to more than 8388608 bytes"):
        RegisterBrokerBody.decode_compressed(bomb)


@pytest.mark.parametrize(
    "text",
    [
        '{0:1,"a":"b",c:-5}',
        "{ 0 : 1 , 'q' : 2 , x : \"y\" , }",
        '{"a":1L,"b":1.5,"c":[1,2,3,],d:{e:1},"f":"\\u0041"}',
        '{{"brokerName":"b","queueId":1,"topic":"t"}:5,{"a":1}:6}',
        "[1,2,,3,4.5,6,]",
        "{,,a:1,,}",
        "{a:true,b:null,c:'x'}",
    ],
)
def test_plain_pairs_read_at_once_are_read_as_one_by_one(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short cut of the tolerant reader changes nothing but the time."""
    found = fastjson.loads(text)
    monkeypatch.setattr(fastjson._Reader, "pairs", lambda *_: None)
    assert fastjson.loads(text) == found


def written_in_steps(body: Body) -> tuple[bytes, int]:
    parts, steps = drained(body.encoding())
    return b"".join(parts), steps


def registration(count: int) -> RegisterBrokerBody:
    table = {f"T{number}": TopicConfig(f"T{number}") for number in range(count)}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(1, 1)), [])


def test_registrations_are_written_and_read_in_steps_of_a_topic() -> None:
    """20,000 topics took 170 ms to write and 80 ms to read, and nobody was served meanwhile."""

    for count in (600, 50, 0):
        body = registration(count)
        assert written_in_steps(registration(count)) == (body.encode(), count)
        read = RegisterBrokerBody.decoding_compressed(compressed(body))
        assert drained(read) == (body, count)


def test_the_texts_of_many_topics_are_handed_on_together() -> None:
    """A part for each would be sent by itself."""
    parts, _ = drained(registration(600).encoding())
    assert len(parts) < 30
    assert b"".join(parts) == registration(600).encode()


def test_compressed_registration_of_too_many_topics_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REGISTRATION_TOPICS_MAX", 3)
    assert RegisterBrokerBody.decode_compressed(compressed(registration(3)))
    with pytest.raises(RemoteProtocolError, match="4 topics: at most 3 are taken at once"):
        RegisterBrokerBody.decode_compressed(compressed(registration(4)))

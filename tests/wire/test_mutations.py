"""Hostile bytes: whatever is flipped or cut off, reading ends in a value or RemoteProtocolError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.bodies import RegisterBrokerBody, TopicRouteData
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.fastjson import dumps, loads
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.protocol.headers import Header, SendMessageRequestHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import check_record, decode_batch, read_head
from tests.kits import vectors
from tests.kits.vectors import LOCAL_OFFSETS
from tests.wire.frames import decode_frame
from tests.wire.samples import BODIES, HEADERS, ROUTE, SAMPLES


def read_frames(data: bytes) -> None:
    """Read a stream and everything its commands can be asked for."""
    for command in FrameDecoder().feed(data):
        read_command(command)


def read_command(command: RemotingCommand) -> None:
    """Read a command's ext map as every header, then write the command again."""
    for cls in HEADERS:
        try:
            command.header(cls).to_ext()
        except RemoteProtocolError:
            continue
    try:
        SendMessageRequestHeader.from_ext_v2(command.ext_fields or {})
    except RemoteProtocolError:
        pass
    command.frame()


def read_messages(data: bytes) -> None:
    """Read messages and every part of each; parts may be refused one by one."""
    for message in decode_messages(data):
        names = ("body", "properties", "msg_id", "keys", "born_host", "store_host", "delay_level")
        for name in names:
            try:
                getattr(message, name)
            except RemoteProtocolError:
                continue
        repr(message)


def read_json(data: bytes) -> None:
    """Read JSON and write what was read; keys that are no names or numbers cannot be written."""
    value = loads(data)
    try:
        dumps(value)
    except LocalProtocolError:
        pass


READERS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "json frame": (vectors.SEND_V2_JSON, read_frames),
    "binary frame": (vectors.SEND_V2_BINARY, read_frames),
    "frame": (vectors.SEND_V2_BINARY[4:], decode_frame),
    "records": (vectors.RECORD_V4 + vectors.RECORD_V6, read_messages),
    "record head": (vectors.RECORD_V6, read_head),
    "batch": (vectors.BATCH * 2, decode_batch),
    "registration": (vectors.REGISTER_COMPRESSED, RegisterBrokerBody.decode_compressed),
    "heartbeat": (SAMPLES[1][1].encode(), type(SAMPLES[1][0]).decode),
    "route": (ROUTE.encode(standard=False), TopicRouteData.decode),
    "local offsets": (LOCAL_OFFSETS.encode(), read_json),
    "properties": (vectors.PROPERTIES.encode(), decode_properties),
}


def attempt(read: Callable[[bytes], Any], data: bytes) -> None:
    """Read; the only way out besides a value is RemoteProtocolError."""
    try:
        read(data)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("name", list(READERS))
def test_every_truncation_reads_or_is_refused(name: str) -> None:
    golden, read = READERS[name]
    for size in range(len(golden)):
        attempt(read, golden[:size])


@pytest.mark.parametrize("name", list(READERS))
def test_every_single_byte_change_reads_or_is_refused(name: str) -> None:
    golden, read = READERS[name]
    for at in range(len(golden)):
        for value in (0, 0x01, 0x7F, 0x80, 0xFF, golden[at] ^ 1, golden[at] ^ 0x20):
            attempt(read, golden[:at] + bytes([value]) + golden[at + 1 :])


@pytest.mark.parametrize("name", list(READERS))
@settings(max_examples=150)
@given(data=st.data())
def test_random_mutations_read_or_are_refused(name: str, data: st.DataObject) -> None:
    golden, read = READERS[name]
    mutated = bytearray(golden)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(len(mutated) - 1, 0)))
        size = data.draw(st.integers(0, 8))
        mutated[at : at + size] = data.draw(st.binary(max_size=8))
    attempt(read, bytes(mutated))


@given(st.binary(max_size=300))
def test_random_bytes_read_or_are_refused(data: bytes) -> None:
    for _, read in READERS.values():
        attempt(read, data)
    check_record(data, 0)


@given(st.text("{}[]:,'\"\\ue0129.-+truefalsnl$ \t\n", max_size=60))
def test_random_json_like_text_reads_or_is_refused(text: str) -> None:
    attempt(read_json, text.encode())
    for cls in BODIES:
        attempt(cls.decode, text.encode())


@given(st.text(max_size=60))
def test_random_text_as_message_id_reads_or_is_refused(text: str) -> None:
    try:
        decode_offset_msg_id(text)
    except RemoteProtocolError:
        pass


@given(st.dictionaries(st.sampled_from([*"abcdefghijklmn", "topic", "queueId"]), st.text()))
def test_random_ext_reads_or_is_refused(ext: dict[str, str]) -> None:
    readers: list[Callable[[dict[str, str]], Header]] = [cls.from_ext for cls in HEADERS]
    for read in [*readers, SendMessageRequestHeader.from_ext_v2]:
        try:
            read(ext)
        except RemoteProtocolError:
            continue

"""Typed headers: ext maps observed on the wire, missing and unreadable fields, round trips."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    RegisterBrokerRequestHeader,
    ResetOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    UnregisterClientRequestHeader,
)
from rocketstream.protocol.headers.base import parse_bool, parse_int, parse_long
from tests.kits import vectors
from tests.wire.frames import decode_frame
from tests.wire.samples import HEADERS
from tests.wire.strategies import INT32, INT64, TEXT

SEND = SendMessageRequestHeader(
    "pg", "T1", "TBW102", 4, 1, 0, 1700000000000, 0, vectors.PROPERTIES, bname="broker-a"
)
PULL = PullMessageRequestHeader(
    "cg", "GoldT", 0, 0, 32, 2, 0, 15000, 1795203654796, None, "TAG", "broker-a"
)

_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    parse_int: INT32,
    parse_long: INT64,
    parse_bool: st.booleans(),
}


def filled(cls: type[Header], data: st.DataObject) -> Header:
    """Return a header with any value in every field, None in some that may be absent."""
    values = {
        field.name: data.draw(
            _VALUES[field.parse]
            if field.required or field.default is not None
            else st.none() | _VALUES[field.parse]
        )
        for field in cls.header_fields
    }
    return cls(**values)


def test_send_v2_letters_are_javas() -> None:
    assert SEND.to_ext_v2() == vectors.SEND_V2_EXT
    assert SendMessageRequestHeader.from_ext_v2(vectors.SEND_V2_EXT) == SEND


def test_send_v1_names_are_javas() -> None:
    """covers W 2.2, the V1 column."""
    assert SEND.to_ext() == {
        "producerGroup": "pg",
        "topic": "T1",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": vectors.PROPERTIES,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        "bname": "broker-a",
    }


def test_pull_request_is_what_java_sends() -> None:
    assert PULL.to_ext() == vectors.PULL_EXT
    assert PullMessageRequestHeader.from_ext(vectors.PULL_EXT) == PULL


def test_pull_response_is_what_java_sends() -> None:
    header = PullMessageResponseHeader(0, 4, 0, 4)
    assert header.to_ext() == vectors.PULL_RESPONSE_EXT
    assert PullMessageResponseHeader.from_ext(vectors.PULL_RESPONSE_EXT) == header


def test_send_back_is_what_java_sends() -> None:
    header = ConsumerSendMsgBackRequestHeader.from_ext(vectors.SEND_BACK_EXT)
    assert (header.offset, header.delay_level, header.max_reconsume_times) == (1381, 0, 16)
    assert header.to_ext() == vectors.SEND_BACK_EXT


def test_end_transaction_is_what_java_sends() -> None:
    header = EndTransactionRequestHeader.from_ext(vectors.END_TRANSACTION_EXT)
    assert (header.commit_log_offset, header.commit_or_rollback) == (1586, 8)
    assert header.to_ext() == vectors.END_TRANSACTION_EXT


def test_client_id_keeps_its_capitals_on_unregister() -> None:
    """covers W 2.4, code 35: the field is clientID."""
    assert UnregisterClientRequestHeader("a@b").to_ext() == {"clientID": "a@b"}


def test_register_names_are_javas() -> None:
    header = RegisterBrokerRequestHeader("b", "a:1", "c", "a:2", 0, False, 7)
    assert header.to_ext() == {
        "brokerName": "b",
        "brokerAddr": "a:1",
        "clusterName": "c",
        "haServerAddr": "a:2",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": "7",
    }


def test_booleans_are_java_booleans() -> None:
    """covers W 1.3: anything but true in any case is false."""
    ext = ResetOffsetRequestHeader("T", "g", -1, True).to_ext()
    assert ext["isForce"] == "true"
    for text, value in [("TRUE", True), ("True", True), ("yes", False), ("1", False), ("", False)]:
        assert ResetOffsetRequestHeader.from_ext({**ext, "isForce": text}).is_force is value
        read = SendMessageRequestHeader.from_ext_v2({**vectors.SEND_V2_EXT, "m": text, "k": text})
        assert (read.batch, read.unit_mode) == (value, value)


def test_absent_k_and_m_of_5x_senders_are_false() -> None:
    """covers W 2.9."""
    ext = {name: text for name, text in vectors.SEND_V2_EXT.items() if name not in "jkmn"}
    read = SendMessageRequestHeader.from_ext_v2(ext)
    assert (read.batch, read.unit_mode, read.reconsume_times, read.bname) == (False, False, 0, None)


def test_unknown_ext_keys_are_ignored() -> None:
    ext = {**vectors.PULL_EXT, "ReqT": "0", "maxMsgBytes": "1", "lo": "x"}
    assert PullMessageRequestHeader.from_ext(ext) == PULL
    ext = {**vectors.SEND_V2_EXT, "ns": "x", "ReqT": "0"}
    assert SendMessageRequestHeader.from_ext_v2(ext) == SEND


def test_set_zero_if_not_found_of_5x_is_read() -> None:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}
    assert QueryConsumerOffsetRequestHeader.from_ext(ext).set_zero_if_not_found is False


@pytest.mark.parametrize("cls", HEADERS, ids=lambda cls: cls.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_header_round_trip_through_both_codecs(cls: type[Header], data: st.DataObject) -> None:
    header = filled(cls, data)
    assert cls.from_ext(header.to_ext()) == header
    command = decode_frame(RemotingCommand.request(1, header).frame()[4:])
    assert command.header(cls) == header


@given(data=st.data())
def test_send_v2_round_trip(data: st.DataObject) -> None:
    header = filled(SendMessageRequestHeader, data)
    assert isinstance(header, SendMessageRequestHeader)
    assert SendMessageRequestHeader.from_ext_v2(header.to_ext_v2()) == header


@pytest.mark.parametrize("cls", HEADERS, ids=lambda cls: cls.__name__)
def test_missing_required_field_is_named(cls: type[Header]) -> None:
    full = {f.wire: "1" for f in cls.header_fields}
    for field in cls.header_fields:
        ext = {name: text for name, text in full.items() if name != field.wire}
        if field.required:
            with pytest.raises(RemoteProtocolError, match=rf"\b{field.wire} is missing"):
                cls.from_ext(ext)
        else:
            cls.from_ext(ext)


@pytest.mark.parametrize("text", ["", "x", "1.0", "1e3", "99999999999999999999", "9" * 5000])
def test_unreadable_number_is_named(text: str) -> None:
    for cls in HEADERS:
        full = {f.wire: "1" for f in cls.header_fields}
        for field in cls.header_fields:
            if field.parse in (parse_int, parse_long):
                with pytest.raises(RemoteProtocolError, match=field.wire):
                    cls.from_ext({**full, field.wire: text})


@pytest.mark.parametrize("cls", HEADERS, ids=lambda cls: cls.__name__)
def test_numbers_keep_their_width(cls: type[Header]) -> None:
    """A number over 32 or 64 bits must not reach a struct.pack further in."""
    full = {f.wire: "1" for f in cls.header_fields}
    for field in cls.header_fields:
        bits = 31 if field.parse is parse_int else 63
        if field.parse in (parse_int, parse_long):
            for edge in (2**bits - 1, -(2**bits)):
                header = cls.from_ext({**full, field.wire: str(edge)})
                assert getattr(header, field.name) == edge
            for over in (2**bits, -(2**bits) - 1):
                with pytest.raises(RemoteProtocolError):
                    cls.from_ext({**full, field.wire: str(over)})


@pytest.mark.parametrize("letter", list("defghjl"))
@pytest.mark.parametrize("text", ["", "x", "99999999999999999999"])
def test_unreadable_v2_number_is_named_by_its_v1_name(letter: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"field [a-zA-Z]{4,}"):
        SendMessageRequestHeader.from_ext_v2({**vectors.SEND_V2_EXT, letter: text})


@pytest.mark.parametrize(("letters", "bits"), [("defhjl", 31), ("g", 63)])
def test_v2_numbers_keep_their_width(letters: str, bits: int) -> None:
    read = SendMessageRequestHeader.from_ext_v2
    for letter in letters:
        for edge in (2**bits - 1, -(2**bits)):
            ext = {**vectors.SEND_V2_EXT, letter: str(edge)}
            assert read(ext).to_ext_v2() == ext
        for over in (2**bits, -(2**bits) - 1):
            with pytest.raises(RemoteProtocolError):
                read({**vectors.SEND_V2_EXT, letter: str(over)})


@pytest.mark.parametrize("letter", list("abcdefgh"))
def test_missing_v2_letter_is_refused(letter: str) -> None:
    ext = {name: text for name, text in vectors.SEND_V2_EXT.items() if name != letter}
    with pytest.raises(RemoteProtocolError, match="is missing"):
        SendMessageRequestHeader.from_ext_v2(ext)


def test_required_field_set_to_none_is_refused_when_writing() -> None:
    header = UnregisterClientRequestHeader(None)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="client_id"):
        header.to_ext()


def test_command_without_ext_names_the_missing_field() -> None:
    """covers W 1.2: a header without extFields leaves the map null."""
    with pytest.raises(RemoteProtocolError, match="msgId is missing"):
        RemotingCommand(0).header(SendMessageResponseHeader)


def test_headers_have_no_dict() -> None:
    for cls in HEADERS:
        assert not hasattr(cls.__new__(cls), "__dict__"), cls

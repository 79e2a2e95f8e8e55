"""Sends written from a template: the same bytes as the general way, whatever the fields hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import limits
from rocketstream.errors import LocalProtocolError
from rocketstream.protocol.codes import FLAG_ONEWAY, RequestCode, SerializeType
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import decode_frame, encode_frame
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.send_request import SendPlan, SendRequest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
INT = st.integers(-(2**31), 2**31 - 1)
HEADER = st.builds(
    SendMessageRequestHeader,
    producer_group=TEXT,
    topic=TEXT,
    default_topic=TEXT,
    default_topic_queue_nums=INT,
    queue_id=INT,
    sys_flag=INT,
    born_timestamp=st.integers(-(2**63), 2**63 - 1),
    flag=INT,
    properties=TEXT,
    unit_mode=st.booleans(),
    bname=st.none() | TEXT,
)


def plain(header: SendMessageRequestHeader, body: bytes, opaque: int) -> RemotingCommand:
    """The request made the general way."""
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque)
    command.ext_fields = header.to_ext_v2()
    command.body = body
    return command


def quick(header: SendMessageRequestHeader, body: bytes, opaque: int) -> SendRequest:
    """The request from a template that was made for another message of the queue."""
    plan = SendPlan(replace(header, properties="other", sys_flag=9, born_timestamp=9, flag=9))
    request = SendRequest(
        plan,
        body,
        header.properties or "",
        header.born_timestamp,
        header.sys_flag,
        header.flag,
    )
    request.opaque = opaque
    return request


@given(HEADER, st.binary(max_size=9), st.integers(0, 2**31 - 1))
def test_the_template_writes_the_same_frame(
    header: SendMessageRequestHeader, body: bytes, opaque: int
) -> None:
    """Without a command in between."""
    request = quick(header, body, opaque)
    plan = request._plan
    frame = plan.frame(
        body, header.properties or "", header.born_timestamp, header.sys_flag, header.flag, opaque
    )
    assert frame == encode_frame(request)


def test_a_frame_over_the_maximum_is_not_made() -> None:
    """The body is what the peer would refuse; nothing is written."""
    header = SendMessageRequestHeader("g", "T", "TBW102", 4, 0, 0, 1, 0, "p")
    with pytest.raises(LocalProtocolError, match="over the maximum"):
        SendPlan(header).frame(bytes(limits.FRAME_BYTES_MAX), "p", 1, 0, 0, 1)


@given(HEADER, st.binary(max_size=9), st.integers(0, 2**31 - 1))
def test_the_template_writes_the_same_bytes(
    header: SendMessageRequestHeader, body: bytes, opaque: int
) -> None:
    """Names with a percent sign, quotes or other scripts included."""
    expected = encode_frame(plain(header, body, opaque))
    assert encode_frame(quick(header, body, opaque)) == expected


@given(HEADER)
def test_fields_that_were_looked_at_are_what_is_sent(header: SendMessageRequestHeader) -> None:
    """A hook that signs adds fields to the map it is shown (W 6.2)."""
    request = quick(header, b"x", 7)
    fields = request.ext_fields
    assert fields == header.to_ext_v2()
    fields["Signature"] = "s"
    sent = decode_frame(encode_frame(request)[4:])
    assert sent.ext_fields == {**header.to_ext_v2(), "Signature": "s"}


def test_flag_and_serialize_type_count() -> None:
    """One-way sends and binary headers are written as any other request."""
    header = SendMessageRequestHeader("g", "T", "TBW102", 4, 1, 0, 5, 0, "a\x01b", bname="b")
    for oneway in (False, True):
        for kind in SerializeType:
            made, expected = quick(header, b"x", 7), plain(header, b"x", 7)
            for each in (made, expected):
                each.flag = FLAG_ONEWAY if oneway else 0
                each.serialize_type = kind
            assert encode_frame(made) == encode_frame(expected)


def test_a_frame_of_just_the_maximum_is_made() -> None:
    plan = SendPlan(SendMessageRequestHeader("g", "T", "TBW102", 4, 0, 0, 1, 0, "p"))
    room = limits.FRAME_BYTES_MAX - len(plan.frame(b"", "p", 1, 0, 0, 1))
    assert len(plan.frame(bytes(room), "p", 1, 0, 0, 1)) == limits.FRAME_BYTES_MAX
    over = limits.FRAME_BYTES_MAX + 1
    with pytest.raises(LocalProtocolError, match=f"a frame of {over} bytes is over") as caught:
        plan.frame(bytes(room + 1), "p", 1, 0, 0, 1)
    assert caught.value.parameters["frame_bytes"] == over

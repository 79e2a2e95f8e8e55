"""The usual answer to a send, read by its fixed places: what the general way says, or nothing."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.protocol.answer_form import StoredForm, learn
from rocketstream.protocol.framing import decode_frame

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


def form_of(header: str) -> StoredForm | None:
    whole = frame(header)
    return learn(whole, decode_frame(whole[4:]))


def known(header: str) -> StoredForm:
    form = form_of(header)
    assert form is not None
    return form


def test_the_longest_answer_that_is_learned_has_1024_bytes() -> None:
    """A longer one is read the general way each time: its pattern would be as long."""
    usual = json.loads(APACHE_4 % (3, ID, 4, 5))
    for size, is_learned in ((1_024, True), (1_025, False)):
        ext = {**usual["extFields"], "MSG_REGION": ""}
        bare = len(frame(json.dumps({**usual, "extFields": ext}, separators=(",", ":"))))
        ext["MSG_REGION"] = "r" * (size - bare)
        whole = json.dumps({**usual, "extFields": ext}, separators=(",", ":"))
        assert len(frame(whole)) == size
        assert (form_of(whole) is not None) == is_learned


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
    for header, values in (
        (APACHE_4, (queue_id, text, offset, opaque)),
        (APACHE_5, (queue_id, text, offset, opaque)),
        (OURS, (opaque, text, queue_id, offset)),
    ):
        example = (7, ID, 3, 9) if header is not OURS else (9, ID, 7, 3)
        form = known(header % example)
        whole = frame(header % values)
        found = form.read(b"before" + whole + b"after", 6)
        assert found is not None
        answer = decode_frame(whole[4:])
        ext = answer.ext_fields or {}
        assert found[:2] == (6 + len(whole), answer.opaque)
        names = ["queueId", "queueOffset", "msgId"]
        names.append("transactionId" if form.names_transactions else "msgId")
        assert [value.decode() for value in found[2]] == [ext[name] for name in names]
        assert form.names_transactions == ("transactionId" in ext)
        assert form.region_id == ext.get("MSG_REGION", "DefaultRegion")
        assert form.trace_on == (ext.get("TRACE_ON") != "false")


def test_an_incomplete_frame_is_left_for_later() -> None:
    form = known(APACHE_4 % (1, ID, 2, 3))
    whole = frame(APACHE_4 % (1, ID, 2, 3))
    assert all(form.read(whole[:cut], 0) is None for cut in range(len(whole)))
    assert form.read(bytearray(whole), 0) == form.read(whole, 0) is not None


@pytest.mark.parametrize(
    "changed",
    [
        frame(APACHE_4.replace('"code":0', '"code":1') % (1, ID, 2, 3)),
        frame(APACHE_4 % (1, ID, 2, 3), b"body"),
        frame(APACHE_4.replace('"version', '"remark":"x","version') % (1, ID, 2, 3)),
        frame(APACHE_4 % (1, ID, -2, 3)),
        frame(APACHE_4 % (1, "it's", 2, 3)),
        frame(APACHE_4.replace("DefaultRegion", "Default_egion") % (1, ID, 2, 3)),
        frame(APACHE_4 % (10**10, ID, 2, 3)),
        b"\x00\x00\x01\x00\x01" + frame(APACHE_4 % (1, ID, 2, 3))[5:],
    ],
)
def test_whatever_else_an_answer_says_is_read_the_general_way(changed: bytes) -> None:
    """Another code, a body, a remark, odd numbers, another way to write the header."""
    assert known(APACHE_4 % (1, ID, 2, 3)).read(changed, 0) is None


@pytest.mark.parametrize(
    "header",
    [
        APACHE_4.replace('"code":0', '"code":10') % (1, ID, 2, 3),
        APACHE_4.replace('"flag":1', '"flag":3') % (1, ID, 2, 3),
        APACHE_4.replace('"version', '"remark":"","version') % (1, ID, 2, 3),
        APACHE_4.replace('"TRACE_ON"', '"recallHandle"') % (1, ID, 2, 3),
        APACHE_4.replace('"queueOffset"', '"offset"') % (1, ID, 2, 3),
        APACHE_4.replace("DefaultRegion", '\\"opaque\\":3') % (1, ID, 2, 3),
        APACHE_4.replace("DefaultRegion", "x" * 2_000) % (1, ID, 2, 3),
        APACHE_4 % (1, "not hex", 2, 3),
        '{"code":0,"flag":1,"language":"JAVA","opaque":3,"version":401}',
    ],
)
def test_nothing_is_learnt_of_an_answer_that_is_not_usual(header: str) -> None:
    form = form_of(header)
    assert form is None or form.read(frame(header), 0) is not None
    assert form is None or '\\"opaque' in header

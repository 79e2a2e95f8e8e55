"""Answers to stored messages written from a template: the same bytes as the general way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketstream.protocol.codes import ResponseCode, SerializeType
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.usual_sends import SendAnswer, SendAnswerPlan

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
HEX = st.text("0123456789ABCDEF,", min_size=1, max_size=70)


def plain(region: str, msg_id: str, queue_id: int, offset: int) -> RemotingCommand:
    """The answer made the general way."""
    answer = RemotingCommand.response(ResponseCode.SUCCESS)
    answer.ext_fields = {
        "msgId": msg_id,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "MSG_REGION": region,
        "TRACE_ON": "true",
    }
    return answer


@given(
    TEXT,
    HEX,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.sampled_from([*SerializeType]),
)
def test_the_template_writes_the_same_bytes(
    region: str, msg_id: str, queue_id: int, offset: int, kind: SerializeType
) -> None:
    """In both serialize types, as the request's decides."""
    made = SendAnswer(SendAnswerPlan(region), msg_id, queue_id, offset)
    expected = plain(region, msg_id, queue_id, offset)
    for each in (made, expected):
        each.opaque = 77
        each.serialize_type = kind
    assert made.frame() == expected.frame()
    assert made.ext_fields == expected.ext_fields


def test_an_answer_that_became_another_one_is_written_as_such() -> None:
    """A flush that came too late changes code and remark (C-429)."""
    made, expected = SendAnswer(SendAnswerPlan("r"), "ID", 1, 2), plain("r", "ID", 1, 2)
    for each in (made, expected):
        each.code = ResponseCode.FLUSH_DISK_TIMEOUT
        each.remark = "late"
    assert made.frame() == expected.frame()
    made.ext_fields = expected.ext_fields = {"other": "1"}
    assert made.frame() == expected.frame()

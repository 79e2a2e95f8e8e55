"""Requests about the offsets of a queue: the fields on the wire, and what answers say."""

from __future__ import annotations

import pytest

from rocketstream.client.instance import questions
from rocketstream.client.instance.questions import Question
from rocketstream.model import MessageQueue
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetResponseHeader,
    Header,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetResponseHeader,
)

QUEUE = MessageQueue("T", "broker-a", 3)
OF_QUEUE = {"topic": "T", "queueId": "3", "bname": "broker-a"}


@pytest.mark.parametrize(
    ("question", "code", "more", "answer"),
    [
        (questions.max_offset(QUEUE), 30, {}, GetMaxOffsetResponseHeader(7)),
        (questions.min_offset(QUEUE), 31, {}, GetMinOffsetResponseHeader(7)),
        (questions.oldest_store_time(QUEUE), 32, {}, GetEarliestMsgStoretimeResponseHeader(7)),
        (questions.offset_at(QUEUE, 5), 29, {"timestamp": "5"}, SearchOffsetResponseHeader(7)),
        (
            questions.committed_offset("G", QUEUE),
            14,
            {"consumerGroup": "G"},
            QueryConsumerOffsetResponseHeader(7),
        ),
    ],
)
def test_a_question_names_the_queue_and_its_broker(
    question: Question[int | None], code: int, more: dict[str, str], answer: Header
) -> None:
    """A proxy of 5.x refuses what names no broker."""
    command = question.command()
    assert (command.code, command.ext_fields) == (code, {**OF_QUEUE, **more})
    assert question.read(RemotingCommand.response(0, None, answer)) == 7


def test_a_commit_names_the_queue_and_its_broker() -> None:
    command = questions.commit("G", QUEUE, 9).command()
    assert command.code == 15
    assert command.ext_fields == {**OF_QUEUE, "consumerGroup": "G", "commitOffset": "9"}
    assert not command.is_oneway


def test_an_answer_is_waited_for_as_long_as_others_are() -> None:
    assert questions.max_offset(MessageQueue("T", "b", 0)).patience == 1


def test_a_negative_offset_of_a_group_is_none() -> None:
    """Some brokers answer so instead of with an error; zero is an offset."""
    read = questions.committed_offset("G", QUEUE).read
    assert read(RemotingCommand.response(0, None, QueryConsumerOffsetResponseHeader(-1))) is None
    assert read(RemotingCommand.response(0, None, QueryConsumerOffsetResponseHeader(0))) == 0

"""What the driver makes of an answer to its pull of one message."""

from __future__ import annotations

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import encode_batch
from rocketstream.spark.driver.pulls import head_at, pull_one
from rocketstream.spark.options import read_options
from rocketstream.spark.scan import DEFAULT_GROUP
from tests.kits.records import THREE, batch, record


def test_a_record_is_that_of_its_offset_alone() -> None:
    """Another one is given where the one asked for is gone."""
    body = record(7) + record(8)
    head = head_at(body, 7)
    assert head is not None
    assert (head.queue_offset, head.total_size) == (7, len(record(7)))
    assert head_at(body, 8) is head_at(body, 6) is None
    anyhow = head_at(body, None)
    assert anyhow is not None
    assert anyhow.queue_offset == 7


def test_a_batch_stored_as_one_record_is_that_of_all_its_offsets() -> None:
    """Covers W 7.2: so a stream that stopped within one knows its queue again."""
    body = batch(5)
    heads = [head_at(body, offset) for offset in (5, 6, 7)]
    assert [head and (head.queue_offset, head.physical_offset) for head in heads] == [
        (5, heads[0] and heads[0].physical_offset)
    ] * 3
    assert head_at(body, 4) is head_at(body, 8) is None


def test_rows_of_a_batch_weigh_their_share_of_it() -> None:
    """Else maxBytesPerTrigger would take a batch for as many as it holds."""
    head = head_at(batch(5), 6)
    assert head is not None
    assert head.total_size == len(batch(5)) // len(THREE)


@pytest.mark.parametrize("told", [0, "x", ""])
def test_a_batch_that_does_not_say_how_many_it_holds_is_one(told: object) -> None:
    """Whoever reads it says what is wrong with it."""
    body = batch(5, told=told, body=encode_batch(THREE))
    assert head_at(body, 5) is not None
    assert head_at(body, 6) is None


@pytest.mark.parametrize(("hold_ms", "flags"), [(0, 4), (1, 6)])
def test_one_message_is_asked_for_and_nothing_else_said(hold_ms: int, flags: int) -> None:
    """A pull may commit an offset, which this one must never do."""
    options = read_options({"nameServer": "h:1", "topic": "T"}, "stream")
    asked = pull_one(options, MessageQueue("T", "b", 3), 7, hold_ms).ext_fields
    assert asked is not None
    told = {"queueId": "3", "queueOffset": "7", "maxMsgNums": "1", "commitOffset": "0"}
    assert {name: asked[name] for name in told} == told
    assert (asked["sysFlag"], asked["subVersion"]) == (str(flags), "0")
    assert asked["suspendTimeoutMillis"] == str(hold_ms)
    assert asked["consumerGroup"] == DEFAULT_GROUP
    if not hold_ms:
        assert pull_one(options, MessageQueue("T", "b", 3), 7).ext_fields == asked


def test_a_batch_of_two_is_shared_by_two() -> None:
    body = batch(5, THREE[:2])
    for offset in (5, 6):
        head = head_at(body, offset)
        assert head is not None
        assert head.total_size == len(body) // 2
    assert head_at(body, 7) is None


@pytest.mark.parametrize("sys_flag", [0, MessageSysFlag.INNER_BATCH, MessageSysFlag.NEED_UNWRAP])
def test_only_a_record_with_both_marks_is_a_batch(sys_flag: int) -> None:
    """Whatever its properties say."""
    body = batch(5, sys_flag=sys_flag)
    head = head_at(body, 5)
    assert head is not None
    assert head.total_size == len(body)
    assert head_at(body, 6) is None


def test_the_drivers_questions_are_asked_by_the_group_of_the_read() -> None:
    """A broker may let no other group read the topic."""
    options = read_options({"nameServer": "h:1", "topic": "T", "group": "g"}, "stream")
    asked = pull_one(options, MessageQueue("T", "b", 3), 7).ext_fields
    assert asked is not None
    assert asked["consumerGroup"] == "g"

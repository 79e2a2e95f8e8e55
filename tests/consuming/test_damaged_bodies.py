"""Messages whose bodies do not match their CRC: never handed out, never passed over in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rocketstream import LitePullConsumer, PullConsumer, PushConsumer
from rocketstream.errors import DamagedMessageError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader
from tests.kits.client.consumers import lite, started
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, found
from tests.kits.listeners import Seen
from tests.plugins.waiting import wait_until

PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 10
        yield running


def damaged(offsets: list[int], bad: int) -> RemotingCommand:
    """Return a pull reply in which the body of the message at offset ``bad`` has changed."""
    whole = found(offsets)
    parts = [bytes(found([offset]).body) for offset in offsets]
    at = offsets.index(bad)
    text = str(bad).encode()
    start = parts[at].rindex(text, 0, parts[at].index(TOPIC.encode() + b"\x00"))
    parts[at] = parts[at][:start] + b"#" + parts[at][start + 1 :]
    whole.body = b"".join(parts)
    return whole


def test_a_listener_gets_what_lies_before_and_the_queue_stands_at_the_damaged_one(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The next pull begins there: what was damaged on its way is whole then; told once."""
    seen = Seen()
    with caplog.at_level(logging.WARNING, "rocketstream.client"), started(broker, seen):
        broker.reply(broker.wait_pull(10), damaged([10, 11, 12, 13], bad=12))
        broker.reply(broker.wait_pull(12), damaged([12, 13], bad=12))
        broker.reply(broker.wait_pull(12, 2), damaged([12, 13], bad=12))
        last = broker.wait_pull(12, 3)
        assert seen.bodies == ["10", "11"]
        assert caplog.text.count("does not match its CRC") == 1
        broker.reply(last, found([12, 13]))
        seen.wait_consumed(4)
        wait_until(lambda: "works again" in caplog.text, "the end to be told")
    assert seen.bodies == ["10", "11", "12", "13"]


def test_the_offset_of_a_damaged_message_is_not_passed(broker: FakeBroker) -> None:
    """A crash delivers it again, not what lies behind it."""
    seen = Seen()
    with started(broker, seen):
        broker.reply(broker.wait_pull(10), damaged([10, 11, 12], bad=11))
        seen.wait_consumed(1)
        asked = PullMessageRequestHeader.from_ext(broker.wait_pull(11).ext)
        assert asked.commit_offset in (0, 11)
    commits = [int(each.ext["commitOffset"]) for each in broker.asked(15)]
    assert max(commits) == 11


def test_without_the_check_bodies_are_taken_as_they_are(broker: FakeBroker) -> None:
    seen = Seen()
    with started(broker, seen, check_crc=False):
        broker.reply(broker.wait_pull(10), damaged([10, 11], bad=11))
        seen.wait_consumed(2)
    assert seen.bodies == ["10", "#1"]


def test_a_lite_consumer_stands_at_a_damaged_message(broker: FakeBroker) -> None:
    with lite(broker) as consumer:
        broker.reply(broker.wait_pull(10), damaged([10, 11], bad=11))
        assert [m.queue_offset for m in consumer.poll(20_000)] == [10]
        broker.reply(broker.wait_pull(11), found([11]))
        assert [m.queue_offset for m in consumer.poll(20_000)] == [11]


def test_a_pull_that_begins_at_a_damaged_message_is_an_error(broker: FakeBroker) -> None:
    broker.on[PULL] = lambda command: (
        damaged([10, 11], bad=11)
        if (command.ext_fields or {})["queueOffset"] == "10"
        else damaged([11], bad=11)
    )
    with PullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(TOPIC)
        result = consumer.pull(mq, "*", 10, 32)
        assert [m.queue_offset for m in result.msg_found_list] == [10]
        assert result.next_begin_offset == 11
        with pytest.raises(DamagedMessageError, match=r"offset 11 of .*check_crc=False"):
            consumer.pull(mq, "*", 11, 32)


def test_bodies_are_checked_unless_told_otherwise() -> None:
    assert PushConsumer(GROUP).check_crc
    assert LitePullConsumer(GROUP).settings.check_crc
    assert PullConsumer(GROUP).settings.check_crc

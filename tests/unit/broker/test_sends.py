"""What a broker decides about a send by itself: the queue, the topic, whether it is for later."""

from __future__ import annotations

import pytest

from rocketstream.errors import BrokerError
from rocketstream.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.server.broker.core import sends
from rocketstream.server.broker.core.sends import queue_of, retried

NOW = 1_700_000_000_000


@pytest.mark.parametrize(("reads", "writes"), [(4, 2), (2, 4), (4, 4)])
def test_a_queue_exists_that_is_written_or_read(reads: int, writes: int) -> None:
    """While a topic shrinks it has queues that are only read."""
    config = TopicConfig("T1", reads, writes)
    assert [queue_of(config, queue_id, 9, "peer") for queue_id in range(4)] == [0, 1, 2, 3]
    with pytest.raises(BrokerError, match=r"request queueId\[4\] is illegal"):
        queue_of(config, 4, 9, "peer")


def test_a_queue_that_is_not_named_is_the_next_one_that_is_written() -> None:
    assert [queue_of(TopicConfig("T1", 8, 3), -1, turn, "peer") for turn in range(4)] == [
        0,
        1,
        2,
        0,
    ]
    assert queue_of(TopicConfig("T1", 8, 1), -1, 7, "peer") == 0
    assert queue_of(TopicConfig("T1", 8, 0), -1, 7, "peer") == 0


@pytest.mark.parametrize(
    ("properties", "is_later"),
    [
        ({"TIMER_DELAY_SEC": "1"}, True),
        ({"TIMER_DELAY_SEC": "0"}, False),
        ({"TIMER_DELAY_MS": "1"}, True),
        ({"TIMER_DELAY_MS": "0"}, False),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, True),
        ({"TIMER_DELIVER_MS": str(NOW)}, False),
        ({"TIMER_DELIVER_MS": "soon"}, True),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "1"}, False),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "0"}, True),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "x"}, True),
        ({"TIMER_DELAY_SEC": "1", "TIMER_OUT_MS": "1"}, False),
    ],
)
def test_a_message_is_for_later_when_its_time_is_still_to_come(
    properties: dict[str, str], is_later: bool
) -> None:
    """As a 5.x broker reads the three ways to say it; a delay level goes before them."""
    assert sends._is_for_later(properties, NOW) is is_later


@pytest.mark.parametrize(
    ("attempts", "most", "is_locked", "is_dead"),
    [
        (3, 3, False, False),
        (4, 3, False, True),
        (3, 3, True, True),
        (2, 3, True, False),
        (None, 0, False, False),
        (None, 0, True, True),
        (16, None, False, False),
        (17, None, False, True),
    ],
)
def test_a_retry_after_the_last_is_a_dead_letter(
    attempts: int | None, most: int | None, is_locked: bool, is_dead: bool
) -> None:
    """Covers C-592: the header's maximum, else the group's; ordered consumers stop one sooner."""
    header = SendMessageRequestHeader("g", "%RETRY%g", "TBW102", 4, 0, 0, NOW, 0, "")
    header.reconsume_times, header.max_reconsume_times = attempts, most
    topic = retried(header, SubscriptionGroupConfig("g", retry_max_times=16), is_locked=is_locked)
    assert topic == ("%DLQ%g" if is_dead else "%RETRY%g")
    with pytest.raises(BrokerError, match="subscription group not exist, g"):
        retried(header, None, is_locked=is_locked)


@pytest.mark.parametrize(
    ("properties", "level"),
    [({}, 0), ({"DELAY": ""}, 0), ({"DELAY": "x"}, 0), ({"DELAY": "3"}, 3), ({"DELAY": "-1"}, -1)],
)
def test_a_delay_level_is_the_number_that_is_said(properties: dict[str, str], level: int) -> None:
    assert sends.delay_level_of(properties) == level


@pytest.mark.parametrize(
    ("perm", "text"), [(0, "---"), (1, "--X"), (2, "-W-"), (4, "R--"), (6, "RW-"), (7, "RWX")]
)
def test_a_topic_is_printed_as_upstream_prints_it(perm: int, text: str) -> None:
    assert sends.topic_config_text(TopicConfig("T1", 4, 2, perm, topic_sys_flag=1)) == (
        f"TopicConfig [topicName=T1, readQueueNums=4, writeQueueNums=2, perm={text}, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=1, order=false]"
    )

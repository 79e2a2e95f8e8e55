"""Small decisions: pull replies, results, retries."""

from __future__ import annotations

import pytest

from rocketstream.client.consumer.listener import ACK_ALL, acknowledged
from rocketstream.client.consumer.pull_answer import (
    AfterFailure,
    Retry,
    after_failure,
    pull_status,
)
from rocketstream.client.consumer.retry import fallback_message, max_reconsume_times
from rocketstream.errors import BrokerError, RequestTimeoutError, TopicNotExistError, broker_error
from rocketstream.model import ConsumeConcurrentlyStatus, PullStatus

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


# --- pull replies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MSG),
        (20, PullStatus.NO_MATCHED_MSG),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_response_codes_mean_statuses(code: int, status: PullStatus) -> None:
    """Covers C-218."""
    assert pull_status(code, None, "a:1") is status


def test_any_other_code_is_an_error() -> None:
    """Covers C-218."""
    with pytest.raises(TopicNotExistError):
        pull_status(17, "topic[T] not exist", "a:1")
    with pytest.raises(BrokerError) as raised:
        pull_status(1, "broken", "a:1")
    assert (raised.value.code, raised.value.remark) == (1, "broken")


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (broker_error(215, "slow down"), Retry(20)),
        (broker_error(24, ""), Retry(1000, AfterFailure.HEARTBEAT, expected=1)),
        (broker_error(25, ""), Retry(1000, AfterFailure.HEARTBEAT, expected=1)),
        (broker_error(1, ""), Retry(1000)),
        (broker_error(501, "another broker"), Retry(1000, AfterFailure.ROUTE)),
        (RequestTimeoutError("late"), Retry(1000, AfterFailure.ROUTE)),
    ],
)
def test_a_failed_pull_comes_again(error: Exception, retry: Retry) -> None:
    """Covers C-230, C-358, C-580: a stale subscription is mended by a heartbeat at once."""
    assert after_failure(error, 1000) == retry


# --- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "ack_index", "expected"),
    [
        (SUCCESS, ACK_ALL, 5),
        (SUCCESS, 4, 5),
        (SUCCESS, 9, 5),
        (SUCCESS, 1, 2),
        (SUCCESS, -1, 0),
        (SUCCESS, -7, 0),
        (LATER, ACK_ALL, 0),
        (LATER, 3, 0),
    ],
)
def test_ack_index_splits_a_batch(
    status: ConsumeConcurrentlyStatus, ack_index: int, expected: int
) -> None:
    """Covers C-262."""
    assert acknowledged(status, ack_index, 5) == expected


# --- retries ------------------------------------------------------------------------------------


def test_minus_one_means_sixteen_retries() -> None:
    """Covers C-40, C-270."""
    assert max_reconsume_times(-1) == 16
    assert max_reconsume_times(3) == 3


def fallback(times: int, level: int = 0, limit: int = 16, **more: str) -> dict[str, str]:
    properties = {"TAGS": "A", "UNIQ_KEY": "u", **more}
    message = fallback_message(
        "g",
        "T",
        properties,
        origin_message_id="ORIGIN",
        reconsume_times=times,
        delay_level=level,
        max_times=limit,
    )
    assert message.topic == "%RETRY%g"
    assert properties == {"TAGS": "A", "UNIQ_KEY": "u", **more}, "the original is left alone"
    return message.properties


def test_fallback_counts_and_delays_like_the_send_back() -> None:
    """Covers C-271, C-402, C-592: one more on this path, where the broker compares with >=."""
    assert fallback(0) == {
        "TAGS": "A",
        "UNIQ_KEY": "u",
        "ORIGIN_MESSAGE_ID": "ORIGIN",
        "RETRY_TOPIC": "T",
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "17",
        "DELAY": "3",
    }
    last = fallback(15)
    assert (last["RECONSUME_TIME"], last["DELAY"]) == ("16", "18")
    assert int(last["RECONSUME_TIME"]) < int(last["MAX_RECONSUME_TIMES"]), "not dead yet"


def test_fallback_counts_to_the_highest_number_there_is() -> None:
    """One more is refused by every broker, and the message would never leave."""
    highest = 2**31 - 1
    assert fallback(0, limit=highest)["MAX_RECONSUME_TIMES"] == str(highest)
    assert fallback(0, limit=highest - 1)["MAX_RECONSUME_TIMES"] == str(highest)


def test_fallback_honours_an_explicit_level() -> None:
    """Covers C-272, C-586."""
    assert fallback(4, level=2)["DELAY"] == "2"
    assert fallback(4, level=1)["DELAY"] == "1"


@pytest.mark.parametrize(("times", "level"), [(16, 0), (20, 5), (0, -1), (3, -1)])
def test_a_dead_message_goes_to_the_dead_letter_topic_without_delay(times: int, level: int) -> None:
    """Covers C-276, C-401, C-587: over its own limit and without DELAY, on 4.x (>=) and 5.x (>)."""
    properties = fallback(times, level)
    assert "DELAY" not in properties
    assert int(properties["RECONSUME_TIME"]) > int(properties["MAX_RECONSUME_TIMES"])


def test_fallback_keeps_the_first_origin_and_drops_what_is_local() -> None:
    """Covers C-272, C-233: what was added on arrival is not sent on."""
    properties = fallback(
        1,
        ORIGIN_MESSAGE_ID="FIRST",
        RETRY_TOPIC="Original",
        MIN_OFFSET="0",
        MAX_OFFSET="9",
        CONSUME_START_TIME="1",
        TRAN_MSG="true",
        REAL_TOPIC="%RETRY%g",
        REAL_QID="0",
    )
    assert properties["ORIGIN_MESSAGE_ID"] == "FIRST"
    assert properties["RETRY_TOPIC"] == "Original"
    local = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "TRAN_MSG", "REAL_TOPIC", "REAL_QID"}
    assert not local & set(properties)

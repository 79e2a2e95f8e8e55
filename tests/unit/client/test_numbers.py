"""Numbers that Java's client has, or that ours is known by: each with the entry that says so."""

from __future__ import annotations

import pytest

from rocketstream.client.consumer import (
    listener,
    process_queue,
    pull_answer,
    retry,
    settings,
)
from rocketstream.client.consumer.consume import orderly_queue, orderly_turn
from rocketstream.client.consumer.lite_topics import topics
from rocketstream.client.consumer.process_queue import MIB, Thresholds
from rocketstream.client.producer.policy import ISOLATION_LATENCY_MS

TIMES = orderly_queue.OrderlyTimes()
LITE = settings.LitePullConsumerSettings("g")


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        pytest.param(Thresholds(), Thresholds(1_000, 100, 2_000), id="C-30 to C-34"),
        pytest.param(MIB, 1_048_576, id="C-31"),
        pytest.param(
            (
                LITE.pull_threshold_for_all,
                LITE.pull_threshold_for_queue,
                LITE.pull_threshold_size_for_queue,
                LITE.consume_max_span,
            ),
            (10_000, 1_000, 100, 2_000),
            id="C-66 to C-69",
        ),
        pytest.param(orderly_turn.LOCK_RETRY_RUNNING_MS, 10, id="C-281"),
        pytest.param(orderly_turn.LOCK_RETRY_MS, 100, id="C-281 at the start"),
        pytest.param(orderly_turn.LOCK_RETRY_FAILED_MS, 3_000, id="C-283"),
        pytest.param(orderly_turn.RESUME_MS, 10, id="C-283 where it was given"),
        pytest.param(
            (listener.SUSPEND_MS_MIN, listener.SUSPEND_MS_MAX),
            (10, 30_000),
            id="C-284",
        ),
        pytest.param(retry.RECONSUME_FOREVER, 2_147_483_647, id="C-287"),
        pytest.param(TIMES.lock_max_live_ms, 30_000, id="C-236"),
        pytest.param(TIMES.lock_interval_ms, 20_000, id="C-236, how often"),
        pytest.param(TIMES.first_lock_ms, 1_000, id="C-640"),
        pytest.param(TIMES.turn_max_ms, 60_000, id="C-282"),
        pytest.param(TIMES.release_wait_ms, 1_000, id="C-179"),
        pytest.param(process_queue.PULL_MAX_IDLE_MS, 120_000, id="C-176"),
        pytest.param(pull_answer.FLOW_CONTROL_DELAY_MS, 20, id="C-230"),
        pytest.param(pull_answer.SUSPENDED_DELAY_MS, 1_000, id="C-203"),
        pytest.param(settings.AUTO_COMMIT_INTERVAL_MS_MIN, 1_000, id="C-63"),
        pytest.param(settings.BROKER_BATCH, 32, id="C-370"),
        pytest.param(retry.MAX_RECONSUME_TIMES_CONCURRENTLY, 16, id="C-40"),
        pytest.param(retry.FIRST_RETRY_DELAY_LEVEL, 3, id="C-264"),
        pytest.param(retry.EXPIRED_DELAY_LEVEL, 3, id="C-248"),
        pytest.param(listener.ACK_ALL, 2_147_483_647, id="C-262"),
        pytest.param(ISOLATION_LATENCY_MS, 10_000, id="C-465"),
        pytest.param(topics.TELL_ALL_AGAIN_MS, 60_000, id="lite topics, told again"),
        pytest.param(topics.RENEWALS, 3, id="lite topics, renewed"),
    ],
)
def test_a_number_that_others_rely_on(number: object, wanted: object) -> None:
    assert number == wanted

"""Numbers that Java's client has, or that ours is known by: each with the entry that says so."""

from __future__ import annotations

import pytest

from rocketstream.client.consumer import (
    assignment,
    listener,
    process_queue,
    pull_answer,
    pull_requests,
    puller,
    retry,
    send_back,
    settings,
)
from rocketstream.client.consumer.consume import (
    concurrent,
    orderly,
    orderly_queue,
    orderly_turn,
    queue_locks,
    workers,
)
from rocketstream.client.consumer.lite_topics import topics
from rocketstream.client.consumer.process_queue import MIB, Thresholds
from rocketstream.client.consumer.pull import schedule
from rocketstream.client.consumer.push import impl
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
        pytest.param(settings.LITE_BATCH, 256, id="lite pulls, of brokers that give more"),
        pytest.param(settings.COLUMNS_BATCH, 1_024, id="pulls for columns, likewise"),
        pytest.param(retry.MAX_RECONSUME_TIMES_CONCURRENTLY, 16, id="C-40"),
        pytest.param(retry.FIRST_RETRY_DELAY_LEVEL, 3, id="C-264"),
        pytest.param(retry.EXPIRED_DELAY_LEVEL, 3, id="C-248"),
        pytest.param(listener.ACK_ALL, 2_147_483_647, id="C-262"),
        pytest.param(ISOLATION_LATENCY_MS, 10_000, id="C-465"),
        pytest.param((impl.BROKER_SUSPEND_MS, impl.PULL_TIMEOUT_MS), (15_000, 30_000), id="C-210"),
        pytest.param(impl._FLOW_LOG_EVERY, 1_000, id="C-205"),
        pytest.param(impl.EXPIRED_CHECKED_MAX, 16, id="C-248 in one scan"),
        pytest.param(
            pull_requests.PullTerms._field_defaults,
            {"commit": 0, "interval_ms": 0, "take_records": None},
            id="C-211 and C-35: what a pull has of neither",
        ),
        pytest.param(puller.QUICK_ANSWER_MS, 100, id="a broker that holds no pulls"),
        pytest.param(pull_requests.LOSSES_TOLD_EVERY_MS, 10_000, id="losses, summed up"),
        pytest.param(workers.CANCEL_WAIT_MS_MIN, 1_000, id="C-120"),
        pytest.param(workers._LOOK_S, 0.001, id="C-254: another worker"),
        pytest.param(concurrent.FLUSH_INTERVAL_MS, 5, id="C-265: offsets of slow runs"),
        pytest.param(orderly.STATS_INTERVAL_MS, 1_000, id="C-259: figures of slow turns"),
        pytest.param(orderly._COUNT_MASK, 63, id="C-259: figures of quick turns"),
        pytest.param(orderly._TURN_YIELDS_MS, 2.0, id="coroutines that never wait"),
        pytest.param(send_back.SEND_BACK_TIMEOUT_MS, 5_000, id="C-270"),
        pytest.param(send_back.FALLBACK_TIMEOUT_MS, 3_000, id="C-271"),
        pytest.param(send_back.NO_CAUSE_MS, 60_000, id="failures, sent back without their cause"),
        pytest.param(queue_locks.LOCK_TIMEOUT_MS, 1_000, id="C-640: a request for locks"),
        pytest.param(queue_locks.REFUSED_RETRY_MS, (500, 500, 1_000, 2_000), id="C-560"),
        pytest.param(schedule.PULL_THREADS, 20, id="C-500"),
        pytest.param(
            (schedule.PULL_NEXT_DELAY_MS, schedule.FAILED_DELAY_MS), (200, 1_000), id="C-502"
        ),
        pytest.param(assignment.TWICE_EXPECTED, 6, id="rounds that may find this member twice"),
        pytest.param(topics.TELL_ALL_AGAIN_MS, 60_000, id="lite topics, told again"),
        pytest.param(topics.RENEWALS, 3, id="lite topics, renewed"),
    ],
)
def test_a_number_that_others_rely_on(number: object, wanted: object) -> None:
    assert number == wanted

"""Where a stream begins: each way to say what is read, each way to say from where.

The cases of Spark's own suite for its Kafka source, losses an error or not: in none of them is
anything lost, so the rows must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.spark.micro_batches import Query, Topics

StartQuery = Callable[..., Query]
Way = Callable[[str], dict[str, str]]

QUEUES = 5


def assigned(topic: str) -> dict[str, str]:
    """Queue by queue."""
    return {"assign": json.dumps({topic: {"broker-a": list(range(QUEUES))}})}


def named(topic: str) -> dict[str, str]:
    """By name."""
    return {"topic": topic}


def matched(topic: str) -> dict[str, str]:
    """By a pattern."""
    return {"topicPattern": f"{topic[:-1]}[{topic[-1]}]"}


every_way = pytest.mark.parametrize("way", [assigned, named, matched])
losses_or_not = pytest.mark.parametrize("fail_on_data_loss", [True, False])


def per_queue(topic: str, values: list[int]) -> str:
    """JSON with a value for each queue."""
    return json.dumps({topic: {"broker-a": {str(i): value for i, value in enumerate(values)}}})


def goes_on(topics: Topics, topic: str, query: Query, way: Way, rows: list[int]) -> None:
    """Restarted it repeats nothing, reads what came meanwhile, and queues that are new."""
    assert query.restart().drain() == sorted(rows)
    query.stop()
    topics.put(topic, [30, 31, 32])
    assert query.start().drain() == sorted([*rows, 30, 31, 32])
    topics.cluster.create_topic(topic, queues=10)
    topics.put(topic, list(range(40, 50)), queues=10)
    # What is assigned is read and nothing else.
    new = range(40, 45) if way is assigned else range(40, 50)
    assert query.drain() == sorted([*rows, 30, 31, 32, *new])


@every_way
@losses_or_not
def test_from_latest_it_reads_what_comes_after_its_start(
    topics: Topics, topic: str, query: StartQuery, way: Way, fail_on_data_loss: bool
) -> None:
    """Also what came while it was stopped before its first row."""
    topics.cluster.create_topic(topic, queues=QUEUES)
    topics.put(topic, [-1])
    options = way(topic) | {"startingOffsets": "latest", "failOnDataLoss": fail_on_data_loss}
    running = query(**options)
    assert running.drain() == []
    topics.put(topic, [1, 2, 3])
    assert running.drain() == [1, 2, 3]
    goes_on(topics, topic, running, way, [1, 2, 3])


@every_way
@losses_or_not
def test_from_earliest_it_reads_everything(
    topics: Topics, topic: str, query: StartQuery, way: Way, fail_on_data_loss: bool
) -> None:
    """What was there, and what comes."""
    topics.cluster.create_topic(topic, queues=QUEUES)
    topics.put(topic, [1, 2, 3])
    options = way(topic) | {"startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
    running = query(**options)
    topics.put(topic, [4, 5, 6])
    assert running.drain() == [1, 2, 3, 4, 5, 6]
    goes_on(topics, topic, running, way, [1, 2, 3, 4, 5, 6])


@every_way
@losses_or_not
def test_from_offsets_each_queue_begins_at_its_own(
    topics: Topics, topic: str, query: StartQuery, way: Way, fail_on_data_loss: bool
) -> None:
    """-2 earliest, -1 latest, others as they are."""
    topics.cluster.create_topic(topic, queues=QUEUES)
    for queue in range(QUEUES):
        topics.put(topic, [queue * 10 + row for row in range(3)], queue=queue)
    offsets = per_queue(topic, [-2, -1, 0, 1, 2])
    options = way(topic) | {"startingOffsets": offsets, "failOnDataLoss": fail_on_data_loss}
    running = query(**options)
    rows = [0, 1, 2, 20, 21, 22, 31, 32, 42]
    assert running.drain() == rows
    goes_on(topics, topic, running, way, rows)


def two_times(topics: Topics, topic: str) -> tuple[int, int]:
    """Five queues with rows of two times, the last with rows of the first alone."""
    topics.cluster.create_topic(topic, queues=QUEUES)
    first = topics.clock.now_ms()
    for queue, rows in enumerate([[0], [10], [20, 21], [11, 12], [13, 14, 15]]):
        for row in rows:
            topics.put(topic, [row], queue=queue)
    second = topics.clock.now_ms()
    for queue, rows in enumerate([[1, 2], [3, 4], [5], [6]]):
        topics.put(topic, rows, queue=queue)
    return first, second


@every_way
@losses_or_not
def test_from_times_each_queue_begins_at_its_own(
    topics: Topics, topic: str, query: StartQuery, way: Way, fail_on_data_loss: bool
) -> None:
    """The second time, the last queue from the first."""
    first, second = two_times(topics, topic)
    times = per_queue(topic, [second] * 4 + [first])
    options: dict[str, Any] = way(topic) | {"startingOffsetsByTimestamp": times}
    running = query(**options, failOnDataLoss=fail_on_data_loss)
    rows = [1, 2, 3, 4, 5, 6, 13, 14, 15]
    assert running.drain() == rows
    goes_on(topics, topic, running, way, rows)


@every_way
@losses_or_not
def test_from_one_time_every_queue_begins_there(
    topics: Topics, topic: str, query: StartQuery, way: Way, fail_on_data_loss: bool
) -> None:
    """Every queue has rows of that time."""
    _, second = two_times(topics, topic)
    topics.put(topic, [23, 24], queue=4)
    options: dict[str, Any] = way(topic) | {"startingTimestamp": second}
    running = query(**options, failOnDataLoss=fail_on_data_loss)
    rows = [1, 2, 3, 4, 5, 6, 23, 24]
    assert running.drain() == rows
    goes_on(topics, topic, running, way, rows)

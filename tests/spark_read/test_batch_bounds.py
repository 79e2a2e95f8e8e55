"""Where a batch begins and ends: offsets and times, of all queues or of each its own.

The cases of Spark's own suite for its Kafka relation that need no Spark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.errors import ConfigurationError, DataLossError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.spark import worker
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.options import read_options
from rocketstream.spark.patience import Patience
from rocketstream.spark.reader import input_partitions
from rocketstream.spark.scan import PartitionPlan, QueueRange, new_scan
from tests.kits.spark.fake_cluster import A, B, FakeCluster, pause
from tests.kits.spark.micro_batches import Topics, batch_rows

QUEUES = 3


@dataclass(frozen=True)
class Timed:
    """Rows 0 to 29 in three queues, row n in queue n % 3, ten of each time."""

    topics: Topics
    topic: str
    first: int
    second: int
    third: int
    after: int

    def rows(self, **options: Any) -> list[int]:
        """What a batch reads."""
        return batch_rows(self.topics.cluster, topic=self.topic, **options)

    def each(self, *values: int) -> str:
        """JSON with a value for each queue."""
        by_queue = {str(queue): value for queue, value in enumerate(values)}
        return json.dumps({self.topic: {"broker-a": by_queue}})


@pytest.fixture
def timed(topics: Topics, topic: str) -> Iterator[Timed]:
    """Time passes between the tens."""
    topics.cluster.create_topic(topic, queues=QUEUES)
    times = {}
    for first in (0, 10, 20):
        times[first] = topics.clock.now_ms()
        for queue in range(QUEUES):
            rows = [row for row in range(first, first + 10) if row % QUEUES == queue]
            topics.put(topic, rows, queue=queue)
    yield Timed(topics, topic, times[0], times[10], times[20], topics.clock.now_ms())
    worker.close_pools()


def test_times_of_each_queue_bound_a_batch(timed: Timed) -> None:
    """From the second time to the third."""
    start, end = timed.each(*[timed.second] * 3), timed.each(*[timed.third] * 3)
    rows = timed.rows(startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end)
    assert rows == list(range(10, 20))


def test_times_begin_where_offsets_end(timed: Timed) -> None:
    """Of the last queue its first row alone."""
    start, end = timed.each(*[timed.first] * 3), timed.each(-1, -1, 1)
    rows = timed.rows(startingOffsetsByTimestamp=start, endingOffsets=end)
    assert rows == [row for row in range(30) if row % 3 != 2 or row == 2]


def test_offsets_begin_where_times_end(timed: Timed) -> None:
    """Everything before the third time."""
    start, end = timed.each(-2, -2, 0), timed.each(*[timed.third] * 3)
    rows = timed.rows(startingOffsets=start, endingOffsetsByTimestamp=end)
    assert rows == list(range(20))


def test_times_of_each_queue_alone_are_enough(timed: Timed) -> None:
    """The other end is the topic's."""
    assert timed.rows(startingOffsetsByTimestamp=timed.each(*[timed.second] * 3)) == list(
        range(10, 30)
    )
    assert timed.rows(endingOffsetsByTimestamp=timed.each(*[timed.third] * 3)) == list(range(20))


def test_one_time_bounds_every_queue(timed: Timed) -> None:
    """Begin inclusive, end exclusive."""
    rows = timed.rows(startingTimestamp=timed.second, endingTimestamp=timed.third)
    assert rows == list(range(10, 20))


def test_a_queue_without_a_row_of_its_ending_time_is_read_to_its_end(timed: Timed) -> None:
    """Nothing is left out that is old enough."""
    end = timed.each(timed.second, timed.second, timed.after + 10**9)
    rows = timed.rows(endingOffsetsByTimestamp=end)
    assert rows == [row for row in range(30) if row < 10 or row % 3 == 2]


def test_a_queue_without_a_row_of_its_starting_time_is_an_error_where_asked(timed: Timed) -> None:
    """By default it begins at its end."""
    start = timed.each(timed.second, timed.second, timed.after + 10**9)
    assert timed.rows(startingOffsetsByTimestamp=start) == [
        row for row in range(10, 30) if row % 3 != 2
    ]
    strict = {"startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(ConfigurationError, match="queue 2"):
        timed.rows(startingOffsetsByTimestamp=start, **strict)


def test_two_ways_to_say_where_a_batch_begins_are_refused(timed: Timed) -> None:
    """None of them is quietly preferred."""
    both = {"startingTimestamp": timed.third, "startingOffsets": "earliest"}
    with pytest.raises(ConfigurationError, match="'startingOffsets' and 'startingTimestamp'"):
        timed.rows(**both)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("end", ["offset", "time"])
def test_a_batch_that_ends_before_it_begins_is_an_error(
    timed: Timed, end: str, fail_on_data_loss: bool
) -> None:
    """An empty table would hide the mistake; the text says which of both is where."""
    bounds: dict[str, Any] = {"startingOffsets": timed.each(-2, 8, -2)}
    if end == "offset":
        bounds["endingOffsets"] = timed.each(-1, 4, -1)
    else:
        bounds["endingTimestamp"] = timed.second  # where queue 1 had 3 rows
    with pytest.raises(ConfigurationError, match=r"queue 1.* begins at offset 8 and ends at [34]"):
        timed.rows(**bounds, failOnDataLoss=fail_on_data_loss)


def test_a_queue_may_be_left_out_by_its_bounds(timed: Timed) -> None:
    """From its end to its end, or from its beginning to its beginning."""
    nothing = {"startingOffsets": timed.each(-1, -2, 5), "endingOffsets": timed.each(-1, 0, 5)}
    assert timed.rows(**nothing) == []


def test_a_batch_that_begins_after_everything_there_is_is_a_loss(timed: Timed) -> None:
    """A topic made anew has fewer rows than the offsets somebody wrote down."""
    start = {"startingOffsets": timed.each(-2, 100, -2)}
    with pytest.raises(DataLossError, match="offsets 100 and on were asked for"):
        timed.rows(**start)
    rows = timed.rows(**start, failOnDataLoss=False)
    assert rows == [row for row in range(30) if row % 3 != 1]


def test_what_expired_is_not_read_from_earliest_and_missed_by_offset(
    topics: Topics, topic: str
) -> None:
    """Earliest is what is there when the batch is planned."""
    topics.cluster.create_topic(topic, queues=1)
    topics.put(topic, range(300), queue=0)
    assert batch_rows(topics.cluster, topic=topic) == list(range(300))
    topics.expire(topic)
    rows = batch_rows(topics.cluster, topic=topic)
    assert 0 < len(rows) < 300
    assert rows == list(range(300 - len(rows), 300))
    start = json.dumps({topic: {"broker-a": {"0": 0}}})
    with pytest.raises(DataLossError, match="offsets 0 to 299 were asked for"):
        batch_rows(topics.cluster, topic=topic, startingOffsets=start)
    named = {"topic": topic, "startingOffsets": start, "failOnDataLoss": False}
    assert batch_rows(topics.cluster, **named) == rows
    worker.close_pools()


@pytest.mark.parametrize(
    ("begin", "end", "is_refused"),
    [(6, 4, True), (5, 4, False), (50, 49, True), (51, 49, False), (20, 20, False)],
)
def test_a_beginning_after_the_end_is_a_mistake_only_among_rows_that_are_there(
    begin: int, end: int, is_refused: bool
) -> None:
    """A queue of the rows 5 to 49: older ones have expired, later ones are a loss."""
    given = {
        name: json.dumps({"T": {"broker": {"0": first, "1": second}}})
        for name, first, second in (("startingOffsets", 0, begin), ("endingOffsets", 100, end))
    }
    named = {"nameServer": "h:1", "topic": "T", "failOnDataLoss": "false"} | given
    options = read_options(named, "batch")
    if is_refused:
        with pytest.raises(ConfigurationError, match=f"begins at offset {begin} and ends at {end}"):
            batch_ranges(options, FakeCluster())
    else:
        assert batch_ranges(options, FakeCluster()) == [QueueRange(A, 0, 100)]


def test_rows_that_expire_while_a_batch_is_planned_are_no_loss_where_none_were_named() -> None:
    """Earliest is what was there at the first question."""
    cluster = FakeCluster()

    def ask(queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        begins = FakeCluster.min_offsets(cluster, queues)
        for queue in begins:
            cluster.table[queue][0] += 1
        return begins

    cluster.min_offsets = ask  # type: ignore[method-assign]
    options = read_options({"nameServer": "h:1", "topic": "T"}, "batch")
    assert batch_ranges(options, cluster) == [QueueRange(A, 0, 100), QueueRange(B, 5, 50)]


def test_an_offset_beyond_the_end_is_a_loss_without_a_last_row() -> None:
    """Nobody asked for the rows 60 to 59."""
    named = json.dumps({"T": {"broker": {"0": 0, "1": 60}}})
    given = {"nameServer": "h:1", "topic": "T", "startingOffsets": named, "endingOffsets": named}
    with pytest.raises(DataLossError, match="offsets 60 and on were asked for"):
        batch_ranges(read_options(given, "batch"), FakeCluster())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_batch_of_topics_without_queues_says_that_there_is_nothing(
    is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As a pattern that matches no topic has none."""
    cluster = FakeCluster()
    if not is_there:
        cluster.table.clear()
    options = read_options({"nameServer": "h:1", "topic": "T"}, "batch")
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        assert bool(batch_ranges(options, cluster)) == is_there
    assert ("there is nothing to read: T" in caplog.text) == (not is_there)


def test_a_route_that_is_away_when_tasks_are_planned_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queues were found before, so their topic is no wrong name."""
    monkeypatch.setattr(Patience, "pause", pause)
    cluster, refusals = FakeCluster(), [RouteNotFoundError("no route")]

    def addresses(queues: Iterable[MessageQueue]) -> dict[str, str]:
        if refusals:
            raise refusals.pop()
        return {queue.broker_name: "h:2" for queue in queues}

    cluster.addresses = addresses  # type: ignore[method-assign]
    scan = new_scan(cluster._options, ALL_COLUMNS)
    (partition,) = input_partitions(scan, [QueueRange(A, 0, 5)], cluster)
    planned: PartitionPlan = partition.value
    assert (planned.spans, planned.addresses) == ((QueueRange(A, 0, 5),), {"broker": "h:2"})

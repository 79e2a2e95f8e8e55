"""Topics of a pattern that are deleted under a stream: told of once, and carried no further."""

from __future__ import annotations

import json
import logging

import pytest

from rocketstream.errors import DataLossError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import QueueRange
from tests.kits.spark.fake_cluster import READ_ON, A, B, FakeCluster, pause, restarted

OLD = MessageQueue("T-old", "broker", 0)
PATTERN = {"topicPattern": "T.*", **READ_ON}


@pytest.fixture(autouse=True)
def pauses_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting advances the clock of the test."""
    monkeypatch.setattr(Patience, "pause", pause)


def losing_a_topic(**options: str) -> tuple[FakeCluster, StreamOffset]:
    """A stream that read a topic to its end, which was deleted then."""
    cluster = FakeCluster(**options)
    cluster.table[OLD] = [0, 30]
    end = cluster.start()
    assert end.ends == {A: 100, B: 50, OLD: 30}
    del cluster.table[OLD]
    cluster.elsewhere[OLD] = 0
    return cluster, end


def test_deleted_topic_of_a_pattern_leaves_the_offsets_with_the_next_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told once; a topic of that name made later is read from its first row, without a word."""
    cluster, end = losing_a_topic(**PATTERN)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        assert cluster.latest(end) is end, "nothing came, so there is no batch"
        cluster.table[A][1] = 110
        following = cluster.latest(end)
        told = len(caplog.messages)
        assert following.ends == {A: 110, B: 50}
        assert OLD not in {**following.base, **following.marks}
        assert cluster.source.ranges(end, following) == [QueueRange(A, 100, 110)]
        assert cluster.latest(following) is following
        cluster.table[OLD] = [0, 0]
        cluster.again(OLD, 4)
        last = cluster.latest(following)
    assert cluster.source.ranges(following, last) == [QueueRange(OLD, 0, 4)]
    assert caplog.text.count("data loss in ") == 1
    assert len(caplog.messages) == told


@pytest.mark.parametrize(
    "why", ["named", "broker away", "no master", "rows are there", "topic is there"]
)
def test_queue_that_may_come_back_keeps_its_place(why: str) -> None:
    options = READ_ON if why == "named" else PATTERN
    cluster, end = losing_a_topic(**options)
    if why == "broker away":
        del cluster.elsewhere[OLD]
    elif why == "no master":
        cluster.led = False
    elif why == "rows are there":
        cluster.elsewhere[OLD] = 30
    elif why == "topic is there":
        cluster.table[MessageQueue("T-old", "broker-b", 0)] = [0, 0]
    cluster.table[A][1] = 110
    assert cluster.latest(end).ends == {A: 110, B: 50, OLD: 30}


def test_topic_made_anew_before_the_next_batch_is_told_and_read_from_its_first_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, end = losing_a_topic(**PATTERN)
    cluster.latest(end)
    cluster.table[OLD] = [0, 0]
    cluster.again(OLD, 4)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        following = cluster.latest(end)
    assert cluster.source.ranges(end, following) == [QueueRange(OLD, 0, 4)]
    assert "the topic was recreated" in caplog.text
    del cluster.table[OLD]
    cluster.elsewhere[OLD] = 4  # it is not deleted this time
    cluster.table[A][1] = 110
    assert cluster.latest(following).ends == {A: 110, B: 50, OLD: 4}


def test_restart_on_offsets_with_a_deleted_topic_tells_of_it_and_drops_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, end = losing_a_topic(**PATTERN)
    again = restarted(before, end, **PATTERN)
    again.table[A][1] = 110
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        following = again.latest(end)
    assert following.ends == {A: 110, B: 50}
    assert caplog.text.count("data loss in ") == 1
    strict, end = losing_a_topic(topicPattern="T.*", queueRefreshMs="0")
    strict.table[A][1] = 110
    with pytest.raises(DataLossError, match="it was read up to 30, and its broker says it ends at"):
        strict.latest(end)


def test_topic_deleted_before_its_batch_was_read_is_dropped_too() -> None:
    cluster, end = losing_a_topic(**PATTERN)
    planned = StreamOffset({A: 120, B: 50, OLD: 40})
    cluster.table[A][1] = 120
    cluster.clock.advance(200)
    assert cluster.source.ranges(end, planned) == [QueueRange(A, 100, 120)]
    cluster.table[A][1] = 130
    assert cluster.latest(planned).ends == {A: 130, B: 50}


def test_first_batch_after_a_deletion_begins_where_the_stream_began() -> None:
    cluster = FakeCluster(**PATTERN)
    cluster.table[OLD] = [0, 30]
    begin = cluster.source.initial()
    del cluster.table[OLD]
    cluster.elsewhere[OLD] = 0
    end = cluster.latest(begin)
    assert (end.ends, end.base) == ({A: 100, B: 50}, {A: 0, B: 5})


def test_topics_made_and_deleted_one_after_the_other_leave_nothing() -> None:
    cluster = FakeCluster(**PATTERN)
    end = cluster.start()
    sizes = set()
    for n in range(1_000, 1_030):
        job = MessageQueue(f"T-{n}", "broker", 0)
        cluster.table[job] = [0, 10]
        end = cluster.latest(end)
        assert end.ends[job] == 10
        del cluster.table[job]
        cluster.elsewhere[job] = 0
        cluster.table[A][1] += 1
        end = cluster.latest(end)
        sizes.add(len(json.dumps(end.to_json())) // 10)
        continuity = cluster.source._continuity
        held = [continuity._absent, continuity._asked, continuity._compared, continuity._deleted]
        assert max(map(len, [*held, continuity._restarts, cluster.source._starts])) <= 4
    assert len(sizes) == 1


@pytest.mark.parametrize("retry_ms", [30_000, 1_000])
def test_deleted_topic_is_waited_for_no_longer_than_a_removed_queue(retry_ms: int) -> None:
    """Its broker is there and holds nothing of it; a broker that is away is another case."""
    cluster, end = losing_a_topic(**PATTERN, retryTimeoutMs=str(retry_ms))
    cluster.clock.advance(200)
    began = cluster.clock.monotonic_ms()
    cluster.source.latest(end, False)
    assert cluster.clock.monotonic_ms() - began == min(3_000, retry_ms)

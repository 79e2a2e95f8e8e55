"""A stream's offsets under Spark's calls, with a cluster made of dictionaries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

import pytest

from rocketstream.errors import ConnectError, DataLossError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import Mark, StreamOffset
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import QueueRange
from rocketstream.testing.clock import ManualClock
from tests.kits.spark.fake_cluster import A, B, C, FakeCluster, pause


@pytest.fixture(autouse=True)
def pauses_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting advances the clock of the test."""
    monkeypatch.setattr(Patience, "pause", pause)


def test_initial_is_resolved_once() -> None:
    """Covers S 2.2: Spark asks twice and more on a fresh start."""
    cluster = FakeCluster(startingOffsets="latest")
    first = cluster.source.initial()
    cluster.table[A][1] = 120
    assert cluster.source.initial() == first
    assert (first.ends, first.initial) == ({A: 100, B: 50}, True)


def test_nothing_new_is_the_same_object() -> None:
    """Covers S 2.2: "new data" is another text, so the same dict must go back."""
    cluster = FakeCluster()
    end = cluster.start()
    assert cluster.latest(end) is end
    cluster.table[B][1] = 51
    assert cluster.latest(end).ends == {A: 100, B: 51}


def test_a_limit_applies_only_when_spark_says_so() -> None:
    """Covers S 8.4: ReadAllAvailable must ignore maxOffsetsPerTrigger."""
    cluster = FakeCluster(maxOffsetsPerTrigger="29")
    initial = cluster.source.initial()
    limited = cluster.latest(initial, True)
    assert limited.ends == {A: 20, B: 14}
    assert cluster.latest(limited).ends == {A: 100, B: 50}


def test_available_now_stops_at_its_target() -> None:
    """Later messages, and queues that appear later, are for the next run."""
    cluster = FakeCluster()
    cluster.source.prepare_available_now()
    cluster.table[A][1] = 500
    cluster.table[C] = [0, 10]
    end = cluster.latest(cluster.source.initial(), True)
    assert end.ends == {A: 100, B: 50}
    assert cluster.latest(end) is end


def test_a_new_queue_begins_at_its_oldest_message_once_it_has_one() -> None:
    """Covers S 8.3."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    cluster.table[C] = [7, 7]
    assert cluster.latest(end) is end
    cluster.table[C] = [7, 9]
    grown = cluster.latest(end)
    assert (grown.ends[C], dict(grown.base)) == (9, {C: 7})
    assert cluster.source.ranges(end, grown) == [QueueRange(C, 7, 9)]


def test_failures_that_pass_are_waited_for() -> None:
    """Covers S 0.6: an exception would end the query."""
    cluster = FakeCluster()
    end = cluster.start()
    cluster.table[A][1] = 110
    cluster.failures = [ConnectError("away"), RouteNotFoundError("no route")]
    assert cluster.latest(end).ends == {A: 110, B: 50}


def test_failures_end_the_query_when_they_do_not_pass() -> None:
    """retryTimeoutMs bounds the wait; a wrong topic at the start is not waited for at all."""
    cluster = FakeCluster(retryTimeoutMs="0")
    end = cluster.start()
    cluster.failures = [ConnectError("away")]
    with pytest.raises(ConnectError):
        cluster.latest(end)
    unknown = FakeCluster(startingOffsets="latest")
    unknown.failures = [RouteNotFoundError("no such topic")]
    with pytest.raises(RouteNotFoundError):
        unknown.source.initial()


def test_a_broker_that_comes_back_shorter_for_a_moment_is_no_loss() -> None:
    """Its queues may still be loading."""
    cluster = FakeCluster()
    end = cluster.start()
    full = cluster.table[A]
    cluster.table[A] = [0, 0]

    def ask(queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        answer = FakeCluster.max_offsets(cluster, queues)
        cluster.table[A] = full
        return answer

    cluster.max_offsets = ask  # type: ignore[method-assign]
    assert cluster.latest(end) is end


def test_progress_is_reported_for_what_spark_has_committed() -> None:
    """Covers S 0.6: start is the end of the last committed batch; only changes are sent."""
    cluster = FakeCluster(group="g")
    end = cluster.start()
    assert cluster.reports == []
    cluster.latest(end)
    cluster.table[A][1] = 120
    following = cluster.latest(end)
    cluster.source.commit(following)
    cluster.source.commit(following)
    assert cluster.reports == [{A: 100, B: 50}, {A: 120}]


def test_progress_that_cannot_be_reported_is_reported_later() -> None:
    """Best effort: the checkpoint is the truth."""
    cluster = FakeCluster(group="g")
    end = cluster.start()
    cluster.failures = [ConnectError("away")]
    cluster.source.commit(end)
    assert cluster.reports == []
    cluster.source.commit(end)
    assert cluster.reports == [{A: 100, B: 50}]


def test_a_report_that_fails_is_not_tried_at_every_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark asks every 11 ms; a broker that is away would fill the log."""
    cluster = FakeCluster(group="g")
    end = cluster.start()
    cluster.report = refusing(cluster)  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        for _ in range(20):
            cluster.table[A][1] += 1
            cluster.clock.advance(100)
            cluster.source.latest(end, False)
    assert caplog.text.count("not reported") == 1


def refusing(cluster: FakeCluster) -> Callable[..., None]:
    """A report whose broker is away."""

    def report(group: str, offsets: Mapping[MessageQueue, int]) -> None:
        raise ConnectError("away")

    return report


def test_without_a_group_nothing_is_reported() -> None:
    """No group is made up at the broker."""
    cluster = FakeCluster()
    cluster.source.commit(cluster.start())
    assert cluster.reports == []


def test_ends_are_not_asked_for_every_eleven_milliseconds() -> None:
    """Covers S 2.2: Spark's idle loop; the answer is at most 100 ms old."""
    cluster = FakeCluster(maxOffsetsPerTrigger="1")
    start = cluster.source.initial()
    questions = cluster.questions
    for _ in range(10):
        cluster.clock.advance(9)
        start = cluster.source.latest(start, True)
    assert cluster.questions == questions + 1


def test_an_idle_stream_waits_inside_and_sees_news_at_once() -> None:
    """Covers S 8.4: the wait ends with the first message, well before its time."""
    cluster = FakeCluster()
    end = cluster.start()
    assert cluster.latest(end) is end

    def arrives(ends: Mapping[MessageQueue, int], timeout_ms: float) -> bool:
        cluster.table[A][1] += 1
        return True

    cluster.held_pulls.news = arrives  # type: ignore[method-assign]
    assert cluster.source.latest(end, False).ends[A] == 101


def test_an_idle_stream_asks_brokers_hardly_anything() -> None:
    """Less than two requests a second and queue, as Spark asks every 11 ms for a minute."""
    cluster = FakeCluster()
    end = cluster.start()
    questions, since = cluster.questions, cluster.clock.monotonic_ms()
    while (seconds := (cluster.clock.monotonic_ms() - since) / 1000) < 60:
        cluster.clock.advance(11)
        assert cluster.source.latest(StreamOffset.from_json(end.to_json()), False) == end
    assert 10 <= cluster.questions - questions <= seconds / 4


def test_a_queue_that_appears_ends_the_quiet() -> None:
    """Its first message is seen as soon as the queues are looked up again."""
    cluster = FakeCluster(queueRefreshMs="1000")
    end = cluster.start()
    cluster.latest(end)
    cluster.latest(end)
    cluster.table[C] = [0, 3]
    seen = [cluster.latest(end) for _ in range(6)]
    assert seen[-1].ends == {A: 100, B: 50, C: 3}


def test_what_is_new_counts_although_the_held_pulls_hear_nothing() -> None:
    """It is a hint: a broker that holds no pulls delays, and loses nothing."""
    cluster = FakeCluster()
    end = cluster.start()
    cluster.latest(end)
    cluster.held_pulls.news = lambda ends, timeout_ms: False  # type: ignore[method-assign]
    cluster.table[A][1] = 101
    assert [cluster.latest(end).ends[A] for _ in range(30)][-1] == 101


def test_stop_ends_a_wait() -> None:
    """Also a wait that is under way."""
    cluster = FakeCluster()
    end = cluster.start()
    assert cluster.latest(end) is end
    before = cluster.clock.monotonic_ms()
    assert cluster.source.latest(end, False) is end
    assert cluster.clock.monotonic_ms() > before
    cluster.source.stop()
    before = cluster.clock.monotonic_ms()
    assert cluster.source.latest(end, False) is end
    assert cluster.clock.monotonic_ms() == before


def test_spark_40_tells_no_start_and_seeds_by_partitions() -> None:
    """Covers S 1: latestOffset() comes first and alone; a restart plans the last offset twice."""
    fresh = FakeCluster()
    end = fresh.latest(None)
    assert dict(end.base) == {A: 0, B: 5}
    assert fresh.source.ranges(fresh.source.initial(), end)
    fresh.table[A][1] = 110
    assert fresh.latest(None).ends == {A: 110, B: 50}

    restarted = FakeCluster(startingOffsets="latest")
    logged = StreamOffset({A: 60, B: 50})
    assert restarted.source.ranges(logged, logged) == []
    end = restarted.latest(None)
    assert restarted.source.ranges(logged, end) == [QueueRange(A, 60, 100)]


def test_spark_40_plans_the_last_batch_at_a_restart_without_its_rows() -> None:
    """It is done, so a queue of it that has left the route since is no loss; replayed it is one."""
    first = FakeCluster()
    end = first.start()
    restarted = FakeCluster(retryTimeoutMs="0")
    del restarted.table[B]
    assert restarted.source.ranges(end, end) == []
    with pytest.raises(DataLossError, match="queue 1"):
        restarted.source.ranges(restarted.source.initial(), end)


def test_newest_is_what_was_last_seen() -> None:
    """For the query's progress; none before the first look."""
    cluster = FakeCluster()
    assert cluster.source.newest() is None
    cluster.start()
    newest = cluster.source.newest()
    assert newest is not None
    assert newest == StreamOffset({A: 100, B: 50})


def test_a_name_server_that_is_away_does_not_stop_a_running_stream() -> None:
    """The brokers still answer."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()

    def away(*, refresh: bool = False, held: Collection[str] = ()) -> list[MessageQueue]:
        raise ConnectError("name server away")

    cluster.queues = away  # type: ignore[method-assign]
    cluster.table[A][1] = 110
    assert cluster.latest(end).ends == {A: 110, B: 50}


def test_the_text_of_a_checkpoint_is_what_earlier_versions_read() -> None:
    """Its numbers too: a query goes on with the text another version wrote."""
    told = StreamOffset({A: 1}, base={A: 0}, initial=True, marks={A: Mark(5, 9)}).to_json()
    assert told == {
        "v": 2,
        "q": {"T": {"broker": {"0": 1}}},
        "base": {"T": {"broker": {"0": 0}}},
        "init": 1,
        "at": {"T": {"broker": {"0": [5, 9]}}},
        "crc": 2_548_221_790,
    }


def test_the_only_row_of_a_queue_is_remembered_too() -> None:
    """By it the queue is known again; an empty one has none."""
    cluster = FakeCluster()
    cluster.table = {A: [0, 1], B: [0, 0]}
    assert set(cluster.start().marks) == {A}
    assert all(at >= 0 for rows in cluster.marked for at in rows.values())


@pytest.mark.parametrize(
    ("options", "age_ms", "is_asked"),
    [
        ({}, 5_000, False),
        ({}, 5_001, True),
        ({"minOffsetsPerTrigger": "1000"}, 500, False),
        ({"minOffsetsPerTrigger": "1000"}, 501, True),
    ],
    ids=["idle", "idle for longer", "rows wait", "rows wait for longer"],
)
def test_known_ends_serve_a_quiet_stream_for_exactly_so_long(
    options: dict[str, str], age_ms: float, is_asked: bool
) -> None:
    """Five seconds while held pulls would tell; half of one while rows wait for more of them."""
    cluster = FakeCluster(**options)
    end = cluster.latest(cluster.source.initial(), True)
    cluster.table[A][1] += bool(options)
    asked_at = []

    def ask(queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        asked_at.append(cluster.clock.monotonic_ms())
        return FakeCluster.max_offsets(cluster, queues)

    cluster.max_offsets = ask  # type: ignore[method-assign]
    assert cluster.latest(end, True) is end
    (at,) = asked_at
    cluster.clock.advance(at + age_ms - cluster.clock.monotonic_ms())
    assert cluster.source.latest(end, True) is end
    assert len(asked_at) == 1 + is_asked


def test_a_stream_listens_only_while_spark_asks_again_and_again() -> None:
    """A tenth of a second; at once where the last question is longer ago."""
    cluster = FakeCluster()
    end = cluster.start()
    waits: list[float] = []
    cluster.held_pulls.news = lambda ends, timeout_ms: bool(waits.append(timeout_ms))  # type: ignore[func-returns-value, method-assign]
    for pause_ms in (0, 50, 51, 11):
        cluster.clock.advance(pause_ms)
        assert cluster.source.latest(end, False) is end
    assert waits == [0, 100, 0, 100]


def test_a_source_with_nothing_new_keeps_no_batch_of_the_querys_other_sources_waiting() -> None:
    """Spark commits to all of them, and asks at once for the next batch."""
    cluster = FakeCluster()
    end = cluster.start()
    cluster.source.latest(end, False)
    began = cluster.clock.monotonic_ms()
    for done in (cluster.source.commit, lambda end: cluster.source.ranges(end, end)):
        for _ in range(5):
            done(end)
            assert cluster.source.latest(end, False) is end
    assert cluster.clock.monotonic_ms() == began


def test_of_several_idle_sources_one_waits_for_all() -> None:
    """Each would add its tenth of a second to the others' news; brokers are asked as seldom."""
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.kits.spark.fake_cluster.ManualClock", lambda: clock)
        clusters = [FakeCluster() for _ in range(4)]
    ends = [each.start() for each in clusters]
    questions, began = sum(each.questions for each in clusters), clock.monotonic_ms()
    rounds = 0
    while clock.monotonic_ms() - began < 60_000:
        clock.advance(11)
        rounds += 1
        for each, end in zip(clusters, ends, strict=True):
            assert each.source.latest(end, False) is end
    assert rounds >= 60_000 / 112
    assert sum(each.questions for each in clusters) - questions <= 4 * 60 / 4


def test_a_route_that_is_away_when_a_batch_is_planned_is_waited_for() -> None:
    """The checkpoint knows its topics, so that none of them is a wrong name."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    cluster.clock.advance(1)
    refusals: list[Exception] = [RouteNotFoundError("no route")]

    def queues(**_: object) -> list[MessageQueue]:
        if refusals:
            raise refusals.pop()
        return sorted(cluster.table)

    cluster.queues = queues  # type: ignore[method-assign]
    ranges = cluster.source.ranges(cluster.source.initial(), end)
    assert (ranges, refusals) == ([QueueRange(A, 0, 100), QueueRange(B, 5, 50)], [])


def test_news_that_are_none_keep_spark_waiting_for_three_looks() -> None:
    """A broker that calls at once, again and again, is not asked for ever."""
    cluster = FakeCluster()
    end = cluster.start()
    assert cluster.latest(end) is end
    looks: list[float] = []

    def calls(ends: Mapping[MessageQueue, int], timeout_ms: float) -> bool:
        looks.append(timeout_ms)
        return True

    cluster.held_pulls.news = calls  # type: ignore[method-assign]
    assert cluster.source.latest(end, False) is end
    assert looks == [100] * 3


def test_a_query_that_stopped_listens_no_more_and_has_no_connections() -> None:
    cluster = FakeCluster()
    closed: list[str] = []
    cluster.held_pulls.close = lambda: closed.append("pulls")  # type: ignore[method-assign]
    cluster.close = lambda: closed.append("cluster")  # type: ignore[method-assign]
    cluster.source.stop()
    assert closed == ["pulls", "cluster"]

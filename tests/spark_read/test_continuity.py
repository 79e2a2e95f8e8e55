"""Queues that go away, shrink or are made anew under a stream: named, and read on rightly."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable

import pytest

from rocketstream.errors import (
    ConfigurationError,
    DataLossError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import QueueRange
from tests.kits.spark.fake_cluster import READ_ON, A, B, C, FakeCluster, pause, restarted


@pytest.fixture(autouse=True)
def pauses_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting advances the clock of the test."""
    monkeypatch.setattr(Patience, "pause", pause)


# --- the beginning --------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_beginning_beyond_the_end_of_a_slave_waits_for_the_master(
    monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    """The slave may be behind; where no master comes, its end is no beginning."""
    begins = json.dumps({"T": {"broker": {"0": 150, "1": 5}}})
    cluster = FakeCluster(startingOffsets=begins, failOnDataLoss=fail)
    cluster.led = False
    with pytest.raises(TransportError, match=r"'broker' has no master now.* begin at offset 150"):
        cluster.source.initial()
    assert cluster.clock.monotonic_ms() >= 30_000

    def master_is_back(patience: Patience) -> None:
        pause(patience)
        cluster.led, cluster.table[A] = True, [0, 200]

    monkeypatch.setattr(Patience, "pause", master_is_back)
    assert cluster.source.initial().ends == {A: 150, B: 5}


def test_a_master_that_comes_back_just_now_says_where_its_queue_ends() -> None:
    """The slave was asked before it."""
    cluster = FakeCluster(startingOffsets=json.dumps({"T": {"broker": {"0": 150, "1": 5}}}))

    def back(broker_name: str) -> bool:
        cluster.table[A][1] = 200
        return True

    cluster.has_master = back  # type: ignore[method-assign]
    assert cluster.source.initial().ends == {A: 150, B: 5}


def test_a_beginning_beyond_the_end_of_a_master_is_a_loss() -> None:
    begins = json.dumps({"T": {"broker": {"0": 150, "1": 5}}})
    with pytest.raises(DataLossError, match="there are no offsets 100 to 149"):
        FakeCluster(startingOffsets=begins).source.initial()
    left_out = FakeCluster(startingOffsets=begins, failOnDataLoss="false")
    assert left_out.source.initial().ends == {A: 100, B: 5}


# --- gone from the route --------------------------------------------------------------------------


def test_a_queue_taken_from_the_route_with_unread_rows_is_a_loss() -> None:
    """Today it is forgotten, and availableNow succeeds."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    del cluster.table[B]
    cluster.elsewhere[B] = 60
    with pytest.raises(
        DataLossError,
        match=r"queue 1: the queue has left the route; it was read up to 50, .*ends at 60",
    ):
        cluster.latest(end)


def test_a_queue_that_was_read_to_its_end_may_go() -> None:
    """That is how queues are taken away without a loss."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    del cluster.table[B]
    cluster.elsewhere[B] = 50
    cluster.table[A][1] = 110
    assert cluster.latest(end).ends == {A: 110, B: 50}


def test_a_broker_that_left_the_route_is_waited_for() -> None:
    """A restart takes it out of the route; it comes back within retryTimeoutMs."""
    cluster = FakeCluster(queueRefreshMs="0", retryTimeoutMs="30000")
    end = cluster.start()
    both = dict(cluster.table)
    cluster.table.clear()
    looks = []

    def queues(**_: object) -> list[MessageQueue]:
        looks.append(1)
        if len(looks) == 20:
            cluster.table.update(both)
        return sorted(cluster.table)

    cluster.queues = queues  # type: ignore[method-assign]
    both[B][1] = 70
    assert cluster.latest(end).ends == {A: 100, B: 70}
    assert len(looks) >= 20


def test_a_broker_that_stays_away_is_a_loss_that_says_so() -> None:
    """Nobody can tell what it holds."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    began = cluster.clock.monotonic_ms()
    del cluster.table[A], cluster.table[B]
    with pytest.raises(DataLossError, match=r"left the route.*its broker cannot be asked"):
        cluster.latest(end)
    assert cluster.clock.monotonic_ms() - began >= 30_000


@pytest.mark.parametrize(
    ("gone", "retry_ms", "waited_ms"),
    [((B,), 30_000, 3_000), ((B,), 1_000, 1_000), ((A, B), 30_000, 30_000), ((A, B), 0, 0)],
    ids=["removed", "removed, impatient", "broker away", "broker away, impatient"],
)
def test_a_removed_queue_is_waited_for_less_than_a_broker(
    gone: tuple[MessageQueue, ...],
    retry_ms: int,
    waited_ms: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three seconds, as long as another queue of its topic and broker is there; told once."""
    cluster = FakeCluster(retryTimeoutMs=str(retry_ms), **READ_ON)
    end = cluster.start()
    for queue in gone:
        del cluster.table[queue]
    cluster.clock.advance(200)
    began = cluster.clock.monotonic_ms()
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        cluster.source.latest(end, False)
    assert cluster.clock.monotonic_ms() - began == waited_ms
    waits = [text for text in caplog.messages if text.startswith("waiting for queues that left")]
    assert len(waits) == bool(waited_ms)
    assert all(("queue 0" in text, "queue 1" in text) == (A in gone, True) for text in waits)


def test_the_route_is_looked_up_anew_while_a_queue_is_waited_for() -> None:
    """However long the list of queues may serve otherwise."""
    cluster = FakeCluster(queueRefreshMs="60000")
    end = cluster.start()
    away = cluster.table.pop(B)
    cluster.clock.advance(60_001)
    looks: list[int] = []

    def queues(**_: object) -> list[MessageQueue]:
        looks.append(1)
        if len(looks) == 4:
            cluster.table[B] = [away[0], 70]
        return sorted(cluster.table)

    cluster.queues = queues  # type: ignore[method-assign]
    assert cluster.latest(end).ends == {A: 100, B: 70}


def test_a_queue_that_left_keeps_its_place_when_losses_are_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning; when it is back it is read on from there, and may leave again."""
    cluster = FakeCluster(**READ_ON)
    end = cluster.start()
    away = cluster.table.pop(B)
    cluster.table[A][1] = 110
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        end = cluster.latest(end)
        assert end.ends == {A: 110, B: 50}
        cluster.latest(end)
    assert caplog.text.count("has left the route") == 1
    cluster.table[B] = [away[0], 70]
    end = cluster.latest(end)
    assert end.ends == {A: 110, B: 70}
    del cluster.table[B]
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        cluster.latest(end)
    assert caplog.text.count("has left the route") == 2


def test_available_now_reads_what_a_broker_holds_that_came_back() -> None:
    """Its queues were missing when the target was taken."""
    before = FakeCluster()
    end = before.start()
    cluster = restarted(before, end, queueRefreshMs="0")
    away = cluster.table.pop(B)
    cluster.source.prepare_available_now()
    looks: list[int] = []

    def queues(**_: object) -> list[MessageQueue]:
        looks.append(1)
        if len(looks) == 3:
            cluster.table[B] = [away[0], 90]
        return sorted(cluster.table)

    cluster.queues = queues  # type: ignore[method-assign]
    assert cluster.latest(end).ends == {A: 100, B: 90}


def test_a_planned_batch_of_a_queue_that_is_gone_is_a_loss_or_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replay after a restart; refused for ever it could never get on."""
    strict = FakeCluster(queueRefreshMs="0")
    start = strict.start()
    planned = StreamOffset({A: 120, B: 60})
    strict.table[A][1] = 120
    del strict.table[B]
    strict.elsewhere[B] = 60
    strict.clock.advance(200)
    with pytest.raises(DataLossError, match=r"queue 1: offsets 50 to 59 of a micro-batch already"):
        strict.source.ranges(start, planned)
    easy = restarted(strict, start, **READ_ON)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        assert easy.source.ranges(start, planned) == [QueueRange(A, 100, 120)]
    assert "offsets 50 to 59" in caplog.text


@pytest.mark.parametrize("options", [{}, READ_ON], ids=["losses are errors", "or accepted"])
def test_a_planned_batch_is_not_done_without_a_broker_that_nobody_can_ask(
    options: dict[str, str],
) -> None:
    """It may come back with the rows, which no later batch would read."""
    before = FakeCluster()
    start = before.start()
    before.table[B][1] = 60
    planned = before.latest(start)
    away = before.table.pop(B)
    cluster = restarted(before, planned, **options)
    cluster.clock.advance(200)
    began = cluster.clock.monotonic_ms()
    with pytest.raises(
        DataLossError, match=r"queue 1: offsets 50 to 59 .*'broker' cannot be asked"
    ):
        cluster.source.ranges(start, planned)
    assert cluster.clock.monotonic_ms() - began == 30_000
    cluster.table[B] = away
    again = restarted(cluster, planned, **options)
    assert again.source.ranges(start, planned) == [QueueRange(B, 50, 60)]


def test_a_planned_batch_goes_on_without_a_lost_broker_that_is_taken_out_of_the_options(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The way out where it never comes back: its queues are asked for no more, losses accepted."""
    lost = MessageQueue("U", "lost", 0)
    for options in ({}, READ_ON):
        cluster = FakeCluster(**options)
        start = StreamOffset({A: 90, B: 50, lost: 5})
        planned = StreamOffset({A: 100, B: 50, lost: 9})
        if not options:
            with pytest.raises(DataLossError, match=r"Start it again.*option 'assign'"):
                cluster.source.ranges(start, planned)
            continue
        with caplog.at_level(logging.WARNING, "rocketstream.spark"):
            assert cluster.source.ranges(start, planned) == [QueueRange(A, 90, 100)]
    assert "offsets 5 to 8 of a micro-batch already planned cannot be read" in caplog.text


def test_a_planned_batch_whose_tail_a_broker_lost_is_read_as_far_as_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rows that took the place of the lost ones are the next batch's, each once."""
    before = FakeCluster()
    start = before.start()
    before.table[A][1] = 120
    planned = before.latest(start)
    before.again(A, 130, begin=110)
    with pytest.raises(DataLossError, match="offsets 110 to 119 of a micro-batch already planned"):
        restarted(before, planned).source.ranges(start, planned)
    cluster = restarted(before, planned, **READ_ON)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        assert cluster.source.ranges(start, planned) == [QueueRange(A, 100, 110)]
    assert "the topic was recreated, or the broker lost data" in caplog.text
    following = cluster.latest(planned)
    assert cluster.source.ranges(planned, following) == [QueueRange(A, 110, 130)]


def test_a_planned_batch_whose_rows_expired_or_are_not_back_yet_is_left_to_its_tasks() -> None:
    """They wait, and tell the loss; nothing there is another row than was planned."""
    before = FakeCluster()
    start = before.start()
    before.table[A][1] = 120
    planned = before.latest(start)
    for low, high in ((125, 130), (0, 110), (0, 0)):
        before.table[A] = [low, high]
        again = restarted(before, planned)
        assert again.source.ranges(start, planned) == [QueueRange(A, 100, 120)]


def test_a_batch_planned_by_the_same_run_is_not_compared_again() -> None:
    """A running stream asks brokers for nothing more."""
    cluster = FakeCluster()
    end = cluster.start()
    cluster.table[A][1] = 120
    planned = cluster.latest(end)
    asked = len(cluster.marked)
    cluster.source.ranges(end, StreamOffset.from_json(planned.to_json()))
    assert len(cluster.marked) == asked


# --- shorter --------------------------------------------------------------------------------------


def test_a_queue_that_ends_before_it_did_is_a_loss() -> None:
    """Covers failOnDataLoss=true."""
    strict = FakeCluster(retryTimeoutMs="0")
    end = strict.start()
    strict.table[A] = [0, 10]
    said = "read up to offset 100, but the queue now ends at 10"
    with pytest.raises(DataLossError, match=said) as caught:
        strict.latest(end)
    assert "It is read from" not in str(caught.value)


def test_a_slave_that_is_behind_is_waited_for_as_long_as_its_master_is_away() -> None:
    """Covers retryTimeoutMs: it holds the same rows, only fewer; then the stream goes on."""
    cluster = FakeCluster()
    end = cluster.start()
    full, cluster.table[A], cluster.led = cluster.table[A], [0, 90], False
    asked = 0

    def ask(queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        nonlocal asked
        asked += 1
        if asked == 20:  # some 10 s
            cluster.table[A] = [full[0], 110]
        return FakeCluster.max_offsets(cluster, queues)

    cluster.max_offsets = ask  # type: ignore[method-assign]
    later = cluster.latest(end)
    assert cluster.source.ranges(end, later) == [QueueRange(A, 100, 110)]


def test_a_slave_that_stays_behind_is_a_loss_that_says_so() -> None:
    """Whoever reads it must know that the master may still hold the rows."""
    cluster = FakeCluster(retryTimeoutMs="4000")
    end = cluster.start()
    cluster.table[A], cluster.led = [0, 90], False
    with pytest.raises(DataLossError, match="or a slave that is behind answers for its master"):
        cluster.latest(end)


@pytest.mark.parametrize(
    ("led", "retry_ms", "waited_ms"),
    [(True, 30_000, 3_000), (True, 1_000, 1_000), (False, 30_000, 30_000)],
)
def test_a_shorter_queue_is_waited_for_less_where_a_master_says_so(
    led: bool, retry_ms: int, waited_ms: int
) -> None:
    """Three seconds; a slave may be behind for as long as ``retryTimeoutMs``."""
    cluster = FakeCluster(retryTimeoutMs=str(retry_ms), **READ_ON)
    end = cluster.start()
    cluster.table[A], cluster.led = [0, 90], led
    cluster.clock.advance(200)
    began = cluster.clock.monotonic_ms()
    cluster.source.latest(end, False)
    assert cluster.clock.monotonic_ms() - began == waited_ms


def test_rows_read_are_not_read_again_when_the_master_is_back() -> None:
    """What was taken for a loss was none: the last row read is there again."""
    cluster = FakeCluster(retryTimeoutMs="0", **READ_ON)
    end = cluster.start()
    cluster.table[A] = [0, 90]
    assert cluster.latest(end) is end
    cluster.table[A] = [0, 110]
    later = cluster.latest(end)
    assert cluster.source.ranges(end, later) == [QueueRange(A, 100, 110)]


def test_a_shorter_topic_of_the_same_name_is_read_from_its_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers failOnDataLoss=false; it used to be ignored until it outgrew the old end."""
    cluster = FakeCluster(**READ_ON)
    end = cluster.start()
    cluster.again(A, 10)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        grown = cluster.latest(end)
    assert (grown.ends, dict(grown.base)) == ({A: 10, B: 50}, {A: 0})
    assert cluster.source.ranges(end, grown) == [QueueRange(A, 0, 10)]
    assert "It is read from offset 0 on" in caplog.text
    cluster.table[A][1] = 12
    assert cluster.source.ranges(grown, cluster.latest(grown)) == [QueueRange(A, 10, 12)]


def test_an_empty_new_topic_is_read_from_its_first_row() -> None:
    """Nothing to plan yet; the wait is not repeated, and no row is passed over."""
    cluster = FakeCluster(**READ_ON)
    end = cluster.start()
    cluster.again(A, 0)
    assert cluster.latest(end) is end
    cluster.clock.advance(2_000)
    before = cluster.clock.monotonic_ms()
    assert cluster.latest(end) is end
    assert cluster.clock.monotonic_ms() - before < 3_000
    cluster.table[A][1] = 3
    assert cluster.source.ranges(end, cluster.latest(end)) == [QueueRange(A, 0, 3)]


def test_a_queue_made_anew_twice_is_noticed_twice() -> None:
    """The second is shorter than where the first went on."""
    cluster = FakeCluster(**READ_ON)
    end = cluster.start()
    cluster.again(A, 95, begin=90)
    cluster.table[A][1] = 90
    assert cluster.latest(end) is end
    cluster.again(A, 4)
    assert cluster.source.ranges(end, cluster.latest(end)) == [QueueRange(A, 0, 4)]


def test_after_a_lost_tail_only_what_is_new_is_read() -> None:
    """A broker that lost unflushed messages: what was read before them is not read again."""
    cluster = FakeCluster(**READ_ON)
    end = cluster.start()
    cluster.again(A, 95, begin=90)
    grown = cluster.latest(end)
    assert cluster.source.ranges(end, grown) == [QueueRange(A, 90, 95)]


def test_without_a_mark_a_shorter_queue_is_read_from_its_beginning() -> None:
    """A checkpoint of an earlier version."""
    cluster = FakeCluster(**READ_ON)
    old = StreamOffset.from_json({"v": 1, "q": {"T": {"broker": {"0": 100, "1": 50}}}})
    cluster.again(A, 95, begin=90)
    assert cluster.source.ranges(old, cluster.latest(old)) == [QueueRange(A, 0, 95)]


# --- grown past -----------------------------------------------------------------------------------


def test_a_recreated_topic_that_outgrew_the_checkpoint_is_a_loss() -> None:
    """Its rows before the old end would never be read."""
    before = FakeCluster()
    end = before.start()
    before.again(A, 130)
    cluster = restarted(before, end)
    with pytest.raises(
        DataLossError,
        match=r"queue 0: the last row read, offset 99, was stored .* recreated.*before offset 100",
    ):
        cluster.latest(end)


def test_a_recreated_topic_of_the_same_length_is_a_loss() -> None:
    """Nothing is new, and yet everything."""
    before = FakeCluster()
    end = before.start()
    before.again(B, 50)
    with pytest.raises(DataLossError, match="the last row read, offset 49"):
        restarted(before, end).latest(end)


def test_a_topic_recreated_while_the_stream_runs_is_a_loss() -> None:
    """A batch may take longer than the new topic takes to grow."""
    cluster = FakeCluster()
    end = cluster.start()
    assert cluster.latest(end) is end
    cluster.again(A, 130)
    with pytest.raises(DataLossError, match="the last row read, offset 99"):
        cluster.latest(end)


def test_a_recreated_topic_is_read_from_its_beginning_when_losses_are_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All of its rows, each once, under a limit too."""
    before = FakeCluster()
    end = before.start()
    before.again(A, 130)
    cluster = restarted(before, end, maxOffsetsPerTrigger="50", **READ_ON)
    seen: list[QueueRange] = []
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        while (further := cluster.latest(end, True)) is not end:
            seen += cluster.source.ranges(end, further)
            end = further
    assert seen == [QueueRange(A, 0, 50), QueueRange(A, 50, 100), QueueRange(A, 100, 130)]
    assert caplog.text.count("the last row read") == 1


def test_the_same_topic_is_not_asked_about_when_nothing_is_new() -> None:
    """Two rows a queue and batch, none while idle."""
    cluster = FakeCluster()
    end = cluster.start()
    cluster.latest(end)
    asked = len(cluster.marked)
    cluster.clock.advance(2_000)
    cluster.latest(end)
    assert len(cluster.marked) == asked
    cluster.table[A][1] = 110
    cluster.latest(end)
    assert cluster.marked[asked:] == [{A: 99}, {A: 109}]


def test_a_last_row_that_was_deleted_says_nothing() -> None:
    """Retention: what was read may go."""
    cluster = FakeCluster()
    end = cluster.start()
    cluster.table[A] = [100, 110]
    assert cluster.latest(end).ends == {A: 110, B: 50}


def test_a_new_queue_made_anew_before_its_first_row_was_read_is_read_whole() -> None:
    """Where it began when it appeared no longer counts."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    cluster.table[C] = [7, 7]
    assert cluster.latest(end) is end
    cluster.table[C] = [0, 9]
    assert cluster.source.ranges(end, cluster.latest(end)) == [QueueRange(C, 0, 9)]


# --- topics that were taken out of the options ----------------------------------------------------


def test_a_topic_taken_out_of_the_options_is_left_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The user's own wish: no loss, no wait, a word in the log."""
    cluster = FakeCluster(queueRefreshMs="0")
    end = cluster.start()
    other = MessageQueue("U", "broker", 0)
    logged = StreamOffset({**end.ends, other: 40}, marks=end.marks)
    again = restarted(cluster, logged)
    again.table[A][1] = 110
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        further = again.latest(logged)
        again.table[A][1] = 120
        again.latest(further)
    assert further.ends == {A: 110, B: 50, other: 40}
    assert (
        caplog.text.count(
            "no longer select (they select T) these queues of the checkpoint: topic 'U'"
        )
        == 1
    )
    again.unlisted.add(other)
    assert again.source.ranges(end, logged) == [QueueRange(other, 0, 40)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "U,V"}, "read T, .*none of it, but U, V:"),
        ({"topic": "", "topicPattern": "x.*"}, "read T, .*none of it, but topics that match 'x"),
        (
            {"topic": "", "assign": '{"T":{"broker":[7]}}'},
            "read topic 'T', broker 'broker', queue 0; .*queue 1, .*but .*queue 7:",
        ),
    ],
)
@pytest.mark.parametrize("losses", [{}, READ_ON], ids=["losses are errors", "or accepted"])
def test_a_checkpoint_of_topics_none_of_which_is_selected_is_another_sources(
    options: dict[str, str], said: str, losses: dict[str, str]
) -> None:
    """Sources of a query that changed places, or a misspelled pattern; the first batch's, too."""
    before = FakeCluster()
    first = before.latest(before.source.initial())
    cluster = restarted(before, first, **options, **losses)
    cluster.table = {MessageQueue("U", "broker", 0): [0, 9]}
    cluster.unlisted = {A, B}
    with pytest.raises(ConfigurationError, match=said):
        cluster.source.ranges(cluster.source.initial(), first)
    with pytest.raises(ConfigurationError, match=said):
        cluster.latest(first)


def test_available_now_waits_for_a_known_topic_but_not_for_a_misspelled_one() -> None:
    """The target is taken before anybody knows whether there is a checkpoint."""
    before = FakeCluster()
    end = before.start()

    def run() -> FakeCluster:
        cluster = restarted(before, end, retryTimeoutMs="2000")
        looks: list[int] = []

        def queues(*, held: Collection[str] = (), **_: object) -> list[MessageQueue]:
            looks.append(1)
            if len(looks) >= 4:
                return sorted(cluster.table)
            if "T" in held:
                return []
            raise RouteNotFoundError("topic 'T' is unknown")

        cluster.queues = queues  # type: ignore[method-assign]
        cluster.source.prepare_available_now()
        return cluster

    before.table[B][1] = 60
    assert run().latest(end).ends == {A: 100, B: 60}
    with pytest.raises(RouteNotFoundError):
        run().source.initial()


def test_only_a_queue_without_its_master_may_have_a_slave_that_is_behind() -> None:
    """Two brokers lost rows, and one of them has its master: its rows are gone."""
    other = MessageQueue("T", "led", 0)
    cluster = FakeCluster(retryTimeoutMs="4000", failOnDataLoss="false")
    cluster.table = {A: [0, 100], other: [0, 100]}
    end = cluster.start()
    cluster.table = {A: [0, 90], other: [0, 90]}
    cluster.has_master = lambda broker_name: broker_name == "led"  # type: ignore[method-assign]
    told: dict[str, bool] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "rocketstream.spark.driver.continuity.report_loss",
            lambda fail, queue, text: told.__setitem__(queue.broker_name, "a slave" in text),
        )
        cluster.latest(end)
    assert told == {"broker": True, "led": False}


def test_a_removed_queue_is_waited_for_three_seconds_to_the_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster(retryTimeoutMs="30000", **READ_ON)
    end = cluster.start()
    del cluster.table[B]
    cluster.clock.advance(200)
    began = cluster.clock.monotonic_ms()
    monkeypatch.setattr(Patience, "pause", lambda patience: cluster.clock.advance(1))
    cluster.source.latest(end, False)
    assert cluster.clock.monotonic_ms() - began == 3_000


def test_a_queue_that_came_back_and_went_again_is_judged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster(retryTimeoutMs="0", **READ_ON)
    end = cluster.start()
    for _ in range(2):
        known = cluster.table.pop(B)
        cluster.elsewhere[B] = 50
        with caplog.at_level(logging.WARNING, "rocketstream.spark"):
            cluster.latest(end)
            cluster.latest(end)
        cluster.table[B] = known
        cluster.latest(end)
    assert caplog.text.count("has left the route; all of it was read") == 2


def test_a_queue_that_came_back_while_another_was_waited_for_is_judged_again_when_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody asked for the ends between its return and its next leave."""
    cluster = FakeCluster(**READ_ON)
    end = cluster.start()
    first, second = cluster.table.pop(A), cluster.table.pop(B)
    cluster.table[A] = first
    cluster.elsewhere = {A: 100, B: 50}
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        cluster.latest(end)
        assert caplog.text.count("queue 1 has left the route") == 1
        del cluster.table[A]
        looks: list[int] = []

        def queues(**_: object) -> list[MessageQueue]:
            looks.append(1)
            if len(looks) == 3:
                cluster.table |= {A: first, B: second}
            return sorted(cluster.table)

        cluster.queues = queues  # type: ignore[method-assign]
        cluster.latest(end)
        assert sorted(cluster.table) == [A, B]
        del cluster.table[B]
        cluster.latest(end)
    assert caplog.text.count("left the route; all of it was read") == 2


def test_what_was_left_out_of_a_planned_batch_is_neither_told_nor_waited_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster(**READ_ON)
    start = cluster.start()
    planned = StreamOffset({A: 120, B: 60})
    cluster.table[A][1] = 120
    del cluster.table[B]
    cluster.elsewhere[B] = 60
    cluster.clock.advance(200)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        cluster.source.ranges(start, planned)
        told = len(caplog.messages)
        began = cluster.clock.monotonic_ms()
        assert cluster.source.latest(planned, False) is planned
    assert cluster.clock.monotonic_ms() - began < 3_000
    assert len(caplog.messages) == told


def test_a_queue_that_is_back_to_where_it_was_read_is_not_read_again() -> None:
    """Its master has all that was read, and no row more."""
    cluster = FakeCluster(retryTimeoutMs="0", **READ_ON)
    end = cluster.start()
    cluster.table[A] = [0, 90]
    assert cluster.latest(end) is end
    cluster.table[A] = [0, 100]
    assert cluster.latest(end) is end


@pytest.mark.parametrize(
    ("late_ms", "told"),
    [
        (1_700_000_000_000, "2023-11-14T22:13:20.099+00:00"),
        (10**17, "100000000000000099 ms"),
    ],
)
def test_a_loss_says_when_both_rows_were_stored(late_ms: int, told: str) -> None:
    """So that the user can tell the topics apart; a date beyond all calendars is a number."""
    cluster = FakeCluster()
    cluster.late_ms = late_ms
    end = cluster.start()
    cluster.again(A, 130)
    with pytest.raises(DataLossError) as caught:
        cluster.latest(end)
    assert "was stored at 1970-01-01T00:00:00.099+00:00 at 99000 of the log" in str(caught.value)
    assert f"is now stored at {told} at {(late_ms + 99) * 1_000} of the log" in str(caught.value)

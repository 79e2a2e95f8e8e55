"""A collection that is started again goes on from its history, or says why it does not."""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest

from rocketstream._util.workers import Workers
from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import (
    ClusterState,
    GroupState,
    PinnedMessage,
    QueueKind,
    QueueState,
    Verdict,
)
from rocketstream.errors import ConnectError
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import Collector, History, Update, default_history, kept_past
from rocketstream.watch import windows as moments
from rocketstream.watch.windows import decoded, encoded
from tests.kits.states import Asked, ByHand, cluster, group, queue

MEMBERS = (MemberRow("10.0.0.9@1", "10.0.0.9:1", "JAVA", 405),)
SECOND = 1_000
MINUTE = 60_000


def standing(at_ms: int, committed: int = 100) -> ClusterState:
    """A group with a member whose queues do not move while messages wait."""
    found = group("billing", at_ms, queue(end=9_000, committed=committed))
    return cluster(at_ms, dataclasses.replace(found, members=MEMBERS))


class Run:
    """One life of a collector over a history; sweeps are ten seconds apart."""

    def __init__(self, path: Path, begin_ms: int, *, reads_only: bool = False) -> None:
        self.clock = ManualClock(begin_ms)
        self.hand = ByHand()
        self.asked = Asked(standing(begin_ms))
        self.history = History(path, clock=self.clock, read_only=reads_only)
        self.collector = Collector(
            lambda: cast(Any, self.asked),
            clock=self.clock,
            workers=cast(Workers, self.hand),
            history=None if reads_only else self.history,
            past=self.history.past,
        )
        self.updates: list[Update] = []
        self.collector.subscribe(self.updates.append)
        self.collector.start()

    def sweep(self, answer: ClusterState | Exception) -> Update:
        """Have a sweep answered, at the time of its answer."""
        if isinstance(answer, ClusterState):
            self.clock.advance(answer.taken_ms - self.clock.now_ms())
        self.asked.answers = [answer]
        self.collector._due_s = 0
        self.hand.step()
        return self.updates[-1]

    def end(self) -> None:
        self.collector.close()
        self.history.close()

    def killed(self) -> None:
        """Leave everything as a SIGKILL does: nothing is written any more."""
        self.history._before = None
        self.end()


def stalled(path: Path, *, kill: bool = False) -> tuple[int, int]:
    """Let a group stall, and end; return when it stood first, and the last sweep."""
    run = Run(path, START_MS)
    run.sweep(standing(START_MS, 50))
    last = 0
    for n in range(1, 30):
        last = START_MS + n * 10 * SECOND
        update = run.sweep(standing(last))
    assert update.verdicts["billing"].verdict is Verdict.STALLED
    since_ms = update.verdicts["billing"].since_ms
    assert since_ms is not None
    if kill:
        run.killed()
    else:
        run.end()
    return since_ms, last


@pytest.mark.parametrize("kill", [False, True])
def test_a_verdict_that_stands_over_a_restart_stands_since_it_did(
    tmp_path: Path, kill: bool
) -> None:
    since_ms, last_ms = stalled(tmp_path / "h.db", kill=kill)
    run = Run(tmp_path / "h.db", last_ms + MINUTE)
    update = run.sweep(standing(last_ms + MINUTE))
    verdict = update.verdicts["billing"]
    assert verdict.verdict is Verdict.STALLED, "its window goes on: one sweep is enough"
    assert verdict.since_ms == since_ms
    assert update.changes == ()
    assert update.gap is None
    window = run.collector.window("billing")
    assert window[0].taken_ms <= START_MS + 10 * SECOND
    assert window[-2].taken_ms >= last_ms - (MINUTE if kill else 0)
    assert [each.verdict for each in run.history.verdicts()].count(Verdict.STALLED) == 1
    run.end()


def test_broker_that_vanished_while_nobody_watched_is_missed_by_the_first_sweep(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "h.db", START_MS)
    whole = standing(START_MS)
    other = dataclasses.replace(whole.brokers[0], broker_name="broker-b")
    run.sweep(dataclasses.replace(whole, brokers=(*whole.brokers, other)))
    run.end()
    run = Run(tmp_path / "h.db", START_MS + MINUTE)
    run.sweep(dataclasses.replace(cluster(START_MS + MINUTE), brokers=(other,)))
    assert run.asked.sweeps == 2, "asked once more, with what is remembered"
    (memory,) = run.asked.memories
    assert memory.queues == {"broker-a": {"billing": {("orders", 0)}}}
    assert memory.seen["broker-a"] == ("c", run.clock.monotonic_ms())
    run.end()


def test_what_changed_while_nobody_watched_is_a_change(tmp_path: Path) -> None:
    _, last_ms = stalled(tmp_path / "h.db")
    run = Run(tmp_path / "h.db", last_ms + MINUTE)
    update = run.sweep(standing(last_ms + MINUTE, 9_000))
    ((before, after),) = [(each.before, each.after.verdict) for each in update.changes]
    assert (before, after) == (Verdict.STALLED, Verdict.OK)
    assert update.verdicts["billing"].since_ms == last_ms + MINUTE
    run.end()


def test_after_a_long_gap_it_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, last_ms = stalled(tmp_path / "h.db")
    at_ms = last_ms + 10 * MINUTE
    run = Run(tmp_path / "h.db", at_ms)
    with caplog.at_level(logging.WARNING):
        update = run.sweep(standing(at_ms))
    assert update.verdicts["billing"].verdict is not Verdict.STALLED
    assert len(run.collector.window("billing")) == 1
    assert update.gap is not None
    assert (update.gap.from_ms, update.gap.until_ms) == (last_ms, at_ms)
    assert "HISTORY_NOT_TAKEN_OVER" in caplog.text
    assert run.sweep(standing(at_ms + 10 * SECOND)).gap == update.gap, "as long as it runs"
    run.end()


@pytest.mark.parametrize("answered", [True, False])
def test_verdicts_begin_anew_where_the_process_stood_still_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answered: bool
) -> None:
    """Nobody watched: the group may have been well meanwhile, and stand for another reason now."""
    run = Run(tmp_path / "h.db", START_MS)
    run.sweep(standing(START_MS, 50))
    last_ms = START_MS
    for n in range(1, 30):
        last_ms = START_MS + n * 10 * SECOND
        assert run.sweep(standing(last_ms)).gap is None
    run.sweep(ConnectError("the network goes to sleep first"))
    at_ms = last_ms + 10 * MINUTE
    run.clock.advance(at_ms - run.clock.now_ms())
    with caplog.at_level(logging.WARNING):
        if not answered:
            silent = run.sweep(ConnectError("the network is not awake yet"))
            assert silent.verdicts["billing"].verdict is Verdict.UNKNOWN
            outage = silent.outage
            assert outage is not None
            assert (outage.since_ms, outage.sweeps) == (at_ms, 1)
            at_ms += 10 * SECOND
        update = run.sweep(standing(at_ms))
    assert update.gap is not None
    assert update.gap.from_ms == last_ms
    verdict = update.verdicts["billing"]
    assert (verdict.verdict, verdict.since_ms) == (Verdict.UNKNOWN, update.gap.until_ms)
    assert len(run.collector.window("billing")) == 1
    assert update.looks == {}
    assert update.before is None, "a rate over it is none of now"
    assert "HISTORY_NOT_TAKEN_OVER" in caplog.text
    assert run.sweep(standing(at_ms + 10 * SECOND)).gap == update.gap, "the last one"
    run.end()


def test_sweeps_that_are_far_apart_by_their_settings_leave_no_gap(tmp_path: Path) -> None:
    run = Run(tmp_path / "h.db", START_MS)
    run.collector._interval_s = 300
    for n in range(4):
        assert run.sweep(standing(START_MS + n * 5 * MINUTE)).gap is None
    run.end()


def test_an_outage_at_the_start_delays_going_on_and_does_not_end_it(tmp_path: Path) -> None:
    since_ms, last_ms = stalled(tmp_path / "h.db")
    run = Run(tmp_path / "h.db", last_ms + 10 * SECOND)
    assert run.sweep(ConnectError("refused")).outage is not None
    update = run.sweep(standing(last_ms + 40 * SECOND))
    assert update.verdicts["billing"].since_ms == since_ms
    assert update.gap is None
    run.end()


def test_the_history_of_another_cluster_is_not_gone_on_from(tmp_path: Path) -> None:
    _, last_ms = stalled(tmp_path / "h.db")
    state = standing(last_ms + MINUTE)
    (broker,) = state.brokers
    other = dataclasses.replace(broker, addresses={0: "10.9.9.9:10911"})
    run = Run(tmp_path / "h.db", last_ms + MINUTE)
    update = run.sweep(dataclasses.replace(state, brokers=(other,)))
    assert update.gap is not None
    assert "another cluster" in update.gap.reason
    assert len(run.collector.window("billing")) == 1
    run.end()


def test_a_clock_that_was_set_back_is_a_gap(tmp_path: Path) -> None:
    _, last_ms = stalled(tmp_path / "h.db")
    run = Run(tmp_path / "h.db", last_ms - MINUTE)
    update = run.sweep(standing(last_ms - MINUTE))
    assert update.gap is not None
    assert "set back" in update.gap.reason
    run.end()


def test_a_new_history_has_no_past_and_no_gap(tmp_path: Path) -> None:
    run = Run(tmp_path / "h.db", START_MS)
    assert run.history.past() is None
    assert run.sweep(standing(START_MS)).gap is None
    run.end()


def test_a_file_of_before_keeps_its_charts_and_gets_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    _, last_ms = stalled(path)
    with sqlite3.connect(path) as file:
        file.executescript("DROP TABLE standing; DROP TABLE moments; DELETE FROM meta;")
    file.close()
    run = Run(path, last_ms + MINUTE)
    assert run.history.past() is None
    run.sweep(standing(last_ms + MINUTE))
    assert len(run.history.series("billing", since_ms=START_MS, until_ms=last_ms)) == 29
    past = run.history.past()
    assert past is not None
    assert set(past.verdicts) == {"billing"}
    run.end()
    assert [each.name for each in tmp_path.iterdir() if "aside" in each.name] == []


def test_what_is_kept_for_a_restart_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    run = Run(path, START_MS)
    for n in range(0, 3_600, 30):
        run.sweep(standing(START_MS + n * SECOND, n))
    run.end()
    with sqlite3.connect(path) as file:
        (kept,) = file.execute("SELECT count(*) FROM moments").fetchone()
    file.close()
    assert 20 <= kept <= 22


def test_a_moment_too_large_for_the_bound_is_left_out_and_since_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), History(tmp_path / "h.db", bytes_max=1 << 20) as history:
        queues = [queue(queue_id=n, committed=n, next_stored_ms=n**5) for n in range(1_000)]
        state = cluster(START_MS, group("billing", START_MS, *queues))
        history.add(state, {})
        past = history.past()
    assert past is not None
    assert past.moments == []
    assert caplog.text.count("HISTORY_WITHOUT_WINDOWS") == 1


@pytest.mark.parametrize("away_ms", [0, 10 * SECOND])
def test_another_process_begins_with_what_a_running_one_knows(tmp_path: Path, away_ms: int) -> None:
    """A message that was pinned for minutes is found by the first look of anybody."""
    writer = Run(tmp_path / "h.db", START_MS)
    writer.sweep(standing(START_MS, 50))
    for at_ms in range(START_MS + 10 * SECOND, START_MS + 5 * MINUTE, 10 * SECOND):
        since_ms = writer.sweep(standing(at_ms)).verdicts["billing"].since_ms
    reader = Run(tmp_path / "h.db", at_ms + away_ms, reads_only=True)
    reader.asked.pinned = [PinnedMessage("orders", "broker-a", 0, 100, "10.0.0.9@1", 40_000, 7)]
    verdict = reader.sweep(standing(at_ms + away_ms)).verdicts["billing"]
    assert verdict.verdict is Verdict.PINNED
    assert since_ms is not None
    assert (verdict.since_ms or 0) <= at_ms
    assert reader.asked.looked == ["billing"]
    reader.end()
    writer.sweep(standing(at_ms + 20 * SECOND))
    writer.end()


def test_what_a_process_that_ended_long_ago_kept_is_passed_over_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, last_ms = stalled(tmp_path / "h.db")
    reader = Run(tmp_path / "h.db", last_ms + 60 * MINUTE, reads_only=True)
    update = reader.sweep(standing(last_ms + 60 * MINUTE))
    assert update.gap is None
    assert len(reader.collector.window("billing")) == 1
    assert caplog.text == ""
    reader.end()


def test_the_default_history_is_one_for_each_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept_past("10.0.0.5:9876;10.0.0.6:9876") is None
    path = default_history("10.0.0.5:9876;10.0.0.6:9876")
    assert path.relative_to(tmp_path).as_posix() == (
        ".rocketstream/history/10.0.0.5_9876_10.0.0.6_9876.db"
    )
    path.parent.mkdir(parents=True)
    stalled(path)
    past = kept_past("10.0.0.5:9876;10.0.0.6:9876")
    assert past is not None
    assert past.verdicts["billing"].verdict is Verdict.STALLED


# --- bytes ----------------------------------------------------------------------------------------


def whole() -> ClusterState:
    """A state every field of which has a value."""
    found = QueueState(
        "orders", "broker-a", 3, QueueKind.RETRY, 1, 90, 40, 20, False, START_MS - 3, START_MS - 2,
        START_MS - 1, "10.0.0.9@1", "because", (10, 30),
    )  # fmt: skip
    state = GroupState(
        "billing",
        START_MS,
        MEMBERS,
        "CLUSTERING",
        "CONSUME_PASSIVELY",
        (SubscriptionRow("orders", "a || b", "TAG"),),
        (found, queue()),
        {"orders": 1.5},
        4,
        False,
        ("one", "two"),
    )
    return cluster(START_MS, state, GroupState("\u00fc", START_MS))


def test_a_moment_comes_back_as_it_was() -> None:
    moment = decoded(encoded(whole()))
    assert moment is not None
    assert moment.taken_ms == START_MS
    assert moment.groups == whole().groups


def test_a_moment_of_another_release_is_read_as_far_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = encoded(whole())
    monkeypatch.setattr(moments, "_QUEUE", tuple(n for n in moments._QUEUE if n != "client_id"))
    moment = decoded(data)
    assert moment is not None
    assert moment.groups["billing"].queues[0].client_id is None
    assert moment.groups["billing"].queues[0].max_offset == 90


@pytest.mark.parametrize("data", [b"", b"x", encoded(whole())[:-9], encoded(whole())[3:]])
def test_bytes_that_are_no_moment_are_none(data: bytes) -> None:
    assert decoded(data) is None


def test_a_pinned_message_is_found_again_at_the_first_sweep(tmp_path: Path) -> None:
    _, last_ms = stalled(tmp_path / "h.db")
    run = Run(tmp_path / "h.db", last_ms + MINUTE)
    run.asked.pinned = [PinnedMessage("orders", "broker-a", 0, 100, "10.0.0.9@1", 40_000, 7)]
    update = run.sweep(standing(last_ms + MINUTE))
    assert update.verdicts["billing"].verdict is Verdict.PINNED
    run.end()

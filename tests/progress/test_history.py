"""The history: what is written comes back, bounded, unknown as unknown, whatever is in the file."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketstream.admin.state import ClusterState, GroupVerdict, QueueKind, Verdict
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import History, Point, VerdictChange, history_file
from tests.kits.states import BEGIN_MS, cluster, group, lagging, queue

HOUR_MS = 3_600_000


def fill(history: History, seconds: int, lag: int = 3, begin_ms: int = BEGIN_MS) -> int:
    """Write a sweep every 10 s; return when the last one was."""
    at_ms = begin_ms
    for n in range(0, seconds, 10):
        at_ms = begin_ms + n * 1000
        history.add(lagging(at_ms, lag, arrived=n * 20))
    return at_ms


def all_of(history: History, topic: str | None = None, points: int = 10_000) -> list[Point]:
    return history.series(
        "billing",
        topic,
        since_ms=BEGIN_MS - HOUR_MS,
        until_ms=BEGIN_MS + 48 * HOUR_MS,
        points=points,
    )


def test_what_a_sweep_found_comes_back(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.add(lagging(BEGIN_MS, 3))
        history.add(lagging(BEGIN_MS + 10_000, 5, arrived=40))
        for topic in (None, "orders"):
            first, second = all_of(history, topic)
            assert (first.at_ms, first.lag, first.time_lag_ms) == (BEGIN_MS, 3, 5_000)
            assert (first.consume_rate, first.arrival_rate) == (None, None)
            assert (second.lag, second.consume_rate, second.arrival_rate) == (5, 3.8, 4.0)


def test_unknown_stays_unknown_and_zero_stays_zero(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.add(lagging(BEGIN_MS, 3))
        history.add(lagging(BEGIN_MS + 10_000, None))
        history.add(lagging(BEGIN_MS + 20_000, 0))
        lags = [(p.lag, p.time_lag_ms, p.queues_unknown) for p in all_of(history)]
    assert lags == [(3, 5_000, 0), (None, None, 1), (0, 0, 0)]


def test_a_sweep_nobody_answered_is_a_break(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.add(lagging(BEGIN_MS, 3))
        history.add(cluster(BEGIN_MS + 10_000, error="refused"))
        history.add(lagging(BEGIN_MS + 20_000, 4))
        points = all_of(history)
    assert [p.lag for p in points] == [3, None, 4]
    assert points[2].consume_rate is None, "nobody knows when it was consumed"


def test_a_pause_of_the_collection_is_a_break(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        fill(history, 30)
        fill(history, 30, begin_ms=BEGIN_MS + 600_000)
        assert [p.lag for p in all_of(history)] == [3, 3, 3, None, 3, 3, 3]


def test_retry_and_dead_letters_belong_to_the_group(tmp_path: Path) -> None:
    state = group(
        "billing",
        BEGIN_MS,
        queue(end=10, committed=8),
        queue("%RETRY%billing", end=5, committed=1, kind=QueueKind.RETRY),
        queue("%DLQ%billing", end=7, committed=None, kind=QueueKind.DEAD_LETTER),
    )
    with History(tmp_path / "h.db") as history:
        history.add(cluster(BEGIN_MS, state))
        (whole,) = all_of(history)
        (topic,) = all_of(history, "orders")
    assert (whole.lag, whole.retrying, whole.dead_letters) == (6, 4, 7)
    assert (topic.lag, topic.retrying, topic.dead_letters) == (2, None, None)


def test_older_times_are_kept_in_coarser_points_with_the_worst_lag(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        for n in range(0, 7_200, 10):
            at_ms = BEGIN_MS + n * 1000
            history.add(lagging(at_ms, 900 if n == 130 else 3, arrived=n))
        points = all_of(history)
    steps = {b.at_ms - a.at_ms for a, b in itertools.pairwise(points)}
    assert steps == {60_000, 10_000}
    assert 360 <= sum(p.at_ms >= BEGIN_MS + HOUR_MS for p in points) <= 366
    assert max((p.lag or 0) for p in points) == 900
    assert next(p for p in points if p.lag == 900).at_ms == BEGIN_MS + 120_000


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    day = 24 * HOUR_MS
    with History(tmp_path / "h.db") as history:
        fill(history, 600)
    with History(tmp_path / "h.db") as history:
        fill(history, 120, begin_ms=BEGIN_MS + 31 * day)
        found = history.series("billing", since_ms=0, until_ms=BEGIN_MS + 40 * day)
    assert found
    assert min(p.at_ms for p in found) >= BEGIN_MS + 31 * day


def test_clock_that_ran_ahead_costs_nothing_of_the_past_and_of_what_comes(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        end_ms = fill(history, 3 * 3_600)
        before = all_of(history)
        fill(history, 1_800, begin_ms=end_ms + 400 * 24 * HOUR_MS)
        assert all_of(history) == before
        end_ms = fill(history, 2 * 3_600, begin_ms=end_ms + 10_000)
    with contextlib.closing(sqlite3.connect(tmp_path / "h.db")) as file:
        slots = "SELECT count(*) FROM slots_{} WHERE slot * {} <= {}"
        found = [
            file.execute(slots.format(step, step, end_ms)).fetchone()[0]
            for step in (10_000, 60_000, 600_000)
        ]
    assert found[0] <= 370, "an hour, and what came since the last roll"
    assert found[1] >= 5 * 60 - 2
    assert found[2] >= 5 * 6 - 2


def test_clock_that_leapt_and_stays_decides_after_a_day_what_is_too_old(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        end_ms = fill(history, 3 * 3_600)
        for hour in range(24):
            history.add(lagging(end_ms + (400 * 24 + hour) * HOUR_MS, 3))
        assert all_of(history) != []
        history.add(lagging(end_ms + 401 * 24 * HOUR_MS, 3))
        assert all_of(history) == []


def test_fewer_points_keep_the_peak(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        for n in range(100):
            history.add(lagging(BEGIN_MS + n * 10_000, 77 if n == 41 else 1))
        points = history.series(
            "billing", since_ms=BEGIN_MS, until_ms=BEGIN_MS + 1_000_000, points=10
        )
    assert len(points) == 10
    assert [p.lag for p in points].index(77) == 4


def test_changes_of_verdict_come_back_newest_first(tmp_path: Path) -> None:
    ok = GroupVerdict("billing", Verdict.OK, "all is well")
    bad = GroupVerdict("billing", Verdict.STALLED, "nothing moves")
    with History(tmp_path / "h.db") as history:
        history.add(lagging(BEGIN_MS, 0), {}, [VerdictChange("billing", BEGIN_MS, None, ok)])
        at_ms = BEGIN_MS + 10_000
        change = VerdictChange("billing", at_ms, Verdict.OK, bad)
        history.add(lagging(at_ms, 9), {}, [change])
        newest, oldest = history.verdicts("billing")
        assert (newest.before, newest.verdict, newest.sentence) == (
            Verdict.OK,
            Verdict.STALLED,
            "nothing moves",
        )
        assert oldest.before is None
        assert history.verdicts(limit=1) == [newest]
        assert history.verdicts(until_ms=at_ms) == [oldest]
        assert history.verdicts("other") == []


def test_it_goes_on_where_the_file_ended(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        end_ms = fill(history, 100)
    with History(tmp_path / "h.db") as history:
        fill(history, 100, begin_ms=end_ms + 10_000)
        assert [p.lag for p in all_of(history)] == [3] * 20


def test_the_file_keeps_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    bound = 1024 * 1024
    with History(path, bytes_max=bound) as history:
        for n in range(200):
            at_ms = BEGIN_MS + n * 10_000
            groups = [group(f"group-{k}", at_ms, queue(committed=n % 90)) for k in range(100)]
            history.add(cluster(at_ms, *groups))
        assert history.size_bytes() <= bound
        last = history.series("group-99", since_ms=BEGIN_MS, until_ms=BEGIN_MS + HOUR_MS)
    assert last[-1].at_ms == BEGIN_MS + 1_990_000
    assert len(last) > 20


def _passing(history: History, sweeps: int, begin_ms: int = BEGIN_MS, each: int = 20) -> int:
    """Write sweeps 10 minutes apart, each with groups that no other one has, and ``billing``;
    return when the next one would be."""
    for n in range(sweeps):
        at_ms = begin_ms + n * 600_000
        names = ["billing", *(f"ci-{at_ms}-{k:03d}-consumer-group" for k in range(each))]
        groups = [group(name, at_ms, queue(committed=n % 90)) for name in names]
        history.add(cluster(at_ms, *groups))
    return begin_ms + sweeps * 600_000


def _rows(path: Path, what: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return int(file.execute(f"SELECT count(*) FROM {what}").fetchone()[0])


def test_groups_that_came_and_went_leave_the_others_their_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"
    with History(path, bytes_max=1024 * 1024) as history:
        end_ms = _passing(history, 600)
        month = history.series("billing", since_ms=0, until_ms=end_ms, points=10_000)
    assert sum(point.lag is not None for point in month) > 100
    assert month[-1].at_ms == end_ms - 600_000
    assert "HISTORY_NOT_WRITTEN" not in caplog.text


def test_series_whose_last_point_is_too_old_is_deleted_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with History(path) as history:
        end_ms = _passing(history, 3)
        for _ in range(29 * 2):
            end_ms = _passing(history, 2, end_ms + 12 * HOUR_MS - 1_200_000, each=0)
        assert _rows(path, "series") == 2 + 3 * 40, "their points are kept for 30 days"
        for _ in range(2 * 2):
            end_ms = _passing(history, 2, end_ms + 12 * HOUR_MS - 1_200_000, each=0)
        assert _rows(path, "series") == 2
        assert len(history._ids) <= 2
        _passing(history, 1, end_ms, each=1)
        new = history.series(f"ci-{end_ms}-000-consumer-group", since_ms=0, until_ms=end_ms + 1)
    assert [p.lag for p in new if p.lag is not None] == [100], "its id was another's before"


def test_series_deleted_in_a_sweep_that_failed_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h.db"
    with History(path) as history:
        end_ms = _passing(history, 3)
        before = _rows(path, "series")
        prune = history._prune

        def pruned_and_failed(connection: sqlite3.Connection, now_ms: int) -> None:
            prune(connection, now_ms)
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(history, "_prune", pruned_and_failed)
        end_ms = _passing(history, 2, end_ms + 40 * 24 * HOUR_MS)
        monkeypatch.undo()
        assert _rows(path, "series") == before
        _passing(history, 1, end_ms)
    unnamed = "points_10000 WHERE series NOT IN (SELECT id FROM series)"
    assert _rows(path, unnamed) == 0


def test_full_file_is_told_of_and_every_sweep_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, bound = tmp_path / "h.db", 1024 * 1024
    with History(path, bytes_max=bound) as history:
        end_ms = _passing(history, 2)
        many = [group(f"group-{n:060d}", end_ms, queue()) for n in range(3_000)]
        history.add(cluster(end_ms, *many))
        history.add(cluster(end_ms + 10_000, *many))
        assert caplog.text.count("HISTORY_NOT_WRITTEN") == 1
        known = [p.lag for p in all_of(history) if p.lag is not None]
        assert known == [100, 99], "nothing is given up for nothing"
        end_ms = _passing(history, 3, end_ms + 600_000, each=0)
        assert all_of(history)[-1].at_ms == end_ms - 600_000
        history.add(cluster(end_ms, *many))
        assert caplog.text.count("HISTORY_NOT_WRITTEN") == 2, "it is another time"


def test_file_full_of_series_without_points_is_written_again(tmp_path: Path) -> None:
    """An older version left such files."""
    path, bound = tmp_path / "h.db", 1024 * 1024
    with History(path) as history:
        end_ms = _passing(history, 2)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA journal_mode = DELETE").fetchall()
        file.execute(f"PRAGMA max_page_count = {bound // 4_096}").fetchall()
        with contextlib.suppress(sqlite3.OperationalError):
            for n in itertools.count():
                rows = [(f"ci-run-{n}-{k:03d}-consumer-group", "orders") for k in range(100)]
                file.executemany("INSERT INTO series (grp, topic) VALUES (?,?)", rows)
                file.commit()
    with History(path, bytes_max=bound) as history:
        end_ms = _passing(history, 3, end_ms)
        assert all_of(history)[-1].at_ms == end_ms - 600_000
    assert _rows(path, "series") < 300


def test_full_disk_costs_no_point_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with History(tmp_path / "h.db") as history:
        end_ms = fill(history, 100)
        before = all_of(history)
        monkeypatch.setattr(history, "_series_id", no_room)
        fill(history, 200, begin_ms=end_ms + 10_000)
        assert all_of(history) == before
    assert caplog.text.count("HISTORY_NOT_WRITTEN") == 1


def test_a_disk_full_for_a_moment_costs_no_point_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is made in a file that met its own bound, and not for what the disk lacks."""
    with History(tmp_path / "h.db") as history:
        end_ms = fill(history, 100)
        before, series_id = all_of(history), history._series_id

        def no_room_once(*_: object) -> int:
            monkeypatch.setattr(history, "_series_id", series_id)
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        monkeypatch.setattr(history, "_series_id", no_room_once)
        fill(history, 20, begin_ms=end_ms + 10_000)
        assert all_of(history)[: len(before)] == before


def test_changes_of_verdict_do_not_fill_the_file(tmp_path: Path) -> None:
    path, bound = tmp_path / "h.db", 1024 * 1024
    with History(path, bytes_max=bound) as history:
        for n in range(100):
            at_ms = BEGIN_MS + n * 60_000
            ok = GroupVerdict("billing", Verdict.OK, "all is well " * 20)
            history.add(lagging(at_ms, 3), {}, [VerdictChange("billing", at_ms, None, ok)] * 100)
        assert all_of(history)[-1].at_ms == at_ms
        assert history.verdicts(limit=1)[0].at_ms == at_ms
        assert 1_000 < _rows(path, "verdicts") < 10_000


@pytest.mark.parametrize("what", ["text", "torn", "foreign", "newer"])
def test_a_file_that_cannot_be_used_is_set_aside_and_kept(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"
    if what == "text":
        path.write_text("dear diary " * 1_000)
    elif what == "torn":
        path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000)
    else:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE bookmarks (url TEXT)")
            if what == "newer":
                other.execute("PRAGMA application_id = 0x524B5348")
                other.execute("PRAGMA user_version = 99")
        other.close()
    before = path.read_bytes()
    with caplog.at_level(logging.WARNING), History(path, clock=ManualClock()) as history:
        fill(history, 20)
        assert len(all_of(history)) == 2
    kept = tmp_path / f"h.db.aside-{START_MS}"
    assert kept.read_bytes() == before
    assert str(kept) in caplog.text


def test_damage_found_while_it_runs_costs_the_past_and_not_the_future(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"
    with History(path) as history:
        fill(history, 5_000)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with History(path) as history:
        assert all_of(history) == []
        fill(history, 30)
        assert [p.lag for p in all_of(history)] == [3, 3, 3]
    assert "HISTORY_SET_ASIDE" in caplog.text


def test_every_zeroed_page_is_told_when_the_file_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a file opened in silence, and had no figures where the page was."""
    path = tmp_path / "h.db"
    with History(path) as history:
        fill(history, 100)
        whole = all_of(history)
    text = path.read_bytes()
    silent = 0
    for start in range(0, len(text), 4_096):
        path.write_bytes(text[:start] + bytes(4_096) + text[start + 4_096 :])
        caplog.clear()
        with History(path) as history:
            if "HISTORY_SET_ASIDE" not in caplog.text:
                silent += 1
                assert all_of(history) == whole
        for each in tmp_path.iterdir():
            each.unlink()
    assert silent <= 2, "pages that hold nothing"


def test_damage_a_reader_meets_is_mended_with_the_next_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"
    with History(path) as history:
        fill(history, 5_000)
        history._damage = None
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (path.stat().st_size - 4096))
        history._drop_connections()
        assert all_of(history) == []
        assert "HISTORY_NOT_READ" in caplog.text
        fill(history, 30)
        assert "HISTORY_SET_ASIDE" in caplog.text
        assert [p.lag for p in all_of(history)] == [3, 3, 3]


def test_damage_that_cannot_be_set_aside_ends_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"

    def refused(*_: object) -> Path:
        raise history_file.unusable(path, PermissionError("read-only file system"))

    with History(path) as history:
        fill(history, 5_000)
        history._drop_connections()
        with path.open("r+b") as file:
            file.write(b"\xa5" * path.stat().st_size)
        monkeypatch.setattr(history_file, "set_aside", refused)
        fill(history, 30)
        assert caplog.text.count("HISTORY_NOT_WRITTEN") == 1
        monkeypatch.undo()
        fill(history, 30)
        assert [p.lag for p in all_of(history)] == [3, 3, 3]


@pytest.mark.parametrize("what", ["held", "no database"])
def test_a_writer_that_is_refused_leaves_nothing_open(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 and newer warn of a connection that nobody closed."""
    opened: list[sqlite3.Connection] = []
    really = sqlite3.connect

    def connect(*args: Any, **named: Any) -> sqlite3.Connection:
        opened.append(really(*args, **named))
        return opened[-1]

    path = tmp_path / "h.db"
    with contextlib.ExitStack() as stack:
        if what == "held":
            stack.enter_context(History(path))
        else:
            path.with_name("h.db.lock").write_text("dear diary " * 1_000)
        monkeypatch.setattr(sqlite3, "connect", connect)
        with pytest.raises(ConfigurationError):
            History(path)
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_second_writer_is_told_so_and_readers_are_welcome(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with History(path) as writer:
        fill(writer, 30)
        with pytest.raises(ConfigurationError, match="another process writes it"):
            History(path)
        with History(path, read_only=True) as reader:
            assert len(all_of(reader)) == 3
            with pytest.raises(ClientStateError):
                reader.add(lagging(BEGIN_MS, 0))
            fill(writer, 60)
            assert len(all_of(reader)) == 6
    with History(path) as again:
        assert len(all_of(again)) == 6


def test_places_where_no_file_can_be_are_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "h.db"):
        with pytest.raises(ConfigurationError, match=str(path)):
            History(path)
    with pytest.raises(ConfigurationError, match="no such file"):
        History(tmp_path / "none.db", read_only=True)


def test_a_stretch_that_is_none_is_refused(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        for since, until, points in ((5, 5, 1), (0, 1, 0), (0, 1, 10_001)):
            with pytest.raises(ConfigurationError):
                history.series("g", since_ms=since, until_ms=until, points=points)
        assert history.series("nobody", since_ms=0, until_ms=1) == []


def test_many_may_read_while_it_is_written(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with History(tmp_path / "h.db") as history:
        fill(history, 300)

        def read() -> None:
            try:
                for _ in range(20):
                    lags = [p.lag for p in all_of(history)]
                    assert len(lags) >= 30
                    assert set(lags) == {3}
            except BaseException as error:
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(6)]
        for each in readers:
            each.start()
        fill(history, 600)
        for each in readers:
            each.join()
    assert not errors


def _great(at_ms: int, n: int) -> ClusterState:
    """200 groups of five topics each: 1,200 series, every figure of which moves."""
    groups = []
    for g in range(200):
        end = 1_000_000 + n * 997 + g
        queues = [
            queue(
                f"topic-{g * 5 + t}",
                end=end,
                committed=end - (n * 31 + g * 7 + t) % 5_000,
                next_stored_ms=at_ms - (n * 13 + g) % 90_000,
            )
            for t in range(5)
        ]
        groups.append(group(f"group-{g}", at_ms, *queues))
    return cluster(at_ms, *groups)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_day_of_a_thousand_topics_and_two_hundred_groups_stays_small(tmp_path: Path) -> None:
    """What a day of sweeps every 10 s leaves: 10 s points of its last hour, minutes before it."""
    day, hour = 24 * 3_600, 3_600
    seconds = [*range(0, day - hour, 60), *range(day - hour, day + 70, 10)]
    with History(tmp_path / "h.db") as history:
        for n, second in enumerate(seconds):
            history.add(_great(BEGIN_MS + second * 1_000, n))
        size = history.size_bytes()
        points = history.series(
            "group-199", since_ms=BEGIN_MS, until_ms=BEGIN_MS + day * 1_000, points=10_000
        )
    assert size < 100 * 1024 * 1024, size
    assert len(points) == pytest.approx(1_380 + 360, abs=10)
    assert all(point.lag is not None for point in points)


WRITER = """
import sys
from rocketstream.watch import History
from tests.kits.states import BEGIN_MS, lagging
with History(sys.argv[1]) as history:
    for n in range(1_000_000):
        history.add(lagging(BEGIN_MS + n * 10_000, n + 1, arrived=n))
        print(n, flush=True)
"""


@pytest.mark.long
def test_a_kill_loses_nothing_that_was_swept(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    for seen_min in (5, 37, 200):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < seen_min:
                pass
            process.kill()
            told = [int(line) for line in process.stdout.read().split("\n")[:-1] if line]
        last = max(told, default=seen_min)
        with History(path) as history:
            points = all_of(history)
        assert [p.lag for p in points][seen_min] == seen_min + 1
        assert points[-1].at_ms >= BEGIN_MS + last * 10_000
    assert [each.name for each in tmp_path.iterdir() if "aside" in each.name] == []

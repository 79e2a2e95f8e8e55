"""Lag, time lag, rates and verdicts over a month, in one bounded SQLite file.

Law: one writer; several readers, in this process or others. Unknown is NULL. A problem with the
file is logged and never ends the collection.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.home import expanded
from rocketstream.admin.state import ClusterState, GroupVerdict, Verdict
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.watch import history_file
from rocketstream.watch.history_file import (
    LEVELS,
    PAGE_BYTES,
    read_past,
    shorten,
    write_moment,
    write_past,
)
from rocketstream.watch.model import VerdictChange
from rocketstream.watch.series import (
    WHOLE_GROUP,
    Level,
    Point,
    points_of,
    thinned,
    with_breaks,
)
from rocketstream.watch.windows import Past

_log = logging.getLogger(__name__)
T = TypeVar("T")

BYTES_MAX: Final = 256 * 1024 * 1024
BYTES_MAX_MIN: Final = 1024 * 1024
READERS_KEPT: Final = 4
DEFAULT_DIRECTORY: Final = Path("~/.rocketstream/history")
VERDICTS_MAX: Final = 50_000
"""Most changes of verdict kept; the oldest are deleted first."""
POINTS_MAX: Final = 10_000
"""Most points of one answer."""

_COLUMNS = "lag, time_lag_ms, consume_rate, arrival_rate, retrying, dead_letters, queues_unknown"
_ROLLED = (
    "max(lag), max(time_lag_ms), CAST(round(avg(consume_rate)) AS INTEGER), "
    "CAST(round(avg(arrival_rate)) AS INTEGER), max(retrying), max(dead_letters), "
    "max(queues_unknown)"
)

TIDY_MS: Final = 24 * 3_600_000
"""How often series without a point are looked for: a second's work where the file is large."""
LEAP_MS: Final = 24 * 3_600_000
"""A clock that leaps forward by more may be wrong: for so long nothing is too old by it."""


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """A recorded change of verdict; ``before`` is None when the group was first seen."""

    group: str
    at_ms: int
    before: Verdict | None
    verdict: Verdict
    sentence: str


class History:
    """The history of a cluster's groups: every 10 s for an hour, every minute for a day, every
    10 minutes for 30 days.

    Args:
        path: the file. A file that is damaged, or of another program or version, is renamed
            (``….aside-TIME``), the log says so, and a new one is begun.
        bytes_max: the largest size of the file, at least 1 MiB; a log of up to 8 MiB comes beside
            it. When the file is full, each resolution gives up the oldest tenth of its points, and
            the changes of verdict their oldest tenth; their oldest half where a sweep does not fit
            into what is left. A full disk makes them give up nothing.
        read_only: only read what another process writes.
        clock: decides what is too old.

    A coarser point has the worst lag and the mean rates of its stretch. The file also keeps the
    last verdicts and the states of the last 20 minutes, for ``past``. Thread safe; to be closed.

    Raises:
        ConfigurationError: no file can be made there, another process writes it, or there is no
            file to read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        bytes_max: int = BYTES_MAX,
        read_only: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if bytes_max < BYTES_MAX_MIN:
            raise ConfigurationError(
                f"bytes_max={bytes_max}: a history needs {BYTES_MAX_MIN} bytes at least",
                bytes_max=bytes_max,
            )
        self._path = Path(path)
        self._clock = clock
        self._pages_max = bytes_max // PAGE_BYTES
        self._read_only = read_only
        self._lock = threading.Lock()
        self._closed = False
        self._readers: list[sqlite3.Connection] = []
        self._before: ClusterState | None = None
        self._trusted_ms = 0
        """From when on the clock decides what is too old, after it leapt forward."""
        self._tidied_ms = 0
        self._ids: dict[tuple[str, str], int] = {}
        self._bytes_max = bytes_max
        self._failing = False
        self._is_full = False
        """Whether the last sweep met the bound of the file, not of the disk."""
        self._damage: sqlite3.Error | None = None
        """The damage a reader met, for the writer to mend."""
        self._held: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        if read_only:
            if not self._path.is_file():
                raise history_file.unusable(self._path, FileNotFoundError("there is no such file"))
            return
        if self._path.is_dir():
            raise history_file.unusable(self._path, IsADirectoryError("it is a directory"))
        self._held = history_file.hold(self._path)
        try:
            self._open()
        except BaseException:
            self._held.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        with self._lock:
            if not self._closed:
                self._keep_last()
            self._closed = True
            for connection in (*self._readers, self._writer, self._held):
                if connection is not None:
                    connection.close()
            self._readers = []
            self._writer = self._held = None

    # --- writing ------------------------------------------------------------------------------

    def add(
        self,
        state: ClusterState,
        verdicts: Mapping[str, GroupVerdict] | None = None,
        changes: Sequence[VerdictChange] = (),
    ) -> None:
        """Write one sweep down, in one transaction; a problem with the file raises nothing.

        A sweep that found nothing is written as a moment with unknown figures.

        Args:
            verdicts: the verdicts of every group, for ``past``; None keeps none.

        Raises:
            ClientStateError: the history is closed, or opened only for reading.
        """
        with self._lock:
            if self._closed or self._read_only:
                what = "closed" if self._closed else "opened to read only"
                raise ClientStateError(f"history {self._path} is {what}")
            before, self._before = self._before, state
            damage, self._damage = self._damage, None
            if damage is not None and not self._mend(damage):
                return
            make_room = False
            for again in (False, True):
                try:
                    self._write(state, before, verdicts, changes, make_room=make_room)
                    self._failing = False
                    return
                except ConfigurationError as error:  # it was damaged, and cannot be set aside
                    self._say(error)
                    return
                except sqlite3.Error as error:
                    if again:
                        self._say(error)
                    elif not self._mend(error):
                        return
                    make_room = not history_file.is_damage(error)

    def _write(
        self,
        state: ClusterState,
        before: ClusterState | None,
        verdicts: Mapping[str, GroupVerdict] | None,
        changes: Sequence[VerdictChange],
        *,
        make_room: bool,
    ) -> None:
        connection = self._writing()
        self._is_full = False
        with _transaction(connection, self._ids):
            if make_room:  # with the sweep or not at all: without it, it would be for nothing
                self._shorten(connection, 2)
            try:
                self._write_sweep(connection, state, before, verdicts, changes)
            except sqlite3.Error as error:
                # Told before the sweep is taken back: behind it, a full disk looks the same.
                if _is_no_room(error):
                    self._is_full = _pages(connection)[0] > self._pages_max * 0.9
                raise

    def _write_sweep(
        self,
        connection: sqlite3.Connection,
        state: ClusterState,
        before: ClusterState | None,
        verdicts: Mapping[str, GroupVerdict] | None,
        changes: Sequence[VerdictChange],
    ) -> None:
        finest = LEVELS[0].step_ms
        slot = state.taken_ms // finest
        connection.execute(f"INSERT OR REPLACE INTO slots_{finest} VALUES (?)", (slot,))
        connection.executemany(
            f"INSERT OR REPLACE INTO points_{finest} VALUES (?,?,?,?,?,?,?,?,?)",
            [
                (slot, self._series_id(connection, group, topic), *_stored(found))
                for (group, topic), found in _points(state, before).items()
            ],
        )
        connection.executemany(
            "INSERT INTO verdicts (at_ms, grp, before, verdict, sentence) VALUES (?,?,?,?,?)",
            [(c.at_ms, c.group, c.before, c.after.verdict, c.after.sentence) for c in changes],
        )
        if verdicts is not None and state.error is None:
            write_past(connection, state, verdicts, self._bytes_max)
        rolled = False
        for fine, coarse in itertools.pairwise(LEVELS):
            rolled |= _roll(connection, fine, coarse, state.taken_ms)
        if before is not None and state.taken_ms - before.taken_ms > LEAP_MS:
            self._trusted_ms = state.taken_ms + LEAP_MS
        elif before is not None and state.taken_ms < before.taken_ms:
            self._trusted_ms = 0
        if rolled:
            self._prune(connection, state.taken_ms)

    def _series_id(self, connection: sqlite3.Connection, group: str, topic: str) -> int:
        known = self._ids.get((group, topic))
        if known is None:
            connection.execute(
                "INSERT OR IGNORE INTO series (grp, topic) VALUES (?,?)", (group, topic)
            )
            row = connection.execute(
                "SELECT id FROM series WHERE grp = ? AND topic = ?", (group, topic)
            ).fetchone()
            known = self._ids[(group, topic)] = int(row[0])
        return known

    def _prune(self, connection: sqlite3.Connection, now_ms: int) -> None:
        """Delete points that are too old, the oldest tenth of all where the file is full, and
        series that have no point left."""
        if now_ms >= self._trusted_ms:
            for level in LEVELS:
                _forget(connection, level, (now_ms - level.keep_ms) // level.step_ms)
            connection.execute(
                "DELETE FROM verdicts WHERE at_ms < ? OR id <= (SELECT max(id) FROM verdicts) - ?",
                (now_ms - LEVELS[-1].keep_ms, VERDICTS_MAX),
            )
        used, free = _pages(connection)
        if used > self._pages_max * 0.9:
            self._shorten(connection, 10)
        elif abs(now_ms - self._tidied_ms) >= TIDY_MS:
            self._forget_series(connection)
            self._tidied_ms = now_ms
        elif free > max(used // 4, 256):
            connection.execute("PRAGMA incremental_vacuum(256)").fetchall()

    def _keep_last(self) -> None:
        """Write the last state, so that the next collection can continue from it."""
        if self._writer is None or self._before is None or self._before.error is not None:
            return
        try:
            with _transaction(self._writer, self._ids):
                write_moment(self._writer, self._before, self._bytes_max)
        except sqlite3.Error as error:
            self._say(error)

    def _shorten(self, connection: sqlite3.Connection, parts: int) -> None:
        """Delete the oldest of so many parts of all there is."""
        shorten(connection)
        for level in LEVELS:
            row = connection.execute(
                f"SELECT slot FROM slots_{level.step_ms} ORDER BY slot LIMIT 1 OFFSET "
                f"(SELECT count(*) / {parts} FROM slots_{level.step_ms})"
            ).fetchone()
            if row is not None:
                _forget(connection, level, int(row[0]) + 1)
        connection.execute(
            "DELETE FROM verdicts WHERE id < (SELECT id FROM verdicts ORDER BY id LIMIT 1 OFFSET "
            f"(SELECT count(*) / {parts} FROM verdicts))"
        )
        self._forget_series(connection)

    def _forget_series(self, connection: sqlite3.Connection) -> None:
        """Delete the series of groups and topics that have no point at any level."""
        kept = " UNION ".join(f"SELECT series FROM points_{level.step_ms}" for level in LEVELS)
        connection.execute(f"DELETE FROM series WHERE id NOT IN ({kept})")
        self._ids.clear()  # an id that is free is given to another series

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            self._open()
        assert self._writer is not None
        return self._writer

    def _open(self) -> None:
        self._writer = history_file.open_writer(self._path, self._clock)
        self._writer.execute(f"PRAGMA max_page_count = {self._pages_max}").fetchone()
        self._ids = {}

    def _mend(self, error: sqlite3.Error) -> bool:
        """Repair an error of the file as far as possible; return whether to write again, and
        make room first."""
        if history_file.is_damage(error):
            self._drop_connections()
            try:
                history_file.set_aside(self._path, self._clock, str(error))
            except ConfigurationError as worse:
                self._say(worse)
                return False
            return True
        if _is_no_room(error) and self._is_full:
            return True
        self._say(error)
        return False

    def _say(self, error: Exception) -> None:
        if not self._failing:
            _log.warning(
                "HISTORY_NOT_WRITTEN history %s: %s; the collection goes on without it",
                self._path,
                error,
            )
        self._failing = True

    def _drop_connections(self) -> None:
        for connection in (*self._readers, self._writer):
            if connection is not None:
                connection.close()
        self._readers = []
        self._writer = None

    # --- reading ------------------------------------------------------------------------------

    def series(
        self,
        group: str,
        topic: str | None = None,
        *,
        since_ms: int,
        until_ms: int,
        points: int = 300,
    ) -> list[Point]:
        """Return the figures of a group, or of one of its topics, over time; oldest first.

        Args:
            topic: the topic; None takes all topics and the retry topic together.
            since_ms: the beginning, ms since 1970.
            until_ms: the end, not included, ms since 1970.
            points: the most points to return, 1 to 10,000; several moments are merged into one
                point with the worst lag and the mean rates.

        A moment at which nothing was known is a point whose figures are None: a break in the line.

        Raises:
            ConfigurationError: the stretch of time is empty, or too many points are asked for.
        """
        if until_ms <= since_ms or not 1 <= points <= POINTS_MAX:
            raise ConfigurationError(
                f"since_ms={since_ms}, until_ms={until_ms}, points={points}: the end must be "
                f"later than the beginning, and points between 1 and {POINTS_MAX}",
                since_ms=since_ms,
                until_ms=until_ms,
                points=points,
            )

        def read(connection: sqlite3.Connection) -> list[Point]:
            row = connection.execute(
                "SELECT id FROM series WHERE grp = ? AND topic = ?",
                (group, WHOLE_GROUP if topic is None else topic),
            ).fetchone()
            if row is None:
                return []
            found, steps = _found(connection, int(row[0]), since_ms, until_ms)
            return thinned(with_breaks(found, steps), since_ms, until_ms, points)

        return self._read(read, [])

    def verdicts(
        self,
        group: str | None = None,
        *,
        since_ms: int = 0,
        until_ms: int | None = None,
        limit: int = 1_000,
    ) -> list[PastVerdict]:
        """Return changes of verdict, the newest first.

        Args:
            group: the group whose changes are returned; None takes all.
        """
        conditions = "at_ms >= ?" + (" AND at_ms < ?" if until_ms is not None else "")
        values: list[object] = [since_ms, *([until_ms] if until_ms is not None else [])]
        if group is not None:
            conditions += " AND grp = ?"
            values.append(group)

        def read(connection: sqlite3.Connection) -> list[PastVerdict]:
            rows = connection.execute(
                "SELECT grp, at_ms, before, verdict, sentence FROM verdicts "
                f"WHERE {conditions} ORDER BY at_ms DESC, id DESC LIMIT ?",
                (*values, limit),
            )
            return [
                PastVerdict(g, at, None if b is None else Verdict(b), Verdict(v), sentence)
                for g, at, b, v, sentence in rows
            ]

        return self._read(read, [])

    def past(self) -> Past | None:
        """Return the state a collection left, or leaves now, to continue from; None where none
        did."""
        return self._read(read_past, None)

    def size_bytes(self) -> int:
        """Return the size of the file in bytes, without SQLite's log beside it."""
        return self._path.stat().st_size

    def _read(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        with self._lock:
            if self._closed:
                raise ClientStateError(f"history {self._path} is closed")
            connection = self._readers.pop() if self._readers else None
        try:
            if connection is None:
                connection = history_file.connect(self._path, read_only=True)
            connection.execute("BEGIN")  # everything is read as of one moment
            try:
                found = read(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            _log.warning("HISTORY_NOT_READ history %s: %s", self._path, error)
            if history_file.is_damage(error):
                with self._lock:
                    self._damage = error  # the writer sets the file aside
            return nothing
        with self._lock:
            if self._closed or len(self._readers) >= READERS_KEPT:
                connection.close()
            else:
                self._readers.append(connection)
        return found


def default_history(namesrv: str) -> Path:
    """Return the file in which the dashboard of a cluster keeps its history unless told otherwise.

    Raises:
        ConfigurationError: this user has no home directory.
    """
    name = "".join(char if char.isalnum() or char in ".-" else "_" for char in namesrv)
    return expanded(DEFAULT_DIRECTORY) / f"{name[:120].lstrip('.') or 'cluster'}.db"


def kept_past(namesrv: str) -> Past | None:
    """Return what a dashboard of this cluster knows, or knew last, for a collection to begin with.

    None where the default history is not there. Raises nothing.
    """
    try:
        with History(default_history(namesrv), read_only=True) as history:
            return history.past()
    except ConfigurationError:
        return None


@contextmanager
def _transaction(connection: sqlite3.Connection, ids: dict[tuple[str, str], int]) -> Iterator[None]:
    """Write all of it or nothing; a rollback, after which they may be of nothing, forgets the
    ``ids`` too."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        ids.clear()
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _points(state: ClusterState, before: ClusterState | None) -> dict[tuple[str, str], Point]:
    if state.error is not None:
        return {}
    was = {} if before is None or before.error is not None else before.groups
    return {
        (group, topic): point
        for group, found in state.groups.items()
        for topic, point in points_of(found, was.get(group)).items()
    }


def _stored(found: Point) -> tuple[int | None, ...]:
    rates = (found.consume_rate, found.arrival_rate)
    return (
        found.lag,
        found.time_lag_ms,
        *(None if rate is None else round(rate * 1000) for rate in rates),
        found.retrying,
        found.dead_letters,
        found.queues_unknown,
    )


def _roll(connection: sqlite3.Connection, fine: Level, coarse: Level, now_ms: int) -> bool:
    """Make coarse slots of the fine ones whose time is over; return whether there were any."""
    f, c = fine.step_ms, coarse.step_ms
    end = now_ms // c
    # Later slots are of a clock that ran ahead.
    row = connection.execute(f"SELECT max(slot) FROM slots_{c} WHERE slot < ?", (end,)).fetchone()
    last = row[0]
    # Only while the fine level still has the whole stretch: a coarse slot must not be made of a
    # rest.
    first = connection.execute(f"SELECT min(slot) FROM slots_{f}").fetchone()[0]
    if first is None:
        return False
    begin = max(first * f // c, -1 if last is None else last + 1)
    if begin >= end:
        return False
    span = (begin * c // f, end * c // f)
    new = connection.execute(
        f"INSERT OR IGNORE INTO slots_{c} SELECT DISTINCT slot * {f} / {c} FROM slots_{f} "
        "WHERE slot >= ? AND slot < ?",
        span,
    ).rowcount
    connection.execute(
        f"INSERT OR REPLACE INTO points_{c} SELECT slot * {f} / {c} AS s, series, {_ROLLED} "
        f"FROM points_{f} WHERE slot >= ? AND slot < ? GROUP BY s, series",
        span,
    )
    return new > 0


def _forget(connection: sqlite3.Connection, level: Level, before_slot: int) -> None:
    for table in ("slots", "points"):
        connection.execute(f"DELETE FROM {table}_{level.step_ms} WHERE slot < ?", (before_slot,))


def _is_no_room(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL


def _pages(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many pages of the file are in use, and how many are free."""
    (all_pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return all_pages - free, free


def _found(
    connection: sqlite3.Connection, series: int, since_ms: int, until_ms: int
) -> tuple[list[Point], list[int]]:
    """Return the points of a stretch with their steps, each from the finest level that has it."""
    parts: list[tuple[list[Point], int]] = []
    end_ms = until_ms
    for level in LEVELS:
        step = level.step_ms
        first = connection.execute(f"SELECT min(slot) FROM slots_{step}").fetchone()[0]
        if first is None:
            continue
        begin_ms = max(since_ms, first * step)
        if begin_ms >= end_ms:
            continue
        rows = connection.execute(
            f"SELECT s.slot, {_COLUMNS} FROM slots_{step} s "
            f"LEFT JOIN points_{step} p ON p.slot = s.slot AND p.series = ? "
            "WHERE s.slot >= ? AND s.slot < ? ORDER BY s.slot",
            (series, -(-begin_ms // step), -(-end_ms // step)),
        )
        parts.append(([_point(row, step) for row in rows], step))
        end_ms = begin_ms
    parts.reverse()
    return (
        [point for found, _ in parts for point in found],
        [step for found, step in parts for _ in found],
    )


def _point(row: tuple[int | None, ...], step_ms: int) -> Point:
    slot, lag, time_lag_ms, consumed, arrived, retrying, dead, unknown = row
    return Point(
        (slot or 0) * step_ms,
        lag,
        time_lag_ms,
        None if consumed is None else consumed / 1000,
        None if arrived is None else arrived / 1000,
        retrying,
        dead,
        unknown or 0,
    )

"""The file of the history: its tables, opening it, and setting aside a file that cannot be used.

It also keeps what another collection begins with: verdicts and a window of states.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocketstream._util.clock import Clock
from rocketstream.admin.state import ClusterState, GroupVerdict, Verdict
from rocketstream.errors import ConfigurationError
from rocketstream.watch.series import Level
from rocketstream.watch.windows import SPAN_MS, Moment, Past, decoded, encoded, places

_log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x524B5348
"""The number in the file's header that marks it as ours."""
VERSION: Final = 1
PAGE_BYTES: Final = 4096
BUSY_S: Final = 5.0

LEVELS: Final = (
    Level(10_000, 3_600_000),
    Level(60_000, 24 * 3_600_000),
    Level(600_000, 30 * 24 * 3_600_000),
)

_SERIES = """
CREATE TABLE series (
  id INTEGER PRIMARY KEY, grp TEXT NOT NULL, topic TEXT NOT NULL, UNIQUE (grp, topic)
);
CREATE TABLE verdicts (
  id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, grp TEXT NOT NULL,
  before TEXT, verdict TEXT NOT NULL, sentence TEXT NOT NULL
);
CREATE INDEX verdicts_of_group ON verdicts (grp, at_ms);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
# A restart continues from these tables. Made where they are missing, so that an older file keeps
# its past.
_GOING_ON = """
CREATE TABLE IF NOT EXISTS standing (
  grp TEXT PRIMARY KEY, verdict TEXT NOT NULL, since_ms INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moments (at_ms INTEGER PRIMARY KEY, states BLOB NOT NULL);
"""
# Rates are in thousandths of a message a second: SQLite keeps small integers in few bytes. Ordered
# by time, so that a sweep is written in one place and old rows are deleted in one place.
_LEVEL = """
CREATE TABLE slots_{n} (slot INTEGER PRIMARY KEY);
CREATE TABLE points_{n} (
  slot INTEGER NOT NULL, series INTEGER NOT NULL,
  lag INTEGER, time_lag_ms INTEGER, consume_rate INTEGER, arrival_rate INTEGER,
  retrying INTEGER, dead_letters INTEGER, queues_unknown INTEGER NOT NULL,
  PRIMARY KEY (slot, series)
) WITHOUT ROWID;
"""


class _NotOursError(Exception):
    """The database belongs to another program or version, or is damaged."""


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether the file itself is broken, not only locked, full or out of reach."""
    return getattr(error, "sqlite_errorcode", None) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a connection that any thread may use, one at a time."""
    mode = "ro" if read_only else "rwc"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )


def hold(path: Path) -> sqlite3.Connection:
    """Return a lock that keeps every other writer away until it is closed or this process ends.

    Raises:
        ConfigurationError: another process writes this history, or the place cannot be written.
    """
    lock = path.with_name(path.name + ".lock")
    held: sqlite3.Connection | None = None
    try:
        held = sqlite3.connect(lock, timeout=0, isolation_level=None, check_same_thread=False)
        held.execute("BEGIN EXCLUSIVE")
    except sqlite3.DatabaseError as error:
        if held is not None:
            held.close()
        if not isinstance(error, sqlite3.OperationalError):
            raise unusable(lock, error) from error
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise ConfigurationError(
                f"history {path}: another process writes it; give this one another file",
                path=str(path),
            ) from None
        raise unusable(path, error) from error
    return held


def unusable(path: Path, error: Exception) -> ConfigurationError:
    """Return the error for a place where no history can be kept."""
    return ConfigurationError(
        f"history {path}: {error}; give a file in a directory that exists and can be written",
        path=str(path),
    )


def open_writer(path: Path, clock: Clock) -> sqlite3.Connection:
    """Open the file for writing; make a new one where there is none, or it is not ours.

    Raises:
        ConfigurationError: no history can be kept there.
    """
    for _ in range(2):
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(path, read_only=False)
            _prepare(connection)
            return connection
        except (_NotOursError, sqlite3.DatabaseError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise unusable(path, error) from error
            set_aside(path, clock, str(error))
    raise unusable(path, OSError("what was put aside came back"))


def _prepare(connection: sqlite3.Connection) -> None:
    """Check that the database is ours or empty, and make the tables that are missing."""
    (ours,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and ours != APPLICATION_ID:
        raise _NotOursError("it is a database of another program")
    if tables and version != VERSION:
        raise _NotOursError(f"it is of version {version}, this program writes version {VERSION}")
    if tables:
        # A page of zeros is an empty table until somebody reads that part of it. It takes a second
        # for a file as large as one may be.
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise _NotOursError(f"it is damaged: {said}")
    else:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    # A kill loses nothing; a power failure loses the last seconds, never the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 8388608")
    if tables:
        connection.executescript(f"BEGIN IMMEDIATE;{_GOING_ON}COMMIT;")
        return
    levels = "".join(_LEVEL.format(n=level.step_ms) for level in LEVELS)
    connection.executescript(
        f"BEGIN;{_SERIES}{levels}{_GOING_ON}"
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
    )


def set_aside(path: Path, clock: Clock, why: str) -> Path:
    """Rename the file, with the files SQLite keeps beside it, and log that.

    Raises:
        ConfigurationError: the file cannot be renamed.
    """
    kept = path.with_name(f"{path.name}.aside-{clock.now_ms()}")
    try:
        path.rename(kept)
        for tail in ("-wal", "-shm"):
            beside = path.with_name(path.name + tail)
            if beside.exists():
                beside.rename(kept.with_name(kept.name + tail))
    except OSError as error:
        raise unusable(path, error) from error
    _log.warning(
        "HISTORY_SET_ASIDE history %s cannot be used: %s; kept as %s, and a new one begins",
        path,
        why,
        kept,
    )
    return kept


MOMENT_STEP_MS: Final = 60_000
"""The time from one kept moment to the next; the last moment is kept when the history is closed."""
MOMENT_SHARE: Final = 256
"""The part of the file's bound that one moment may take: 1/256, which is 1 MiB or some 50,000
queues.
"""


def write_past(
    connection: sqlite3.Connection,
    state: ClusterState,
    verdicts: Mapping[str, GroupVerdict],
    bytes_max: int,
) -> None:
    """Write down an answered sweep for the collection after a restart.

    Args:
        bytes_max: the largest size of the whole file.
    """
    meta = {"swept_ms": str(state.taken_ms), "brokers": json.dumps([*places(state.brokers)])}
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", meta.items())
    connection.execute("DELETE FROM standing")
    connection.executemany(
        "INSERT INTO standing VALUES (?,?,?)",
        [(name, each.verdict.value, each.since_ms) for name, each in verdicts.items()],
    )
    (last_ms,) = connection.execute("SELECT max(at_ms) FROM moments").fetchone()
    if last_ms is None or abs(state.taken_ms - last_ms) >= MOMENT_STEP_MS:
        write_moment(connection, state, bytes_max)


def write_moment(connection: sqlite3.Connection, state: ClusterState, bytes_max: int) -> None:
    """Write a whole state, and delete those that no window reaches back to."""
    data = encoded(state)
    if len(data) > bytes_max // MOMENT_SHARE:
        last = connection.execute("SELECT states FROM moments ORDER BY at_ms DESC LIMIT 1")
        if last.fetchone() != (b"",):
            _log.info(
                "HISTORY_WITHOUT_WINDOWS %d bytes of states are too many for the file's bound: "
                "after a restart verdicts begin with a new window",
                len(data),
            )
        data = b""  # of no state, and in the place of one for the next minute
    connection.execute("INSERT OR REPLACE INTO moments VALUES (?,?)", (state.taken_ms, data))
    connection.execute(
        "DELETE FROM moments WHERE at_ms < ? OR at_ms > ?",
        (state.taken_ms - SPAN_MS, state.taken_ms),
    )


def shorten(connection: sqlite3.Connection) -> None:
    """Delete the older half of the window, because the file is full."""
    connection.execute(
        "DELETE FROM moments WHERE at_ms < (SELECT (min(at_ms) + max(at_ms)) / 2 FROM moments)"
    )


def read_past(connection: sqlite3.Connection) -> Past | None:
    """Return the state the previous collection left; None where there was none."""
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    if "swept_ms" not in meta:
        return None
    verdicts = {
        name: GroupVerdict(name, Verdict(verdict), "", since_ms=since_ms)
        for name, verdict, since_ms in connection.execute("SELECT * FROM standing")
        if verdict in list(Verdict)
    }
    swept_ms = int(meta["swept_ms"])
    rows = connection.execute(
        "SELECT states FROM moments WHERE at_ms <= ? ORDER BY at_ms", (swept_ms,)
    )
    moments: list[Moment] = [moment for (data,) in rows if (moment := decoded(data)) is not None]
    return Past(swept_ms, frozenset(json.loads(meta.get("brokers", "[]"))), verdicts, moments)

"""The state kept for the collection after a restart: verdicts and a window of states.

Law: written and read inside the transactions of ``History``; ``core.takeover`` decides whether the
state is taken over.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from typing import Final

from rocketstream.admin.state import ClusterState, GroupVerdict, Verdict
from rocketstream.watch.core.moments import Moment, decoded, encoded, places
from rocketstream.watch.core.takeover import Past
from rocketstream.watch.core.windows import SPAN_MS

_log = logging.getLogger(__name__)

MOMENT_STEP_MS: Final = 60_000
"""The time from one kept moment to the next; the last moment is kept when the history is closed."""
MOMENT_SHARE: Final = 256
"""The part of the file's bound that one moment may take: 1/256, which is 1 MiB or some 50,000
queues.
"""


class PastWriter:
    """Writes the state a restart continues from; not thread safe.

    Args:
        bytes_max: the largest size of the whole file.
    """

    def __init__(self, bytes_max: int) -> None:
        self._moment_bytes_max = bytes_max // MOMENT_SHARE
        self._standing: dict[str, tuple[str, int | None]] | None = None
        self._moment_ms: int | None = None
        self._said = False

    def forget(self) -> None:
        """Count nothing as written any more: the last write was rolled back, or lost."""
        self._standing = self._moment_ms = None

    def write(
        self,
        connection: sqlite3.Connection,
        state: ClusterState,
        verdicts: Mapping[str, GroupVerdict],
    ) -> None:
        """Write down an answered sweep."""
        meta = {"swept_ms": str(state.taken_ms), "brokers": json.dumps([*places(state.brokers)])}
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", meta.items())
        now = {name: (v.verdict.value, v.since_ms) for name, v in verdicts.items()}
        if self._standing is None:
            connection.execute("DELETE FROM standing")
        was = self._standing or {}
        connection.executemany(
            "DELETE FROM standing WHERE grp = ?", [(name,) for name in was if name not in now]
        )
        connection.executemany(
            "INSERT OR REPLACE INTO standing VALUES (?,?,?)",
            [(name, *each) for name, each in now.items() if was.get(name) != each],
        )
        self._standing = now
        if self._moment_ms is None or abs(state.taken_ms - self._moment_ms) >= MOMENT_STEP_MS:
            self.write_moment(connection, state)

    def write_moment(self, connection: sqlite3.Connection, state: ClusterState) -> None:
        """Write a whole state, and delete those that no window reaches back to."""
        self._moment_ms = state.taken_ms
        data = encoded(state)
        if len(data) > self._moment_bytes_max:
            if not self._said:
                _log.info(
                    "HISTORY_WITHOUT_WINDOWS %d bytes of states are too many for the file's bound: "
                    "after a restart verdicts begin with a new window",
                    len(data),
                )
            self._said = True
            return
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

"""Progress as a stream: which snapshot each micro-batch holds, and when the next one is due.

A function that is passed in takes the snapshots. Past progress cannot be read again: a batch that
is planned a second time after a restart gets a new snapshot, with its own time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.spark.progress.tables import Row, failed

logger: logging.Logger = logging.getLogger("rocketstream.spark")

VERSION: Final = 1
WAIT_MS: Final = 200
"""How long Spark, which asks every 10 ms, has to wait while no snapshot is due."""

Take = Callable[[int], list[Row]]
"""Takes a snapshot and writes the given time, ms since 1970, into its rows."""


@dataclass(frozen=True, slots=True)
class SnapshotOffset:
    """A point of the stream: how many snapshots were taken, and when the last one was.

    Attributes:
        number: how many snapshots were taken; 0 before the first.
        at_ms: when the last one was taken, ms since 1970; 0 before the first.
    """

    number: int = 0
    at_ms: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the value Spark keeps in its checkpoint."""
        return {"v": VERSION, "snapshot": self.number, "at": self.at_ms}

    @classmethod
    def from_json(cls, value: Any) -> SnapshotOffset:
        """Read the value that ``to_json`` made.

        Raises:
            ConfigurationError: it is the offset of another source, or of a later version.
        """
        if isinstance(value, dict) and value.get("v") == VERSION:
            number, at_ms = value.get("snapshot"), value.get("at")
            if type(number) is int and type(at_ms) is int:
                return cls(number, at_ms)
        raise ConfigurationError(
            f"the checkpoint holds {value!r}, which is not an offset of rocketmq-progress of "
            f"format {VERSION}; use a checkpoint of this source or a new directory"
        )


class History:
    """The driver's side of a progress stream; one instance lives as long as the query runs.

    Args:
        take: takes a snapshot.
        interval_ms: how long after a snapshot the next is due.
        clock: gives the times.
    """

    def __init__(self, take: Take, interval_ms: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._take = take
        self._interval_ms = interval_ms
        self._clock = clock
        self._held: tuple[SnapshotOffset, list[Row]] | None = None
        self._seen = SnapshotOffset()
        self._left: int | None = None
        self._stopped = threading.Event()

    def prepare_available_now(self) -> None:
        """Make one more snapshot the last one."""
        self._left = 1

    def latest(self, start: SnapshotOffset | None) -> SnapshotOffset:
        """Return the offset of a new snapshot if one is due, otherwise ``start`` itself.

        A cluster out of reach gives a snapshot too: a gap in the history with its reason.

        Args:
            start: end of the previous batch; None on Spark 4.0 and 4.1, which do not pass it.
        """
        start = self._seen if start is None else start
        if self._left == 0:
            return start
        if self._left is None and not self._is_due(start):
            self._stopped.wait(min(WAIT_MS, self._interval_ms) / 1000)
            if not self._is_due(start):
                return start
        at_ms = self._clock.now_ms()
        end = SnapshotOffset(start.number + 1, at_ms)
        self._held = (end, self._rows(at_ms))
        self._seen = end
        if self._left is not None:
            self._left -= 1
        return end

    def rows(self, start: SnapshotOffset, end: SnapshotOffset) -> list[Row]:
        """Return the rows of the snapshot a batch ends with; none for an empty range."""
        self._seen = end
        if start.number >= end.number:
            return []
        if self._held is not None and self._held[0] == end:
            return self._held[1]
        # Planned by an earlier run, or by one that failed: its snapshot is gone.
        return self._rows(self._clock.now_ms())

    def stop(self) -> None:
        """Stop waiting."""
        self._stopped.set()

    def _is_due(self, start: SnapshotOffset) -> bool:
        now_ms = self._clock.now_ms()
        # A clock that was set back must not silence the history until it has caught up.
        return not start.at_ms <= now_ms < start.at_ms + self._interval_ms

    def _rows(self, at_ms: int) -> list[Row]:
        try:
            return self._take(at_ms)
        except RocketMQError as error:
            logger.warning("no snapshot of consumption progress: %s", error)
            return failed(error, at_ms)

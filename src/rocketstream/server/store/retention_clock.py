"""The clock of retention: the wall clock without its leaps.

Law: a file is old when so much time has passed, not when the clock says so. Readings come in; the
only file keeps the state that must survive a restart.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from rocketstream.errors import StoreDamagedError, StoreError
from rocketstream.server.store.files import Files
from rocketstream.server.store.json_files import ConfigFile

_log = logging.getLogger(__name__)
LEAP_MS_MIN = 60_000
"""A smaller step is a clock being corrected, or a process that was held up."""
SAVE_INTERVAL_MS = 600_000


class RetentionClock:
    """Turns the wall clock's readings into a time that does not leap ahead.

    A leap is an advance of the wall clock beyond the monotonic one. It is held back until as much
    time has passed as messages live: by then every file from before the leap is old enough anyway,
    so correcting a wrong clock does no harm either. Setting the clock back undoes held-back leaps,
    never more. Time in which the store was closed does not count: files live longer by it.

    Args:
        reserved_ms: how long messages live.
    """

    def __init__(self, path: Path, files: Files, reserved_ms: int) -> None:
        self._file = ConfigFile(path, _parse, files)
        self.reserved_ms = reserved_ms
        self._wall_ms = 0
        self._monotonic_ms = 0.0
        self._saved_ms = 0.0
        self.held_ms: int = 0
        self._left_ms = 0.0

    def start(self, wall_ms: int, monotonic_ms: float, known_ms: int) -> None:
        """Start; the time continues from the state in the file.

        Args:
            known_ms: for a store without the file: a time that had certainly passed when the store
                was last used; 0 when unknown.

        Raises:
            StoreError: the file cannot be read from the disk; a leap in it must not be forgotten.
        """
        self.held_ms, self._left_ms = 0, 0.0
        try:
            kept = self._file.load()
        except StoreDamagedError as error:
            _log.warning("what the retention clock had kept is lost, it begins anew: %s", error)
            kept = None
        if kept is not None:
            known_ms, self.held_ms, self._left_ms = kept
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        if known_ms:
            self._leapt(wall_ms - known_ms)
        self.save(monotonic_ms)

    def now_ms(self, wall_ms: int, monotonic_ms: float) -> int:
        """Return the time to compare files with, in ms; to be called every few seconds."""
        passed = monotonic_ms - self._monotonic_ms
        leap = wall_ms - self._wall_ms - passed
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        if self.held_ms:
            self._left_ms = max(self._left_ms - passed, 0.0)
            if not self._left_ms:
                self.held_ms = 0
        if abs(leap) >= LEAP_MS_MIN:
            _log.warning(
                "condition=CLOCK_LEAP the clock went %+.0f s beyond the time that passed; "
                "messages are kept as if it had not",
                leap / 1000,
            )
            self._leapt(int(leap))
            self.save(monotonic_ms)
        elif monotonic_ms - self._saved_ms >= SAVE_INTERVAL_MS:
            self.save(monotonic_ms)
        return wall_ms - self.held_ms

    def _leapt(self, leap_ms: int) -> None:
        held = max(self.held_ms + leap_ms, 0)
        if held > self.held_ms:
            self._left_ms = float(self.reserved_ms)
        self.held_ms = held

    def save(self, monotonic_ms: float) -> None:
        """Write the state the next start needs; a failure is only logged."""
        self._saved_ms = monotonic_ms
        kept = {"wallMs": self._wall_ms, "heldMs": self.held_ms, "leftMs": int(self._left_ms)}
        try:
            self._file.save(json.dumps(kept))
        except StoreError as error:
            _log.warning("%s", error)


def _parse(text: str) -> tuple[int, int, float]:
    kept = json.loads(text)
    times = [kept[name] for name in ("wallMs", "heldMs", "leftMs")]
    if any(type(each) is not int or each < 0 for each in times):
        raise ValueError(f"{times}: each has to be a number of ms, from 0 on")
    return times[0], times[1], float(times[2])

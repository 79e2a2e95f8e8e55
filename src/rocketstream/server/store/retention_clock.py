"""The time retention goes by: the wall clock, without the leaps it may have made.

Law: a file is old when so much time has passed, not when the clock says so. Readings come in; the
only file is the one that keeps what must not be forgotten between two starts.
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
"""Less is a clock that is being corrected, or a process that was held up."""
SAVE_INTERVAL_MS = 600_000


class RetentionClock:
    """Turns the wall clock's readings into a time that does not leap ahead.

    A leap is how far the wall clock went beyond the monotonic one. It is held back until as much
    time has passed as messages live: by then every file from before the leap is old enough anyway,
    so a clock that was wrong and is right now costs nothing either. A clock set back undoes what is
    held back, never more. While nothing ran no time passes: files live longer by that.

    Args:
        reserved_ms: how long messages live.
    """

    def __init__(self, path: Path, files: Files, reserved_ms: int) -> None:
        self._file = ConfigFile(path, files)
        self.reserved_ms = reserved_ms
        self._wall_ms = 0
        self._monotonic_ms = 0.0
        self._saved_ms = 0.0
        self.held_ms = 0
        self._left_ms = 0.0

    def start(self, wall_ms: int, monotonic_ms: float, known_ms: int) -> None:
        """Begin; what the file says counts on from there.

        Args:
            known_ms: a time that had surely come when the store was used last, for a store without
                the file; 0 when nothing is known.

        Raises:
            StoreError: the disk does not give the file; a leap it tells of is not to be forgotten.
        """
        self.held_ms, self._left_ms = 0, 0.0
        try:
            kept = self._file.load(_parse)
        except StoreDamagedError as error:
            _log.warning("retention begins anew: %s", error)
            kept = None
        if kept is not None:
            known_ms, self.held_ms, self._left_ms = kept
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        if known_ms:
            self._leapt(wall_ms - known_ms)
        self.save(monotonic_ms)

    def now_ms(self, wall_ms: int, monotonic_ms: float) -> int:
        """Return the time to compare files with; to be asked every few seconds."""
        passed = monotonic_ms - self._monotonic_ms
        leap = wall_ms - self._wall_ms - passed
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        if self.held_ms:
            self._left_ms -= passed
            if self._left_ms <= 0:
                self.held_ms = 0
        if abs(leap) >= LEAP_MS_MIN:
            _log.warning(
                "condition=CLOCK_LEAP the clock went %+.0f s beyond the time that passed; messages "
                "live on as if it had not",
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
        """Write what must be known at the next start; a failure is only told."""
        self._saved_ms = monotonic_ms
        kept = {"wallMs": self._wall_ms, "heldMs": self.held_ms, "leftMs": int(self._left_ms)}
        try:
            self._file.save(json.dumps(kept))
        except StoreError as error:
            _log.warning("%s", error)


def _parse(text: str) -> tuple[int, int, float]:
    kept = json.loads(text)
    return int(kept["wallMs"]), int(kept["heldMs"]), float(kept["leftMs"])

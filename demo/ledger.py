"""What became of every flight in one group: the listener's journal, read as it grows.

Law: lines in, counts and totals out; at-least-once delivery is made exact by the flights' ids.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import orjson

from demo.totals import Totals


@dataclass(frozen=True, slots=True)
class Counts:
    """What a group has done so far.

    Attributes:
        consumed: flights, each counted once.
        retried: of those, the ones consumed at a later delivery.
        refused: calls in which the listener raised.
        repeated: deliveries of a flight that was consumed before.
    """

    consumed: int = 0
    retried: int = 0
    refused: int = 0
    repeated: int = 0


class Ledger:
    """The journal of one group; may be read by several threads.

    Args:
        folder: where the listeners' processes have their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read_to: dict[Path, int] = {}
        self._seen: set[int] = set()
        self._refused = self._retried = self._repeated = 0
        self.totals = Totals()
        self.causes: dict[int, str] = {}
        """Why a flight was refused, by its id."""

    def counts(self) -> Counts:
        """Read what was noted since the last time and return the figures now."""
        with self._lock:
            for path in sorted(self._folder.glob("*.jsonl")):
                self._read(path)
            return Counts(len(self._seen), self._retried, self._refused, self._repeated)

    def by_carrier(self) -> list[tuple[str, int, int, int]]:
        """Return carrier, flights, minutes of departure delay and flights with one known."""
        with self._lock:
            rows = [
                (carrier, entry.flights, entry.dep_delay, entry.dep_known)
                for carrier, entry in self.totals.carriers.items()
            ]
        return sorted(rows, key=lambda row: -row[1])

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read_to.get(path, 0))
            data = file.read()
        end = data.rfind(b"\n") + 1  # a line that is still being written waits for the next time
        self._read_to[path] = self._read_to.get(path, 0) + end
        for line in orjson.loads(b"[%s]" % data[:end].rstrip(b"\n").replace(b"\n", b",")):
            self._note(*line)

    def _note(
        self,
        flight_id: int,
        times: int,
        carrier: str,
        dep_delay: int | None,
        arr_delay: int | None,
        cause: str | None,
    ) -> None:
        if cause is not None:
            self._refused += 1
            self.causes[flight_id] = cause
        elif flight_id in self._seen:
            self._repeated += 1
        else:
            self._seen.add(flight_id)
            self._retried += times > 0
            self.totals.add(carrier, dep_delay, arr_delay)

"""The pen of a process: one line of JSON an event, in a file of its own, whole or not at all."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Recorder:
    """Writes events; any thread may. A line is one ``write``, so a kill tears none but the last."""

    def __init__(self, directory: Path, by: str) -> None:
        self.by = by
        path = directory / f"{by.replace('#', '-')}.jsonl"
        self._kinds: set[str] = set()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, **what: Any) -> int:
        """Write an event with the time of now, which is returned."""
        at = time.monotonic_ns()
        line = json.dumps({"at": at, "kind": kind, "by": self.by, **what})
        self._kinds.add(kind)
        os.write(self._file, line.encode() + b"\n")
        return at

    @staticmethod
    def wait(event: threading.Event) -> None:
        """Wait for an event; a signal that another thread took is handled soon too."""
        while not event.wait(0.2):
            pass

    def has_written(self, kind: str) -> bool:
        """Whether an event of a kind was written."""
        return kind in self._kinds

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def pause(seconds: float) -> None:
    """Do nothing for a while, as what is driven here has its pace: no test waits by it."""
    threading.Event().wait(seconds)


def lines(directory: Path) -> list[str]:
    """Return every line the processes of a round have written so far."""
    found: list[str] = []
    for path in sorted(directory.glob("*.jsonl")):
        found += path.read_text("utf-8", "replace").splitlines()
    return found

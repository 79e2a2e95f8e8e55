"""The record of a run: a digest of everything, and on request the story for a reader.

Law: the digest covers time and text of every event, so that two runs with equal digests are the
same run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    """Collects the events of a run.

    Args:
        now_s: returns virtual time in seconds.
        keep: whether the lines are kept for a reader.
    """

    def __init__(self, now_s: Callable[[], float], *, keep: bool = False) -> None:
        self._now_s = now_s
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: list[str] | None = [] if keep else None
        self.events: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether the story is kept."""
        return self._lines is not None

    def add(self, text: str) -> None:
        """Add an event: it counts for the digest."""
        line = f"{self._now_s():.6f} {text}"
        self.events += 1
        self._hash.update(line.encode("utf-8", "surrogatepass"))
        if self._lines is not None:
            self._lines.append(line)

    def tell(self, text: str) -> None:
        """Add a line to the story only."""
        if self._lines is not None:
            self._lines.append(f"{self._now_s():.6f} {text}")

    def digest(self) -> str:
        """Return the digest of all events so far, hex."""
        return self._hash.hexdigest()

    def story(self) -> str:
        """Return the lines that were kept."""
        return "\n".join(self._lines or ())

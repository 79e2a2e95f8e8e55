"""Pure: where one queue is, what its broker is known to have of that, and what is to be said next.

The first commit is said until it was acknowledged twice, and so is one that may have been
overtaken: a broker may keep one of two first commits only, and notes what a pull carries along when
it likes.
"""

from __future__ import annotations


class QueueOffset:
    """The offset of one queue; the next one to consume.

    Any thread may ``note``, one at a time; everything else is the loop's.

    Attributes:
        noted: where the consumer is; -1 before the first offset.
        stored: what the broker has, as it last confirmed or told; None where that is not known.
        ahead: what the broker has where another member of the group is further; -1 where none is.
        is_doubted: another member may have had the queue since its broker was asked.
        is_repeated: a commit was acknowledged, and nothing since can undo it: the next one counts.
    """

    __slots__ = ("_lowered_from", "_stored_ms", "ahead", "is_doubted", "is_repeated", "noted",
                 "stored")  # fmt: skip

    def __init__(self) -> None:
        self.noted = -1
        self.stored: int | None = None
        self.ahead = -1
        self.is_doubted = self.is_repeated = False
        self._stored_ms = 0.0
        self._lowered_from = -1

    def note(self, offset: int, *, increase_only: bool) -> None:
        """Take an offset; a smaller one, put back on purpose, only without ``increase_only``."""
        if offset > self.noted:
            self.noted = offset
        elif not increase_only and offset < self.noted:
            self._lowered_from = max(self.noted, self._lowered_from)
            self.ahead = -1
            self.noted = offset

    def is_behind(self) -> bool:
        """Return whether another member is further: nothing lower is to be said."""
        if self.ahead >= 0 and self.noted >= self.ahead:
            self.ahead = -1
        return self.ahead >= 0

    def is_changed(self) -> bool:
        """Return whether the offset is to be said."""
        return 0 <= self.noted != self.stored and not self.is_behind()

    def is_old(self, before_ms: float) -> bool:
        """Return whether an unchanged offset was confirmed before a time."""
        return self.stored == self.noted and self._stored_ms <= before_ms

    def sent(self) -> int:
        """Return the offset to say; from here on nobody knows what the broker has.

        A reset to what it had must be sent too.
        """
        self.stored = None
        return self.noted

    def acknowledged(self, offset: int, now_ms: float) -> None:
        """The broker took an offset; the first time it is said once more."""
        if self.is_repeated:
            self.confirmed(offset, now_ms)
        self.is_repeated = True

    def confirmed(self, offset: int, now_ms: float) -> None:
        """The broker has an offset."""
        self.stored, self._stored_ms = offset, now_ms

    def piggybacked(self) -> None:
        """A pull has taken the offset along: the next commit is said twice."""
        self.is_repeated = False
        if self.stored != self.noted:
            self.stored = None

    def was_told(self, stored: int | None) -> None:
        """Take in what the broker says it has; None for nothing."""
        self.is_doubted = False
        if stored is None or (self.stored is not None and stored < self.stored):
            # A former owner said less after this one, or the broker has forgotten it.
            self.stored = None
        elif stored > self.noted and not self._is_put_back():
            self.ahead = stored

    def unconfirmed(self) -> None:
        """Forget what the broker confirmed: it may have lost that, and given the queue away."""
        self.stored = None
        self.is_doubted, self.is_repeated = True, False

    def _is_put_back(self) -> bool:
        """Whether the queue was put back on purpose, and is not again where it was."""
        if self.noted >= self._lowered_from:
            self._lowered_from = -1
        return self._lowered_from >= 0

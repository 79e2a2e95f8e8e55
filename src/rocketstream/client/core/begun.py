"""Which of what is under way began before a certain moment: what a ``flush`` waits for.

Law: pure; whoever calls sees to it that one call is made at a time.
"""

from __future__ import annotations


class Begun:
    """Counts by flush, so that what begins after one does not hold it up.

    Whoever begins something keeps the value of ``now``, and calls ``ended`` with it at the end if
    ``waits`` is True then. While nobody flushes nothing else is to be done.

    Attributes:
        now: the number that what begins now keeps.
        waits: whether something that began before a flush is still under way.
    """

    __slots__ = ("_earlier", "now", "waits")

    def __init__(self) -> None:
        self.now = 0
        self.waits = False
        self._earlier: dict[int, int] = {}

    def flush(self, under_way: int) -> int:
        """Begin a flush; what keeps a number below the one returned began before it.

        Args:
            under_way: how many have begun and not ended.
        """
        since_last = under_way - sum(self._earlier.values())
        if since_last:
            self._earlier[self.now] = since_last
            self.now += 1
            self.waits = True
        return self.now

    def ended(self, begun: int) -> bool:
        """Count the end of something while ``waits``; return whether a flush may be over."""
        left = self._earlier.get(begun, 0) - 1
        if left < 0:  # it began after every flush
            return False
        if left:
            self._earlier[begun] = left
            return False
        del self._earlier[begun]
        self.waits = bool(self._earlier)
        return True

    def left(self, flush: int) -> int:
        """Return how many that began before a flush have not ended."""
        return sum(count for begun, count in self._earlier.items() if begun < flush)

"""Which of what is under way began before a certain moment: what a ``flush`` waits for.

Law: pure; whoever calls sees to it that one call is made at a time.
"""

from __future__ import annotations


class Begun:
    """Counts by flush, so that what begins after one does not hold it up.

    Whoever begins something notes ``now``, and hands it back when it has ended. As long as nobody
    flushes nothing else is to be done, and ``waits`` is False.

    Attributes:
        now: what begins now notes this.
        waits: whether something that began before a flush is still under way.
    """

    __slots__ = ("_earlier", "now", "waits")

    def __init__(self) -> None:
        self.now = 0
        self.waits = False
        self._earlier: dict[int, int] = {}

    def flush(self, under_way: int) -> int:
        """Note a flush; what ``now`` was below the number returned began before it.

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
        """Note the end of something while ``waits``; tell whether a flush may look again."""
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

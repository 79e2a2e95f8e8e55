"""How many worker threads should be awake: enough for slow listeners, no more than helps.

Law: pure. Threads that only compute take turns on the interpreter lock and starve the network
loop; threads that wait (for a database, a service) cost nothing. So a worker is added while
there is work waiting and the processor is not, and taken back when the processor is the limit.
"""

from __future__ import annotations

BUSY_SHARE = 0.75
"""Processor time over wall time from which more threads would only compete."""
FAST_CALLS_PER_MS = 20
"""A worker that finishes more calls than this does not wait for anything."""
BUSY_TICKS_TO_SHRINK = 8


class Governor:
    """Decides the wanted number of awake workers, a tick at a time.

    Args:
        maximum: most workers ever wanted.

    Attributes:
        maximum: as above; changed by ``resize``.
        target: how many workers are wanted.
        is_steady: every worker there may be was inside one and the same listener call for the
            last tick, and the processor was not the limit: no tick changes anything before one of
            the calls returns.
    """

    __slots__ = ("_calls", "_cpu_ms", "_hot_ticks", "_now_ms", "is_steady", "maximum", "target")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.target = 1
        self.is_steady = False
        self._now_ms = 0.0
        self._cpu_ms = 0.0
        self._calls = 0
        self._hot_ticks = 0

    def start(self, now_ms: float, cpu_ms: float, calls: int, awake: int) -> None:
        """Begin to count anew: work was handed out after nothing was waiting."""
        self._now_ms = now_ms
        self._cpu_ms = cpu_ms
        self._calls = calls
        self._hot_ticks = 0
        self.is_steady = False
        self.target = max(1, awake)

    def resize(self, maximum: int) -> None:
        """Want at most this many workers from now on."""
        self.maximum = maximum
        self.target = min(self.target, maximum)

    def tick(
        self, now_ms: float, cpu_ms: float, calls: int, *, waiting: int, awake: int, calling: int
    ) -> int:
        """Return how many workers should be awake now.

        Args:
            now_ms: monotonic time.
            cpu_ms: processor time of the whole process.
            calls: listener calls begun so far, by all workers.
            waiting: batches that no worker has taken.
            awake: workers that are not parked.
            calling: awake workers that are inside a listener call right now.
        """
        wall = now_ms - self._now_ms
        self.is_steady = False
        if wall <= 0:
            return self.target
        busy = cpu_ms - self._cpu_ms >= BUSY_SHARE * wall
        begun = calls - self._calls
        fast = begun >= FAST_CALLS_PER_MS * wall * max(1, awake)
        self._now_ms, self._cpu_ms, self._calls = now_ms, cpu_ms, calls
        if waiting == 0:
            self._hot_ticks = 0
        elif busy or fast:
            self._cool(awake)
        else:
            self._hot_ticks = 0
            if calling >= awake:
                self.target = max(1, min(self.maximum, awake * 2, awake + waiting))
                self.is_steady = begun == 0 and awake >= self.maximum
        return self.target

    def _cool(self, awake: int) -> None:
        self._hot_ticks += 1
        if self._hot_ticks >= BUSY_TICKS_TO_SHRINK:
            self._hot_ticks = 0
            self.target = max(1, awake // 2)

"""Python's garbage collector in a process that only serves: never at a moment a peer can choose.

Law: for a server's own process; where a cluster is embedded, the collector is the program's.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG_MAX = 10_000
YOUNG_ROUNDS = 20
NEVER = 1_000_000_000
LOOK_S = 1.0
IDLE_SHARE = 0.02
"""Of a processor, used since the last look: less is idle."""
PATIENCE_S = 600.0
"""After so long without an idle moment what has gathered is looked through all the same."""


class Collector:
    """Looks through old objects when nobody is served.

    Going through all objects takes 20 to 100 ms, and what a peer sends can bring it about at any
    time. So what is loaded at the start is never looked at, young objects are looked through
    seldom, and old ones only in an idle second, or after ten minutes without one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        used_s: Callable[[], float] = time.process_time,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        """Keep what to measure use by and what to call; nothing is changed before ``start``.

        Args:
            loop: of the server.
            used_s: seconds of processor time this process has used.
            collect: goes through all objects.
        """
        self._loop = loop
        self._used_s = used_s
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None
        self._before = gc.get_threshold()
        self._last_used_s = 0.0
        self._waited_s = 0.0

    def start(self) -> None:
        """Take the collector over."""
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, YOUNG_ROUNDS, NEVER)
        self._last_used_s = self._used_s()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Give the collector back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._before)
            gc.unfreeze()

    def _look(self) -> None:
        used_s = self._used_s()
        is_idle = used_s - self._last_used_s < LOOK_S * IDLE_SHARE
        self._waited_s += LOOK_S
        # Rounds of young objects since the last look through all: without any nothing grew old.
        if gc.get_count()[2] and (is_idle or self._waited_s >= PATIENCE_S):
            self._collect()
            self._waited_s = 0.0
        self._last_used_s = self._used_s()
        self._timer = self._loop.call_later(LOOK_S, self._look)

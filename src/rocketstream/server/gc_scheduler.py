"""The garbage collector's schedule in a serving process: at moments that no peer can choose.

Law: only for a server's own process; where a cluster is embedded, the collector belongs to the
program.
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
"""Share of a processor used since the last look, below which the process is idle."""
PATIENCE_S = 600.0
"""After this long without an idle moment, old objects are collected all the same."""


class GcScheduler:
    """Collects old objects when nobody is served.

    Going through all objects takes 20 to 100 ms, and by default a peer's requests can cause it at
    any time. So objects loaded at the start are never examined, young ones rarely, and old ones
    only in an idle second, or after ten minutes without one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        used_s: Callable[[], float] = time.process_time,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        """Keep the functions that measure and collect; nothing is changed before ``start``.

        Args:
            loop: loop of the server.
            used_s: seconds of processor time this process has used.
            collect: collects all objects.
        """
        self._loop = loop
        self._used_s = used_s
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None
        self._before = gc.get_threshold()
        self._thaws = False
        self._last_used_s = 0.0
        self._waited_s = 0.0

    def start(self) -> None:
        """Take control of the collector."""
        self._before = gc.get_threshold()
        self._thaws = gc.get_freeze_count() == 0
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, YOUNG_ROUNDS, NEVER)
        self._last_used_s = self._used_s()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Restore the collector; where the program had frozen objects before, all stay frozen."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._before)
            if self._thaws:
                gc.unfreeze()

    def _look(self) -> None:
        used_s = self._used_s()
        is_idle = used_s - self._last_used_s < LOOK_S * IDLE_SHARE
        self._waited_s += LOOK_S
        # Collections of young objects since the last full one: without any nothing has grown old.
        if gc.get_count()[2] and (is_idle or self._waited_s >= PATIENCE_S):
            self._collect()
            self._waited_s = 0.0
        self._last_used_s = self._used_s()
        self._timer = self._loop.call_later(LOOK_S, self._look)

"""The collection behind the tools: begun at the first question, ended when questions stop.

Law: groups, their verdicts and causes are those of the one model every face shows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from rocketstream.watch import Collector, Cost, GroupLook, Update

FIRST_SWEEP_S: Final = 30.0
IDLE_S: Final = 600.0
"""How long after the last question the collection ends."""


class Watching:
    """A collector that runs while there are questions; used on one event loop.

    Args:
        make: makes a collector without starting it.
        idle_s: how many seconds after the last question the collector is ended.
    """

    def __init__(self, make: Callable[[], Collector], idle_s: float = IDLE_S) -> None:
        self._make = make
        self._idle_s = idle_s
        self._run: _Run | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def update(self) -> Update:
        """Return the model of the cluster; the first question waits for two sweeps."""
        run = self._running()
        # The collection begins once, however many callers ask at first and even if some of them
        # leave.
        await asyncio.shield(run.beginning)
        self._restart_timer(run)
        return run.collector.update()

    async def look(self, group: str) -> GroupLook:
        """Ask a group anew: its state, verdict and causes of one moment, which the model takes.

        Raises:
            RocketMQError: as ``Collector.look``.
        """
        run = self._running()
        try:
            return await asyncio.to_thread(run.collector.look, group)
        finally:
            self._restart_timer(run)

    def _running(self) -> _Run:
        if self._run is None:
            self._run = _Run(self._make())
        return self._run

    def _restart_timer(self, run: _Run) -> None:
        if self._run is not run:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._end)

    def cost(self) -> Cost | None:
        """Return the cost of collecting for the brokers; None while nothing is collected."""
        return None if self._run is None else self._run.collector.cost()

    async def close(self) -> None:
        """End the collection."""
        self._end()
        await asyncio.gather(*self._ending)

    def _end(self) -> None:
        run, self._run = self._run, None
        if self._timer is not None:
            self._timer.cancel()
        if run is not None:
            task = asyncio.create_task(run.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


class _Run:
    """One collector, from its first sweep to its end."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._swept = threading.Event()
        self.beginning = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        unsubscribe = self.collector.subscribe(lambda _: self._swept.set())
        self.collector.start()
        await asyncio.to_thread(self._swept.wait, FIRST_SWEEP_S)
        unsubscribe()
        if self.collector.latest() is not None:
            # A verdict compares states: two sweeps, a second apart, say more than one.
            await asyncio.to_thread(self.collector.refresh, FIRST_SWEEP_S)

    async def end(self) -> None:
        """Close the collector, which also ends the wait of the caller that began it."""
        self._swept.set()
        await asyncio.to_thread(self.collector.close)
        await asyncio.gather(self.beginning, return_exceptions=True)

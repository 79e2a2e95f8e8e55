"""What the tests of frameworks on asyncio share: what was done, and what was committed.

Law: waits on what happens, with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.kits.cluster import Cluster

QUEUES = 2
WAIT_S = 30.0


class Seen:
    """What handlers did, in order; tests wait for as many as they expect."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = asyncio.Condition()

    async def add(self, item: Any) -> None:
        async with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    async def wait(self, count: int) -> list[Any]:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.items) >= count)
        return self.items


async def until(reached: Callable[[], bool]) -> None:
    """Wait until something is so, which is asked beside the loop."""
    for _ in range(int(WAIT_S / 0.02)):
        if await asyncio.to_thread(reached):
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def committed(cluster: Cluster, group: str, topic: str, count: int) -> None:
    """Wait until a group has committed so many messages of a topic."""

    def reached() -> bool:
        return sum(max(each, 0) for each in cluster.committed(group, topic, QUEUES)) == count

    await until(reached)

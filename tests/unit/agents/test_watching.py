"""The collection behind the tools: begun once, shared, left alone when nobody asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from rocketstream.admin.state import ClusterState, GroupState, WhyReport
from rocketstream.agents.looking import Watching
from rocketstream.watch import Collector
from tests.unit.agents.conftest import run


class Cluster:
    """Answers sweeps, and counts them."""

    def __init__(self) -> None:
        self.sweeps = 0
        self.left = threading.Event()
        self.cluster = self.groups = self  # its services, too

    def state(self) -> ClusterState:
        self.sweeps += 1
        return ClusterState(1_000 * self.sweeps, 1, 3)

    def why(self, group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        raise NotImplementedError

    def close(self) -> None:
        self.left.set()


def test_one_collection_serves_all_who_ask_and_ends_when_nobody_does() -> None:
    cluster, made = Cluster(), []

    def make() -> Collector:
        made.append(Collector(lambda: cluster))
        return made[-1]

    async def story() -> None:
        watching = Watching(make, idle_s=0.01)
        assert watching.cost() is None
        found = await asyncio.gather(*[watching.update() for _ in range(5)])
        assert {update.state.requests for update in found if update.state} == {3}
        assert (len(made), cluster.sweeps) == (1, 2)
        assert await asyncio.to_thread(cluster.left.wait, 10)
        await watching.close()
        assert watching.cost() is None
        leaving = asyncio.create_task(watching.update())
        await asyncio.sleep(0)
        leaving.cancel()
        await watching.close()
        assert (len(made), watching.cost()) == (2, None)

    run(story)

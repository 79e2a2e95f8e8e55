"""The collection behind the tools: begun once, shared, left alone when nobody asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rocketstream.admin.state import ClusterState, GroupState, WhyReport
from rocketstream.agents.looking import Watching
from rocketstream.errors import ClientStateError
from rocketstream.watch import Collector
from tests.agents.conftest import run


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

    def _remember_in(self, memory: object) -> None:
        return

    def close(self) -> None:
        self.left.set()


def test_one_collection_serves_all_who_ask_and_ends_when_nobody_does() -> None:
    cluster, made = Cluster(), []

    def make() -> Collector:
        made.append(Collector(lambda: cast(Any, cluster)))
        return made[-1]

    async def story() -> None:
        watching = Watching(make, idle_s=0.01)
        found = await asyncio.gather(*[watching.collector() for _ in range(5)])
        updates = [collector.update() for collector in found]
        assert {update.state.requests for update in updates if update.state} == {3}
        assert (len(made), cluster.sweeps) == (1, 2)
        assert await asyncio.to_thread(cluster.left.wait, 10)
        await watching.close()
        leaving = asyncio.create_task(watching.collector())
        await asyncio.sleep(0)
        leaving.cancel()
        await watching.close()
        assert len(made) == 2

    run(story)


def test_a_collection_whose_only_asker_left_ends_when_nobody_asks() -> None:
    cluster = Cluster()

    async def story() -> None:
        watching = Watching(lambda: Collector(lambda: cast(Any, cluster)), idle_s=0.01)
        asking = asyncio.create_task(watching.collector())
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await asyncio.to_thread(cluster.left.wait, 10)
        await watching.close()

    run(story)


def test_a_collection_that_cannot_begin_begins_anew_with_the_next_question() -> None:
    class Refusing:
        closed = False

        def subscribe(self, _: object) -> Any:
            return lambda: None

        def start(self) -> None:
            raise OSError("the history is locked")

        def close(self) -> None:
            self.closed = True

    refusing, cluster = Refusing(), Cluster()
    makes: list[Any] = [lambda: refusing, lambda: Collector(lambda: cast(Any, cluster))]

    async def story() -> None:
        watching = Watching(lambda: makes.pop(0)(), idle_s=60)
        with pytest.raises(OSError, match="locked"):
            await watching.collector()
        found = await watching.collector()
        assert found.latest() is not None
        await watching.close()
        assert refusing.closed

    run(story)


def test_whoever_waits_for_a_collection_that_is_closed_is_told_so() -> None:
    """A cancellation would end its task as if somebody had asked for that."""
    cluster = Cluster()

    async def story() -> None:
        watching = Watching(lambda: Collector(lambda: cast(Any, cluster)), idle_s=60)
        asking = asyncio.create_task(watching.collector())
        await asyncio.sleep(0)
        await watching.close()
        with pytest.raises(ClientStateError, match="closed while it began to look"):
            await asking

    run(story)

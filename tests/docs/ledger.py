"""Two members that book one queue in simulation: the first sleeps past its lease inside a call."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from rocketstream import (
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    aio,
)
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.options import Options
from rocketstream.testing.sim.runs import run_world, simulated
from rocketstream.testing.sim.world import Node, World

TOPIC, COUNT, SLEPT_AT = "bookings", 8, 2
SENT = [f"booking {number}" for number in range(COUNT)]
SLEEP_MAX_S = 3_600.0
"""The new owner wakes the sleeper before."""


class Ledger:
    """Two members that book one queue in order; the first falls asleep inside a call.

    Args:
        world: the simulated world.
        book: the listener of the page.
        batches: how many messages each member is given at once.
        wakes_at: the offset the new owner has in hand when the sleeper goes on.
    """

    messages = COUNT

    def __init__(self, world: World, book: Any, batches: tuple[int, int], wakes_at: int) -> None:
        self._book, self._wakes_at = book, wakes_at
        self._batches = dict(zip(("one", "two"), batches, strict=True))
        self._sleeper: Node | None = None
        self.written: list[tuple[str, int]] = []
        """Who wrote which offset, or was refused."""
        world.cluster.create_topic(TOPIC)
        world.add_node("producer", self._produce)
        for name in self._batches:
            world.add_node(name, self._consume)

    async def _produce(self, node: Node) -> None:
        producer = aio.Producer("bank", **node.client())
        await producer.start()
        for body in SENT:
            await producer.send(Message(TOPIC, body))

    async def _consume(self, node: Node) -> None:
        async def listen(
            messages: list[MessageExt], context: ConsumeOrderlyContext
        ) -> ConsumeOrderlyStatus:
            offsets = [message.queue_offset for message in messages]
            self._sleep_or_wake(node, offsets)
            await asyncio.sleep(0.1)  # the moment a listener has read, and has not written yet
            status: ConsumeOrderlyStatus = self._book(messages, context)
            self.written += [(node.name, offset) for offset in offsets]
            return status

        consumer = aio.PushConsumer(
            "ledger",
            subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            consume_message_batch_max_size=self._batches[node.name],
            **node.client(),
        )
        consumer.register_message_listener(listen, orderly=True)
        await asyncio.sleep(10)  # all is sent by then
        await consumer.start()

    def _sleep_or_wake(self, node: Node, offsets: list[int]) -> None:
        if self._sleeper is None:
            if SLEPT_AT in offsets:
                self._sleeper = node
                node.pause(SLEEP_MAX_S)
        elif node is not self._sleeper and self._wakes_at in offsets:
            self._sleeper.wake()

    def is_done(self) -> bool:
        return len({offset for _, offset in self.written}) == COUNT

    def unfinished(self) -> str:
        return f"written: {self.written}"

    def check(self) -> list[Any]:
        return []


def run_ledger(
    program: str, ledger: Path, batches: tuple[int, int], wakes_at: int
) -> tuple[list[tuple[str, int]], list[str]]:
    """Run a listener ``book``; return who wrote which offset, and what stands in its ledger."""
    names: dict[str, Any] = {}
    exec(program.replace('"ledger.db"', repr(str(ledger))), names)  # noqa: S102 - our own page
    options = Options(seed=1, queues=1, fault_ms=300_000)
    with simulated(options.seed, options) as world:
        Cluster(world)
        members = Ledger(world, names["book"], batches, wakes_at)
        result = run_world(world, members)
        assert result.ok, result.report()
    with closing(sqlite3.connect(ledger)) as db:
        rows = db.execute("SELECT booking FROM bookings ORDER BY rowid").fetchall()
    return members.written, [booking for (booking,) in rows]

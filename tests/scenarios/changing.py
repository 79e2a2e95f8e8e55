"""Groups whose members subscribe anew, pause, and call their listener with other numbers of tasks.

Law: while all is calm every member subscribes; a change is told to the history as one of the group.
"""

from __future__ import annotations

import asyncio
import random

from rocketstream import aio
from rocketstream.errors import RocketMQError
from rocketstream.testing.history import Recorder
from rocketstream.testing.history.events import MemberJoined
from rocketstream.testing.sim.consuming import Manners, SimGroup
from rocketstream.testing.sim.world import Node, World

AGAIN_S = 1.0
"""A subscription that was refused is tried again after this long."""
SLICE_S = 0.2
"""Who is away looks so often whether faults are over."""
SETTINGS: dict[str, tuple[int | bool, ...]] = {
    "consume_concurrently_max_span": (1, 10),
    "consume_thread_max": (1, 2, 64),
    "local_retry_delay_ms": (100, 1_000),
    "post_subscription_when_pull": (True,),
    "pull_interval_ms": (1, 200),
    "pull_threshold_for_queue": (1, 4),
    "pull_threshold_for_topic": (1, 6),
    "pull_threshold_size_for_queue": (1,),
    "pull_threshold_size_for_topic": (1,),
}
"""What a push consumer may be told besides, and values that matter with few messages."""


def drawn_settings(chance: random.Random) -> tuple[tuple[str, int | bool], ...]:
    """Return some of the settings, or none."""
    names = chance.sample(sorted(SETTINGS), chance.choice((0, 1, 3)))
    return tuple((name, chance.choice(SETTINGS[name])) for name in names)


async def wait(world: World, seconds: float) -> None:
    """Let time pass, but not beyond the faults."""
    for _ in range(int(seconds / SLICE_S) + 1):
        if world.healed:
            return
        await asyncio.sleep(min(seconds, SLICE_S))


class SimChangingGroup(SimGroup):
    """Push consumers that change while they run.

    Args:
        world: the world it lives in.
        manners: how it consumes.
        pause_ms: the longest time between two changes of a member, and that one lasts.
    """

    def __init__(self, world: World, manners: Manners, pause_ms: float) -> None:
        self._pause_ms = pause_ms
        super().__init__(world, manners)

    async def _work(self, node: Node, recorder: Recorder, consumer: aio.PushConsumer) -> None:
        chance = self.world.random(f"changes of {node.name} {node.incarnation}")
        while not self.world.healed:
            await self._wait(chance)
            match chance.choice(("away", "away", "pause", "tasks")):
                case "away":
                    await self._go_away(node, consumer, chance)
                case "pause":
                    consumer.suspend()
                    await self._wait(chance)
                    consumer.resume()
                case _:
                    await consumer.update_core_pool_size(chance.randint(1, 8))

    async def _wait(self, chance: random.Random) -> None:
        await wait(self.world, chance.random() * self._pause_ms / 1000)

    async def _go_away(self, node: Node, consumer: aio.PushConsumer, chance: random.Random) -> None:
        """Subscribe to nothing for a while."""
        topic, group = self.manners.topic, self.manners.group
        node.record(MemberJoined(self.world.now_ms, group, node.name))
        await consumer.unsubscribe(topic)
        await self._wait(chance)
        while True:
            node.record(MemberJoined(self.world.now_ms, group, node.name))
            try:
                await consumer.subscribe(topic, self.manners.expression)
            except RocketMQError:
                await asyncio.sleep(AGAIN_S)
            else:
                return

"""Orders sent and consumed in a simulated cluster."""

from __future__ import annotations

import asyncio

from rocketstream import ConsumeConcurrentlyStatus, Message, aio
from rocketstream.errors import RocketMQError
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.options import Options
from rocketstream.testing.sim.runs import SeedResult, run_world, simulated
from rocketstream.testing.sim.world import Node, World

TOPIC = "Orders"


class Orders:
    """A producer and members of a group; done when all that was acknowledged is consumed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.messages = 0
        self.acknowledged: list[str] = []
        self.consumed: set[str] = set()
        world.cluster.create_topic(TOPIC)
        world.add_node("producer", self._produce)
        for number in range(world.options.members):
            world.add_node(f"member-{number}", self._consume)

    async def _produce(self, node: Node) -> None:
        producer = aio.Producer("orders-p", **node.client())
        await producer.start()
        while self.messages < self.world.options.messages and not self.world.healed:
            self.messages += 1
            key = f"order-{self.messages}"
            try:
                await producer.send(Message(TOPIC, key.encode(), keys=key))
            except RocketMQError as error:
                node.record((key, type(error).__name__))
            else:
                self.acknowledged.append(key)
                node.record((key, "sent"))
            await asyncio.sleep(0.02)

    async def _consume(self, node: Node) -> None:
        async def listen(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            for message in messages:
                self.consumed.add(str(message.keys))
                node.record((message.keys, message.queue_id, message.queue_offset))
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        subscription = {TOPIC: "*"}
        consumer = aio.PushConsumer(
            "orders-c", listener=listen, subscription=subscription, **node.client()
        )
        await consumer.start()

    def _missing(self) -> list[str]:
        lossy = self.world.power_lost and self.world.options.flush == "async"
        return [] if lossy else [k for k in self.acknowledged if k not in self.consumed]

    def is_done(self) -> bool:
        return not self._missing()

    def unfinished(self) -> str:
        return f"{self._missing()} not consumed"

    def check(self) -> list[str]:
        stored = {each.keys for each in self.world.cluster.stored(TOPIC)}
        lossy = self.world.power_lost and self.world.options.flush == "async"
        return [] if lossy else [f"{k} lost" for k in self.acknowledged if k not in stored]


def run_orders(options: Options, *, trace: bool = False) -> SeedResult:
    with simulated(options.seed, options, trace=trace) as world:
        Cluster(world)
        return run_world(world, Orders(world))

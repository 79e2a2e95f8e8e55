"""A topic that is deleted and made anew while groups consume it.

Law: what is stored in a topic since it was made last is consumed by every group that consumes it,
whatever offsets its members had in the topic that was there before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from rocketstream import aio
from rocketstream.errors import RocketMQError
from rocketstream.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    SendStatus,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import DeleteTopicRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.sim.world import Node, World
from tests.scenarios.operating import Clerk

AGAIN = "Again"
"""The topic that is deleted and made anew."""
WAYS = ("at once", "in order", "polling")
LAST_MESSAGES = 12
PATIENCE_MS = 120_000
QUIET_S = 0.5


class SimReuser:
    """A group whose members take down the keys that they are given.

    Args:
        world: the world it lives in.
        way: one of ``WAYS``.
    """

    def __init__(self, world: World, way: str) -> None:
        self.group: str = f"reusers {way}".replace(" ", "-")
        self.seen: set[str] = set()
        self._world, self._way = world, way
        for number in range(1 if world.options.members == 1 else 2):
            world.add_node(f"{self.group}-{number}", self._main)

    async def _main(self, node: Node) -> None:
        settings: dict[str, Any] = node.client(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            pull_batch_size=self._world.options.pull_batch,
        )
        if self._way == "polling":
            await self._poll(
                aio.LitePullConsumer(self.group, subscription={AGAIN: "*"}, **settings)
            )
            return
        consumer = aio.PushConsumer(self.group, subscription={AGAIN: "*"}, **settings)
        if self._way == "in order":
            consumer.register_message_listener(self._in_order, orderly=True)
        else:
            consumer.register_message_listener(self._at_once)
        await consumer.start()

    async def _poll(self, consumer: aio.LitePullConsumer) -> None:
        await consumer.start()
        while True:
            self._take(await consumer.poll(1_000))

    async def _at_once(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        self._take(messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def _in_order(self, messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        self._take(messages)
        return ConsumeOrderlyStatus.SUCCESS

    def _take(self, messages: list[MessageExt]) -> None:
        self.seen |= {message.keys or "" for message in messages}


class SimRemaker(Clerk):
    """A process that deletes the topic, makes it anew and sends to it; in the end it only sends.

    Args:
        world: the world it lives in.
        groups: those that must get what is sent in the end.
        pause_ms: longest time between two deeds.
    """

    def __init__(self, world: World, groups: Sequence[SimReuser], pause_ms: float) -> None:
        self._groups = groups
        super().__init__(world, "remaker", pause_ms)

    async def _act(self, chance: random.Random) -> None:
        broker = self._broker(chance)
        deed = chance.choice(("create", "delete", "remake", "send", "send", "send"))
        if deed in ("delete", "remake"):
            header = DeleteTopicRequestHeader(AGAIN)
            await self._ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        if deed in ("create", "remake"):
            count = chance.randint(1, 3)
            await self._size(broker, AGAIN, count, count)
        if deed == "send":
            for _ in range(chance.randint(1, 8)):
                await self._producer.send(Message(AGAIN, b"x", keys="early"))

    async def _end(self, chance: random.Random) -> None:
        if self._world.power_lost:  # what a loss of power brings back is another story
            return
        for broker in self._world.cluster.brokers:
            await self._insist(partial(self._size, broker, AGAIN, 2, 2))
        await self._send_last(chance)

    async def _send_last(self, chance: random.Random) -> None:
        """Send to the topic as it is now, and wait until each group has it all."""
        stored: set[str] = set()
        for number in range(LAST_MESSAGES):
            key = f"last-{self.node.incarnation}-{number}"
            await asyncio.sleep(chance.random() * QUIET_S)
            with contextlib.suppress(RocketMQError):
                result = await self._producer.send(Message(AGAIN, b"x", keys=key))
                if result.send_status is SendStatus.SEND_OK:
                    stored.add(key)
        until = self._world.now_ms + PATIENCE_MS
        while lacking := [g for g in self._groups if not stored <= g.seen]:
            if self._world.now_ms > until:
                first = lacking[0]
                keys = sorted(stored - first.seen)
                self._world.fail(f"{first.group} never got {keys} of a topic that was made anew")
                return
            await asyncio.sleep(QUIET_S)

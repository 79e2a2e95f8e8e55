"""A topic that is deleted and made anew while groups consume it.

Law: what is stored in a topic since it was made last is consumed by every group that consumes it,
whatever offsets its members had in the topic that was there before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
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
from rocketstream.protocol.codes import Perm, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    Header,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.sim.cluster import BROKER_PORT, SimBroker
from rocketstream.testing.sim.producing import Sender
from rocketstream.testing.sim.world import Node, World

AGAIN = "Again"
"""The topic that is deleted and made anew."""
WAYS = ("at once", "in order", "polling")
LAST_MESSAGES = 12
TIMEOUT_MS = 3_000
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


class SimRemaker(Sender):
    """A process that deletes the topic, makes it anew and sends to it; in the end it only sends.

    Args:
        world: the world it lives in.
        groups: those that must get what is sent in the end.
        pause_ms: longest time between two deeds.
    """

    def __init__(self, world: World, groups: Sequence[SimReuser], pause_ms: float) -> None:
        self._groups, self._pause_ms = groups, pause_ms
        self._producer: aio.Producer
        super().__init__(world, "remaker")

    async def _main(self, node: Node) -> None:
        chance = self._world.random(f"remaker {node.incarnation}")
        own = {"access_key": "operators", "secret_key": "secret-of-operators"}
        settings = node.client(**own) if self._world.options.accounts else node.client()
        self._producer = aio.Producer("remakers", **settings)
        await self._producer.start()
        while not self._world.healed:
            await asyncio.sleep(chance.random() * self._pause_ms / 1000)
            with contextlib.suppress(RocketMQError):  # an operator tries again, or does not
                await self._do_one(chance)
        if not self._world.power_lost:  # what a loss of power brings back is another story
            for broker in self._world.cluster.brokers:
                await self._insist(lambda broker=broker: self._create(broker, 2))  # type: ignore[misc]
            await self._send_last(node, chance)
        node.kept["busy"] = False

    async def _do_one(self, chance: random.Random) -> None:
        broker: SimBroker = chance.choice(self._world.cluster.brokers)
        deed = chance.choice(("create", "delete", "remake", "send", "send", "send"))
        if deed in ("delete", "remake"):
            await self._ask(
                broker, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(AGAIN)
            )
        if deed in ("create", "remake"):
            await self._create(broker, chance.randint(1, 3))
        if deed == "send":
            for _ in range(chance.randint(1, 8)):
                await self._producer.send(Message(AGAIN, b"x", keys="early"))

    async def _create(self, broker: SimBroker, queues: int) -> None:
        perm = Perm.READ | Perm.WRITE
        header = CreateTopicRequestHeader(AGAIN, "TBW102", queues, queues, perm)
        await self._ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def _ask(self, broker: SimBroker, code: RequestCode, header: Header) -> None:
        api = self._producer._admin()._instance.api
        address = f"{broker.node.host}:{BROKER_PORT}"
        await api.invoke(address, RemotingCommand.request(code, header), TIMEOUT_MS)

    async def _insist(self, deed: Callable[[], Any]) -> None:
        while True:
            try:
                await deed()
            except RocketMQError:
                await asyncio.sleep(QUIET_S)
            else:
                return

    async def _send_last(self, node: Node, chance: random.Random) -> None:
        """Send to the topic as it is now, and wait until each group has it all."""
        stored: set[str] = set()
        for number in range(LAST_MESSAGES):
            key = f"last-{node.incarnation}-{number}"
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

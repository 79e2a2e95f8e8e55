"""Topics in order: which queues take them by name servers' settings, and listeners of every answer.

Law: where every name server tells the order of a topic, its messages go to the queues that it names
and to all of them, those of a key to one; a message is given up when it had its tries, not before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rocketstream import aio
from rocketstream.client.consumer.listener import ConsumeOrderlyContext
from rocketstream.errors import RocketMQError
from rocketstream.model import ConsumeOrderlyStatus, Message, MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import PutKVConfigRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import ORDER_NAMESPACE
from rocketstream.protocol.tag_hash import java_hash
from rocketstream.testing.history import Recorder, place_of
from rocketstream.testing.history.events import MemberJoined
from rocketstream.testing.sim.cluster import SimNameServer
from rocketstream.testing.sim.consuming import SLOW_TIMES, SimGroup
from rocketstream.testing.sim.world import Node, World
from tests.scenarios.changing import wait
from tests.scenarios.operating import FOUND_WITHIN_MS, Clerk

IN_ORDER = "InOrder"
"""The topic that name servers tell the order of."""
KEYS = 12
PAUSE_S = 0.2
SLOW_SHARE = 0.05


class SimTryingGroup(SimGroup):
    """Members in order whose listeners give every answer, and that come and go in the middle."""

    async def _work(self, node: Node, recorder: Recorder, consumer: aio.PushConsumer) -> None:
        chance = self.world.random(f"changes of {node.name} {node.incarnation}")
        while not self.world.healed:
            await wait(self.world, 3.0 * chance.random())
            node.record(MemberJoined(self.world.now_ms, self.manners.group, node.name))
            if chance.random() < 0.5:
                await consumer.unsubscribe(self.manners.topic)
            await self._subscribe(node, consumer)

    async def _subscribe(self, node: Node, consumer: aio.PushConsumer) -> None:
        while True:
            try:
                return await consumer.subscribe(self.manners.topic, self.manners.expression)
            except RocketMQError:
                await asyncio.sleep(1)
                node.record(MemberJoined(self.world.now_ms, self.manners.group, node.name))

    def listener(self, node: Node, recorder: Recorder) -> Callable[..., Awaitable[Any]]:
        """Return a listener that fails with any answer there is for it, and succeeds with two."""
        chance = self.world.random(f"answers of {node.name} {node.incarnation}")
        group, name, work_ms = self.manners.group, node.name, self.manners.work_ms

        async def consume(
            messages: list[MessageExt], context: ConsumeOrderlyContext
        ) -> ConsumeOrderlyStatus | None:
            if context.message_queue != place_of(group, messages[0]) or not context.auto_commit:
                self.world.fail(f"{messages[0]!r} came with {context!r}")
            with recorder.listening(group, name, messages) as returned:
                slow = SLOW_TIMES if chance.random() < SLOW_SHARE else 1
                await asyncio.sleep(slow * chance.random() * work_ms / 1000)
                success = not any(self.fails(message) for message in messages)
                returned(success)
                self.record(name, messages, success=success)
            if success:
                return chance.choice((ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT))
            if chance.random() < 0.5:
                context.suspend_current_queue_time_ms = chance.choice((0, 20, 700))
            return chance.choice((
                ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
                ConsumeOrderlyStatus.ROLLBACK,
                None,
            ))  # fmt: skip

        return consume


class SimOrderer(Clerk):
    """A process that has name servers tell the order of a topic, and sends to it in the end.

    Args:
        world: the world it lives in.
    """

    def __init__(self, world: World) -> None:
        world.cluster.create_topic(IN_ORDER, 4)
        super().__init__(world, "orderer", 2_000.0)

    async def _act(self, chance: random.Random) -> None:
        server = chance.choice(self._world.cluster.name_servers)
        await self._tell(server, chance.choice(("true", "false")), self._order(chance))
        queues = await self._producer.fetch_publish_message_queues(IN_ORDER)
        if not queues or any(queue.queue_id > 3 for queue in queues):
            self._world.fail(f"{IN_ORDER} is sent to {queues}")

    def _order(self, chance: random.Random) -> str:
        parts = [f"{b.name}:{chance.randint(1, 4)}" for b in self._world.cluster.brokers]
        chance.shuffle(parts)
        return ";".join(parts)

    async def _tell(self, server: SimNameServer, enabled: str, order: str) -> None:
        header = PutKVConfigRequestHeader(ORDER_NAMESPACE, IN_ORDER, order)
        await self._ask(server, RequestCode.PUT_KV_CONFIG, header)
        body = f"orderMessageEnable={enabled}\n".encode()
        await self._ask(server, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def _end(self, chance: random.Random) -> None:
        """Have all tell one order, and send by keys and without."""
        order = self._order(chance)
        for server in self._world.cluster.name_servers:
            await self._insist(partial(self._tell, server, "true", order))
        expected = [
            MessageQueue(IN_ORDER, name, number)
            for name, count in (part.split(":") for part in order.split(";"))
            for number in range(int(count))
        ]
        settings = self.node.client(instance_name=f"orderer-{self.node.incarnation}-end")
        async with aio.Producer("orderers", **settings) as producer:
            await self._insist(partial(self._find, producer, expected))
            await self._insist(partial(self._send, producer, expected))

    async def _find(self, producer: aio.Producer, expected: list[MessageQueue]) -> None:
        found = await producer.fetch_publish_message_queues(IN_ORDER)
        if found != expected:
            self._world.fail(f"{IN_ORDER} is sent to {found}, and is to go to {expected}")

    async def _send(self, producer: aio.Producer, expected: list[MessageQueue]) -> None:
        used, since = set[MessageQueue](), self._world.now_ms
        # A try that is refused has its turn, too; and a broker may not take any for a while.
        while used != {*expected}:
            result = await producer.send(Message(IN_ORDER, b"any", keys="any"))
            used.add(result.message_queue)
            if used - {*expected} or self._world.now_ms - since > FOUND_WITHIN_MS:
                self._world.fail(f"messages went to {used}, and are to go to {expected}")
                return
            await asyncio.sleep(PAUSE_S)
        for number in range(KEYS):
            key = f"key-{number}"
            result = await producer.send(Message(IN_ORDER, b"x", keys=key), sharding_key=key)
            queue = expected[abs(java_hash(key)) % len(expected)]
            if result.message_queue != queue:
                self._world.fail(f"{key} went to {result.message_queue}, and belongs to {queue}")

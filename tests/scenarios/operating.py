"""An operator in a simulated run: removes old files and queues, resets offsets, asks members.

Law: each request is answered or refused within its time; what operators do is in the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from rocketstream import aio
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.errors import BrokerError, RocketMQError, TransportError
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.protocol.bodies import (
    GetConsumerListByGroupResponseBody,
    QueryConsumeQueueResponseBody,
    ResetOffsetBody,
)
from rocketstream.protocol.codes import Perm, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    Header,
    QueryConsumeQueueRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.history.events import OffsetReset, SendAcknowledged
from rocketstream.testing.sim.cluster import SimBroker, SimNameServer
from rocketstream.testing.sim.consuming import PROBES, SimGroup
from rocketstream.testing.sim.producing import Sender
from rocketstream.testing.sim.world import START_MS, Node, World
from tests.scenarios.blunders import Blunder

TIMEOUT_MS = 12_000
"""A broker gives a member ten seconds to answer."""
CONNECTS_MS = 5_000
RESET_WITHIN_MS = 60_000
"""A member has heard of a reset by then, though its connection was cut off for a while."""
FOUND_WITHIN_MS = 60_000
FOUND_MAX = 10
ANEW = "Anew"
"""The topic that operators delete and create."""
EVER_MS = 2**62
Server = SimBroker | SimNameServer


class Clerk(Sender):
    """A process that asks servers as tools do, one thing after another, until faults are over.

    Args:
        world: the world it lives in.
        name: name of the process.
        pause_ms: longest time between two deeds.
    """

    _producer: aio.Producer

    def __init__(self, world: World, name: str, pause_ms: float) -> None:
        self._pause_ms = pause_ms
        super().__init__(world, name)

    async def _main(self, node: Node) -> None:
        chance = self._world.random(f"{node.name} {node.incarnation}")
        own = {"access_key": "operators", "secret_key": "secret-of-operators"}
        settings = node.client(**own) if self._world.options.accounts else node.client()
        self._producer = aio.Producer("operators", **settings)
        await self._producer.start()
        while not self._world.healed:
            await asyncio.sleep(chance.random() * self._pause_ms / 1000)
            with contextlib.suppress(RocketMQError):  # an operator tries again, or does not
                await self._act(chance)
        await self._end(chance)
        node.kept["busy"] = False

    async def _act(self, chance: random.Random) -> None:
        """Do one thing."""
        raise NotImplementedError

    async def _end(self, chance: random.Random) -> None:
        """Do what must succeed, now that all is calm."""
        raise NotImplementedError

    # --- asking -----------------------------------------------------------------------------------

    @property
    def _api(self) -> MQClientAPI:
        return self._producer._admin()._instance.api

    async def _ask(
        self, server: Server, code: int, header: Header | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Ask a server; see ``_invoke``."""
        command = RemotingCommand.request(code, header, body)
        return await self._invoke(self._api, server.address, command)

    async def _invoke(
        self, api: MQClientAPI, address: str, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask a server; a refusal and the lack of an answer are errors, a late one fails the run.

        Raises:
            RocketMQError: there is no answer, or a refusal.
        """
        began = self._world.now_ms
        try:
            return await api.invoke(address, command, TIMEOUT_MS)
        finally:
            took = self._world.now_ms - began
            if took > TIMEOUT_MS + CONNECTS_MS and not self.node.stood_still_since(began):
                text = f"request {command.code} took {took:.0f} ms; its timeout is {TIMEOUT_MS}"
                self._world.fail(text)

    async def _queue_index(
        self, broker: SimBroker, header: QueryConsumeQueueRequestHeader
    ) -> QueryConsumeQueueResponseBody | None:
        """Ask for a part of a queue's index; None where a broker has none of it."""
        try:
            answer = await self._ask(broker, RequestCode.QUERY_CONSUME_QUEUE, header)
        except BrokerError as error:
            if "is not exist" not in error.remark:
                raise
            return None
        return QueryConsumeQueueResponseBody.decode(bytes(answer.body)) if answer.body else None

    async def _request(
        self, broker: SimBroker, asked: Blunder, api: MQClientAPI | None = None
    ) -> RemotingCommand:
        """Ask a broker field by field, and again while it says that it is busy; see ``_invoke``."""
        while True:
            command = RemotingCommand.request(asked.code, None, asked.body)
            command.ext_fields = dict(asked.ext)
            try:
                return await self._invoke(api or self._api, broker.address, command)
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
            await asyncio.sleep(1)

    def _broker(self, chance: random.Random) -> SimBroker:
        broker: SimBroker = chance.choice(self._world.cluster.brokers)
        return broker

    async def _insist(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Do it again until it succeeds; all is calm, so it does."""
        since = self._world.now_ms
        while True:
            try:
                return await deed()
            except RocketMQError as error:
                if self._world.may_lose and not isinstance(error, TransportError):
                    return None  # refused for good, as for what was lost
                if self._world.now_ms - since > FOUND_WITHIN_MS:
                    return self._world.fail(f"refused for a minute: {error}", error)
            await asyncio.sleep(1)

    async def _size(self, broker: SimBroker, topic: str, reads: int, writes: int) -> None:
        header = CreateTopicRequestHeader(topic, "TBW102", reads, writes, Perm.READ | Perm.WRITE)
        await self._ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


class Operator(Clerk):
    """A process that does one thing after another, and looks for messages when faults are over.

    Args:
        world: the world it lives in.
        topic: the topic of the groups.
        groups: the groups whose members it asks.
        deeds: names of its methods: what it does.
        pause_ms: longest time between two deeds.
        finds: whether it looks for messages in the end; for runs in which none are removed.
    """

    def __init__(
        self,
        world: World,
        topic: str,
        groups: Sequence[SimGroup],
        deeds: Sequence[str],
        pause_ms: float,
        *,
        finds: bool = False,
    ) -> None:
        self._topic, self._groups = topic, groups
        self._finds = finds
        table: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "clean": self._clean,
            "reset": self._reset,
            "ask": self._ask_member,
            "probe": self._probe,
            "resize": self._resize,
            "remake": self._remake,
        }
        self._names = frozenset(deeds)
        self._deeds = [table[name] for name in deeds]
        super().__init__(world, "operator", pause_ms)

    async def _act(self, chance: random.Random) -> None:
        await chance.choice(self._deeds)(chance)

    async def _end(self, chance: random.Random) -> None:
        if "resize" in self._names:
            for broker in self._world.cluster.brokers:
                await self._insist(partial(self._give_back, broker))
        if "remake" in self._names:
            await self._use_anew()
        if self._finds:
            await self._find_all(chance)

    # --- deeds ------------------------------------------------------------------------------------

    async def _clean(self, chance: random.Random) -> None:
        """Have a broker remove what is past its time, at any hour."""
        await self._ask(self._broker(chance), RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def _reset(self, chance: random.Random) -> None:
        """Have a group go back at a broker to a time, or in one queue to an offset."""
        broker, group = self._broker(chance), chance.choice(self._groups).manners.group
        if not broker.is_ready:
            return
        asked = self._world.now_ms
        until = asked + RESET_WITHIN_MS
        for queue in broker.queues(self._topic):
            self.node.record(OffsetReset(asked, group, queue, 0, until))
        since = START_MS + int(asked - chance.random() * 10_000)
        header = ResetOffsetRequestHeader(self._topic, group, since, is_force=False)
        if chance.random() < 0.3 and broker.queues(self._topic):
            queue = chance.choice(broker.queues(self._topic))
            end = broker.running.store.max_offset(queue.topic, queue.queue_id)
            header.queue_id, header.offset = queue.queue_id, chance.randint(0, end)
        answer = await self._ask(broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        for queue, offset in ResetOffsetBody.decode(bytes(answer.body)).offset_table.items():
            self.node.record(OffsetReset(asked, group, queue, offset, until, told=True))

    async def _ask_member(self, chance: random.Random) -> None:
        """Ask a member how it is, and where."""
        broker, group = self._broker(chance), chance.choice(self._groups).manners.group
        members = await self._members(broker, group)
        if not members:
            return
        running = GetConsumerRunningInfoRequestHeader(group, chance.choice(members))
        await self._ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, running)
        status = GetConsumerStatusRequestHeader(self._topic, group)
        await self._ask(broker, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status)

    async def _members(self, broker: SimBroker, group: str) -> list[str]:
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = await self._ask(broker, code, GetConsumerListByGroupRequestHeader(group))
        return GetConsumerListByGroupResponseBody.decode(bytes(answer.body)).consumer_id_list

    async def _probe(self, chance: random.Random) -> None:
        """Have a member consume a message, which does not count."""
        group = chance.choice(self._groups).manners.group
        result = await self._producer.send(Message(PROBES, b"probe"))
        broker: SimBroker = self._world.cluster.broker_of(result.message_queue)
        members = await self._members(broker, group)
        if not members:
            return
        header = ConsumeMessageDirectlyResultRequestHeader(
            group, chance.choice(members), result.offset_msg_id
        )
        await self._ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)

    async def _resize(self, chance: random.Random) -> None:
        """Take queues of the topic from writers or readers at a broker, or give some back."""
        broker = self._broker(chance)
        most = broker.topics[self._topic]
        await self._size(broker, self._topic, chance.randint(1, most), chance.randint(1, most))

    async def _give_back(self, broker: SimBroker) -> None:
        """Have all queues of a broker again: what is in them must be consumed."""
        most = broker.topics[self._topic]
        await self._size(broker, self._topic, most, most)

    async def _remake(self, chance: random.Random) -> None:
        """Delete a topic of its own at a broker, create it, or send to it."""
        broker, count = self._broker(chance), chance.randint(1, 3)
        deed = chance.choice(("create", "delete", "send", "send"))
        if deed == "create":
            await self._size(broker, ANEW, count, count)
        elif deed == "delete":
            header = DeleteTopicRequestHeader(ANEW)
            await self._ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        else:
            await self._producer.send(Message(ANEW, b"x" * chance.randint(1, 2_000)))

    async def _use_anew(self) -> None:
        """Use the topic that was deleted and created: it takes messages, and has them."""
        for broker in self._world.cluster.brokers:
            await self._insist(partial(self._size, broker, ANEW, 1, 1))
        results: list[SendResult] = []

        async def send() -> None:
            results.append(await self._producer.send(Message(ANEW, b"at last")))

        await self._insist(send)
        found: list[MessageExt] = []

        async def look() -> None:
            found.append(await self._producer.view_message(ANEW, results[0].offset_msg_id))

        await self._insist(look)
        if found and bytes(found[0].body) != b"at last":
            self._world.fail(f"{results[0]} is {found[0]}")

    # --- finding ----------------------------------------------------------------------------------

    async def _find_all(self, chance: random.Random) -> None:
        """Find some of what was acknowledged by its key, and by the ids that are found with it."""
        acknowledged = sorted(self._acknowledged())
        for key in chance.sample(acknowledged, min(FOUND_MAX, len(acknowledged))):
            since = self._world.now_ms
            while not await self._is_found(key):
                if self._world.may_lose or self._world.index_damaged:
                    break
                if self._world.now_ms - since > FOUND_WITHIN_MS:
                    self._world.fail(f"{key} is acknowledged, and not found by its key")
                await asyncio.sleep(1)

    def _acknowledged(self) -> Iterable[str]:
        return {event.key for event in self._world.history if isinstance(event, SendAcknowledged)}

    async def _is_found(self, key: str) -> bool:
        producer, topic = self._producer, self._topic
        with contextlib.suppress(RocketMQError):
            for message in await producer.query_message(topic, key, 8, 0, EVER_MS):
                for name in (message.offset_msg_id, message.msg_id):
                    same = await producer.view_message(topic, name)
                    if same.keys != key:
                        self._world.fail(f"{name} is the id of {key}, and {same.keys} is found")
                return True
        return False


class Stranger(Sender):
    """A process without an account: nothing it sends is taken, and it is given nothing.

    A message of its that is stored was never sent for the history.
    """

    def __init__(self, world: World, topic: str) -> None:
        self._topic = topic
        super().__init__(world, "stranger")

    async def _main(self, node: Node) -> None:
        settings = node.client(access_key=None, secret_key=None)
        producer = aio.Producer("producers", **settings)
        consumer = aio.PullConsumer("strangers", **settings)
        await producer.start()
        await consumer.start()
        while not self._world.healed:
            await asyncio.sleep(1)
            with contextlib.suppress(RocketMQError):
                await producer.send(Message(self._topic, b"x", keys="strange"))
                self._world.fail("a message of a process without an account was taken")
            for broker in self._world.cluster.brokers:
                with contextlib.suppress(RocketMQError):
                    queue = MessageQueue(self._topic, broker.name, 0)
                    result = await consumer.pull(queue, "*", 0, 32)
                    if result.msg_found_list:
                        self._world.fail("a process without an account was given messages")
        await asyncio.gather(producer.shutdown(), consumer.shutdown())
        node.kept["busy"] = False

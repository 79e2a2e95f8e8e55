"""A process that changes the condition its group selects by, and has brokers select by it.

Law: a broker selects by the condition of the version that a pull names, or says that it lacks it;
whatever ends in between, no version ever stands for another condition.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumerData,
    ConsumerFilterData,
    HeartbeatData,
    SubscriptionData,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    PullMessageRequestHeader,
    QueryConsumeQueueRequestHeader,
    UnregisterClientRequestHeader,
)
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.testing.sim.cluster import SimBroker
from rocketstream.testing.sim.workload import FORGOTTEN_MS, UNHEARD
from rocketstream.testing.sim.world import World
from tests.scenarios.administering import SETTLES_S
from tests.scenarios.operating import TIMEOUT_MS, Clerk

GROUP = "choosers-of-messages"
_AT_ONCE = 32
_NOTHING = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Condition(NamedTuple):
    """A condition, and whether a message with these properties fulfils it."""

    text: str
    fulfils: Callable[[Mapping[str, str]], bool] | None
    kind: str = "SQL92"


def _number(of: Mapping[str, str]) -> int:
    return int(of["number"])


CONDITIONS = (
    Condition("number BETWEEN 3 AND 12", lambda of: 3 <= _number(of) <= 12),
    Condition(
        "shop = 'north' AND NOT (number <= 5)", lambda of: of["shop"] == "north" and _number(of) > 5
    ),
    Condition(
        "shop IN ('south') OR number < 2", lambda of: of["shop"] == "south" or _number(of) < 2
    ),
    Condition("TAGS <> 'Aa' AND shop IS NOT NULL", lambda of: of["TAGS"] != "Aa"),
    Condition("nobody IS NOT NULL", lambda of: False),
    Condition("Aa", lambda of: tags_code(of["TAGS"]) == tags_code("Aa"), "TAG"),
    Condition("*", lambda of: True, "TAG"),
)
BROKEN = (Condition("number >", None), Condition("x = 1", None, "XPATH"))


class Chooser(Clerk):
    """A process that sends heartbeats for a group with changing conditions, and pulls.

    Args:
        world: the world it lives in.
        topic: the topic it selects from.
    """

    def __init__(self, world: World, topic: str) -> None:
        super().__init__(world, "chooser", 400.0)
        self._topic = topic
        self._versions: list[Condition] = self.node.kept.setdefault("versions", [CONDITIONS[0]])
        """The condition of each version."""
        self._bits: set[object] = self.node.kept.setdefault("bits", set())

    @property
    def _latest(self) -> int:
        return len(self._versions) - 1

    def _choose(self, condition: Condition) -> None:
        self._versions.append(condition)

    async def _act(self, chance: random.Random) -> None:
        broker = self._broker(chance)
        match chance.choice(("choose", "beat", "beat", "leave", "pull", "pull", "pull", "set")):
            case "choose":
                self._choose(chance.choice((*CONDITIONS, *CONDITIONS, *BROKEN)))
                await self._beat(broker)
            case "beat":
                await self._beat(broker)
                await self._is_known(broker)
            case "leave":
                await self._leave(broker)
            case "set":  # messages that failed fulfil the condition of their group as well
                body = b"filterSupportRetry=%s\n" % chance.choice((b"true", b"false"))
                await self._ask(broker, RequestCode.UPDATE_BROKER_CONFIG, body=body)
            case _:
                await self._beat(broker)
                for queue in broker.queues(self._topic) if broker.is_ready else ():
                    await self._pull(broker, queue, chance.randint(0, 9))

    # --- deeds ------------------------------------------------------------------------------------

    async def _beat(
        self, broker: SimBroker, version: int | None = None, topic: str | None = None
    ) -> None:
        """Send a heartbeat with the latest condition, or with that of a version."""
        version = self._latest if version is None else version
        text, _, kind = self._versions[version]
        tags = {text} if kind == "TAG" and text != "*" else set()
        codes = {tags_code(tag) for tag in tags}
        wanted = SubscriptionData(topic or self._topic, text, tags, codes, version, kind)
        consumer = ConsumerData(GROUP, subscription_data_set=[wanted])
        body = HeartbeatData(self.node.name, consumer_data_set=[consumer]).encode()
        await self._ask(broker, RequestCode.HEART_BEAT, body=body)

    async def _leave(self, broker: SimBroker) -> None:
        header = UnregisterClientRequestHeader(self.node.name, None, GROUP)
        await self._ask(broker, RequestCode.UNREGISTER_CLIENT, header)

    async def _pull(self, broker: SimBroker, queue: MessageQueue, offset: int) -> list[str]:
        """Pull all there is from an offset on; return the keys.

        Raises:
            BrokerError: the broker lacks the condition of the latest version.
        """
        condition = self._versions[self._latest]
        found: list[str] = []
        while True:
            header = PullMessageRequestHeader(
                GROUP, self._topic, queue.queue_id, offset, _AT_ONCE, 0, 0, 0, self._latest
            )
            command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
            # Also an answer without messages tells where the next pull begins.
            answer = await self._api.remoting.request(broker.address, command, TIMEOUT_MS)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            if answer.code not in _NOTHING:
                self._api.successful(broker.address, answer)
            for message in decode_messages(bytes(answer.body)):
                if condition.fulfils is None or not condition.fulfils(message.properties):
                    text = f"{message.keys} {message.properties} does not fulfil {condition.text}"
                    self._world.fail(text)
                found.append(message.keys or "")
            before, offset = offset, int((answer.ext_fields or {})["nextBeginOffset"])
            if offset <= before:
                if answer.code == ResponseCode.SUCCESS:
                    self._world.fail(f"a pull at {before} leads to {offset}")
                return found

    async def _is_known(self, broker: SimBroker) -> None:
        """Ask for the condition a broker has: it is that of its version."""
        header = QueryConsumeQueueRequestHeader(self._topic, 0, 0, 1, GROUP)
        body = await self._queue_index(broker, header)
        if body is None or body.subscription_data is None:
            return
        if not (body.filter_data or "").startswith("{"):
            return
        known = ConsumerFilterData.decode((body.filter_data or "").encode())
        text, fulfils, kind = self._versions[known.client_version]
        as_sent = known.expression == text and known.expression_type == kind and fulfils
        if not as_sent or known.dead != (known.dead_time >= known.born_time):
            self._world.fail(f"{broker.name} has {known}; that version is {text}")
        data = known.bloom_filter_data
        assert data is not None
        self._bits.add(tuple(data.bit_pos))
        if len(self._bits) > 1 or not all(0 <= bit < data.bit_num for bit in data.bit_pos):
            self._world.fail(f"{broker.name} gives the group other bits: {self._bits}")

    # --- when all is calm -------------------------------------------------------------------------

    async def _end(self, chance: random.Random) -> None:
        # A connection that went silent keeps its group at the broker.
        silent = UNHEARD & set(self._world.options.faults)
        await asyncio.sleep(SETTLES_S + (FORGOTTEN_MS / 1_000 if silent else 0))
        for broker in self._world.cluster.brokers:
            for condition in chance.sample(CONDITIONS, len(CONDITIONS)):
                self._choose(condition)
                await self._insist(partial(self._selects, broker))
                await self._insist(partial(self._is_known, broker))
            await self._insist(partial(self._goes_and_comes, broker))
            for condition in BROKEN:
                self._choose(condition)
                await self._insist(partial(self._lacks, broker))
            await self._insist(partial(self._leave, broker))

    async def _selects(self, broker: SimBroker) -> None:
        """Have a broker select: each message that fulfils the condition is given, and no other."""
        await self._beat(broker)
        fulfils = self._versions[self._latest].fulfils
        assert fulfils is not None
        for queue in broker.queues(self._topic):
            begin = broker.running.store.min_offset(queue.topic, queue.queue_id)
            before = {each.keys for each in broker.stored(queue) if fulfils(each.properties)}
            found = set(await self._pull(broker, queue, begin))
            if not before <= found:
                text = self._versions[self._latest].text
                self._world.fail(f"{sorted(before - found)} fulfil {text}, and were not given")

    async def _goes_and_comes(self, broker: SimBroker) -> None:
        """Leave, and come under an earlier version: the condition stays that of the latest."""
        self._choose(CONDITIONS[0])
        await self._selects(broker)
        await self._leave(broker)
        await self._is_refused(broker, ResponseCode.SUBSCRIPTION_NOT_EXIST)
        await self._selects(broker)
        await self._beat(broker, topic="Elsewhere")
        await self._is_refused(broker, ResponseCode.SUBSCRIPTION_NOT_EXIST)
        self._choose(CONDITIONS[1])
        await self._beat(broker, self._latest - 1)
        await self._is_refused(broker, ResponseCode.SUBSCRIPTION_NOT_LATEST)
        await self._selects(broker)
        self._choose(CONDITIONS[1])  # the same under another version
        await self._selects(broker)

    async def _lacks(self, broker: SimBroker) -> None:
        await self._beat(broker)
        await self._is_refused(broker, ResponseCode.FILTER_DATA_NOT_EXIST)

    async def _is_refused(self, broker: SimBroker, code: int) -> None:
        queue = broker.queues(self._topic)[0]
        try:
            await self._pull(broker, queue, 0)
        except BrokerError as error:
            if error.code != code:
                raise RocketMQError(f"{error.code} instead of {code}: {error.remark}") from error
        else:
            self._world.fail(f"{broker.name} gives messages instead of {code}")

"""Simulated producers that record what they send: plain, by key, delayed, in transactions.

Law: each message has a key of its own, made before it is sent and never used again; a producer that
was killed goes on with the next one.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from rocketstream import aio
from rocketstream.client.producer.transaction import TransactionListener
from rocketstream.errors import RocketMQError
from rocketstream.model import LocalTransactionState, Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.history import Recorder, Sending
from rocketstream.testing.history.events import TransactionDecided
from rocketstream.testing.sim.world import Node, World

TAGS = ("Aa", "b")
ALIKE = {"b": "BB"}
"""Taken instead: "BB" and "Aa" have one hash, and brokers compare nothing else."""
SHOPS = ("north", "south")
BATCH_MAX = 5
COMPRESSED_FROM = 64
UNREACHABLE_SHARE = 0.1
"""Share of the broker's questions that the table of local transactions cannot answer."""
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_of_level(levels: str, level: int) -> float:
    """Return how many milliseconds a delay level of a table such as ``1s 5s 1m`` means.

    A level above the last is the last.
    """
    text = levels.split()[:level][-1]
    unit = text.lstrip("0123456789")
    return int(text[: len(text) - len(unit)]) * _UNITS[unit]


@dataclass(frozen=True)
class Habits:
    """How a producer sends.

    Attributes:
        topic: topic it sends to.
        messages: how many it sends, over all restarts.
        pause_ms: longest time between two sends.
        at_once: how many sends may be under way.
        sharded: whether it sends with a sharding key, one message at a time, because their order
            counts.
        delayed: share of delayed messages.
        batched: share of sends of several messages at once.
        compressed: whether bodies of some length are compressed.
        transactional: whether it sends everything in transactions.
        gathered: whether the client gathers what is sent at one time.
        retries: how often the client tries again.
    """

    topic: str
    messages: int
    pause_ms: float = 100.0
    at_once: int = 1
    sharded: bool = False
    delayed: float = 0.0
    batched: float = 0.0
    compressed: bool = False
    transactional: bool = False
    gathered: bool = False
    retries: int = 2


class Sender:
    """A process that sends and remembers its progress over its crashes."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.node: Node = world.add_node(name, self._main)
        self.node.kept.update(sent=0, busy=True)

    @property
    def sent(self) -> int:
        """Return how many sends were begun."""
        return int(self.node.kept["sent"])

    @property
    def is_done(self) -> bool:
        """Whether it will send nothing more."""
        return not self.node.kept["busy"]

    async def _main(self, node: Node) -> None:
        """Send; called again after each crash."""
        raise NotImplementedError


class SimProducer(Sender):
    """A process that sends ``habits.messages`` messages, or sends until faults are over.

    Args:
        world: the world it lives in.
        name: name of the process, and prefix of its keys.
        habits: how it sends.
        decided: the table of local transactions, which all producers of the group share.
    """

    def __init__(
        self, world: World, name: str, habits: Habits, decided: dict[str, bool] | None = None
    ) -> None:
        self.habits = habits
        self._decided = {} if decided is None else decided
        self._chance = world.random(f"producer {name}")
        self._alike = ALIKE if world.random("tags").random() < 0.5 else {}
        super().__init__(world, name)

    async def _main(self, node: Node) -> None:
        recorder = Recorder(lambda: self._world.now_ms, node.record)
        habits, kept = self.habits, node.kept
        settings = node.client(
            retry_times_when_send_failed=habits.retries,
            retry_times_when_send_async_failed=habits.retries,
            send_msg_timeout_ms=self._world.options.request_timeout_ms,
            **({"auto_batch": True} if habits.gathered else {}),
            **({"compress_msg_body_over_howmuch": COMPRESSED_FROM} if habits.compressed else {}),
        )
        producer: aio.Producer
        if habits.transactional:
            lookups = self._world.random(f"lookups {node.name} {node.incarnation}")
            listener = _LocalTransactions(self._decided, recorder, self._chance, lookups)
            producer = aio.TransactionProducer(
                "producers", transaction_listener=listener, **settings
            )
        else:
            producer = aio.Producer("producers", **settings)
        producer = self._made(producer)
        await producer.start()
        while kept["sent"] < habits.messages and not self._world.healed:
            number = self._chance.randint(1, habits.at_once)
            await asyncio.gather(*(self._send(producer, recorder) for _ in range(number)))
            await asyncio.sleep(self._chance.random() * habits.pause_ms / 1000)
        kept["busy"] = False

    def _made(self, producer: aio.Producer) -> aio.Producer:
        """Return a new producer, made ready; this class has nothing to do."""
        return producer

    async def _send(self, producer: aio.Producer, recorder: Recorder) -> None:
        habits, chance = self.habits, self._chance
        if chance.random() < habits.batched:
            await self._send_batch(producer, recorder)
            return
        if self.node.kept["sent"] >= habits.messages:
            return
        level, due_ms = 0, 0.0
        if chance.random() < habits.delayed:
            options = self._world.options
            tables = [text for text in (options.delay_levels, options.other_delay_levels) if text]
            level = chance.randint(1, max(len(text.split()) for text in tables))
            # A level above the last is the last; what waits longer than its level after a start
            # waits as long as that.
            kept = [min(level, len(text.split())) for text in tables]
            due_ms = min(delay_of_level(text, each) for text in tables for each in kept)
        message = self._message(level)
        shard = f"shard-{chance.randrange(4)}" if habits.sharded else None
        sending = self._sending(recorder, message, due_ms, tries_max=1 if shard else None)
        await self._finish(sending, producer, message, shard, has_place=not due_ms)

    def _message(self, level: int = 0) -> Message:
        """Return the next message, with a key, a tag and properties of its own."""
        chance, node = self._chance, self.node
        node.kept["sent"] += 1
        key = f"{node.name}-{node.kept['sent']}"
        body = key.encode() * (
            1 + chance.randrange(1 + self._world.options.body_bytes_max) // len(key)
        )
        properties = {"shop": chance.choice(SHOPS), "number": str(node.kept["sent"])}
        tags = chance.choice(TAGS)
        tags = self._alike.get(tags, tags)
        return Message(
            self.habits.topic, body, tags=tags, keys=key, properties=properties, delay_level=level
        )

    def _sending(
        self, recorder: Recorder, message: Message, due_ms: float, tries_max: int | None = None
    ) -> Sending:
        habits = self.habits
        return recorder.sending(
            message.keys or "",
            habits.topic,
            due_ms=due_ms,
            transactional=habits.transactional,
            tries_max=tries_max or 1 + habits.retries,
            message=message,
        )

    async def _send_batch(self, producer: aio.Producer, recorder: Recorder) -> None:
        """Send several messages as one record of the wire: all of them are stored, or none."""
        left = self.habits.messages - self.node.kept["sent"]
        batch = [self._message() for _ in range(min(left, self._chance.randint(1, BATCH_MAX)))]
        if not batch:
            return
        sendings = [self._sending(recorder, message, 0.0) for message in batch]
        try:
            result = await producer.send(batch)
        except RocketMQError as error:
            for sending in sendings:
                sending.failed(error)
        else:
            for place, sending in enumerate(sendings):
                offset = result.queue_offset + place
                ended(sending, result.send_status, result.message_queue, offset)

    async def _finish(
        self,
        sending: Sending,
        producer: aio.Producer,
        message: Message,
        shard: str | None,
        *,
        has_place: bool,
    ) -> None:
        try:
            if isinstance(producer, aio.TransactionProducer):
                result: SendResult = await producer.send_message_in_transaction(
                    message, message.keys
                )
                has_place = False
            else:
                result = await producer.send(message, sharding_key=shard)
        except RocketMQError as error:
            sending.failed(error)
        else:
            if result.send_status is not SendStatus.SEND_OK:
                sending.unsafe()
            elif has_place:
                sending.acknowledged(result)
            else:
                sending.acknowledged_at(None, -1, result.message_queue)


class SimPostman(SimProducer):
    """A process that sends when all is calm: a batch, and a message alone, a few times."""

    async def _main(self, node: Node) -> None:
        recorder = Recorder(lambda: self._world.now_ms, node.record)
        producer = aio.Producer("postmen", **node.client())
        await producer.start()
        while node.kept["sent"] < self.habits.messages:
            await self._send_batch(producer, recorder)
            await self._send(producer, recorder)
            await asyncio.sleep(self.habits.pause_ms / 1000)
        node.kept["busy"] = False


def ended(sending: Sending, status: SendStatus, queue: MessageQueue | None, offset: int) -> None:
    """Take down the end of a send that was answered."""
    if status is SendStatus.SEND_OK:
        sending.acknowledged_at(queue, offset)
    else:
        sending.unsafe()


class _LocalTransactions(TransactionListener):
    """Local transactions in a table that outlives processes: a decision is never changed."""

    def __init__(
        self,
        decided: dict[str, bool],
        recorder: Recorder,
        chance: random.Random,
        lookups: random.Random,
    ) -> None:
        self._decided, self._recorder = decided, recorder
        self._chance, self._lookups = chance, lookups

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Commit, roll back, or leave the decision to a later check."""
        await asyncio.sleep(self._chance.random() * 0.02)
        fate = self._chance.random()
        if fate < 0.2:
            return LocalTransactionState.UNKNOW
        return self._decide(str(arg), commit=fate < 0.8)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Answer from the table; a transaction not in it is decided now, for good.

        Raises:
            OSError: the table is out of reach, which tells nothing.
        """
        if self._lookups.random() < UNREACHABLE_SHARE:
            raise OSError("the table of transactions is out of reach")
        return self._decide(message.keys or "", commit=self._chance.random() < 0.5)

    def _decide(self, key: str, *, commit: bool) -> LocalTransactionState:
        if key not in self._decided:
            self._decided[key] = commit
            self._recorder.record(TransactionDecided(self._recorder.now(), key, commit))
        if self._decided[key]:
            return LocalTransactionState.COMMIT_MESSAGE
        return LocalTransactionState.ROLLBACK_MESSAGE

"""Simulated groups that record the messages they get: push, orderly, pull and lite pull.

Law: a group is declared before it consumes; every call of a listener is recorded when it begins and
when it ends, so that the calls a killed process left unfinished are known.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rocketstream import aio
from rocketstream.client.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
)
from rocketstream.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageQueue,
    MessageSelector,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_MAX_OFFSET
from rocketstream.testing.history import Recorder, place_of
from rocketstream.testing.history.events import (
    GroupDeclared,
    MemberJoined,
    MemberLeft,
    TakenBack,
)
from rocketstream.testing.sim.world import Node, World

FIRST = ConsumeFromWhere.FIRST_OFFSET


@dataclass(frozen=True)
class Manners:
    """How the members of a group consume.

    Attributes:
        group: its name.
        topic: the topic it consumes.
        members: how many processes.
        orderly: whether queues are consumed in order.
        tags: tags the group selects; empty for all.
        where: name and value of the property it selects by a condition; None for no condition.
        seeking: share of polls after which a lite pull member goes back to an earlier offset.
        partly: whether its listener acknowledges only the beginning of a batch that has failures.
        by_hand: whether its listener in order commits and rolls back what it was given.
        retries: how often a message may fail before it is given up; None means no limit.
        failing: share of messages that fail at first.
        poisonous: share of messages that always fail.
        work_ms: the longest time a listener takes.
        timeout_ms: how long it may take before its message is sent back; 0 leaves a quarter hour.
        stay_ms: how long a member stays before it leaves and joins again; 0 means for ever.
        late_ms: how long a member may take to join first, while messages wait for it.
        settings: more settings of the consumer.
    """

    group: str
    topic: str
    members: int
    orderly: bool = False
    tags: frozenset[str] = frozenset()
    where: tuple[str, str] | None = None
    seeking: float = 0.0
    partly: bool = False
    by_hand: bool = False
    retries: int | None = 16
    failing: float = 0.0
    poisonous: float = 0.0
    work_ms: float = 20.0
    timeout_ms: float = 0.0
    stay_ms: float = 0.0
    late_ms: float = 0.0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def expression(self) -> MessageSelector:
        """Return the subscription of the group."""
        if self.where is not None:
            name, value = self.where
            return MessageSelector.by_sql(f"{name} = '{value}'")
        return MessageSelector.of(" || ".join(sorted(self.tags)) or "*")


"""How often a pull consumer asks for queues that came."""
PROBES = "Probes"
"""Topic of the messages that operators have members consume: no group subscribes to it."""
SLOW_SHARE, SLOW_TIMES = 0.05, 100
"""Of the messages consumed in any order one in twenty takes a hundred times as long."""


class SimGroup:
    """A group of push consumers, each a process.

    Args:
        world: the world it lives in.
        manners: how it consumes.
    """

    sends_back = True
    shares = True
    at_broker = True
    """Whether the broker keeps its offsets, and divides its queues."""

    def __init__(self, world: World, manners: Manners) -> None:
        self.world = world
        self.manners = manners
        self._chance = world.random(f"group {manners.group}")
        self.consumers: dict[str, tuple[int, Any]] = {}
        self.failed: Counter[str] = Counter()
        self.consumed: set[str] = set()
        self.handed: dict[MessageQueue, RecordingListener] = {}
        """By queue the listener that was handed messages last, where listeners commit by hand."""
        self.given_up: set[str] = set()
        attempts = 0 if manners.retries is None else manners.retries + 1
        self.declared: GroupDeclared = GroupDeclared(
            0.0,
            manners.group,
            frozenset({manners.topic}),
            manners.orderly,
            manners.tags,
            attempts,
            sends_back=self.sends_back,
            shares=self.shares,
            where=manners.where,
            timeout_ms=manners.timeout_ms or math.inf,
        )
        self._declare()
        self.nodes: list[Node] = [
            world.add_node(f"{manners.group}-{number}", self._main)
            for number in range(manners.members)
        ]

    def _declare(self) -> None:
        self.world.history.append(self.declared)

    # --- calls of the workload --------------------------------------------------------------------

    @property
    def views(self) -> Iterable[tuple[GroupDeclared, set[str]]]:
        """Return each of those who must get everything, and the keys that they consumed."""
        return [(self.declared, self.consumed)]

    @property
    def retry_topic(self) -> str:
        """The topic failed messages come back from."""
        return f"%RETRY%{self.manners.group}"

    @property
    def pending(self) -> set[str]:
        """Return the keys of messages that failed and were not consumed since."""
        return set(self.failed) - self.consumed - self.given_up

    def owners(self, queue: MessageQueue) -> tuple[str, ...]:
        """Return the members that hold a queue."""
        found = []
        for name, (incarnation, consumer) in self.consumers.items():
            node = self.world.node(name)
            if node.is_alive and node.incarnation == incarnation and queue in self._held(consumer):
                found.append(name)
        return tuple(sorted(found))

    def _held(self, consumer: Any) -> list[MessageQueue]:
        return list(consumer.assigned_queues())

    # --- a member ---------------------------------------------------------------------------------

    async def _main(self, node: Node) -> None:
        if node.incarnation == 1:
            late = self.world.random(f"coming of {node.name}").random()
            await asyncio.sleep(late * self.manners.late_ms / 1000)
        while True:
            recorder = Recorder(lambda: self.world.now_ms, node.record)
            consumer = self._consumer(node, recorder)
            node.record(MemberJoined(self.world.now_ms, self.manners.group, node.name))
            await consumer.start()
            self.consumers[node.name] = (node.incarnation, consumer)
            if not self.manners.stay_ms or self.world.healed:
                await self._work(node, recorder, consumer)
                return
            await asyncio.sleep(self._chance.random() * self.manners.stay_ms / 1000)
            if self.world.healed:
                return
            self.consumers.pop(node.name, None)
            await consumer.shutdown(1_000)
            node.record(MemberLeft(self.world.now_ms, self.manners.group, node.name))
            await asyncio.sleep(self._chance.random() * self.manners.stay_ms / 4000)

    async def _work(self, node: Node, recorder: Recorder, consumer: Any) -> None:
        """Act as a member besides its listener; a member of this class does not."""

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        manners = self.manners
        settings = node.client(
            subscription={manners.topic: manners.expression},
            consume_from_where=FIRST,
            pull_batch_size=self.world.options.pull_batch,
            consume_message_batch_max_size=self.world.options.consume_batch,
            send_back_cause=self.world.options.explains,
            **dict(manners.settings),
        )
        if manners.retries is not None:
            settings["max_reconsume_times"] = manners.retries
        if manners.timeout_ms:
            settings["consume_timeout_minutes"] = manners.timeout_ms / 60_000
        consumer = aio.PushConsumer(manners.group, **settings)
        listener = self.listener(node, recorder)
        consumer.register_message_listener(listener, orderly=manners.orderly)  # type: ignore[call-overload]
        return consumer

    def listener(self, node: Node, recorder: Recorder) -> Callable[..., Awaitable[Any]]:
        """Return the listener of a member; it records the messages it is given."""
        own = RecordingListener(self, node, recorder)
        if self.manners.partly:
            return own.partly
        if self.manners.by_hand:
            return own.by_hand
        return own.in_order if self.manners.orderly else own.at_once

    def fails(self, message: MessageExt) -> bool:
        """Return whether a message fails this time; equal messages and seeds give equal answers."""
        key = message.keys or ""
        fate = self.world.random(f"fate of {key} in {self.manners.group}").random()
        if fate < self.manners.poisonous:
            return True
        return fate < self.manners.poisonous + self.manners.failing and self.failed[key] < 2

    def known_as(self, member: str) -> str:
        """Return the group that a member's deliveries are recorded under."""
        return self.manners.group

    def record(self, member: str, messages: list[MessageExt], *, success: bool) -> None:
        """Remember the outcome of messages, for ``is_done``."""
        for message in messages:
            key = message.keys or ""
            if success:
                self.consumed.add(key)
            else:
                self.failed[key] += 1


class RecordingListener:
    """Records its messages, works for a moment and fails those chosen to fail."""

    def __init__(self, group: SimGroup, node: Node, recorder: Recorder) -> None:
        self._group, self._node, self._recorder = group, node, recorder
        self._chance = group.world.random(f"listener {node.name} {node.incarnation}")
        self._kept: dict[MessageQueue, list[int]] = {}

    async def at_once(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """A concurrent listener."""
        if messages[0].topic == PROBES:
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        if await self._consume(messages):
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    async def in_order(self, messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        """A listener in order."""
        if messages[0].topic == PROBES:
            return ConsumeOrderlyStatus.SUCCESS
        if await self._consume(messages):
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    async def by_hand(
        self, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """A listener in order that keeps what it is given, commits all, or wants all again."""
        group, handed = self._group.manners.group, self._group.handed
        context.auto_commit = False
        queue, last = place_of(group, messages[0]), messages[-1]
        kept = self._kept.setdefault(queue, [])
        if handed.get(queue) is not self or kept[-1:] != [messages[0].queue_offset - 1]:
            kept.clear()  # the queue begins anew
        handed[queue] = self
        if not await self._consume(messages):
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        kept += [message.queue_offset for message in messages]
        follows = int(last.properties[PROPERTY_MAX_OFFSET]) > last.queue_offset + 1
        fate = self._chance.random()
        if fate < 0.1 and not self._group.world.healed:
            now, name = self._group.world.now_ms, self._node.name
            for offset in kept:
                self._node.record(TakenBack(now, group, name, queue, offset))
            kept.clear()
            return ConsumeOrderlyStatus.ROLLBACK
        if fate < 0.6 and follows:  # the last one there commits all before it
            return ConsumeOrderlyStatus.SUCCESS
        kept.clear()
        return ConsumeOrderlyStatus.COMMIT

    async def _consume(self, messages: list[MessageExt]) -> bool:
        group = self._group
        name = self._node.name
        with self._recorder.listening(group.known_as(name), name, messages) as returned:
            await self._work()
            success = not any(group.fails(message) for message in messages)
            returned(success)
            group.record(name, messages, success=success)
        return success

    async def partly(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        """A concurrent listener that acknowledges a batch up to its first failure."""
        group, name = self._group, self._node.name
        with self._recorder.listening(group.manners.group, name, messages) as returned:
            await self._work()
            fails = [group.fails(message) for message in messages]
            good = fails.index(True) if True in fails else len(messages)
            context.ack_index = good - 1
            returned(True, failed_from=good)
            group.record(name, messages[:good], success=True)
            group.record(name, messages[good:], success=False)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def _work(self) -> None:
        manners = self._group.manners
        work_s = self._chance.random() * manners.work_ms / 1000
        if not manners.orderly and self._chance.random() < SLOW_SHARE:
            work_s *= SLOW_TIMES  # the messages behind it are finished, and may be committed
        await asyncio.sleep(work_s)

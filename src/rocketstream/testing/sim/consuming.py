"""Simulated groups that record the messages they get: push, orderly, pull and lite pull.

Law: a group is declared before it consumes; every call of a listener is recorded when it begins and
when it ends, so that the calls a killed process left unfinished are known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rocketstream import aio
from rocketstream.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageQueue,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.history import Recorder
from rocketstream.testing.history.events import (
    GroupDeclared,
    MemberJoined,
    MemberLeft,
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
        retries: how often a message may fail before it is given up; None means no limit.
        failing: share of messages that fail at first.
        poisonous: share of messages that always fail.
        work_ms: the longest time a listener takes.
        stay_ms: how long a member stays before it leaves and joins again; 0 means for ever.
        late_ms: how long a member may take to join first, while messages wait for it.
        settings: more settings of the consumer.
    """

    group: str
    topic: str
    members: int
    orderly: bool = False
    tags: frozenset[str] = frozenset()
    retries: int | None = 16
    failing: float = 0.0
    poisonous: float = 0.0
    work_ms: float = 20.0
    stay_ms: float = 0.0
    late_ms: float = 0.0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def expression(self) -> str:
        """Return the subscription expression of the group."""
        return " || ".join(sorted(self.tags)) or "*"


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

    def __init__(self, world: World, manners: Manners) -> None:
        self.world = world
        self.manners = manners
        self._chance = world.random(f"group {manners.group}")
        self.consumers: dict[str, tuple[int, Any]] = {}
        self.failed: Counter[str] = Counter()
        self.consumed: set[str] = set()
        self.given_up: set[str] = set()
        attempts = 0 if manners.retries is None else manners.retries + 1
        world.history.append(
            GroupDeclared(
                0.0,
                manners.group,
                frozenset({manners.topic}),
                manners.orderly,
                manners.tags,
                attempts,
                sends_back=self.sends_back,
                shares=self.shares,
            )
        )
        self.nodes = [
            world.add_node(f"{manners.group}-{number}", self._main)
            for number in range(manners.members)
        ]

    # --- calls of the workload --------------------------------------------------------------------

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
            **dict(manners.settings),
        )
        if manners.retries is not None:
            settings["max_reconsume_times"] = manners.retries
        consumer = aio.PushConsumer(manners.group, **settings)
        listener = self.listener(node, recorder)
        consumer.register_message_listener(listener, orderly=manners.orderly)  # type: ignore[call-overload]
        return consumer

    def listener(self, node: Node, recorder: Recorder) -> Callable[..., Awaitable[Any]]:
        """Return the listener of a member; it records the messages it is given."""
        own = _Listener(self, node, recorder)
        return own.in_order if self.manners.orderly else own.at_once

    def fails(self, message: MessageExt) -> bool:
        """Return whether a message fails this time; equal messages and seeds give equal answers."""
        key = message.keys or ""
        fate = self.world.random(f"fate of {key} in {self.manners.group}").random()
        if fate < self.manners.poisonous:
            return True
        return fate < self.manners.poisonous + self.manners.failing and self.failed[key] < 2

    def record(self, messages: list[MessageExt], *, success: bool) -> None:
        """Remember the outcome of messages, for ``is_done``."""
        for message in messages:
            key = message.keys or ""
            if success:
                self.consumed.add(key)
            else:
                self.failed[key] += 1


class _Listener:
    """Records its messages, works for a moment and fails those chosen to fail."""

    def __init__(self, group: SimGroup, node: Node, recorder: Recorder) -> None:
        self._group, self._node, self._recorder = group, node, recorder
        self._chance = group.world.random(f"listener {node.name} {node.incarnation}")

    async def at_once(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """A concurrent listener."""
        if await self._consume(messages):
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    async def in_order(self, messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        """A listener in order."""
        if await self._consume(messages):
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    async def _consume(self, messages: list[MessageExt]) -> bool:
        group = self._group
        with self._recorder.listening(group.manners.group, self._node.name, messages) as returned:
            work_s = self._chance.random() * group.manners.work_ms / 1000
            if not group.manners.orderly and self._chance.random() < SLOW_SHARE:
                work_s *= SLOW_TIMES  # the messages behind it are finished, and may be committed
            await asyncio.sleep(work_s)
            success = not any(group.fails(message) for message in messages)
            returned(success)
            group.record(messages, success=success)
        return success


class SimLiteGroup(SimGroup):
    """A group of lite pull consumers: asking for the next poll finishes the last messages."""

    sends_back = False

    def _held(self, consumer: Any) -> list[MessageQueue]:
        return list(consumer.assignment())

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        manners = self.manners
        settings = node.client(
            consume_from_where=FIRST,
            pull_batch_size=self.world.options.pull_batch,
            **dict(manners.settings),
        )
        return _Polling(self, node, recorder, aio.LitePullConsumer(manners.group, **settings))


class _Polling:
    """A lite pull consumer and the loop that polls it, with the face of a push consumer."""

    def __init__(self, group: SimGroup, node: Node, recorder: Recorder, consumer: Any) -> None:
        self._group, self._node, self._recorder = group, node, recorder
        self._consumer = consumer
        self._task: asyncio.Task[None] | None = None

    def assignment(self) -> list[MessageQueue]:
        return list(self._consumer.assignment())

    async def start(self) -> None:
        manners = self._group.manners
        await self._consumer.subscribe(manners.topic, manners.expression)
        await self._consumer.start()
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        group = self._group
        while True:
            messages = await self._consumer.poll(1_000)
            if not messages:
                continue
            name = self._node.name
            with self._recorder.listening(group.manners.group, name, messages) as returned:
                await asyncio.sleep(group.manners.work_ms / 2000)
                returned(True)
                group.record(messages, success=True)

    async def shutdown(self, await_ms: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.shutdown()


class SimPullGroup(SimGroup):
    """One process that pulls every queue itself and stores its offsets; needs one member."""

    sends_back = False
    shares = False

    def owners(self, queue: MessageQueue) -> tuple[str, ...]:
        """Return the one member, which has every queue: nothing is shared."""
        return (self.nodes[0].name,)

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        settings = node.client(broker_suspend_max_time_ms=1_000, **dict(self.manners.settings))
        return aio.PullConsumer(self.manners.group, **settings)

    async def _work(self, node: Node, recorder: Recorder, consumer: Any) -> None:
        queues = await consumer.fetch_subscribe_message_queues(self.manners.topic)
        tasks = [self._drain(node, recorder, consumer, queue) for queue in queues]
        await asyncio.gather(*tasks)

    async def _drain(self, node: Node, recorder: Recorder, consumer: Any, mq: MessageQueue) -> None:
        offset = max(await consumer.fetch_consume_offset(mq, from_store=True), 0)
        while True:
            result = await consumer.pull_block_if_not_found(
                mq, self.manners.expression, offset, self.world.options.pull_batch
            )
            messages = result.msg_found_list
            if messages:
                group, name = self.manners.group, node.name
                with recorder.listening(group, name, messages) as returned:
                    await asyncio.sleep(self.manners.work_ms / 2000)
                    returned(True)
                    self.record(messages, success=True)
            offset = result.next_begin_offset
            consumer.update_consume_offset(mq, offset)

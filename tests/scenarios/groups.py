"""Groups that consume otherwise than by push: broadcasting, lite pull, pull.

Law: every call is recorded when it begins and when it ends; an offset of one's own store is, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rocketstream import OffsetStore, ReadOffsetType, aio
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.history import Recorder, place_of
from rocketstream.testing.history.events import CommitSeen, GroupDeclared, OffsetReset
from rocketstream.testing.sim.consuming import (
    FIRST,
    SLOW_SHARE,
    SLOW_TIMES,
    RecordingListener,
    SimGroup,
)
from rocketstream.testing.sim.world import Node

QUEUES_EVERY_S = 2.0


class SimBroadcastGroup(SimGroup):
    """Members that each get every message; each keeps its offsets in a table of its own."""

    sends_back = False
    shares = False
    at_broker = False

    def _declare(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._members: list[GroupDeclared] = []
        for number in range(self.manners.members):
            name = f"{self.manners.group}-{number}"
            self._seen[name] = set()
            own = dataclasses.replace(self.declared, group=self.known_as(name))
            self._members.append(own)
            self.world.history.append(own)

    @property
    def views(self) -> Iterable[tuple[GroupDeclared, set[str]]]:
        """Return each member, and the keys that it consumed."""
        return list(zip(self._members, self._seen.values(), strict=True))

    def known_as(self, member: str) -> str:
        """Return the group of one that a member is for the history."""
        return f"{self.manners.group} of {member}"

    def record(self, member: str, messages: list[MessageExt], *, success: bool) -> None:
        """Remember what a member consumed."""
        self._seen[member] |= {message.keys or "" for message in messages}

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        manners, table = self.manners, _Table(self, node)
        settings = node.client(
            subscription={manners.topic: manners.expression},
            consume_from_where=FIRST,
            message_model=MessageModel.BROADCASTING,
            offset_store=table,
            pull_batch_size=self.world.options.pull_batch,
            **dict(manners.settings),
        )
        consumer = aio.PushConsumer(manners.group, **settings)
        consumer.register_message_listener(RecordingListener(self, node, recorder).at_once)
        return consumer


class _Table(OffsetStore):
    """A user's store of offsets: a table that outlives its process."""

    def __init__(self, group: SimGroup, node: Node) -> None:
        self._group, self._node = group, node
        self._kept: dict[MessageQueue, int] = node.kept.setdefault("offsets", {})
        self._noted: dict[MessageQueue, int] = {}

    def update_offset(
        self, message_queue: MessageQueue, offset: int, increase_only: bool = True
    ) -> None:
        before = self._noted.get(message_queue, offset)
        self._noted[message_queue] = max(before, offset) if increase_only else offset

    def read_offset(self, message_queue: MessageQueue, read_type: ReadOffsetType) -> int:
        if read_type is not ReadOffsetType.READ_FROM_STORE and message_queue in self._noted:
            return self._noted[message_queue]
        if read_type is ReadOffsetType.READ_FROM_MEMORY:
            return -1
        return self._kept.get(message_queue, -1)

    def persist_all(self, message_queues: Collection[MessageQueue]) -> None:
        now, name = self._group.world.now_ms, self._group.known_as(self._node.name)
        for queue in message_queues:
            offset = self._noted.get(queue)
            if offset is not None and self._kept.get(queue) != offset:
                self._kept[queue] = offset
                self._node.record(CommitSeen(now, name, queue, offset))

    def remove_offset(self, message_queue: MessageQueue) -> None:
        self._noted.pop(message_queue, None)

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        return {queue: at for queue, at in self._noted.items() if not topic or queue.topic == topic}


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
        self._chance = group.world.random(f"polls of {node.name} {node.incarnation}")
        self._pace = group.world.random(f"pace of {node.name} {node.incarnation}")

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
                slow = SLOW_TIMES if self._pace.random() < SLOW_SHARE else 1
                await asyncio.sleep(slow * group.manners.work_ms / 2000)
                returned(True)
                group.record(name, messages, success=True)
            if self._chance.random() < group.manners.seeking and not group.world.healed:
                await self._go_back(messages[-1])

    async def _go_back(self, message: MessageExt) -> None:
        """Go on a few messages before the last one."""
        group, node = self._group.manners.group, self._node
        queue = place_of(group, message)
        offset = max(0, message.queue_offset - self._chance.randrange(8))
        node.record(OffsetReset(self._group.world.now_ms, group, queue, offset))
        with contextlib.suppress(RocketMQError):  # the queue is another member's now
            await self._consumer.seek(queue, offset)

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
        drains: dict[MessageQueue, asyncio.Task[None]] = {}
        errors: list[BaseException] = []

        def ended(drain: asyncio.Task[None]) -> None:
            error = None if drain.cancelled() else drain.exception()
            if error is not None:
                errors.append(error)

        while not errors:
            for queue in await consumer.fetch_subscribe_message_queues(self.manners.topic):
                if queue not in drains:
                    drain = self._drain(node, recorder, consumer, queue)
                    drains[queue] = asyncio.get_running_loop().create_task(drain)
                    drains[queue].add_done_callback(ended)
            await asyncio.sleep(QUEUES_EVERY_S)
        raise errors[0]  # the process ends, and is started again

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
                    self.record(name, messages, success=True)
            offset = result.next_begin_offset
            consumer.update_consume_offset(mq, offset)

"""Simulated groups that read in every way there is: polls, iteration, record batches, schedules.

Law: as of ``consuming``; besides, a member that is told of its queues has those that it is told of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from rocketstream import aio
from rocketstream.errors import ConfigurationError, RemoteProtocolError, RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.history import Recorder, place_of
from rocketstream.testing.history.events import MemberJoined, OffsetReset
from rocketstream.testing.sim.consuming import FIRST, Manners, SimGroup
from rocketstream.testing.sim.world import Node, World
from tests.scenarios.groups import SimLiteGroup
from tests.scenarios.strategies import strategy

COLUMNS: tuple[str, ...] = (
    "topic", "brokerName", "queueId", "queueOffset", "keys", "tags", "body", "properties",
    "reconsumeTimes",
)  # fmt: skip
LOOK_EVERY_S = 1.0


def number_of(node: Node) -> int:
    """Return the number of a member in its group."""
    return int(node.name.rpartition("-")[2])


class SimAllottedGroup(SimGroup):
    """Push consumers that divide their queues by a strategy that is drawn."""

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        consumer = super()._consumer(node, recorder)
        consumer.allocate_message_queue_strategy = self._strategy(node)
        return consumer

    def _strategy(self, node: Node) -> Any:
        return strategy(self.world, self.manners.group, self.manners.topic, number_of(node))


class SimReaderGroup(SimAllottedGroup, SimLiteGroup):
    """Lite pull consumers that read, commit, pause and seek in all ways there are."""

    def __init__(
        self,
        world: World,
        manners: Manners,
        *,
        assigned: bool,
        by_hand: bool,
        in_columns: bool = False,
    ) -> None:
        self.assigned, self.commits_by_hand, self.in_columns = assigned, by_hand, in_columns
        super().__init__(world, manners)

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        settings = node.client(
            consume_from_where=FIRST,
            pull_batch_size=self.world.options.pull_batch,
            auto_commit=not self.commits_by_hand,
            auto_commit_interval_ms=1_000,
            topic_metadata_check_interval_ms=1_000,
            **dict(self.manners.settings),
            allocate_message_queue_strategy=self._strategy(node),
        )
        return _Reading(self, node, recorder, aio.LitePullConsumer(self.manners.group, **settings))


class _Reading:
    """One lite pull consumer and what it does, with the face of a push consumer."""

    def __init__(
        self, group: SimReaderGroup, node: Node, recorder: Recorder, consumer: Any
    ) -> None:
        self._group, self._node, self._recorder = group, node, recorder
        self._consumer: aio.LitePullConsumer = consumer
        self._chance = group.world.random(f"reads of {node.name} {node.incarnation}")
        self._task: asyncio.Task[None] | None = None
        self._told: set[MessageQueue] = set()
        self._known: list[MessageQueue] = []
        self._assigned: list[MessageQueue] = []
        self._looked_s = 0.0

    def assignment(self) -> list[MessageQueue]:
        found = self._consumer.assignment()
        return found if self._group.assigned else [mq for mq in found if mq in self._told]

    async def start(self) -> None:
        consumer, topic = self._consumer, self._group.manners.topic
        await consumer.register_topic_message_queue_change_listener(topic, self._queues_changed)
        if self._group.assigned:
            consumer.set_sub_expression_for_assign(topic, self._group.manners.expression)
        else:
            await consumer.subscribe(topic, self._group.manners.expression, self._share_changed)
        await consumer.start()
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def shutdown(self, await_ms: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.shutdown()

    # --- what it is told --------------------------------------------------------------------------

    def _queues_changed(self, topic: str, queues: list[MessageQueue]) -> None:
        self._known = queues

    def _share_changed(
        self, topic: str, every: list[MessageQueue], mine: list[MessageQueue]
    ) -> None:
        self._told = set(mine)

    async def _assign(self) -> None:
        """Have the queues of this member's number, or for a while but one of them."""
        manners, node = self._group.manners, self._node
        with contextlib.suppress(RocketMQError):
            queues = self._known or await self._consumer.fetch_message_queues(manners.topic)
            own = [mq for mq in queues if mq.queue_id % manners.members == number_of(node)]
            if len(own) > 1 and not self._group.world.healed and self._chance.random() < 0.2:
                own = own[1:]
            if own and own != self._assigned:
                node.record(MemberJoined(self._group.world.now_ms, manners.group, node.name))
                self._assigned = own
                await self._consumer.assign(own)

    # --- what it does -----------------------------------------------------------------------------

    async def _read(self) -> None:
        ways: Sequence[Callable[[], Awaitable[None]]] = (
            self._poll, self._iterate, self._columns, self._give_up,
        )  # fmt: skip
        if self._group.in_columns:
            ways = (self._columns, self._columns, self._give_up)
        loop = asyncio.get_running_loop()
        while True:
            if self._group.assigned and loop.time() >= self._looked_s:
                self._looked_s = loop.time() + LOOK_EVERY_S
                await self._assign()
            if self._group.assigned and not self._assigned:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            try:
                await self._chance.choice(ways)()
            except RemoteProtocolError:  # of a record that makes no sense; it is pulled again
                if not self._group.world.options.strange:
                    raise
            with contextlib.suppress(RocketMQError):  # a queue may be another member's now
                await self._besides()

    async def _poll(self) -> None:
        await self._handle(await self._consumer.poll(self._chance.choice((0, 200, 1_000))))

    async def _give_up(self) -> None:
        """Poll, and wait no longer than a moment: what would have come is given next time."""
        consumer, messages = self._consumer, list[MessageExt]()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._chance.random() / 200):
                if self._group.in_columns:
                    batch = await consumer.poll_arrow(3, columns=COLUMNS, timeout_ms=1_000)
                    messages = self._rows(batch)
                else:
                    messages = await consumer.poll(1_000)
        await self._handle(messages)

    async def _iterate(self) -> None:
        messages = aiter(self._consumer)
        for _ in range(self._chance.randint(1, 4)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    message = await anext(messages)
                await self._handle([message])

    async def _columns(self) -> None:
        rows = self._chance.choice((1, 3, 100))
        columns = COLUMNS
        # A row of a damaged record would count as handed over.
        if not self._group.world.options.strange and self._chance.random() < 0.5:
            columns = (*COLUMNS, "error")
        batch = await self._consumer.poll_arrow(rows, timeout_ms=500, columns=columns)
        await self._handle(self._rows(batch))

    def _rows(self, batch: Any) -> list[MessageExt]:
        """Return the messages of a record batch, queue by queue."""
        by_queue: dict[MessageQueue, list[MessageExt]] = {}
        for row in batch.to_pylist():
            if row.get("error") is not None:
                self._group.world.fail(f"{row} could not be decoded")
            message = cast(MessageExt, SimpleNamespace(
                keys=row["keys"], topic=row["topic"], broker_name=row["brokerName"],
                queue_id=row["queueId"], queue_offset=row["queueOffset"], body=row["body"],
                reconsume_times=row["reconsumeTimes"], store_timestamp=0,
                properties=dict(row["properties"]),
            ))  # fmt: skip
            by_queue.setdefault(place_of(self._group.manners.group, message), []).append(message)
        return [message for each in by_queue.values() for message in each]

    async def _handle(self, messages: list[MessageExt]) -> None:
        if not messages:
            return
        group, name = self._group, self._node.name
        with self._recorder.listening(group.manners.group, name, messages) as returned:
            await asyncio.sleep(self._chance.random() * group.manners.work_ms / 1000)
            returned(True)
            group.record(name, messages, success=True)
        if group.commits_by_hand and self._chance.random() < 0.5:
            with contextlib.suppress(RocketMQError):
                await self._commit(messages[-1])
        if self._chance.random() < group.manners.seeking and not group.world.healed:
            with contextlib.suppress(RocketMQError):  # the queue is another member's now
                await self._go_back(messages[-1])

    async def _commit(self, last: MessageExt) -> None:
        queue, way = place_of(self._group.manners.group, last), self._chance.randrange(4)
        if way == 0:
            await self._consumer.commit_sync()
        elif way == 1:
            await self._consumer.commit()
        elif way == 2:
            await self._consumer.commit([queue], persist=True)
        else:
            await self._consumer.commit({queue: last.queue_offset + 1}, persist=True)

    async def _go_back(self, last: MessageExt) -> None:
        group, node, chance = self._group, self._node, self._chance
        queue, way = place_of(group.manners.group, last), self._chance.randrange(3)
        offset = 0 if way == 1 else max(0, last.queue_offset - chance.randrange(8))
        node.record(OffsetReset(group.world.now_ms, group.manners.group, queue, offset))
        if way == 1:
            await self._consumer.seek_to_begin(queue)
        elif way == 2 and group.commits_by_hand:  # nothing commits where it looks
            await self._consumer.seek_to_end(queue)
            offset = last.queue_offset + 1
            await self._until_there(queue, offset)
        else:
            await self._consumer.seek(queue, offset)
        node.record(OffsetReset(group.world.now_ms, group.manners.group, queue, offset))

    async def _until_there(self, queue: MessageQueue, offset: int) -> None:
        while True:
            try:
                await self._consumer.seek(queue, offset)
            except ConfigurationError:
                return  # the queue is another member's now
            except RocketMQError:
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                return

    async def _besides(self) -> None:
        """Pause and resume, commit what is finished, and look where the group is."""
        consumer, chance, healed = self._consumer, self._chance, self._group.world.healed
        queues = consumer.assignment()
        if healed or chance.random() < 0.3:
            consumer.resume(queues)
        elif queues and chance.random() < 0.1:
            consumer.pause([chance.choice(queues)])
        if queues and chance.random() < 0.1:
            await consumer.committed(chance.choice(queues))
            await consumer.offset_for_timestamp(chance.choice(queues), self._node.clock.now_ms())
        if not healed and not self._group.assigned and chance.random() < 0.02:
            await self._subscribe_anew()
        if healed and self._group.commits_by_hand:
            await consumer.commit_sync()

    async def _subscribe_anew(self) -> None:
        """Subscribe to nothing for a moment."""
        group, node = self._group, self._node
        manners = group.manners
        node.record(MemberJoined(group.world.now_ms, manners.group, node.name))
        await self._consumer.unsubscribe(manners.topic)
        while True:
            with contextlib.suppress(RocketMQError):
                node.record(MemberJoined(group.world.now_ms, manners.group, node.name))
                await self._consumer.subscribe(
                    manners.topic, manners.expression, self._share_changed
                )
                return
            await asyncio.sleep(LOOK_EVERY_S)


class SimScheduledGroup(SimAllottedGroup):
    """Pull consumers whose schedule calls a task for each queue that they are allotted."""

    sends_back = False

    def _held(self, consumer: Any) -> list[MessageQueue]:
        return list(consumer.service.consumer.fetch_message_queues_in_balance(self.manners.topic))

    def _consumer(self, node: Node, recorder: Recorder) -> Any:
        settings = node.client(
            broker_suspend_max_time_ms=1_000,
            allocate_message_queue_strategy=self._strategy(node),
        )
        service = aio.MQPullConsumerScheduleService(self.manners.group, **settings)
        return _Scheduled(self, node, recorder, service)


class _Scheduled:
    """One schedule, with the face of a push consumer."""

    def __init__(self, group: SimGroup, node: Node, recorder: Recorder, service: Any) -> None:
        self._group, self._node, self._recorder = group, node, recorder
        self._chance = group.world.random(f"tasks of {node.name} {node.incarnation}")
        self.service: aio.MQPullConsumerScheduleService = service

    async def start(self) -> None:
        topic = self._group.manners.topic
        await self.service.register_pull_task_callback(topic, self._pull)
        await self.service.start()

    async def shutdown(self, await_ms: float) -> None:
        await self.service.shutdown()

    async def _pull(self, mq: MessageQueue, context: aio.PullTaskContext) -> None:
        group, name, consumer = self._group, self._node.name, context.pull_consumer
        context.pull_next_delay_ms = self._chance.choice((0.0, 50.0, 500.0))
        offset = max(await consumer.fetch_consume_offset(mq), 0)
        result = await consumer.pull(
            mq, group.manners.expression, offset, group.world.options.pull_batch
        )
        if messages := result.msg_found_list:
            with self._recorder.listening(group.manners.group, name, messages) as returned:
                await asyncio.sleep(self._chance.random() * group.manners.work_ms / 1000)
                returned(True)
                group.record(name, messages, success=True)
        if self._chance.random() < 0.2:
            await consumer.update_consume_offset_to_broker(mq, result.next_begin_offset)
        consumer.update_consume_offset(mq, result.next_begin_offset)

"""Members that join and leave all the time: nothing is lost, order holds, calm divides at once.

``ROCKETSTREAM_STORM_SECONDS`` sets how long the storm in order lasts (30); the other one lasts a
sixth of it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
)
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.aio import Producer, PushConsumer
from rocketstream.testing.history import Recorder, check
from rocketstream.testing.history.events import GroupDeclared, MemberJoined, MemberLeft, RunEnded
from tests.kits.cluster import Cluster, embedded
from tests.kits.listeners import broker_name

STORM_S = float(os.environ.get("ROCKETSTREAM_STORM_SECONDS", "30"))
CALM_S = 30.0
MEMBERS = 30
QUEUES = 64
TOPIC, GROUP = "Storm", "storm"
Listener = Callable[[list[MessageExt]], Awaitable[ConsumeConcurrentlyStatus | ConsumeOrderlyStatus]]

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(STORM_S + 3 * CALM_S + 60)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with embedded(tmp_path) as running:
        running.create_topic(TOPIC, QUEUES)
        yield running


class Storm:
    """Members of one group on one loop, and what they have consumed, in order of finishing."""

    def __init__(self, cluster: Cluster, *, orderly: bool) -> None:
        self._cluster = cluster
        self._orderly = orderly
        self._random = random.Random(7)
        self._quiet = asyncio.Event()  # never set: what a pause waits for
        self.members: list[PushConsumer] = []
        self.names: dict[PushConsumer, str] = {}
        self.joined = self.left = 0
        self._recorder = Recorder(SYSTEM_CLOCK.monotonic_ms)
        self._recorder.record(
            GroupDeclared(self._recorder.now(), GROUP, frozenset({TOPIC}), orderly, attempts_max=0)
        )
        self.sent: dict[int, int] = defaultdict(int)
        self.consumed: dict[int, set[int]] = defaultdict(set)

    async def pause(self, most_s: float) -> None:
        """Let time pass: the storm is about time, not about a condition."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0, most_s)):
                await self._quiet.wait()

    def listener_of(self, name: str) -> Listener:
        """Return a member's listener: it takes a moment, then counts the messages as consumed."""

        async def listener(
            messages: list[MessageExt],
        ) -> ConsumeConcurrentlyStatus | ConsumeOrderlyStatus:
            with self._recorder.listening(GROUP, name, messages) as returned:
                await asyncio.sleep(0)
                returned(True)
                for message in messages:
                    self.consumed[message.queue_id].add(int(message.body))
            if self._orderly:
                return ConsumeOrderlyStatus.SUCCESS
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        return listener

    async def join(self) -> None:
        name = f"member-{self.joined}"
        self.joined += 1
        self._recorder.record(MemberJoined(self._recorder.now(), GROUP, name))
        member = PushConsumer(
            GROUP,
            config=ClientConfig(namesrv_addr=self._cluster.namesrv_addr),
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            consume_message_batch_max_size=4,
            subscription={TOPIC: "*"},
        )
        member.register_message_listener(self.listener_of(name), orderly=self._orderly)  # type: ignore[call-overload]
        self.members.append(member)
        self.names[member] = name
        await member.start()

    async def leave(self) -> None:
        member = self.members.pop(self._random.randrange(len(self.members)))
        await member.shutdown(1_000)
        self._recorder.record(MemberLeft(self._recorder.now(), GROUP, self.names.pop(member)))
        self.left += 1

    async def blow(self, seconds: float) -> None:
        """Let members join and leave, a few at a time, between 5 and 30 of them."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            step: Callable[[], object] = self.join
            if len(self.members) >= MEMBERS or (
                len(self.members) > 5 and self._random.random() < 0.45
            ):
                step = self.leave
            await step()  # type: ignore[misc]
            await self.pause(0.2)
        await asyncio.gather(*(self.join() for _ in range(MEMBERS - len(self.members))))

    async def send(self, seconds: float) -> None:
        """Send numbered messages to every queue until the storm is over."""
        broker = broker_name(self._cluster)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with Producer("storm-sender", namesrv_addr=self._cluster.namesrv_addr) as producer:
            while loop.time() < end:
                for queue_id in range(QUEUES):
                    mq = MessageQueue(TOPIC, broker, queue_id)
                    await self._send(producer, mq)
                await self.pause(0.3)

    async def _send(self, producer: Producer, mq: MessageQueue) -> None:
        first = self.sent[mq.queue_id]
        batch = [
            Message(TOPIC, str(number), keys=f"{mq.queue_id}-{number}")
            for number in range(first, first + 3)
        ]
        sends = [self._recorder.sending(str(message.keys), TOPIC) for message in batch]
        await producer.send_batch(batch, message_queue=mq)
        for number, sending in enumerate(sends, first):
            sending.acknowledged_at(mq, number)
        self.sent[mq.queue_id] += len(batch)

    def owners(self) -> dict[int, int]:
        """Return by how many members each queue is held."""
        found: dict[int, int] = defaultdict(int)
        for member in self.members:
            for mq in member.assigned_queues():
                if mq.topic == TOPIC:
                    found[mq.queue_id] += 1
        return found

    async def wait(self, condition: Callable[[], bool], what: Callable[[], str]) -> float:
        """Wait until something is so, at most the time of calm; return the seconds it took."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while not condition():
            if loop.time() - begin > CALM_S:
                raise TimeoutError(what())
            await self.pause(0.1)
        return loop.time() - begin

    def missing(self) -> dict[int, list[int]]:
        """Return what nobody has consumed, by queue."""
        lacking = {
            queue_id: sorted(set(range(count)) - self.consumed[queue_id])
            for queue_id, count in self.sent.items()
        }
        return {queue_id: some for queue_id, some in lacking.items() if some}

    def check(self) -> None:
        """Hold everything that happened to what is promised."""
        self._recorder.record(RunEnded(self._recorder.now()))
        anomalies = check(self._recorder.events)
        assert not anomalies, "\n".join(map(str, anomalies))


async def _storm(cluster: Cluster, seconds: float, *, orderly: bool) -> Storm:
    storm = Storm(cluster, orderly=orderly)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(storm.blow(seconds))
            group.create_task(storm.send(seconds))
        once = dict.fromkeys(range(QUEUES), 1)
        calm_s = await storm.wait(
            lambda: storm.owners() == once, lambda: f"not one owner each: {storm.owners()}"
        )
        drained_s = await storm.wait(lambda: not storm.missing(), lambda: f"lost {storm.missing()}")
    finally:
        await asyncio.gather(
            *(member.shutdown(1_000) for member in storm.members), return_exceptions=True
        )
    print(
        f"storm of {seconds:.0f} s, orderly={orderly}: {storm.joined} joined, {storm.left} left, "
        f"{sum(storm.sent.values())} sent, {sum(map(len, storm.consumed.values()))} consumed, "
        f"owned after {calm_s:.1f} s, drained after {drained_s:.1f} s more"
    )
    return storm


def test_a_storm_loses_nothing_and_keeps_order(cluster: Cluster) -> None:
    """Covers C-548, C-550, C-556 to C-558, C-560: 30 members, 64 queues, in order."""
    storm = asyncio.run(_storm(cluster, STORM_S, orderly=True))
    assert storm.joined > MEMBERS
    storm.check()


def test_a_storm_of_concurrent_members_loses_nothing(cluster: Cluster) -> None:
    """Covers C-149, C-150, C-155, C-548 to C-550: 30 members, 64 queues."""
    storm = asyncio.run(_storm(cluster, STORM_S / 6, orderly=False))
    assert storm.joined > MEMBERS / 2
    storm.check()

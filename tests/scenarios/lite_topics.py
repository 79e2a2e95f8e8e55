"""Lite topics in a simulated run: who sends to them, a group that consumes them, what is promised.

Law: a lite topic is a queue of its own in the history; its messages are consumed in its order, by
one call at a time where nothing is wrong, and each at least once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from rocketstream import LiteTopicContext, OffsetOption, aio
from rocketstream.errors import RocketMQError
from rocketstream.model import ConsumeConcurrentlyStatus, Message, MessageQueue
from rocketstream.protocol.lite import LITE_QUEUE_ID, lite_queue_name
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_INNER_MULTI_QUEUE_OFFSET
from rocketstream.testing.history import Anomaly, AnomalyKind, Recorder, Sending
from rocketstream.testing.history.events import MemberJoined, MemberLeft, OffsetReset
from rocketstream.testing.history.story import Delivery, Stories, sort
from rocketstream.testing.sim.cluster import SimBroker
from rocketstream.testing.sim.consuming import SimGroup
from rocketstream.testing.sim.lite_broker import LiteTopicBroker
from rocketstream.testing.sim.producing import SimProducer
from rocketstream.testing.sim.world import Node
from tests.scenarios.changing import wait
from tests.scenarios.draws import LITE_PARENT

NAMES = tuple(f"agent-{number}" for number in range(6))
INVISIBLE_MS = 10_000
SLOW_SHARE, SLOW_MS = 0.03, 12_000.0
"""Some calls take longer than their messages stay hidden, unless they are hidden anew."""
TOLD_MS = 40_000.0
"""Brokers carry out what a member told them by then, though it gave up waiting."""
MARGIN_MS = 2_000.0
AGAIN_S = 1.0
_SUCCESS, _LATER = (
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    ConsumeConcurrentlyStatus.RECONSUME_LATER,
)


def queue_of(name: str) -> str:
    """Return the topic that a lite topic is in the history."""
    return lite_queue_name(LITE_PARENT, name)


def model_of(broker: SimBroker) -> LiteTopicBroker:
    """Return the broker that runs, which has lite topics here."""
    assert isinstance(broker.broker, LiteTopicBroker)
    return broker.broker


class SimLiteProducer(SimProducer):
    """A process that sends each message to one of a few lite topics."""

    def _message(self, level: int = 0) -> Message:
        full = super()._message(level)
        return Message(
            LITE_PARENT, full.body, tags=full.tags, keys=full.keys,
            properties={name: full.properties[name] for name in ("shop", "number")},
            lite_topic=self._chance.choice(NAMES),
        )  # fmt: skip

    def _sending(
        self, recorder: Recorder, message: Message, due_ms: float, tries_max: int | None = None
    ) -> Sending:
        topic = queue_of(message.lite_topic or "")
        return recorder.sending(message.keys or "", topic, message=message)

    async def _finish(
        self,
        sending: Sending,
        producer: aio.Producer,
        message: Message,
        shard: str | None,
        *,
        has_place: bool,
    ) -> None:
        await super()._finish(sending, producer, message, shard, has_place=False)


class SimLiteTopicsGroup(SimGroup):
    """Members that subscribe lite topics and give them up again; in the end each has all."""

    sends_back = False
    at_broker = False

    def _declare(self) -> None:
        topics = frozenset(map(queue_of, NAMES))
        self.declared = dataclasses.replace(self.declared, topics=topics)
        super()._declare()

    def _held(self, consumer: Any) -> list[MessageQueue]:
        return []

    async def _main(self, node: Node) -> None:
        chance = self.world.random(f"lite topics of {node.name} {node.incarnation}")
        recorder = Recorder(lambda: self.world.now_ms, node.record)
        while True:
            consumer = self._made(node, recorder, chance)
            node.record(MemberJoined(self.world.now_ms, self.manners.group, node.name))
            self._tell(node, consumer.lite_topics)
            await consumer.start()
            for _ in range(chance.randint(1, 8)):
                await wait(self.world, chance.random() * chance.choice((0.5, 5.0)))
                await self._change(node, consumer, chance)
            if self.world.healed:
                await self._have_all(node, consumer)
                return
            await consumer.shutdown(1_000)
            node.record(MemberLeft(self.world.now_ms, self.manners.group, node.name))

    def _made(self, node: Node, recorder: Recorder, chance: random.Random) -> aio.LitePushConsumer:
        listener = _LiteListener(self, node, recorder, chance)
        return aio.LitePushConsumer(
            self.manners.group,
            LITE_PARENT,
            listener=listener.consume,
            lite_topics=chance.sample(NAMES, chance.randint(0, len(NAMES))),
            **node.client(
                invisible_ms=INVISIBLE_MS,
                suspend_ms=chance.choice((20, 1_000)),
                poll_ms=chance.choice((1_000, 15_000)),
                consume_thread_max=chance.choice((1, 4)),
                consume_message_batch_max_size=self.world.options.consume_batch,
                max_cache_message_count=chance.choice((32, 64)),
                pull_batch_size=self.world.options.pull_batch,
            ),
        )

    def _tell(self, node: Node, names: Sequence[str] | frozenset[str]) -> None:
        """Note that brokers may take the group back in these: where it is is not known here."""
        now = self.world.now_ms
        for broker in self.world.cluster.brokers:
            for name in sorted(names):
                queue = MessageQueue(queue_of(name), broker.name, LITE_QUEUE_ID)
                node.record(OffsetReset(now, self.manners.group, queue, 0, now + TOLD_MS))

    async def _change(
        self, node: Node, consumer: aio.LitePushConsumer, chance: random.Random
    ) -> None:
        if self.world.healed:
            return
        names = chance.sample(NAMES, chance.randint(1, 3))
        node.record(MemberJoined(self.world.now_ms, self.manners.group, node.name))
        before = consumer.lite_topics
        try:
            if chance.random() < 0.4:
                await consumer.unsubscribe_lite(names)
                expected = before - {*names}
            else:
                self._tell(node, names)
                await consumer.subscribe_lite(names, self._option(chance))
                expected = before | {*names}
        except RocketMQError:
            return
        if consumer.lite_topics != expected:
            text = f"{node.name} has {sorted(consumer.lite_topics)}, and asked for {expected}"
            self.world.fail(text)

    @staticmethod
    def _option(chance: random.Random) -> OffsetOption | None:
        """Return where to go on: where it was, or further back."""
        back = OffsetOption.MIN_OFFSET, OffsetOption.of_offset(0)
        return chance.choice((None, None, None, None, *back))

    async def _have_all(self, node: Node, consumer: aio.LitePushConsumer) -> None:
        while True:
            node.record(MemberJoined(self.world.now_ms, self.manners.group, node.name))
            self._tell(node, NAMES)
            try:
                await consumer.subscribe_lite(NAMES)
            except RocketMQError:
                await asyncio.sleep(AGAIN_S)
            else:
                return

    # --- the verdict ------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Return the lite topics in which the group has not acknowledged all."""
        found = []
        for broker in self.world.cluster.brokers:
            model = model_of(broker)
            model.read_on()
            for queue, messages in sorted(model.messages.items()):
                at = model.offsets.get((self.manners.group, queue), 0)
                if at != len(messages):
                    found.append(f"{at} of {len(messages)} are acknowledged in {queue}")
        return found

    def company(self) -> Iterator[Anomaly]:
        """Yield the calls that began while another one was at their lite topic, without a cause."""
        stories = sort(self.world.history)
        for story in stories.groups[self.manners.group].queues.values():
            running: Delivery | None = None
            for delivery in story.deliveries:
                if running is not None and delivery.event.at < running.end:
                    first, second = running.event, delivery.event
                    same = (first.member, first.call) == (second.member, second.call)
                    alone = first.member == second.member  # it knows what it does itself
                    begin = first.at - INVISIBLE_MS - MARGIN_MS
                    told = any(reset.may_act_in(begin, second.at) for reset in story.resets)
                    excused = told or self._disturbed(stories, begin, second.at)
                    if not same and (alone or not excused):
                        text = f"{second.key} began while {first.member} was at {first.key}"
                        yield Anomaly(AnomalyKind.OWNED_TWICE, text, (first, second))
                if running is None or delivery.end > running.end:
                    running = delivery

    def _disturbed(self, stories: Stories, begin: float, end: float) -> bool:
        changes = stories.groups[self.manners.group].changes
        return stories.is_disturbed(begin, end) or changes.any_between(begin, end)


class _LiteListener:
    """Records its messages under their lite topic, works for a moment and fails some."""

    def __init__(
        self, group: SimLiteTopicsGroup, node: Node, recorder: Recorder, chance: random.Random
    ) -> None:
        self._group, self._node, self._recorder = group, node, recorder
        self._chance = chance

    async def consume(self, messages: list[MessageExt], context: LiteTopicContext) -> Any:
        """Consume messages of one lite topic."""
        group, chance = self._group, self._chance
        seen = [self._seen(message, context) for message in messages]
        with self._recorder.listening(group.manners.group, self._node.name, seen) as returned:
            slow = chance.random() < SLOW_SHARE
            await asyncio.sleep((SLOW_MS if slow else chance.random() * 40.0) / 1000)
            success = not any(group.fails(message) for message in messages)
            returned(success)
            group.record(self._node.name, messages, success=success)
        if success:
            return _SUCCESS
        if chance.random() < 0.5:
            context.suspend_ms = chance.choice((0, 50, 3_000))
        return chance.choice((_LATER, None))

    def _seen(self, message: MessageExt, context: LiteTopicContext) -> MessageExt:
        """Return a message as the history has it: at its place in its lite topic."""
        if message.lite_topic != context.lite_topic or message.topic != LITE_PARENT:
            text = f"{message!r} came as one of {context.lite_topic} to {self._node.name}"
            self._group.world.fail(text)
        return cast(MessageExt, SimpleNamespace(
            keys=message.keys, topic=queue_of(context.lite_topic),
            broker_name=message.broker_name, queue_id=LITE_QUEUE_ID, body=message.body,
            queue_offset=int(message.properties[PROPERTY_INNER_MULTI_QUEUE_OFFSET]),
            reconsume_times=0, properties=message.properties,
        ))  # fmt: skip

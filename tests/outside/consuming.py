"""The workers that consume: each writes down what it was given before it does anything with it."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    PushConsumer,
    RocketMQError,
    aio,
)
from tests.outside.history import AGAIN, DONE, LATER
from tests.outside.recording import Recorder, pause
from tests.outside.wares import IDENT, OURS, chance_of, digest


class RefusedError(Exception):
    """Raised by a listener on purpose."""


@dataclass
class Task:
    """What a worker that consumes is to do, and where it says so."""

    recorder: Recorder
    namesrv_addr: str
    group: str
    topic: str
    name: str
    leaving: threading.Event
    tags: Sequence[str] = ()
    shades: Sequence[str] = ()
    max_reconsume_times: int = 2
    fails: bool = False

    def __post_init__(self) -> None:
        self._calls = itertools.count(1)

    @property
    def expression(self) -> str | MessageSelector:
        """The subscription."""
        if self.shades:
            return MessageSelector.by_sql(f"shade IN ({', '.join(map(repr, self.shades))})")
        return " || ".join(self.tags) or "*"

    def given(self, messages: Sequence[MessageExt], queue: MessageQueue | None = None) -> int:
        """Write down what came, and return the number of the call."""
        call = next(self._calls)
        told = [described(message, queue or message.message_queue) for message in messages]
        thread = threading.get_ident() % 1_000_003
        self.recorder.note("given", group=self.group, call=call, messages=told, thread=thread)
        return call

    def taken(self, call: int, verdict: str) -> None:
        """Write down how a call ends, just before it does."""
        self.recorder.note("taken", call=call, verdict=verdict)

    def settings(self) -> dict[str, Any]:
        """The settings all consumers here have."""
        return {
            "namesrv_addr": self.namesrv_addr,
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
            "instance_name": self.name,
            "poll_name_server_interval_ms": 5_000,
            "heartbeat_broker_interval_ms": 5_000,
            "rebalance_interval_ms": 5_000,
        }

    def is_refused(self, message: MessageExt) -> bool:
        """Tell whether a message fails: some the first time, few always."""
        ident = message.properties.get(IDENT, "")
        chance = chance_of(ident, "refused")
        return self.fails and (chance < 0.02 or (chance < 0.08 and message.reconsume_times == 0))


def described(message: MessageExt, queue: MessageQueue) -> dict[str, Any]:
    """Tell all of a message that a producer set, and where it stands."""
    properties = message.properties
    return {
        "ident": properties.get(IDENT, f"? {message.msg_id}"),
        "topic": message.topic,
        "tags": message.tags or "",
        "keys": message.keys or "",
        "properties": {name: properties[name] for name in OURS if name in properties},
        "digest": digest(message.body),
        "place": [queue.topic, queue.queue_id, message.queue_offset],
        "tries": message.reconsume_times,
    }


def concurrently(task: Task, **settings: Any) -> None:
    """Consume with a push consumer, whose listener is slow now and then and fails now and then."""

    def listener(
        messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        call = task.given(messages, context.message_queue)
        pause(0.2 if random.random() < 0.01 else random.random() * 0.01)
        if any(task.is_refused(message) for message in messages):
            task.taken(call, LATER)
            if random.random() < 0.5:
                raise RefusedError("on purpose")
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        task.taken(call, DONE)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        task.group, max_reconsume_times=task.max_reconsume_times, **task.settings(), **settings
    )
    consumer.subscribe(task.topic, task.expression)
    consumer.register_message_listener(listener)
    with consumer:
        task.recorder.note("ready")
        task.recorder.wait(task.leaving)
        task.recorder.note("stopping")


def in_batches(task: Task) -> None:
    """As ``concurrently``, four messages a call."""
    concurrently(task, consume_message_batch_max_size=4)


def broadcast(task: Task) -> None:
    """Get every message; what fails counts as finished here, so nothing does."""
    concurrently(task, message_model=MessageModel.BROADCASTING)


def orderly(task: Task) -> None:
    """Consume queue by queue, in order; now and then a call wants its queue to wait."""

    def listener(
        messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        call = task.given(messages, context.message_queue)
        pause(0.2 if random.random() < 0.01 else random.random() * 0.01)
        if task.fails and random.random() < 0.02:
            task.taken(call, AGAIN)
            context.suspend_current_queue_time_ms = 100
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        task.taken(call, DONE)
        return ConsumeOrderlyStatus.SUCCESS

    consumer = PushConsumer(
        task.group, consume_message_batch_max_size=random.choice((1, 3)), **task.settings()
    )
    consumer.subscribe(task.topic, task.expression)
    consumer.register_message_listener(listener, orderly=True)
    with consumer:
        task.recorder.note("ready")
        task.recorder.wait(task.leaving)
        task.recorder.note("stopping")


def lite(task: Task) -> None:
    """Poll, and count as finished what the next poll finishes; now and then commit by hand."""
    settings = {**task.settings(), "auto_commit_interval_ms": 1_000}
    with LitePullConsumer(task.group, subscription={task.topic: task.expression}, **settings) as it:
        task.recorder.note("ready")
        call = 0
        while not task.leaving.is_set():
            messages = it.poll(timeout_ms=300)
            call = task.given(messages) if messages else 0
            pause(random.random() * 0.02)
            if call:
                task.taken(call, DONE)
            if call and random.random() < 0.05:
                try:
                    it.commit_sync()
                except RocketMQError as error:
                    task.recorder.note("remark", text=str(error)[:200])
        task.recorder.note("stopping")


async def _awaited(task: Task) -> None:
    async def listener(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        call = task.given(messages, context.message_queue)
        await asyncio.sleep(random.random() * 0.02)
        if any(task.is_refused(message) for message in messages):
            task.taken(call, LATER)
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        task.taken(call, DONE)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = aio.PushConsumer(
        task.group, max_reconsume_times=task.max_reconsume_times, **task.settings()
    )
    await consumer.subscribe(task.topic, task.expression)
    consumer.register_message_listener(listener)
    async with consumer:
        task.recorder.note("ready")
        await asyncio.to_thread(task.recorder.wait, task.leaving)
        task.recorder.note("stopping")


def awaited(task: Task) -> None:
    """Consume with a coroutine."""
    asyncio.run(_awaited(task))


ROLES: dict[str, Callable[[Task], None]] = {
    "push": concurrently,
    "push-batches": in_batches,
    "broadcast": broadcast,
    "orderly": orderly,
    "lite": lite,
    "push-awaited": awaited,
}

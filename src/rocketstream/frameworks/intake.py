"""Messages that a framework takes and settles later: a push consumer whose listener waits for it.

Law: runs on one event loop, and knows no framework.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from rocketstream import limits
from rocketstream.checks import check_range, is_number
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from rocketstream.client.consumer.push.consumer import AsyncPushConsumer
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageModel,
    MessageSelector,
)
from rocketstream.protocol.message_ext import MessageExt

logger: logging.Logger = logging.getLogger("rocketstream.frameworks")

UNACKED_MAX = 1_000
"""Most messages in a framework's hands at once: as many as listener calls there may be."""
UNACKED_LIMIT_S = 15 * 60.0
"""How long a framework may keep a message: the push consumer's own default."""

_DONE, _BY_COUNT, _SOON, _DEAD, _UNTOUCHED = None, 0, 1, -1, -2
_NEVER_MINUTES = 60.0 * 24 * 365
"""The consumer's own limit counts from another moment: only ours decides."""
_SETTLING_MS = 500
"""How long an end waits for the answers it gave itself."""
_OURS = {
    "consume_message_batch_max_size": "messages are handed out and settled one by one",
    "message_model": "a broadcasting group gets no message a second time",
}
"""Settings of the push consumer that would lose messages here, and why."""


def check_unacked(most: tuple[str, Any], limit_s: tuple[str, Any]) -> None:
    """Check a framework's bounds on messages it has not settled.

    Args:
        most: how many there may be, after what the framework calls it.
        limit_s: seconds until one comes again, after what the framework calls it.

    Raises:
        ConfigurationError: a value out of its range.
    """
    name, number = most
    check_range(name, number, 1, UNACKED_MAX)
    name, seconds = limit_s
    if not is_number(seconds) or seconds <= 0:
        raise ConfigurationError(f"{name} must be a number of seconds above 0, not {seconds!r}")


def place_of(message: MessageExt) -> str:
    """Return which message it is, for a log."""
    return (
        f"message {message.msg_id} of topic {message.topic} (broker {message.broker_name}, queue "
        f"{message.queue_id}, offset {message.queue_offset})"
    )


class Delivery:
    """A message for a framework; the first answer counts, later ones change nothing.

    Use it on the loop of its intake.

    Attributes:
        message: the message.
        begun: done when the framework has it: its time runs from then on.
        answer: done when it is settled, with the delay level to come again at, None for done.
    """

    __slots__ = ("_context", "answer", "begun", "message")

    def __init__(self, message: MessageExt, context: ConsumeConcurrentlyContext | None) -> None:
        loop = asyncio.get_running_loop()
        self.message: MessageExt = message
        self.begun: asyncio.Future[None] = loop.create_future()
        self.answer: asyncio.Future[int | None] = loop.create_future()
        self._context = context

    @property
    def has_moved(self) -> bool:
        """Whether its queue goes to another member, which gets it: begun here, it would be done
        twice. From any thread."""
        return self._context is not None and self._context._is_leaving

    def begin(self) -> bool:
        """The framework takes it now; return False if it is another member's by now."""
        if self.has_moved:
            self.leave()
        if self.begun.done():
            return False
        self.begun.set_result(None)
        return True

    def leave(self) -> None:
        """Leave it where it is, if it has not begun: whoever has its queue next gets it.

        Frameworks begin the messages of a queue in its order, so nothing behind it is done.
        """
        if not self.begun.done():
            self.begun.set_result(None)
            self._settle(_UNTOUCHED)

    def done(self) -> None:
        """It is consumed."""
        self._settle(_DONE)

    def soon(self) -> None:
        """Let the message come again in a second (the first delay level), to any member of the
        group."""
        self._settle(_SOON)

    def later(self, delay_level: int = 0) -> None:
        """Let the message come again after a delay level; 0: one that grows with the number of
        tries.

        Raises:
            ConfigurationError: it is not a whole number from 0 on.
        """
        check_range("delay_level", delay_level, 0)
        self._settle(delay_level)

    def dead(self) -> None:
        """It goes to the dead letters of the group."""
        self._settle(_DEAD)

    def _settle(self, level: int | None) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
        if not self.answer.done():
            self.answer.set_result(level)


class Intake:
    """Consumes a topic as a member of a group; a message counts as consumed once it is settled.

    A message not settled within the limit comes again later, at growing distances, and after
    ``max_reconsume_times`` tries goes to ``%DLQ%<group>``.

    In order, a queue's next message waits until the one before it is done or dead: a message that
    must come again stays at the head of its queue, and no limit ends a wait.

    Args:
        group: consumer group.
        topic: what to consume, from its first message on where the group has no offset.
        config: settings of the client.
        take: called on the loop with each delivery; must not block.
        unacked_max: most deliveries at once; ``check_unacked`` looks at it and at the next.
        unacked_limit_s: seconds between a delivery's ``begin`` and its answer.
        settings: of the push consumer, by name.
        expression: which messages: tags joined by ``||``, or a selector.
        orderly: hand a queue's messages out in order, one at a time.

    Raises:
        ConfigurationError: a setting that cannot be used.
    """

    def __init__(
        self,
        group: str,
        topic: str,
        config: ClientConfig,
        take: Callable[[Delivery], object],
        *,
        unacked_max: int,
        unacked_limit_s: float,
        settings: Mapping[str, Any] | None = None,
        expression: str | MessageSelector = "*",
        orderly: bool = False,
    ) -> None:
        for name, why in _OURS.items():
            if settings and settings.get(name) not in (None, 1, MessageModel.CLUSTERING):
                raise ConfigurationError(f"{name} cannot be {settings[name]!r} here: {why}")
        self._take = take
        self._limit_s = unacked_limit_s
        self._open: set[Delivery] = set()
        self._closing = False
        chosen: dict[str, Any] = {
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
            "consume_thread_min": 1,
            "consume_thread_max": unacked_max,
            "consume_message_batch_max_size": 1,
            "consume_timeout_minutes": _NEVER_MINUTES,
            **(settings or {}),
        }
        self._consumer = AsyncPushConsumer(
            group, config=config, subscription={topic: expression}, **chosen
        )
        if orderly:
            self._consumer.register_message_listener(self._hand_over_in_order, orderly=True)
        else:
            self._consumer.register_message_listener(self._hand_over)

    async def start(self) -> None:
        """Join the group.

        Raises:
            ConnectError: no name server answered.
            ConfigurationError: no name server address.
        """
        await self._consumer.start()

    def pause(self) -> None:
        """Take no more messages in; those taken in can still be settled."""
        self._consumer.suspend()

    def resume(self) -> None:
        """Take messages in again."""
        self._consumer.resume()

    def drain(self) -> None:
        """Hand nothing more out; messages handed out can still be settled."""
        self._closing = True
        self._consumer.suspend()

    async def close(self) -> None:
        """Leave the group. Messages not settled come again, to any member of the group.

        Those begun are sent back and come in a second: messages settled behind them would come
        again as well if they were merely left. The others are left where they are, and not counted
        as tried.
        """
        self._closing = True
        for delivery in tuple(self._open):
            delivery.leave()
            delivery.soon()
        await self._consumer.shutdown(_SETTLING_MS)

    async def _hand_over(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        """Be the listener: return once the message is settled, or its time is up."""
        level: int | None = _UNTOUCHED
        if not self._closing:
            level = await self._settled(Delivery(messages[0], context), self._limit_s)
        if level is None:
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        if level == _UNTOUCHED:
            context._untouched = True
        else:
            context.delay_level_when_next_consume = level
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    async def _hand_over_in_order(
        self, messages: list[MessageExt], _: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Be the listener of queues kept in order: their next message waits for this return."""
        delivery = Delivery(messages[0], None)
        if self._closing:
            await delivery.answer  # until it is cancelled: the queue's next owner gets the message
        level = await self._settled(delivery, None)
        if level == _DEAD:
            try:
                await self._consumer.send_message_back(messages[0], _DEAD)
                level = _DONE
            except RocketMQError as error:
                logger.warning("message %s is not a dead letter yet: %s", messages[0].msg_id, error)
        if level is None:
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    async def _settled(self, delivery: Delivery, limit_s: float | None) -> int | None:
        """Hand a message out; return how it was settled, or by count when its time is up."""
        self._open.add(delivery)
        try:
            self._take(delivery)
            await delivery.begun
            if await _within(delivery.answer, limit_s):
                return delivery.answer.result()
            delivery.answer.cancel()
            logger.warning(
                "message %s of %s was not acknowledged within %g s and comes again",
                delivery.message.msg_id,
                delivery.message.topic,
                limit_s,
            )
            return _BY_COUNT
        finally:
            self._open.discard(delivery)


async def _within(answer: asyncio.Future[int | None], limit_s: float | None) -> bool:
    """Wait for an answer; return whether it came in time, which begins anew after a standstill."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        await asyncio.wait([answer], timeout=limit_s)
        if answer.done() or limit_s is None:
            return True
        if loop.time() - began_s <= limit_s + limits.STANDSTILL_MS / 1_000:
            return False

"""Failed messages: sent back to the broker, else sent anew, else consumed again here later.

Law: the copy is stored before the original counts as done, so a crash duplicates and never loses
(C-264, C-266, C-270, C-271).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rocketstream.client.consumer.consume.failure_cause import (
    TIME_OUT,
    TOO_LONG,
    has_cause,
    tell_cause,
)
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.client.consumer.retry import (
    EXPIRED_DELAY_LEVEL,
    RetryMessage,
    dead_letter_message,
    fallback_message,
)
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.async_sender import plain_sender
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import RocketMQError, SendError, SendOutcome
from rocketstream.model import SendResult
from rocketstream.protocol.codes import MessageSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import CLIENT_INNER_PRODUCER_GROUP, dlq_topic
from rocketstream.protocol.namespace import wrap_namespace
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.sends import PreparedSend

logger: logging.Logger = logging.getLogger("rocketstream.client")

T = TypeVar("T")

SEND_BACK_TIMEOUT_MS = 5_000
FALLBACK_TIMEOUT_MS = 3_000
NO_CAUSE_MS = 60_000
"""How long failed messages are sent back without their cause after one that may be there twice."""

_KEPT_SYS_FLAGS = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK
_SEND_BACK = ("sending back failed messages of group",)
_SEND_ANEW = ("sending anew what could not be sent back, kept here meanwhile, of group",)


class SendBack:
    """Gives single messages of one consumer back; works on the loop.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        max_times: retries after which a message is dead (C-401).
        unit_mode: whether the client belongs to a unit; the broker marks the retry topic so (C-11).
        tells_cause: a message that says why it failed is sent anew: a send-back has the broker copy
            what it stores.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        max_times: int,
        *,
        unit_mode: bool,
        tells_cause: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._max_times = max_times
        self._unit_mode = unit_mode
        self._namespace = instance.config.effective_namespace()
        self._tells_cause = tells_cause
        self._no_cause_until_ms = 0.0
        self._settings = ProducerSettings(CLIENT_INNER_PRODUCER_GROUP)
        self._sender = plain_sender(instance, self._settings)
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin to give a message back, to the end though nobody waits: ``drain`` does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait for all that was begun; bounded by the timeouts of three requests."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def give_back(
        self,
        message: MessageExt,
        level: int,
        *,
        broker_name: str | None = None,
        group: str | None = None,
    ) -> None:
        """Have a message consumed again later; it is stored once this returns (C-270, C-271).

        Args:
            message: the message.
            level: delay level; 0 leaves it to the broker, -1 gives the message up.
            broker_name: who stores it; None: who it came from.
            group: whose retry topic it goes to; None: this group's.

        Raises:
            SendError: neither the send-back nor its replacement could be stored.
        """
        group = group or self._group
        try:
            topic = wrap_namespace(self._namespace, message.topic)
            if not (
                self._tells_cause
                and has_cause(message)
                and await self._sent_with_cause(message, level, topic, group)
            ):
                await self._sent_back(message, level, topic, group, broker_name)
        except SendError:
            raise
        except Exception as error:
            # A listener may have written anything into its message; whoever waits for the end of
            # this one, the shutdown among them, must still be told.
            text = f"{message!r} cannot be sent back, its contents are not valid: {error!r}"
            logger.warning("%s", text)
            raise SendError(text, SendOutcome.NOT_SENT) from error
        if self._instance.outages:
            self._instance.outages.worked(*_SEND_ANEW, group)
        if level < 0 or message.reconsume_times >= self._max_times:
            _log_dead_letter(message, group)  # the broker puts it there (C-401)

    async def give_up(self, message: MessageExt, max_times: int) -> bool:
        """Send a message an orderly listener failed too often to the dead-letter topic (C-289).

        Returns:
            Whether it is stored there; if not, it has to be consumed again.
        """
        return await asyncio.shield(self.begin(self._given_up(message, max_times)))

    async def _given_up(self, message: MessageExt, max_times: int) -> bool:
        try:
            retry = dead_letter_message(
                self._group,
                wrap_namespace(self._namespace, message.topic),
                message.properties,
                origin_message_id=message.msg_id,
                reconsume_times=message.reconsume_times,
                max_times=max_times,
            )
            await self._send(message, retry)
        except Exception as bad:  # a send that failed, or properties a listener spoilt
            logger.warning(
                "%s could not be sent to the dead-letter topic of %s, it is consumed again: %s",
                message.msg_id, self._group, bad,
            )  # fmt: skip
            return False
        _log_dead_letter(message, self._group)
        return True

    # --- the ways back ----------------------------------------------------------------------------

    async def _sent_with_cause(
        self, message: MessageExt, level: int, topic: str, group: str
    ) -> bool:
        """Send a message anew that says why it failed; return whether it is stored."""
        now_ms = self._instance.clock.monotonic_ms
        if now_ms() < self._no_cause_until_ms:
            return False
        try:
            await self._send_anew(message, level, topic, group)
        except Exception as bad:
            logger.info("%s is sent back without the cause of its failure: %s", message.msg_id, bad)
            if isinstance(bad, SendError) and bad.outcome is SendOutcome.UNKNOWN:
                # Each failure would leave two copies, which fail again: after 16 tries there were
                # 65,536.
                self._no_cause_until_ms = now_ms() + NO_CAUSE_MS
            return False
        return True

    async def _sent_back(
        self, message: MessageExt, level: int, topic: str, group: str, broker_name: str | None
    ) -> None:
        """Have the broker copy a message; where it does not, send it anew."""
        outages = self._instance.outages
        header = ConsumerSendMsgBackRequestHeader(
            message.commit_log_offset,
            group,
            level,
            message.msg_id,
            topic,
            self._unit_mode,
            self._max_times,
            broker_name or message.broker_name,
        )
        try:
            api = self._instance.api
            address = api.channel(self._stored_at(message, broker_name))
            connection = self._instance.remoting.connected(address)
            if connection is None:
                connection = await self._instance.remoting.connection(address)
            command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            # Awaited at once, not by three coroutines: a failing listener fails all its messages.
            answer = await connection.request_future(command, SEND_BACK_TIMEOUT_MS)
            api.successful(address, answer, command.code)
        except RocketMQError as refused:
            outages.failed((*_SEND_BACK, group), refused)
        else:
            if outages:
                outages.worked(*_SEND_BACK, group)
            return
        try:
            await self._send_anew(message, level, topic, group)
        except SendError as error:
            outages.failed((*_SEND_ANEW, group), error)
            raise

    def _stored_at(self, message: MessageExt, broker_name: str | None) -> str:
        """Return the address of the broker that stored a message: only it can find it (C-400).

        Raises:
            RouteNotFoundError: that broker has left the routes.
        """
        name = broker_name or message.broker_name
        return self._instance.routes.known_master(name) if name else message.store_host

    async def _send_anew(self, message: MessageExt, level: int, topic: str, group: str) -> None:
        """Send the message that replaces a send-back (C-271)."""
        retry = fallback_message(
            group,
            topic,
            message.properties,
            origin_message_id=message.offset_msg_id,
            reconsume_times=message.reconsume_times,
            delay_level=level,
            max_times=self._max_times,
        )
        await self._send(message, retry)

    async def _send(self, message: MessageExt, retry: RetryMessage) -> None:
        """Send a copy with the body as the broker stores it; return when it is stored.

        Raises:
            SendError: it is not, or nobody knows.
        """
        copy = PreparedSend(
            self._settings.requests(),
            retry.topic,
            message.stored_body,
            encode_properties(retry.properties),
            message.msg_id,
            message.born_timestamp,
            message.flag,
            message.sys_flag & _KEPT_SYS_FLAGS,
            reconsume_times=retry.reconsume_times,
            max_reconsume_times=retry.max_reconsume_times,
        )
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sent(_result: SendResult | None, error: SendError | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        self._sender.send_copy(copy, FALLBACK_TIMEOUT_MS, sent)
        await stored


def _log_dead_letter(message: MessageExt, group: str) -> None:
    """Say that a message was given up: nobody consumes the dead-letter topic by itself."""
    logger.warning(
        "message %s of topic %s is given up by group %s after %d tries: it is in the "
        "dead-letter topic %s now",
        message.msg_id, message.topic, group, message.reconsume_times + 1, dlq_topic(group),
    )  # fmt: skip


# --- what a listener failed -----------------------------------------------------------------------


class FailedMessages:
    """Has what a clustering consumer's listener failed consumed again; fed from any thread.

    Args:
        send_back: gives single messages back.
        local_retry_delay_ms: pause before what could not be given back is consumed again here.
        tells_cause: whether messages are to say why they failed.
    """

    def __init__(
        self, send_back: SendBack, local_retry_delay_ms: float, *, tells_cause: bool
    ) -> None:
        self._send_back = send_back
        self._delay_s = local_retry_delay_ms / 1000
        self._tells_cause = tells_cause
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[AssignedQueue, Sequence[MessageExt], int]] = deque()
        self._inbox_due = False
        self._later: dict[AssignedQueue, deque[tuple[float, MessageExt]]] = {}
        """Messages that are consumed again here, each with the loop's time at which it is due."""
        self._timers: set[asyncio.TimerHandle] = set()
        self._here: set[int] = set()
        """Identities of messages no listener has: on their way back, or to be consumed again."""
        self._closed = False

    def submit(self, queue: AssignedQueue, messages: Sequence[MessageExt], level: int) -> None:
        """Send messages back with a delay level; from any thread."""
        queue.begin(len(messages))
        self._inbox.append((queue, messages, level))
        if not self._inbox_due:
            self._inbox_due = True
            # A listener that outlived the shutdown finds the loop closed; nothing counts any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._empty_inbox)

    async def expire(self, queue: AssignedQueue, message: MessageExt) -> bool:
        """Send back a message whose listener takes too long (C-248); return whether it worked.

        If not, it stays with that listener: another call beside it would help nobody. A message
        that is on its way back, or waits here, is left: it would count a try it has not had.
        """
        if id(message) in self._here:
            return False
        if self._tells_cause:
            tell_cause([message], TIME_OUT, TOO_LONG, None)
        queue.begin()
        work = self._return(queue, message, EXPIRED_DELAY_LEVEL, is_expired=True)
        return await asyncio.shield(self._send_back.begin(work))

    async def drain(self) -> None:
        """Wait until everything submitted is answered, then take no more local retries."""
        self._empty_inbox()
        await self._send_back.drain()
        self._closed = True
        for timer in self._timers:
            timer.cancel()

    def _empty_inbox(self) -> None:
        self._inbox_due = False
        while self._inbox:
            queue, messages, level = self._inbox.popleft()
            with queue.lock:
                # A message sent back as expired meanwhile is not sent back again (C-251).
                held = [m for m in messages if m in queue.process_queue and not queue.dropped]
            if len(held) < len(messages):
                queue.end(len(messages) - len(held))
            self._here.update(map(id, held))
            for message in held:
                self._send_back.begin(self._return(queue, message, level))

    async def _return(
        self, queue: AssignedQueue, message: MessageExt, level: int, *, is_expired: bool = False
    ) -> bool:
        """Give a message back; it counts as done only once a copy is stored."""
        try:
            await self._send_back.give_back(message, level)
        except SendError:
            if not (is_expired or self._closed or queue.dropped):
                message._reconsume_times += 1
                self._consume_later(queue, message)
            elif not is_expired:
                self._here.discard(id(message))
            return False
        else:
            queue.finish(message)
            self._here.discard(id(message))
            return True
        finally:
            queue.end()

    def _consume_later(self, queue: AssignedQueue, message: MessageExt) -> None:
        due_s = self._loop.time() + self._delay_s
        waiting = self._later.setdefault(queue, deque())
        waiting.append((due_s, message))
        if len(waiting) == 1:
            self._look_at(queue, due_s)

    def _look_at(self, queue: AssignedQueue, due_s: float) -> None:
        """Have what is due of a queue at a time consumed again then, and the others later."""

        def due() -> None:
            self._timers.discard(timer)
            waiting, messages = self._later[queue], []
            till_s = math.inf if queue.dropped else max(due_s, self._loop.time())
            while waiting and waiting[0][0] <= till_s:
                messages.append(waiting.popleft()[1])
            self._here.difference_update(map(id, messages))
            if waiting:
                self._look_at(queue, waiting[0][0])
            else:
                del self._later[queue]
            if not queue.dropped:
                queue.consume(messages)

        timer = self._loop.call_at(due_s, due)
        self._timers.add(timer)


class DroppedMessages:
    """Counts what a broadcasting consumer's listener failed as done: each member has its own copy.

    (C-263.)
    """

    async def drain(self) -> None:
        """Wait for nothing."""

    def submit(self, queue: AssignedQueue, messages: Sequence[MessageExt], level: int) -> None:
        """Log each message and count it as done; from any thread."""
        for message in messages:
            logger.warning(
                "BROADCASTING, the message consume failed, drop it, topic=%s broker=%s queue=%d "
                "offset=%d msgId=%s",
                message.topic, message.broker_name, message.queue_id, message.queue_offset,
                message.msg_id,
            )  # fmt: skip
        queue.finished.extend(messages)
        queue.flush()

    async def expire(self, queue: AssignedQueue, message: MessageExt) -> bool:
        """Leave a message to its listener, however long that takes (C-249, C-585)."""
        return False

"""Failed messages: sent back to the broker, else sent anew, else consumed again here later.

Law: the copy is stored before the original counts as done, so a crash duplicates and never loses
(C-264, C-266, C-270, C-271).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from rocketstream.client.consumer.blame import TIME_OUT, TOO_LONG, has_cause, tell_cause
from rocketstream.client.consumer.consume.runs import OffsetUpdater, PullRequest
from rocketstream.client.consumer.send_back_form import (
    FALLBACK_TIMEOUT_MS,
    SendBackForm,
    stored_at,
)
from rocketstream.client.core.orderly import orderly_max_reconsume_times
from rocketstream.client.core.queue_rotation import ANY_QUEUE
from rocketstream.client.core.retry import (
    EXPIRED_DELAY_LEVEL,
    max_reconsume_times,
)
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.instance.api import SEND_BACK_TIMEOUT_MS
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.errors import (
    RocketMQError,
    SendError,
    SendOutcome,
    broker_error,
)
from rocketstream.model import SendResult
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import dlq_topic

logger = logging.getLogger("rocketstream.client")

_SEND_BACK = ("sending back failed messages of group",)
_SEND_ANEW = ("sending anew what could not be sent back, kept here meanwhile, of group",)

Resubmit = Callable[[PullRequest, list[MessageExt]], None]
OnReturned = Callable[[bool, SendError | None], None]
"""Told whether a copy is stored, and if not, why."""


class SendBack:
    """Sends failed messages of one consumer back; works on the loop, fed from any thread."""

    def __init__(
        self,
        instance: MQClientInstance,
        settings: PushConsumerSettings,
        offset_updater: OffsetUpdater,
        resubmit: Resubmit,
    ) -> None:
        self._instance = instance
        self._with_namespace = instance.config.with_namespace
        self.outages = instance.outages
        self.group = self._group = settings.consumer_group
        self._max_times = max_reconsume_times(settings.max_reconsume_times)
        self._orderly_max_times = orderly_max_reconsume_times(settings.max_reconsume_times)
        self.tells_cause = settings.send_back_cause
        self._local_delay_s = settings.local_retry_delay_ms / 1000
        self._offset_updater = offset_updater
        self._resubmit = resubmit
        self._loop = asyncio.get_running_loop()
        self._form = SendBackForm(unit_mode=instance.config.unit_mode, max_times=self._max_times)
        self._sender = AsyncSender(instance, self._form.inner)
        self._inbox: deque[tuple[PullRequest, Sequence[MessageExt], int]] = deque()
        self._inbox_due = False
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._later: dict[PullRequest, list[MessageExt]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._closed = False

    def submit(self, request: PullRequest, messages: Sequence[MessageExt], level: int) -> None:
        """Send messages back with a delay level; from any thread."""
        self._inbox.append((request, messages, level))
        if not self._inbox_due:
            self._inbox_due = True
            # A listener that outlived the shutdown finds the loop closed; nothing counts any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drain_inbox)

    async def expire(self, request: PullRequest, message: MessageExt) -> bool:
        """Send back a message whose listener takes too long (C-248); return whether it worked."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self._begin()

        def answered(stored: bool, _: SendError | None) -> None:
            self._finished(request, message, stored)
            if not done.done():
                done.set_result(stored)

        if self.tells_cause:
            tell_cause([message], TIME_OUT, TOO_LONG, None)
        Returning(self, message, EXPIRED_DELAY_LEVEL, answered).start()
        return await done

    async def send_message_back(
        self, message: MessageExt, level: int, broker_name: str | None = None
    ) -> None:
        """Send one message back because its listener asked so (C-273); the rest is unchanged.

        Raises:
            SendError: neither the send-back nor its replacement could be stored.
        """
        done: asyncio.Future[SendError | None] = self._loop.create_future()
        self._begin()

        def answered(stored: bool, error: SendError | None) -> None:
            self._ended()
            if not done.done():
                done.set_result(None if stored else error or _no_answer(message))

        Returning(self, message, level, answered, broker_name).start()
        error = await done
        if error is not None:
            raise error

    async def give_up(self, message: MessageExt) -> bool:
        """Send a message an orderly listener failed too often to the dead-letter topic (C-289).

        Returns:
            Whether it is stored there; if not, it has to be consumed again.
        """
        try:
            prepared = self.dead(message)
        except Exception as bad:  # properties that cannot be read, or that a listener spoilt
            logger.warning("%s cannot be sent to the dead-letter topic: %s", message.msg_id, bad)
            return False
        done: asyncio.Future[bool] = self._loop.create_future()
        self._begin()

        def sent(result: SendResult | None, error: SendError | None) -> None:
            self._ended()
            if error is not None:
                logger.warning(
                    "%s could not be sent to the dead-letter topic of %s, it is consumed again: %s",
                    message.msg_id, self._group, error,
                )  # fmt: skip
            else:
                self.log_dead_letter(message)
            if not done.done():
                done.set_result(result is not None)

        self._sender.send(prepared, ANY_QUEUE, FALLBACK_TIMEOUT_MS, sent)
        return await done

    def log_dead_letter(self, message: MessageExt) -> None:
        """Say that a message was given up: nobody consumes the dead-letter topic by itself."""
        logger.warning(
            "message %s of topic %s is given up by group %s after %d tries: it is in the "
            "dead-letter topic %s now",
            message.msg_id, message.topic, self._group, message.reconsume_times + 1,
            dlq_topic(self._group),
        )  # fmt: skip

    def is_last_try(self, message: MessageExt, level: int) -> bool:
        """Whether the broker puts what is sent back into the dead-letter topic (C-401)."""
        return level < 0 or message.reconsume_times >= self._max_times

    async def drain(self) -> None:
        """Wait until everything submitted is answered, then take no more local retries.

        Bounded by the timeouts of the two sends.
        """
        self._drain_inbox()
        await self._idle.wait()
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._later.clear()

    def _drain_inbox(self) -> None:
        self._inbox_due = False
        while self._inbox:
            request, messages, level = self._inbox.popleft()
            queue = request.process_queue
            with request.lock:
                # What was sent back as expired meanwhile is not sent back again (C-251).
                held = [m for m in messages if m in queue] if not queue.dropped else []
            for message in held:
                self._begin()
                Returning(self, message, level, self._finisher(request, message)).start()

    def _begin(self) -> None:
        self._pending += 1
        self._idle.clear()

    def _ended(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._idle.set()

    def _finisher(self, request: PullRequest, message: MessageExt) -> OnReturned:
        return lambda stored, _: self._finished(request, message, stored)

    def _finished(self, request: PullRequest, message: MessageExt, stored: bool) -> None:
        if stored:
            self._offset_updater.finish(request, deque((message,)))
        elif not self._closed and not request.process_queue.dropped:
            message.reconsume_times += 1
            self._consume_later(request, message)
        self._ended()

    def _consume_later(self, request: PullRequest, message: MessageExt) -> None:
        waiting = self._later.get(request)
        if waiting is not None:
            waiting.append(message)
            return
        self._later[request] = [message]

        def due() -> None:
            self._timers.discard(timer)
            messages = self._later.pop(request, [])
            if messages and not request.process_queue.dropped:
                self._resubmit(request, messages)

        timer = self._loop.call_later(self._local_delay_s, due)
        self._timers.add(timer)

    # --- one message ------------------------------------------------------------------------------

    def command(self, message: MessageExt, level: int, broker_name: str | None) -> RemotingCommand:
        """Return the request of a send-back (C-270)."""
        topic = self._with_namespace(message.topic)
        header = self._form.header(message, topic, self._group, level, broker_name)
        return RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    def address(self, message: MessageExt, broker_name: str | None) -> str:
        """Return where a send-back is sent to (C-400).

        Raises:
            RouteNotFoundError: the broker that stored the message has left the routes.
        """
        return self._instance.api.channel(stored_at(self._instance, message, broker_name))

    def anew(self, message: MessageExt, level: int) -> PreparedSend:
        """Return the message that replaces a send-back the broker refused (C-271)."""
        return self._form.anew(message, self._with_namespace(message.topic), self._group, level)

    def dead(self, message: MessageExt) -> PreparedSend:
        """Return what goes to the dead-letter topic in place of a message (C-289)."""
        topic = self._with_namespace(message.topic)
        return self._form.dead(message, topic, self._group, self._orderly_max_times)


def _no_answer(message: MessageExt) -> SendError:
    text = (
        f"{message.msg_id} could not be sent back: the client was shut down before an answer came"
    )
    return SendError(text, SendOutcome.UNKNOWN)


class Returning:
    """One message on its way back: the send-back, then its fallback; ``on_done`` is called once."""

    __slots__ = ("_broker_name", "_level", "_message", "_on_done", "_owner")

    def __init__(
        self,
        owner: SendBack,
        message: MessageExt,
        level: int,
        on_done: OnReturned,
        broker_name: str | None = None,
    ) -> None:
        self._owner = owner
        self._message = message
        self._level = level
        self._on_done = on_done
        self._broker_name = broker_name

    def start(self) -> None:
        """Send it; on the loop.

        A send-back has the broker copy what it stores: what is to tell its cause is sent anew.
        """
        if self._owner.tells_cause and has_cause(self._message):
            try:
                prepared = self._owner.anew(self._message, self._level)
            except Exception as bad:
                logger.info(
                    "%s is sent back without the cause of its failure: %r",
                    self._message.msg_id,
                    bad,
                )
            else:
                self._owner._sender.send(prepared, ANY_QUEUE, FALLBACK_TIMEOUT_MS, self._told)
                return
        self._send_back()

    def _told(self, result: SendResult | None, error: SendError | None) -> None:
        if result is not None:
            self._stored()
            return
        logger.info(
            "%s is sent back without the cause of its failure: %s", self._message.msg_id, error
        )
        self._send_back()

    def _send_back(self) -> None:
        remoting = self._owner._instance.remoting
        try:
            address = self._owner.address(self._message, self._broker_name)
            connection = remoting.connected(address)
            if connection is None:
                self._owner._instance.run_soon(self._connect(address), self._dropped)
                return
            connection.request_callback(self._command(), SEND_BACK_TIMEOUT_MS, self._answered)
        except RocketMQError as error:
            self._fall_back(error)
        except Exception as error:
            self._unusable(error)

    async def _connect(self, address: str) -> None:
        try:
            connection = await self._owner._instance.remoting.connection(address)
            connection.request_callback(self._command(), SEND_BACK_TIMEOUT_MS, self._answered)
        except RocketMQError as error:
            self._fall_back(error)
        except Exception as error:
            self._unusable(error)

    def _command(self) -> RemotingCommand:
        return self._owner.command(self._message, self._level, self._broker_name)

    def _answered(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        if answer is None:
            self._fall_back(error)
        elif answer.code != ResponseCode.SUCCESS:
            self._fall_back(broker_error(answer.code, answer.remark))
        else:
            owner = self._owner
            if owner.outages:
                owner.outages.worked(*_SEND_BACK, owner.group)
            self._stored()

    def _fall_back(self, error: Exception | None) -> None:
        owner = self._owner
        owner.outages.failed((*_SEND_BACK, owner.group), error or _no_answer(self._message))
        try:
            prepared = self._owner.anew(self._message, self._level)
        except Exception as bad:
            self._unusable(bad)
            return
        self._owner._sender.send(prepared, ANY_QUEUE, FALLBACK_TIMEOUT_MS, self._sent_anew)

    def _unusable(self, error: Exception) -> None:
        # A listener may have written anything into its message; whoever waits for the end of this
        # one, the shutdown among them, must still be told.
        text = f"{self._message!r} cannot be sent back, its contents are not valid: {error!r}"
        logger.warning("%s", text)
        self._on_done(False, SendError(text, SendOutcome.NOT_SENT))

    def _sent_anew(self, result: SendResult | None, error: SendError | None) -> None:
        if error is not None:
            self._owner.outages.failed((*_SEND_ANEW, self._owner.group), error)
        if result is not None:
            self._stored()
        else:
            self._on_done(False, error)

    def _stored(self) -> None:
        owner = self._owner
        if owner.outages:
            owner.outages.worked(*_SEND_ANEW, owner.group)
        if self._owner.is_last_try(self._message, self._level):
            self._owner.log_dead_letter(self._message)
        self._on_done(True, None)

    def _dropped(self) -> None:
        self._on_done(False, None)

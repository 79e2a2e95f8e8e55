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

from rocketstream.client.api import SEND_BACK_TIMEOUT_MS
from rocketstream.client.consumer.consume_run import ConsumeBook, PullRequest
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.retry import (
    EXPIRED_DELAY_LEVEL,
    fallback_message,
    max_reconsume_times,
)
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.instance import MQClientInstance
from rocketstream.client.producer.async_sender import ANY_QUEUE, AsyncSender
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.errors import RocketMQError, RouteNotFoundError, SendError, broker_error
from rocketstream.model import SendResult
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import CLIENT_INNER_PRODUCER_GROUP
from rocketstream.protocol.properties import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_RECONSUME_TIME,
    encode_properties,
)

logger = logging.getLogger("rocketstream.client")

FALLBACK_TIMEOUT_MS = 3_000
_KEPT_SYS_FLAGS = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK

Resubmit = Callable[[PullRequest, list[MessageExt]], None]


class SendBack:
    """Sends failed messages of one consumer back; works on the loop, fed from any thread."""

    def __init__(
        self,
        instance: MQClientInstance,
        settings: PushConsumerSettings,
        book: ConsumeBook,
        resubmit: Resubmit,
    ) -> None:
        self._instance = instance
        self._group = settings.consumer_group
        self._max_times = max_reconsume_times(settings.max_reconsume_times)
        self._local_delay_s = settings.local_retry_delay_ms / 1000
        self._book = book
        self._resubmit = resubmit
        self._loop = asyncio.get_running_loop()
        self._inner_settings = ProducerSettings(CLIENT_INNER_PRODUCER_GROUP)
        self._sender = AsyncSender(instance, self._inner_settings)
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
        """Send back a message whose listener takes too long (C-248); tell whether it worked."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self._begin()
        _Returning(self, request, message, EXPIRED_DELAY_LEVEL, done.set_result).start()
        return await done

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
                _Returning(self, request, message, level, None).start()

    def _begin(self) -> None:
        self._pending += 1
        self._idle.clear()

    def _finished(self, request: PullRequest, message: MessageExt, stored: bool) -> None:
        if stored:
            self._book.finish(request, deque((message,)))
        elif not self._closed and not request.process_queue.dropped:
            message.reconsume_times += 1
            self._consume_later(request, message)
        self._pending -= 1
        if not self._pending:
            self._idle.set()

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

    def header(self, message: MessageExt, level: int) -> ConsumerSendMsgBackRequestHeader:
        """Return the header of a send-back (C-270)."""
        return ConsumerSendMsgBackRequestHeader(
            message.commit_log_offset,
            self._group,
            level,
            message.msg_id,
            message.topic,
            False,
            self._max_times,
            message.broker_name,
        )

    def address(self, message: MessageExt) -> str:
        """Return the broker that stored the message: only it can find it again (C-400)."""
        address = self._instance.routes.master(message.broker_name)
        if address is None:
            raise RouteNotFoundError(f"The broker[{message.broker_name}] not exist")
        return self._instance.api.channel(address)

    def anew(self, message: MessageExt, level: int) -> PreparedSend:
        """Return the message that replaces a send-back the broker refused (C-271)."""
        retry = fallback_message(
            self._group,
            message.topic,
            message.properties,
            origin_message_id=message.offset_msg_id,
            reconsume_times=message.reconsume_times,
            delay_level=level,
            max_times=self._max_times,
        )
        prepared = PreparedSend(
            self._inner_settings,
            retry.topic,
            message.stored_body,
            encode_properties(retry.properties),
            message.msg_id,
            message.born_timestamp,
            message.flag,
            message.sys_flag & _KEPT_SYS_FLAGS,
        )
        prepared.reconsume_times = int(retry.properties[PROPERTY_RECONSUME_TIME])
        prepared.max_reconsume_times = int(retry.properties[PROPERTY_MAX_RECONSUME_TIMES])
        return prepared


class _Returning:
    """One message on its way back: the send-back, then its fallback."""

    __slots__ = ("_level", "_message", "_on_done", "_owner", "_request")

    def __init__(
        self,
        owner: SendBack,
        request: PullRequest,
        message: MessageExt,
        level: int,
        on_done: Callable[[bool], None] | None,
    ) -> None:
        self._owner = owner
        self._request = request
        self._message = message
        self._level = level
        self._on_done = on_done

    def start(self) -> None:
        remoting = self._owner._instance.remoting
        try:
            address = self._owner.address(self._message)
            connection = remoting.connected(address)
            if connection is None:
                self._owner._instance.run_soon(self._connect(address), self._dropped)
                return
            connection.request_callback(self._command(), SEND_BACK_TIMEOUT_MS, self._answered)
        except RocketMQError as error:
            self._fall_back(error)

    async def _connect(self, address: str) -> None:
        try:
            connection = await self._owner._instance.remoting.connection(address)
            connection.request_callback(self._command(), SEND_BACK_TIMEOUT_MS, self._answered)
        except RocketMQError as error:
            self._fall_back(error)

    def _command(self) -> RemotingCommand:
        header = self._owner.header(self._message, self._level)
        return RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    def _answered(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        if answer is None:
            self._fall_back(error)
        elif answer.code != ResponseCode.SUCCESS:
            self._fall_back(broker_error(answer.code, answer.remark))
        else:
            self._done(True)

    def _fall_back(self, error: Exception | None) -> None:
        logger.warning(
            "send-back of %s (%s) failed, sending it anew: %s",
            self._message.msg_id,
            self._message.message_queue,
            error,
        )
        try:
            prepared = self._owner.anew(self._message, self._level)
        except RocketMQError as bad:  # properties that cannot be read
            logger.warning("it cannot be sent anew either: %s", bad)
            self._done(False)
            return
        self._owner._sender.send(prepared, ANY_QUEUE, FALLBACK_TIMEOUT_MS, self._sent_anew)

    def _sent_anew(self, result: SendResult | None, error: SendError | None) -> None:
        if error is not None:
            logger.warning(
                "%s could not be sent anew either, it is consumed again here later: %s",
                self._message.msg_id,
                error,
            )
        self._done(result is not None)

    def _dropped(self) -> None:
        self._done(False)

    def _done(self, stored: bool) -> None:
        self._owner._finished(self._request, self._message, stored)
        if self._on_done is not None:
            self._on_done(stored)

"""Message trace: what producers and consumers did, sent to a topic of its own (C-541 to C-546).

Law: never waits for anything on the caller's thread and never fails it; what cannot be kept is
dropped and counted (upstream's AsyncTraceDispatcher).
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import CLOUD, ClientConfig
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.queue_rotation import ANY_QUEUE
from rocketstream.client.instance.engine import Engine, threaded_engine
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.sending import MessagePreparer
from rocketstream.errors import RocketMQError, SendError
from rocketstream.model import Message, SendResult
from rocketstream.protocol.names import TRACE_TOPIC
from rocketstream.protocol.trace import (
    CLOUD_TOPIC_PREFIX,
    TraceRecord,
    encode_record,
    record_keys,
)

logger = logging.getLogger("rocketstream.client")

PRODUCE = "PRODUCE"
CONSUME = "CONSUME"
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
INSTANCE_PREFIX = "PID_CLIENT_INNER_TRACE_PRODUCER"
SEND_TIMEOUT_MS = 5_000
FLUSH_AFTER_MS = 500
DRAIN_AFTER_S = 0.02
SHUTDOWN_FLUSH_MS = 500
_GROUP_CHARS_MAX = limits.GROUP_CHARS_MAX - 40

_numbers = itertools.count(1)


@dataclass(slots=True)
class _Segment:
    """What is to go into the next message of one trace topic."""

    texts: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    text_bytes: int = 0
    key_bytes: int = 0


class AsyncTraceDispatcher:
    """Collects trace records of one client and sends them with a producer of its own.

    The producer lives on a thread of its own, which all tracing clients of a process that use the
    same name servers share.

    Args:
        group: group of the traced client.
        kind: PRODUCE or CONSUME.
        config: the traced client's; addresses, credentials and channel are taken from it.
        trace_topic: where to; None takes RMQ_SYS_TRACE_TOPIC.
        clock: where time comes from.
    """

    def __init__(
        self,
        group: str,
        kind: str,
        config: ClientConfig,
        trace_topic: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group = f"{GROUP_PREFIX}-{group[:_GROUP_CHARS_MAX]}-{kind}-{next(_numbers)}"
        self.trace_topic = trace_topic if trace_topic and trace_topic.strip() else TRACE_TOPIC
        self.clock = clock
        self.is_cloud = config.access_channel == CLOUD
        self.dropped = 0
        """Records thrown away because too many were waiting."""
        servers = ";".join(config.name_servers()) if _has_servers(config) else ""
        self._config = replace(
            config,
            instance_name=f"{INSTANCE_PREFIX}_{servers}",
            namespace=None,
            unit_mode=False,
            vip_channel_enabled=False,
        )
        self._settings = ProducerSettings(
            self.group,
            send_msg_timeout_ms=SEND_TIMEOUT_MS,
            max_message_size=limits.TRACE_MESSAGE_BYTES_MAX,
        )
        self._preparer = MessagePreparer(self._settings, clock)
        self._queue: deque[tuple[str, Sequence[TraceRecord]]] = deque()
        self._is_due = False
        self._is_urgent = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._segments: dict[str, _Segment] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._engine: Engine | None = None
        self._sender: AsyncSender | None = None
        self._on_way = 0
        self._all_answered: asyncio.Event | None = None

    # --- life cycle -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to send; does nothing when started. Blocks shortly, without any network."""
        if self._engine is not None:
            return
        engine = threaded_engine(self._config, self.clock)
        try:
            engine.run(self._open(engine))
        except BaseException:
            engine.leave()
            raise
        self._engine = engine
        atexit.register(self._flush_at_exit)

    async def _open(self, engine: Engine) -> None:
        engine.instance.register_producer(self.group, [self._settings.create_topic_key])
        self._sender = AsyncSender(engine.instance, self._settings)
        self._all_answered = asyncio.Event()
        self._drain()

    def flush(self, timeout_ms: float = SHUTDOWN_FLUSH_MS) -> None:
        """Send what is collected and wait until it is stored, at most this long.

        Raises:
            ForkedClientError: called in a forked child.
        """
        if self._engine is not None:
            self._engine.run(self._flush(timeout_ms))

    async def _flush(self, timeout_ms: float) -> None:
        self._drain()
        self._send_all()
        if self._on_way and self._all_answered is not None:
            self._all_answered.clear()
            try:
                await asyncio.wait_for(self._all_answered.wait(), timeout_ms / 1000)
            except TimeoutError:
                logger.info("trace: %d messages are not confirmed yet", self._on_way)

    def shutdown(self) -> None:
        """Send what is left for at most half a second, then end. Does nothing unless started."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.check_process()
        atexit.unregister(self._flush_at_exit)
        try:
            engine.run(self._close(engine))
        finally:
            engine.leave()

    async def _close(self, engine: Engine) -> None:
        await self._flush(SHUTDOWN_FLUSH_MS)
        for timer in (self._timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._sender = None
        await engine.instance.unregister_producer(self.group)

    def _flush_at_exit(self) -> None:
        try:
            self.flush()
        except Exception as error:
            logger.info("trace: the records that are left are not sent: %s", error)

    # --- collecting -------------------------------------------------------------------------------

    def append(self, region_id: str | None, records: Sequence[TraceRecord]) -> bool:
        """Take records to send; from any thread. Return whether there was room."""
        engine = self._engine
        if engine is None or len(self._queue) >= limits.TRACE_CONTEXTS_MAX:
            self._drop(len(records))
            return False
        topic = f"{CLOUD_TOPIC_PREFIX}{region_id}" if self.is_cloud else self.trace_topic
        queue = self._queue
        queue.append((topic, records))
        # Waking the loop costs more than all the rest: once for what comes within some ms, and
        # once more when half of the room is taken before that.
        if not self._is_due:
            self._is_due = True
            return self._wake(engine, self._drain_soon)
        if len(queue) >= limits.TRACE_CONTEXTS_MAX // 2 and not self._is_urgent:
            self._is_urgent = True
            return self._wake(engine, self._drain)
        return True

    @staticmethod
    def _wake(engine: Engine, call: Callable[[], object]) -> bool:
        try:
            engine.call_soon(call)
        except (RocketMQError, RuntimeError):  # ended meanwhile, or a forked child
            return False
        return True

    def _drain_soon(self) -> None:
        self._drain_timer = asyncio.get_running_loop().call_later(DRAIN_AFTER_S, self._drain)

    def _drop(self, records: int) -> None:
        if self.dropped == 0:
            logger.warning(
                "trace of group %s: too many records wait, further ones are dropped", self.group
            )
        self.dropped += records

    def _drain(self) -> None:
        self._is_due = self._is_urgent = False
        while self._queue:
            topic, records = self._queue.popleft()
            for record in records:
                self._collect(topic, record)
        if self._segments and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_AFTER_MS / 1000, self._flush_late)

    def _collect(self, topic: str, record: TraceRecord) -> None:
        segment = self._segments.setdefault(topic, _Segment())
        text = encode_record(record, cloud=self.is_cloud)
        segment.texts.append(text)
        segment.text_bytes += _bytes_of(text)
        for key in record_keys(record):
            if key not in segment.keys:
                segment.keys[key] = None
                segment.key_bytes += _bytes_of(key) + 1
        if (
            segment.text_bytes >= limits.TRACE_FLUSH_BYTES
            or segment.key_bytes >= limits.TRACE_KEYS_BYTES
        ):
            self._send(topic)

    def _flush_late(self) -> None:
        self._timer = None
        self._send_all()

    def _send_all(self) -> None:
        for topic in list(self._segments):
            self._send(topic)

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, topic: str) -> None:
        segment = self._segments.pop(topic)
        sender = self._sender
        if sender is None or self._on_way >= limits.TRACE_MESSAGES_ON_WAY_MAX:
            self._drop(len(segment.texts))
            return
        body = "".join(segment.texts).encode("utf-8", "replace")
        message = Message(topic, body, keys=segment.keys)
        try:
            prepared = self._preparer.one(message)
        except RocketMQError as error:
            logger.warning("trace: %d records are lost: %s", len(segment.texts), error)
            return
        self._on_way += 1
        sender.send(prepared, ANY_QUEUE, SEND_TIMEOUT_MS, self._answered)

    def _answered(self, _: SendResult | None, error: SendError | None) -> None:
        self._on_way -= 1
        outages = None if self._engine is None else self._engine.instance.outages
        if error is None:
            if outages:
                outages.worked("sending trace to", self.trace_topic)
        elif outages is not None:
            outages.failed(("sending trace to", self.trace_topic), error)
        if self._on_way == 0 and self._all_answered is not None:
            self._all_answered.set()


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _has_servers(config: ClientConfig) -> bool:
    try:
        return bool(config.name_servers())
    except RocketMQError:
        return False  # told by start(), not when tracing is set up

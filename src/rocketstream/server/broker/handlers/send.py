"""Sends: codes 10, 310 and 320, read and answered in the general way (C-425 to C-431).

``core.sends`` decides. Most usual sends never come here: ``send_run`` takes them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator, Sequence
from typing import Any

from rocketstream.errors import (
    BrokerError,
    LocalProtocolError,
    ProtocolError,
    RocketMQError,
    StoreError,
)
from rocketstream.protocol import names
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import OversizedCommand, RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import PROPERTY_DELAY, decode_properties
from rocketstream.protocol.send_answer import SendAnswer, SendAnswerPlan
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core import sends
from rocketstream.server.broker.core.batches import read_batch
from rocketstream.server.broker.flush_gate import FlushGate, not_flushed
from rocketstream.server.broker.handlers.send_run import FastSends, born_host_of
from rocketstream.server.broker.messages import InnerMessage, MessageWriter
from rocketstream.server.broker.transaction_service import TransactionService
from rocketstream.server.dispatch import Answer, Handler, refuse_oversized_request
from rocketstream.server.store import Place
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps, Steps

_REFUSED = (BrokerError, StoreError, ProtocolError)
SENDS = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
})  # fmt: skip


class SendHandlers:
    """Stores the messages producers send.

    Attributes:
        runs: takes usual sends before they are decoded, all that came together.
    """

    def __init__(
        self,
        controller: BrokerController,
        writer: MessageWriter,
        gate: FlushGate | None,
        transactions: TransactionService,
    ) -> None:
        self._transactions = transactions
        self._controller = controller
        self._topics = controller.topics
        self._store = controller.store
        self._writer = writer
        self._gate = gate
        self._region = controller.config.region
        self._next_queue = itertools.count()
        self._id_prefix = controller.store_host_bytes.hex().upper()
        self._answers = SendAnswerPlan(self._region)
        self.runs = FastSends(controller, gate, self._answers, self._refusal_of)

    @property
    def _rules(self) -> sends.SendRules:
        config = self._controller.config  # replaced when a setting was changed
        return sends.SendRules(
            config.cluster_name,
            self._controller.host,
            config.message_body_bytes_max,
            config.reject_transaction_message,
        )

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.SEND_MESSAGE: self.send_v1,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send_v1(self, connection: Connection, request: RemotingCommand) -> Answer | AnswerSteps:
        """Code 10."""
        return self._answer(connection, request, request.header(SendMessageRequestHeader))

    def send_v2(self, connection: Connection, request: RemotingCommand) -> Answer | AnswerSteps:
        """Codes 310 and 320; the header tells which of the two it is."""
        header = SendMessageRequestHeader.from_ext_v2(request.ext_fields or {})
        return self._answer(connection, request, header)

    def _answer(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> Answer | AnswerSteps:
        config = self._topics.get(header.topic)
        if config is None or header.batch or not sends.is_open(header.topic):
            return self._answer_in_steps(connection, request, header)
        try:
            queue_id = self._queue_of(connection, header, config)
            return self._send(connection, request, header, config, queue_id)
        except _REFUSED as error:
            return self._refusal_of(error)

    def _answer_in_steps(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> AnswerSteps:
        try:
            config = yield from self._open_topic(header)
            queue_id = self._queue_of(connection, header, config)
            if header.batch:
                return (yield from self._send_batch(connection, request, header, queue_id))
            return self._send(connection, request, header, config, queue_id)
        except _REFUSED as error:
            return self._refusal_of(error)

    # --- topic and queue -------------------------------------------------------------------------

    def queue_for(
        self, connection: Connection, header: SendMessageRequestHeader
    ) -> Generator[asyncio.Future[Any], None, int]:
        """Return the queue a message goes to; a topic created for it counts first.

        Raises:
            BrokerError: the refusal to answer with.
            StoreError: the topic is new and cannot be persisted.
        """
        config = yield from self._open_topic(header)
        return self._queue_of(connection, header, config)

    def _queue_of(
        self, connection: Connection, header: SendMessageRequestHeader, config: TopicConfig
    ) -> int:
        counter = next(self._next_queue) if header.queue_id < 0 else 0
        return sends.queue_of(config, header.queue_id, counter, connection.peer)

    def _open_topic(
        self, header: SendMessageRequestHeader
    ) -> Generator[asyncio.Future[Any], None, TopicConfig]:
        while (config := self._topics.get(header.topic)) is None or not sends.is_open(header.topic):
            made = self._make_topic(header)
            if isinstance(made, TopicConfig):
                return made
            # The first messages of a topic wait until it is persisted; later ones need not.
            yield made
            made.result()
        return config

    def _make_topic(
        self, header: SendMessageRequestHeader
    ) -> TopicConfig | asyncio.Future[asyncio.Future[None]]:
        """Return the topic of a send that is not open, or a future that is done once it counts."""
        topic = header.topic
        sends.check_topic(topic)
        config = self._topics.wanted_by_send(
            topic,
            header.default_topic,
            header.default_topic_queue_nums,
            unit=bool(header.unit_mode),
        )
        if config is None and topic.startswith(names.RETRY_PREFIX):
            return self._controller.ensure_topic(topic, 1)
        if config is None:
            raise sends.no_topic(topic)
        return config if config is self._topics.get(topic) else self._controller.make_topic(config)

    # --- one message -----------------------------------------------------------------------------

    def _send(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        config: TopicConfig,
        queue_id: int,
    ) -> RemotingCommand | None:
        properties = decode_properties(header.properties) if header.properties else {}
        rules = self._rules
        now_ms = self._controller.now_ms()
        send = sends.outgoing(
            rules, header, config, queue_id, len(request.body), properties, now_ms
        )
        if send.topic.startswith(names.RETRY_PREFIX):
            self._retry(header, send)
        sends.finish(rules, send)
        message = InnerMessage(
            topic=send.topic,
            queue_id=send.queue_id,
            body=request.body,
            properties=send.properties,
            flag=header.flag,
            sys_flag=send.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host_of(connection),
            store_host=self._controller.store_host_bytes,
            reconsume_times=header.reconsume_times or 0,
        )
        try:
            put = self._transactions.put_half if send.is_half else self._writer.put
            place = put(message)
        except LocalProtocolError:
            if not send.is_special:
                raise
            # A delay or a transaction made the properties too long.
            raise sends.illegal(rules) from None
        self._controller.put_count.total += 1
        return self._stored(
            connection, request, send.queue_id, (place,), wants_flush=send.wants_flush
        )

    def _retry(self, header: SendMessageRequestHeader, send: sends.Outgoing) -> None:
        group = header.topic[len(names.RETRY_PREFIX) :]
        locks, now_ms = self._controller.locks, self._controller.monotonic_ms()
        topic = sends.retried(
            header, self._controller.find_group(group), is_locked=locks.is_locked(group, now_ms)
        )
        if topic != send.topic:
            send.topic, send.queue_id = topic, 0
            send.properties[PROPERTY_DELAY] = "0"
            self._controller.ensure_topic(topic, 1)
        send.is_special = True

    # --- a batch ---------------------------------------------------------------------------------

    def _send_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        queue_id: int,
    ) -> Steps:
        """Store every message of a batch with consecutive offsets (C-431)."""
        hosts = (born_host_of(connection), self._controller.store_host_bytes)
        batch = yield from read_batch(self._rules, header, queue_id, request.body, hosts)
        places = self._store.append(batch.drafts, whole=True)
        self._controller.put_count.total += len(places)
        return self._stored(connection, request, queue_id, places, wants_flush=batch.wants_flush)

    # --- answers ---------------------------------------------------------------------------------

    def _stored(
        self,
        connection: Connection,
        request: RemotingCommand,
        queue_id: int,
        places: Sequence[Place],
        *,
        wants_flush: bool,
    ) -> RemotingCommand | None:
        """Return the answer for stored messages; None where it waits for the flush."""
        ids = ",".join([f"{self._id_prefix}{physical:016X}" for physical, _ in places])
        response = SendAnswer(self._answers, ids, queue_id, places[0][1])
        if self._gate is None or not wants_flush:
            return response

        def done(failure: str | None) -> None:
            if failure is not None:
                response.code, response.remark = not_flushed(failure)
            connection.reply(request, response)

        self._gate.wait(self._store.physical_max_offset, done)
        return None

    def _refusal_of(self, error: RocketMQError) -> RemotingCommand:
        if isinstance(error, BrokerError):
            return self._refuse(error.code, error.remark)
        if isinstance(error, StoreError):
            text = f"service not available now: {error.message}"
            return self._refuse(ResponseCode.SERVICE_NOT_AVAILABLE, text)
        return self._refuse(ResponseCode.SYSTEM_ERROR, error.message)

    def _refuse(self, code: int, remark: str) -> RemotingCommand:
        response = RemotingCommand.response(code, remark)
        response.ext_fields = {"MSG_REGION": self._region, "TRACE_ON": "true"}
        return response

    def refuse_oversized(self, request: OversizedCommand) -> RemotingCommand:
        """Return the reply to a request whose body was dropped; for a send it is upstream's."""
        if request.code in SENDS:
            return self._refusal_of(sends.illegal(self._rules))
        return refuse_oversized_request(request)

"""Sends: codes 10, 310 and 320 (C-425 to C-431, W 2.2).

Law: the hot path of the broker. One message is parsed, checked, stored and answered in one go;
whatever only some messages need lives in functions of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    LocalProtocolError,
    ProtocolError,
    RocketMQError,
    StoreError,
)
from rocketstream.limits import BATCH_STORED_BYTES_MAX, PROPERTIES_BYTES_MAX
from rocketstream.protocol import names
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import OversizedCommand, RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.record import decode_batch, new_record, pack_host
from rocketstream.protocol.send_answer import SendAnswer, SendAnswerPlan
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.flush_gate import TIMEOUT, FlushGate
from rocketstream.server.broker.handlers.plain_send import PlainSend, is_plain_queue, plain_send
from rocketstream.server.broker.messages import (
    InnerMessage,
    MessageWriter,
    delay_level_of,
    index_keys,
)
from rocketstream.server.broker.transaction_service import TransactionService
from rocketstream.server.dispatch import Answer, Handler, refusal, refuse_oversized_request
from rocketstream.server.store import PutResult
from rocketstream.transport.aio import Connection
from rocketstream.transport.sharing import AnswerSteps, Steps

TAG_CACHE_MAX = 4096
_REFUSED = (BrokerError, StoreError, ProtocolError, ConfigurationError)
SENDS = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
})  # fmt: skip
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit {body}B, msg properties length limit 32KB."
)
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


def topic_config_text(config: TopicConfig) -> str:
    """Return a topic's configuration as upstream prints it in remarks."""
    perm = "".join(
        letter if config.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1))
    )
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}]"
    )


def _batch_too_large() -> BrokerError:
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the records of the batch take more than {BATCH_STORED_BYTES_MAX} bytes, since the "
        "properties of a batch are stored with each of its messages; send smaller batches",
    )


@dataclass(slots=True)
class _Batch:
    """What is to be stored of a batch."""

    wants_flush: bool
    records: list[bytearray] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    keys: list[list[str]] = field(default_factory=list)


class SendHandlers:
    """Storing what producers send."""

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
        config = controller.config
        self._cluster = config.cluster_name
        self._region = config.region
        self._body_max = config.message_body_bytes_max
        self._next_queue = itertools.count()
        self._tag_codes: dict[str | None, int] = {None: 0}
        self._store_host_bytes = controller.store_host_bytes
        self._id_prefix = controller.store_host_bytes.hex().upper()
        self._answers = SendAnswerPlan(config.region)

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
        """Codes 310 and 320; which of the two it is, the header says."""
        ext = request.ext_fields or {}
        plain = plain_send(ext)
        if plain is not None:
            properties = self._plain_properties(request, plain)
            if properties is not None:
                topic, queue_id, flag, sys_flag, born_timestamp, _ = plain
                try:
                    return self._store_message(
                        connection, request, topic, queue_id, flag, sys_flag, born_timestamp, 0,
                        properties,
                    )  # fmt: skip
                except _REFUSED as error:
                    return self._refusal_of(error)
        return self._answer(connection, request, SendMessageRequestHeader.from_ext_v2(ext))

    def _answer(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> Answer | AnswerSteps:
        try:
            return self._send(connection, request, header)
        except _REFUSED as error:
            return self._refusal_of(error)

    def _refusal_of(self, error: RocketMQError) -> RemotingCommand:
        if isinstance(error, BrokerError):
            return self._refuse(error.code, error.remark)
        if isinstance(error, StoreError):
            text = f"service not available now: {error.message}"
            return self._refuse(ResponseCode.SERVICE_NOT_AVAILABLE, text)
        return self._refuse(ResponseCode.SYSTEM_ERROR, error.message)

    def _send(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> Answer | AnswerSteps:
        topic = header.topic
        config = self._topics.get(topic)
        if config is None or topic in names.NOT_ALLOWED_SEND_TOPICS:
            made = self._unusual_topic(header)
            if not isinstance(made, TopicConfig):
                return self._send_when_made(connection, request, header, made)
            config = made
        queue_id = header.queue_id
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            return self._refuse(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, {topic_config_text(config)} "
                f"Producer: {connection.peer}",
            )
        if queue_id < 0:
            queue_id = next(self._next_queue) % max(1, config.write_queue_nums)
        if header.batch:
            return self._send_batch(connection, request, header, queue_id)
        properties = decode_properties(header.properties) if header.properties else {}
        sys_flag = header.sys_flag
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MessageSysFlag.MULTI_TAGS
        body = request.body
        if len(body) > self._body_max:
            return self._illegal()
        if (
            PROPERTY_DELAY in properties
            or PROPERTY_TRAN_MSG in properties
            or topic.startswith(names.RETRY_PREFIX)
        ):
            properties[PROPERTY_CLUSTER] = self._cluster
            return self._send_unusual(
                connection, request, header, queue_id, sys_flag, body, properties
            )
        return self._store_message(
            connection, request, topic, queue_id, header.flag, sys_flag, header.born_timestamp,
            header.reconsume_times or 0, properties,
        )  # fmt: skip

    def _plain_properties(
        self, request: RemotingCommand, plain: PlainSend
    ) -> dict[str, str] | None:
        """Return the properties of a message that nothing special is to be done with, else None."""
        topic, text = plain[0], plain[5]
        config = self._topics.get(topic)
        if (
            config is None
            or len(request.body) > self._body_max
            or not is_plain_queue(config, topic, plain[1])
        ):
            return None
        properties = decode_properties(text) if text else {}
        if PROPERTY_DELAY in properties or PROPERTY_TRAN_MSG in properties:
            return None
        return properties

    def _store_message(
        self,
        connection: Connection,
        request: RemotingCommand,
        topic: str,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
        properties: dict[str, str],
    ) -> RemotingCommand | None:
        """Store a message as it is and answer."""
        properties[PROPERTY_CLUSTER] = self._cluster
        wait = properties.pop(PROPERTY_WAIT, None)
        text = encode_properties(properties).encode()
        if len(text) > PROPERTIES_BYTES_MAX:
            return self._illegal()
        record = new_record(
            topic.encode(),
            queue_id,
            flag,
            sys_flag,
            born_timestamp,
            self._born_host(connection),
            self._store_host_bytes,
            reconsume_times,
            0,
            request.body,
            text,
        )
        code = self._tag_code(properties.get(PROPERTY_TAGS))
        result = self._store.put(topic, queue_id, record, code, index_keys(properties))
        self._controller.put_count.total += 1
        response = self._stored(f"{self._id_prefix}{result.physical_offset:016X}", queue_id, result)
        if self._gate is None or wait == "false":
            return response
        self._when_flushed(connection, request, response, result)
        return None

    # --- what only some messages need ------------------------------------------------------------

    def _send_when_made(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        made: asyncio.Future[Any],
    ) -> AnswerSteps:
        """Store the first messages of a topic once it is written down; others need not wait."""
        yield made
        try:
            made.result()
        except _REFUSED as error:
            return self._refusal_of(error)
        answer = self._answer(connection, request, header)
        if isinstance(answer, Generator):
            answer = yield from answer
        return answer

    def _unusual_topic(
        self, header: SendMessageRequestHeader
    ) -> TopicConfig | asyncio.Future[asyncio.Future[None]]:
        """Check the topic of a send that is unknown or not open to clients (C-425, C-422).

        A new topic is made; the future returned is done when it counts.
        """
        topic = header.topic
        names.check_topic(topic)
        if names.is_not_allowed_send_topic(topic):
            raise refusal(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        config = self._topics.wanted_by_send(
            topic,
            header.default_topic,
            header.default_topic_queue_nums,
            unit=bool(header.unit_mode),
        )
        if config is None and topic.startswith(names.RETRY_PREFIX):
            return self._controller.ensure_topic(topic, 1)
        if config is None:
            raise refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please!{FAQ}",
            )
        return config if config is self._topics.get(topic) else self._controller.make_topic(config)

    def queue_for(
        self, connection: Connection, header: SendMessageRequestHeader
    ) -> Generator[asyncio.Future[Any], None, int]:
        """Check topic and queue of what is not an ordinary send; return the queue.

        Raises:
            BrokerError: the answer to give instead.
            ConfigurationError: a topic name nobody may use.
            StoreError: the topic is new and cannot be written down.
        """
        config = self._topics.get(header.topic)
        if config is None or header.topic in names.NOT_ALLOWED_SEND_TOPICS:
            made = self._unusual_topic(header)
            while not isinstance(made, TopicConfig):
                yield made
                made.result()
                made = self._topics.get(header.topic) or self._unusual_topic(header)
            config = made
        queue_id = header.queue_id
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, {topic_config_text(config)} "
                f"Producer: {connection.peer}",
            )
        return (
            queue_id if queue_id >= 0 else next(self._next_queue) % max(1, config.write_queue_nums)
        )

    def _send_unusual(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        queue_id: int,
        sys_flag: int,
        body: bytes | memoryview,
        properties: dict[str, str],
    ) -> RemotingCommand | None:
        """Delayed, retried and half messages."""
        is_half = properties.get(PROPERTY_TRAN_MSG, "").lower() == "true"
        if is_half and self._controller.config.reject_transaction_message:
            return self._refuse(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._controller.host}] sending transaction message is forbidden",
            )
        topic = header.topic
        if topic.startswith(names.RETRY_PREFIX):
            topic, queue_id = self._retry_or_dead_letter(header, queue_id, properties)
        wait = properties.get(PROPERTY_WAIT)
        if delay_level_of(properties) <= 0 and not is_half:
            properties.pop(PROPERTY_WAIT, None)
        if len(encode_properties(properties).encode()) > PROPERTIES_BYTES_MAX:
            return self._illegal()
        message = InnerMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=self._born_host(connection),
            store_host=self._controller.store_host_bytes,
            reconsume_times=header.reconsume_times or 0,
        )
        try:
            put = self._transactions.put_half if is_half else self._writer.put
            result = put(message)
        except LocalProtocolError:  # what a delay adds to the properties was too much
            return self._illegal()
        self._controller.put_count.total += 1
        response = self._stored(f"{self._id_prefix}{result.physical_offset:016X}", queue_id, result)
        if self._gate is None or wait == "false":
            return response
        self._when_flushed(connection, request, response, result)
        return None

    def _retry_or_dead_letter(
        self, header: SendMessageRequestHeader, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int]:
        """Return where a message sent to a retry topic goes.

        One rule with the send-back path (C-592): more attempts than allowed means the dead-letter
        topic at once. The header counts the attempts made, so ``>`` here is ``>=`` there. Ordered
        consumers send only what they gave up, which is why a group that holds locks uses ``>=``.
        """
        group = header.topic[len(names.RETRY_PREFIX) :]
        settings = self._controller.find_group(group)
        if settings is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}",
            )
        most = header.max_reconsume_times
        if most is None:
            most = settings.retry_max_times
        attempts = header.reconsume_times or 0
        if self._controller.locks.is_locked(group, self._controller.monotonic_ms()):
            attempts += 1
        if attempts <= most:
            return header.topic, queue_id
        properties[PROPERTY_DELAY] = "0"
        topic = names.dlq_topic(group)
        self._controller.ensure_topic(topic, 1)
        return topic, 0

    def _send_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        queue_id: int,
    ) -> Steps:
        """Store every message of a batch with consecutive offsets (C-431, W 4.5)."""
        try:
            batch = yield from self._read_batch(connection, request, header, queue_id)
            if batch is None:
                return self._illegal()
            result = self._store.put_batch(
                header.topic, queue_id, batch.records, batch.codes, batch.keys
            )
        except _REFUSED as error:
            return self._refusal_of(error)
        self._controller.put_count.total += len(batch.records)
        ids = ",".join([f"{self._id_prefix}{at:016X}" for at in result.physical_offsets])
        response = self._stored(ids, queue_id, result)
        if self._gate is None or not batch.wants_flush:
            return response
        self._when_flushed(connection, request, response, result)
        return None

    def _read_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        queue_id: int,
    ) -> Generator[None, None, _Batch | None]:
        """Return the records of a batch, or None when it cannot be stored."""
        if len(request.body) > self._body_max:
            return None
        items = decode_batch(request.body)
        if not items or header.topic.startswith(names.RETRY_PREFIX):
            return None
        common = decode_properties(header.properties) if header.properties else {}
        common[PROPERTY_CLUSTER] = self._cluster
        batch = _Batch(common.get(PROPERTY_WAIT) != "false")
        stored_bytes = 0
        topic, born_host = header.topic.encode(), self._born_host(connection)
        for item in items:
            # A message's own properties win: 5.x clients give the batch a UNIQ_KEY of its own.
            properties = {**common, **decode_properties(item.properties)}
            if delay_level_of(properties) > 0 or PROPERTY_TRAN_MSG in properties:
                return None
            text = encode_properties(properties).encode()
            if len(text) > PROPERTIES_BYTES_MAX:
                return None
            record = new_record(
                topic,
                queue_id,
                item.flag,
                header.sys_flag,
                header.born_timestamp,
                born_host,
                self._controller.store_host_bytes,
                header.reconsume_times or 0,
                0,
                item.body,
                text,
            )
            stored_bytes += len(record)
            if stored_bytes > BATCH_STORED_BYTES_MAX:
                raise _batch_too_large()
            batch.records.append(record)
            batch.codes.append(self._tag_code(properties.get(PROPERTY_TAGS)))
            batch.keys.append(index_keys(properties))
            yield
        return batch

    # --- replies ---------------------------------------------------------------------------------

    def _stored(self, msg_id: str, queue_id: int, result: PutResult) -> RemotingCommand:
        return SendAnswer(self._answers, msg_id, queue_id, result.queue_offset)

    def _when_flushed(
        self,
        connection: Connection,
        request: RemotingCommand,
        response: RemotingCommand,
        result: PutResult,
    ) -> None:
        def done(failure: str | None) -> None:
            if failure == TIMEOUT:
                response.code = ResponseCode.FLUSH_DISK_TIMEOUT
            elif failure is not None:
                response.code = ResponseCode.SERVICE_NOT_AVAILABLE
                response.remark = f"the message may be lost, the store failed to flush: {failure}"
            connection.reply(request, response)

        assert self._gate is not None
        self._gate.wait(result.end_offset, done)

    def _refuse(self, code: int, remark: str) -> RemotingCommand:
        response = RemotingCommand.response(code, remark)
        response.ext_fields = {"MSG_REGION": self._region, "TRACE_ON": "true"}
        return response

    def _illegal(self) -> RemotingCommand:
        return self._refuse(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL.format(body=self._body_max))

    def refuse_oversized(self, request: OversizedCommand) -> RemotingCommand:
        """Return the reply to a request whose body was not kept: that to a send is upstream's."""
        return self._illegal() if request.code in SENDS else refuse_oversized_request(request)

    # --- small things ----------------------------------------------------------------------------

    def _born_host(self, connection: Connection) -> bytes:
        packed: bytes | None = connection.attributes.get("born_host")
        if packed is None:
            packed = connection.attributes["born_host"] = pack_host(*connection.peer_host)
        return packed

    def _tag_code(self, tags: str | None) -> int:
        codes = self._tag_codes
        code = codes.get(tags)
        if code is None:
            if len(codes) >= TAG_CACHE_MAX:
                codes.clear()
            code = codes[tags] = tags_code(tags)
        return code

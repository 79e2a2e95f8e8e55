"""Sends: codes 10, 310 and 320 (C-425 to C-431), usual ones that came together with one write.

``core.sends`` decides. Usual sends that :mod:`protocol.usual_sends` reads and that need nothing
special are taken from the bytes a socket brought; all others, and those to be refused, are decoded
and come one by one.

Law: a message is answered after the write that holds it, never before.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from rocketstream.errors import (
    BrokerError,
    LocalProtocolError,
    ProtocolError,
    RecordTooLargeError,
    RocketMQError,
    StoreError,
)
from rocketstream.limits import PROPERTIES_BYTES_MAX
from rocketstream.protocol import names
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import FLAG_ONEWAY, MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import OversizedCommand, RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import (
    PROPERTIES_CRC,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    decode_properties,
)
from rocketstream.protocol.record import (
    HOSTS_MASK,
    Draft,
    draft_tail,
    head_bytes,
    index_keys,
    own_hosts,
    pack_host,
    sealable,
    topic_head,
)
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.protocol.usual_sends import (
    USUAL_HEADER_BYTES_MAX,
    SendAnswer,
    SendAnswerPlan,
    read_lane,
    send_matcher,
    stored_properties,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core import sends
from rocketstream.server.broker.core.batches import read_batch
from rocketstream.server.broker.core.sends import SPECIAL_PROPERTIES, is_usual_queue
from rocketstream.server.broker.flush_gate import FlushGate, not_flushed
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
RUN_BYTES_MAX: Final = 256 * 1024
"""Most bytes of bodies in one run, so that others wait hardly longer than a slice."""
RUN_SENDS_MAX: Final = 256
_ASK_EVERY: Final = 8
_LANES_MAX: Final = 4096
_TAGS_MAX: Final = 4096
_ODD_FLAGS: Final = MessageSysFlag.TRANSACTION_MASK | HOSTS_MASK
_match_send = send_matcher({*SPECIAL_PROPERTIES, PROPERTY_CLUSTER, PROPERTIES_CRC})

_unpack_prefix = struct.Struct(">iI").unpack_from
_SEND: Final = b'{"code":310,'
_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_Asked = tuple[int, bytes, bool]
Refuse = Callable[[RocketMQError], RemotingCommand]


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
        self.runs: UsualSends = UsualSends(controller, gate, self._answers, self._refusal_of)

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
            born_host=_origin_of(connection, self._controller.store_host_bytes).born_host,
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
        store_host = self._controller.store_host_bytes
        hosts = (_origin_of(connection, store_host).born_host, store_host)
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
        if isinstance(error, RecordTooLargeError):  # no broker like this one will ever take it
            return self._refuse(ResponseCode.MESSAGE_ILLEGAL, error.message)
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


# --- usual sends, together ------------------------------------------------------------------------


class _Origin:
    """The values that all records of one connection's sends share."""

    __slots__ = ("born_host", "head_bytes", "hosts")

    def __init__(self, born_host: bytes, store_host: bytes) -> None:
        self.born_host = born_host
        self.hosts = own_hosts(0, born_host, store_host)
        self.head_bytes = head_bytes(self.hosts)


class _QueueTarget:
    """A queue of a topic, under the name a client's sends use."""

    __slots__ = ("config", "key", "magic", "queue_id", "sys_flag", "topic", "topic_head")

    def __init__(self, topic: str, queue_id: int, sys_flag: int, config: TopicConfig) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.sys_flag = sys_flag
        self.magic, self.topic_head = topic_head(topic.encode())
        self.config = config
        """The topic's configuration when last checked; if it has changed it is checked again."""


class UsualSends:
    """Takes runs of usual sends straight from the bytes connections received.

    Args:
        controller: the broker's tables and its store.
        gate: waits for the flusher; None with async flush.
        answers: template of the answers.
        refuse: makes the answer to a send that failed.
    """

    def __init__(
        self,
        controller: BrokerController,
        gate: FlushGate | None,
        answers: SendAnswerPlan,
        refuse: Refuse,
    ) -> None:
        self._controller = controller
        self._topics = controller.topics
        self._store = controller.store
        self._gate = gate
        self._answers = answers
        self._refuse = refuse
        self._cluster = f"\x02{PROPERTY_CLUSTER}\x01{controller.config.cluster_name}".encode()
        self._body_max = controller.config.message_body_bytes_max
        self._store_host = controller.store_host_bytes
        self._id_prefix = controller.store_host_bytes.hex().upper().encode()
        self._targets: dict[bytes, _QueueTarget] = {}
        self._tag_codes: dict[bytes, int] = {}

    def _target(self, text: bytes) -> _QueueTarget | None:
        topic, queue_id, sys_flag = read_lane(text)
        config = self._topics.get(topic)
        if config is None or not is_usual_queue(config, topic, queue_id) or sys_flag & _ODD_FLAGS:
            self._targets.pop(text, None)
            return None
        if len(self._targets) >= _LANES_MAX:
            self._targets.clear()
        target = self._targets[text] = _QueueTarget(topic, queue_id, sys_flag, config)
        return target

    def _tag_code(self, tags: bytes) -> int:
        if len(self._tag_codes) >= _TAGS_MAX:
            self._tag_codes.clear()
        code = self._tag_codes[tags] = tags_code(tags.decode())
        return code

    # --- taking ----------------------------------------------------------------------------------

    def take(
        self,
        connection: Connection,
        data: bytes | bytearray,
        position: int,
        until: Callable[[], bool],
    ) -> int:
        """Store and answer the complete usual sends the bytes begin with.

        Returns:
            Where the first frame begins that is not a usual send, or not complete.
        """
        if not data.startswith(_SEND, position + 8):
            return position
        origin = _origin_of(connection, self._store_host)
        drafts: list[Draft] = []
        asked: list[_Asked] = []
        bytes_left = RUN_BYTES_MAX
        while bytes_left > 0 and len(drafts) < RUN_SENDS_MAX:
            end = self._read(origin, data, position, drafts, asked)
            if not end:
                break
            bytes_left -= end - position
            position = end
            if not len(drafts) % _ASK_EVERY and until():
                break
        if drafts:
            self._put(connection, drafts, asked)
        return position

    def _read(
        self,
        origin: _Origin,
        data: bytes | bytearray,
        position: int,
        drafts: list[Draft],
        asked: list[_Asked],
    ) -> int:
        """Read one usual send; return where it ends, 0 when the bytes do not hold one."""
        if len(data) - position < 8:
            return 0
        length: int
        header_bytes: int
        length, header_bytes = _unpack_prefix(data, position)
        begin, end = position + 8, position + 4 + length
        body_at = begin + header_bytes
        if (
            header_bytes > USUAL_HEADER_BYTES_MAX
            or end > len(data)
            or not 0 <= end - body_at <= self._body_max
        ):
            return 0
        found = _match_send(data, begin, body_at)
        if found is None:
            return 0
        groups = found.groups()
        target = self._targets.get(groups[0])
        if target is None or self._topics.get(target.topic) is not target.config:
            target = self._target(groups[0])
            if target is None:
                return 0
        text = stored_properties(groups[3], self._cluster)
        if len(text) > PROPERTIES_BYTES_MAX:
            return 0
        unique, words, tags = groups[4:7]
        code = (self._tag_codes.get(tags) or self._tag_code(tags)) if tags else 0
        keys = index_keys((unique or b"").decode(), (words or b"").decode())
        body, tail = data[body_at:end], draft_tail(target.topic_head, sealable(text))
        drafts.append((
            target.key, origin.head_bytes + len(body) + len(tail), target.magic, int(groups[2]),
            target.sys_flag | origin.hosts, int(groups[1]), origin.born_host, self._store_host,
            0, 0, body, tail, code, keys,
        ))  # fmt: skip
        asked.append((target.queue_id, groups[-1], groups[-2] == b"0"))
        return end

    # --- storing and answering -------------------------------------------------------------------

    def _put(self, connection: Connection, drafts: list[Draft], asked: list[_Asked]) -> None:
        """Store messages; answer each once stored, or with sync flush once on the disk."""
        places: list[Place] = []
        error = None
        while error is None and len(places) < len(drafts):
            try:
                places += self._store.append(drafts[len(places) :] if places else drafts)
            except StoreError as refused:
                error = refused
        count = len(places)
        if count:
            self._controller.put_count.total += count
            self._answer(connection, places, asked[:count])
        if error is not None:
            for each in asked[count:]:
                _reply(connection, each, self._refuse(error))

    def _answer(self, connection: Connection, places: list[Place], asked: list[_Asked]) -> None:
        if self._gate is None:
            connection.send_frames(self._answers.frames(self._id_prefix, places, asked))
            return

        def answer(outcome: str | None) -> None:
            if outcome is None:
                connection.send_frames(self._answers.frames(self._id_prefix, places, asked))
                return
            for place, each in zip(places, asked, strict=True):
                response = self._stored(place, each)
                response.code, response.remark = not_flushed(outcome)
                _reply(connection, each, response)

        self._gate.wait(self._store.physical_max_offset, answer)

    def _stored(self, place: Place, asked: _Asked) -> SendAnswer:
        physical, offset = place
        msg_id = f"{self._id_prefix.decode()}{physical:016X}"
        return SendAnswer(self._answers, msg_id, asked[0], offset)


def _reply(connection: Connection, asked: _Asked, response: RemotingCommand) -> None:
    """Answer one send in the general way."""
    _, opaque, is_answered = asked
    request = RemotingCommand(_SEND_V2, int(opaque), 0 if is_answered else FLAG_ONEWAY)
    connection.reply(request, response)


def _origin_of(connection: Connection, store_host: bytes) -> _Origin:
    known: _Origin | None = connection.attributes.get(_Origin)
    if known is None:
        known = _Origin(pack_host(*connection.peer_host), store_host)
        connection.attributes[_Origin] = known
    return known

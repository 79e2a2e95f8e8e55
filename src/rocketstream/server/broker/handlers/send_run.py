"""Usual sends that one read of a socket brought, stored with one write.

The module takes sends that :mod:`protocol.send_form` reads and that need nothing special; all
others, and those to be refused, go the general way.

Law: a message is answered after the write that holds it, never before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from rocketstream.errors import RocketMQError, StoreError
from rocketstream.limits import PROPERTIES_BYTES_MAX
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import FLAG_ONEWAY, MessageSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.drafts import Draft, draft_tail, head_bytes, own_hosts, topic_head
from rocketstream.protocol.properties import (
    PROPERTIES_CRC,
    PROPERTY_CLUSTER,
)
from rocketstream.protocol.record import HOSTS_MASK, pack_host, sealable
from rocketstream.protocol.send_answer import SendAnswer, SendAnswerPlan
from rocketstream.protocol.send_form import (
    HEADER_BYTES_MAX,
    read_lane,
    send_matcher,
    stored_properties,
)
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.batches import index_keys
from rocketstream.server.broker.core.sends import SPECIAL_PROPERTIES, is_usual_queue
from rocketstream.server.broker.flush_gate import FlushGate, not_flushed
from rocketstream.server.store import Place
from rocketstream.transport.connection import Connection

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


class FastSends:
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
        born_host = born_host_of(connection)
        hosts = own_hosts(0, born_host, self._store_host)
        drafts: list[Draft] = []
        asked: list[_Asked] = []
        bytes_left = RUN_BYTES_MAX
        while bytes_left > 0 and len(drafts) < RUN_SENDS_MAX:
            end = self._read(born_host, hosts, data, position, drafts, asked)
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
        born_host: bytes,
        hosts: int,
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
            header_bytes > HEADER_BYTES_MAX
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
            target.key, head_bytes(hosts) + len(body) + len(tail), target.magic, int(groups[2]),
            target.sys_flag | hosts, int(groups[1]), born_host, self._store_host, 0, 0, body, tail,
            code, keys,
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


def born_host_of(connection: Connection) -> bytes:
    """Return a client's address as records have it."""
    packed: bytes | None = connection.attributes.get("born_host")
    if packed is None:
        packed = connection.attributes["born_host"] = pack_host(*connection.peer_host)
    return packed

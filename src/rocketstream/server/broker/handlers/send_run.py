"""Usual sends that one read of a socket brought, stored with one write.

The module takes sends that :mod:`protocol.send_form` recognises and that need nothing special; all
others, and those to be refused, go the general way.

Law: a message is answered after the write that holds it, never before.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from rocketstream.errors import RocketMQError, StoreError
from rocketstream.limits import PROPERTIES_BYTES_MAX
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import FLAG_ONEWAY, MessageSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.drafts import (
    SHORT_TOPIC_BYTES_MAX,
    Draft,
    draft_tail,
    head_bytes,
    topic_head,
)
from rocketstream.protocol.record import HOSTS_MASK, MAGIC_V1, pack_host, sealable
from rocketstream.protocol.send_answer import SendAnswer, SendAnswerPlan
from rocketstream.protocol.send_form import HEADER_BYTES_MAX, SendForm, may_have_form, read_lane
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.batches import index_keys
from rocketstream.server.broker.core.sends import is_usual, is_usual_queue
from rocketstream.server.broker.flush_gate import FlushGate, not_flushed
from rocketstream.server.store import Place
from rocketstream.transport.connection import Connection

RUN_BYTES_MAX: Final = 256 * 1024
"""Most bytes of bodies in one run, so that others wait hardly longer than a slice."""
RUN_SENDS_MAX: Final = 256
_ASK_EVERY: Final = 8
_FORMS_MAX: Final = 256
"""Most forms of all connections; one takes some 15 KB, and a millisecond to make."""
_RECENT_MAX: Final = 16
"""Most forms kept after the connections they were made for are gone."""
_FORMS_OF_PEER_MAX: Final = 4
"""Most forms tried for a connection; sends of other forms go the general way."""
_SEEN_BEFORE_LEARNT: Final = 3
_SEEN_MAX: Final = 16
_VAIN_MAX: Final = 32
"""After this many sends in a row without a known form, a connection's sends are not tried."""
_LANES_MAX: Final = 4096
_TAGS_MAX: Final = 4096
_HEAD_BYTES: Final = head_bytes(0)
_ODD_FLAGS: Final = MessageSysFlag.TRANSACTION_MASK | HOSTS_MASK

_unpack_prefix = struct.Struct(">iI").unpack_from
_SEND: Final = b'{"code":310,'
_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_Asked = tuple[int, bytes, bool]
Refuse = Callable[[RocketMQError], RemotingCommand]


class PeerForms:
    """The forms and the host that the sends of one connection have in common."""

    __slots__ = ("born_host", "form", "forms", "seen", "vain")

    def __init__(self, born_host: bytes) -> None:
        self.born_host = born_host
        self.form: SendForm | None = None
        self.forms: list[SendForm] = []
        self.seen: dict[tuple[str, ...], int] = {}
        self.vain = 0


class _QueueTarget:
    """A queue of a topic, under the name a client's sends use."""

    __slots__ = ("config", "key", "queue_id", "sys_flag", "topic", "topic_head")

    def __init__(self, topic: str, queue_id: int, sys_flag: int, config: TopicConfig) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.sys_flag = sys_flag
        self.topic_head = topic_head(topic.encode())[1]
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
        self._cluster = controller.config.cluster_name
        self._body_max = controller.config.message_body_bytes_max
        self._store_host = controller.store_host_bytes
        self._id_prefix = controller.store_host_bytes.hex().upper().encode()
        self._is_possible = len(self._store_host) == 8
        self._forms: WeakValueDictionary[tuple[str, ...], SendForm] = WeakValueDictionary()
        self._recent: deque[SendForm] = deque(maxlen=_RECENT_MAX)
        self._targets: dict[bytes, _QueueTarget] = {}
        self._tag_codes: dict[bytes, int] = {}

    # --- learning --------------------------------------------------------------------------------

    def learn(self, connection: Connection, properties: Mapping[str, str]) -> None:
        """Learn from a usual send that came the general way; repeated ones become a form."""
        peer: PeerForms | None = connection.attributes.get(PeerForms)
        if peer is None:
            peer = connection.attributes[PeerForms] = PeerForms(pack_host(*connection.peer_host))
        if len(peer.forms) >= _FORMS_OF_PEER_MAX or len(peer.born_host) != 8:
            return
        names = tuple(properties)
        if not self._is_possible or not is_usual(names) or not may_have_form(names, self._cluster):
            return
        count = peer.seen.pop(names, 0) + 1
        peer.seen[names] = count
        if len(peer.seen) > _SEEN_MAX:
            del peer.seen[next(iter(peer.seen))]
        if count == _SEEN_BEFORE_LEARNT and (form := self._form(names)) is not None:
            peer.forms.append(form)
            peer.form = form

    def _form(self, names: tuple[str, ...]) -> SendForm | None:
        form = self._forms.get(names)
        if form is None:
            if len(self._forms) >= _FORMS_MAX:
                return None
            form = self._forms[names] = SendForm(names, self._cluster)
        self._recent.append(form)
        return form

    def _find(
        self, peer: PeerForms, data: bytes | bytearray, begin: int, end: int
    ) -> re.Match[bytes] | None:
        """Read a header by the form of the last one, or by another form of the peer."""
        assert peer.form is not None
        found = peer.form.match(data, begin, end)
        if found is not None or not data.startswith(_SEND, begin):
            return found
        for form in peer.forms:
            found = form.match(data, begin, end)
            if found is not None:
                peer.form = form
                return found
        peer.vain += 1
        if peer.vain > _VAIN_MAX:
            peer.form = None
        return None

    def _target(self, text: bytes) -> _QueueTarget | None:
        topic, queue_id, sys_flag = read_lane(text)
        config = self._topics.get(topic)
        if (
            config is None
            or not is_usual_queue(config, topic, queue_id)
            or len(topic) > SHORT_TOPIC_BYTES_MAX
            or sys_flag & _ODD_FLAGS
        ):
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
        peer: PeerForms | None = connection.attributes.get(PeerForms)
        if peer is None or peer.form is None:
            return position
        drafts: list[Draft] = []
        asked: list[_Asked] = []
        bytes_left = RUN_BYTES_MAX
        while bytes_left > 0 and len(drafts) < RUN_SENDS_MAX:
            end = self._read(peer, data, position, drafts, asked)
            if not end:
                break
            bytes_left -= end - position
            position = end
            if not len(drafts) % _ASK_EVERY and until():
                break
        if drafts:
            peer.vain = 0
            self._put(connection, drafts, asked)
        return position

    def _read(
        self,
        peer: PeerForms,
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
        found = self._find(peer, data, begin, body_at)
        if found is None:
            return 0
        assert peer.form is not None
        form, groups = peer.form, found.groups()
        target = self._targets.get(groups[0])
        if target is None or self._topics.get(target.topic) is not target.config:
            target = self._target(groups[0])
            if target is None:
                return 0
        text = form.text % groups[3:-2]
        if len(text) > PROPERTIES_BYTES_MAX:
            return 0
        code = 0
        if form.tags:
            tags = groups[form.tags]
            code = self._tag_codes.get(tags) or self._tag_code(tags)
        unique = str(groups[form.unique], "ascii") if form.unique else None
        if form.keys:
            keys = index_keys(unique, str(groups[form.keys], "ascii"))
        else:
            keys = [unique] if unique else []
        body, tail = data[body_at:end], draft_tail(target.topic_head, sealable(text))
        drafts.append((
            target.key, _HEAD_BYTES + len(body) + len(tail), MAGIC_V1, int(groups[2]),
            target.sys_flag, int(groups[1]), peer.born_host, self._store_host, 0, 0, body, tail,
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

"""Messages on their way into the store: made into a draft for the right queue.

Law: no other module delays a message. Upstream: MessageExtBrokerInner and the head of
CommitLog.asyncPutMessage (C-403, C-404).
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketstream.errors import RecordTooLargeError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.properties import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.record import Draft, RecordHead, new_draft, read_head, sealable
from rocketstream.protocol.record import index_keys as words_of
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.schedule import queue_of_level
from rocketstream.server.broker.core.sends import delay_level_of
from rocketstream.server.broker.core.topics import SCHEDULE_TOPIC
from rocketstream.server.store import MessageStore, Place

_NO_DELAY = (MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_ROLLBACK)


@dataclass(slots=True)
class InnerMessage:
    """A message with all fields of its record but the offsets; hosts are packed bytes."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def index_keys(properties: dict[str, str]) -> list[str]:
    """Return the words that find a message: its id and as many keys as are indexed."""
    return words_of(properties.get(PROPERTY_UNIQ_KEY), properties.get(PROPERTY_KEYS))


class MessageWriter:
    """Puts messages into a broker's store."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def put(self, message: InnerMessage, *, delayed: bool = True) -> Place:
        """Store a message; one with a delay level waits in the schedule topic first (C-404).

        Args:
            message: the message; its properties are changed when it is delayed.
            delayed: False delivers a message whose delay is over.

        Raises:
            StoreError: the message was not stored.
            LocalProtocolError: it does not fit a record.
        """
        return self._controller.store.append((self._draft(message, delayed=delayed),))[0]

    def put_both(
        self, message: InnerMessage, other: InnerMessage, *, delayed: bool = True
    ) -> Place:
        """Store a message and what belongs to it, of another queue, with one write.

        A broker that is killed, or whose disk is full, then has both or neither. Only where no file
        of the log holds both, or the queues' files cannot be mapped at once, does the other follow
        with a write of its own.

        Args:
            message: the message, as for :meth:`put`.
            other: the other one, which is never delayed.
            delayed: as for :meth:`put`.

        Returns:
            The place of the message.

        Raises:
            StoreError: the message was not stored; or, in those two cases, the other was not.
            LocalProtocolError: one of them does not fit a record; neither was stored.
        """
        store = self._controller.store
        drafts = (self._draft(message, delayed=delayed), self._draft(other, delayed=False))
        try:
            places = store.append(drafts, whole=True)
        except RecordTooLargeError:
            places = store.append(drafts)
        if len(places) == 1:
            store.append(drafts[1:])
        return places[0]

    def _draft(self, message: InnerMessage, *, delayed: bool) -> Draft:
        level = delay_level_of(message.properties) if delayed else 0
        if level > 0 and (message.sys_flag & MessageSysFlag.TRANSACTION_MASK) not in _NO_DELAY:
            return self._delayed(message, level)
        code = tags_code(message.properties.get(PROPERTY_TAGS))
        return draft_of(message, message.topic, message.queue_id, code)

    def _delayed(self, message: InnerMessage, level: int) -> Draft:
        controller = self._controller
        level = controller.schedule.clamp(level)
        message.properties[PROPERTY_REAL_TOPIC] = message.topic
        message.properties[PROPERTY_REAL_QID] = str(message.queue_id)
        message.properties[PROPERTY_DELAY] = str(level)
        queue_id = queue_of_level(level)
        offset = controller.store.next_offset(SCHEDULE_TOPIC, queue_id)
        due_ms = controller.schedule.stamp(
            level, offset, controller.now_ms(), controller.steady_ms()
        )
        return draft_of(message, SCHEDULE_TOPIC, queue_id, due_ms)


def draft_of(message: InnerMessage, topic: str, queue_id: int, code: int = 0) -> Draft:
    """Return the draft of a message in a topic's queue, with a tagsCode.

    Raises:
        LocalProtocolError: the properties are too long for a record.
    """
    return new_draft(
        topic,
        queue_id,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.born_host,
        message.store_host,
        message.body,
        sealable(encode_properties(message.properties).encode()),
        code,
        index_keys(message.properties),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record read back, with its properties."""

    record: bytes
    head: RecordHead
    properties: dict[str, str]

    @property
    def body(self) -> bytes:
        """The body as stored."""
        start = self.head.body_start
        return self.record[start : start + self.head.body_size]

    def may_be(self, msg_id: str | None) -> bool:
        """Tell whether this can be the message that a peer names: by its sender's ID, or its place.

        Places are given anew after a power loss: the message at one may be another by now. A peer
        that names none, and one that names a part of a batch in one record, is believed.
        """
        unique = self.properties.get(PROPERTY_UNIQ_KEY)
        if not msg_id or not unique or self.head.sys_flag & MessageSysFlag.INNER_BATCH:
            return True
        return msg_id == unique or msg_id[-16:].upper() == f"{self.head.physical_offset:016X}"


def read_stored(record: bytes) -> StoredMessage:
    """Read a record of the store."""
    head = read_head(record)
    start = head.properties_start
    properties = decode_properties(record[start : start + head.properties_size])
    return StoredMessage(bytes(record), head, properties)


def read_own(store: MessageStore, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
    """Read a message of a queue of the broker's own; None where it is gone.

    Its unit is mended where it names another place: it was compared before, and may be damaged
    since.

    Raises:
        RemoteProtocolError: the record is damaged.
    """
    for is_mended in (False, True):
        entries = store.consume_queue_entries(topic, queue_id, offset, 1)
        record = store.read(entries[0][0]) if entries and entries[0][0] >= 0 else None
        if record is not None:
            stored = read_stored(record)
            head = stored.head
            if (head.topic, head.queue_id, head.queue_offset) == (topic, queue_id, offset):
                return stored
        if not is_mended:
            store.mend(topic, queue_id, offset, offset + 1)
    return None


def copy_of(stored: StoredMessage, topic: str, queue_id: int) -> InnerMessage:
    """Return a message with the same content and origin for another queue."""
    head = stored.head
    return InnerMessage(
        topic=topic,
        queue_id=queue_id,
        body=stored.body,
        properties=dict(stored.properties),
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        born_host=head.born_host_bytes,
        store_host=head.store_host_bytes,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
    )

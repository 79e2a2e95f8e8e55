"""Messages looked up where brokers keep them: by id, by key, by place.

Law: joins no group, stores no offset. Each message found says at which broker it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketstream import limits
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import AdminWire
from rocketstream.errors import BrokerError, OffsetNotFoundError, RemoteProtocolError
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.names import TOOLS_CONSUMER_GROUP

if TYPE_CHECKING:
    from rocketstream.admin.service import Reach
    from rocketstream.model import MessageQueue
    from rocketstream.protocol.message_ext import MessageExt

MESSAGES_MAX: Final = 64
"""Most messages of one answer to a query of the index (C-538)."""
READ_AT_ONCE: Final = 32
"""Most messages in one answer to a pull, at an Apache broker."""
LAST_MS: Final = 0x7FFF_FFFF_FFFF_FFFF

# A broker stops before the message that would not fit; as usually configured none has 4 MiB.
_MAY_BE_CUT_BYTES: Final = limits.QUERY_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class IndexPage:
    """One answer of a broker's index.

    Attributes:
        fresh: messages that no earlier answer contained.
        floor_ms: messages stored before this time may be missing; None where the answer was
            complete.
    """

    fresh: list[MessageExt]
    floor_ms: int | None


class Lookup:
    """Looks messages up in one cluster."""

    def __init__(self, reach: Reach) -> None:
        self._client = reach.client
        self.wire: AdminWire = reach.wire

    def by_id(
        self, topic: str, msg_id: str, masters: Mapping[str, str], most: int = MESSAGES_MAX
    ) -> Iterator[MessageExt]:
        """Yield the messages with an id their sender gave them, at these brokers."""
        for name, address in masters.items():
            found = self.wire.messages_by_key(address, topic, msg_id, most, unique=True)
            for message in found:
                message._broker_name = name
                yield message

    def at_place(self, topic: str, msg_id: str) -> MessageExt | None:
        """Return the message an id locates, if it is a broker's id of this cluster."""
        try:
            host, port, offset = decode_offset_msg_id(msg_id)
        except RemoteProtocolError:
            return None
        address = format_address(host, port)
        # A sender's id has the same form; only with a broker's own address does it locate a
        # message.
        named = [name for name, each in self.wire.masters().items() if each == address]
        if offset < 0 or not named:
            return None
        try:
            message = self.wire.ask(address, questions.message_at(offset))
        except BrokerError:
            return None
        message._broker_name = named[0]
        return message if message.topic == topic else None

    def one(self, topic: str, msg_id: str) -> MessageExt:
        """Return a message by either of its ids.

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        placed = self.at_place(topic, msg_id)
        if placed is not None:
            return placed
        for message in self.by_id(topic, msg_id, self.wire.topic_masters(topic), 1):
            return message
        raise OffsetNotFoundError(
            int(ResponseCode.QUERY_NOT_FOUND), f"no message {msg_id!r} in topic {topic!r}"
        )

    def first_sent(self, topic: str, msg_id: str) -> MessageExt:
        """Return the first message with an id: messages sent again later have the same id."""
        found = self.one(topic, msg_id)
        if found.offset_msg_id == msg_id:
            return found
        every = self.by_id(topic, msg_id, self.wire.topic_masters(topic))
        return min(every, key=lambda message: message.store_timestamp, default=found)

    def read(self, queue: MessageQueue, begin: int, end: int) -> Iterator[MessageExt]:
        """Yield the messages of a range of a queue, pulled as the operators' tools' own group.

        Brokers make a group known when it pulls.
        """
        address = self._client.address(queue.broker_name)
        at = begin
        while at < end:
            most = min(READ_AT_ONCE, end - at)
            found, at = self.wire.pull(address, TOOLS_CONSUMER_GROUP, queue, at, most)
            for message in found:
                if message.queue_offset < end:
                    message._broker_name = queue.broker_name
                    yield message

    def pages(
        self,
        broker_name: str,
        address: str,
        topic: str,
        key: str,
        *,
        last_ms: int = LAST_MS,
        most: int = MESSAGES_MAX,
    ) -> Iterator[IndexPage]:
        """Yield the answers of one broker's index for a key, backwards in time.

        An answer holds at most 64 messages and, from our broker, as many as fit
        ``QUERY_BYTES_MAX``: the next one is asked for, whichever bound ended an answer, until one
        is the last or contains nothing new.

        Args:
            last_ms: the last store time that is wanted.
            most: how many messages one answer holds, at most ``MESSAGES_MAX``.

        Raises:
            RocketMQError: the broker did not answer.
        """
        seen: set[int] = set()
        while True:
            some = self.wire.messages_by_key(address, topic, key, most, until_ms=last_ms)
            fresh = [m for m in some if m.commit_log_offset not in seen]
            for message in fresh:
                message._broker_name = broker_name
                seen.add(message.commit_log_offset)
            has_more = len(some) >= most or (sum(m.store_size for m in some) >= _MAY_BE_CUT_BYTES)
            last_ms = min((m.store_timestamp for m in some), default=last_ms)
            yield IndexPage(fresh, last_ms if has_more else None)
            if not has_more or not fresh:
                return

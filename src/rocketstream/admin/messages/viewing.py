"""Single messages and their consumers: view, query, time spans (C-538)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rocketstream.admin.messages.index_pages import MESSAGES_MAX, index_pages
from rocketstream.admin.messages.shown import Showing
from rocketstream.admin.service import Service, question
from rocketstream.errors import BrokerError, OffsetNotFoundError, RemoteProtocolError
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.message_id import decode_offset_msg_id

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt


class MessageAdmin(Service):
    """The operations of ``Admin`` on single messages."""

    @functools.cached_property
    def _showing(self) -> Showing:
        """Decodes and masks every message that leaves here."""
        return Showing(self._reach.masking)

    @question
    def view(self, topic: str, msg_id: str) -> MessageExt:
        """Return one message by either of its ids, with masked parts replaced.

        Args:
            topic: the message's topic; needed for the id its sender gave it.
            msg_id: the broker's id (``offset_msg_id``) or the sender's (``msg_id``, UNIQ_KEY).

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        return self._showing.masked(self._found(topic, msg_id))

    def _found(self, topic: str, msg_id: str) -> MessageExt:
        by_offset = self._message_by_offset_id(topic, msg_id)
        if by_offset is not None:
            return by_offset
        for name, address in self._wire.topic_masters(topic).items():
            found = self._wire.messages_by_key(address, topic, msg_id, 1, unique=True)
            if found:
                found[0]._broker_name = name
                return found[0]
        raise OffsetNotFoundError(
            int(ResponseCode.QUERY_NOT_FOUND), f"no message {msg_id!r} in topic {topic!r}"
        )

    def _message_by_offset_id(self, topic: str, msg_id: str) -> MessageExt | None:
        """Return the message an id locates, if it is a broker's id of this cluster."""
        try:
            host, port, offset = decode_offset_msg_id(msg_id)
        except RemoteProtocolError:
            return None
        address = format_address(host, port)
        # A sender's id has the same form; only with a broker's own address does it locate a
        # message.
        named = [name for name, each in self._wire.masters().items() if each == address]
        if offset < 0 or not named:
            return None
        try:
            message = self._wire.message_at(address, offset)
        except BrokerError:
            return None
        message._broker_name = named[0]
        return message if message.topic == topic else None

    @question
    def query(self, topic: str, key: str, most: int = 32) -> list[MessageExt]:
        """Return the newest messages with a key, the oldest of them first; masked as one viewed.

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        found: list[MessageExt] = []
        for name, address in self._wire.topic_masters(topic).items():
            told = 0
            for page in index_pages(self._wire, address, topic, key, most=min(most, MESSAGES_MAX)):
                for message in page.fresh:
                    message._broker_name = name
                found += page.fresh
                told += len(page.fresh)
                if told >= most:
                    break
        found.sort(key=lambda message: (message.store_timestamp, message.commit_log_offset))
        return [self._showing.masked(message) for message in found[-most:]]

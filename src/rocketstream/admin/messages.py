"""Single messages and who consumes them: view, query, track, time spans (C-538).

Law: questions only; nothing is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstream.admin.resets import ResetAdmin
from rocketstream.admin.rows import TimeSpanRow, TrackRow
from rocketstream.errors import (
    BrokerError,
    OffsetNotFoundError,
    RemoteProtocolError,
    RocketMQError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import PROPERTY_TAGS
from rocketstream.transport.addresses import format_address

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection, QueueTimeSpan
    from rocketstream.protocol.message_ext import MessageExt

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
MESSAGES_MAX = 64


class MessageAdmin(ResetAdmin):
    """The operations of ``Admin`` on single messages."""

    def message_view(self, topic: str, msg_id: str) -> MessageExt:
        """Return one message by either of its ids.

        Args:
            topic: the message's topic; needed for the id its sender gave it.
            msg_id: the broker's id (``offset_msg_id``) or the sender's (``msg_id``, UNIQ_KEY).

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        by_offset = self._message_by_offset_id(topic, msg_id)
        if by_offset is not None:
            return by_offset
        for address in self._topic_masters(topic).values():
            found = self._wire.messages_by_key(address, topic, msg_id, 1, unique=True)
            if found:
                return found[0]
        raise OffsetNotFoundError(
            int(ResponseCode.QUERY_NOT_FOUND), f"no message {msg_id!r} in topic {topic!r}"
        )

    def _message_by_offset_id(self, topic: str, msg_id: str) -> MessageExt | None:
        """Return the message at the place an id names, if it is a broker's id of this cluster."""
        try:
            host, port, offset = decode_offset_msg_id(msg_id)
        except RemoteProtocolError:
            return None
        address = format_address(host, port)
        # A sender's id has the same form; only a broker's own address makes it a place.
        if offset < 0 or address not in self._wire.masters().values():
            return None
        try:
            message = self._wire.message_at(address, offset)
        except BrokerError:
            return None
        return message if message.topic == topic else None

    def message_query(self, topic: str, key: str, most: int = 32) -> list[MessageExt]:
        """Return the newest messages with a key, the oldest of them first.

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        found: list[MessageExt] = []
        for address in self._topic_masters(topic).values():
            found += self._wire.messages_by_key(address, topic, key, min(most, MESSAGES_MAX))
        found.sort(key=lambda message: (message.store_timestamp, message.commit_log_offset))
        return found[-most:]

    def message_track(self, topic: str, msg_id: str) -> list[TrackRow]:
        """Return what became of a message in every group that consumes its topic.

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        message = self.message_view(topic, msg_id)
        masters = self._wire.masters()
        return [self._track(group, message, masters) for group in self.topic_consumers(topic)]

    def _track(self, group: str, message: MessageExt, masters: dict[str, str]) -> TrackRow:
        try:
            connections = self._connections(group, masters)
            if not connections:
                return TrackRow(group, "NOT_ONLINE", "no member of the group is connected")
            connection = next(iter(connections.values()))
            if connection.consume_type == CONSUME_ACTIVELY:
                return TrackRow(group, "PULL")
            if not self._is_consumed(group, message, masters):
                return TrackRow(group, "NOT_CONSUME_YET")
        except RocketMQError as error:
            return TrackRow(group, "UNKNOWN", error.message)
        filtered = _is_filtered(connection, message)
        return TrackRow(group, "CONSUMED_BUT_FILTERED" if filtered else "CONSUMED")

    def _is_consumed(self, group: str, message: MessageExt, masters: dict[str, str]) -> bool:
        names = [name for name, address in masters.items() if address == message.store_host]
        if not names:
            return False
        stats = self._wire.consume_stats(masters[names[0]], group, message.topic)
        queue = MessageQueue(message.topic, names[0], message.queue_id)
        entry = stats.offset_table.get(queue)
        return entry is not None and entry.consumer_offset > message.queue_offset

    def consume_time_span(self, group: str, topic: str) -> list[TimeSpanRow]:
        """Return between which store times a group stands, by queue (303).

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        rows: list[TimeSpanRow] = []
        for address in self._topic_masters(topic).values():
            spans = self._wire.time_span(address, topic, group).consume_time_span_set
            rows += [_span_row(span.message_queue, span) for span in spans if span.message_queue]
        return sorted(rows, key=lambda row: (row.broker_name, row.queue_id))

    def topic_consumers(self, topic: str) -> list[str]:
        """Return the groups that subscribe a topic now or have progress in it (300).

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        groups: set[str] = set()
        for address in self._topic_masters(topic).values():
            groups |= self._wire.groups_of(address, topic)
        return sorted(groups)

    # --- parts -----------------------------------------------------------------------------------

    def _topic_masters(self, topic: str) -> dict[str, str]:
        route = self._wire.route(topic)
        masters = {data.broker_name: data.broker_addrs.get(0) for data in route.broker_datas}
        return {name: address for name, address in masters.items() if address}


def _is_filtered(connection: ConsumerConnection, message: MessageExt) -> bool:
    """Whether the group consumed past the message without wanting its tag."""
    subscription = connection.subscription_table.get(message.topic)
    tags = subscription.tags_set if subscription else set()
    return bool(tags) and "*" not in tags and message.properties.get(PROPERTY_TAGS) not in tags


def _span_row(queue: MessageQueue, span: QueueTimeSpan) -> TimeSpanRow:
    return TimeSpanRow(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        min_store_ms=_known_ms(span.min_time_stamp),
        max_store_ms=_known_ms(span.max_time_stamp),
        consumed_ms=_known_ms(span.consume_time_stamp),
        delay_ms=span.delay_time,
    )


def _known_ms(timestamp: int) -> int | None:
    return timestamp if timestamp > 0 else None

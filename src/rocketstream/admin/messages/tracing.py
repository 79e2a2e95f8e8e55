"""The trace of a message: the records its producer and consumers wrote, as a timeline.

``core.timeline`` decides what records mean.
"""

from __future__ import annotations

import itertools
from typing import Final

from rocketstream.admin.core.timeline import TraceTimeline, masked_keys, timeline
from rocketstream.admin.messages.index_pages import MESSAGES_MAX, index_pages
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.admin.service import question
from rocketstream.errors import (
    OffsetNotFoundError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import TRACE_TOPIC
from rocketstream.protocol.trace import TraceRecord, decode_trace

TRACE_PAGES_MAX: Final = 8
"""Most questions to one broker about one message, enough for 512 trace messages."""


class TraceAdmin(MessageAdmin):
    """Reads message traces."""

    @question
    def trace(self, topic: str, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> TraceTimeline:
        """Return the events producers and consumers recorded of a message.

        Clients record a message only if their tracing is on; without a record the timeline is
        empty. The store time is asked of the broker. Records of Java's clients and of ours are
        read.

        Args:
            topic: the message's topic.
            msg_id: the sender's id, or the broker's while the message is stored.
            trace_topic: the topic that holds the records.

        Raises:
            RouteNotFoundError: the topic or the trace topic is unknown.
        """
        message: MessageExt | None
        try:
            message = self._first_sent(topic, msg_id)
        except OffsetNotFoundError:
            message = None
        unique = message.msg_id if message is not None else msg_id
        try:
            masters = self._wire.topic_masters(trace_topic)
        except RouteNotFoundError:
            raise RouteNotFoundError(
                f"there is no trace: topic {trace_topic!r} does not exist; brokers create it where "
                "traceTopicEnable=true, and clients record with enable_msg_trace=True",
                topic=trace_topic,
            ) from None
        records: list[tuple[TraceRecord, str | None]] = []
        problems: list[str] = []
        for name, address in masters.items():
            try:
                for found in self._trace_messages(address, trace_topic, unique, problems):
                    records += [(r, _client(found)) for r in _records(found, problems)]
            except RocketMQError as error:
                problems.append(f"broker {name}: {error.message}")
        told = timeline(
            topic,
            unique,
            records,
            None if message is None else message.store_timestamp,
            None if message is None else message.store_host,
            tuple(dict.fromkeys(problems)),
        )
        keys = next((send.keys for send in told.sends if send.keys), None)
        masked = self._showing.masking.apply_keys(keys)
        return told if masked == keys else masked_keys(told, masked)

    def _first_sent(self, topic: str, msg_id: str) -> MessageExt:
        """Return the first message with an id: messages sent again later have the same id."""
        found = self._found(topic, msg_id)
        if found.offset_msg_id == msg_id:
            return found
        every = [
            message
            for address in self._wire.topic_masters(topic).values()
            for message in self._wire.messages_by_key(
                address, topic, msg_id, MESSAGES_MAX, unique=True
            )
        ]
        return min(every, key=lambda message: message.store_timestamp, default=found)

    def _trace_messages(
        self, address: str, trace_topic: str, msg_id: str, problems: list[str]
    ) -> list[MessageExt]:
        found: list[MessageExt] = []
        pages = index_pages(self._wire, address, trace_topic, msg_id)
        for page in itertools.islice(pages, TRACE_PAGES_MAX):
            found += page.fresh
            if page.floor_ms is None:
                return found
        problems.append(f"there may be more records than the {len(found)} messages found hold")
        return found


def _records(message: MessageExt, problems: list[str]) -> list[TraceRecord]:
    try:
        return decode_trace(message.body.decode("utf-8", "replace"))
    except RemoteProtocolError as error:
        problems.append(f"a trace message at {message.offset_msg_id}: {error.message}")
        return []


def _client(message: MessageExt) -> str | None:
    return message.born_host

"""The fate of a message in every group: its copies and the groups' progress, looked up (C-538).

``core.tracking`` decides what the facts mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rocketstream.admin.core.again import PROPERTY_REDRIVEN_FROM
from rocketstream.admin.core.tracking import (
    DEAD,
    DELAYS_S,
    RETRY,
    UNKNOWN,
    WAITS,
    Copy,
    TrackFacts,
    track,
)
from rocketstream.admin.messages.index_pages import MESSAGES_MAX
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.admin.rows import TrackRow
from rocketstream.admin.service import question
from rocketstream.admin.topics import Topics
from rocketstream.errors import ConsumerNotOnlineError, RocketMQError, SubscriptionError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerConnection
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rocketstream.protocol.properties import (
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
)
from rocketstream.protocol.sql92 import compile_expression

CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
BROADCASTING: Final = "BROADCASTING"


class TrackAdmin(MessageAdmin):
    """Follows a message, group by group."""

    @question
    def track(self, topic: str, msg_id: str) -> list[TrackRow]:
        """Return the fate of a message in every group that consumes its topic.

        Copies a group sent back are looked for in its retry and dead-letter topics and in the delay
        topic, by the sender's id, which every copy keeps. The search takes one request for each
        topic, and three about the group. A message that was dead-lettered and sent again is
        followed from there.

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        message = self._found(topic, msg_id)
        masters = self._wire.masters()
        looked = _Looked(self, message, masters, is_place=msg_id == message.offset_msg_id)
        return [self._track_one(group, looked) for group in Topics(self._reach).consumers(topic)]

    def _track_one(self, group: str, looked: _Looked) -> TrackRow:
        try:
            found = track(self._track_facts(group, looked))
        except RocketMQError as error:
            return TrackRow(group, UNKNOWN, error.message)
        return TrackRow(group, found.status, found.why, found.tries, found.since_ms, found.due_ms)

    def _track_facts(self, group: str, looked: _Looked) -> TrackFacts:
        try:
            connections = self._wire.connections(group, looked.masters)
        except ConsumerNotOnlineError:
            connections = {}
        connection = next(iter(connections.values()), None)
        copies, redriven = looked.copies(group) if looked.problem is None else (None, None)
        message = redriven or looked.message
        return TrackFacts(
            offset=message.queue_offset,
            committed=self._track_committed(group, message, looked.masters),
            is_online=connection is not None,
            is_pulling=connection is not None and connection.consume_type == CONSUME_ACTIVELY,
            is_broadcast=connection is not None and connection.message_model == BROADCASTING,
            is_wanted=None if connection is None else _is_wanted(connection, message),
            copies=copies,
            no_copies_why=looked.problem,
            redriven_ms=None if redriven is None else redriven.store_timestamp,
        )

    def _track_committed(
        self, group: str, message: MessageExt, masters: Mapping[str, str]
    ) -> int | None:
        """Return a group's offset in the queue of a message; None without one."""
        name = message.broker_name
        stats = self._wire.consume_stats(masters[name], group, message.topic)
        entry = stats.offset_table.get(MessageQueue(message.topic, name, message.queue_id))
        # Brokers without an offset answer 0 or -1 here.
        return entry.consumer_offset if entry is not None and entry.consumer_offset > 0 else None

    def _track_is_passed(
        self, group: str, copy: MessageExt, masters: Mapping[str, str]
    ) -> bool | None:
        try:
            committed = self._track_committed(group, copy, masters)
        except RocketMQError:
            return None
        return committed is not None and committed > copy.queue_offset


class _Looked:
    """One message and its copies, looked up once for all groups."""

    def __init__(
        self, admin: TrackAdmin, message: MessageExt, masters: dict[str, str], *, is_place: bool
    ) -> None:
        self._admin = admin
        self.masters = masters
        self._id = message.properties.get(PROPERTY_UNIQ_KEY)
        self._siblings = list(self._by_id(message.topic)) if self._id else []
        # A sender's id names the first message sent, also after it was sent again.
        first = min(self._siblings, key=lambda m: m.store_timestamp, default=message)
        self.message = message if is_place else first
        self._waiting = list(self._by_id(SCHEDULE_TOPIC)) if self._id else []
        self.problem = self._problem()

    def _problem(self) -> str | None:
        if self._id is None:
            return "it has no id from its sender by which copies could be found"
        mine = _place(self.message)
        if all(_place(each) != mine for each in self._siblings):
            return "the key index of its broker does not know it"
        return None

    def _by_id(self, topic: str) -> Iterator[MessageExt]:
        for name, address in self.masters.items():
            found = self._admin._wire.messages_by_key(
                address, topic, str(self._id), MESSAGES_MAX, unique=True
            )
            for message in found:
                message._broker_name = name
                yield message

    def copies(self, group: str) -> tuple[Sequence[Copy], MessageExt | None]:
        """Return the copies a group sent back, and the message sent again after it gave up."""
        dead = [m for m in self._by_id(dlq_topic(group)) if self._is_mine(m)]
        retried = [m for m in self._by_id(retry_topic(group)) if self._is_mine(m)]
        waiting = [
            m
            for m in self._waiting
            if m.properties.get(PROPERTY_REAL_TOPIC) == retry_topic(group) and self._is_mine(m)
        ]
        again = self._redriven(group, dead)
        since = again.store_timestamp if again is not None else 0
        redriven = again if again is not None and again.topic == self.message.topic else None
        copies = [Copy(DEAD, m.reconsume_times, m.store_timestamp) for m in dead]
        copies += [
            Copy(
                RETRY,
                m.reconsume_times,
                m.store_timestamp,
                self._admin._track_is_passed(group, m, self.masters),
            )
            for m in retried
        ]
        copies += [
            Copy(WAITS, m.reconsume_times, m.store_timestamp, due_ms=_due_ms(m)) for m in waiting
        ]
        return [copy for copy in copies if copy.store_ms >= since], redriven

    def _redriven(self, group: str, dead: Sequence[MessageExt]) -> MessageExt | None:
        """Return the last message that was sent for one of a group's dead letters."""
        if not dead:
            return None
        prefix = f"{dlq_topic(group)}/"
        sent = [
            m
            for m in (*self._siblings, *self._by_id(retry_topic(group)))
            if m.properties.get(PROPERTY_REDRIVEN_FROM, "").startswith(prefix)
        ]
        last = max(sent, key=lambda m: m.store_timestamp, default=None)
        if last is None or last.store_timestamp < max(m.store_timestamp for m in dead):
            return None
        return last

    def _is_mine(self, copy: MessageExt) -> bool:
        """Whether a copy is of this message, not of another one sent with its id."""
        origin = copy.properties.get(PROPERTY_ORIGIN_MESSAGE_ID)
        others = {m.offset_msg_id for m in self._siblings if _place(m) != _place(self.message)}
        redriven = {m.offset_msg_id for m in self._siblings if PROPERTY_REDRIVEN_FROM in
                    m.properties}  # fmt: skip
        return origin is None or origin not in others - redriven


def _place(message: MessageExt) -> tuple[str, int]:
    return message.broker_name, message.commit_log_offset


def _due_ms(message: MessageExt) -> int | None:
    level = message.delay_level
    if not level:
        return None
    return message.store_timestamp + DELAYS_S[min(level, len(DELAYS_S)) - 1] * 1_000


def _is_wanted(connection: ConsumerConnection, message: MessageExt) -> bool | None:
    """Whether the group's subscription selects a message; None where that is unknown."""
    subscription = connection.subscription_table.get(message.topic)
    if subscription is None:
        return None
    if subscription.expression_type == "SQL92":
        try:
            return compile_expression(subscription.sub_string).matches(message.properties)
        except SubscriptionError:
            return None
    tags = subscription.tags_set
    return not tags or "*" in tags or message.tags in tags

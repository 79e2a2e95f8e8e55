"""The fate of a message in every group: its copies and the groups' progress, looked up (C-538).

Law: where the facts do not decide, the status is UNKNOWN, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rocketstream.admin.messages.lookup import Lookup
from rocketstream.admin.rows import TrackRow
from rocketstream.admin.wire import questions
from rocketstream.errors import RocketMQError, SubscriptionError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerConnection
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rocketstream.protocol.properties import (
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REDRIVEN_FROM,
    PROPERTY_UNIQ_KEY,
)
from rocketstream.protocol.sql92 import compile_expression

UNKNOWN: Final = "UNKNOWN"
DELAYS_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""The delays of levels 1 to 18 in ms, unless a broker is configured otherwise."""

WAITS: Final = "waits"
RETRY: Final = "retry"
DEAD: Final = "dead"
_ORDER: Final = {WAITS: 0, RETRY: 1, DEAD: 2}


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message that a group sent back.

    Attributes:
        kind: ``waits`` (in the delay topic), ``retry`` (in the retry topic) or ``dead``.
        tries: how often it was sent back before.
        store_ms: when it was stored.
        is_passed: in the retry topic, whether the group's offset is past the copy; None when not
            known.
        due_ms: in the delay topic, when the copy is due by the usual delays, ms since 1970.
    """

    kind: str
    tries: int
    store_ms: int
    is_passed: bool | None = None
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TrackFacts:
    """The known facts about a message in a group.

    Attributes:
        group: the group.
        offset: the message's offset in its queue.
        committed: the group's offset there; None where it has none.
        is_online: whether a member is connected.
        is_pulling: whether its members pull by themselves.
        is_broadcast: whether each member consumes all, and keeps its own offsets.
        is_wanted: whether the group's subscription wants the message; None when not known.
        copies: the copies the group sent back; None where they could not be looked for.
        no_copies_why: why they could not be looked for.
        redriven_ms: when the message was sent again after the group gave it up; else None.
    """

    group: str
    offset: int
    committed: int | None
    is_online: bool
    is_pulling: bool = False
    is_broadcast: bool = False
    is_wanted: bool | None = None
    copies: Sequence[Copy] | None = ()
    no_copies_why: str | None = None
    redriven_ms: int | None = None


def track(facts: TrackFacts) -> TrackRow:
    """Return the fate of a message, decided from the facts alone."""
    last = max(
        facts.copies or (), key=lambda c: (c.tries, c.store_ms, _ORDER[c.kind]), default=None
    )
    found = _of_offset(facts) if last is None else _of_copy(last, facts)
    if facts.redriven_ms is None:
        return found
    why = "it was dead-lettered and sent again"
    return replace(
        found,
        description=f"{why}; {found.description}" if found.description else why,
        since_ms=found.since_ms or facts.redriven_ms,
    )


def _of_copy(last: Copy, facts: TrackFacts) -> TrackRow:
    group, tries, at_ms = facts.group, last.tries, last.store_ms
    times = "once" if tries == 1 else f"{tries} times" if tries else "to the group"
    if last.kind == DEAD:
        why = "it is in the group's dead-letter topic"
        return TrackRow(group, "DEAD_LETTERED", why, tries, at_ms)
    if last.kind == WAITS:
        why = f"it was sent back {times} and waits in the delay topic for its next try"
        return TrackRow(group, "RETRYING", why, tries, at_ms, last.due_ms)
    if last.is_passed:
        return TrackRow(group, "CONSUMED", f"after it was sent back {times}", tries)
    if last.is_passed is None:
        why = f"it was sent back {times}; whether the last try is over could not be asked"
        return TrackRow(group, UNKNOWN, why, tries, at_ms)
    why = f"it was sent back {times} and stands in the retry topic, not consumed yet"
    if not facts.is_online:
        why += "; no member is connected"
    return TrackRow(group, "RETRYING", why, tries, at_ms)


def _of_offset(facts: TrackFacts) -> TrackRow:
    def fate(status: str, why: str | None = None) -> TrackRow:
        return TrackRow(facts.group, status, why)

    if facts.is_broadcast:
        return fate(UNKNOWN, "each member of a broadcasting group keeps its own progress")
    passed = facts.committed is not None and facts.committed > facts.offset
    if not passed and not facts.is_online:
        return fate("NOT_ONLINE", "not consumed, and no member is connected")
    if facts.is_online and facts.is_pulling and facts.committed is None:
        return fate("PULL", "its members pull, and keep no offset at the broker")
    if not passed:
        why = f"the group's offset is {facts.committed or 0}, its {facts.offset}"
        return fate("NOT_CONSUME_YET", why)
    if facts.is_online and facts.is_wanted is False:
        return fate("CONSUMED_BUT_FILTERED")
    if facts.copies is None:
        return fate(
            UNKNOWN,
            "the group's offset is past it; whether it was sent back cannot be told: "
            f"{facts.no_copies_why}",
        )
    if facts.is_online:
        return fate("CONSUMED")
    return fate(
        "NOT_ONLINE",
        "the group's offset is past it and it was not sent back; no member is connected to tell "
        "whether its subscription wanted it",
    )


# --- looking them up ------------------------------------------------------------------------------


class Tracked:
    """One message and its copies, looked up once for all groups.

    Args:
        masters: the address of each broker's master.
        is_place: whether the message was named by its place, not by its sender's id.
    """

    def __init__(
        self, lookup: Lookup, message: MessageExt, masters: Mapping[str, str], *, is_place: bool
    ) -> None:
        self._lookup = lookup
        self._wire = lookup.wire
        self._masters = masters
        self._id = message.properties.get(PROPERTY_UNIQ_KEY)
        self._siblings = self._by_id(message.topic)
        # A sender's id names the first message sent, also after it was sent again.
        first = min(self._siblings, key=lambda m: m.store_timestamp, default=message)
        self._message = message if is_place else first
        self._waiting = self._by_id(SCHEDULE_TOPIC)
        self._problem = self._why_no_copies()

    def row(self, group: str) -> TrackRow:
        """Return the fate of the message in a group."""
        try:
            return track(self._facts(group))
        except RocketMQError as error:
            return TrackRow(group, UNKNOWN, error.message)

    def _facts(self, group: str) -> TrackFacts:
        connection = next(iter(self._wire.connections(group, self._masters).values()), None)
        copies, redriven = (None, None) if self._problem is not None else self._copies(group)
        message = redriven or self._message
        is_online = connection is not None
        return TrackFacts(
            group=group,
            offset=message.queue_offset,
            committed=self._committed(group, message),
            is_online=is_online,
            is_pulling=connection is not None and connection.consume_type == "CONSUME_ACTIVELY",
            is_broadcast=connection is not None and connection.message_model == "BROADCASTING",
            is_wanted=None if connection is None else _is_wanted(connection, message),
            copies=copies,
            no_copies_why=self._problem,
            redriven_ms=None if redriven is None else redriven.store_timestamp,
        )

    def _committed(self, group: str, message: MessageExt) -> int | None:
        """Return a group's offset in the queue of a message; None without one."""
        name = message.broker_name
        stats = self._wire.ask(self._masters[name], questions.stats_of(group, message.topic))
        entry = stats.offset_table.get(MessageQueue(message.topic, name, message.queue_id))
        # Brokers without an offset answer 0 or -1 here.
        return entry.consumer_offset if entry is not None and entry.consumer_offset > 0 else None

    def _is_passed(self, group: str, copy: MessageExt) -> bool | None:
        try:
            committed = self._committed(group, copy)
        except RocketMQError:
            return None
        return committed is not None and committed > copy.queue_offset

    def _why_no_copies(self) -> str | None:
        if self._id is None:
            return "it has no id from its sender by which copies could be found"
        mine = _place(self._message)
        if all(_place(each) != mine for each in self._siblings):
            return "the key index of its broker does not know it"
        return None

    def _by_id(self, topic: str) -> list[MessageExt]:
        return list(self._lookup.by_id(topic, self._id, self._masters)) if self._id else []

    def _copies(self, group: str) -> tuple[Sequence[Copy], MessageExt | None]:
        """Return the copies a group sent back, and the message sent again after it gave up."""
        retry = retry_topic(group)
        retries = self._by_id(retry)
        dead = [m for m in self._by_id(dlq_topic(group)) if self._is_mine(m)]
        copies = [Copy(DEAD, m.reconsume_times, m.store_timestamp) for m in dead]
        copies += [
            Copy(RETRY, m.reconsume_times, m.store_timestamp, self._is_passed(group, m))
            for m in retries
            if self._is_mine(m)
        ]
        copies += [
            Copy(WAITS, m.reconsume_times, m.store_timestamp, due_ms=_due_ms(m))
            for m in self._waiting
            if m.properties.get(PROPERTY_REAL_TOPIC) == retry and self._is_mine(m)
        ]
        again = self._redriven(group, dead, retries)
        since = again.store_timestamp if again is not None else 0
        redriven = again if again is not None and again.topic == self._message.topic else None
        return [copy for copy in copies if copy.store_ms >= since], redriven

    def _redriven(
        self, group: str, dead: Sequence[MessageExt], retries: Sequence[MessageExt]
    ) -> MessageExt | None:
        """Return the last message that was sent for one of a group's dead letters."""
        prefix = f"{dlq_topic(group)}/"
        sent = [
            m
            for m in (*self._siblings, *retries)
            if m.properties.get(PROPERTY_REDRIVEN_FROM, "").startswith(prefix)
        ]
        last = max(sent, key=lambda m: m.store_timestamp, default=None)
        if last is None or not dead:
            return None
        return last if last.store_timestamp >= max(m.store_timestamp for m in dead) else None

    def _is_mine(self, copy: MessageExt) -> bool:
        """Whether a copy is of this message, not of another one sent with its id."""
        origin = copy.properties.get(PROPERTY_ORIGIN_MESSAGE_ID)
        mine = _place(self._message)
        return origin is None or all(
            m.offset_msg_id != origin or _place(m) == mine or PROPERTY_REDRIVEN_FROM in m.properties
            for m in self._siblings
        )


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

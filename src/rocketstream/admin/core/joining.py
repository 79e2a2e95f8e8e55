"""The join of brokers' answers in one sweep to the states of groups and topics.

Pure: joins and subtractions.

Law: a figure that a broker did not answer stays None, with the reason beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rocketstream.admin.core.filtering import Count
from rocketstream.admin.rows import MemberRow, RunningQueueRow, SubscriptionRow
from rocketstream.admin.state import (
    GroupState,
    QueueKind,
    QueueState,
    TopicQueue,
    TopicState,
    known_ms,
    permission,
)
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.errors import RocketMQError
    from rocketstream.protocol.bodies import (
        ConsumerConnection,
        ProcessQueueInfo,
        QueueTimeSpan,
        SubscriptionData,
        TopicConfig,
    )

Times = tuple[int | None, int | None]
"""Store times in ms since 1970: of the next message to consume, and of the last consumed one."""
NO_TIMES: Times = (None, None)
CLOCK_TOLERANCE_MS = 1_000
"""A broker's clock that differs by less counts as ours, so that its times need no correction.
"""


Tables = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Each broker's offsets by ``topic@group`` and queue (code 43)."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The messages of a queue that a group's filter wants.

    Attributes:
        count: how many; None where that is not known.
        first: offset and store time (ms since 1970) of the first one, if it was found.
        error: why the count is not known.
    """

    count: Count | None = None
    first: tuple[int, int] | None = None
    error: str | None = None


@dataclass(slots=True)
class BrokerAnswers:
    """The answers of one broker during a sweep.

    Attributes:
        topics: settings by topic; None where it refused.
        offsets: committed offsets by group, topic and queue; None where it refused.
        groups: the groups it has settings of; None where it refused.
        ends: the oldest and the next offset of each queue, by topic and queue.
        connections: its connected members by group; a group without connected members is absent.
        refused: why something is missing, by question (see the ``about_`` functions).
        times: store times by group, topic and queue.
        matching: the messages filters want, by group, topic and queue.
        tps: messages a second it delivered to a group, by group and topic.
        delays: by delay level, the offset of the next message to deliver.
        delayed: how many messages wait for their delay, by topic; None where that is not known.
        delayed_is_exact: False where more messages may wait.
        owners: client id by group and queue, as the members reported.
        remembered: the queues it reported before it fell silent, by group.
        consumers: the groups of the one topic that was asked for; None where it did not answer.
        ahead_ms: by how much its clock is ahead of ours; None where that is not known.
        facts: what it reports about itself.
        error: why it cannot be asked (any more); its earlier answers stay.
        failure: the exception behind ``error``; None where the broker has no master.
    """

    cluster: str
    name: str
    addresses: Mapping[int, str]
    topics: Mapping[str, TopicConfig] | None = None
    offsets: Mapping[str, Mapping[str, Mapping[int, int]]] | None = None
    groups: Collection[str] | None = None
    ends: dict[str, Mapping[int, TopicQueue]] = field(default_factory=dict)
    connections: dict[str, ConsumerConnection] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    times: dict[tuple[str, str, int], Times] = field(default_factory=dict)
    matching: dict[tuple[str, str, int], Matching] = field(default_factory=dict)
    tps: dict[tuple[str, str], float] = field(default_factory=dict)
    delays: Mapping[int, int] | None = None
    delayed: Mapping[str, int] | None = None
    delayed_is_exact: bool = True
    owners: dict[tuple[str, MessageQueue], str] = field(default_factory=dict)
    remembered: Mapping[str, Collection[tuple[str, int]]] = field(default_factory=dict)
    consumers: Collection[str] | None = None
    ahead_ms: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    failure: RocketMQError | None = None

    @property
    def master(self) -> str | None:
        """Address of the master; None while there is none."""
        return self.addresses.get(0)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Return a group's committed offsets by queue."""
        return (self.offsets or {}).get(group, {}).get(topic, {})

    def knows(self, group: str) -> bool:
        """Return whether the broker reported a group: its settings, offsets or members."""
        return (
            group in (self.groups or ())
            or group in (self.offsets or {})
            or group in self.connections
            or group in self.remembered
        )

    def subscribed(self, group: str) -> Mapping[str, SubscriptionData]:
        """Return the subscriptions of a group's connected members, by topic."""
        found = self.connections.get(group)
        return {} if found is None else found.subscription_table


def by_group(table: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, Mapping[int, int]]]:
    """Return an offset table (code 43, ``topic@group`` first) by group and topic."""
    found: dict[str, dict[str, Mapping[int, int]]] = {}
    for key, offsets in table.items():
        if (place := names.offsets_place(key)) is not None:
            found.setdefault(place[1], {})[place[0]] = offsets
    return found


def offsets_of(
    tables: Tables, is_meant: Callable[[str], bool]
) -> dict[tuple[str, MessageQueue], int]:
    """Return the committed offsets of the groups that are meant, by group and queue."""
    return {
        (group, MessageQueue(topic, broker_name, queue_id)): offset
        for broker_name, table in tables.items()
        for group, topics in by_group(table).items()
        if is_meant(group)
        for topic, offsets in topics.items()
        for queue_id, offset in offsets.items()
    }


def offsets_of_group(tables: Tables, group: str) -> dict[MessageQueue, int]:
    """Return the group's committed offsets by queue."""
    return {queue: offset for (_, queue), offset in offsets_of(tables, group.__eq__).items()}


def groups_of_offsets(tables: Tables) -> dict[str, set[str]]:
    """Return topics per group, for every group that ever committed an offset."""
    found: dict[str, set[str]] = {}
    for table in tables.values():
        for group, topics in by_group(table).items():
            found.setdefault(group, set()).update(topics)
    return found


def unknown_group(group: str, known: Collection[str]) -> ConfigurationError:
    """Return the error that no broker knows the group; it names groups with similar names."""
    from rocketstream.suggestions import like  # needed only where a name is wrong

    hint = like(group, known) or "; `rocketstream group list` shows the groups there are"
    return ConfigurationError(
        f"consumer group {group!r} is not known to any broker{hint}", group=group
    )


def about_members(group: str) -> str:
    """Return the key in ``refused`` of the question for a group's members."""
    return f"members of {group}"


def about_ends(topic: str) -> str:
    """Return the key in ``refused`` of the question for a topic's queues."""
    return f"queues of {topic}"


def about_times(group: str, topic: str) -> str:
    """Return the key in ``refused`` of the question for a group's store times in a topic."""
    return f"times of {group} in {topic}"


def about_owners(group: str) -> str:
    """Return the key in ``refused`` of the question for the queues members hold."""
    return f"owners in {group}"


def kind_of(group: str, topic: str) -> QueueKind:
    """Return whose messages a topic holds, seen from a group.

    A group consumed by popping (5.x) has a retry topic per topic, ``%RETRY%group_topic`` or
    ``%RETRY%group+topic``.
    """
    retry = names.retry_topic(group)
    if topic == retry or topic.startswith((f"{retry}_", f"{retry}+")):
        return QueueKind.RETRY
    return QueueKind.DEAD_LETTER if topic == names.dlq_topic(group) else QueueKind.TOPIC


def topics_of(group: str, broker: BrokerAnswers) -> list[str]:
    """Return the topics of a group at a broker: consumed, subscribed, its own two.

    As a broker does for GET_CONSUME_STATS (C-527), topics its connected members no longer subscribe
    are left out. The retry topic is kept: its messages would not be seen anywhere otherwise.
    """
    subscribed = broker.subscribed(group)
    if broker.offsets is None and (broker.topics is None or broker.error is not None):
        return []  # the broker did not answer
    found = set((broker.offsets or {}).get(group, ()))
    if subscribed:
        found = {t for t in found if t in subscribed or kind_of(group, t) is QueueKind.RETRY}
    found |= set(subscribed) | _popped_again(group, found | set(subscribed), broker)
    found |= {names.retry_topic(group), names.dlq_topic(group)}
    if broker.topics is not None:
        found &= set(broker.topics)
    return sorted(found)


def _popped_again(group: str, topics: Collection[str], broker: BrokerAnswers) -> set[str]:
    """Return the retry topics of a popping group, also those it has no progress in yet."""
    found: set[str] = set()
    for topic in topics:
        if topic.startswith(names.RETRY_PREFIX):
            continue
        older, newer = names.pop_retry_topics(group, topic)
        found.add(newer)
        if not broker.knows(older.removeprefix(names.RETRY_PREFIX)):
            found.add(older)  # otherwise it is that other group's retry topic
    return found & set(broker.topics or ())


def queues_of(group: str, topic: str, broker: BrokerAnswers) -> Iterator[QueueState]:
    """Yield a group's queues of a topic at a broker, without owners.

    Only read queues, as in GET_CONSUME_STATS: others cannot be consumed.
    """
    held = broker.ends.get(topic, {})
    config = (broker.topics or {}).get(topic)
    ids: Iterable[int] = (
        {*held, *broker.committed(group, topic)}
        if config is None
        else range(config.read_queue_nums)
    )
    for queue_id in sorted(ids):
        yield _queue_of(group, topic, queue_id, broker)


def _queue_of(group: str, topic: str, queue_id: int, broker: BrokerAnswers) -> QueueState:
    kind = kind_of(group, topic)
    low = high = last_ms = None
    error = broker.refused.get(about_ends(topic)) or broker.error
    held = broker.ends.get(topic, {}).get(queue_id)
    if held is not None:
        low, high, last_ms, error = held.min_offset, held.max_offset, held.last_update_ms, None
    at: int | None = None
    if kind is not QueueKind.DEAD_LETTER:
        at = broker.committed(group, topic).get(queue_id)
        if at is None:
            error = error or broker.refused.get("offsets")
    next_ms, consumed_ms = broker.times.get((group, topic, queue_id), NO_TIMES)
    if at is not None and at == high and at > (low or 0):
        consumed_ms = last_ms  # caught up: the last consumed message is the newest one
    state = QueueState(
        topic,
        broker.name,
        queue_id,
        kind,
        low,
        high,
        at,
        next_stored_ms=next_ms,
        last_stored_ms=last_ms,
        last_consumed_ms=consumed_ms,
        error=error,
    )
    found = broker.matching.get((group, topic, queue_id))
    if found is not None:
        state = _with_matching(state, found)
    if state.next_stored_ms is None and is_behind(state) and state.waiting != 0:
        late = broker.refused.get(about_times(group, topic))
        state = replace(state, error=state.error or late)
    return _by_our_clock(state, broker.ahead_ms or 0)


def _by_our_clock(queue: QueueState, ahead_ms: int) -> QueueState:
    """Return a queue's times converted to the asking process's clock where the broker's differs."""
    if abs(ahead_ms) <= CLOCK_TOLERANCE_MS:
        return queue

    def ours(moment_ms: int | None) -> int | None:
        return None if moment_ms is None else moment_ms - ahead_ms

    return replace(
        queue,
        next_stored_ms=ours(queue.next_stored_ms),
        last_stored_ms=ours(queue.last_stored_ms),
        last_consumed_ms=ours(queue.last_consumed_ms),
    )


def _with_matching(queue: QueueState, found: Matching) -> QueueState:
    if found.count is None:
        return replace(queue, error=queue.error or found.error)
    following = max(queue.committed_offset or 0, queue.min_offset or 0)
    next_ms = queue.next_stored_ms
    count = found.count
    if count.is_exact and count.matching == 0:
        next_ms = None
    elif found.first is not None and found.first[0] != following:
        next_ms = found.first[1]
    return replace(
        queue,
        matching=count.matching,
        matching_is_exact=count.is_exact,
        matching_range=None if count.is_exact else (count.low, count.high),
        next_stored_ms=next_ms,
    )


def is_behind(queue: QueueState) -> bool:
    """Return whether messages of a queue wait for the group."""
    return queue.kind is not QueueKind.DEAD_LETTER and (queue.lag or 0) > 0


def times_of(queue: QueueState, span: QueueTimeSpan, now_ms: int) -> Times:
    """Return store times from an entry of QUERY_CONSUME_TIME_SPAN (303).

    A broker reports the age of the message at the committed offset. If that message is deleted, the
    broker takes -1 for its store time and answers decades; the next message is then the oldest one
    kept. If nothing was consumed, it reports the time of the oldest message kept as that of the
    last consumed one.

    Args:
        now_ms: when the answer came, by the broker's clock.
    """
    consumed_ms: int | None = known_ms(span.consume_time_stamp)
    low, at = queue.min_offset or 0, queue.committed_offset or 0
    if at <= low:
        consumed_ms = None
    if queue.committed_offset is None or queue.expired:
        return known_ms(span.min_time_stamp), consumed_ms
    if span.delay_time <= span.max_time_stamp:
        return now_ms - max(span.delay_time, 0), consumed_ms
    return known_ms(span.min_time_stamp), consumed_ms


def only_owner(connections: Iterable[ConsumerConnection]) -> str | None:
    """Return the owner of all subscribed queues where it is certain without asking.

    It is certain for the only member of a clustering group.
    """
    found = list(connections)
    members = {m.client_id for connection in found for m in connection.connection_set}
    models = {connection.message_model for connection in found}
    return members.pop() if len(members) == 1 and models == {"CLUSTERING"} else None


def group_state(
    group: str,
    taken_ms: int,
    brokers: Sequence[BrokerAnswers],
    topics: Collection[str] | None = None,
) -> GroupState:
    """Return the state of a group from all brokers' answers, over all topics or only ``topics``."""
    connections = [b.connections[group] for b in brokers if group in b.connections]
    only = only_owner(connections)
    subscribed = {topic for connection in connections for topic in connection.subscription_table}
    queues: list[QueueState] = []
    errors: list[str] = []
    tps: dict[str, float] = {}
    owners: dict[MessageQueue, str] = {}
    delayed: list[int | None] = []
    for broker in brokers:
        for topic in topics_of(group, broker):
            if topics is None or topic in topics:
                queues += queues_of(group, topic, broker)
                if (group, topic) in broker.tps:
                    tps[topic] = tps.get(topic, 0.0) + broker.tps[group, topic]
        queues += _lost_queues(group, broker, topics)
        errors += _untold(group, broker)
        delayed.append(_delayed(group, broker))
        owners |= {queue: by for (name, queue), by in broker.owners.items() if name == group}
    told = [count for count in delayed if count is not None]
    return GroupState(
        group=group,
        taken_ms=taken_ms,
        members=_members(group, brokers, connections),
        message_model=_same(connection.message_model for connection in connections),
        consume_type=_same(connection.consume_type for connection in connections),
        subscriptions=subscription_rows(
            data for each in connections for data in each.subscription_table.values()
        ),
        queues=tuple(
            replace(queue, client_id=_owner(queue, only, subscribed, owners))
            for queue in sorted(queues, key=lambda queue: queue.key)
        ),
        consume_tps=tps,
        delayed=sum(told) if told else None,
        delayed_is_exact=len(told) == len(delayed) and all(b.delayed_is_exact for b in brokers),
        errors=tuple(errors),
    )


def _lost_queues(
    group: str, broker: BrokerAnswers, topics: Collection[str] | None
) -> list[QueueState]:
    """Return the queues a silent broker reported earlier: their figures are unknown now."""
    if broker.error is None or broker.offsets is not None:
        return []
    return [
        QueueState(topic, broker.name, queue_id, kind_of(group, topic), error=broker.error)
        for topic, queue_id in broker.remembered.get(group, ())
        if topics is None or topic in topics
    ]


def _delayed(group: str, broker: BrokerAnswers) -> int | None:
    if broker.delayed is None:
        return None
    retry = names.retry_topic(group)
    return sum(count for topic, count in broker.delayed.items() if topic == retry)


def topic_state(
    topic: str,
    taken_ms: int,
    brokers: Sequence[BrokerAnswers],
    kind: str,
    consumers: Collection[str] | None,
) -> TopicState:
    """Return the state of a topic from all brokers' answers."""
    queues: list[TopicQueue] = []
    errors: list[str] = []
    perm: int | None = None
    for broker in brokers:
        config = (broker.topics or {}).get(topic)
        if config is not None:
            perm = config.perm if perm is None else perm & config.perm
        queues += broker.ends.get(topic, {}).values()
        asked = ("topics", about_ends(topic), "consumers")
        why = [broker.error, *(broker.refused.get(what) for what in asked)]
        errors += [text for text in why if text]
    return TopicState(
        topic=topic,
        kind=kind,
        taken_ms=taken_ms,
        permission=None if perm is None else permission(perm),
        queues=tuple(sorted(queues)),
        consumers=None if consumers is None else tuple(sorted(consumers)),
        errors=tuple(errors),
    )


def _untold(group: str, broker: BrokerAnswers) -> list[str]:
    if broker.error is not None:
        return [broker.error]
    asked = ("topics", "offsets", about_members(group), about_owners(group))
    return [why for what in asked if (why := broker.refused.get(what))]


def _members(
    group: str, brokers: Iterable[BrokerAnswers], connections: Iterable[ConsumerConnection]
) -> tuple[MemberRow, ...] | None:
    found = member_rows(connections)
    # A member connects to every broker, so one broker's answer is enough; a silent one proves
    # nothing.
    about = about_members(group)
    if not found and any(about in b.refused or b.error is not None for b in brokers):
        return None
    return found


def member_rows(connections: Iterable[ConsumerConnection]) -> tuple[MemberRow, ...]:
    """Return the members that brokers tell of, one answer a broker, sorted by id."""
    found: dict[str, MemberRow] = {}
    for connection in connections:
        places: dict[str, list[str]] = {}
        for member in connection.connection_set:
            places.setdefault(member.client_id, []).append(member.client_addr)
            row = MemberRow(
                member.client_id, member.client_addr, str(member.language), member.version
            )
            found.setdefault(member.client_id, row)
        for client_id, addresses in places.items():
            first, *others = sorted(addresses)
            if len(others) > len(found[client_id].twins):
                found[client_id] = replace(found[client_id], address=first, twins=tuple(others))
    return tuple(sorted(found.values()))


def subscription_rows(found: Iterable[SubscriptionData]) -> tuple[SubscriptionRow, ...]:
    """Return the different subscriptions that members told of, sorted."""
    return tuple(
        sorted(
            {
                SubscriptionRow(data.topic, data.sub_string, data.expression_type or "TAG")
                for data in found
            }
        )
    )


def running_queue(queue: MessageQueue, info: ProcessQueueInfo) -> RunningQueueRow:
    """Return what a member reported of one of its queues."""
    # Messages an orderly member's listener is working on are counted, but not in these offsets.
    oldest, newest = info.cached_msg_min_offset, info.cached_msg_max_offset
    has_range = info.cached_msg_count > 0 and newest >= oldest
    return RunningQueueRow(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        commit_offset=info.commit_offset,
        cached=info.cached_msg_count,
        cached_mib=info.cached_msg_size_in_mib,
        locked=info.locked,
        dropped=info.droped,
        last_pull_ms=known_ms(info.last_pull_timestamp),
        last_consume_ms=known_ms(info.last_consume_timestamp),
        oldest=oldest if has_range else None,
        newest=newest if has_range else None,
        last_lock_ms=known_ms(info.last_lock_timestamp),
    )


def _owner(
    queue: QueueState,
    only: str | None,
    subscribed: Collection[str],
    owners: Mapping[MessageQueue, str],
) -> str | None:
    if only is not None:
        return only if queue.topic in subscribed else None
    return owners.get(queue.key)


def _same(values: Iterable[object]) -> str | None:
    found = {str(value) for value in values}
    return found.pop() if len(found) == 1 else None

"""The facts about a group and its queues before it is moved, and groups with similar names.

Law: asks and joins; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocketstream.admin.core.joining import kind_of
from rocketstream.admin.core.lag import groups_of_offsets, offsets_of_group
from rocketstream.admin.core.likeness import like
from rocketstream.admin.core.moves import QueueFacts, ResetKind, ResetTarget
from rocketstream.admin.service import Reach, Service
from rocketstream.admin.state import QueueKind
from rocketstream.admin.topics import Topics
from rocketstream.errors import ClientStateError, ConfigurationError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection


@dataclass(frozen=True, slots=True)
class ResetFacts:
    """The brokers' answers before a plan is made.

    Attributes:
        masters: the address of each broker's master.
        connections: connected members of the group by broker.
        offsets: the offsets the group has stored; None where a broker does not answer code 43.
        groups: every known group except those of the system.
        topics_of: the topics each group has offsets in.
    """

    masters: Mapping[str, str]
    connections: Mapping[str, ConsumerConnection]
    offsets: Mapping[MessageQueue, int] | None
    groups: frozenset[str]
    topics_of: Mapping[str, set[str]]


class ResetFactsAdmin(Service):
    """The part of ``Admin`` that gathers the facts a move of a group depends on."""

    def _known_of(self, group: str) -> ResetFacts:
        masters = self._wire.masters()
        tables = self._wire.offset_tables(masters)
        connections = self._wire.connections(group, masters)
        topics_of = groups_of_offsets(tables or {})
        groups = set(topics_of)
        for address in masters.values():
            groups.update(self._wire.group_configs(address))
        if connections:
            groups.add(group)
        return ResetFacts(
            masters=masters,
            connections=connections,
            offsets=None if tables is None else offsets_of_group(tables, group),
            groups=frozenset(each for each in groups if not names.is_system_group(each)),
            topics_of=topics_of,
        )

    def _facts_of(
        self, known: ResetFacts, group: str, topic: str | None, target: ResetTarget
    ) -> list[QueueFacts]:
        """Return the facts about each queue the target may cover."""
        found: Mapping[MessageQueue, int] = {}
        if target.kind is ResetKind.COPY:
            found = self._offsets_to_copy(known, target.group or "", topic)
            queues = sorted(found) if topic is None else self._queues_of(topic)
        elif target.kind is ResetKind.UNDO:
            found = dict(target.offsets)
            queues = sorted(found)
            for name in sorted({queue.topic for queue in queues}):
                self._queues_of(name)
        else:
            if topic is None and target.kind is ResetKind.OFFSET:
                raise ConfigurationError("an offset is one of a topic: name the topic")
            topics = [topic] if topic is not None else self._topics_of(known, group)
            by_topic = {each: self._queues_of(each) for each in topics}
            queues = [queue for each in by_topic.values() for queue in each]
            if target.kind is ResetKind.TIME and target.value is not None:
                for each, theirs in by_topic.items():
                    found = {**found, **self._offsets_at(each, theirs, target.value)}
        return self._facts_now(known, group, queues, found)

    def _facts_now(
        self,
        known: ResetFacts,
        group: str,
        queues: Sequence[MessageQueue],
        found: Mapping[MessageQueue, int],
    ) -> list[QueueFacts]:
        low, high = self._client.min_offsets(queues), self._client.max_offsets(queues)
        stored = known.offsets
        if stored is None:
            stored = self._asked_offsets(group, queues)
        return [
            QueueFacts(
                queue=queue,
                min_offset=max(low[queue], 0),
                max_offset=max(high[queue], 0),
                committed=stored.get(queue),
                found=found.get(queue),
            )
            for queue in queues
        ]

    def _asked_offsets(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        asked = {queue: self._client.query_consumer_offset(group, queue) for queue in queues}
        return {queue: offset for queue, offset in asked.items() if offset is not None}

    def _topics_of(self, known: ResetFacts, group: str) -> list[str]:
        """Return the topics a group has progress in, or subscribes; those still there."""
        consumed = set(known.topics_of.get(group, ()))
        consumed.update(
            name for each in known.connections.values() for name in each.subscription_table
        )
        there = set(self._wire.topic_names())
        topics = [name for name in consumed & there if kind_of(group, name) is QueueKind.TOPIC]
        if not topics:
            raise ConfigurationError(f"group {group!r} consumes no topic yet", group=group)
        return sorted(topics)

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        names.check_topic(topic)
        try:
            queues = self._client.subscribe_queues(topic, refresh=True)
        except RouteNotFoundError as error:
            hint = like(topic, self._wire.topic_names())
            raise RouteNotFoundError(f"{error.message}{hint}", topic=topic) from error
        if not queues:
            raise ConfigurationError(
                f"topic {topic!r} has no queue that may be read; `rocketstream topic update "
                f"{topic} --perm rw` changes that",
                topic=topic,
            )
        return queues

    def _offsets_at(
        self, topic: str, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        rows = {
            MessageQueue(row.topic, row.broker_name, row.queue_id): row
            for row in Topics(self._reach).status(topic)
        }
        found: dict[MessageQueue, int] = {}
        for queue in queues:
            row = rows.get(queue)
            # A search by a time after the newest message finds that message, not the end (C-372).
            if row is not None and (
                row.last_update_ms is None or timestamp_ms > row.last_update_ms
            ):
                found[queue] = row.max_offset
            else:
                found[queue] = self._client.search_offset(queue, timestamp_ms)
        return found

    def _offsets_to_copy(
        self, known: ResetFacts, source: str, topic: str | None
    ) -> dict[MessageQueue, int]:
        names.check_group(source)
        if source not in known.groups:
            raise unknown_group(source, known.groups)
        tables = self._wire.offset_tables(known.masters)
        if tables is None:
            raise ClientStateError(
                "a broker does not tell the offsets of its groups (code 43), so none can be copied"
            )
        found = {
            queue: offset
            for queue, offset in offsets_of_group(tables, source).items()
            if queue.topic == topic
            or (topic is None and kind_of(source, queue.topic) is QueueKind.TOPIC)
        }
        if not found:
            where = f" in topic {topic!r}" if topic else ""
            raise ConfigurationError(
                f"group {source!r} has no offsets{where} to copy", group=source, topic=topic
            )
        return found


def unknown_group(group: str, groups: Iterable[str]) -> ConfigurationError:
    """Return the error for a group that no broker knows; it names groups with similar names."""
    hint = like(group, groups) or "; `rocketstream group list` shows the groups there are"
    return ConfigurationError(
        f"consumer group {group!r} is not known to any broker{hint}", group=group
    )


def settings_of(reach: Reach, group: str) -> dict[str, dict[str, Any]]:
    """Return a group's settings by broker; see ``Groups.settings``."""
    known = ResetFactsAdmin(reach)._known_of(group)
    if group not in known.groups:
        raise unknown_group(group, known.groups)
    return group_settings_at(reach, group)


def group_settings_at(reach: Reach, group: str) -> dict[str, dict[str, Any]]:
    """Return a group's settings by broker; empty where no broker has any."""
    return {
        broker_name: raw
        for broker_name, address in sorted(reach.wire.masters().items())
        if (raw := reach.wire.group_settings(address).get(group)) is not None
    }

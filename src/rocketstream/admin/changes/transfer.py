"""The transfer of topics, groups and offsets: exported as one document, imported into a cluster.

The format is documented in docs/operating.md; a document of another version is refused.

Law: an import is a plan as any other: nothing is changed here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketstream.admin.changes.undo import DocumentKind, read_document
from rocketstream.admin.core.joining import offsets_of
from rocketstream.admin.core.moves import QueueFacts, ResetTarget, row_of
from rocketstream.admin.core.steps import (
    ChangePlan,
    Draft,
    Settings,
    Step,
    StepKind,
    listed,
    topic_settings,
)
from rocketstream.admin.core.words import plural
from rocketstream.admin.service import Service, question
from rocketstream.admin.topics import Topics
from rocketstream.admin.wire import questions
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

_EXPORT: Final = DocumentKind("export", "rocketstream-export", version=1, bytes_max=256 << 20)

ByBroker = Mapping[tuple[str, str], Settings]
"""Settings by broker and name."""


@dataclass(frozen=True, slots=True)
class Export:
    """Topics, groups and offsets of a cluster at one moment.

    Attributes:
        taken_ms: when the export was made, ms since 1970.
        namesrv: the name servers asked.
        topics: settings by broker and topic.
        groups: settings by broker and group, under upstream's names.
        offsets: committed offsets by group and queue.
    """

    taken_ms: int
    namesrv: str
    topics: ByBroker = field(default_factory=dict)
    groups: ByBroker = field(default_factory=dict)
    offsets: Mapping[tuple[str, MessageQueue], int] = field(default_factory=dict)

    @property
    def brokers(self) -> set[str]:
        """The names of the brokers in the document."""
        named = {broker for broker, _ in [*self.topics, *self.groups]}
        return named | {queue.broker_name for _, queue in self.offsets}

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "format": _EXPORT.format,
            "version": _EXPORT.version,
            "takenMs": self.taken_ms,
            "namesrv": self.namesrv,
            "topics": [
                {"topic": topic, "brokerName": broker, "settings": dict(settings)}
                for (broker, topic), settings in sorted(self.topics.items(), key=_place)
            ],
            "groups": [
                {"group": group, "brokerName": broker, "settings": dict(settings)}
                for (broker, group), settings in sorted(self.groups.items(), key=_place)
            ],
            "offsets": [
                {
                    "group": group,
                    "topic": queue.topic,
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "offset": offset,
                }
                for (group, queue), offset in sorted(self.offsets.items())
            ],
        }

    def at(self, names: Mapping[str, str]) -> Export:
        """Return the export for brokers with other names; ``names`` maps old names to new."""
        return Export(
            taken_ms=self.taken_ms,
            namesrv=self.namesrv,
            topics={(names[b], topic): each for (b, topic), each in self.topics.items()},
            groups={(names[b], group): each for (b, group), each in self.groups.items()},
            offsets={
                (group, MessageQueue(q.topic, names[q.broker_name], q.queue_id)): offset
                for (group, q), offset in self.offsets.items()
            },
        )


def load_export(path: str | os.PathLike[str]) -> Export:
    """Read an export.

    Raises:
        ConfigurationError: the file cannot be read, is not an export or is damaged; the error says
            why.
    """
    value = read_document(path, _EXPORT)
    try:
        return Export(
            taken_ms=int(value.get("takenMs") or 0),
            namesrv=str(value.get("namesrv") or ""),
            topics={
                (str(each["brokerName"]), str(each["topic"])): topic_settings(each["settings"])
                for each in value.get("topics") or []
            },
            groups={
                (str(each["brokerName"]), str(each["group"])): dict(each["settings"])
                for each in value.get("groups") or []
            },
            offsets={
                (
                    str(each["group"]),
                    MessageQueue(str(each["topic"]), str(each["brokerName"]), int(each["queueId"])),
                ): int(each["offset"])
                for each in value.get("offsets") or []
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{path} is damaged: {type(error).__name__} {error}") from error


def broker_names(
    file: Iterable[str], cluster: Iterable[str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the broker of the cluster that stands for each broker of the file.

    It is the one given, the one of the same name, or the only one where both have only one.

    Raises:
        ConfigurationError: a broker of the file has no counterpart; or one given does not exist.
    """
    here, there = sorted(cluster), sorted(file)
    for old, new in given.items():
        if old not in there or new not in here:
            raise ConfigurationError(
                f"{old}={new}: the file has {listed(there)}, the cluster {listed(here)}"
            )
    found: dict[str, str] = {}
    for name in there:
        if name in given:
            found[name] = given[name]
        elif name in here:
            found[name] = name
        elif len(there) == len(here) == 1:
            found[name] = here[0]
        else:
            raise ConfigurationError(
                f"the cluster has no broker {name!r} of the file, it has {listed(here)}: say "
                f"which stands for it ({name}=…)"
            )
    doubled = [new for new in set(found.values()) if list(found.values()).count(new) > 1]
    if doubled:
        raise ConfigurationError(f"two brokers of the file would become {listed(doubled)}")
    return found


@dataclass(frozen=True, slots=True)
class Here(Export):
    """The present state of the cluster: settings are as the brokers report them.

    Attributes:
        ends: the oldest kept offset and the next one of each existing queue.
        members: groups with connected members.
    """

    ends: Mapping[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    members: frozenset[str] = frozenset()

    def names_of_groups(self, broker: str) -> set[str]:
        """Return the names of all settings that groups at a broker have."""
        return {name for (at, _), raw in self.groups.items() if at == broker for name in raw}


def add_differences(export: Export, here: Here, found: Draft) -> None:
    """Add the steps that make a cluster like a document; what that lacks is left alone."""
    _add_topics(export, here, found)
    _add_groups(export, here, found)
    _add_offsets(export, here, found)


def _add_topics(export: Export, here: Here, found: Draft) -> None:
    dropped: set[str] = set()
    for (broker, topic), wanted in sorted(export.topics.items(), key=_place):
        raw = here.topics.get((broker, topic))
        has_attributes = any("attributes" in r for (b, _), r in here.topics.items() if b == broker)
        after = dict(wanted)
        if not has_attributes:
            # A broker of 4.x keeps neither attributes nor a requested order.
            if after["attributes"]:
                dropped.add(broker)
            after |= {"attributes": {}, "order": False}
        before = None if raw is None else topic_settings(raw)
        if before is not None and not has_attributes:
            before["order"] = False
        held = {
            queue.queue_id: high - low
            for queue, (low, high) in here.ends.items()
            if (queue.broker_name, queue.topic) == (broker, topic)
        }
        found.put_topic(broker, topic, before, after, held)
    for broker in sorted(dropped):
        found.warnings.append(f"{broker} has no attributes of topics: they are left out there")


def _add_groups(export: Export, here: Here, found: Draft) -> None:
    dropped: dict[str, set[str]] = {}
    for (broker, group), wanted in sorted(export.groups.items(), key=_place):
        known = here.names_of_groups(broker)
        raw = here.groups.get((broker, group))
        kept = {name: value for name, value in wanted.items() if not known or name in known}
        dropped.setdefault(broker, set()).update(set(wanted) - set(kept))
        after = {**(raw or {}), **kept, "groupName": group}
        if raw != after:
            found.steps.append(Step(StepKind.PUT_GROUP, broker, group, raw, after))
    for broker, gone in sorted(dropped.items()):
        if gone:
            found.warnings.append(
                f"{broker} does not have the settings of groups {listed(gone)}: left out there"
            )


def _add_offsets(export: Export, here: Here, found: Draft) -> None:
    made = {(s.where, s.name) for s in found.steps if s.kind is StepKind.PUT_GROUP}
    beyond = 0
    moved: dict[str, tuple[int, int]] = {}
    for (group, queue), offset in sorted(export.offsets.items()):
        before = here.offsets.get((group, queue))
        if before == offset:
            continue
        low, high = here.ends.get(queue, (0, 0))
        if offset > high:
            beyond += 1
            continue
        place = (queue.broker_name, group)
        if place not in made and place not in here.groups and _wants_settings(here, place[0]):
            found.steps.append(Step(StepKind.PUT_GROUP, *place, None, {"groupName": group}))
            made.add(place)
        found.steps.append(Step(StepKind.STORE_OFFSET, place[0], group, before, offset, queue))
        row = row_of(QueueFacts(queue, low, high, before, offset), ResetTarget.undo({}))
        if row is not None:
            again, never = moved.get(group, (0, 0))
            moved[group] = (again + row.repeated, never + row.skipped)
    if beyond:
        found.problems.append(
            f"{plural(beyond, 'offset')} lie beyond the end of their queues and are left out: the "
            "messages they count are not in this cluster"
        )
    for group, (again, never) in sorted(moved.items()):
        if again:
            found.warnings.append(f"group {group} consumes {plural(again, 'message')} again")
        if never:
            found.problems.append(f"group {group} never consumes {plural(never, 'message')}")
        if group in here.members:
            found.problems.append(
                f"group {group} has connected members, whose next commit overwrites the offsets: "
                "stop them first"
            )


def _wants_settings(here: Here, broker: str) -> bool:
    """Whether a broker stores offsets only for groups it has settings for, as brokers of 5.x do."""
    return "groupRetryPolicy" in here.names_of_groups(broker)


def _place(item: tuple[tuple[str, str], Any]) -> tuple[str, str]:
    (broker, name), _ = item
    return name, broker


class Transfers(Service):
    """The operations of ``Admin.changes`` that transfer a cluster's settings."""

    @question
    def export(
        self, topics: Collection[str] | None = None, groups: Collection[str] | None = None
    ) -> Export:
        """Return topics, groups and offsets, except those of the system, retry and dead-letter
        topics.

        Messages are not exported.

        Args:
            topics: only these topics, and the offsets in them; None for all.
            groups: only these groups, and their offsets; None for all.

        Raises:
            ConfigurationError: a topic or group does not exist.
        """
        system = {row.topic for row in Topics(self._reach).all() if row.kind != "normal"}
        masters = self._wire.masters()
        every_topic, every_group = self._settings(masters)

        def is_meant(group: str) -> bool:
            return not names.is_system_group(group) and (groups is None or group in groups)

        found_topics = {
            place: topic_settings(raw)
            for place, raw in every_topic.items()
            if place[1] not in system and (topics is None or place[1] in topics)
        }
        found_groups = {place: raw for place, raw in every_group.items() if is_meant(place[1])}
        tables = self._wire.offset_tables(masters)
        if tables is None:
            raise ClientStateError("a broker does not tell the offsets of its groups (code 43)")
        known = {topic for _, topic in found_topics}
        offsets = {
            (group, queue): offset
            for (group, queue), offset in offsets_of(tables, is_meant).items()
            if queue.topic in known
        }
        _refuse_unknown("topic", topics, known)
        there = {group for _, group in found_groups} | {group for group, _ in offsets}
        _refuse_unknown("group", groups, there)
        return Export(
            taken_ms=self._clock.now_ms(),
            namesrv=";".join(self._client.name_servers),
            topics=found_topics,
            groups=found_groups,
            offsets=offsets,
        )

    @question
    def import_plan(
        self,
        path: str | os.PathLike[str],
        *,
        offsets: bool = True,
        brokers: Mapping[str, str] | None = None,
    ) -> ChangePlan:
        """Return what would change if a cluster were made like an export; ``apply`` does it.

        Topics and groups the file does not name are left alone: nothing is deleted. Offsets are
        positions, so they fit only where the messages are the same; offsets beyond the end of a
        queue are left out.

        Args:
            offsets: also move groups.
            brokers: the cluster's broker for each broker of the file, by the name in the file;
                needed where names differ and there are several brokers.

        Raises:
            ConfigurationError: the file cannot be read or is not an export; or one of
                its brokers has no counterpart.
        """
        file = load_export(path)
        masters = self._wire.masters()
        renamed = file.at(broker_names(file.brokers, masters, brokers or {}))
        for _, topic in renamed.topics:
            names.check_topic(topic)
        for _, group in renamed.groups:
            names.check_group(group)
        if not offsets:
            renamed = Export(renamed.taken_ms, renamed.namesrv, renamed.topics, renamed.groups)
        arguments = {
            "path": str(path), "offsets": offsets, "brokers": dict(brokers or {}),
        }  # fmt: skip
        found = Draft("import", str(path), arguments)
        add_differences(renamed, self._here(masters, renamed), found)
        return found.plan(self._clock.now_ms())

    def _settings(self, masters: Mapping[str, str]) -> tuple[ByBroker, ByBroker]:
        """Return the settings of all topics and of all groups, as the brokers report them."""
        topics: dict[tuple[str, str], Settings] = {}
        groups: dict[tuple[str, str], Settings] = {}
        for broker, address in masters.items():
            topics |= {
                (broker, t): raw
                for t, raw in self._wire.ask(address, questions.TOPICS_AS_TOLD).items()
            }
            groups |= {
                (broker, g): raw
                for g, raw in self._wire.ask(address, questions.GROUPS_AS_TOLD).items()
            }
        return topics, groups

    def _here(self, masters: Mapping[str, str], export: Export) -> Here:
        topics, groups = self._settings(masters)
        ends: dict[MessageQueue, tuple[int, int]] = {}
        wanted = set(export.topics) | {(q.broker_name, q.topic) for _, q in export.offsets}
        for broker, topic in sorted(wanted & set(topics)):
            told = self._wire.ask(masters[broker], questions.ends_of(topic))
            ends |= {queue: (held.min_offset, held.max_offset) for queue, held in told.items()}
        tables = self._wire.offset_tables(masters) or {}
        moved = {group for group, _ in export.offsets}
        return Here(
            taken_ms=self._clock.now_ms(),
            namesrv=";".join(self._client.name_servers),
            topics=topics,
            groups=groups,
            offsets=offsets_of(tables, moved.__contains__),
            ends=ends,
            members=frozenset(g for g in moved if self._wire.connections(g, masters)),
        )


def _refuse_unknown(what: str, wanted: Collection[str] | None, there: Collection[str]) -> None:
    unknown = sorted(set(wanted or ()) - set(there))
    if unknown:
        raise ConfigurationError(
            f"there is no {what} {unknown[0]!r} to export; `rocketstream {what} list` shows them"
        )

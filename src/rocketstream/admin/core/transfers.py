"""Topics, groups and offsets as one document, and the changes its import would make.

Pure: documents and the brokers' settings in, steps and sentences out. The format is documented in
docs/operating.md; a document of another version is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketstream.admin.core.steps import (
    Settings,
    Step,
    StepKind,
    listed,
    shrink_sentences,
    topic_settings,
)
from rocketstream.admin.core.words import plural
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue

FORMAT: Final = "rocketstream-export"
VERSION: Final = 1


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
    topics: Mapping[tuple[str, str], Settings] = field(default_factory=dict)
    groups: Mapping[tuple[str, str], Settings] = field(default_factory=dict)
    offsets: Mapping[tuple[str, MessageQueue], int] = field(default_factory=dict)

    @property
    def brokers(self) -> set[str]:
        """The names of the brokers in the document."""
        named = {broker for broker, _ in [*self.topics, *self.groups]}
        return named | {queue.broker_name for _, queue in self.offsets}

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "format": FORMAT,
            "version": VERSION,
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


def read_export(value: Mapping[str, Any], where: str) -> Export:
    """Read an export.

    Args:
        value: the fields of the document.
        where: the file, for errors.

    Raises:
        ConfigurationError: the document is damaged; the error says where.
    """
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
        raise ConfigurationError(f"{where} is damaged: {type(error).__name__} {error}") from error


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
class Here:
    """The present state of the cluster.

    Attributes:
        topics: settings by broker and topic, as the brokers report them.
        groups: settings by broker and group, as the brokers report them.
        offsets: committed offsets by group and queue.
        ends: the oldest kept offset and the next one of each existing queue.
        members: groups with connected members.
    """

    topics: Mapping[tuple[str, str], Settings]
    groups: Mapping[tuple[str, str], Settings]
    offsets: Mapping[tuple[str, MessageQueue], int]
    ends: Mapping[MessageQueue, tuple[int, int]]
    members: frozenset[str] = frozenset()

    def names_of_groups(self, broker: str) -> set[str]:
        """Return the names of all settings that groups at a broker have."""
        return {name for (at, _), raw in self.groups.items() if at == broker for name in raw}


@dataclass(slots=True)
class Differences:
    """The changes of an import."""

    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def differences(export: Export, here: Here) -> Differences:
    """Return the steps that make a cluster like a document; what that lacks is left alone."""
    found = Differences()
    _add_topics(export, here, found)
    _add_groups(export, here, found)
    _add_offsets(export, here, found)
    return found


def _add_topics(export: Export, here: Here, found: Differences) -> None:
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
        step = Step(StepKind.PUT_TOPIC, broker, topic, before, after)
        if not step.differences():
            continue
        found.steps.append(step)
        if before is not None:
            held = {
                queue.queue_id: high - low
                for queue, (low, high) in here.ends.items()
                if (queue.broker_name, queue.topic) == (broker, topic)
            }
            warnings, problems = shrink_sentences(topic, before, after, held, broker)
            found.warnings += warnings
            found.problems += problems
    for broker in sorted(dropped):
        found.warnings.append(f"{broker} has no attributes of topics: they are left out there")


def _add_groups(export: Export, here: Here, found: Differences) -> None:
    dropped: dict[str, set[str]] = {}
    for (broker, group), wanted in sorted(export.groups.items(), key=_place):
        known = here.names_of_groups(broker)
        raw = here.groups.get((broker, group))
        kept = {name: value for name, value in wanted.items() if not known or name in known}
        dropped.setdefault(broker, set()).update(set(wanted) - set(kept))
        after = {**(raw or {}), **kept, "groupName": group}
        if raw != after:
            found.steps.append(Step(StepKind.PUT_GROUP, broker, group, raw, after))
    for broker, names in sorted(dropped.items()):
        if names:
            found.warnings.append(
                f"{broker} does not have the settings of groups {listed(names)}: left out there"
            )


def _add_offsets(export: Export, here: Here, found: Differences) -> None:
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
        begins = max(low if before is None else before, low)
        again, never = moved.get(group, (0, 0))
        repeated = 0 if before is None else max(min(before, high) - max(offset, low), 0)
        moved[group] = (again + repeated, never + max(offset - begins, 0))
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

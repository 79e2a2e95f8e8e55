"""The export of topics, groups and offsets of a cluster, and their import into a cluster.

``core.transfers`` decides what differs, ``applying`` changes it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final

from rocketstream.admin.changes.groups import GroupSettingsAdmin
from rocketstream.admin.core.lag import groups_of_offsets, offsets_of_group
from rocketstream.admin.core.steps import ChangePlan, topic_settings
from rocketstream.admin.core.transfers import (
    FORMAT,
    VERSION,
    Export,
    Here,
    broker_names,
    differences,
    read_export,
)
from rocketstream.admin.safety.documents import DocumentKind, read_document
from rocketstream.admin.service import question
from rocketstream.admin.topics import Topics
from rocketstream.errors import ClientStateError, ConfigurationError, ConsumerNotOnlineError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

_EXPORT: Final = DocumentKind("export", FORMAT, VERSION, bytes_max=256 << 20)


class TransferAdmin(GroupSettingsAdmin):
    """The operations of ``Admin`` that transfer a cluster's settings."""

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
        found_topics: dict[tuple[str, str], dict[str, Any]] = {}
        found_groups: dict[tuple[str, str], dict[str, Any]] = {}
        for broker, address in masters.items():
            for topic, raw in self._wire.topic_settings(address).items():
                if topic not in system and (topics is None or topic in topics):
                    found_topics[broker, topic] = topic_settings(raw)
            for group, raw in self._wire.group_settings(address).items():
                if not names.is_system_group(group) and (groups is None or group in groups):
                    found_groups[broker, group] = raw
        tables = self._wire.offset_tables(masters)
        if tables is None:
            raise ClientStateError("a broker does not tell the offsets of its groups (code 43)")
        known = {topic for _, topic in found_topics}
        offsets = {
            (group, queue): offset
            for group in groups_of_offsets(tables)
            if not names.is_system_group(group) and (groups is None or group in groups)
            for queue, offset in offsets_of_group(tables, group).items()
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
            path: the file.
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
        found = differences(renamed, self._here(masters, renamed))
        arguments = {
            "path": str(path), "offsets": offsets, "brokers": dict(brokers or {}),
        }  # fmt: skip
        return self._plan_of(
            "import", str(path), found.steps, arguments,
            warnings=found.warnings, problems=found.problems,
        )  # fmt: skip

    def _here(self, masters: Mapping[str, str], export: Export) -> Here:
        topics: dict[tuple[str, str], dict[str, Any]] = {}
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        ends: dict[MessageQueue, tuple[int, int]] = {}
        wanted = set(export.topics) | {(q.broker_name, q.topic) for _, q in export.offsets}
        for broker, address in masters.items():
            for topic, raw in self._wire.topic_settings(address).items():
                topics[broker, topic] = raw
            for group, raw in self._wire.group_settings(address).items():
                groups[broker, group] = raw
        for broker, topic in sorted(wanted & set(topics)):
            table = self._wire.topic_stats(masters[broker], topic).offset_table
            for queue, stats in table.items():
                ends[queue] = (max(stats.min_offset, 0), max(stats.max_offset, 0))
        tables = self._wire.offset_tables(masters) or {}
        moved = {group for group, _ in export.offsets}
        return Here(
            topics=topics,
            groups=groups,
            offsets={
                (group, queue): offset
                for group in moved
                for queue, offset in offsets_of_group(tables, group).items()
            },
            ends=ends,
            members=frozenset(group for group in moved if self._is_online(group, masters)),
        )

    def _is_online(self, group: str, masters: Mapping[str, str]) -> bool:
        for address in masters.values():
            try:
                self._wire.consumer_connection(address, group)
            except ConsumerNotOnlineError:
                continue
            return True
        return False


def load_export(path: str | os.PathLike[str]) -> Export:
    """Read an export.

    Raises:
        ConfigurationError: the file cannot be read or is not an export; the error says why.
    """
    return read_export(read_document(path, _EXPORT), str(path))


def _refuse_unknown(what: str, wanted: Collection[str] | None, there: Collection[str]) -> None:
    unknown = sorted(set(wanted or ()) - set(there))
    if unknown:
        raise ConfigurationError(
            f"there is no {what} {unknown[0]!r} to export; `rocketstream {what} list` shows them"
        )

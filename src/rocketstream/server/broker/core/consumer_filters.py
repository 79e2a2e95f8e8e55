"""The conditions groups filter topics by, compiled once (C-393; upstream ConsumerFilterManager).

Pure: a group's condition is kept, marked as dead, for a day after its last member left.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from rocketstream.errors import SubscriptionError
from rocketstream.limits import CONDITION_CHARS_MAX
from rocketstream.protocol.bodies import (
    ConsumerFilterData,
    ConsumerFilterTable,
    FilterDataMapByTopic,
    SubscriptionData,
)
from rocketstream.protocol.sql92 import Expression, compile_expression
from rocketstream.protocol.subscription import EXPRESSION_SQL92
from rocketstream.server.broker.core.bloom import bloom_positions

DEAD_KEPT_MS = 24 * 3_600_000
_LOADED_DEAD_MS = 30_000


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription filters by tags."""
    return expression_type in ("TAG", "", None)


@dataclass(slots=True)
class ConsumerFilter:
    """One group's condition on one topic."""

    group: str
    topic: str
    expression: str
    expression_type: str
    compiled: Expression
    client_version: int
    born_ms: int
    dead_ms: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether the group has left, or has unsubscribed the topic."""
        return self.dead_ms >= self.born_ms


class ConsumerFilters:
    """All conditions of a broker's groups."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, ConsumerFilter]] = {}
        self._chars = 0
        self.generation: int = 0
        """Grows with every change, so that a writer of the table knows what it has saved."""

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a group's condition on a topic."""
        topics = self._groups.get(group)
        return topics.get(topic) if topics else None

    def registering(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> Generator[None, None, list[SubscriptionError]]:
        """Take a heartbeat's subscriptions, in steps of one condition each.

        Conditions that are not among them are dead from now on.

        Returns:
            The errors of conditions that do not compile; pulls for them get code 27.
        """
        wanted = {data.topic: data for data in subscriptions}
        errors: list[SubscriptionError] = []
        for data in wanted.values():
            if not is_tag_type(data.expression_type) and data.sub_string:
                try:
                    self._register_one(group, data, now_ms)
                except SubscriptionError as error:
                    errors.append(error)
                yield
        for known in self._of_group(group):
            if known.topic not in wanted and not known.is_dead:
                self._die(known, now_ms)
        return errors

    def _register_one(self, group: str, data: SubscriptionData, now_ms: int) -> None:
        known = self.get(data.topic, group)
        # Versions are times of clocks: one of members that are gone says nothing of who is there.
        if known is not None and not known.is_dead and data.sub_version <= known.client_version:
            return
        if known is not None and known.expression == data.sub_string:
            # The compiled form and its time of creation are kept.
            known.client_version = data.sub_version
            self._revive(known)
            return
        # Whether or not the new condition compiles, the old one is not wanted any more.
        self._drop(data.topic, group)
        self.generation += 1
        if self._chars + len(data.sub_string) > CONDITION_CHARS_MAX:
            raise SubscriptionError(
                f"the conditions of all consumers together are over the maximum of"
                f" {CONDITION_CHARS_MAX} characters; the one of group {group} for topic"
                f" {data.topic} is not taken",
                chars_max=CONDITION_CHARS_MAX,
            )
        compiled = compiled_of(data.sub_string, data.expression_type)
        self._put(
            ConsumerFilter(
                group,
                data.topic,
                data.sub_string,
                data.expression_type,
                compiled,
                data.sub_version,
                now_ms,
            )
        )

    def _put(self, known: ConsumerFilter) -> None:
        self._drop(known.topic, known.group)
        self._groups.setdefault(known.group, {})[known.topic] = known
        self._chars += len(known.expression)

    def _drop(self, topic: str, group: str) -> None:
        topics = self._groups.get(group, {})
        known = topics.pop(topic, None)
        if known is not None:
            self._chars -= len(known.expression)
            if not topics:
                del self._groups[group]

    def _all(self) -> list[ConsumerFilter]:
        return [known for topics in self._groups.values() for known in topics.values()]

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the conditions of a group as dead, whose last member has left."""
        for known in self._of_group(group):
            if not known.is_dead:
                self._die(known, now_ms)

    def _of_group(self, group: str) -> list[ConsumerFilter]:
        return list(self._groups.get(group, {}).values())

    def _die(self, known: ConsumerFilter, now_ms: int) -> None:
        known.dead_ms = max(now_ms, known.born_ms)
        self.generation += 1

    def _revive(self, known: ConsumerFilter) -> None:
        known.dead_ms = 0
        self.generation += 1

    # --- the file -------------------------------------------------------------------------------

    def load(self, table: ConsumerFilterTable, now_ms: int) -> list[SubscriptionError]:
        """Take over the content of a file; its conditions are dead until the next heartbeat.

        Returns:
            The errors of conditions that do not compile here; they are left out.
        """
        errors: list[SubscriptionError] = []
        for by_group in table.filter_data_by_topic.values():
            for data in by_group.group_filter_data.values():
                try:
                    compiled = compiled_of(data.expression, data.expression_type)
                except SubscriptionError as error:
                    errors.append(error)
                    continue
                dead_ms = data.dead_time or max(data.born_time, now_ms - _LOADED_DEAD_MS)
                self._put(
                    ConsumerFilter(
                        data.consumer_group,
                        data.topic,
                        data.expression,
                        data.expression_type,
                        compiled,
                        data.client_version,
                        data.born_time,
                        dead_ms,
                    )
                )
        return errors

    def snapshot(self, now_ms: int) -> ConsumerFilterTable:
        """Drop conditions that have been dead for a day, and return the file's content."""
        for known in self._all():
            if known.is_dead and now_ms - known.dead_ms >= DEAD_KEPT_MS:
                self._drop(known.topic, known.group)
        table = ConsumerFilterTable()
        for known in self._all():
            by_group = table.filter_data_by_topic.setdefault(
                known.topic, FilterDataMapByTopic(known.topic)
            )
            by_group.group_filter_data[known.group] = ConsumerFilterData(
                consumer_group=known.group,
                topic=known.topic,
                expression=known.expression,
                expression_type=known.expression_type,
                born_time=known.born_ms,
                dead_time=known.dead_ms,
                dead=known.is_dead,
                client_version=known.client_version,
                bloom_filter_data=bloom_positions(known.group, known.topic),
            )
        return table


def compiled_of(expression: str, expression_type: str) -> Expression:
    """Return the compiled condition of a subscription that is not by tags.

    Raises:
        SubscriptionError: the expression does not compile, or its type is unknown.
    """
    if expression_type != EXPRESSION_SQL92:
        raise SubscriptionError(
            f"subscription exception: expression type {expression_type!r} is unknown; "
            "accepted are TAG and SQL92",
            expression_type=expression_type,
        )
    return compile_expression(expression)

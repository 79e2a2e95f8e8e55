"""Plans of changes of consumer groups: making, changing, pausing, deleting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocketstream.admin.changes.reset_facts import (
    group_settings_at,
    settings_of,
    unknown_group,
)
from rocketstream.admin.changes.topics import TopicChangeAdmin
from rocketstream.admin.core.lag import offsets_of_group
from rocketstream.admin.core.steps import (
    ChangePlan,
    Step,
    StepKind,
    changed_group,
    group_sentences,
    listed,
    popped_again,
)
from rocketstream.admin.core.words import plural
from rocketstream.admin.service import question
from rocketstream.admin.sweep import Sweep
from rocketstream.errors import ConfigurationError
from rocketstream.protocol import names
from rocketstream.protocol.bodies import SubscriptionGroupConfig


class GroupSettingsAdmin(TopicChangeAdmin):
    """The operations of ``Admin`` that plan changes of groups."""

    @question
    def group_create_plan(
        self, group: str, settings: Mapping[str, Any] | None = None
    ) -> ChangePlan:
        """Return what making a group on every broker would do; an existing group is a problem.

        Args:
            group: the consumer group.
            settings: by upstream's names, ``{"retryMaxTimes": 5}``; defaults for the others.

        Raises:
            ConfigurationError: a bad name or value.
        """
        names.check_consumer_group(group)
        _refuse_system(group)
        there = group_settings_at(self._reach, group)
        arguments = {"group": group, "settings": dict(settings or {})}
        already = [f"{broker_name} has group {group} already" for broker_name in there]
        return self._put_plan("group.create", group, there, settings or {}, arguments, already)

    @question
    def group_update_plan(self, group: str, settings: Mapping[str, Any]) -> ChangePlan:
        """Return what changing a group's settings would do, on every broker.

        Args:
            group: the consumer group.
            settings: by upstream's names; settings that are not named stay, also those of later
                releases.

        Raises:
            ConfigurationError: no broker knows the group; a setting a broker does not have, or a
                value of another kind.
        """
        arguments = {"group": group, "settings": dict(settings)}
        return self._change_plan("group.update", group, settings, arguments)

    @question
    def group_pause_plan(self, group: str) -> ChangePlan:
        """Return what pausing a group would do: brokers give its members nothing more.

        No request pauses the members, together or singly. Instead the brokers refuse the pulls of
        the whole group (``consumeEnable``), for members in any language. Progress stays.

        Raises:
            ConfigurationError: no broker knows the group.
        """
        return self._change_plan("group.pause", group, {"consumeEnable": False}, {"group": group})

    @question
    def group_resume_plan(self, group: str) -> ChangePlan:
        """Return what ending a pause would do.

        Raises:
            ConfigurationError: no broker knows the group.
        """
        return self._change_plan("group.resume", group, {"consumeEnable": True}, {"group": group})

    @question
    def group_delete_plan(self, group: str, *, dead_letters: bool = False) -> ChangePlan:
        """Return what deleting a group would lose: its progress, its retries, its settings.

        Connected members are a problem: they would create the group again.

        Args:
            group: the consumer group.
            dead_letters: delete its dead letters too; False keeps them.

        Raises:
            ConfigurationError: no broker knows the group, or it is a group of the system.
        """
        _refuse_system(group)
        known = self._known_of(group)
        if group not in known.groups:
            raise unknown_group(group, known.groups)
        settings = group_settings_at(self._reach, group)
        tables = self._wire.offset_tables(known.masters) or {}
        offsets = offsets_of_group(tables, group)
        at = sorted(set(settings) | {queue.broker_name for queue in offsets})
        steps = [Step(StepKind.DELETE_GROUP, b, group, settings.get(b, {}), None) for b in at]
        losses: list[str] = []
        for topic in sorted({queue.topic for queue in offsets}):
            count = sum(1 for queue in offsets if queue.topic == topic)
            losses.append(f"its progress in topic {topic}, {plural(count, 'queue')}")
        warnings: list[str] = []
        here = {t for a in known.masters.values() for t in self._wire.topic_settings(a)}
        topics_of = {each: known.topics_of.get(each, ()) for each in known.groups}
        popped, doubtful = popped_again(group, here, topics_of)
        warnings += [f"{topic} stays: it may be another group's" for topic in doubtful]
        for topic, what in (
            (names.retry_topic(group), "waiting to be consumed again"),
            *((topic, "waiting to be popped again") for topic in popped),
            (names.dlq_topic(group), "given up, its dead letters"),
        ):
            more = self._delete_steps(topic)
            held = sum(
                sum(self._held(step.where, topic, 0).values())
                for step in more
                if step.kind is StepKind.DELETE_TOPIC
            )
            if topic == names.dlq_topic(group) and held and not dead_letters:
                warnings.append(f"its {plural(held, 'dead letter')} stay, in {topic}")
                continue
            if held:
                losses.append(f"{plural(held, 'message')} {what}, in {topic}")
            steps += more
        if delayed := Sweep(self._reach).group(group, owners=False).delayed:
            losses.append(f"{plural(delayed, 'message')} it failed and is to get after a delay")
        members = {m.client_id for c in known.connections.values() for m in c.connection_set}
        problems = []
        if members:
            problems.append(
                f"{plural(len(members), 'member')} connected, and would make it again: "
                f"{listed(members)}"
            )
        arguments = {"group": group, "dead_letters": dead_letters}
        return self._plan_of(
            "group.delete", group, steps, arguments,
            losses=losses, warnings=warnings, problems=problems,
        )  # fmt: skip

    # --- parts -----------------------------------------------------------------------------------

    def _change_plan(
        self, operation: str, group: str, wanted: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> ChangePlan:
        _refuse_system(group)
        there = settings_of(self._reach, group)
        return self._put_plan(operation, group, there, wanted, arguments)

    def _put_plan(
        self,
        operation: str,
        group: str,
        there: Mapping[str, Mapping[str, Any]],
        wanted: Mapping[str, Any],
        arguments: Mapping[str, Any],
        already: Sequence[str] | None = None,
    ) -> ChangePlan:
        """Return what writing settings to every broker would do.

        Args:
            already: given when a group is made: the brokers that have it, as problems. A broker
                without the group then gets the settings even where they are the defaults.
        """
        default = SubscriptionGroupConfig(group_name=group).to_json()
        steps: list[Step] = []
        warnings: list[str] = []
        problems = list(already or ())
        is_new = already is not None
        for broker_name in sorted(self._wire.masters()):
            before = there.get(broker_name)
            after = changed_group(before or default, wanted, broker_name)
            if after == (before if is_new else before or default):
                continue
            steps.append(Step(StepKind.PUT_GROUP, broker_name, group, before, after))
            more = group_sentences(before, after)
            warnings += [each for each in more[0] if each not in warnings]
            problems += [each for each in more[1] if each not in problems]
        return self._plan_of(
            operation, group, steps, arguments, warnings=warnings, problems=problems
        )


def _refuse_system(group: str) -> None:
    names.check_group(group)
    if names.is_system_group(group):
        raise ConfigurationError(
            f"group {group!r} belongs to the brokers themselves: it is not to be changed",
            group=group,
        )

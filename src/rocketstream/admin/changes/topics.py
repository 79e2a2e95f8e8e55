"""Plans of changes of topics: making, changing, deleting them, and the losses that brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocketstream.admin.changes.applying import ApplyAdmin
from rocketstream.admin.core.likeness import like
from rocketstream.admin.core.steps import (
    ChangePlan,
    Step,
    StepKind,
    check_topic_settings,
    listed,
    new_topic_settings,
    shrink_sentences,
    topic_settings,
)
from rocketstream.admin.core.words import plural
from rocketstream.admin.service import question
from rocketstream.admin.state import QueueKind
from rocketstream.admin.sweep import Sweep
from rocketstream.admin.topics import DEFAULT_TOPIC_QUEUES, Topics
from rocketstream.errors import BrokerError, ConfigurationError, RouteNotFoundError
from rocketstream.protocol import names
from rocketstream.protocol.codes import Perm


class TopicChangeAdmin(ApplyAdmin):
    """The operations of ``Admin`` that plan changes of topics."""

    @question
    def topic_create_plan(
        self,
        topic: str,
        queues: int = DEFAULT_TOPIC_QUEUES,
        perm: int = Perm.READ | Perm.WRITE,
        *,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> ChangePlan:
        """Return what making a topic on every broker would do; an existing topic is a problem.

        Args:
            topic: 1 to 127 characters of ``[%|a-zA-Z0-9_-]``.
            queues: read and write queues on each broker.
            perm: bits of ``Perm`` (4 read, 2 write).
            order: marks the topic as ordered for upstream's tools; brokers of 4.x do not keep the
                mark.
            attributes: of 5.x, by name: ``{"message.type": "FIFO"}``; 4.x ignores them.

        Raises:
            ConfigurationError: a name, count or permission that is not acceptable.
        """
        names.check_topic(topic)
        wanted = new_topic_settings(queues, int(perm), order, attributes or {})
        check_topic_settings(wanted)
        self._refuse_system(topic, "made")
        steps: list[Step] = []
        problems: list[str] = []
        for broker_name, address in sorted(self._wire.masters().items()):
            raw = self._wire.topic_settings(address).get(topic)
            if raw is None:
                steps.append(Step(StepKind.PUT_TOPIC, broker_name, topic, None, wanted))
                continue
            step = Step(StepKind.PUT_TOPIC, broker_name, topic, topic_settings(raw), wanted)
            kept = ("readQueueNums", "writeQueueNums", "perm")
            if any(difference[0] in kept for difference in step.differences()):
                steps.append(step)
                there = "; ".join(f"{n} {b}, not {a}" for n, b, a in step.differences())
                problems.append(
                    f"{broker_name} has topic {topic} already ({there}); `rocketstream topic "
                    "update` changes it"
                )
        arguments = {
            "topic": topic, "queues": queues, "perm": int(perm), "order": order,
            "attributes": dict(attributes or {}),
        }  # fmt: skip
        return self._plan_of("topic.create", topic, steps, arguments, problems=problems)

    @question
    def topic_update_plan(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> ChangePlan:
        """Return what changing a topic would do, on every broker that has it.

        Removing queues is a warning; removing read queues that hold messages is a problem.

        Args:
            topic: the topic.
            read_queues: read queues on each broker; None leaves them unchanged.
            write_queues: write queues on each broker; None leaves them unchanged.
            perm: bits of ``Perm``; None leaves it unchanged.
            order: see ``topic_create_plan``; None leaves it.
            attributes: of 5.x; those with None are removed, those not named stay.

        Raises:
            ConfigurationError: a count or permission is not acceptable, or the topic is a system
                topic.
            RouteNotFoundError: no broker has the topic; the error names similar ones.
        """
        self._refuse_system(topic, "changed")
        wanted: dict[str, Any] = {
            "readQueueNums": read_queues,
            "writeQueueNums": write_queues,
            "perm": None if perm is None else int(perm),
            "order": order,
        }
        steps: list[Step] = []
        warnings: list[str] = []
        problems: list[str] = []
        for broker_name, before in self._settings_of_topic(topic).items():
            after = {**before, **{k: v for k, v in wanted.items() if v is not None}}
            merged = {**before["attributes"], **(attributes or {})}
            after["attributes"] = {k: v for k, v in merged.items() if v is not None}
            check_topic_settings(after)
            step = Step(StepKind.PUT_TOPIC, broker_name, topic, before, after)
            if not step.differences():
                continue
            steps.append(step)
            held = self._held(broker_name, topic, before["readQueueNums"])
            more = shrink_sentences(topic, before, after, held, broker_name)
            warnings += more[0]
            problems += more[1]
        arguments = {
            "topic": topic, "read_queues": read_queues, "write_queues": write_queues,
            "perm": wanted["perm"], "order": order, "attributes": dict(attributes or {}),
        }  # fmt: skip
        return self._plan_of(
            "topic.update", topic, steps, arguments, warnings=warnings, problems=problems
        )

    @question
    def topic_delete_plan(self, topic: str) -> ChangePlan:
        """Return what deleting a topic would lose: messages, progress, and who consumes it.

        Members that subscribe it are a problem.

        Raises:
            ConfigurationError: it is a topic of the system.
            RouteNotFoundError: no broker has the topic; the error names similar ones.
        """
        self._refuse_system(topic, "deleted")
        steps = self._delete_steps(topic)
        if not steps:
            raise self._unknown_topic(topic)
        brokers = [step.where for step in steps if step.kind is StepKind.DELETE_TOPIC]
        losses, problems = self._consumers_of(topic, brokers)
        count = sum(
            sum(self._held(step.where, topic, step.before["readQueueNums"]).values())
            for step in steps
            if step.kind is StepKind.DELETE_TOPIC and isinstance(step.before, Mapping)
        )
        losses.insert(0, f"{plural(count, 'message')} kept on {listed(brokers) or 'no broker'}")
        warnings = []
        makes = [b for b in brokers if self._makes_topics(b)]
        if makes:
            warnings.append(
                f"{listed(makes)} makes topics by itself (autoCreateTopicEnable): a producer that "
                "still sends makes it again, empty"
            )
        return self._plan_of(
            "topic.delete", topic, steps, {"topic": topic},
            losses=losses, warnings=warnings, problems=problems,
        )  # fmt: skip

    # --- parts -----------------------------------------------------------------------------------

    def _plan_of(
        self,
        operation: str,
        name: str,
        steps: list[Step],
        arguments: Mapping[str, Any],
        *,
        losses: list[str] | None = None,
        warnings: list[str] | None = None,
        problems: list[str] | None = None,
    ) -> ChangePlan:
        return ChangePlan(
            operation=operation,
            name=name,
            steps=tuple(steps),
            losses=tuple(losses or ()),
            warnings=tuple(warnings or ()),
            problems=tuple(problems or ()),
            arguments=arguments,
            taken_ms=self._clock.now_ms(),
        )

    def _settings_of_topic(self, topic: str) -> dict[str, dict[str, Any]]:
        """Return a topic's settings by broker."""
        found = {
            broker_name: topic_settings(raw)
            for broker_name, address in sorted(self._wire.masters().items())
            if (raw := self._wire.topic_settings(address).get(topic)) is not None
        }
        if not found:
            raise self._unknown_topic(topic)
        return found

    def _unknown_topic(self, topic: str) -> RouteNotFoundError:
        hint = like(topic, self._wire.topic_names()) or "; `rocketstream topic list` shows them"
        return RouteNotFoundError(f"no broker has topic {topic!r}{hint}", topic=topic)

    def _refuse_system(self, topic: str, what: str) -> None:
        names.check_topic(topic)
        kinds = {row.topic: row.kind for row in Topics(self._reach).all()}
        if names.is_system_topic(topic) or kinds.get(topic) == "system":
            raise ConfigurationError(
                f"topic {topic!r} belongs to the brokers themselves: it is not to be {what}",
                topic=topic,
            )

    def _delete_steps(self, topic: str) -> list[Step]:
        """Return the steps that remove a topic: from its brokers, then from every name server."""
        steps = [
            Step(StepKind.DELETE_TOPIC, broker_name, topic, topic_settings(raw), None)
            for broker_name, address in sorted(self._wire.masters().items())
            if (raw := self._wire.topic_settings(address).get(topic)) is not None
        ]
        steps += [
            Step(StepKind.DELETE_ROUTE, address, topic)
            for address in self._client.name_servers
            if self._wire.route_at(address, topic)
        ]
        return steps

    def _held(self, broker_name: str, topic: str, read_queues: int) -> dict[int, int]:
        """Return how many messages are kept, by queue id."""
        try:
            table = self._wire.topic_stats(self._client.master(broker_name), topic).offset_table
        except BrokerError:
            return {}
        return {q.queue_id: max(s.max_offset - s.min_offset, 0) for q, s in table.items()}

    def _consumers_of(self, topic: str, brokers: list[str]) -> tuple[list[str], list[str]]:
        """Return the groups whose progress is lost, and the members that subscribe the topic."""
        groups: set[str] = set()
        for broker_name in brokers:
            groups |= self._wire.groups_of(self._client.master(broker_name), topic)
        losses: list[str] = []
        problems: list[str] = []
        masters = self._wire.masters()
        for group in sorted(each for each in groups if not names.is_system_group(each)):
            state = Sweep(self._reach).group(group, topic, matching=False)
            queues = state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
            stored = [each for each in queues if each.committed_offset]
            if stored:
                lag = sum(each.lag or 0 for each in stored)
                losses.append(
                    f"the progress of group {group} in {plural(len(stored), 'queue')}, "
                    + (f"{plural(lag, 'message')} of it not consumed" if lag else "all consumed")
                )
            members = {
                member.client_id
                for connection in self._wire.connections(group, masters).values()
                if topic in connection.subscription_table
                for member in connection.connection_set
            }
            if members:
                problems.append(
                    f"{plural(len(members), 'member')} of group {group} subscribe it: "
                    f"{listed(members)}"
                )
        return losses, problems

    def _makes_topics(self, broker_name: str) -> bool:
        try:
            settings = self._wire.broker_config(self._client.master(broker_name))
        except BrokerError:
            return False
        return settings.get("autoCreateTopicEnable") == "true"

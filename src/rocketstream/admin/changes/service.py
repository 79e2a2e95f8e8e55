"""The service of changes of topics, groups and offsets: planned, checked again, made, read back.

Law: ``apply`` makes the steps of a plan and no others. ``core.steps`` decides what a plan says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rocketstream.admin.changes.resets import GroupFacts, Resets
from rocketstream.admin.changes.transfer import Transfers
from rocketstream.admin.core.joining import offsets_of, offsets_of_group
from rocketstream.admin.core.steps import (
    ChangeDone,
    ChangePlan,
    Draft,
    Step,
    StepDone,
    StepKind,
    attributes_change,
    changed_group,
    check_topic_settings,
    listed,
    new_topic_settings,
    popped_again,
    refuse,
    still_true,
    topic_settings,
)
from rocketstream.admin.core.words import plural
from rocketstream.admin.safety import Change
from rocketstream.admin.service import Reach, change, question
from rocketstream.admin.state import QueueKind
from rocketstream.admin.sweep import Sweep
from rocketstream.admin.topics import DEFAULT_TOPIC_QUEUES, Topics
from rocketstream.admin.wire import questions
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.bodies import SubscriptionGroupConfig
from rocketstream.protocol.codes import Perm, ResponseCode

_LOOK_EVERY_S: Final = 0.05
_KEPT: Final = ("readQueueNums", "writeQueueNums", "perm")
"""Settings of topics that brokers of 4.x keep too: neither attributes nor a requested order."""
_NOT_SO: Final = {
    StepKind.PUT_TOPIC: "the broker or the name server shows other settings",
    StepKind.DELETE_TOPIC: "the broker has it (again): does somebody send to it?",
    StepKind.DELETE_ROUTE: "the name server still routes to it: does somebody send to it?",
    StepKind.PUT_GROUP: "the broker shows other settings",
    StepKind.DELETE_GROUP: "the broker has it (again): does a member connect?",
    StepKind.STORE_OFFSET: "the broker has another offset: do members commit?",
}
Place = tuple[str, str]
"""The server of a step, and the name of the topic or group it changes."""


class Changes(Resets, Transfers):
    """``Admin.changes``."""

    # --- topics ----------------------------------------------------------------------------------

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
        self._refuse_system_topic(topic, "made")
        arguments = {
            "topic": topic, "queues": queues, "perm": int(perm), "order": order,
            "attributes": dict(attributes or {}),
        }  # fmt: skip
        draft = Draft("topic.create", topic, arguments)
        for broker_name, raw in self._at_brokers(topic).items():
            before = None if raw is None else topic_settings(raw)
            step = Step(StepKind.PUT_TOPIC, broker_name, topic, before, wanted)
            if before is not None:
                if all(difference[0] not in _KEPT for difference in step.differences()):
                    continue
                there = "; ".join(f"{n} {b}, not {a}" for n, b, a in step.differences())
                draft.problems.append(
                    f"{broker_name} has topic {topic} already ({there}); `rocketstream topic "
                    "update` changes it"
                )
            draft.steps.append(step)
        return draft.plan(self._clock.now_ms())

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
        self._refuse_system_topic(topic, "changed")
        wanted: dict[str, Any] = {
            "readQueueNums": read_queues,
            "writeQueueNums": write_queues,
            "perm": None if perm is None else int(perm),
            "order": order,
        }
        arguments = {
            "topic": topic, "read_queues": read_queues, "write_queues": write_queues,
            "perm": wanted["perm"], "order": order, "attributes": dict(attributes or {}),
        }  # fmt: skip
        draft = Draft("topic.update", topic, arguments)
        there = {b: topic_settings(raw) for b, raw in self._at_brokers(topic).items() if raw}
        if not there:
            raise self._unknown_topic(topic)
        for broker_name, before in there.items():
            after = {**before, **{k: v for k, v in wanted.items() if v is not None}}
            merged = {**before["attributes"], **(attributes or {})}
            after["attributes"] = {k: v for k, v in merged.items() if v is not None}
            check_topic_settings(after)
            draft.put_topic(broker_name, topic, before, after, self._held(broker_name, topic))
        return draft.plan(self._clock.now_ms())

    @question
    def topic_delete_plan(self, topic: str) -> ChangePlan:
        """Return what deleting a topic would lose: messages, progress, and who consumes it.

        Members that subscribe it are a problem.

        Raises:
            ConfigurationError: it is a topic of the system.
            RouteNotFoundError: no broker has the topic; the error names similar ones.
        """
        self._refuse_system_topic(topic, "deleted")
        draft = Draft("topic.delete", topic, {"topic": topic})
        told = self._at_brokers(topic)
        draft.steps = [*self._delete_steps(topic, told), *self._left_offsets(topic, told)]
        if not draft.steps:
            raise self._unknown_topic(topic)
        brokers = [step.where for step in draft.steps if step.kind is StepKind.DELETE_TOPIC]
        count = sum(sum(self._held(broker_name, topic).values()) for broker_name in brokers)
        draft.losses.append(f"{plural(count, 'message')} kept on {listed(brokers) or 'no broker'}")
        self._add_consumers(draft, topic, brokers)
        makes = [broker_name for broker_name in brokers if self._makes_topics(broker_name)]
        if makes:
            draft.warnings.append(
                f"{listed(makes)} makes topics by itself (autoCreateTopicEnable): a producer that "
                "still sends makes it again, empty"
            )
        return draft.plan(self._clock.now_ms())

    # --- groups ----------------------------------------------------------------------------------

    @question
    def group_create_plan(
        self, group: str, settings: Mapping[str, Any] | None = None
    ) -> ChangePlan:
        """Return what making a group on every broker would do; an existing group is a problem.

        Args:
            settings: by upstream's names, ``{"retryMaxTimes": 5}``; defaults for the others.

        Raises:
            ConfigurationError: a bad name or value.
        """
        names.check_consumer_group(group)
        _refuse_system_group(group)
        there = group_settings_at(self._reach, group)
        draft = Draft("group.create", group, {"group": group, "settings": dict(settings or {})})
        draft.problems += [f"{broker_name} has group {group} already" for broker_name in there]
        return self._put_plan(draft, there, settings or {}, is_new=True)

    @question
    def group_update_plan(self, group: str, settings: Mapping[str, Any]) -> ChangePlan:
        """Return what changing a group's settings would do, on every broker.

        Args:
            settings: by upstream's names; settings that are not named stay, also those of later
                releases.

        Raises:
            ConfigurationError: no broker knows the group; a setting a broker does not have, or a
                value of another kind.
        """
        draft = Draft("group.update", group, {"group": group, "settings": dict(settings)})
        return self._change_plan(draft, settings)

    @question
    def group_pause_plan(self, group: str) -> ChangePlan:
        """Return what pausing a group would do: brokers give its members nothing more.

        No request pauses the members, together or singly. Instead the brokers refuse the pulls of
        the whole group (``consumeEnable``), for members in any language. Progress stays.

        Raises:
            ConfigurationError: no broker knows the group.
        """
        return self._change_plan(
            Draft("group.pause", group, {"group": group}), {"consumeEnable": False}
        )

    @question
    def group_resume_plan(self, group: str) -> ChangePlan:
        """Return what ending a pause would do.

        Raises:
            ConfigurationError: no broker knows the group.
        """
        return self._change_plan(
            Draft("group.resume", group, {"group": group}), {"consumeEnable": True}
        )

    @question
    def group_delete_plan(self, group: str, *, dead_letters: bool = False) -> ChangePlan:
        """Return what deleting a group would lose: its progress, its retries, its settings.

        Connected members are a problem: they would create the group again.

        Args:
            dead_letters: delete its dead letters too; False keeps them.

        Raises:
            ConfigurationError: no broker knows the group, or it is a group of the system.
        """
        _refuse_system_group(group)
        known = GroupFacts.ask(self._reach, group)
        known.check_known()
        settings = group_settings_at(self._reach, group)
        offsets = offsets_of_group(known.tables or {}, group)
        draft = Draft("group.delete", group, {"group": group, "dead_letters": dead_letters})
        for topic in sorted({queue.topic for queue in offsets}):
            count = sum(1 for queue in offsets if queue.topic == topic)
            draft.losses.append(f"its progress in topic {topic}, {plural(count, 'queue')}")
        self._add_topics_of(draft, known, keeps_letters=not dead_letters)
        # Last, or a deletion that ends half way leaves topics of a group that nobody knows.
        draft.steps += [
            Step(StepKind.DELETE_GROUP, broker_name, group, settings.get(broker_name, {}), None)
            for broker_name in sorted({*settings, *(queue.broker_name for queue in offsets)})
        ]
        if delayed := Sweep(self._reach).group(group, owners=False).delayed:
            draft.losses.append(
                f"{plural(delayed, 'message')} it failed and is to get after a delay"
            )
        members = {m.client_id for c in known.connections.values() for m in c.connection_set}
        if members:
            draft.problems.append(
                f"{plural(len(members), 'member')} connected, and would make it again: "
                f"{listed(members)}"
            )
        return draft.plan(self._clock.now_ms())

    # --- parts of plans --------------------------------------------------------------------------

    def _at_brokers(self, topic: str) -> dict[str, Mapping[str, Any] | None]:
        """Return a topic's settings by broker, as each tells them; None where it has none."""
        return {
            broker_name: self._wire.ask(address, questions.TOPICS_AS_TOLD).get(topic)
            for broker_name, address in sorted(self._wire.masters().items())
        }

    def _unknown_topic(self, topic: str) -> RouteNotFoundError:
        from rocketstream.suggestions import like  # needed only where a name is wrong

        hint = like(topic, self._wire.topic_names()) or "; `rocketstream topic list` shows them"
        return RouteNotFoundError(f"no broker has topic {topic!r}{hint}", topic=topic)

    def _refuse_system_topic(self, topic: str, what: str) -> None:
        names.check_topic(topic)
        kinds = {row.topic: row.kind for row in Topics(self._reach).all()}
        if names.is_system_topic(topic) or kinds.get(topic) == "system":
            raise ConfigurationError(
                f"topic {topic!r} belongs to the brokers themselves: it is not to be {what}",
                topic=topic,
            )

    def _delete_steps(self, topic: str, told: Mapping[str, Mapping[str, Any] | None]) -> list[Step]:
        """Return the steps that remove a topic: from its brokers, then from every name server.

        Args:
            told: its settings by broker, as of ``_at_brokers``.
        """
        steps = [
            Step(StepKind.DELETE_TOPIC, broker_name, topic, topic_settings(raw), None)
            for broker_name, raw in told.items()
            if raw is not None
        ]
        steps += [
            Step(StepKind.DELETE_ROUTE, address, topic)
            for address in self._client.name_servers
            if self._wire.route_at(address, topic)
        ]
        return steps

    def _held(self, broker_name: str, topic: str) -> dict[int, int]:
        """Return how many messages are kept, by queue id."""
        try:
            told = self._wire.ask(self._client.master(broker_name), questions.ends_of(topic))
        except BrokerError:
            return {}
        return {queue.queue_id: queue.message_count for queue in told.values()}

    def _add_consumers(self, draft: Draft, topic: str, brokers: list[str]) -> None:
        """Add the groups whose progress is lost, and the members that subscribe the topic."""
        groups: set[str] = set()
        for broker_name in brokers:
            groups |= self._wire.ask(
                self._client.master(broker_name), questions.consumers_of(topic)
            )
        masters = self._wire.masters()
        for group in sorted(each for each in groups if not names.is_system_group(each)):
            state = Sweep(self._reach).group(group, topic, matching=False)
            queues = state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
            stored = [each for each in queues if each.committed_offset]
            if stored:
                lag = sum(each.lag or 0 for each in stored)
                draft.losses.append(
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
                draft.problems.append(
                    f"{plural(len(members), 'member')} of group {group} subscribe it: "
                    f"{listed(members)}"
                )

    def _makes_topics(self, broker_name: str) -> bool:
        try:
            settings = self._wire.ask(self._client.master(broker_name), questions.BROKER_CONFIG)
        except BrokerError:
            return False
        return settings.get("autoCreateTopicEnable") == "true"

    def _add_topics_of(self, draft: Draft, known: GroupFacts, *, keeps_letters: bool) -> None:
        """Add the retry and dead-letter topics that go with a group, and what they hold."""
        group, dead = known.group, names.dlq_topic(known.group)
        here = {
            t for a in known.masters.values() for t in self._wire.ask(a, questions.TOPICS_AS_TOLD)
        }
        topics_of = {each: known.topics_of.get(each, ()) for each in known.groups}
        popped, doubtful = popped_again(group, here, topics_of)
        draft.warnings += [f"{topic} stays: it may be another group's" for topic in doubtful]
        for topic, what in (
            (names.retry_topic(group), "waiting to be consumed again"),
            *((topic, "waiting to be popped again") for topic in popped),
            (dead, "given up, its dead letters"),
        ):
            steps = self._delete_steps(topic, self._at_brokers(topic))
            held = sum(
                sum(self._held(step.where, topic).values())
                for step in steps
                if step.kind is StepKind.DELETE_TOPIC
            )
            if topic == dead and held and keeps_letters:
                draft.warnings.append(f"its {plural(held, 'dead letter')} stay, in {topic}")
                continue
            if held:
                draft.losses.append(f"{plural(held, 'message')} {what}, in {topic}")
            draft.steps += steps

    def _change_plan(self, draft: Draft, wanted: Mapping[str, Any]) -> ChangePlan:
        _refuse_system_group(draft.name)
        return self._put_plan(draft, settings_of(self._reach, draft.name), wanted)

    def _put_plan(
        self,
        draft: Draft,
        there: Mapping[str, Mapping[str, Any]],
        wanted: Mapping[str, Any],
        *,
        is_new: bool = False,
    ) -> ChangePlan:
        """Return what writing settings to every broker would do.

        Args:
            is_new: the group is made: a broker without it gets the settings even where they are the
                defaults.
        """
        default = SubscriptionGroupConfig(group_name=draft.name).to_json()
        for broker_name in sorted(self._wire.masters()):
            before = there.get(broker_name)
            after = changed_group(before or default, wanted, broker_name)
            if after != (before if is_new else before or default):
                draft.put_group(broker_name, draft.name, before, after)
        return draft.plan(self._clock.now_ms())

    # --- carrying out ----------------------------------------------------------------------------

    @change
    def apply(self, plan: ChangePlan, *, force: bool = False, as_shown: bool = False) -> ChangeDone:
        """Make the changes a plan shows; blocks until they are read back.

        The plan is made again first; a plan that is no longer true is refused.

        Args:
            plan: the plan that was shown, from ``topic_delete_plan``, ``group_pause_plan`` and so
                on.
            force: carry the plan out despite ``plan.problems``, and although it is no longer true;
                the steps made are then those that would be planned now.
            as_shown: restricts ``force`` to the problems, as for ``reset_apply``.

        Raises:
            ClientStateError: the plan has problems or is no longer true, or the audit file cannot
                be written; nothing was changed.
            ReadOnlyError: this Admin is read-only.
            BrokerError, TransportError: a broker refused or did not answer; the audit file says
                which steps were made before that.
        """
        self._changes.check(plan.operation)
        refused = f"{plan.operation} of {plan.name!r} is refused"
        refuse(refused, () if force else plan.problems, name=plan.name)
        now = self._planned_again(plan)
        if as_shown or not force:
            refuse(refused, (), still_true(plan, now), name=plan.name)
        if not now.steps:
            return ChangeDone(now, ())
        before = [_as_values(step, step.before) for step in now.steps]
        arguments = {**plan.arguments, "force": force, "losses": list(now.losses)}
        with self._changes.open(plan.operation, arguments, before) as doing:
            made: list[Step] = []
            notes: dict[Place, str] = {}
            doing.after = made_values = []
            for step in now.steps:
                self._make(doing, step)
                made.append(step)
                made_values.append(_as_values(step, step.after))
                if step.kind is StepKind.DELETE_TOPIC and (count := self._forget(doing, step)):
                    told = f"{plural(count, 'offset')} that the broker keeps set to 0"
                    notes[step.where, step.name] = told
            done = self._steps_done(made, notes)
        return ChangeDone(now, tuple(done))

    def _planned_again(self, plan: ChangePlan) -> ChangePlan:
        planner: Callable[..., ChangePlan]
        planner = getattr(self, f"{plan.operation.replace('.', '_')}_plan")
        return planner(**plan.arguments)

    def _make(self, change: Change, step: Step) -> None:
        if step.kind is StepKind.DELETE_ROUTE:
            change.wire.delete_route(step.where, step.name)
            return
        address = self._client.master(step.where)
        match step.kind:
            case StepKind.PUT_TOPIC:
                after = _settings(step.after)
                was = _settings(step.before).get("attributes", {})
                attributes = attributes_change(was, after.get("attributes", {}))
                change.wire.put_topic(address, step.name, after, attributes)
            case StepKind.DELETE_TOPIC:
                change.wire.delete_topic(address, step.name)
            case StepKind.PUT_GROUP:
                change.wire.put_group(address, _settings(step.after))
            case StepKind.DELETE_GROUP:
                change.wire.delete_group(address, step.name, offsets=True)
            case StepKind.STORE_OFFSET:
                if step.queue is not None and step.after == 0:
                    _set_to_0(change, step.name, step.queue)
                elif step.queue is not None and isinstance(step.after, int):
                    change.wire.store_offset(step.name, step.queue, step.after)

    def _forget(self, change: Change, step: Step) -> int:
        """Set offsets to 0 that a broker kept for a topic it deleted, as brokers of 4.x do; return
        how many.

        A topic of the same name begins at 0 again; the old offsets would skip its first messages,
        and no request deletes them for one topic.
        """
        kept = [each for each in self._offsets_in(step.where, step.name) if each[2] > 0]
        return sum(_set_to_0(change, group, queue) for group, queue, _ in kept)

    def _left_offsets(self, topic: str, told: Mapping[str, Mapping[str, Any] | None]) -> list[Step]:
        """Return the steps for offsets at brokers that have the topic no more: a deletion that
        ended before it set them to 0 left them."""
        return [
            Step(StepKind.STORE_OFFSET, broker_name, group, offset, 0, queue)
            for broker_name, raw in told.items()
            if raw is None
            for group, queue, offset in self._offsets_in(broker_name, topic)
            if offset > 0
        ]

    def _offsets_in(self, broker_name: str, topic: str) -> list[tuple[str, MessageQueue, int]]:
        """Return the offsets a broker has stored for a topic: group, queue, offset."""
        try:
            table = self._wire.ask(self._client.master(broker_name), questions.OFFSETS)
        except BrokerError:
            return []
        stored = offsets_of({broker_name: table}, lambda group: True)
        return [(*place, offset) for place, offset in stored.items() if place[1].topic == topic]

    # --- reading back ----------------------------------------------------------------------------

    def _steps_done(self, steps: Sequence[Step], notes: Mapping[Place, str]) -> list[StepDone]:
        """Return what each step has led to; name servers get one timeout to follow the brokers."""
        pause = threading.Event()
        deadline = self._clock.monotonic_ms() + self._timeout_ms
        while True:
            done = self._looked_at(steps, notes)
            if all(each.done is not False for each in done):
                return done
            if self._clock.monotonic_ms() >= deadline:
                return done
            pause.wait(_LOOK_EVERY_S)

    def _looked_at(self, steps: Sequence[Step], notes: Mapping[Place, str]) -> list[StepDone]:
        topics: dict[str, dict[str, dict[str, Any]]] = {}
        groups: dict[str, dict[str, dict[str, Any]]] = {}
        done: list[StepDone] = []
        for step in steps:
            try:
                is_so = self._is_so(step, topics, groups)
            except (BrokerError, TransportError) as error:
                done.append(StepDone(step, None, f"not read back: {error}"))
                continue
            note = notes.get((step.where, step.name)) if is_so else _NOT_SO[step.kind]
            done.append(StepDone(step, is_so, note))
        return done

    def _is_so(
        self,
        step: Step,
        topics: dict[str, dict[str, dict[str, Any]]],
        groups: dict[str, dict[str, dict[str, Any]]],
    ) -> bool:
        if step.kind is StepKind.DELETE_ROUTE:
            return not self._wire.route_at(step.where, step.name)
        address = self._client.master(step.where)
        if step.kind is StepKind.STORE_OFFSET and step.queue is not None:
            return self._client.query_consumer_offset(step.name, step.queue) == step.after
        if step.kind in (StepKind.PUT_TOPIC, StepKind.DELETE_TOPIC):
            if step.where not in topics:
                topics[step.where] = self._wire.ask(address, questions.TOPICS_AS_TOLD)
            raw = topics[step.where].get(step.name)
            if step.after is None:
                return raw is None
            return raw is not None and self._is_routed(step, topic_settings(raw))
        if step.kind is StepKind.DELETE_GROUP:
            tables = {step.where: self._wire.ask(address, questions.OFFSETS)}
            if offsets_of_group(tables, step.name):
                return False
        if step.where not in groups:
            groups[step.where] = self._wire.ask(address, questions.GROUPS_AS_TOLD)
        return _holds(groups[step.where].get(step.name), step.after)

    def _is_routed(self, step: Step, now: Mapping[str, Any]) -> bool:
        """Whether a broker has a topic's settings, and the name server routes accordingly."""
        after = _settings(step.after)
        wanted = [after[name] for name in _KEPT]
        if [now[name] for name in _KEPT] != wanted:
            return False
        try:
            route = self._wire.route(step.name)
        except RouteNotFoundError:
            return False
        return any(
            data.broker_name == step.where
            and [data.read_queue_nums, data.write_queue_nums, data.perm] == wanted
            for data in route.queue_datas
        )


def _settings(value: Mapping[str, Any] | int | None) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _set_to_0(change: Change, group: str, queue: MessageQueue) -> bool:
    """Set an offset to 0; return whether the broker knows the group."""
    try:
        change.wire.store_offset(group, queue, 0)
    except BrokerError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        return False
    return True


def _holds(now: Mapping[str, Any] | None, after: Mapping[str, Any] | int | None) -> bool:
    """Whether the settings are in place, as far as the broker knows their names."""
    if not isinstance(after, Mapping):
        return now is None
    return now is not None and all(now[name] == after[name] for name in after if name in now)


def _as_values(step: Step, state: Mapping[str, Any] | int | None) -> dict[str, Any]:
    values: dict[str, Any] = {"step": str(step.kind), "where": step.where, "name": step.name}
    if step.queue is not None:
        values["queue"] = str(step.queue)
    return {**values, "state": dict(state) if isinstance(state, Mapping) else state}


def settings_of(reach: Reach, group: str) -> dict[str, dict[str, Any]]:
    """Return a group's settings by broker; see ``Groups.settings``."""
    GroupFacts.ask(reach, group).check_known()
    return group_settings_at(reach, group)


def group_settings_at(reach: Reach, group: str) -> dict[str, dict[str, Any]]:
    """Return a group's settings by broker; empty where no broker has any."""
    return {
        broker_name: raw
        for broker_name, address in sorted(reach.wire.masters().items())
        if (raw := reach.wire.ask(address, questions.GROUPS_AS_TOLD).get(group)) is not None
    }


def _refuse_system_group(group: str) -> None:
    names.check_group(group)
    if names.is_system_group(group):
        raise ConfigurationError(
            f"group {group!r} belongs to the brokers themselves: it is not to be changed",
            group=group,
        )

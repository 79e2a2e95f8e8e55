"""The application of planned changes of topics, groups and offsets: checked again, made, read back.

Law: makes the steps of a ``ChangePlan`` and no others; ``core.steps`` decides what a plan says.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rocketstream.admin.changes.refusing import refuse_changed, refuse_problems
from rocketstream.admin.changes.resets import ResetAdmin
from rocketstream.admin.core.lag import offsets_of_group
from rocketstream.admin.core.steps import (
    ChangeDone,
    ChangePlan,
    Step,
    StepDone,
    StepKind,
    attributes_change,
    still_true,
    topic_settings,
)
from rocketstream.admin.safety.gate import Change
from rocketstream.admin.service import change
from rocketstream.errors import (
    BrokerError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.codes import ResponseCode

_LOOK_EVERY_S: Final = 0.05
Place = tuple[str, str]
"""The server of a step, and the name of the topic or group it changes."""


class ApplyAdmin(ResetAdmin):
    """The operation of ``Admin`` that carries plans out."""

    @change
    def apply(self, plan: ChangePlan, *, force: bool = False) -> ChangeDone:
        """Make the changes a plan shows; blocks until they are read back.

        The plan is made again first; a plan that is no longer true is refused.

        Args:
            plan: the plan that was shown, from ``topic_delete_plan``, ``group_pause_plan`` and so
                on.
            force: carry the plan out despite ``plan.problems``, and although it is no longer true;
                the steps made are then those that would be planned now.

        Raises:
            ClientStateError: the plan has problems or is no longer true, or the audit file cannot
                be written; nothing was changed.
            ReadOnlyError: this Admin is read-only.
            BrokerError, TransportError: a broker refused or did not answer; the audit file says
                which steps were made before that.
        """
        self._changes.check(plan.operation)
        refused = f"{plan.operation} of {plan.name!r} is refused"
        if not force:
            refuse_problems(refused, plan.problems, name=plan.name)
        now = self._planned_again(plan)
        changed = still_true(plan, now)
        if not force:
            refuse_changed(refused, changed, name=plan.name)
        if not now.steps:
            return ChangeDone(now, ())
        before = [_as_values(step, step.before) for step in now.steps]
        arguments = {**plan.arguments, "force": force, "losses": list(now.losses)}
        with self._changes.open(plan.operation, arguments, before) as doing:
            made: list[Step] = []
            doing.after = made_values = []
            for step in now.steps:
                self._make(doing, step)
                made.append(step)
                made_values.append(_as_values(step, step.after))
            notes = self._forget_offsets(doing, made)
            done = self._steps_done(made, notes)
        return ChangeDone(now, tuple(done))

    def _planned_again(self, plan: ChangePlan) -> ChangePlan:
        return self._planners()[plan.operation](**plan.arguments)

    @abstractmethod
    def _planners(self) -> Mapping[str, Callable[..., ChangePlan]]:
        """Return the method that plans each operation, by the operation's name."""

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
                if step.queue is not None and isinstance(step.after, int):
                    change.wire.store_offset(step.name, step.queue, step.after)

    def _forget_offsets(self, change: Change, steps: Iterable[Step]) -> dict[Place, str]:
        """Set offsets to 0 that a broker kept for a topic it deleted, as brokers of 4.x do.

        A topic of the same name begins at 0 again; the old offsets would skip its first messages,
        and no request deletes them for one topic.
        """
        notes: dict[Place, str] = {}
        for step in steps:
            if step.kind is not StepKind.DELETE_TOPIC:
                continue
            count = 0
            for group, queue, offset in self._offsets_in(step.where, step.name):
                if offset > 0:
                    try:
                        change.wire.store_offset(group, queue, 0)
                        count += 1
                    except BrokerError as error:
                        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                            raise
            if count:
                notes[step.where, step.name] = f"{count} offsets that the broker keeps are set to 0"
        return notes

    def _has_offsets(self, broker_name: str, group: str) -> bool:
        table = self._wire.all_offsets(self._client.master(broker_name))
        return bool(offsets_of_group({broker_name: table}, group))

    def _offsets_in(self, broker_name: str, topic: str) -> list[tuple[str, MessageQueue, int]]:
        """Return the offsets a broker has stored for a topic: group, queue, offset."""
        try:
            table = self._wire.all_offsets(self._client.master(broker_name))
        except BrokerError:
            return []
        found: list[tuple[str, MessageQueue, int]] = []
        for key, offsets in table.items():
            place = names.offsets_place(key)
            if place is not None and place[0] == topic:
                found += [
                    (place[1], MessageQueue(topic, broker_name, queue_id), offset)
                    for queue_id, offset in offsets.items()
                ]
        return found

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
                topics[step.where] = self._wire.topic_settings(address)
            raw = topics[step.where].get(step.name)
            if step.after is None:
                return raw is None
            return raw is not None and self._is_routed(step, topic_settings(raw))
        if step.kind is StepKind.DELETE_GROUP and self._has_offsets(step.where, step.name):
            return False
        if step.where not in groups:
            groups[step.where] = self._wire.group_settings(address)
        return _holds(groups[step.where].get(step.name), step.after)

    def _is_routed(self, step: Step, now: Mapping[str, Any]) -> bool:
        """Whether a broker has a topic's settings, and the name server routes accordingly."""
        after = _settings(step.after)
        # Brokers of 4.x keep neither attributes nor a requested order.
        kept = ("readQueueNums", "writeQueueNums", "perm")
        if any(now[name] != after[name] for name in kept):
            return False
        try:
            route = self._wire.route(step.name)
        except RouteNotFoundError:
            return False
        return any(
            data.broker_name == step.where
            and (data.read_queue_nums, data.write_queue_nums, data.perm)
            == (after["readQueueNums"], after["writeQueueNums"], after["perm"])
            for data in route.queue_datas
        )


_NOT_SO: Final = {
    StepKind.PUT_TOPIC: "the broker or the name server shows other settings",
    StepKind.DELETE_TOPIC: "the broker has it (again): does somebody send to it?",
    StepKind.DELETE_ROUTE: "the name server still routes to it: does somebody send to it?",
    StepKind.PUT_GROUP: "the broker shows other settings",
    StepKind.DELETE_GROUP: "the broker has it (again): does a member connect?",
    StepKind.STORE_OFFSET: "the broker has another offset: do members commit?",
}


def _settings(value: Mapping[str, Any] | int | None) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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

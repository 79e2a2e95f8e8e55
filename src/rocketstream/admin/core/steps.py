"""Changes of topics, groups and offsets as values: steps with the state before and after.

Pure: settings in, steps and sentences out.

Law: settings are kept by upstream's names, including those this package does not know, so that a
change loses none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rocketstream.admin.core.words import some
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.codes import Perm

Settings = Mapping[str, Any]
QUEUES_MAX: Final = 65_536


class StepKind(StrEnum):
    """The kind of change a step makes."""

    PUT_TOPIC = "put topic"
    DELETE_TOPIC = "delete topic"
    DELETE_ROUTE = "delete route"
    PUT_GROUP = "put group"
    DELETE_GROUP = "delete group"
    STORE_OFFSET = "store offset"


@dataclass(frozen=True, slots=True)
class Step:
    """One change at one place.

    Attributes:
        where: the broker's name; the address of a name server for ``DELETE_ROUTE``.
        name: the topic or group; for ``STORE_OFFSET`` the group.
        before: the settings or the offset now; None where there are none.
        after: the settings or the offset afterwards; None where they are removed.
        queue: the queue, for ``STORE_OFFSET``.
    """

    kind: StepKind
    where: str
    name: str
    before: Settings | int | None = None
    after: Settings | int | None = None
    queue: MessageQueue | None = None

    def differences(self) -> list[tuple[str, Any, Any]]:
        """Return the differences: name, before, after; None stands for "not there"."""
        if self.queue is not None:
            return [("offset", self.before, self.after)]
        before = self.before if isinstance(self.before, Mapping) else {}
        after = self.after if isinstance(self.after, Mapping) else {}
        both = [*before, *(name for name in after if name not in before)]
        return [
            (name, before.get(name), after.get(name))
            for name in both
            if before.get(name) != after.get(name)
        ]


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The steps of a change, to be shown before they are made.

    Attributes:
        operation: ``topic.delete``, ``group.pause``, …
        name: the topic, group or file it is about.
        steps: in the order they are made.
        losses: the losses the change brings, a sentence each.
        warnings: what to know before; they do not prevent the change.
        problems: why ``changes.apply`` refuses it without ``force``.
        arguments: the arguments it was planned from, and is planned from again before it is carried
            out.
        taken_ms: when it was made, ms since 1970.
    """

    operation: str
    name: str
    steps: tuple[Step, ...]
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    taken_ms: int = 0

    @property
    def changes(self) -> bool:
        """Whether anything changes."""
        return bool(self.steps)


@dataclass(slots=True)
class Draft:
    """A plan under construction; each list holds what the plan's field of that name will."""

    operation: str
    name: str
    arguments: Mapping[str, Any]
    steps: list[Step] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def plan(self, taken_ms: int) -> ChangePlan:
        """Return the plan."""
        return ChangePlan(
            self.operation,
            self.name,
            tuple(self.steps),
            tuple(self.losses),
            tuple(dict.fromkeys(self.warnings)),
            tuple(dict.fromkeys(self.problems)),
            self.arguments,
            taken_ms,
        )

    def put_topic(
        self,
        broker_name: str,
        topic: str,
        before: Settings | None,
        after: Settings,
        held: Mapping[int, int],
    ) -> None:
        """Add the change of a topic's settings at a broker, if there is one, and what it costs.

        Args:
            held: how many messages are kept there, by queue id.
        """
        step = Step(StepKind.PUT_TOPIC, broker_name, topic, before, after)
        if not step.differences():
            return
        self.steps.append(step)
        if before is None:
            return
        read, write = after["readQueueNums"], after["writeQueueNums"]
        if write < before["writeQueueNums"]:
            self.warnings.append(
                f"{broker_name}: nothing is sent to queues {write} to "
                f"{before['writeQueueNums'] - 1} of {topic} any more; keys go to other queues, so "
                "their order begins anew"
            )
        if read < write:
            self.problems.append(
                f"{broker_name}: what is sent to queues {read} to {write - 1} is never read"
            )
        lost = sum(count for queue_id, count in held.items() if queue_id >= read)
        if read < before["readQueueNums"] and lost:
            self.problems.append(
                f"{broker_name}: {lost} messages in queues {read} to "
                f"{before['readQueueNums'] - 1} are read by nobody any more; shrink the write "
                "queues first, and these when they are consumed"
            )

    def put_group(
        self, broker_name: str, group: str, before: Settings | None, after: Settings
    ) -> None:
        """Add the change of a group's settings at a broker, and what it brings."""
        self.steps.append(Step(StepKind.PUT_GROUP, broker_name, group, before, after))
        was = before or {}
        if was.get("consumeEnable", True) and not after.get("consumeEnable", True):
            self.warnings.append(
                "members finish what they have pulled; then brokers refuse their pulls, which they "
                "repeat every few seconds and log"
            )
        if after.get("retryQueueNums") == 0 and was.get("retryQueueNums") != 0:
            self.problems.append(
                "without a retry queue brokers drop what the group fails to consume"
            )
        if after.get("retryMaxTimes") == 0 and was.get("retryMaxTimes") != 0:
            self.warnings.append(
                "what members fail that send no max_reconsume_times is a dead letter at once"
            )


@dataclass(frozen=True, slots=True)
class StepDone:
    """The outcome of a step.

    Attributes:
        done: whether the change is in place, as read back; None when that could not be asked.
        note: why it is not in place, or what followed it.
    """

    step: Step
    done: bool | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeDone:
    """The outcome of a change."""

    plan: ChangePlan
    steps: tuple[StepDone, ...]

    @property
    def differing(self) -> tuple[StepDone, ...]:
        """Steps whose result is not the planned one."""
        return tuple(each for each in self.steps if each.done is False)


def topic_settings(raw: Settings) -> dict[str, Any]:
    """Return a topic's settings in one form, for every kind of broker."""
    return {
        "readQueueNums": int(raw.get("readQueueNums", 0)),
        "writeQueueNums": int(raw.get("writeQueueNums", 0)),
        "perm": int(raw.get("perm", 0)),
        "order": bool(raw.get("order", False)),
        "topicFilterType": str(raw.get("topicFilterType") or "SINGLE_TAG"),
        "topicSysFlag": int(raw.get("topicSysFlag") or 0),
        "attributes": {str(k): str(v) for k, v in (raw.get("attributes") or {}).items()},
    }


def new_topic_settings(queues: int, perm: int, order: bool, attributes: Settings) -> dict[str, Any]:
    """Return the settings of a topic to be made."""
    raw = {"readQueueNums": queues, "writeQueueNums": queues, "perm": perm, "order": order}
    return topic_settings({**raw, "attributes": attributes})


def check_topic_settings(settings: Settings) -> None:
    """Check the new settings of a topic.

    Raises:
        ConfigurationError: there are too few or too many queues, or the permission is not one.
    """
    for name in ("readQueueNums", "writeQueueNums"):
        if not 1 <= settings[name] <= QUEUES_MAX:
            raise ConfigurationError(
                f"{name} is {settings[name]}; a topic has 1 to {QUEUES_MAX} queues on each broker"
            )
    if settings["perm"] not in (Perm.READ, Perm.WRITE, Perm.READ | Perm.WRITE):
        raise ConfigurationError(
            f"perm is {settings['perm']}; accepted are 6 (read and write), 4 (read), 2 (write)"
        )


def attributes_change(before: Settings, after: Settings) -> str | None:
    """Return the change of a topic's attributes as 5.x reads it: ``+name=value,-name``."""
    parts = [f"+{name}={value}" for name, value in after.items() if before.get(name) != value]
    parts += [f"-{name}" for name in before if name not in after]
    return ",".join(parts) or None


def changed_group(raw: Settings, wanted: Settings, where: str) -> dict[str, Any]:
    """Return a group's settings with some replaced.

    Raises:
        ConfigurationError: the broker has no setting of that name, or the value is of another kind.
    """
    after = dict(raw)
    for name, value in wanted.items():
        if name not in raw or name == "groupName":
            from rocketstream.suggestions import like  # needed only where a name is wrong

            names = ", ".join(sorted(set(raw) - {"groupName"}))
            raise ConfigurationError(
                f"{where} has no setting {name!r} of groups{like(name, raw)}; it has {names}"
            )
        old = raw[name]
        if isinstance(old, bool) != isinstance(value, bool) or not isinstance(value, type(old)):
            kind = {bool: "true or false", int: "a whole number", str: "text"}.get(type(old))
            raise ConfigurationError(
                f"{name} is {value!r}; it takes {kind or f'a value like {old!r}'}"
            )
        after[name] = value
    for name, least in (("retryQueueNums", 0), ("retryMaxTimes", -1)):
        if name in wanted and after[name] < least:
            raise ConfigurationError(f"{name} is {after[name]}; it takes {least} or more")
    return after


def popped_again(
    group: str, topics: Collection[str], topics_of: Mapping[str, Collection[str]]
) -> tuple[list[str], list[str]]:
    """Return the retry topics of a group that pops (5.x): its own, and those that may be another's.

    The older form, ``%RETRY%group_topic``, does not belong to one group alone: it is also the retry
    topic of group ``group_topic``. Group ``group_a`` popping topic ``b`` has the same one as
    ``group`` popping ``a_b``.

    Args:
        topics: all topics at the brokers.
        topics_of: for every group, the topics it has progress in.
    """
    own: list[str] = []
    doubtful: list[str] = []
    consumed = topics_of.get(group, ())
    for topic in sorted(topics):
        if topic.startswith(names.pop_retry_topics(group, "")[1]):
            own.append(topic)
        elif _may_pop(group, topic, topics, consumed):
            others = [
                other
                for other, theirs in topics_of.items()
                if other != group
                and (topic == names.retry_topic(other) or _may_pop(other, topic, topics, theirs))
            ]
            if not others:
                own.append(topic)
            elif topic in consumed:
                doubtful.append(topic)
    return own, doubtful


def _may_pop(group: str, topic: str, topics: Collection[str], consumed: Collection[str]) -> bool:
    older = names.pop_retry_topics(group, "")[0]
    if not topic.startswith(older):
        return False
    return topic in consumed or topic.removeprefix(older) in topics


def still_true(plan: ChangePlan, now: ChangePlan) -> list[str]:
    """Return, in sentences, how a plan differs from what would be planned now."""
    found = [problem for problem in now.problems if problem not in plan.problems]
    shown = {(s.kind, s.where, s.name, s.queue): s for s in plan.steps}
    for step in now.steps:
        old = shown.pop((step.kind, step.where, step.name, step.queue), None)
        place = f"{step.kind} {step.name} at {step.where}"
        if old is None:
            found.append(f"{place} was not shown")
        elif (old.before, old.after) != (step.before, step.after):
            found.append(f"{place} is no longer from {old.before} to {old.after}")
    found += [f"{s.kind} {s.name} at {s.where} has nothing to do any more" for s in shown.values()]
    return found


def refuse(
    refused: str,
    problems: Sequence[str],
    changed: Sequence[str] = (),
    **about: str,
) -> None:
    """Raise if a plan, of any kind, has problems or is no longer as it was shown.

    Args:
        refused: the action, as the error names it at its beginning.
        problems: the plan's problems, in sentences.
        changed: how the plan differs from what would be planned now.
        about: the parameters of the error.

    Raises:
        ClientStateError: it has, or is not; the error says in which points.
    """
    if problems:
        told = "; ".join(problems)
        raise ClientStateError(f"{refused}: {told}. Force it if you want it all the same", **about)
    if changed:
        told = "; ".join(changed)
        raise ClientStateError(
            f"{refused}, it is no longer as it was shown: {told}. Look again", **about
        )


def listed(names: Iterable[str]) -> str:
    """Return the first names of a list in order, and how many more there are."""
    return some(sorted(names), 5)

"""Moves of consumer groups: planned, shown, carried out, read back, taken back (C-531 to C-537).

Law: nothing is changed that no plan showed. ``core.moves`` decides where queues go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstream._util.stopping import wait_unless_stopped
from rocketstream.admin.changes.undo import default_undo_directory, read_undo, write_undo
from rocketstream.admin.core.joining import (
    groups_of_offsets,
    kind_of,
    offsets_of_group,
    unknown_group,
)
from rocketstream.admin.core.moves import (
    GroupMember,
    QueueFacts,
    ResetBy,
    ResetDone,
    ResetDoneRow,
    ResetKind,
    ResetPlan,
    ResetRow,
    ResetTarget,
    changes_since,
    member_problems,
    outcome,
    row_of,
    skip_problem,
    still_to_move,
)
from rocketstream.admin.core.steps import refuse
from rocketstream.admin.core.words import plural
from rocketstream.admin.safety import Change
from rocketstream.admin.service import Reach, Service, change, question
from rocketstream.admin.state import QueueKind
from rocketstream.admin.topics import Topics, offset_at
from rocketstream.admin.wire import questions
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    ConsumerNotOnlineError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection

logger: logging.Logger = logging.getLogger("rocketstream.admin")

TOLD_AGAIN_MAX: Final = 5
"""How often members get the request again if they commit between storing and sending it.
"""
JAVA_PAUSE_MS: Final = 11_000
"""Java's members wait ten seconds before they store the offsets they were sent to (C-532); one that
is sent elsewhere meanwhile may stay at those."""
WAIT_MS: Final = 25_000
"""How long members are given to arrive at their new offsets."""
_LOOK_EVERY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The brokers' answers about a group before a plan is made.

    Attributes:
        group: the group.
        masters: the address of each broker's master.
        connections: connected members of the group by broker.
        tables: the offsets of all groups by broker; None where a broker does not answer code 43.
        groups: every known group except those of the system.
        topics_of: the topics each group has offsets in.
    """

    group: str
    masters: Mapping[str, str]
    connections: Mapping[str, ConsumerConnection]
    tables: Mapping[str, Mapping[str, Mapping[int, int]]] | None
    groups: frozenset[str]
    topics_of: Mapping[str, set[str]]

    @classmethod
    def ask(cls, reach: Reach, group: str) -> GroupFacts:
        """Ask all brokers."""
        wire = reach.wire
        masters = wire.masters()
        tables = wire.offset_tables(masters)
        connections = wire.connections(group, masters)
        topics_of = groups_of_offsets(tables or {})
        groups = set(topics_of)
        for address in masters.values():
            groups.update(wire.ask(address, questions.GROUPS))
        if connections:
            groups.add(group)
        known = frozenset(each for each in groups if not names.is_system_group(each))
        return cls(group, masters, connections, tables, known, topics_of)

    def check_known(self, group: str | None = None) -> None:
        """Raise if no broker knows the group, or another one.

        Raises:
            ConfigurationError: none does; the error names groups with similar names.
        """
        group = group or self.group
        if group not in self.groups:
            raise unknown_group(group, self.groups)

    @property
    def subscribed(self) -> set[str]:
        """The topics its members subscribe."""
        return {t for each in self.connections.values() for t in each.subscription_table}


class Resets(Service):
    """The operations of ``Admin.changes`` that move groups."""

    @question
    def reset_plan(
        self,
        group: str,
        topic: str | None,
        target: ResetTarget,
        message_queues: Collection[MessageQueue] | None = None,
        *,
        new_group: bool = False,
    ) -> ResetPlan:
        """Return where each queue of a group would go; changes nothing.

        Args:
            topic: the topic; None means every topic the group consumes, with
                ``ResetTarget.copy_of`` every one of the copied group, except its retry topic. An
                offset needs a topic.
            target: where the queues go.
            message_queues: only these queues; None for all of the topic.
            new_group: the group is meant to be unknown, and is made.

        Raises:
            ConfigurationError: no broker knows the group, or the one to copy from (the error names
                similar ones); a bad name; a queue the topic does not have.
            RouteNotFoundError: the topic is unknown; the error names similar ones.
        """
        names.check_group(group)
        known = GroupFacts.ask(self._reach, group)
        is_new = group not in known.groups
        if not new_group:
            known.check_known()
        every = facts = self._facts_of(known, topic, target)
        if message_queues is not None:
            facts = _only(every, message_queues, topic)
        plan = self._plan(known, topic, target, facts)
        wanted = {row.queue for row in plan.rows}
        problems = [*plan.problems, *_foreign(plan, known, new_group)]
        warnings = [*plan.warnings, *_left_out(facts, wanted, target)]
        if message_queues is not None:
            warnings += _others_told(plan)
            problems += _cannot_tell(plan, every)
        if is_new:
            warnings.insert(0, f"group {group} is made by this: no broker knows it")
        return replace(plan, problems=tuple(problems), warnings=tuple(warnings), new_group=is_new)

    @change
    def reset_apply(
        self,
        plan: ResetPlan,
        *,
        force: bool = False,
        as_shown: bool = False,
        wait_ms: int = WAIT_MS,
        undo_directory: str | os.PathLike[str] | None = None,
    ) -> ResetDone:
        """Move a group as a plan says; blocks until its members arrived, at most ``wait_ms`` more.

        Where one that is not ours commits while it is told, it is told again after its pause, 11 s
        for each time.

        The stored offsets and the kept messages are read again first; a plan that is no longer true
        is refused. The undo file is written before anything moves, and the offsets are read back
        afterwards.

        Args:
            plan: the plan that was shown, from ``reset_plan`` or ``undo``.
            force: carry the plan out despite ``plan.problems``, and although the group has moved
                since.
            as_shown: restricts ``force`` to the problems: whoever agreed to them saw the plan, and
                did not agree to what happened to the group since.
            wait_ms: how long to wait for members that move themselves, in ms; 0 does not wait.
            undo_directory: where the undo file is written; None is ``default_undo_directory()``.

        Raises:
            ClientStateError: the plan has problems or is no longer true; or the undo or audit file
                cannot be written. Nothing was moved.
            ReadOnlyError: this Admin is read-only.
            BrokerError, TransportError: a broker refused or did not answer; some queues may have
                been moved; the undo file says where they were.
        """
        self._changes.check("group.reset")
        refused = f"group {plan.group!r} is not moved"
        refuse(refused, () if force else plan.problems, group=plan.group)
        now = self._now(plan)
        if as_shown or not force:
            refuse(refused, (), changes_since(plan, now), group=plan.group)
        move, left = still_to_move(plan, now)
        if not any(row.moves for row in move):
            rows = tuple(ResetDoneRow(row, row.from_offset, True) for row in move)
            return ResetDone(plan, rows, tuple(left))
        arguments = {
            "group": plan.group, "topic": plan.topic, "target": plan.target.describe(),
            "force": force, "newGroup": plan.new_group,
        }  # fmt: skip
        before = {_place(row.queue): row.from_offset for row in move}
        with self._changes.open("group.reset", arguments, before) as made:
            directory = Path(undo_directory) if undo_directory else default_undo_directory()
            namesrv = ";".join(self._client.name_servers)
            path = write_undo(
                directory, plan.group, move, self._clock.now_ms(),
                namesrv=namesrv, cluster=self._cluster_of(move),
            )  # fmt: skip
            made.after = {"undo": str(path)}
            try:
                self._carry_out(made, plan, move)
            except RocketMQError:
                logger.warning(
                    "the reset of group %s ended half way; %s takes back what was moved",
                    plan.group, path,
                )  # fmt: skip
                raise
            made.after = {
                "queues": {_place(row.queue): self._stored(plan.group, row.queue) for row in move},
                "undo": str(path),
            }
        # The change is made and written down; an interrupted wait for the members undoes nothing.
        done = self._read_back(now, move, wait_ms)
        return ResetDone(plan, tuple(done), tuple(left), str(path))

    @question
    def undo(self, path: str | os.PathLike[str]) -> ResetPlan:
        """Return what taking a reset back would do; ``reset_apply`` carries it out.

        Raises:
            ConfigurationError: the file cannot be read or is not an undo file; the
                group is unknown.
            RouteNotFoundError: a topic is gone.
        """
        file = read_undo(path)
        back = {queue: offset for queue, offset in file.before.items() if offset is not None}
        known = GroupFacts.ask(self._reach, file.group)
        known.check_known()
        target = ResetTarget.undo(back)
        plan = self._plan(known, None, target, self._facts_of(known, None, target))
        warnings = list(plan.warnings)
        never = [queue for queue, offset in file.before.items() if offset is None]
        if never:
            warnings.append(
                f"{len(never)} queues had nothing stored before: they stay where they are, since "
                "brokers cannot delete single offsets of a group"
            )
        here = ";".join(self._client.name_servers)
        if plan.skipped:
            warnings.append(
                f"{plural(plan.skipped, 'message')} {'is' if plan.skipped == 1 else 'are'} skipped "
                "that the group had passed before the reset, and would consume again otherwise"
            )
        if file.namesrv != here:
            warnings.append(f"the file was made at name server {file.namesrv}, this is {here}")
        problems, cluster = list(plan.problems), self._cluster_of(plan.rows)
        if file.cluster and cluster and cluster != file.cluster:
            problems.append(f"the file is of cluster {file.cluster}, this is {cluster}")
        return replace(plan, warnings=tuple(warnings), problems=tuple(problems))

    def _cluster_of(self, rows: Sequence[ResetRow]) -> str:
        brokers = self._wire.cluster_info().broker_addr_table
        found = {brokers[row.broker_name].cluster for row in rows if row.broker_name in brokers}
        return min(found, default="")

    # --- planning --------------------------------------------------------------------------------

    def _plan(
        self,
        known: GroupFacts,
        topic: str | None,
        target: ResetTarget,
        facts: Sequence[QueueFacts],
    ) -> ResetPlan:
        by = {
            broker_name: self._by(known, broker_name)
            for broker_name in {each.queue.broker_name for each in facts}
        }
        rows = [
            row
            for each in facts
            if (row := row_of(each, target, by[each.queue.broker_name])) is not None
        ]
        members = list(_members(known.connections.values()))
        problems = [*member_problems(members, by.values()), *skip_problem(rows, target)]
        return ResetPlan(
            group=known.group,
            topic=topic,
            target=target,
            rows=tuple(rows),
            taken_ms=self._clock.now_ms(),
            members=tuple(sorted({member.client_id for member in members})),
            problems=tuple(problems),
            warnings=tuple(_pulling(members, by.values())),
        )

    def _by(self, known: GroupFacts, broker_name: str) -> ResetBy:
        if broker_name not in known.connections:
            return ResetBy.BROKER
        address = known.masters.get(broker_name)
        settings = self._wire.ask(address, questions.BROKER_CONFIG) if address else {}
        by_itself = settings.get("useServerSideResetOffset") == "true"
        return ResetBy.PULL if by_itself else ResetBy.MEMBERS

    def _now(self, plan: ResetPlan) -> ResetPlan:
        """Return the plan with the offsets stored and messages kept now, going to the same
        offsets.
        """
        known = GroupFacts.ask(self._reach, plan.group)
        to = {row.queue: row.to_offset for row in plan.rows}
        for topic in sorted({row.topic for row in plan.rows}):
            self._queues_of(topic)
        target = ResetTarget.undo(to)
        facts = self._facts_now(known, sorted(to), to)
        return self._plan(known, plan.topic, target, facts)

    def _facts_of(
        self, known: GroupFacts, topic: str | None, target: ResetTarget
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
            topics = [topic] if topic is not None else self._topics_of(known)
            by_topic = {each: self._queues_of(each) for each in topics}
            queues = [queue for each in by_topic.values() for queue in each]
            if target.kind is ResetKind.TIME and target.value is not None:
                for each, theirs in by_topic.items():
                    found = {**found, **self._offsets_at(each, theirs, target.value)}
        return self._facts_now(known, queues, found)

    def _facts_now(
        self,
        known: GroupFacts,
        queues: Sequence[MessageQueue],
        found: Mapping[MessageQueue, int],
    ) -> list[QueueFacts]:
        low, high = self._client.min_offsets(queues), self._client.max_offsets(queues)
        if known.tables is None:
            asked = {q: self._client.query_consumer_offset(known.group, q) for q in queues}
            stored = {queue: offset for queue, offset in asked.items() if offset is not None}
        else:
            stored = offsets_of_group(known.tables, known.group)
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

    def _topics_of(self, known: GroupFacts) -> list[str]:
        """Return the topics a group has progress in, or subscribes; those still there."""
        group = known.group
        consumed = known.topics_of.get(group, set()) | known.subscribed
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
            from rocketstream.suggestions import like  # needed only where a name is wrong

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
        rows = {row.key: row for row in Topics(self._reach).status(topic)}
        return {
            queue: offset_at(self._reach, queue, rows.get(queue), timestamp_ms) for queue in queues
        }

    def _offsets_to_copy(
        self, known: GroupFacts, source: str, topic: str | None
    ) -> dict[MessageQueue, int]:
        names.check_group(source)
        known.check_known(source)
        if known.tables is None:
            raise ClientStateError(
                "a broker does not tell the offsets of its groups (code 43), so none can be copied"
            )
        found = {
            queue: offset
            for queue, offset in offsets_of_group(known.tables, source).items()
            if queue.topic == topic
            or (topic is None and kind_of(source, queue.topic) is QueueKind.TOPIC)
        }
        if not found:
            where = f" in topic {topic!r}" if topic else ""
            raise ConfigurationError(
                f"group {source!r} has no offsets{where} to copy", group=source, topic=topic
            )
        return found

    # --- doing -----------------------------------------------------------------------------------

    def _carry_out(self, change: Change, plan: ResetPlan, rows: Sequence[ResetRow]) -> None:
        if plan.new_group:
            for broker_name in sorted({row.broker_name for row in rows}):
                change.wire.make_group(broker_name, plan.group)
        for broker_name in sorted({row.broker_name for row in rows}):
            here = [row for row in rows if row.broker_name == broker_name]
            address = self._client.master(broker_name)
            if here[0].by is ResetBy.MEMBERS:
                self._tell(change, address, plan, here)
                continue
            for row in here:
                if not row.moves:
                    continue
                if row.by is ResetBy.PULL:
                    change.wire.send_to(address, plan.group, row.queue, row.to_offset)
                else:
                    self._store(change, address, plan.group, row)

    def _store(self, change: Change, address: str, group: str, row: ResetRow) -> None:
        change.wire.store_offset_making_group(group, row.queue, row.to_offset)
        if self._client.query_consumer_offset(group, row.queue) != row.to_offset:
            # An earlier reset is kept there until the next pull, and until then 5.x ignores stored
            # offsets.
            change.wire.send_to(address, group, row.queue, row.to_offset)

    def _tell(
        self, change: Change, address: str, plan: ResetPlan, rows: Sequence[ResetRow]
    ) -> None:
        """Make a broker send the members (220) to exactly these offsets.

        Such a broker resets to times only. But when it is asked to skip to the end without force,
        it sends every member to the stored offsets. So the offsets are stored first. If a member
        commits in between, the broker sends it to its own offset; the answer shows that.
        """
        for topic in sorted({row.topic for row in rows}):
            here = [row for row in rows if row.topic == topic]
            for attempt in range(TOLD_AGAIN_MAX):
                if attempt and self._has_others(plan):
                    wait_unless_stopped(JAVA_PAUSE_MS / 1_000)
                for row in here:
                    change.wire.store_offset(plan.group, row.queue, row.to_offset)
                try:
                    told = change.wire.tell_stored(address, plan.group, topic)
                except ConsumerNotOnlineError:
                    break  # the members have left; the stored offsets count
                if all(told.get(row.queue) == row.to_offset for row in here):
                    break

    def _read_back(
        self, now: ResetPlan, rows: Sequence[ResetRow], wait_ms: int
    ) -> list[ResetDoneRow]:
        """Return the offsets stored now; waits for members that move themselves."""
        pause_ms = 0
        if any(row.by is ResetBy.MEMBERS for row in rows):
            pause_ms = JAVA_PAUSE_MS if self._has_others(now) else 0
        begin = self._clock.monotonic_ms()
        seen: set[MessageQueue] = set()
        while True:
            done = [outcome(row, self._stored(now.group, row.queue)) for row in rows]
            age_ms = self._clock.monotonic_ms() - begin
            if age_ms >= min(pause_ms, wait_ms):
                seen.update(each.row.queue for each in done if each.moved)
                if all(each.row.queue in seen for each in done) or age_ms >= wait_ms:
                    break
                if not now.is_online or all(row.by is ResetBy.BROKER for row in rows):
                    break
                if all(each.moved is not False for each in done):
                    break
            wait_unless_stopped(_LOOK_EVERY_S)
        return [
            replace(each, moved=True, note=None) if each.row.queue in seen else each
            for each in done
        ]

    def _stored(self, group: str, queue: MessageQueue) -> int | None:
        try:
            return self._client.query_consumer_offset(group, queue)
        except BrokerError:
            return None

    def _has_others(self, now: ResetPlan) -> bool:
        """Whether members other than ours were connected, which need their pause."""
        connections = self._wire.connections(now.group, self._wire.masters()).values()
        return any(member.language != "PYTHON" for member in _members(connections))


def _members(connections: Iterable[ConsumerConnection]) -> Iterator[GroupMember]:
    seen: set[str] = set()
    for connection in connections:
        for member in connection.connection_set:
            if member.client_id in seen:
                continue
            seen.add(member.client_id)
            yield GroupMember(
                client_id=member.client_id,
                language=str(member.language),
                is_push=connection.consume_type == "CONSUME_PASSIVELY",
                is_broadcasting=connection.message_model == "BROADCASTING",
            )


def _only(
    facts: Sequence[QueueFacts], queues: Collection[MessageQueue], topic: str | None
) -> list[QueueFacts]:
    known = {each.queue for each in facts}
    unknown = sorted(set(queues) - known)
    if unknown:
        there = ", ".join(f"{q.broker_name}:{q.queue_id}" for q in sorted(known)) or "none"
        raise ConfigurationError(
            f"topic {topic!r} has no queue {_place(unknown[0])}; it has {there}", topic=topic
        )
    return [each for each in facts if each.queue in set(queues)]


def _foreign(plan: ResetPlan, known: GroupFacts, new_group: bool) -> list[str]:
    """Return the problem of a group that neither has offsets in the topic nor subscribes it."""
    group, subscribed = known.group, known.subscribed
    if (
        new_group
        or plan.topic is None
        or plan.topic in subscribed
        or any(row.from_offset is not None for row in plan.rows)
    ):
        return []
    topics = sorted((known.topics_of.get(group, set()) | subscribed) - {names.retry_topic(group)})
    there = f"; it consumes {', '.join(topics)}" if topics else ""
    return [f"group {group!r} has nothing stored in topic {plan.topic!r}{there}"]


def _left_out(
    facts: Iterable[QueueFacts], planned: Collection[MessageQueue], target: ResetTarget
) -> list[str]:
    left = [each.queue for each in facts if each.queue not in planned]
    if not left:
        return []
    what = (
        f"group {target.group} has nothing stored there"
        if target.kind is ResetKind.COPY
        else "no offset is stored there to shift from"
    )
    return [f"{', '.join(_place(queue) for queue in left)}: left as it is, {what}"]


def _others_told(plan: ResetPlan) -> list[str]:
    if not any(row.by is ResetBy.MEMBERS for row in plan.rows):
        return []
    return [
        "members are told offsets of all queues of the topic: in the queues that are not moved "
        "they begin again at their last commit, and repeat what they consumed since then, some "
        "seconds' worth"
    ]


def _cannot_tell(plan: ResetPlan, every: Iterable[QueueFacts]) -> list[str]:
    """Return the problem of brokers that send members no request while a queue has no stored
    offset.
    """
    tells = {row.broker_name for row in plan.rows if row.by is ResetBy.MEMBERS}
    never = [
        _place(each.queue)
        for each in every
        if each.queue.broker_name in tells and each.committed is None
    ]
    never = [place for place in never if place not in {_place(row.queue) for row in plan.rows}]
    if not never:
        return []
    return [
        f"{', '.join(never)}: nothing is stored there yet, and brokers of 4.x then tell members "
        "nothing at all: move all queues of the topic"
    ]


def _pulling(members: Iterable[GroupMember], by: Iterable[ResetBy]) -> list[str]:
    if ResetBy.PULL not in set(by) or all(member.is_push for member in members):
        return []
    return [
        "members that pull by themselves get the new offset with their next pull; a program on "
        "the plain pull API decides for itself whether it uses it"
    ]


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name}:{queue.queue_id}"

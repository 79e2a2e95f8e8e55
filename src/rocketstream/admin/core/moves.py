"""The moves of a reset: where each queue of a group goes, what that skips and repeats, its risks.

Pure: offsets, members and targets in, rows and sentences out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from rocketstream.admin.core.words import moment, plural
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue


class ResetKind(StrEnum):
    """How the new offset of a queue is chosen."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"
    SHIFT = "shift"
    COPY = "copy"
    UNDO = "undo"


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target of a reset; made by one of the class methods.

    Attributes:
        value: the time in ms since 1970, the offset, or how far to shift; None for other kinds.
        group: the group whose offsets are copied; None for other kinds.
        offsets: where each queue was, for an undo.
    """

    kind: ResetKind
    value: int | None = None
    group: str | None = None
    offsets: tuple[tuple[MessageQueue, int], ...] = ()

    @classmethod
    def earliest(cls) -> Self:
        """The oldest message kept."""
        return cls(ResetKind.EARLIEST)

    @classmethod
    def latest(cls) -> Self:
        """The end of each queue: waiting messages are skipped."""
        return cls(ResetKind.LATEST)

    @classmethod
    def time(cls, timestamp_ms: int) -> Self:
        """The message stored nearest to a time, ms since 1970; the end where all are older.

        Raises:
            ConfigurationError: the time is negative.
        """
        if timestamp_ms < 0:
            raise ConfigurationError(
                f"the time is {timestamp_ms}; accepted are milliseconds since 1970, from 0. The "
                "oldest message and the end of a queue are targets of their own: earliest, latest",
                timestamp_ms=timestamp_ms,
            )
        return cls(ResetKind.TIME, timestamp_ms)

    @classmethod
    def offset(cls, offset: int) -> Self:
        """One offset, in every queue.

        Raises:
            ConfigurationError: the offset is negative.
        """
        if offset < 0:
            raise ConfigurationError(
                f"the offset is {offset}; accepted are offsets from 0 (to go back by a number of "
                "messages, shift)",
                offset=offset,
            )
        return cls(ResetKind.OFFSET, offset)

    @classmethod
    def shift(cls, by: int) -> Self:
        """``by`` messages from where the group is, in every queue: forward, or back if negative.

        Raises:
            ConfigurationError: ``by`` is zero.
        """
        if by == 0:
            raise ConfigurationError(
                "a shift by 0 moves nothing; give a positive number to skip messages, a negative "
                "one to repeat some"
            )
        return cls(ResetKind.SHIFT, by)

    @classmethod
    def copy_of(cls, group: str) -> Self:
        """Where another group is."""
        return cls(ResetKind.COPY, group=group)

    @classmethod
    def of(cls, kind: ResetKind, value: int | str | None = None) -> Self:
        """The kind that somebody chose, with its time, offset, distance or group."""
        if value is None:
            return cls(kind)
        if isinstance(value, str):
            return cls.copy_of(value)
        made = {ResetKind.TIME: cls.time, ResetKind.OFFSET: cls.offset, ResetKind.SHIFT: cls.shift}
        return made[kind](value)

    @classmethod
    def undo(cls, offsets: Mapping[MessageQueue, int]) -> Self:
        """Where the queues were before a reset."""
        return cls(ResetKind.UNDO, offsets=tuple(sorted(offsets.items())))

    def describe(self) -> str:
        """Return the target in words."""
        if self.kind is ResetKind.TIME and self.value is not None:
            return f"the message stored nearest to {moment(self.value)}"
        if self.kind is ResetKind.SHIFT and self.value is not None:
            way = "forward" if self.value > 0 else "back"
            return f"{plural(abs(self.value), 'message')} {way}"
        return {
            ResetKind.EARLIEST: "the oldest message kept",
            ResetKind.LATEST: "the end of each queue",
            ResetKind.OFFSET: f"offset {self.value}",
            ResetKind.COPY: f"where group {self.group} is",
            ResetKind.UNDO: "where it was before",
        }[self.kind]

    @property
    def may_skip(self) -> bool:
        """Whether this target says plainly that messages may be skipped."""
        forward = self.kind is ResetKind.SHIFT and (self.value or 0) > 0
        return self.kind in (ResetKind.LATEST, ResetKind.UNDO) or forward


class ResetBy(StrEnum):
    """The party that moves a queue."""

    BROKER = "broker"
    """The stored offset is replaced; nobody is connected."""
    PULL = "pull"
    """The broker replaces it and sends the members there when they pull next (5.x)."""
    MEMBERS = "members"
    """Each member gets a request and moves itself, Java's after ten seconds' pause (4.x,
    embedded)."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The facts about one queue before a reset.

    Attributes:
        min_offset: the oldest message kept.
        max_offset: the offset the next message will get.
        committed: the group's offset; None when it has none.
        found: the target's offset for this queue where a broker had to be asked: the offset at a
            time, or the other group's; None where the target has none.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None
    found: int | None = None


@dataclass(frozen=True, slots=True)
class ResetRow:
    """The move of one queue by a reset.

    Attributes:
        min_offset: the oldest message kept.
        max_offset: the offset the next message will get.
        from_offset: the offset stored now; None when the group has none stored.
        to_offset: the offset at which the group will continue.
        wanted_offset: the target's offset, before it was clamped to the messages kept.
        by: the party that moves it.
    """

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    from_offset: int | None
    to_offset: int
    wanted_offset: int
    by: ResetBy = ResetBy.BROKER

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def skipped(self) -> int:
        """Messages that are kept and were never consumed, and now will not be."""
        known = self.min_offset if self.from_offset is None else self.from_offset
        return max(self.to_offset - max(known, self.min_offset), 0)

    @property
    def repeated(self) -> int:
        """Messages that are consumed a second time."""
        if self.from_offset is None:
            return 0
        return max(min(self.from_offset, self.max_offset) - self.to_offset, 0)

    @property
    def expired(self) -> int:
        """Messages never consumed that are no longer kept: no reset brings them back."""
        return 0 if self.from_offset is None else max(self.min_offset - self.from_offset, 0)

    @property
    def clamped(self) -> str | None:
        """Why the queue does not go where the target says; None when it does."""
        if self.wanted_offset < self.to_offset:
            return f"{self.wanted_offset} is no longer kept, the oldest is {self.min_offset}"
        if self.wanted_offset > self.to_offset:
            return f"{self.wanted_offset} is beyond the end, {self.max_offset}"
        return None

    @property
    def moves(self) -> bool:
        """Whether the stored offset changes."""
        return self.from_offset != self.to_offset


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A connected member, with the facts that decide whether a request can move it."""

    client_id: str
    language: str
    is_push: bool
    is_broadcasting: bool = False


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The moves of a reset, to be shown before they are made.

    Attributes:
        topic: None when every topic of a copied group, or of an undo, is meant.
        taken_ms: when the offsets were read, ms since 1970.
        members: client ids of the connected members.
        warnings: what to know before; they do not prevent the reset.
        problems: why ``reset_apply`` refuses it without ``force``.
        new_group: whether the reset makes the group.
    """

    group: str
    topic: str | None
    target: ResetTarget
    rows: tuple[ResetRow, ...]
    taken_ms: int
    members: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    new_group: bool = False

    @property
    def skipped(self) -> int:
        """Messages skipped over all queues."""
        return sum(row.skipped for row in self.rows)

    @property
    def repeated(self) -> int:
        """Messages repeated over all queues."""
        return sum(row.repeated for row in self.rows)

    @property
    def expired(self) -> int:
        """Messages lost to retention over all queues."""
        return sum(row.expired for row in self.rows)

    @property
    def is_online(self) -> bool:
        """Whether members are connected."""
        return bool(self.members)

    @property
    def moves(self) -> bool:
        """Whether any stored offset changes."""
        return any(row.moves for row in self.rows)

    def how(self) -> str:
        """Return who moves the group, in words."""
        if not self.is_online:
            return "nobody is connected: the brokers replace the stored offsets"
        count = plural(len(self.members), "member")
        by = {row.by for row in self.rows}
        if by == {ResetBy.PULL}:
            return (
                f"{count} connected: the brokers send them there when they pull next, after some "
                "ten seconds' pause"
            )
        if by == {ResetBy.MEMBERS}:
            return f"{count} connected: told to move themselves, Java's pause for ten seconds"
        return f"{count} connected: moved by the brokers or told, as each broker can"


@dataclass(frozen=True, slots=True)
class ResetDoneRow:
    """The result for one queue.

    Attributes:
        row: its planned move.
        stored_offset: the offset the broker has stored now; None when it could not be asked.
        moved: whether the group went there; None when the offset alone cannot show it, for example
            where members have already consumed as far as before.
        note: why the group did not go there, or why that is not known.
    """

    row: ResetRow
    stored_offset: int | None
    moved: bool | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ResetDone:
    """The result of a reset.

    Attributes:
        rows: the queues that were moved.
        left: queues left alone, because the group itself had gone past the target meanwhile.
        undo_path: the file that takes it back (``Admin.undo``); None when nothing was moved.
    """

    plan: ResetPlan
    rows: tuple[ResetDoneRow, ...]
    left: tuple[ResetRow, ...] = ()
    undo_path: str | None = None

    @property
    def differing(self) -> tuple[ResetDoneRow, ...]:
        """Queues that are not where they were sent."""
        return tuple(each for each in self.rows if each.moved is False)


# --- decisions ------------------------------------------------------------------------------------


def row_of(facts: QueueFacts, target: ResetTarget, by: ResetBy = ResetBy.BROKER) -> ResetRow | None:
    """Return where one queue goes; None where the target has no offset for it."""
    wanted = _wanted(facts, target)
    if wanted is None:
        return None
    return ResetRow(
        topic=facts.queue.topic,
        broker_name=facts.queue.broker_name,
        queue_id=facts.queue.queue_id,
        min_offset=facts.min_offset,
        max_offset=facts.max_offset,
        from_offset=facts.committed,
        to_offset=min(max(wanted, facts.min_offset), facts.max_offset),
        wanted_offset=wanted,
        by=by,
    )


def _wanted(facts: QueueFacts, target: ResetTarget) -> int | None:
    match target.kind:
        case ResetKind.EARLIEST:
            return facts.min_offset
        case ResetKind.LATEST:
            return facts.max_offset
        case ResetKind.OFFSET:
            return target.value
        case ResetKind.SHIFT:
            if facts.committed is None or target.value is None:
                return None
            # Where the group would continue without a reset: neither among expired messages nor
            # beyond the end.
            begins = min(max(facts.committed, facts.min_offset), facts.max_offset)
            return begins + target.value
        case _:
            return facts.found


def skip_problem(rows: Iterable[ResetRow], target: ResetTarget) -> list[str]:
    """Return the problem of messages that would never be consumed, unless that was asked for."""
    skipping = [row for row in rows if row.skipped]
    if target.may_skip or not skipping:
        return []
    count = sum(row.skipped for row in skipping)
    return [
        f"{plural(count, 'message')} in {plural(len(skipping), 'queue')} would never be consumed"
    ]


TOLD_LANGUAGES = frozenset({"JAVA", "PYTHON"})
"""Clients known to move when a broker tells them to (220)."""
SPARK_MARK = "#spark"
"""The suffix of client ids of members that represent a listener on Spark."""


def member_problems(members: Iterable[GroupMember], by: Iterable[ResetBy]) -> list[str]:
    """Return why members would not go where they are sent, one sentence per kind of member."""
    told = ResetBy.MEMBERS in set(by)
    found: list[str] = []
    everyone = sorted(members, key=lambda member: member.client_id)
    for what, which in (
        (
            "keeps its offsets on its own machine (broadcasting): a reset here does not move it",
            [m for m in everyone if m.is_broadcasting],
        ),
        (
            "stands for a listener on Spark, whose checkpoint decides where it goes on",
            [m for m in everyone if m.client_id.endswith(SPARK_MARK)],
        ),
        (
            "pulls by itself and is not moved by this broker: stop it first",
            [
                m
                for m in everyone
                if told and not m.is_push and not m.client_id.endswith(SPARK_MARK)
            ],
        ),
        (
            "is written in a language whose clients are not known to move when told",
            [m for m in everyone if told and m.is_push and m.language not in TOLD_LANGUAGES],
        ),
    ):
        if which:
            first = which[0]
            more = f" (and {len(which) - 1} more)" if len(which) > 1 else ""
            found.append(f"member {first.client_id}{more}, {first.language}, {what}")
    return found


def changes_since(plan: ResetPlan, now: ResetPlan) -> list[str]:
    """Return, in sentences, why a plan is no longer true; empty when it can be carried out.

    A group whose members consume moves on meanwhile: messages they consumed since are repeated too,
    which does not refuse the reset. Reasons are: going further back than shown, skipping more, or
    members that came or went.

    Args:
        now: the same target offsets, with the stored offsets and kept messages of now.
    """
    found: list[str] = []
    if plan.is_online != now.is_online:
        found.append(
            "members have connected meanwhile" if now.is_online else "the members have left"
        )
    latest = {row.queue: row for row in now.rows}
    for row in plan.rows:
        new = latest.get(row.queue)
        where = f"{row.topic} {row.broker_name}:{row.queue_id}"
        if new is None:
            found.append(f"{where} is gone")
        elif new.to_offset != row.to_offset:
            found.append(f"{where} would go to {new.to_offset}, not {row.to_offset}: {new.clamped}")
        elif new.skipped > row.skipped:
            found.append(f"{where} would skip {new.skipped} messages, not {row.skipped}")
        elif new.repeated > row.repeated and not plan.is_online:
            found.append(f"{where} would repeat {new.repeated} messages, not {row.repeated}")
    return found


def still_to_move(plan: ResetPlan, now: ResetPlan) -> tuple[list[ResetRow], list[ResetRow]]:
    """Return the rows to carry out, and the rows of queues whose target the group has already
    passed.

    A queue that was to go forward, or to stay, is never taken back.
    """
    planned = {row.queue: row for row in plan.rows}
    move: list[ResetRow] = []
    left: list[ResetRow] = []
    for row in now.rows:
        shown = planned.get(row.queue)
        if shown is None:
            continue
        is_past = row.repeated > 0 and shown.repeated == 0
        (left if is_past else move).append(row)
    return move, left


def outcome(row: ResetRow, stored: int | None) -> ResetDoneRow:
    """Return the result for a queue, from the offset read back."""
    if stored is None:
        return ResetDoneRow(row, None, None, "what is stored now could not be read")
    if stored == row.to_offset:
        return ResetDoneRow(row, stored, True)
    if stored < row.to_offset:
        return ResetDoneRow(
            row, stored, False, "somebody stored an older offset since: see who consumes"
        )
    if row.by is ResetBy.BROKER:
        return ResetDoneRow(row, stored, False, "somebody stored another offset since")
    if row.from_offset is None or stored < row.from_offset or row.to_offset >= row.from_offset:
        return ResetDoneRow(row, stored, True)
    return ResetDoneRow(
        row,
        stored,
        None,
        f"it is at {stored}, not before {row.from_offset} where it was: its members have consumed "
        "all of it again already, or did not move",
    )

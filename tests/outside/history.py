"""Pure: a history as values: what was sent, handed out, committed, done to the cluster, and when.

Times are nanoseconds of the machine's monotonic clock. An end that is None is not known: the
process was killed in between, or the history ends before it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

SECOND = 1_000_000_000
DONE, LATER, AGAIN = "done", "later", "again"
"""How a call of a listener ended: finished; to come back later; in order, to come once more."""
STORED = ("SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
OPEN, UNKNOWN = "OPEN", "UNKNOWN"
COMMIT, ROLLBACK, UNDECIDED = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"


class Place(NamedTuple):
    """Where a message stands."""

    topic: str
    queue: int
    offset: int


class Content(NamedTuple):
    """All that a consumer is to find as the producer gave it."""

    topic: str
    tags: str
    keys: str
    properties: tuple[tuple[str, str], ...]
    digest: str


@dataclass(frozen=True)
class Send:
    """A message given to a producer, and the outcome it was told."""

    ident: str
    by: str
    content: Content
    began: int
    how: str = "sync"
    retries: int = 0
    delay_s: float = 0.0
    sharding_key: str = ""
    ended: int | None = None
    outcome: str = OPEN
    place: Place | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the producer was told that it is stored."""
        return self.outcome in STORED


@dataclass(frozen=True)
class Delivery:
    """A message in a listener's hands: one message of one call, or of one poll."""

    ident: str
    group: str
    by: str
    place: Place
    content: Content
    began: int
    call: int = 0
    thread: int = 0
    tries: int = 0
    ended: int | None = None
    verdict: str = OPEN


@dataclass(frozen=True)
class Commit:
    """A committed offset as somebody else saw it, between ``asked`` and ``at``."""

    group: str
    topic: str
    queue: int
    offset: int
    asked: int
    at: int


@dataclass(frozen=True)
class Letter:
    """A message found among the dead letters of a group."""

    ident: str
    group: str
    place: Place
    content: Content


@dataclass(frozen=True)
class Decision:
    """The end of a local transaction, as the producer's listener says it: at once, or asked."""

    ident: str
    state: str
    at: int
    asked: bool = False


@dataclass(frozen=True)
class Group:
    """A consumer group: how its members consume, and which messages are to reach it."""

    name: str
    kind: str
    topic: str
    tags: tuple[str, ...] = ()
    shades: tuple[str, ...] = ()
    """Values of the property ``shade`` that its condition selects; empty for no condition."""
    max_reconsume_times: int = -1
    is_observer: bool = False

    def wants(self, content: Content) -> bool:
        """Tell whether a message is one the group subscribed."""
        return (
            content.topic == self.topic
            and (not self.tags or content.tags in self.tags)
            and (not self.shades or dict(content.properties).get("shade") in self.shades)
        )


@dataclass(frozen=True)
class Member:
    """One process of the round, from its start to its end."""

    by: str
    role: str
    group: str
    started: int
    ready: int | None = None
    stopping: int | None = None
    stopped: int | None = None

    @property
    def name(self) -> str:
        """The name without the number of its incarnation."""
        return self.by.partition("#")[0]


@dataclass(frozen=True)
class Fault:
    """Something done to the cluster: ``target`` is ``broker``, ``network``, or a worker."""

    what: str
    target: str
    began: int
    ended: int | None = None

    @property
    def is_death(self) -> bool:
        """Whether the process could say nothing any more."""
        return self.what == "kill"


@dataclass
class History:
    """All of a round."""

    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Texts of what should not be: a server that does not start, an error of an unexpected kind."""
    flush: str = "sync"
    send_timeout_s: float = 3.0
    retry_delay_s: float = 1.0
    calm: int | None = None
    """When the last fault was over and every process ran again."""
    is_complete: bool = True
    """Whether the groups had as much time as the guarantees ask for after that."""
    letters_read: bool = True

    @cached_property
    def sent(self) -> dict[str, Send]:
        """Sends by what they are known by."""
        return {send.ident: send for send in self.sends}

    @cached_property
    def by_ident(self) -> Mapping[str, list[Delivery]]:
        """Deliveries of each message, in the order of their beginnings."""
        found: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in sorted(self.deliveries, key=lambda each: each.began):
            found[delivery.ident].append(delivery)
        return found

    @cached_property
    def groups_by_name(self) -> dict[str, Group]:
        """Groups by their names."""
        return {group.name: group for group in self.groups}

    @cached_property
    def decided(self) -> Mapping[str, list[Decision]]:
        """What a producer said of each transaction, in the order of time."""
        found: dict[str, list[Decision]] = defaultdict(list)
        for decision in sorted(self.decisions, key=lambda each: each.at):
            found[decision.ident].append(decision)
        return found

    @cached_property
    def lives(self) -> dict[str, Member]:
        """Members by name and incarnation."""
        return {member.by: member for member in self.members}

    def consumers(self) -> Iterator[Group]:
        """The groups that consume, without those that only look."""
        return (group for group in self.groups if not group.is_observer)

    def deaths(self, target: str) -> list[int]:
        """When a process was killed."""
        return sorted(
            fault.began for fault in self.faults if fault.is_death and fault.target == target
        )

    def death_of(self, by: str) -> int | None:
        """When the incarnation was killed; None where it was not."""
        return next(
            (fault.began for fault in self.faults if fault.is_death and fault.target == by), None
        )

    def disturbances(self, since: int, until: int) -> list[str]:
        """The faults, and the comings and goings of members, that touch a time."""
        return [
            f"{fault.what} {fault.target}"
            for fault in self.faults
            if fault.began <= until and (fault.ended is None or fault.ended >= since)
        ] + [
            f"{member.by} comes or goes"
            for member in self.members
            for at in (member.started, member.ready, member.stopping, member.stopped)
            if at is not None and since <= at <= until
        ]

    def is_committed(self, send: Send) -> bool:
        """Tell whether a transaction was decided for its message, and never against it."""
        states = {each.state for each in self.decided.get(send.ident, ())}
        return COMMIT in states and ROLLBACK not in states

    def is_decided(self, send: Send) -> bool:
        """Tell whether a transaction was decided, either way."""
        return any(each.state != UNDECIDED for each in self.decided.get(send.ident, ()))

    def is_due(self, send: Send) -> bool:
        """Tell whether every group that wants the message is to get it."""
        is_safe = send.outcome == "SEND_OK" or not any(
            fault.what == "failing-disk" for fault in self.faults
        )
        return is_safe and send.is_stored and (send.how != "transaction" or self.is_committed(send))


def read(lines: Iterable[str]) -> History:
    """Make a history of events in any order; a last line that a killed process tore is none."""
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    events.sort(key=lambda event: event["at"])
    return _Reading().all(events)


def _place(value: Any) -> Place | None:
    return None if value is None else Place(str(value[0]), int(value[1]), int(value[2]))


def _content(event: Mapping[str, Any]) -> Content:
    return Content(
        event["topic"],
        event["tags"],
        event["keys"],
        tuple(sorted((str(name), str(value)) for name, value in event["properties"].items())),
        event["digest"],
    )


class _Reading:
    """The events of a history, one after another, to values."""

    def __init__(self) -> None:
        self._made = History()
        self._sends: dict[str, dict[str, Any]] = {}
        self._calls: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._members: dict[str, dict[str, Any]] = {}
        self._faults: dict[int, dict[str, Any]] = {}

    def all(self, events: Iterable[Mapping[str, Any]]) -> History:
        """Read them all."""
        for event in events:
            getattr(self, f"_{event['kind']}")(event)
        made = self._made
        made.sends = [Send(**each) for each in self._sends.values()]
        made.deliveries = [Delivery(**each) for call in self._calls.values() for each in call]
        made.members = [Member(**each) for each in self._members.values()]
        made.faults = [Fault(**each) for each in self._faults.values()]
        return made

    def _round(self, event: Mapping[str, Any]) -> None:
        self._made.flush = event.get("flush", "sync")
        self._made.send_timeout_s = event["send_timeout_s"]
        self._made.retry_delay_s = event["retry_delay_s"]
        self._made.groups = [
            Group(**{**each, "tags": tuple(each["tags"]), "shades": tuple(each["shades"])})
            for each in event["groups"]
        ]

    def _start(self, event: Mapping[str, Any]) -> None:
        self._members[event["by"]] = {
            "by": event["by"], "role": event["role"], "group": event["group"],
            "started": event["at"],
        }  # fmt: skip

    def _ready(self, event: Mapping[str, Any]) -> None:
        self._members[event["by"]]["ready"] = event["at"]

    def _stopping(self, event: Mapping[str, Any]) -> None:
        self._members[event["by"]]["stopping"] = event["at"]

    def _stopped(self, event: Mapping[str, Any]) -> None:
        self._members[event["by"]]["stopped"] = event["at"]

    def _send(self, event: Mapping[str, Any]) -> None:
        self._sends[event["ident"]] = {
            "ident": event["ident"], "by": event["by"], "content": _content(event),
            "began": event["at"], "how": event["how"], "retries": event["retries"],
            "delay_s": event["delay_s"], "sharding_key": event["sharding_key"],
        }  # fmt: skip

    def _sent(self, event: Mapping[str, Any]) -> None:
        self._sends[event["ident"]].update(
            ended=event["at"], outcome=event["outcome"], place=_place(event.get("place"))
        )
        if event["outcome"] not in (*STORED, UNKNOWN, "NOT_SENT", "REJECTED"):
            self._made.problems.append(f"send of {event['ident']}: {event['outcome']}")

    def _given(self, event: Mapping[str, Any]) -> None:
        made = []
        for each in event["messages"]:
            place = _place(each["place"])
            assert place is not None
            made.append({
                "ident": each["ident"], "group": event["group"], "by": event["by"], "place": place,
                "content": _content(each), "began": event["at"], "call": event["call"],
                "thread": event.get("thread", 0), "tries": each["tries"],
            })  # fmt: skip
        self._calls[event["by"], event["call"]] = made

    def _taken(self, event: Mapping[str, Any]) -> None:
        for each in self._calls.get((event["by"], event["call"]), ()):
            each.update(ended=event["at"], verdict=event["verdict"])

    def _committed(self, event: Mapping[str, Any]) -> None:
        self._made.commits.append(
            Commit(
                event["group"],
                event["topic"],
                event["queue"],
                event["offset"],
                event["asked"],
                event["at"],
            )
        )

    def _letter(self, event: Mapping[str, Any]) -> None:
        place = _place(event["place"])
        assert place is not None
        self._made.letters.append(Letter(event["ident"], event["group"], place, _content(event)))

    def _decided(self, event: Mapping[str, Any]) -> None:
        self._made.decisions.append(
            Decision(event["ident"], event["state"], event["at"], event["asked"])
        )

    def _fault(self, event: Mapping[str, Any]) -> None:
        self._faults[event["number"]] = {
            "what": event["what"], "target": event["target"], "began": event["at"],
        }  # fmt: skip

    def _healed(self, event: Mapping[str, Any]) -> None:
        if event["number"] in self._faults:  # a process that was away already was left alone
            self._faults[event["number"]]["ended"] = event["at"]

    def _calm(self, event: Mapping[str, Any]) -> None:
        self._made.calm = event["at"]

    def _remark(self, event: Mapping[str, Any]) -> None:
        """What helps a reader, and no rule."""

    def _problem(self, event: Mapping[str, Any]) -> None:
        self._made.problems.append(event["text"])

    def _end(self, event: Mapping[str, Any]) -> None:
        self._made.is_complete = event["is_complete"]
        self._made.letters_read = event["letters_read"]

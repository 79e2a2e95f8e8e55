"""The events of a run, as the checker reads them: one small value per event.

Pure: values. ``at`` is true time in milliseconds, the same clock for every event of a history (a
simulator's virtual time, or one process's monotonic clock). A ``key`` identifies one message a
program meant to send once; it survives retries, delays, transactions and dead-lettering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from zlib import crc32

from rocketstream.errors import SendOutcome
from rocketstream.model import RESERVED_PROPERTIES, MessageQueue


class Content(NamedTuple):
    """The part of a message that must arrive as it was sent.

    Attributes:
        body: length and CRC-32 of the body.
        tags: the tag; empty for none.
        properties: its user's, ascending by name; of a message that was read, all others that it
            has as well.
    """

    body: tuple[int, int]
    tags: str
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, body: bytes, properties: Mapping[str, str]) -> Self:
        """Return the content of a message, sent or read."""
        own = sorted(item for item in properties.items() if item[0] not in RESERVED_PROPERTIES)
        return cls((len(body), crc32(body)), properties.get("TAGS", ""), tuple(own))

    def differs(self, sent: Content) -> str:
        """Return what was changed on the way from ``sent``, in words; empty for nothing.

        Brokers and clients may add properties.
        """
        if self.body != sent.body:
            (size, crc), (sent_size, sent_crc) = self.body, sent.body
            return f"body: {size} bytes, CRC {crc:08x}; sent {sent_size} bytes, CRC {sent_crc:08x}"
        if self.tags != sent.tags:
            return f"tag: {self.tags!r}; sent {sent.tags!r}"
        there = dict(self.properties)
        for name, value in sent.properties:
            if there.get(name) != value:
                return f"property {name}: {there.get(name)!r}; sent {value!r}"
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Something that happened at a time."""

    at: float


# --- sending -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendInvoked(Event):
    """A producer began to send a message.

    Attributes:
        key: names the message.
        topic: topic in which consumers see it.
        due_ms: how long after its sending it may first be seen (a delay level); 0 means at once.
        tags: its tag, for groups that select by tags.
        transactional: visible only once ``TransactionDecided`` said commit.
        tries: how often it may be written before its producer records the outcome; a killed
            producer never records one.
        content: what must arrive; None where it was not taken down.
    """

    key: str
    topic: str
    due_ms: float = 0.0
    tags: str = ""
    transactional: bool = False
    tries: int = 1
    content: Content | None = None

    def altered(self, seen: Content | None) -> str:
        """Return what was seen otherwise, in words; empty for nothing, or nothing to compare."""
        if self.content is None or seen is None:
            return ""
        return seen.differs(self.content)


@dataclass(frozen=True, slots=True)
class SendAcknowledged(Event):
    """A send returned successfully: from now on the message must never be lost.

    Attributes:
        queue: where it is stored; None where the answer does not say (delayed, transactional).
        offset: its place in the queue; -1 where the answer does not say.
        tries: how often it may have been written; more than one allows more than one copy.
        wanted: the queue it is to be seen in later, where it is not stored there yet; None where
            that was not taken down.
    """

    key: str
    queue: MessageQueue | None = None
    offset: int = -1
    tries: int = 1
    wanted: MessageQueue | None = None


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    """A send raised; ``outcome`` is the producer's claim about the message."""

    key: str
    outcome: SendOutcome
    tries: int = 1


@dataclass(frozen=True, slots=True)
class TransactionDecided(Event):
    """The local transaction of a message ended; ``commit`` is False for a rollback."""

    key: str
    commit: bool


# --- the broker's messages -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageStored(Event):
    """A message was found in the broker's log; ``at`` is when it was stored, as far as known."""

    key: str
    queue: MessageQueue
    offset: int
    tags: str = ""
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class TransactionsGivenUp(Event):
    """The broker asks about no transaction any more; those of ``keys`` it gave up undecided."""

    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class LogRead(Event):
    """A queue was read from ``begin`` up to but not including ``end``: it holds nothing else."""

    queue: MessageQueue
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class CommitSeen(Event):
    """The broker held this offset for a group: everything below it counts as consumed.

    Attributes:
        since: when it was seen last that the broker did not hold it: the commit came between then
            and ``at``; None where it came at ``at``.
    """

    group: str
    queue: MessageQueue
    offset: int
    since: float | None = None

    @property
    def earliest(self) -> float:
        """When the commit may have come at the earliest."""
        return self.at if self.since is None else self.since


@dataclass(frozen=True, slots=True)
class LogTrimmed(Event):
    """A queue's first messages were removed, as their time was over: it begins with ``offset``.

    Attributes:
        since: when it was seen last that it did not; the messages went between then and ``at``.
    """

    queue: MessageQueue
    offset: int
    since: float


@dataclass(frozen=True, slots=True)
class OffsetReset(Event):
    """An operator reset the offset of a group in a queue.

    Attributes:
        until: when the group's members know at the latest; by default at once.
        told: whether they were told for sure: they must consume from ``offset`` on.
    """

    group: str
    queue: MessageQueue
    offset: int
    until: float = 0.0
    told: bool = False

    def may_act_in(self, begin: float, end: float) -> bool:
        """Whether it may have come to members in [begin, end]."""
        return self.at <= end and begin <= max(self.at, self.until)


@dataclass(frozen=True, slots=True)
class TakenBack(Event):
    """A listener wants a message again that it had finished and not committed (ROLLBACK)."""

    group: str
    member: str
    queue: MessageQueue
    offset: int


# --- consuming -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupDeclared(Event):
    """A group and the messages it must consume.

    Attributes:
        topics: topics it subscribes to, without its retry topic.
        orderly: queues are consumed in order, by one member at a time.
        tags: tags it selects; empty for all.
        where: name and value of the property it selects by a condition; None for no condition.
        attempts_max: deliveries a message gets before it is given up (dead-lettered); 0 means
            unlimited.
        from_first: whether it begins with the first message; otherwise where its first delivery or
            commit is.
        sends_back: whether failed messages come back through the broker; otherwise (a pull
            consumer) the client repeats them itself.
        shares: whether members share the queues; otherwise one process has all of them for good.
        timeout_ms: a call that takes longer has failed: its messages are sent back meanwhile.
    """

    group: str
    topics: frozenset[str]
    orderly: bool = False
    tags: frozenset[str] = frozenset()
    attempts_max: int = 17
    from_first: bool = True
    sends_back: bool = True
    shares: bool = True
    where: tuple[str, str] | None = None
    timeout_ms: float = math.inf

    @property
    def selects_all(self) -> bool:
        """Whether the group wants every message of its topics."""
        return not self.tags and self.where is None

    def selects(self, tags: str, content: Content | None) -> bool:
        """Whether the group wants a message with this tag and content."""
        if self.tags and tags not in self.tags:
            return False
        return self.where is None or (content is not None and self.where in content.properties)

    def wants(self, sent: SendInvoked) -> bool:
        """Whether the group must consume a message that is sent."""
        return sent.topic in self.topics and self.selects(sent.tags, sent.content)


@dataclass(frozen=True, slots=True, eq=False)
class MessageDelivered(Event):
    """A message was handed to a listener, or returned by a poll.

    Attributes:
        queue: the queue it was read from; for a retried message a queue of the retry topic.
        reconsume_times: how often it failed before, according to the message.
        call: number of the listener call; messages of one batch share it.
        content: what the message held; None where it was not taken down.
    """

    key: str
    group: str
    member: str
    queue: MessageQueue
    offset: int
    reconsume_times: int = 0
    call: int = 0
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class ListenerReturned(Event):
    """The listener finished a delivered message; after ``success`` False it is delivered again."""

    delivery: MessageDelivered
    success: bool


@dataclass(frozen=True, slots=True)
class ListenerCutOff(Event):
    """The listener call of a delivered message was cancelled: it is over, and told no outcome."""

    delivery: MessageDelivered


@dataclass(frozen=True, slots=True)
class MemberJoined(Event):
    """A member of a group began to start."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class MemberLeft(Event):
    """A member was shut down; its listeners run no more."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class OwnersSeen(Event):
    """The members that had a queue in a calm period: there must be exactly one."""

    group: str
    queue: MessageQueue
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """All faults ended and the time to recover is over: everything must be consumed by now."""


@dataclass(frozen=True, slots=True)
class CalmBegan(Event):
    """From here on nothing is disturbed, and everything before is consumed."""


# --- what happened to the processes --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessDied(Event):
    """A client process was killed; members of this name consume no more."""

    process: str


@dataclass(frozen=True, slots=True)
class BrokerDied(Event):
    """A broker ended; with ``power_lost`` everything it had not flushed is lost."""

    broker: str
    power_lost: bool = False


@dataclass(frozen=True, slots=True)
class BrokerPaused(Event):
    """A broker stood still from ``at`` to ``until``, or to its death: it persisted nothing."""

    broker: str
    until: float


@dataclass(frozen=True, slots=True)
class Disturbed(Event):
    """Something lasted from ``at`` to ``until`` that may cause retries and repetitions."""

    until: float
    what: str = field(default="")


@dataclass(frozen=True, slots=True)
class ClockJumped(Event):
    """The wall clock of a process or broker moved by so many milliseconds."""

    process: str
    by_ms: float

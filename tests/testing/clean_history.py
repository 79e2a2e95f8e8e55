"""Histories as a faultless broker and faultless groups would write them, from a seed.

Law: everything in them keeps every promise, repetitions with their causes included.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rocketstream.errors import SendOutcome
from rocketstream.model import MessageQueue
from rocketstream.testing.history.events import (
    BrokerDied,
    CommitSeen,
    Content,
    Event,
    GroupDeclared,
    ListenerReturned,
    LogRead,
    MemberJoined,
    MemberLeft,
    MessageDelivered,
    MessageStored,
    OffsetReset,
    OwnersSeen,
    ProcessDied,
    RunEnded,
    SendAcknowledged,
    SendFailed,
    SendInvoked,
    TransactionDecided,
    TransactionsGivenUp,
)
from rocketstream.testing.history.sending import SLOW_MS

TOPIC = "T"
ATTEMPTS = 3
DUE_MS = 500.0
Stored = tuple[str, str, int]  # key, tags, how often it failed
SHOPS = "north", "south"


def content(key: str, tags: str) -> Content:
    """Return what a message of this key holds, wherever it is seen."""
    return Content.of(key.encode(), {"TAGS": tags, "shop": SHOPS[len(key) % 2]})


def invoked(at: float, key: str, tags: str, **more: Any) -> SendInvoked:
    """Return the beginning of a send."""
    return SendInvoked(at, key, TOPIC, tags=tags, content=content(key, tags), **more)


@dataclass
class Group:
    """A group of the model: one member per queue, and where each queue is."""

    declared: GroupDeclared
    next: dict[MessageQueue, int]
    member: dict[MessageQueue, str]


class CleanHistory:
    """Runs the model for a number of steps and keeps what happened."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.events: list[Event] = []
        self.log: dict[MessageQueue, list[Stored]] = defaultdict(list)
        self.queues = [MessageQueue(TOPIC, "b", n) for n in range(self.random.randint(1, 3))]
        self.groups = [self._group("plain", False), self._group("orderly", True)]
        self._keys = self._members = self._calls = 0
        for group in self.groups:
            self._join(group)
        for _ in range(steps):
            self.random.choice([self.send, self.send, self.consume, self.consume, self.befall])()
        self.finish()

    def record(self, event: Event) -> None:
        self.events.append(event)

    def tick(self) -> float:
        self.now += self.random.uniform(0.1, 20.0)
        return self.now

    def _group(self, name: str, orderly: bool) -> Group:
        tags = frozenset({"a"}) if self.random.random() < 0.3 else frozenset[str]()
        where = ("shop", "north") if self.random.random() < 0.3 else None
        declared = GroupDeclared(
            0.0, name, frozenset({TOPIC}), orderly, tags, 0 if orderly else ATTEMPTS, where=where
        )
        self.record(declared)
        return Group(declared, defaultdict(int), {})

    def _join(self, group: Group) -> str:
        self._members += 1
        member = f"{group.declared.group}-{self._members}"
        self.record(MemberJoined(self.tick(), group.declared.group, member))
        retries = MessageQueue("%RETRY%" + group.declared.group, "b", 0)
        for queue in [*self.queues, retries]:
            if queue not in group.member or self.random.random() < 0.5:
                group.member[queue] = member
        return member

    def _replace(self, group: Group, gone: str) -> None:
        """Have another member join, and all queues of one that is gone pass to it."""
        heir = self._join(group)
        group.member = {queue: heir if own == gone else own for queue, own in group.member.items()}

    def store(self, queue: MessageQueue, key: str, tags: str, times: int = 0) -> int:
        self.log[queue].append((key, tags, times))
        offset = len(self.log[queue]) - 1
        self.record(MessageStored(self.now, key, queue, offset, tags, content(key, tags)))
        return offset

    # --- sending ---------------------------------------------------------------------------------

    def send(self) -> None:
        self._keys += 1
        kind = self.random.choice(["plain"] * 6 + ["delayed", "transaction", "failed"])
        getattr(self, "_" + kind)(f"k{self._keys}", self.random.choice("ab"))

    def _plain(self, key: str, tags: str) -> None:
        queue = self.random.choice(self.queues)
        tries = self.random.choice([1, 1, 2])
        self.record(invoked(self.tick(), key, tags))
        for trial in range(tries):
            self.tick()
            if trial:
                self.now += SLOW_MS  # in which the answer to the one before did not come
            offset = self.store(queue, key, tags)
        self.record(SendAcknowledged(self.tick(), key, queue, offset, tries))

    def _delayed(self, key: str, tags: str) -> None:
        self.record(invoked(self.tick(), key, tags, due_ms=DUE_MS))
        self.record(SendAcknowledged(self.tick(), key))
        self.now += DUE_MS
        self.store(self.random.choice(self.queues), key, tags)

    def _transaction(self, key: str, tags: str) -> None:
        commit = self.random.random() < 0.7
        self.record(invoked(self.tick(), key, tags, transactional=True))
        self.record(SendAcknowledged(self.tick(), key))
        self.record(TransactionDecided(self.tick(), key, commit))
        if commit:
            self.tick()
            self.store(self.random.choice(self.queues), key, tags)

    def _failed(self, key: str, tags: str) -> None:
        outcome = self.random.choice(list(SendOutcome))
        self.record(invoked(self.tick(), key, tags))
        if outcome is SendOutcome.UNKNOWN and self.random.random() < 0.5:
            self.store(self.random.choice(self.queues), key, tags)
        self.record(SendFailed(self.tick(), key, outcome))

    # --- consuming -------------------------------------------------------------------------------

    def consume(self) -> None:
        group = self.random.choice(self.groups)
        self._consume(group, self.random.choice(list(group.member)))

    def _consume(self, group: Group, queue: MessageQueue, *, calm: bool = False) -> None:
        """One listener call: it succeeds, fails, or its process dies."""
        begin = group.next[queue]
        batch = self._wanted(group, queue)[: self.random.randint(1, 4)]
        if not batch:
            group.next[queue] = len(self.log[queue])
            return
        self._calls += 1
        at, name, member = self.tick(), group.declared.group, group.member[queue]
        deliveries = [
            MessageDelivered(
                at, key, name, member, queue, offset, times, self._calls, content(key, tags)
            )
            for offset, (key, tags, times) in batch
        ]
        self.events += deliveries
        fate = self.random.random()
        if not calm and fate < 0.1:
            self.record(ProcessDied(self.tick(), member))
            self._replace(group, member)
            return
        success = calm or fate < 0.8
        self.tick()
        for delivery in deliveries:
            self.record(ListenerReturned(self.now, delivery, success))
        if success or not group.declared.orderly:
            group.next[queue] = batch[-1][0] + 1
        if not success:
            self._fail(group, deliveries)
        if begin < group.next[queue] and self.random.random() < 0.6:
            self.record(CommitSeen(self.tick(), name, queue, group.next[queue]))

    def _wanted(self, group: Group, queue: MessageQueue) -> list[tuple[int, Stored]]:
        there = list(enumerate(self.log[queue]))[group.next[queue] :]
        return [
            (offset, (key, tags, times))
            for offset, (key, tags, times) in there
            if queue.topic != TOPIC or group.declared.selects(tags, content(key, tags))
        ]

    def _fail(self, group: Group, deliveries: list[MessageDelivered]) -> None:
        if group.declared.orderly:
            return
        for delivery in deliveries:
            times = delivery.reconsume_times + 1
            topic = "%RETRY%" if times < ATTEMPTS else "%DLQ%"
            assert delivery.content is not None
            queue = MessageQueue(topic + group.declared.group, "b", 0)
            self.store(queue, delivery.key, delivery.content.tags, times)

    # --- what may happen -------------------------------------------------------------------------

    def befall(self) -> None:
        group = self.random.choice(self.groups)
        queue = self.random.choice(list(group.member))
        what = self.random.randrange(4)
        name = group.declared.group
        if what == 0:
            self._join(group)
        elif what == 1:
            member = group.member[queue]
            self.record(MemberLeft(self.tick(), name, member))
            self._replace(group, member)
        elif what == 2:
            self.record(BrokerDied(self.tick(), "b"))
        elif queue.topic == TOPIC:
            group.next[queue] = self.random.randint(0, group.next[queue])
            self.record(OffsetReset(self.tick(), name, queue, group.next[queue]))

    def finish(self) -> None:
        """Consume what is left; read the log."""
        for group in self.groups:
            for queue in list(group.member):
                while group.next[queue] < len(self.log[queue]):
                    self._consume(group, queue, calm=True)
                self.record(CommitSeen(self.tick(), group.declared.group, queue, group.next[queue]))
                owner = group.member[queue]
                self.record(OwnersSeen(self.now, group.declared.group, queue, (owner,)))
        for queue in [*self.queues, *self.log]:
            self.record(LogRead(self.tick(), queue, 0, len(self.log[queue])))
        self.record(TransactionsGivenUp(self.tick(), frozenset()))
        self.record(RunEnded(self.tick()))

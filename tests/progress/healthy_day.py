"""Days of healthy groups as a sweep every 10 s would see them: many shapes, each from a seed.

Law: pure; nothing here knows how a group is judged. Each shape does what RocketMQ's clients and
brokers do when all is well: commits by timer, redelivery when a queue changes hands, pauses of a
rebalance, restarts, bursts, jobs that run now and then.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import GroupState, QueueKind, QueueState

TICK_MS = 5_000
TICKS_PER_STATE = 2
HOUR = 3_600_000
DAY_MS = 24 * HOUR
T0 = 1_700_000_000_000


@dataclass
class Queue:
    """One queue and one group in it.

    Attributes:
        end: messages that arrived.
        done: messages finished; ``committed`` follows it by the commit timer.
        before: what was committed before that.
        exists_ms: since when there is such a queue.
        stored: when the queue reached which end, oldest first, as far as it is still waiting.
    """

    queue_id: int
    broker_name: str = "broker-a"
    end: int = 0
    done: int = 0
    committed: int | None = 0
    before: int = 0
    paused_until_ms: int = 0
    exists_ms: int = 0
    stored: deque[tuple[int, int]] = field(default_factory=deque)
    last_ms: int | None = None

    def arrive(self, number: int, now_ms: int) -> None:
        if number:
            self.end += number
            self.stored.append((self.end, now_ms))
            self.last_ms = now_ms

    def consume(self, most: int, now_ms: int) -> int:
        if now_ms < self.paused_until_ms:
            return 0
        taken = min(most, self.end - self.done)
        self.done += taken
        return taken

    def next_stored_ms(self) -> int | None:
        while self.stored and self.stored[0][0] <= (self.committed or 0):
            self.stored.popleft()
        return self.stored[0][1] if self.stored else None

    def state(self, topic: str, kind: QueueKind, skew_ms: int, owner: str | None) -> QueueState:
        stored = self.next_stored_ms()
        return QueueState(
            topic,
            self.broker_name,
            self.queue_id,
            kind,
            min_offset=0,
            max_offset=self.end,
            committed_offset=self.committed,
            next_stored_ms=None if stored is None else stored + skew_ms,
            last_stored_ms=None if self.last_ms is None else self.last_ms + skew_ms,
            client_id=owner,
        )


@dataclass
class Group:
    """A group whose day is simulated; the shapes below set it up and disturb it.

    Attributes:
        rate: messages a second over all queues, of the time of day (ms since it began).
        capacity: messages a second a member can finish over all its queues.
        commit_ticks: the offsets are committed every so many ticks.
        disturb: called each tick before anything else.
    """

    name: str
    rng: random.Random
    queues: list[Queue]
    members: list[str]
    rate: Callable[[int], float]
    capacity: float = 400.0
    commit_ticks: int = 1
    disturb: Callable[[Group, int], None] = lambda group, at_ms: None
    shown: Callable[[Group, int, GroupState], GroupState] = lambda group, at_ms, state: state
    skew_ms: int = 0
    model: str = "CLUSTERING"
    consume_type: str = "CONSUME_PASSIVELY"
    expression: str = "*"
    has_retry: bool = True
    memberless: bool = False
    retry: Queue = field(default_factory=lambda: Queue(0))
    topic: str = "orders"

    def day(self, span_ms: int = DAY_MS) -> Iterator[GroupState]:
        for tick in range(span_ms // TICK_MS):
            at_ms = tick * TICK_MS
            self.disturb(self, at_ms)
            self.tick(at_ms, tick)
            if tick % TICKS_PER_STATE == 0:
                yield self.shown(self, at_ms, self.state(at_ms))

    def tick(self, at_ms: int, tick: int) -> None:
        now_ms = T0 + at_ms
        commits = tick % self.commit_ticks == 0
        arriving = self.rate(at_ms) * TICK_MS / 1000
        for queue in self.queues:
            # What was done a tick ago is committed now: the timer runs by itself.
            if commits and self.members and queue.done > (queue.committed or -1):
                queue.before, queue.committed = queue.committed or 0, queue.done
            queue.arrive(_about(self.rng, arriving / len(self.queues)), now_ms)
        if commits:
            self.retry.committed = self.retry.done
        if self.members or self.memberless:
            share = int(self.capacity * max(len(self.members), 1) * TICK_MS / 1000)
            for queue in self.queues:
                queue.consume(share // len(self.queues), now_ms)
            self.retry.consume(share, now_ms)

    def state(self, at_ms: int) -> GroupState:
        online = bool(self.members)
        owners = (
            {q.queue_id: self.members[q.queue_id % len(self.members)] for q in self.queues}
            if (online)
            else {}
        )
        found = [
            queue.state(self.topic, QueueKind.TOPIC, self.skew_ms, owners.get(queue.queue_id))
            for queue in self.queues
            if queue.exists_ms <= at_ms
        ]
        if self.has_retry:
            retry = f"%RETRY%{self.name}"
            found.append(self.retry.state(retry, QueueKind.RETRY, self.skew_ms, None))
        return GroupState(
            self.name,
            T0 + at_ms,
            members=tuple(MemberRow(m, f"{m}:1", "JAVA", 409) for m in self.members),
            message_model=self.model if online else None,
            consume_type=self.consume_type if online else None,
            subscriptions=(SubscriptionRow(self.topic, self.expression, "TAG"),) if online else (),
            queues=tuple(found),
        )


def _about(rng: random.Random, mean: float) -> int:
    """Return a whole number of messages, the mean over time as given."""
    whole = int(mean)
    spread = rng.randint(-(whole // 3), whole // 3) if whole >= 3 else 0
    return max(whole + spread, 0) + (rng.random() < mean - whole)


def _queues(number: int, at: int = 0) -> list[Queue]:
    return [Queue(k, f"broker-{'ab'[k % 2]}", at, at, at) for k in range(number)]


def _members(number: int) -> list[str]:
    return [f"10.0.0.{k}@1" for k in range(number)]


def _moves(group: Group, queue: Queue, at_ms: int) -> None:
    """A queue changes hands: waits for a rebalance, goes on where it was stored last."""
    queue.paused_until_ms = T0 + at_ms + group.rng.randint(0, 20_000)
    if queue.committed is not None:
        queue.done = queue.committed = group.rng.randint(queue.before, queue.committed)


# --- the shapes -----------------------------------------------------------------------------------


def steady(rng: random.Random) -> Group:
    return Group("steady", rng, _queues(8, 1_000), _members(2), lambda at: 20 + 80 * _noon(at))


def bursts(rng: random.Random) -> Group:
    """Bursts of twice to four times what the members can do, worked off before the next."""
    burst = [0, 0.0, 0]  # until when, how much, none before

    def rate(at_ms: int) -> float:
        if at_ms > burst[2] and rng.random() < 1 / 120:
            until = at_ms + rng.randint(10, 90) * 1_000
            burst[:] = [until, rng.uniform(2, 4), until + 400_000]
        return 200.0 * burst[1] if at_ms <= burst[0] else 20.0

    return Group("bursts", rng, _queues(4), _members(2), rate, capacity=100)


def sparse(rng: random.Random) -> Group:
    return Group("sparse", rng, _queues(4, 70), _members(2), lambda at: 1 / 3600)


def rebalances(rng: random.Random) -> Group:
    """A member comes or goes every 20 minutes, and half the queues change hands."""

    def disturb(group: Group, at_ms: int) -> None:
        if at_ms and at_ms % (20 * 60_000) == 0:
            group.members = _members(rng.randint(2, 6))
            for queue in rng.sample(group.queues, len(group.queues) // 2):
                _moves(group, queue, at_ms)

    return Group("rebalances", rng, _queues(16), _members(4), lambda at: 150, disturb=disturb)


def rolling_deploys(rng: random.Random) -> Group:
    """Three times a day all six members are restarted, one every 30 s."""
    every = 8 * HOUR

    def disturb(group: Group, at_ms: int) -> None:
        into = at_ms % every - HOUR
        if 0 <= into < 6 * 30_000:
            down = into // 30_000
            up_again = into % 30_000 >= 20_000
            group.members = [m for k, m in enumerate(_members(6)) if k != down or up_again]
            if into % 30_000 in {0, 20_000}:
                for queue in group.queues:
                    _moves(group, queue, at_ms)
        elif into == 6 * 30_000:
            group.members = _members(6)

    return Group("deploys", rng, _queues(12), _members(6), lambda at: 100, disturb=disturb)


def lone_restarts(rng: random.Random) -> Group:
    """The only member is restarted every hour and is away for 40 to 100 s."""
    back = [0]

    def disturb(group: Group, at_ms: int) -> None:
        if at_ms and at_ms % HOUR == 0:
            group.members = []
            back[0] = at_ms + rng.randint(8, 20) * TICK_MS
        elif not group.members and at_ms >= back[0]:
            group.members = _members(1)
            for queue in group.queues:
                queue.done = queue.committed or 0

    return Group("lone", rng, _queues(4), _members(1), lambda at: 30, disturb=disturb)


def new_queues(rng: random.Random) -> Group:
    """The topic gets more queues; nothing is committed of a new one for half a minute."""
    grown = {6 * HOUR: 8, 12 * HOUR: 16}

    def disturb(group: Group, at_ms: int) -> None:
        for number in range(len(group.queues), grown.get(at_ms, 0)):
            queue = Queue(number, "broker-a", committed=None, exists_ms=at_ms)
            queue.paused_until_ms = T0 + at_ms + 25_000
            group.queues.append(queue)

    return Group("grown", rng, _queues(4), _members(2), lambda at: 60, disturb=disturb)


def batch_pullers(rng: random.Random) -> Group:
    """Pull consumers in members' clothes, committing every 30 s."""
    return Group(
        "batch", rng, _queues(6), _members(2), lambda at: 90, commit_ticks=6, has_retry=False,
        consume_type="CONSUME_ACTIVELY",
    )  # fmt: skip


def query(trigger_ms: int, name: str) -> Callable[[random.Random], Group]:
    """A Spark query: no members, offsets told once a batch."""

    def shape(rng: random.Random) -> Group:
        def disturb(group: Group, at_ms: int) -> None:
            if at_ms % trigger_ms == 0:
                late = rng.randint(0, 3) * 10
                for queue in group.queues:
                    queue.committed = queue.done = max(queue.end - late, queue.committed or 0)

        return Group(
            name, rng, _queues(4, 500), [], lambda at: 40, disturb=disturb, has_retry=False
        )

    return shape


def broadcasting(rng: random.Random) -> Group:
    group = Group("broadcast", rng, _queues(4), _members(3), lambda at: 20, model="BROADCASTING")

    def disturb(own: Group, at_ms: int) -> None:
        for each in own.queues:
            each.committed, each.done = None, 0

    group.disturb = disturb
    return group


def unused(rng: random.Random) -> Group:
    return Group("unused", rng, _queues(4, 900), [], lambda at: 0)


def made_anew(rng: random.Random) -> Group:
    """The topic is deleted and made again at noon; members correct offsets in half a minute."""

    def disturb(group: Group, at_ms: int) -> None:
        if at_ms == 12 * HOUR:
            for queue in group.queues:
                queue.end, queue.done = 0, 0
                queue.stored.clear()
                queue.paused_until_ms = T0 + at_ms + 30_000
        if 12 * HOUR <= at_ms < 12 * HOUR + 30_000:
            for queue in group.queues:
                queue.committed = 700
        if at_ms == 12 * HOUR + 30_000:
            for queue in group.queues:
                queue.committed = queue.done = 0

    return Group("anew", rng, _queues(4), _members(2), lambda at: 30, disturb=disturb)


def skewed(skew_ms: int, rate: float, name: str) -> Callable[[random.Random], Group]:
    """The brokers' clocks and ours differ."""
    return lambda rng: Group(name, rng, _queues(4), _members(2), lambda at: rate, skew_ms=skew_ms)


def failing_polls(rng: random.Random) -> Group:
    """Every twentieth poll fails; twice a day one of the brokers is away for three minutes."""

    def shown(group: Group, at_ms: int, state: GroupState) -> GroupState:
        if rng.random() < 0.05:
            return GroupState(group.name, state.taken_ms, errors=("no name server answered",))
        if at_ms % (12 * HOUR) - 3 * HOUR not in range(180_000):
            return state
        queues = tuple(
            QueueState(q.topic, q.broker_name, q.queue_id, q.kind, error="broker-b is silent")
            if q.broker_name == "broker-b"
            else q
            for q in state.queues
        )
        return GroupState(
            group.name, state.taken_ms, state.members, state.message_model, state.consume_type,
            state.subscriptions, queues, errors=("broker-b is silent",),
        )  # fmt: skip

    return Group("polls", rng, _queues(8), _members(2), lambda at: 60, shown=shown)


def broker_restarts(rng: random.Random) -> Group:
    """A broker is killed: away for 30 s, then it knows offsets 10 s old."""

    def disturb(group: Group, at_ms: int) -> None:
        if at_ms % (4 * HOUR) == HOUR:
            for queue in group.queues[::2]:
                queue.done = queue.committed = queue.before
                queue.paused_until_ms = T0 + at_ms + 30_000

    return Group("restarted", rng, _queues(8), _members(2), lambda at: 100, disturb=disturb)


def retries(rng: random.Random) -> Group:
    """One message in a hundred fails once and comes again from the retry topic."""

    def disturb(group: Group, at_ms: int) -> None:
        if rng.random() < 0.5:
            group.retry.arrive(rng.randint(1, 3), T0 + at_ms)

    return Group("retries", rng, _queues(4), _members(2), lambda at: 20, disturb=disturb)


def filtered(rng: random.Random) -> Group:
    """A tag is wanted; offsets of what is not wanted follow up to 20 s later (C-227)."""
    return Group(
        "filtered", rng, _queues(4), _members(2), lambda at: 30, commit_ticks=4, expression="paid"
    )


def slow_work(rng: random.Random) -> Group:
    """A message now and then, each of several minutes' work."""

    def disturb(group: Group, at_ms: int) -> None:
        for queue in group.queues:
            if queue.end > queue.done and T0 + at_ms >= queue.paused_until_ms:
                queue.done += 1
                queue.paused_until_ms = T0 + at_ms + rng.randint(100, 420) * 1_000

    group = Group("slow", rng, _queues(2), _members(2), lambda at: 1 / 400, disturb=disturb)
    group.capacity = 0
    return group


SHAPES: dict[str, Callable[[random.Random], Group]] = {
    "steady": steady,
    "bursts": bursts,
    "sparse": sparse,
    "rebalances": rebalances,
    "rolling deploys": rolling_deploys,
    "lone restarts": lone_restarts,
    "new queues": new_queues,
    "batch pullers": batch_pullers,
    "query every 10 s": query(10_000, "q10"),
    "query every 5 min": query(300_000, "q300"),
    "job every hour": query(HOUR, "q3600"),
    "job every day": query(DAY_MS, "daily"),
    "broadcasting": broadcasting,
    "unused": unused,
    "made anew": made_anew,
    "clock 10 min ahead": skewed(600_000, 40, "ahead"),
    "clock 10 min behind": skewed(-600_000, 40, "late"),
    "clock behind and sparse": skewed(-600_000, 1 / 900, "latesparse"),
    "failing polls": failing_polls,
    "broker restarts": broker_restarts,
    "retries": retries,
    "filtered": filtered,
    "slow work": slow_work,
}


def _noon(at_ms: int) -> float:
    """Return 0 at midnight, 1 at noon."""
    return 1 - abs(at_ms % DAY_MS - DAY_MS / 2) / (DAY_MS / 2)

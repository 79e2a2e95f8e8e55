"""A consumer group in virtual time, as brokers and its members would tell of it.

Law: pure; nothing here knows how a group is judged. Members pull 32 messages of a queue at a time,
hold up to a thousand of each, hand them to their threads in the order they were pulled, or queue by
queue, send back what failed, and commit every 5 s.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from rocketstream.admin.core.evidence import (
    Evidence,
    FilterSeen,
    LettersSeen,
    Look,
    Member,
    MessageFacts,
    ThreadStack,
    TopicRates,
)
from rocketstream.admin.rows import MemberRow, RunningQueueRow, SubscriptionRow
from rocketstream.admin.state import GroupState, QueueKind, QueueState
from rocketstream.model import MessageQueue
from rocketstream.testing.clock import START_MS
from tests.progress.evidence_maker import held_queue

TICK_MS = 500
COMMIT_MS = 5_000
MINUTE = 60_000
PULLED = 32
HELD_MAX = 1_000
SPAN_MAX = 2_000
LONG_POLL_MS = 15_000
NOTIFIED_MS = 1_000
ORDERLY_PAUSE_MS = 1_000
DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
AVERAGELY = "org.apache.rocketmq.client.consumer.allocate.AllocateMessageQueueAveragely@1b2c"
SAVE = "com.acme.Orders.save(Orders.java:42)"


@dataclass(frozen=True, slots=True)
class Call:
    """What a listener does with a message; it never returns where ``took_ms`` is None."""

    took_ms: float | None
    ok: bool = True
    place: str = SAVE


@dataclass(frozen=True, slots=True)
class Stored:
    """One message in a queue, or in a retry queue for another try."""

    at_ms: int
    key: str
    tag: str = "paid"
    tries: int = 0
    msg_id: str = ""


@dataclass(eq=False)
class Queue:
    """One queue of the topic, or the group's retry queue."""

    topic: str
    queue_id: int
    kind: QueueKind = QueueKind.TOPIC
    stored: list[Stored] = field(default_factory=list)
    low: int = 0
    committed: int | None = None

    @property
    def end(self) -> int:
        return len(self.stored)


@dataclass(eq=False)
class Process:
    """A queue as its member has it: pulled and not finished, and how far it is."""

    queue: Queue
    pulled: int
    held: dict[int, Stored] = field(default_factory=dict)
    last_pull_ms: int = 0
    last_consume_ms: int = 0
    locked: bool = True
    free_ms: float = 0.0
    in_hand: bool = False

    @property
    def done(self) -> int:
        return next(iter(self.held), self.pulled)


Listener = Callable[["Group", "Client", Queue, Stored, int], Call]


@dataclass(eq=False)
class Client:
    """One member: its process queues, its threads, and what it counted of the last minute."""

    client_id: str
    expression: str = "*"
    started_ms: int = 0
    is_paused: bool = False
    queues: dict[Queue, Process] = field(default_factory=dict)
    waiting: deque[tuple[Process, int]] = field(default_factory=deque)
    threads: list[float] = field(default_factory=list)
    running: list[tuple[float, int, Process, int, Call]] = field(default_factory=list)
    ended: deque[tuple[int, str, float, bool]] = field(default_factory=deque)
    pulls: deque[tuple[int, str, int]] = field(default_factory=deque)
    mean_ms: dict[str, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Group:
    """A group and its topic.

    Attributes:
        rate: messages a second that arrive, of the time since the beginning in ms.
        listener: what a listener does with a message.
        change: called each tick; plants the fault.
        sends: makes the next message, of its number and the time.
        chooses: the queue of a message, by its number.
        tries_max: how often a message is tried again before it becomes a dead letter.
        twins: addresses of other programs under the first member's id.
        leaves_out: how many queues no member is given.
        locked_by_other: whether a client that is no member holds the locks.
        committing: whether offsets are committed where nothing was consumed yet.
    """

    name: str
    rate: Callable[[int], float]
    listener: Listener = lambda group, client, queue, message, at_ms: Call(20.0)
    change: Callable[[Group, int], None] = lambda group, at_ms: None
    sends: Callable[[int, int], tuple[str, str]] = lambda number, at_ms: (f"k{number}", "paid")
    chooses: Callable[[int], int] = lambda number: number
    number: int = 4
    clients: int = 1
    threads: int = 20
    orderly: bool = False
    expression: str = "*"
    tries_max: int = 16
    language: str = "JAVA"
    model: str = "CLUSTERING"
    consume_type: str = "CONSUME_PASSIVELY"
    permission: str = "RW"
    twins: tuple[str, ...] = ()
    leaves_out: int = 0
    locked_by_other: bool = False
    hangs: bool = False

    def __post_init__(self) -> None:
        self.topic = f"{self.name}-orders"
        self.queues = [Queue(self.topic, k) for k in range(self.number)]
        self.retry = Queue(f"%RETRY%{self.name}", 0, QueueKind.RETRY, committed=0)
        self.at_ms = -TICK_MS
        self.due = 0.0
        self.sent = 0
        self.delayed: list[tuple[int, int, Stored]] = []
        self.letters: list[tuple[int, str, str]] = []
        self.members: dict[str, Client] = {}
        self.commits: list[tuple[int, Queue, int, int]] = []
        self.rebalance_ms = 0
        self.pace: deque[tuple[int, int]] = deque()
        for k in range(self.clients):
            self.join(f"10.0.0.{k + 1}@4711", 0)

    # --- what happens ---------------------------------------------------------------------------

    def join(self, client_id: str, at_ms: int, expression: str | None = None) -> Client:
        wanted = self.expression if expression is None else expression
        client = Client(client_id, wanted, at_ms, threads=[float(at_ms)] * self.threads)
        self.members[client_id] = client
        self.rebalance_ms = at_ms + NOTIFIED_MS
        return client

    def leave(self, client_id: str, at_ms: int) -> None:
        client = self.members.pop(client_id, None)
        for process in client.queues.values() if client else ():
            process.queue.committed = max(process.queue.committed or 0, process.done)
        self.rebalance_ms = at_ms + NOTIFIED_MS

    def run_to(self, at_ms: int) -> None:
        while self.at_ms + TICK_MS <= at_ms:
            self.at_ms += TICK_MS
            self._tick(self.at_ms)

    def _tick(self, now: int) -> None:
        self.change(self, now)
        if self.hangs:
            return
        if now >= self.rebalance_ms >= 0:
            self._rebalance(now)
        self._arrive(now)
        for client in self.members.values():
            self._pull(client, now)
            self._consume(client, now)
        if now % COMMIT_MS == 0:
            self._commit(now)

    def _arrive(self, now: int) -> None:
        self.due += self.rate(now) * TICK_MS / 1_000
        while self.due >= 1:
            self.due -= 1
            key, tag = self.sends(self.sent, now)
            queue = self.queues[self.chooses(self.sent) % len(self.queues)]
            queue.stored.append(Stored(now, key, tag, msg_id=f"7F{self.sent:06X}"))
            self.sent += 1
        while self.delayed and self.delayed[0][0] <= now:
            _, _, message = heapq.heappop(self.delayed)
            self.retry.stored.append(replace(message, at_ms=now))

    def _rebalance(self, now: int) -> None:
        """Divide the queues averagely; a queue that changes hands goes on where it is committed."""
        self.rebalance_ms = -1
        ids = sorted(self.members)
        given = self.queues[: len(self.queues) - self.leaves_out]
        share = -(-len(given) // len(ids)) if ids else 0
        for place, client_id in enumerate(ids):
            client = self.members[client_id]
            own = [
                *given[place * share : (place + 1) * share],
                *([self.retry] if not place else ()),
            ]
            if self.orderly and self.locked_by_other:  # a queue is had with its lock only
                own = [queue for queue in own if queue is self.retry]
            for queue in [queue for queue in client.queues if queue not in own]:
                process = client.queues.pop(queue)
                queue.committed = max(queue.committed or 0, process.done)
                client.waiting = deque(each for each in client.waiting if each[0] is not process)
            for queue in own:
                if queue not in client.queues:
                    start = queue.committed or queue.low
                    fresh = Process(queue, start, last_pull_ms=now, last_consume_ms=now)
                    fresh.locked = self.orderly
                    client.queues[queue] = fresh

    def _pull(self, client: Client, now: int) -> None:
        for process in client.queues.values():
            queue, taken = process.queue, 0
            process.pulled = max(process.pulled, queue.low)
            if self.orderly and not process.locked:
                continue
            if client.is_paused:
                process.last_pull_ms = now
                continue
            while process.pulled < queue.end and len(process.held) < HELD_MAX:
                if process.held and process.pulled - process.done >= SPAN_MAX:
                    break
                message = queue.stored[process.pulled]
                if self.wants(client, queue, message):
                    process.held[process.pulled] = message
                    if not self.orderly:
                        client.waiting.append((process, process.pulled))
                process.pulled += 1
                taken += 1
            if taken:
                client.pulls.append((now, queue.topic, taken))
            if taken or len(process.held) >= HELD_MAX or now - process.last_pull_ms >= LONG_POLL_MS:
                process.last_pull_ms = now

    def wants(self, client: Client, queue: Queue, message: Stored) -> bool:
        """Brokers keep one subscription of a group; each member filters what it gets by its own."""
        return (
            queue.kind is QueueKind.RETRY
            or client.expression == "*"
            or message.tag in client.expression.split("||")
        )

    def _consume(self, client: Client, now: int) -> None:
        self._end(client, now)
        if self.orderly:
            for process in client.queues.values():
                while (
                    process.held
                    and not process.in_hand
                    and process.free_ms <= now
                    and client.threads
                    and client.threads[0] <= now
                ):
                    free_ms = max(heapq.heappop(client.threads), process.free_ms, now - TICK_MS)
                    self._begin(client, process, process.done, free_ms)
                    self._end(client, now)
            return
        while client.waiting and client.threads and client.threads[0] <= now:
            began = max(heapq.heappop(client.threads), now - TICK_MS)
            self._begin(client, *client.waiting.popleft(), began)
            self._end(client, now)

    def _begin(self, client: Client, process: Process, offset: int, began: float) -> None:
        message = process.held.get(offset)
        if message is None:  # of a queue that was given up
            heapq.heappush(client.threads, began)
            return
        call = self.listener(self, client, process.queue, message, round(began))
        ends = float("inf") if call.took_ms is None else began + call.took_ms
        self.sent_calls = getattr(self, "sent_calls", 0) + 1
        heapq.heappush(client.running, (ends, self.sent_calls, process, offset, call))
        process.in_hand = True

    def _end(self, client: Client, now: int) -> None:
        while client.running and client.running[0][0] <= now:
            ends, _, process, offset, call = heapq.heappop(client.running)
            assert call.took_ms is not None
            heapq.heappush(client.threads, ends)
            if self.orderly:
                process.in_hand = False
                process.free_ms = ends if call.ok else ends + ORDERLY_PAUSE_MS
            process.last_consume_ms = round(ends)
            topic = process.queue.topic
            client.ended.append((round(ends), topic, call.took_ms, call.ok))
            if not call.ok:
                client.failed[topic] = client.failed.get(topic, 0) + 1
            if call.ok or not self.orderly:
                message = process.held.pop(offset, None)
                if message is not None and not call.ok:
                    self._fail(message, call, round(ends))

    def _fail(self, message: Stored, call: Call, now: int) -> None:
        if message.tries >= self.tries_max:
            self.letters.append((now, call.place, message.key))
            return
        due = now + DELAYS_S[min(message.tries, len(DELAYS_S) - 1)] * 1_000
        again = replace(message, tries=message.tries + 1)
        heapq.heappush(self.delayed, (due, len(self.retry.stored) + len(self.delayed), again))

    def _commit(self, now: int) -> None:
        for client in self.members.values():
            for process in client.queues.values():
                queue = process.queue
                if queue.committed is None and process.done == 0 and not process.held:
                    continue
                if self.model == "BROADCASTING":
                    continue
                queue.committed = max(queue.committed or 0, process.done)
                self.commits.append((now, queue, queue.committed, queue.end - queue.committed))

    # --- what brokers tell ----------------------------------------------------------------------

    def state(self, at_ms: int) -> GroupState:
        taken = START_MS + at_ms
        online = bool(self.members)
        if self.hangs:
            error = "broker-a: no answer within 3000 ms"
            queues = tuple(
                QueueState(q.topic, "broker-a", q.queue_id, q.kind, error=error)
                for q in (*self.queues, self.retry)
            )
            return GroupState(self.name, taken, queues=queues, errors=(error,))
        owners = {q: c.client_id for c in self.members.values() for q in c.queues}
        queues = tuple(self._queue(q, owners.get(q)) for q in self.queues)
        more = [self._queue(self.retry, owners.get(self.retry))]
        if self.letters:
            more.append(
                QueueState(
                    f"%DLQ%{self.name}", "broker-a", 0, QueueKind.DEAD_LETTER, 0, len(self.letters)
                )
            )
        first = next((self.members[each] for each in sorted(self.members)), None)
        return GroupState(
            self.name,
            taken,
            tuple(
                MemberRow(c, f"{c.partition('@')[0]}:51000", self.language, 435, self.twins)
                for c in sorted(self.members)
            ),
            self.model if online else None,
            self.consume_type if online else None,
            (SubscriptionRow(self.topic, first.expression, "TAG"),) if first else (),
            (*queues, *more),
            delayed=len(self.delayed),
        )

    def _queue(self, queue: Queue, owner: str | None) -> QueueState:
        at = max(queue.committed or 0, queue.low)
        first = next(iter(self.members.values()), None)
        matching = None
        next_ms = START_MS + queue.stored[at].at_ms if at < queue.end else None
        if first is not None and first.expression != "*" and queue.kind is QueueKind.TOPIC:
            left = [m for m in queue.stored[at:] if self.wants(first, queue, m)]
            matching = len(left)
            next_ms = START_MS + left[0].at_ms if left else None
        return QueueState(
            queue.topic,
            "broker-a",
            queue.queue_id,
            queue.kind,
            queue.low,
            queue.end,
            queue.committed,
            matching=matching,
            next_stored_ms=None if queue.committed is None else next_ms,
            last_stored_ms=START_MS + queue.stored[-1].at_ms if queue.stored else None,
            last_consumed_ms=START_MS + queue.stored[at - 1].at_ms if at > queue.low else None,
            client_id=owner,
        )

    # --- what members tell ----------------------------------------------------------------------

    def look(self, client: Client, at_ms: int) -> Look:
        told = {
            "PROP_CONSUMEORDERLY": str(self.orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(self.threads),
            "consumeMessageBatchMaxSize": "1",
            "pullThresholdForQueue": str(HELD_MAX),
            "pullThresholdSizeForQueue": "100",
            "allocateMessageQueueStrategy": AVERAGELY,
            "PROP_CONSUMER_START_TIMESTAMP": str(START_MS + client.started_ms),
        }
        busy = [call.place for _, _, _, _, call in client.running]
        return Look(
            START_MS + at_ms,
            told,
            (
                SubscriptionRow(self.retry.topic, "*", "TAG"),
                SubscriptionRow(self.topic, client.expression, "TAG"),
            ),
            {
                MessageQueue(p.queue.topic, "broker-a", p.queue.queue_id): self._held(p)
                for p in client.queues.values()
            },
            {topic: self._rates(client, topic, at_ms) for topic in (self.topic, self.retry.topic)},
            tuple(
                _thread(self.name, k, busy[k] if k < len(busy) else None)
                for k in range(self.threads)
            ),
        )

    def _held(self, process: Process) -> RunningQueueRow:
        first = next(iter(process.held), None)
        last = next(reversed(process.held), None)
        return held_queue(
            process.done,
            len(process.held),
            first,
            last,
            locked=process.locked,
            last_pull_ms=START_MS + process.last_pull_ms,
            last_consume_ms=START_MS + process.last_consume_ms,
            last_lock_ms=START_MS + self.at_ms - 5_000 if self.orderly else None,
        )

    def _rates(self, client: Client, topic: str, at_ms: int) -> TopicRates:
        while client.ended and client.ended[0][0] < at_ms - MINUTE:
            client.ended.popleft()
        while client.pulls and client.pulls[0][0] < at_ms - MINUTE:
            client.pulls.popleft()
        own = [each for each in client.ended if each[1] == topic]
        ok = sum(each[3] for each in own)
        if own:
            client.mean_ms[topic] = sum(each[2] for each in own) / len(own)
        return TopicRates(
            sum(number for _, at, number in client.pulls if at == topic) / 60,
            client.mean_ms.get(topic, 0.0),
            ok / 60,
            (len(own) - ok) / 60,
            client.failed.get(topic, 0),
        )

    # --- both -------------------------------------------------------------------------------------

    def evidence(self, first: GroupState, looks: dict[str, Look], at_ms: int) -> Evidence:
        """Return what a look from ``first`` on finds; the later half of it is asked now."""
        state = self.state(at_ms)
        members = tuple(
            Member(c, looks.get(c), self.look(client, at_ms))
            for c, client in sorted(self.members.items())
        )
        return Evidence(
            state,
            first,
            members,
            {(self.topic, "broker-a"): self.permission, (self.retry.topic, "broker-a"): "RW"},
            {
                MessageQueue(q.topic, "broker-a", q.queue_id): _facts(q, at)
                for q in (*self.queues, self.retry)
                if (at := max(q.committed or 0, q.low)) < q.end
            },
            tuple(
                _facts(self.retry, at) for at in range(max(self.retry.end - 16, 0), self.retry.end)
            ),
            filters=dict(self._filters(state)),
            letters=tuple(self._letters(at_ms)),
        )

    def _filters(self, state: GroupState) -> Iterator[tuple[str, FilterSeen]]:
        for row in state.subscriptions:
            if row.expression != "*":
                newest = [m for q in self.queues for m in q.stored[-5_000:]]
                matching = sum(m.tag in row.expression.split("||") for m in newest)
                tags = tuple(dict.fromkeys(m.tag for m in newest[-32:]))
                yield row.topic, FilterSeen(row.topic, row.expression, len(newest), matching, tags)

    def _letters(self, at_ms: int) -> Iterator[LettersSeen]:
        newest = [each for each in self.letters[-32:] if each[0] >= at_ms - 10 * MINUTE]
        by_place: dict[str, list[str]] = {}
        for _, place, key in newest:
            by_place.setdefault(place, []).append(key)
        for place, keys in sorted(by_place.items(), key=lambda each: -len(each[1])):
            yield LettersSeen(place[:6].lower(), place, place, len(keys), keys[-1])


def _facts(queue: Queue, at: int) -> MessageFacts:
    message = queue.stored[at]
    return MessageFacts(
        queue.topic, "broker-a", queue.queue_id, at, message.msg_id, message.key, message.tag,
        START_MS + message.at_ms, message.tries, queue.topic if message.tries else None,
    )  # fmt: skip


def _thread(group: str, number: int, place: str | None) -> ThreadStack:
    frames: tuple[str, ...] = ("jdk.internal.misc.Unsafe.park(Native Method)",)
    inside = (*frames, place) if place else ()
    return ThreadStack(
        f"ConsumeMessageThread_{group}_{number}", inside or frames, "WAITING", inside
    )

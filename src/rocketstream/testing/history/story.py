"""A history sorted by subject: each message sent, each group, each queue, each kind of fault.

Pure: one pass; the checks look things up here in constant or logarithmic time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from rocketstream.errors import SendOutcome
from rocketstream.model import MessageQueue
from rocketstream.testing.history.events import (
    BrokerDied,
    BrokerPaused,
    CalmBegan,
    ClockJumped,
    CommitSeen,
    Disturbed,
    Event,
    GroupDeclared,
    ListenerCutOff,
    ListenerReturned,
    LogRead,
    LogTrimmed,
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
    TakenBack,
    TransactionDecided,
    TransactionsGivenUp,
)

RETRY, DLQ = "%RETRY%", "%DLQ%"
NEVER = float("inf")
CLOCK_MS = 2.0
"""Clocks that count whole milliseconds differ by so much from the time of a call."""
BACK_MS = 10_000.0
"""A broker that is killed is started again, and has flushed what it found, within this time."""


@dataclass(slots=True)
class SendStory:
    """Everything known of one message that was to be sent once."""

    invoked: list[SendInvoked] = field(default_factory=list)
    acknowledged: list[SendAcknowledged] = field(default_factory=list)
    failed: list[SendFailed] = field(default_factory=list)
    decided: list[TransactionDecided] = field(default_factory=list)
    stored: list[MessageStored] = field(default_factory=list)

    @property
    def tries(self) -> int:
        """Return how often its producer may have written it: not where it was told otherwise."""
        unsure = [each for each in self.failed if each.outcome is SendOutcome.UNKNOWN]
        told = sum(ack.tries for ack in self.acknowledged) + sum(each.tries for each in unsure)
        untold = len(self.invoked) - len(self.acknowledged) - len(self.failed)
        return told + max(untold, 0) * max((send.tries for send in self.invoked), default=1)


@dataclass(slots=True)
class Delivery:
    """A message in a listener: when it began and ended, and how (None: no end is known).

    ``expired`` is when its listener had taken too long.
    """

    event: MessageDelivered
    end: float = NEVER
    success: bool | None = None
    expired: float = NEVER

    @property
    def failed(self) -> bool:
        """Whether it comes again, whatever its listener said after it had taken too long."""
        return not self.success or self.expired < NEVER


@dataclass(slots=True)
class QueueStory:
    """The events of one group in one queue, in the order of time."""

    deliveries: list[Delivery] = field(default_factory=list)
    commits: list[CommitSeen] = field(default_factory=list)
    resets: list[OffsetReset] = field(default_factory=list)
    taken_back: list[TakenBack] = field(default_factory=list)


@dataclass(slots=True)
class GroupStory:
    """A group: the messages it must consume, and its events in each queue."""

    declared: GroupDeclared
    queues: dict[MessageQueue, QueueStory] = field(default_factory=dict)
    owners: list[OwnersSeen] = field(default_factory=list)
    changes: Misfortunes = field(default_factory=lambda: Misfortunes())

    @property
    def retry_topic(self) -> str:
        """The topic failed messages come back from."""
        return RETRY + self.declared.group

    @property
    def dead_topic(self) -> str:
        """The topic that given-up messages go to."""
        return DLQ + self.declared.group

    def queue(self, queue: MessageQueue) -> QueueStory:
        """Return the story of a queue; an empty one is made on first use."""
        story = self.queues.get(queue)
        if story is None:
            story = self.queues[queue] = QueueStory()
        return story


class Misfortunes:
    """Time spans of one kind of fault; tells whether another span overlaps one of them."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._begins: list[float] = []
        self._latest_end: list[float] = []

    def add(self, begin: float, end: float) -> None:
        """Add one span; ``begin`` and ``end`` belong to it."""
        self._spans.append((begin, end))

    def seal(self) -> None:
        """Sort the spans; to be called after the last ``add`` and before the first question."""
        self._spans.sort()
        self._begins = [begin for begin, _ in self._spans]
        self._latest_end = list(accumulate((end for _, end in self._spans), max))

    def any_between(self, begin: float, end: float) -> bool:
        """Return whether a span began by ``end`` and had not ended before ``begin``."""
        before = bisect_right(self._begins, end)
        return before > 0 and self._latest_end[before - 1] >= begin


class Moments:
    """Points in time, each with a number; answers questions about spans and sums over them."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(points)
        self._at = [at for at, _ in ordered]
        self._sums = [0.0, *accumulate(value for _, value in ordered)]

    def any_between(self, begin: float, end: float) -> bool:
        """Return whether a point lies in [begin, end]."""
        return bisect_left(self._at, begin) < bisect_right(self._at, end)

    def total_between(self, begin: float, end: float) -> float:
        """Return the sum of the numbers of the points in [begin, end]."""
        low, high = bisect_left(self._at, begin), bisect_right(self._at, end)
        return self._sums[high] - self._sums[low]


@dataclass(slots=True)
class Stories:
    """A whole history, sorted."""

    sends: dict[str, SendStory] = field(default_factory=lambda: defaultdict(SendStory))
    groups: dict[str, GroupStory] = field(default_factory=dict)
    stored: dict[MessageQueue, dict[int, MessageStored]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    reads: dict[MessageQueue, LogRead] = field(default_factory=dict)
    trims: dict[MessageQueue, list[LogTrimmed]] = field(default_factory=dict)
    clashes: list[tuple[MessageStored, MessageStored]] = field(default_factory=list)
    after_end: list[tuple[Event, MessageDelivered]] = field(default_factory=list)
    """Ends of members, and what they were handed later."""
    strays: list[MessageDelivered | CommitSeen] = field(default_factory=list)
    crashes: dict[str, Moments] = field(default_factory=dict)
    power_losses: dict[str, Moments] = field(default_factory=dict)
    deaths: dict[str, list[BrokerDied]] = field(default_factory=dict)
    """By broker, in the order they happened."""
    pauses: dict[str, list[BrokerPaused]] = field(default_factory=dict)
    """By broker, in the order they happened."""
    disturbances: Misfortunes = field(default_factory=Misfortunes)
    clock_forward: Moments = field(default_factory=lambda: Moments([]))
    given_up: TransactionsGivenUp | None = None
    calm: CalmBegan | None = None
    ended: RunEnded | None = None

    def group_of(
        self, event: MessageDelivered | CommitSeen | OffsetReset | TakenBack
    ) -> GroupStory:
        """Return the story of a group; an undeclared one consumes the topic it appears in."""
        story = self.groups.get(event.group)
        if story is None:
            declared = GroupDeclared(event.at, event.group, frozenset({event.queue.topic}))
            story = self.groups[event.group] = GroupStory(declared)
        return story

    def begin(self, queue: MessageQueue) -> int:
        """Return the first offset of a queue that was never removed."""
        read = self.reads.get(queue)
        trims = (trim.offset for trim in self.trims.get(queue, ()))
        return max(read.begin if read is not None else 0, *trims, 0)

    def clock_excuse_ms(self, begin: float, end: float) -> float:
        """Return by how many ms clock jumps may have shortened a delay in [begin, end]."""
        return self.clock_forward.total_between(begin, end)

    def crashed(self, broker: str, begin: float, end: float) -> bool:
        """Return whether a broker died in [begin, end]."""
        found = self.crashes.get(broker)
        return found is not None and found.any_between(begin, end)

    def is_disturbed(self, begin: float, end: float) -> bool:
        """Return whether anything disturbed a broker or the way to it in [begin, end]."""
        return (
            self.disturbances.any_between(begin, end)
            or any(self.crashed(broker, begin, end) for broker in self.crashes)
            or any(
                pause.at <= end and pause.until >= begin
                for pauses in self.pauses.values()
                for pause in pauses
            )
        )

    def is_calm_at(self, at: float) -> bool:
        """Return whether all was calm by then: each queue of each group had its owner."""
        return self.calm is not None and at >= self.calm.at

    def has_run(self, broker: str, begin: float, ms: float) -> float:
        """Return when a broker has run for ``ms`` since ``begin``; pauses do not count."""
        end = begin + ms
        for pause in self.pauses.get(broker, ()):
            if pause.until > begin and pause.at < end:
                end += pause.until - max(pause.at, begin)
        return end

    def power_lost(self, broker: str, begin: float, end: float) -> bool:
        """Return whether a broker lost its power in [begin, end]."""
        found = self.power_losses.get(broker)
        return found is not None and found.any_between(begin, end)

    def may_be_unflushed(self, broker: str, begin: float, end: float, ms: float) -> bool:
        """Return whether a loss of power may have taken what a broker wrote in [begin, end].

        It flushes what it writes within ``ms`` that it runs, and what a killed process of it has
        left when it is started again.
        """
        limit = self.has_run(broker, end, ms)
        for death in self.deaths.get(broker, ()):
            if death.at < begin:
                continue
            if death.at > limit:
                return False
            if death.power_lost:
                return True
            limit = self.has_run(broker, death.at + BACK_MS, ms)
        return False


class _Sorter:
    """Puts each event where it belongs."""

    def __init__(self) -> None:
        self.stories = Stories()
        self._open: dict[MessageDelivered, Delivery] = {}
        self._of_member: dict[str, dict[MessageDelivered, Delivery]] = defaultdict(dict)
        self._over: dict[tuple[str | None, str], Event] = {}
        """By group, None for all, and member: the end of one that has not come back."""
        self._deaths: list[BrokerDied] = []
        self._jumps: list[ClockJumped] = []
        self.handlers: dict[type[Event], Callable[..., None]] = {
            SendInvoked: self._invoked,
            SendAcknowledged: self._acknowledged,
            SendFailed: self._failed,
            TransactionDecided: self._decided,
            MessageStored: self._stored,
            LogRead: self._read,
            LogTrimmed: self._trimmed,
            CommitSeen: self._commit,
            OffsetReset: self._reset,
            TakenBack: self._taken_back,
            GroupDeclared: lambda event: None,  # processed first among events of one time
            MessageDelivered: self._delivered,
            ListenerReturned: self._returned,
            ListenerCutOff: self._cut_off,
            MemberJoined: self._joined,
            MemberLeft: self._left,
            OwnersSeen: self._owners,
            TransactionsGivenUp: self._given_up,
            CalmBegan: self._calm,
            RunEnded: self._ended,
            ProcessDied: self._died,
            BrokerDied: self._deaths.append,
            BrokerPaused: self._paused,
            Disturbed: self._disturbed,
            ClockJumped: self._jumps.append,
        }

    def declare(self, event: GroupDeclared) -> None:
        self.stories.groups[event.group] = GroupStory(event)

    def _invoked(self, event: SendInvoked) -> None:
        self.stories.sends[event.key].invoked.append(event)

    def _acknowledged(self, event: SendAcknowledged) -> None:
        self.stories.sends[event.key].acknowledged.append(event)

    def _failed(self, event: SendFailed) -> None:
        self.stories.sends[event.key].failed.append(event)

    def _decided(self, event: TransactionDecided) -> None:
        self.stories.sends[event.key].decided.append(event)

    def _stored(self, event: MessageStored) -> None:
        there = self.stories.stored[event.queue].setdefault(event.offset, event)
        if there is not event:
            if there.key != event.key:
                self.stories.clashes.append((there, event))
            return
        self.stories.sends[event.key].stored.append(event)

    def _read(self, event: LogRead) -> None:
        self.stories.reads[event.queue] = event

    def _trimmed(self, event: LogTrimmed) -> None:
        self.stories.trims.setdefault(event.queue, []).append(event)

    def _commit(self, event: CommitSeen) -> None:
        self.stories.group_of(event).queue(event.queue).commits.append(event)

    def _reset(self, event: OffsetReset) -> None:
        self.stories.group_of(event).queue(event.queue).resets.append(event)

    def _taken_back(self, event: TakenBack) -> None:
        self.stories.group_of(event).queue(event.queue).taken_back.append(event)

    def _delivered(self, event: MessageDelivered) -> None:
        delivery = Delivery(event)
        self.stories.group_of(event).queue(event.queue).deliveries.append(delivery)
        for group in (event.group, None):
            if (end := self._over.get((group, event.member))) is not None:
                self.stories.after_end.append((end, event))
                break
        self._open[event] = delivery
        self._of_member[event.member][event] = delivery

    def _returned(self, event: ListenerReturned) -> None:
        delivery = self._open.pop(event.delivery, None)
        if delivery is not None:
            delivery.end, delivery.success = event.at, event.success
            self._of_member[event.delivery.member].pop(event.delivery, None)

    def _cut_off(self, event: ListenerCutOff) -> None:
        delivery = self._open.pop(event.delivery, None)
        if delivery is not None:
            delivery.end = event.at
            self._of_member[event.delivery.member].pop(event.delivery, None)

    def _joined(self, event: MemberJoined) -> None:
        self._over.pop((event.group, event.member), None)
        self._over.pop((None, event.member), None)
        if event.group in self.stories.groups:
            self.stories.groups[event.group].changes.add(event.at, event.at)

    def _left(self, event: MemberLeft) -> None:
        self._over[event.group, event.member] = event
        if event.group in self.stories.groups:
            self.stories.groups[event.group].changes.add(event.at, event.at)
        self._close(event.member, event.at)

    def _died(self, event: ProcessDied) -> None:
        self._over[None, event.process] = event
        self.stories.disturbances.add(event.at, event.at)
        self._close(event.process, event.at)

    def _close(self, member: str, at: float) -> None:
        """Mark a member's open deliveries as ended at ``at`` with an unknown outcome."""
        for event, delivery in self._of_member.pop(member, {}).items():
            delivery.end = at
            self._open.pop(event, None)

    def _owners(self, event: OwnersSeen) -> None:
        if event.group in self.stories.groups:
            self.stories.groups[event.group].owners.append(event)

    def _given_up(self, event: TransactionsGivenUp) -> None:
        self.stories.given_up = event

    def _calm(self, event: CalmBegan) -> None:
        self.stories.calm = event

    def _ended(self, event: RunEnded) -> None:
        self.stories.ended = event

    def _paused(self, event: BrokerPaused) -> None:
        self.stories.pauses.setdefault(event.broker, []).append(event)

    def _disturbed(self, event: Disturbed) -> None:
        self.stories.disturbances.add(event.at, event.until)

    def finish(self) -> Stories:
        stories = self.stories
        for broker in {death.broker for death in self._deaths}:
            own = [death for death in self._deaths if death.broker == broker]
            stories.deaths[broker] = own
            stories.crashes[broker] = Moments((death.at, 1) for death in own)
            lost = [(death.at, 1) for death in own if death.power_lost]
            stories.power_losses[broker] = Moments(lost)
        stories.clock_forward = Moments((j.at, max(j.by_ms, 0.0)) for j in self._jumps)
        stories.disturbances.seal()
        for group in stories.groups.values():
            group.changes.seal()
            if group.declared.timeout_ms < NEVER:
                self._expire(group)
        return stories

    def _expire(self, group: GroupStory) -> None:
        """Find the calls that took too long, by clocks that may have been set forward."""
        for story in group.queues.values():
            for delivery in story.deliveries:
                at, end = delivery.event.at, delivery.end
                expires = at + group.declared.timeout_ms - CLOCK_MS
                expires -= self.stories.clock_excuse_ms(at, end)
                if expires < end:
                    delivery.expired = max(at, expires)


def sort(history: Iterable[Event]) -> Stories:
    """Sort a history into stories; events of one time keep their order."""
    events = sorted(history, key=lambda event: event.at)
    sorter = _Sorter()
    for event in events:
        if type(event) is GroupDeclared:
            sorter.declare(event)
    handlers = sorter.handlers
    for event in events:
        handler = handlers.get(type(event))
        if handler is not None:
            handler(event)
    return sorter.finish()

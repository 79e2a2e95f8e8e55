"""The evidence about a group that explains why it is behind: values, without judgement.

Pure: frozen values. None means "not known", never "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketstream.admin.core.stacks import ThreadStack
from rocketstream.admin.rows import SubscriptionRow
from rocketstream.admin.state import GroupState, GroupVerdict
from rocketstream.model import MessageQueue

AVERAGELY = "AllocateMessageQueueAveragely"
SAME_MS = 50
"""Times of one event that a member reports twice may differ by this: some add up two clocks."""


def is_same_time(one: int | None, other: int | None) -> bool:
    """Return whether two reported times are of the same event."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_MS


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """One queue inside a member; times in ms since 1970 by the member's clock.

    Attributes:
        commit_offset: the member's own progress.
        first, last: smallest and largest offset of the messages it holds; None when it holds none.
        held: how many messages it holds: waiting for a thread, or in a listener's hands.
        held_mib: the size of their bodies together, in whole MiB.
        locked: whether an orderly member has the broker's lock.
    """

    commit_offset: int
    held: int = 0
    first: int | None = None
    last: int | None = None
    held_mib: int = 0
    locked: bool = False
    dropped: bool = False
    last_pull_ms: int | None = None
    last_consume_ms: int | None = None
    last_lock_ms: int | None = None

    @property
    def finished_behind(self) -> int:
        """Messages behind the first held one that are finished; with a filter, an upper bound."""
        if self.first is None or self.last is None:
            return 0
        return max(self.last - self.first + 1 - self.held, 0)


@dataclass(frozen=True, slots=True)
class TopicRates:
    """The figures of a member in one topic, over the last minute (C-540).

    Attributes:
        consume_ms: the mean time of a listener call; over the last hour if there was no call in the
            last minute; 0 if there was none at all.
        failed_hour: messages its listener failed in the last hour.
    """

    pull_tps: float = 0.0
    consume_ms: float = 0.0
    ok_tps: float = 0.0
    failed_tps: float = 0.0
    failed_hour: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The report of one member at one moment.

    Attributes:
        taken_ms: when, ms since 1970 by the clock of the asking process.
        threads: its threads; empty where stacks were not asked for.
    """

    taken_ms: int
    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionRow, ...] = ()
    queues: Mapping[MessageQueue, HeldQueue] = field(default_factory=dict)
    rates: Mapping[str, TopicRates] = field(default_factory=dict)
    threads: tuple[ThreadStack, ...] = ()

    @property
    def is_orderly(self) -> bool:
        """Whether it consumes in order."""
        return self.properties.get("PROP_CONSUMEORDERLY") == "true"

    @property
    def pool_size(self) -> int:
        """How many threads call its listener at most."""
        return _whole(self.properties.get("PROP_THREADPOOL_CORE_SIZE"), 20)

    @property
    def batch_size(self) -> int:
        """Most messages of one listener call."""
        return _whole(self.properties.get("consumeMessageBatchMaxSize"), 1)

    @property
    def threshold(self) -> int:
        """The number of held messages of one queue that stops its pulls."""
        return _whole(self.properties.get("pullThresholdForQueue"), 1_000)

    @property
    def threshold_mib(self) -> int:
        """The MiB of held messages of one queue that stop its pulls."""
        return _whole(self.properties.get("pullThresholdSizeForQueue"), 100)

    @property
    def started_ms(self) -> int | None:
        """When it was started, by its own clock."""
        text = self.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
        return int(text) if text.isdigit() else None

    @property
    def now_ms(self) -> int | None:
        """Roughly what its clock showed, from its last activity; never later than its clock."""
        times = [
            at
            for queue in self.queues.values()
            for at in (queue.last_pull_ms, queue.last_consume_ms, queue.last_lock_ms)
            if at is not None
        ]
        return max(times, default=None)

    @property
    def divides_averagely(self) -> bool:
        """Whether it divides queues so that every queue has a member (the default)."""
        strategy = self.properties.get("allocateMessageQueueStrategy", "")
        return AVERAGELY in strategy


@dataclass(frozen=True, slots=True)
class Member:
    """One member: two looks some time apart, or why it did not answer.

    Attributes:
        first: the earlier look; None when it did not answer.
        second: the later look; None when it did not answer.
        error: why a look is None.
    """

    client_id: str
    first: Look | None = None
    second: Look | None = None
    error: str | None = None

    @property
    def look(self) -> Look | None:
        """The newer of the looks there are."""
        return self.second or self.first


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """One stored message.

    Attributes:
        queue_offset: its offset in the queue it was read from.
        reconsume_times: how often it was given back before.
        origin_topic: the topic a message in a retry topic came from.
        stored_ms: when it was stored, ms since 1970 by the broker's clock.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    keys: str | None = None
    tags: str | None = None
    stored_ms: int = 0
    reconsume_times: int = 0
    origin_topic: str | None = None


@dataclass(frozen=True, slots=True)
class LettersSeen:
    """Messages the group gave up lately, for one reason.

    Attributes:
        id: identifies the cause, as ``rocketstream dlq causes`` does.
        cause: the exception, or what is known of the letters where none was recorded.
        where: the place that raised it; None where it is not recorded.
        count: how many of the newest letters have it.
        example_key: the key of the newest of them; None where it has none.
    """

    id: str
    cause: str
    where: str | None
    count: int
    example_key: str | None = None


@dataclass(frozen=True, slots=True)
class FilterSeen:
    """Which of the newest messages of a topic a group's filter matches.

    Attributes:
        expression: the members' subscription: tags, or a condition.
        examined: how many messages were looked at.
        matching: how many of them the filter matches, by the broker's hash of the tag or by the
            broker's evaluation of the condition; with a condition the search ends at the first
            match.
        tags: the tags of some of them, as text; ``None`` for messages without one.
        names: the properties the condition names.
        properties: the properties that some of them have.
    """

    topic: str
    expression: str
    examined: int
    matching: int
    tags: tuple[str | None, ...] = ()
    expression_type: str = "TAG"
    names: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All answers about a group.

    Attributes:
        state: the group at the time of the later look.
        earlier: the group at the time of the earlier look; None when it was asked once.
        verdict: the verdict of the window, or of these two states.
        members: what each member reported.
        permissions: ``RW``, ``R``, ``W`` or empty, by topic and broker name, as clients see it.
        messages: the message each queue stands at, where it could be read.
        failed: the newest messages of the retry topic, and those at the group's offset.
        letters: the newest dead letters by cause, of the last minutes.
        arrival_tps: messages a second sent to a topic over the last minute, all brokers together;
            a topic that no broker reported is absent.
        filters: the findings about each filter that was looked into.
        min_stored_ms: when the oldest message kept was stored, by queue.
        unknown: what could not be asked, and why.
        paused_at: brokers that give the group nothing (``consumeEnable=false``).
    """

    state: GroupState
    verdict: GroupVerdict
    earlier: GroupState | None = None
    members: tuple[Member, ...] = ()
    permissions: Mapping[tuple[str, str], str] = field(default_factory=dict)
    messages: Mapping[MessageQueue, MessageFacts] = field(default_factory=dict)
    failed: tuple[MessageFacts, ...] = ()
    arrival_tps: Mapping[str, float] = field(default_factory=dict)
    filters: Mapping[str, FilterSeen] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    letters: tuple[LettersSeen, ...] = ()
    paused_at: tuple[str, ...] = ()


def _whole(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.strip().isdigit() else otherwise

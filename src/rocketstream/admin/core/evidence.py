"""Evidence about a group, read from the answers of brokers and members: values, without judgement.

Pure: frozen values; peers' names and encodings end here. None means "not known", never "none".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketstream.admin.core.joining import running_queue, subscription_rows
from rocketstream.admin.core.words import named
from rocketstream.admin.rows import RunningQueueRow, SubscriptionRow
from rocketstream.admin.state import GroupState, QueueKind, QueueState
from rocketstream.errors import SubscriptionError
from rocketstream.model import RESERVED_PROPERTIES, MessageQueue
from rocketstream.protocol.names import LISTENER_THREAD_PREFIX, THREAD_GROUP_CHARS_MAX
from rocketstream.protocol.sql92 import property_names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerRunningInfo, ConsumeStatus
    from rocketstream.protocol.message_ext import MessageExt

RATES_MIN_MS = 400
"""Two states closer together than this give no rate."""
AVERAGELY = "AllocateMessageQueueAveragely"
SAME_MS = 50
"""Times of one event that a member reports twice may differ by this: some add up two clocks."""


def is_same_time(one: int | None, other: int | None) -> bool:
    """Return whether two reported times are of the same event."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_MS


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
    queues: Mapping[MessageQueue, RunningQueueRow] = field(default_factory=dict)
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
        return _number(self.properties.get("PROP_CONSUMER_START_TIMESTAMP"))

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
    def finished_ms(self) -> int:
        """When it finished a message last, by its own clock; 0 where it told nothing."""
        return max((q.last_consume_ms or 0 for q in self.queues.values()), default=0)

    @property
    def finished_ago_ms(self) -> int:
        """How long ago that was."""
        return (self.now_ms or 0) - self.finished_ms

    @property
    def ran_ms(self) -> int | None:
        """How long it has run, by its own clock."""
        started_ms, now_ms = self.started_ms, self.now_ms
        return None if started_ms is None or now_ms is None else now_ms - started_ms

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
        members: what each member reported.
        permissions: ``RW``, ``R``, ``W`` or empty, by topic and broker name, as clients see it.
        messages: the message each queue stands at, where it could be read.
        failed: the newest messages of the retry topic, and those at the group's offset.
        letters: the newest dead letters by cause, of the last minutes.
        arrival_tps: messages a second sent to a topic over the last minute, all brokers together;
            a topic that no broker reported is absent.
        filters: the findings about each filter that was looked into.
        unknown: what could not be asked, and why.
        paused_at: brokers that give the group nothing (``consumeEnable=false``).
    """

    state: GroupState
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


# --- answers --------------------------------------------------------------------------------------


def look_of(info: ConsumerRunningInfo, taken_ms: int) -> Look:
    """Return the content of a member's running info (307)."""
    return Look(
        taken_ms,
        dict(info.properties),
        subscription_rows(info.subscription_set),
        {queue: running_queue(queue, each) for queue, each in info.mq_table.items()},
        {topic: _rates(status) for topic, status in info.status_table.items()},
        threads_of(info.jstack),
    )


def message_of(message: MessageExt, queue: QueueState) -> MessageFacts:
    """Return the facts about a stored message; a retried one is under its first id."""
    properties = message.properties
    return MessageFacts(
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
        message.msg_id or message.offset_msg_id,
        message.keys or None,
        message.tags or None,
        message.store_timestamp,
        message.reconsume_times,
        properties.get("RETRY_TOPIC"),
    )


def tags_seen(row: SubscriptionRow, tags: Sequence[str | None]) -> FilterSeen:
    """Return how many of a topic's newest tags a group's subscription matches."""
    wanted = {tag.strip() for tag in row.expression.split("||")}
    matching = sum(tag in wanted for tag in tags)
    return FilterSeen(row.topic, row.expression, len(tags), matching, tuple(dict.fromkeys(tags)))


def condition_seen(row: SubscriptionRow, found: Sequence[Mapping[str, str]]) -> FilterSeen:
    """Return the properties a condition names and messages have; nothing is evaluated yet."""
    try:
        wanted = property_names(row.expression)
    except SubscriptionError:
        wanted = ()  # the condition uses a grammar we do not read
    has = tuple(sorted({name for properties in found for name in properties}))
    users = tuple(name for name in has if name in wanted or name not in RESERVED_PROPERTIES)
    return FilterSeen(
        row.topic,
        row.expression,
        0,
        0,
        expression_type=row.expression_type,
        names=wanted,
        properties=users,
    )


def arrival_tps(first: GroupState, second: GroupState) -> dict[str, float]:
    """Return messages a second that came into each topic between two states."""
    took_ms = second.taken_ms - first.taken_ms
    if took_ms < RATES_MIN_MS:
        return {}
    ends = {queue.key: queue.max_offset for queue in first.queues}
    found: dict[str, float] = {}
    for queue in second.of_kind(QueueKind.TOPIC):
        before = ends.get(queue.key)
        if before is not None and queue.max_offset is not None:
            came = max(queue.max_offset - before, 0)
            found[queue.topic] = found.get(queue.topic, 0.0) + came * 1_000 / took_ms
    return found


def not_told(evidence: Evidence) -> Iterable[str]:
    """Yield the facts about this group that no answer has."""
    state = evidence.state
    if state.message_model == "BROADCASTING":
        yield "a broadcasting group's progress is at its members, each has its own"
    if state.members == () and not state.of_kind(QueueKind.RETRY) and (state.lag or 0) > 0:
        yield (
            "no member of the group ever connected: whether the Spark query or pull program that "
            "commits for it runs is not visible"
        )
    if state.queues_unknown:
        untold = next((q.error for q in state.queues if q.lag is None and q.error), None)
        yield (
            f"the lag of {state.queues_unknown} of its queues"
            f"{f': {untold}' if untold else ': nothing was committed there yet'}"
        )
    for member in evidence.members:
        look = member.look
        if look is not None and not look.threads and any(q.cached for q in look.queues.values()):
            yield (
                f"what the threads of {named(member.client_id, 'a member')} do: it holds messages "
                "and told no stacks, so a slow listener or a starved pool cannot be seen"
            )


def _rates(status: ConsumeStatus) -> TopicRates:
    return TopicRates(
        status.pull_tps,
        status.consume_rt,
        status.consume_ok_tps,
        status.consume_failed_tps,
        status.consume_failed_msgs,
    )


def _whole(text: str | None, otherwise: int) -> int:
    number = _number(text)
    return otherwise if number is None else number


def _number(text: str | None) -> int | None:
    """Return a number that a member told of itself; None for anything else it says."""
    digits = "" if text is None else text.strip()
    return int(digits) if re.fullmatch(r"[0-9]{1,18}", digits) else None


# --- stacks ---------------------------------------------------------------------------------------


STACK_LINES_MAX = 12
# A member writes what it likes: a pattern that looks twice at a character takes hours for a line.
_JAVA_THREAD = re.compile(r"^(?P<name>.*?)TID: (?P<id>-?\d+) STATE: (?P<state>\w+)\s*$")
_OUR_THREAD = re.compile(
    r'^"(?P<name>.*)"(?:(?: daemon)? TID: (?P<id>\d+)| (?P<task>asyncio task))\s*$'
)
_OUR_FRAME = "    at "
_JAVA_RUN = ("ConsumeMessageConcurrentlyService$ConsumeRequest.run",
             "ConsumeMessageOrderlyService$ConsumeRequest.run")  # fmt: skip
_JAVA_CLIENT = "org.apache.rocketmq.client.impl.consumer."
_JAVA_OWN = ("java.", "javax.", "jdk.", "sun.", "com.sun.")
_JAVA_MODULE = re.compile(r"^(?:[\w.-]*(?:@[\w.+-]+)?/){1,2}(?=[\w$.]+\()")
"""The prefix a frame's class may have: ``app//``, ``java.base@17.0.1/``."""
_OUR_CALLER = re.compile(r"[/\\]rocketstream[/\\]client[/\\]consumer[/\\]consume[/\\]")
_PYTHON_OWN = re.compile(
    r"[/\\](?:lib[/\\]python3[^/\\]*|Lib)[/\\](?!site-packages|dist-packages)|^<"
)


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, or one asyncio task of a Python member.

    Attributes:
        frames: its stack, the innermost frame first.
        state: its state in Java's terms (``TIMED_WAITING``); None for a Python thread.
        listener: the part of ``frames`` in the user's listener and its callees; empty while the
            thread is in no listener.
        is_task: whether it is an asyncio task.
    """

    name: str
    frames: tuple[str, ...]
    state: str | None = None
    listener: tuple[str, ...] = ()
    is_task: bool = False

    @property
    def place(self) -> str | None:
        """The innermost place in the user's own code, otherwise the innermost of all."""
        if not self.listener:
            return None
        own = (frame for frame in self.listener if not _is_library(frame))
        return next(own, self.listener[0])

    def text(self) -> str:
        """Return the listener's part of the stack, line by line."""
        shown = self.listener or self.frames
        state = f" ({self.state})" if self.state else ""
        lines = [f"{self.name}{state}", *(f"    at {frame}" for frame in shown[:STACK_LINES_MAX])]
        if len(shown) > STACK_LINES_MAX:
            lines.append(f"    and {len(shown) - STACK_LINES_MAX} frames more")
        return "\n".join(lines)


def threads_of(text: str | None) -> tuple[ThreadStack, ...]:
    """Return the threads of a running info's stacks (``jstack``), in its order."""
    found: list[tuple[str, str | None, bool, list[str]]] = []
    for line in (text or "").splitlines():
        java, ours = _JAVA_THREAD.match(line), _OUR_THREAD.match(line)
        if ours:
            found.append((ours["name"], None, ours["task"] is not None, []))
        elif java:
            found.append((java["name"].rstrip(" "), java["state"], False, []))
        elif found and (frame := _frame(line, found[-1][0])):
            found[-1][3].append(frame)
    return tuple(
        ThreadStack(name, tuple(frames), state, _listener_part(frames), is_task)
        for name, state, is_task, frames in found
    )


def busy_listeners(threads: Iterable[ThreadStack], group: str) -> tuple[ThreadStack, ...]:
    """Return the threads that are inside a listener of this group."""
    prefix = f"{LISTENER_THREAD_PREFIX}{group[:THREAD_GROUP_CHARS_MAX]}_"
    return tuple(t for t in threads if t.listener and t.name.startswith(prefix))


def places(threads: Sequence[ThreadStack]) -> list[tuple[str, int]]:
    """Return the places in the user's code where threads stand with their number, most first."""
    found = Counter(thread.place for thread in threads if thread.place)
    return sorted(found.items(), key=lambda each: (-each[1], each[0]))


def _frame(line: str, thread: str) -> str | None:
    if line.startswith(_OUR_FRAME):
        name, _, place = line.removeprefix(_OUR_FRAME).rstrip().rpartition(" (")
        file, _, number = place.removesuffix(")").rpartition(":")
        if name and file and place.endswith(")") and number.isdecimal():
            return f"{name} ({place}"
    # Java's client writes the thread's name, padded to 40, before each frame.
    if thread and line.startswith(thread):
        return _JAVA_MODULE.sub("", line[len(thread) :].strip()) or None
    return None


def _listener_part(frames: Sequence[str]) -> tuple[str, ...]:
    """Return the frames above the client's own: the listener and its callees.

    A listener may use a client itself, so the frame that calls listeners is searched for.
    """
    for index, frame in enumerate(frames):
        if _OUR_CALLER.search(frame):
            return tuple(frames[:index])
        if any(run in frame for run in _JAVA_RUN):
            own = index == 0 or frames[index - 1].startswith(_JAVA_CLIENT)
            return () if own else tuple(frames[:index])
    return ()


def _is_library(frame: str) -> bool:
    if frame.startswith(_JAVA_OWN):
        return True
    file = frame.rpartition(" (")[2]
    return bool(_PYTHON_OWN.search(file))

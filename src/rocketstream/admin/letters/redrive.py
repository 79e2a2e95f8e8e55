"""The redrive of dead letters to where they came from: planned, paced, and resumed where it ended.

Law: at least once. A letter counts as done only when its copy is stored. The place of a redrive is
kept at the brokers, as the offsets of a group that nobody joins.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketstream._util.clock import Clock
from rocketstream.admin.core.again import (
    PROGRESS_GROUP,
    LetterFilter,
    again,
    place_of,
    progress_group,
    target_topic,
)
from rocketstream.admin.core.lag import groups_of_offsets
from rocketstream.admin.letters.hold import QueueLock
from rocketstream.admin.letters.sent_before import SentBefore
from rocketstream.admin.messages.shown import Showing
from rocketstream.admin.service import Service, question
from rocketstream.client.producer.policy import unsafe
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.model import Message, MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from rocketstream.client.producer.producer import Producer

logger = logging.getLogger("rocketstream.admin")

SHOWN_MAX = 10
"""How many letters a plan shows."""
PULL_MAX = 32
"""Most messages in one answer of an Apache broker."""
SAVED_AFTER = 32
SAVED_AFTER_MS = 1_000
"""The place is kept after this many letters or this long: the most a crash sends twice."""
SHARDING_KEY = "__SHARDINGKEY"

OnSent = Callable[[MessageExt, Message], None]


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """The letters a redrive would send; ``redrive(…, as_shown=plan)`` sends these and no others.

    Attributes:
        group: the group whose dead letters are sent.
        progress: the group whose offsets keep the place.
        ranges: begin and end (exclusive) of each queue of the dead-letter topic that was gone
            through: the selected letters are those the filter matches there. With ``limit`` they
            end behind the last one.
        letters: how many are selected; no more than ``limit``.
        by_topic: how many go to each topic; None stands for letters whose origin is unknown.
        shown: the first selected letters, masked.
        left_out: how many letters of the ranges the filter does not match.
        problems: why it would be refused: topics nobody has, letters without an origin.
        earlier: other redrives of this topic that kept a place. Letters they sent are not sent
            again, unless ``progress`` names a place of its own.
        already_sent: how many selected letters were found in the topic they would be sent to.
        wanted: the filter.
        to: the topic to send to; None for the one each letter was consumed from.
    """

    group: str
    progress: str
    ranges: Mapping[MessageQueue, tuple[int, int]]
    letters: int
    by_topic: Mapping[str | None, int]
    shown: tuple[MessageExt, ...]
    left_out: int
    problems: tuple[str, ...]
    earlier: tuple[str, ...]
    already_sent: int = 0
    wanted: LetterFilter = field(default_factory=LetterFilter)
    to: str | None = None


@dataclass(slots=True)
class RedriveResult:
    """The letters a redrive sent.

    Attributes:
        by_topic: how many letters were sent to each topic.
        odd: how many letters were stored with a status other than SEND_OK, by send status
            (``FLUSH_DISK_TIMEOUT`` and the like). The place stays before the first of each queue:
            the next run sends again those whose messages are not there.
        is_complete: whether all selected letters are sent, and safe; False after ``limit``, when
            stopped, and with ``odd`` ones.
        already_sent: how many letters were found in the topic they would have been sent to, and
            left alone.
    """

    by_topic: dict[str, int] = field(default_factory=dict)
    odd: dict[str, int] = field(default_factory=dict)
    is_complete: bool = False
    already_sent: int = 0

    @property
    def sent(self) -> int:
        """Letters sent."""
        return sum(self.by_topic.values())


class Pace:
    """Limits events to a rate.

    Args:
        rate: events a second, None for no bound.
        clock: measures.
        wait: called with the number of seconds to wait.
    """

    def __init__(self, rate: float | None, clock: Clock, wait: Callable[[float], object]) -> None:
        self._step_ms = 0.0 if rate is None else 1_000 / rate
        self._clock = clock
        self._wait = wait
        self._due = clock.monotonic_ms()

    def next(self) -> None:
        """Wait until the next event may happen; unused time is not saved up."""
        now = self._clock.monotonic_ms()
        if now < self._due:
            self._wait((self._due - now) / 1_000)
        self._due = max(now, self._due) + self._step_ms


class RedriveAdmin(Service):
    """The operations of ``Admin.letters`` that send dead letters again."""

    @functools.cached_property
    def _showing(self) -> Showing:
        return Showing(self._reach.masking)

    @question
    def redrive_plan(
        self,
        group: str,
        wanted: LetterFilter | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        progress: str | None = None,
    ) -> RedrivePlan:
        """Return what ``redrive`` would send; changes nothing.

        Reads the dead letters that were not sent before, until ``limit`` are selected.

        Args:
            group: the consumer group.
            wanted: which of its dead letters; None for all.
            to: the topic to send to; None for the one each letter was consumed from. The group's
                own retry topic (``%RETRY%`` and its name) makes only this group consume them again.
            limit: how many letters to send at most.
            progress: the group whose offsets keep the place; None for one derived from the
                selection.

        Raises:
            RouteNotFoundError: the group has no dead letters.
            ConfigurationError: a name or the limit cannot be used.
        """
        run = self._located(self._run(group, wanted, to, limit, progress))
        ranges = run.ranges
        shown: list[MessageExt] = []
        by_topic: dict[str | None, int] = {}
        earlier = tuple(self._earlier(run))
        sent = SentBefore(self._wire, group, to, progress, others=bool(earlier))
        left_out = already = 0
        for letter, is_wanted in self._letters(run):
            if not is_wanted:
                left_out += 1
                continue
            if sent.has(letter):
                already += 1
                continue
            topic = target_topic(letter, to)
            by_topic[topic] = by_topic.get(topic, 0) + 1
            if len(shown) < SHOWN_MAX:
                shown.append(self._showing.masked(letter))
            if sum(by_topic.values()) == limit:
                ranges = run.up_to(letter)
                break
        return RedrivePlan(
            group=group,
            progress=run.progress,
            ranges=ranges,
            letters=sum(by_topic.values()),
            by_topic=by_topic,
            shown=tuple(shown),
            left_out=left_out,
            problems=tuple(self._problems(by_topic)),
            earlier=earlier,
            already_sent=already,
            wanted=run.wanted,
            to=to,
        )

    @question  # awaited, it may be cancelled: it ends between two letters and keeps its place
    def redrive(
        self,
        group: str,
        wanted: LetterFilter | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        progress: str | None = None,
        as_shown: RedrivePlan | None = None,
        rate: float | None = None,
        producer: Producer | None = None,
        on_sent: OnSent | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> RedriveResult:
        """Send dead letters again, and keep the place; blocks until it is done.

        Sends only letters that exist when it begins, so that a letter that dies again is not sent
        in a circle. Only one redrive of a group runs at a time, for any selection; the brokers keep
        others out. After an interruption or a failure the next call with the same selection
        continues behind the last letter sent. The place is kept every 32 letters or every second.
        Letters sent after that before a crash are found in the target topic by the sender's id and
        left alone; only letters without an id, or at brokers without a key index, are then sent
        twice.

        Args:
            group: the consumer group.
            wanted: which of its dead letters; None for all.
            to: as for ``redrive_plan``.
            limit: how many letters to send at most.
            progress: as for ``redrive_plan``.
            as_shown: the plan that was shown, of the same selection and target: only its letters
                are sent, and none that the group gave up since. None sends all there are.
            rate: how many messages a second to send at most; None for no bound.
            producer: sends the letters; None makes one that connects to the cluster as this Admin
                does.
            on_sent: called with each letter and the message that is stored for it, both masked.
            should_stop: asked before each letter is sent; the redrive ends when it returns true,
                and another one continues there.

        Raises:
            RouteNotFoundError: the group has no dead letters.
            ReadOnlyError: this Admin is read-only.
            ClientStateError: another redrive of the group is under way, or continued in place of
                this one while it was paused; or the letters of ``as_shown`` are no longer there.
            ConfigurationError: a topic to send to does not exist, or a letter does not name its
                origin; the letters before it are sent.
            SendError: a letter could not be sent, or it is not known whether it was sent.
        """
        if rate is not None and not rate > 0:
            raise ConfigurationError(f"rate is {rate}; it takes messages a second above 0")
        # Imported here: with the module, the engine behind it would double the start time of every
        # command.
        from rocketstream.client.producer.producer import Producer

        self._changes.check("dlq.redrive")
        run = self._run(group, wanted, to, limit, progress)
        if as_shown is not None:
            run.check_of(as_shown)
        result = RedriveResult()
        arguments = {"group": group, "wanted": str(wanted), "to": to, "limit": limit, "rate": rate}
        with ExitStack() as cleanup:
            change = cleanup.enter_context(self._changes.open("dlq.redrive", arguments))
            cleanup.callback(lambda: setattr(change, "after", {"sent": result.sent}))
            hold = cleanup.enter_context(self._hold(run))
            run = self._located(run, as_shown)
            sender = producer or cleanup.enter_context(
                Producer(
                    PROGRESS_GROUP,
                    retry_another_broker_when_not_store_ok=True,
                    **self._reach.producer_settings,
                )
            )
            pace = Pace(rate, self._clock, hold.wait)
            store = change.wire.store_offset_making_group
            place = cleanup.enter_context(_Place(run, hold, store, self._clock))
            others = any(self._earlier(run))
            before = SentBefore(self._wire, group, to, progress, others=others)
            for letter, is_wanted in self._letters(run):
                hold.keep()
                if is_wanted:
                    if result.sent == limit or (should_stop is not None and should_stop()):
                        return result
                    if before.has(letter):
                        result.already_sent += 1
                        place.passed(letter)
                        continue
                    pace.next()
                    message, is_safe = self._send(run, letter, sender, result)
                    place.passed(letter) if is_safe else place.stays_before(letter)
                    if on_sent is not None:
                        on_sent(*self._masked_pair(run, letter, message))
                else:
                    place.passed(letter)
            place.ended()
        result.is_complete = not result.odd
        return result

    # --- parts -----------------------------------------------------------------------------------

    def _masked_pair(
        self, run: _Run, letter: MessageExt, message: Message
    ) -> tuple[MessageExt, Message]:
        shown = self._showing.masked(letter)
        return (
            (letter, message)
            if shown is letter
            else (shown, again(run.group, shown, run.to, run.by))
        )

    def _run(
        self,
        group: str,
        wanted: LetterFilter | None,
        to: str | None,
        limit: int | None,
        progress: str | None,
    ) -> _Run:
        names.check_consumer_group(group)
        if to is not None:
            names.check_topic(to)
        if limit is not None and limit < 1:
            raise ConfigurationError(f"limit is {limit}; it takes a number of letters from 1")
        wanted = wanted or LetterFilter()
        keeper = progress or progress_group(wanted, to)
        names.check_consumer_group(keeper)
        topic = names.dlq_topic(group)
        if to == topic:
            raise ConfigurationError(
                f"to is {to!r}, the topic the dead letters are in: name another"
            )
        try:
            queues = self._client.subscribe_queues(topic, refresh=True)
        except RouteNotFoundError:
            raise RouteNotFoundError(
                f"group {group!r} has no dead letters: there is no topic {topic!r}", topic=topic
            ) from None
        if not queues:
            raise ConfigurationError(
                f"topic {topic!r} cannot be read: no broker grants it read permission; "
                f"`rocketstream topic create '{topic}' --queues 1` does",
                topic=topic,
            )
        return _Run(group, topic, wanted, to, keeper, progress, tuple(queues))

    def _located(self, run: _Run, plan: RedrivePlan | None = None) -> _Run:
        """Return a run with the ranges to go through: from its place to the present ends.

        With a plan it is to the ends of what the plan showed, and not before that.
        """
        low, high = self._client.min_offsets(run.queues), self._client.max_offsets(run.queues)
        ranges: dict[MessageQueue, tuple[int, int]] = {}
        for queue in run.queues if plan is None else plan.ranges:
            first, end = (0, high[queue]) if plan is None else plan.ranges[queue]
            if end > high.get(queue, -1):
                raise ClientStateError(
                    f"the dead letters of {run.group} are no longer those that were shown: "
                    f"{queue} was deleted meanwhile. Look again",
                    group=run.group,
                )
            stored = self._client.query_consumer_offset(run.progress, queue) or 0
            # An offset beyond the end is the place in a topic that has been deleted since.
            begin = low[queue] if stored > high[queue] else max(stored, low[queue])
            ranges[queue] = (min(max(begin, first), end), end)
        return dataclasses.replace(run, ranges=ranges)

    def _hold(self, run: _Run) -> QueueLock:
        # One lock for all selections: two that overlap would send the letters of both twice.
        what = f"a redrive of the dead letters of {run.group}"
        return QueueLock(self._wire, self._client, PROGRESS_GROUP, run.queues, what, self._clock)

    def _letters(self, run: _Run) -> Iterator[tuple[MessageExt, bool]]:
        """Yield each letter of the ranges and whether it is wanted, queue by queue."""
        for queue, (begin, end) in run.ranges.items():
            at = begin
            while at < end:
                address = self._client.address(queue.broker_name)
                # Not as the group that keeps the place: brokers create a group when it pulls.
                found, at = self._wire.pull(
                    address, names.TOOLS_CONSUMER_GROUP, queue, at, PULL_MAX
                )
                for letter in found:
                    if letter.queue_offset < end:
                        letter._broker_name = queue.broker_name
                        yield letter, run.wanted.wants(letter)

    def _send(
        self, run: _Run, letter: MessageExt, sender: Producer, result: RedriveResult
    ) -> tuple[Message, bool]:
        """Send a letter; return its message, and whether it is stored safely."""
        message = again(run.group, letter, run.to, run.by)
        if message.topic not in result.by_topic:
            # A broker may create a missing topic, and nobody would consume such a topic.
            problem = self._problem(message.topic)
            if problem is not None:
                raise ConfigurationError(f"{problem}; {place_of(run.group, letter)} is the next")
        key = message.properties.get(SHARDING_KEY)
        stored = sender.send(message, sharding_key=key)
        result.by_topic[message.topic] = result.by_topic.get(message.topic, 0) + 1
        doubt = unsafe(stored)
        if doubt is not None:
            logger.warning("%s: %s", place_of(run.group, letter), doubt)
            status = stored.send_status.value
            result.odd[status] = result.odd.get(status, 0) + 1
        return message, doubt is None

    def _problems(self, by_topic: Mapping[str | None, int]) -> Iterator[str]:
        for topic, count in by_topic.items():
            if topic is None:
                yield f"letters that do not tell which topic they were consumed from: {count}"
            elif (problem := self._problem(topic)) is not None:
                yield problem

    def _problem(self, topic: str) -> str | None:
        try:
            self._wire.route(topic)
        except RouteNotFoundError:
            return f"topic {topic!r} does not exist any more"
        return None

    def _earlier(self, run: _Run) -> Iterator[str]:
        tables = self._wire.offset_tables(self._wire.masters()) or {}
        for group, topics in sorted(groups_of_offsets(tables).items()):
            if group.startswith(PROGRESS_GROUP) and group != run.progress and run.topic in topics:
                yield group


@dataclass(frozen=True, slots=True)
class _Run:
    """One redrive with its settings."""

    group: str
    topic: str
    wanted: LetterFilter
    to: str | None
    progress: str
    by: str | None
    queues: tuple[MessageQueue, ...]
    ranges: Mapping[MessageQueue, tuple[int, int]] = field(default_factory=dict)

    def over(self, ranges: Mapping[MessageQueue, tuple[int, int]]) -> _Run:
        """Return the same run over other ranges."""
        return dataclasses.replace(self, ranges=ranges)

    def up_to(self, letter: MessageExt) -> dict[MessageQueue, tuple[int, int]]:
        """Return the ranges as far as they are gone through when a letter is the last one."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        for queue, (begin, end) in self.ranges.items():
            if (queue.broker_name, queue.queue_id) == (letter.broker_name, letter.queue_id):
                found[queue] = (begin, letter.queue_offset + 1)
                break
            found[queue] = (begin, end)
        return found

    def check_of(self, plan: RedrivePlan) -> None:
        """Raise ConfigurationError if a plan is of another redrive than this one."""
        mine = (self.group, self.wanted, self.to, self.progress)
        if mine != (plan.group, plan.wanted, plan.to, plan.progress):
            raise ConfigurationError(
                f"as_shown is a plan for group {plan.group!r}, {plan.wanted}, to {plan.to}, place "
                f"{plan.progress}: give the redrive the same",
                group=self.group,
            )


class _Place:
    """The place of a redrive; kept at the brokers from time to time, and whenever it ends."""

    def __init__(
        self,
        run: _Run,
        hold: QueueLock,
        store: Callable[[str, MessageQueue, int], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._run = run
        self._hold = hold
        self._clock = clock
        self._changed: dict[MessageQueue, int] = {}
        self._stays: set[MessageQueue] = set()
        self._count = 0
        self._saved_at = clock.monotonic_ms()

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._hold.is_lost:
            return  # another redrive keeps the place now, and may be farther
        try:
            self.save()
        except RocketMQError as error:
            if kind is None:
                raise
            # The first error matters; a lost place costs some letters sent twice.
            logger.warning("the place of the redrive could not be kept: %s", error)

    def passed(self, letter: MessageExt) -> None:
        """Note that a letter is done."""
        queue = self._queue_of(letter)
        if queue not in self._stays:
            self._changed[queue] = letter.queue_offset + 1
        self._count += 1
        late = self._clock.monotonic_ms() - self._saved_at >= SAVED_AFTER_MS
        if self._count >= SAVED_AFTER or late:
            self.save()

    def stays_before(self, letter: MessageExt) -> None:
        """Note that the next run must look for a letter, and for those of its queue behind it."""
        self._stays.add(self._queue_of(letter))

    def ended(self) -> None:
        """Note that all ranges are done, also where they end in letters that no longer exist."""
        for queue, (_, end) in self._run.ranges.items():
            if queue not in self._stays:
                self._changed[queue] = end

    def _queue_of(self, letter: MessageExt) -> MessageQueue:
        return MessageQueue(self._run.topic, letter.broker_name, letter.queue_id)

    def save(self) -> None:
        """Store the place at the brokers."""
        for queue, offset in self._changed.items():
            self._store(self._run.progress, queue, offset)
        self._changed.clear()
        self._count = 0
        self._saved_at = self._clock.monotonic_ms()

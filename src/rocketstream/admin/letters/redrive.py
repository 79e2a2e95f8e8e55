"""The redrive of dead letters to where they came from: planned, paced, and resumed where it ended.

Law: at least once. A letter counts as done only when its copy is stored, and as sent before only
where that copy was seen. The place of a redrive is kept at the brokers, as the offsets of a group
that nobody joins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rocketstream._util.clock import Clock
from rocketstream._util.stopping import check_stop, wait_unless_stopped
from rocketstream.admin.core.joining import groups_of_offsets
from rocketstream.admin.letters.causes import (
    PROGRESS_GROUP,
    LetterFilter,
    again,
    place_of,
    progress_group,
    target_topic,
    times_of_next,
)
from rocketstream.admin.messages.lookup import Lookup
from rocketstream.admin.messages.shown import Showing
from rocketstream.admin.service import Reach
from rocketstream.admin.wire import questions
from rocketstream.client.config import new_uuid
from rocketstream.client.producer.policy import unsafe
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.limits import LOCK_GRACE_MS
from rocketstream.model import Message, MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import (
    PROPERTY_REDRIVEN_BY,
    PROPERTY_REDRIVEN_FROM,
    PROPERTY_REDRIVEN_TIMES,
    PROPERTY_UNIQ_KEY,
)

if TYPE_CHECKING:
    from rocketstream.client.producer.producer import Producer

logger: logging.Logger = logging.getLogger("rocketstream.admin")

SHOWN_MAX: Final = 10
"""How many letters a plan shows."""
SAVED_AFTER: Final = 32
SAVED_AFTER_MS: Final = 1_000
"""The place is kept after this many letters or this long: the most a crash sends twice."""
SHARDING_KEY: Final = "__SHARDINGKEY"
RENEWED_AFTER_MS: Final = 1_000
"""How soon a lost lock is noticed: an Apache broker that restarts forgets its locks."""
TRUSTED_MS: Final = LOCK_GRACE_MS
"""Half of the time brokers grant, the time for which consumers trust a lock too."""
SLICE_MS: Final = 10_000
_ASKED_MAX: Final = 3
_AGAIN_AFTER_S: Final = 0.2
_COPIES_MAX: Final = 32

OnSent = Callable[[MessageExt, Message], None]
Ranges = Mapping[MessageQueue, tuple[int, int]]
"""Begin and end (exclusive) by queue."""


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


class RedriveLock:
    """The queues of one group's dead letters, locked for this program; used by one thread.

    The locks are the brokers' own (codes 41 and 42), which end a minute after a crash. All
    redrives use the same: two whose selections overlap would send the letters of both twice.

    Raises:
        ClientStateError: on entry: another client holds one of the queues.
        TransportError, BrokerError, RouteNotFoundError: on entry: a broker did not answer.
    """

    def __init__(self, reach: Reach, group: str, queues: Collection[MessageQueue]) -> None:
        self._wire = reach.wire
        self._client = reach.client
        self._group = group
        self._clock = reach.clock
        self._id = new_uuid()
        self._by_broker: dict[str, set[MessageQueue]] = {}
        # Everybody locks in the same order: of two programs one gets the first broker's queues.
        for queue in sorted(queues):
            self._by_broker.setdefault(queue.broker_name, set()).add(queue)
        self._renewed_at = 0.0
        self._is_lost = False

    def __enter__(self) -> Self:
        try:
            for _ in range(_ASKED_MAX):
                if self._take():
                    return self
                # A broker that was slow to record a lock grants it when it is asked again.
                threading.Event().wait(_AGAIN_AFTER_S)
        except BaseException:
            self._give_back()
            raise
        self._give_back()
        raise ClientStateError(
            f"a redrive of the dead letters of {self._group} is under way already: wait for its "
            "end, or stop it. After one that crashed, or a broker that restarted, the brokers keep "
            "others out for a minute",
            group=self._group,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._give_back()

    @property
    def is_lost(self) -> bool:
        """Whether others may have the queues by now: then nothing may be done with them any more.

        So it is where this program was stopped for too long, before it could notice.
        """
        return self._is_lost or self._age_ms() > TRUSTED_MS

    def keep(self) -> None:
        """Renew locks that are no longer fresh; call it before anything is done with the queues.

        Raises:
            ClientStateError: another client has one of the queues, or may have had it meanwhile.
            TransportError, BrokerError, RouteNotFoundError: a broker could not be asked.
        """
        check_stop()
        age_ms = self._age_ms()
        if age_ms < RENEWED_AFTER_MS and not self.is_lost:
            return
        if self.is_lost or not self._take():
            self._is_lost = True
            raise ClientStateError(
                f"a redrive of the dead letters of {self._group} has stopped: it stood still for "
                f"{age_ms / 1000:.0f} s or a broker restarted, and another one may have gone on in "
                "its place. Run it again, it goes on where it is",
                group=self._group,
            )

    def wait(self, seconds: float) -> None:
        """Wait, renewing the locks meanwhile; raises as ``keep`` does."""
        end = self._clock.monotonic_ms() + seconds * 1000
        while (left := end - self._clock.monotonic_ms()) > 0:
            wait_unless_stopped(min(left, SLICE_MS) / 1000)
            self.keep()

    def _age_ms(self) -> float:
        return self._clock.monotonic_ms() - self._renewed_at

    def _take(self) -> bool:
        asked_at = self._clock.monotonic_ms()
        for broker_name, queues in self._by_broker.items():
            address = self._client.address(broker_name)
            if not queues <= self._wire.ask(
                address, questions.lock_of(PROGRESS_GROUP, self._id, queues)
            ):
                return False
        self._renewed_at = asked_at
        return True

    def _give_back(self) -> None:
        for broker_name, queues in self._by_broker.items():
            try:
                address = self._client.address(broker_name)
                self._wire.ask(address, questions.unlock_of(PROGRESS_GROUP, self._id, queues))
            except RocketMQError as error:
                logger.info("queues not given back to broker=%s: %s", broker_name, error)


class Redrive:
    """The redrive of a selection of one group's dead letters.

    The arguments are those of ``Letters.redrive_plan``.

    Raises:
        RouteNotFoundError: the group has no dead letters.
        ConfigurationError: a name or the limit cannot be used.
    """

    def __init__(
        self,
        reach: Reach,
        showing: Showing,
        group: str,
        wanted: LetterFilter | None = None,
        to: str | None = None,
        limit: int | None = None,
        progress: str | None = None,
    ) -> None:
        names.check_consumer_group(group)
        if to is not None:
            names.check_topic(to)
        if limit is not None and limit < 1:
            raise ConfigurationError(f"limit is {limit}; it takes a number of letters from 1")
        self._reach = reach
        self._client, self._wire = reach.client, reach.wire
        self._lookup = Lookup(reach)
        self._showing = showing
        self._group = group
        self._wanted = wanted or LetterFilter()
        self._to = to
        self._limit = limit
        self._by = progress
        self._progress = progress or progress_group(self._wanted, to)
        names.check_consumer_group(self._progress)
        self.topic: str = names.dlq_topic(group)
        if to == self.topic:
            raise ConfigurationError(
                f"to is {to!r}, the topic the dead letters are in: name another"
            )
        try:
            self.queues: list[MessageQueue] = self._client.subscribe_queues(
                self.topic, refresh=True
            )
        except RouteNotFoundError:
            raise RouteNotFoundError(
                f"group {group!r} has no dead letters: there is no topic {self.topic!r}",
                topic=self.topic,
            ) from None
        if not self.queues:
            raise ConfigurationError(
                f"topic {self.topic!r} cannot be read: no broker grants it read permission; "
                f"`rocketstream topic create '{self.topic}' --queues 1` does",
                topic=self.topic,
            )

    def letters(self, ranges: Ranges) -> Iterator[tuple[MessageExt, bool]]:
        """Yield each letter of the ranges and whether it is wanted, queue by queue."""
        for queue, (begin, end) in ranges.items():
            # Not pulled as the group that keeps the place: brokers create a group when it pulls.
            for letter in self._lookup.read(queue, begin, end):
                yield letter, self._wanted.wants(letter)

    def plan(self) -> RedrivePlan:
        """Return what ``run`` would send; changes nothing."""
        ranges = self._ranges()
        gone_through = dict(ranges)
        shown: list[MessageExt] = []
        by_topic: dict[str | None, int] = {}
        earlier = tuple(self._earlier())
        sent = SentBefore(self._lookup, self._group, self._to, self._by, others=bool(earlier))
        letters = left_out = already = 0
        for letter, is_wanted in self.letters(ranges):
            if not is_wanted:
                left_out += 1
                continue
            if sent.has(letter):
                already += 1
                continue
            letters += 1
            topic = target_topic(letter, self._to)
            by_topic[topic] = by_topic.get(topic, 0) + 1
            if len(shown) < SHOWN_MAX:
                shown.append(self._showing.masked(letter))
            if letters == self._limit:
                gone_through = _up_to(letter, ranges)
                break
        return RedrivePlan(
            group=self._group,
            progress=self._progress,
            ranges=gone_through,
            letters=letters,
            by_topic=by_topic,
            shown=tuple(shown),
            left_out=left_out,
            problems=tuple(self._problems(by_topic)),
            earlier=earlier,
            already_sent=already,
            wanted=self._wanted,
            to=self._to,
        )

    def check_of(self, plan: RedrivePlan) -> None:
        """Raise ConfigurationError if a plan is of another redrive than this one."""
        mine = (self._group, self._wanted, self._to, self._progress)
        if mine != (plan.group, plan.wanted, plan.to, plan.progress):
            raise ConfigurationError(
                f"as_shown is a plan for group {plan.group!r}, {plan.wanted}, to {plan.to}, place "
                f"{plan.progress}: give the redrive the same",
                group=self._group,
            )

    def run(
        self,
        *,
        as_shown: RedrivePlan | None,
        rate: float | None,
        producer: Producer | None,
        on_sent: OnSent | None,
        should_stop: Callable[[], bool] | None,
    ) -> RedriveResult:
        """Send the letters, and keep the place; see ``Letters.redrive``."""
        # Imported here: with the module, the engine behind it would double the start time of every
        # command.
        from rocketstream.client.producer.producer import Producer

        result = RedriveResult()
        arguments = {
            "group": self._group, "wanted": str(self._wanted), "to": self._to,
            "limit": self._limit, "rate": rate,
        }  # fmt: skip
        with ExitStack() as cleanup:
            change = cleanup.enter_context(self._reach.gate.open("dlq.redrive", arguments))
            cleanup.callback(lambda: setattr(change, "after", {"sent": result.sent}))
            hold = cleanup.enter_context(RedriveLock(self._reach, self._group, self.queues))
            clock = self._reach.clock
            ranges = self._ranges(as_shown)
            sender = producer or cleanup.enter_context(
                Producer(
                    PROGRESS_GROUP,
                    retry_another_broker_when_not_store_ok=True,
                    **self._reach.producer_settings,
                )
            )
            pace = Pace(rate, clock, hold.wait)
            store = change.wire.store_offset_making_group
            place = cleanup.enter_context(_Place(self._progress, hold, store, clock))
            others = any(self._earlier())
            before = SentBefore(self._lookup, self._group, self._to, self._by, others=others)
            for letter, is_wanted in self.letters(ranges):
                hold.keep()
                if not is_wanted:
                    place.passed(letter)
                    continue
                if result.sent == self._limit or (should_stop is not None and should_stop()):
                    return result
                if before.has(letter):
                    result.already_sent += 1
                    place.passed(letter)
                    continue
                pace.next()
                hold.keep()  # questions and the pace may have taken their time
                message, is_safe = self._send(letter, sender, result)
                place.passed(letter) if is_safe else place.stays_before(letter)
                if on_sent is not None:
                    on_sent(*self._masked(letter, message))
            place.ended(ranges)
        result.is_complete = not result.odd
        return result

    # --- parts -----------------------------------------------------------------------------------

    def _ranges(self, plan: RedrivePlan | None = None) -> dict[MessageQueue, tuple[int, int]]:
        """Return the ranges to go through: from the place to the present ends.

        With a plan it is to the ends of what the plan showed, and not before that.
        """
        low, high = self._client.min_offsets(self.queues), self._client.max_offsets(self.queues)
        ranges: dict[MessageQueue, tuple[int, int]] = {}
        for queue in self.queues if plan is None else plan.ranges:
            first, end = (0, high[queue]) if plan is None else plan.ranges[queue]
            if end > high.get(queue, -1):
                raise ClientStateError(
                    f"the dead letters of {self._group} are no longer those that were shown: "
                    f"{queue} was deleted meanwhile. Look again",
                    group=self._group,
                )
            stored = self._client.query_consumer_offset(self._progress, queue) or 0
            # An offset beyond the end is the place in a topic that has been deleted since.
            begin = low[queue] if stored > high[queue] else max(stored, low[queue])
            ranges[queue] = (min(max(begin, first), end), end)
        return ranges

    def _send(
        self, letter: MessageExt, sender: Producer, result: RedriveResult
    ) -> tuple[Message, bool]:
        """Send a letter; return its message, and whether it is stored safely."""
        message = again(self._group, letter, self._to, self._by)
        if message.topic not in result.by_topic:
            # A broker may create a missing topic, and nobody would consume such a topic.
            problem = self._problem(message.topic)
            if problem is not None:
                raise ConfigurationError(f"{problem}; {place_of(self._group, letter)} is the next")
        key = message.properties.get(SHARDING_KEY)
        stored = sender.send(message, sharding_key=key)
        result.by_topic[message.topic] = result.by_topic.get(message.topic, 0) + 1
        doubt = unsafe(stored)
        if doubt is not None:
            logger.warning("%s: %s", place_of(self._group, letter), doubt)
            status = stored.send_status.value
            result.odd[status] = result.odd.get(status, 0) + 1
        return message, doubt is None

    def _masked(self, letter: MessageExt, message: Message) -> tuple[MessageExt, Message]:
        shown = self._showing.masked(letter)
        if shown is letter:
            return letter, message
        return shown, again(self._group, shown, self._to, self._by)

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

    def _earlier(self) -> Iterator[str]:
        """Yield the other redrives of these letters that kept a place."""
        tables = self._wire.offset_tables(self._wire.masters()) or {}
        for group, topics in sorted(groups_of_offsets(tables).items()):
            is_other = group.startswith(PROGRESS_GROUP) and group != self._progress
            if is_other and self.topic in topics:
                yield group


def _up_to(letter: MessageExt, ranges: Ranges) -> dict[MessageQueue, tuple[int, int]]:
    """Return the ranges as far as they are gone through when a letter is the last one."""
    found: dict[MessageQueue, tuple[int, int]] = {}
    for queue, (begin, end) in ranges.items():
        if queue == letter.message_queue:
            return {**found, queue: (begin, letter.queue_offset + 1)}
        found[queue] = (begin, end)
    return found


class SentBefore:
    """Looks for letters where a redrive would send them; used by one thread.

    A redrive sends the letters of a queue one by one. So after a crash the letters sent behind the
    kept place come first, without a gap: from the first letter that is not found on, no more
    questions are asked.

    Args:
        group: the group whose dead letters are sent.
        to: the target of the redrive; None for each letter's origin.
        by: the place named for the redrive: only letters it sent itself count; None counts all.
        others: whether redrives with other selections may have sent some letters in between; if so
            every letter is looked for.
    """

    def __init__(
        self, lookup: Lookup, group: str, to: str | None, by: str | None, *, others: bool
    ) -> None:
        self._lookup = lookup
        self._group = group
        self._to = to
        self._by = by
        self._every = others and by is None
        self._new: set[MessageQueue] = set()
        self._masters: dict[str, dict[str, str]] = {}

    def has(self, letter: MessageExt) -> bool:
        """Return whether the letter was sent; letters of a queue come in order.

        Raises:
            TransportError, BrokerError: a broker of the target could not be asked.
        """
        if letter.message_queue in self._new:
            return False
        if self._is_sent(letter):
            return True
        if not self._every:
            self._new.add(letter.message_queue)
        return False

    def _is_sent(self, letter: MessageExt) -> bool:
        topic, unique = target_topic(letter, self._to), letter.properties.get(PROPERTY_UNIQ_KEY)
        if topic is None or unique is None:
            return False
        if topic not in self._masters:
            try:
                self._masters[topic] = self._lookup.wire.topic_masters(topic)
            except RouteNotFoundError:  # the error is raised when the letter is sent
                self._masters[topic] = {}
        # The place alone may be another letter's: that of a topic of dead letters made anew.
        place, times = place_of(self._group, letter), times_of_next(letter)
        return any(
            message.properties.get(PROPERTY_REDRIVEN_FROM) == place
            and message.properties.get(PROPERTY_REDRIVEN_TIMES) == times
            and (self._by is None or message.properties.get(PROPERTY_REDRIVEN_BY) == self._by)
            for message in self._lookup.by_id(topic, unique, self._masters[topic], _COPIES_MAX)
        )


class _Place:
    """The place of a redrive; kept at the brokers from time to time, and whenever it ends."""

    def __init__(
        self,
        progress: str,
        hold: RedriveLock,
        store: Callable[[str, MessageQueue, int], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._progress = progress
        self._hold = hold
        self._clock = clock
        self._changed: dict[MessageQueue, int] = {}
        self._stays: set[MessageQueue] = set()
        self._count = 0
        self._saved_at = clock.monotonic_ms()

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.save()
        except RocketMQError as error:
            if kind is None:
                raise
            # The first error matters; a lost place costs some letters sent twice.
            logger.warning("the place of the redrive could not be kept: %s", error)

    def passed(self, letter: MessageExt) -> None:
        """Note that a letter is done."""
        queue = letter.message_queue
        if queue not in self._stays:
            self._changed[queue] = letter.queue_offset + 1
        self._count += 1
        late = self._clock.monotonic_ms() - self._saved_at >= SAVED_AFTER_MS
        if self._count >= SAVED_AFTER or late:
            self.save()

    def stays_before(self, letter: MessageExt) -> None:
        """Note that the next run must look for a letter, and for those of its queue behind it."""
        self._stays.add(letter.message_queue)

    def ended(self, ranges: Ranges) -> None:
        """Note that all ranges are done, also where they end in letters that no longer exist.

        Where there was nothing to go through, another redrive has been there, and may be farther.
        """
        for queue, (begin, end) in ranges.items():
            if begin < end and queue not in self._stays:
                self._changed[queue] = end

    def save(self) -> None:
        """Store the place at the brokers, unless another redrive may keep it, and be farther."""
        if self._hold.is_lost:
            return
        for queue, offset in self._changed.items():
            self._store(self._progress, queue, offset)
        self._changed.clear()
        self._count = 0
        self._saved_at = self._clock.monotonic_ms()

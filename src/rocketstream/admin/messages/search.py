"""The search for messages by id, key, time and offset, bounded, page by page.

Law: joins no group, stores no offset. Filters compare the masked message: they reveal nothing that
masking hides. Messages the brokers' index cannot reach are reported, never left out: Apache's index
keeps whole seconds, so if one second has more messages than an answer holds, the rest is read from
the queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rocketstream.admin.messages.bodies import BodyFormat
from rocketstream.admin.messages.lookup import LAST_MS, MESSAGES_MAX, Lookup
from rocketstream.admin.messages.paging import Pages, Range, SearchPlace
from rocketstream.admin.messages.shown import Showing, ShownMessage
from rocketstream.admin.service import Reach
from rocketstream.errors import ConfigurationError, RocketMQError, SubscriptionError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import KEY_SEPARATOR
from rocketstream.protocol.sql92 import compile_expression

EXAMINED_MAX: Final = 10_000
SEARCH_TIMEOUT_MS: Final = 10_000
TAIL_BEHIND_MAX: Final = 1_000

TailPlace = Mapping[MessageQueue, int]
"""The place of a tail: the next offset of each queue."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages are wanted; a message must meet every given condition, as it is shown.

    Attributes:
        tag: it has this tag, or one of several joined by ``||``.
        key: it has this key among its keys.
        sql: a SQL92 condition on properties, evaluated here: no broker has to allow it.
        text: it has this text in body, keys or a property; case counts.
    """

    tag: str | None = None
    key: str | None = None
    sql: str | None = None
    text: str | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.tag, self.key, self.sql, self.text))

    def compiled(self) -> Callable[[ShownMessage], bool]:
        """Return the filter as a test of messages.

        Raises:
            ConfigurationError: the condition is not SQL92, or the tag is not a tag.
        """
        tags: frozenset[str] | None = None
        if self.tag is not None and self.tag.strip() != "*":
            tags = frozenset(part.strip() for part in self.tag.split("||"))
            if "" in tags:
                raise ConfigurationError(f"tag is {self.tag!r}; it takes one, or 'a || b'")
        try:
            sql = None if self.sql is None else compile_expression(self.sql)
        except SubscriptionError as error:
            raise ConfigurationError(error.message) from None

        def is_wanted(message: ShownMessage) -> bool:
            return (
                (tags is None or message.tags in tags)
                and (self.key is None or self.key in (message.keys or "").split(KEY_SEPARATOR))
                and (sql is None or sql.matches(message.properties))
                and (self.text is None or _holds(message, self.text))
            )

        return is_wanted


def _holds(message: ShownMessage, text: str) -> bool:
    return text in message.body.text or any(text in v for v in message.properties.values())


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One answer to a search.

    Attributes:
        messages: the messages found, in the order asked for.
        examined: how many messages were looked at.
        resume: pass it to the next search to continue; None when nothing is left.
        ended_by: why the search ended before the end: ``most`` (the page is full), ``examined``,
            ``time`` or ``problem``; None when nothing is left.
        reached_ms: store time of the last message looked at, None when none was.
        problems: the brokers that could not be asked; their messages are missing.
    """

    messages: tuple[ShownMessage, ...]
    examined: int
    resume: str | None = None
    ended_by: str | None = None
    reached_ms: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TailRound:
    """The result of one round of a tail.

    Attributes:
        messages: the wanted messages, in order of store time.
        place: pass it to the next round.
        examined: how many messages were read.
        passed_over: how many messages were left out, because they came faster than they are read.
        problems: brokers and name servers that could not be asked; the next round asks them again.
    """

    messages: tuple[ShownMessage, ...]
    place: TailPlace
    examined: int
    passed_over: int = 0
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Search:
    """A search of one topic under way.

    Attributes:
        is_wanted: the test of messages as they are shown.
        most: how many messages to return at most.
        place: the order and the times, and the ranges that are still to be read.
        is_new: whether the search begins: no ranges are known yet.
        examined_most: how many messages to look at at most.
        deadline: begin no further read after this time of the clock.
        key: one of the messages' keys, compared unmasked; None for any.
        problems: the brokers that could not be asked.
    """

    reach: Reach
    lookup: Lookup
    showing: Showing
    topic: str
    is_wanted: Callable[[ShownMessage], bool]
    how: BodyFormat
    most: int
    place: SearchPlace
    is_new: bool
    examined_most: int
    deadline: float
    key: str | None = None
    problems: list[str] = field(default_factory=list)

    # --- by the index ----------------------------------------------------------------------------

    def by_id(self, msg_id: str) -> SearchPage:
        """Return all messages that have an id."""
        every: dict[tuple[int, str, int], MessageExt] = {}
        for name, address in self.lookup.wire.topic_masters(self.topic).items():
            try:
                some = self.lookup.by_id(self.topic, msg_id, {name: address})
                every |= {_in_time(message): message for message in some}
            except RocketMQError as error:
                self.problems.append(f"broker {name}: {error.message}")
        if not every and (placed := self.lookup.at_place(self.topic, msg_id)):
            every[_in_time(placed)] = placed
        found = [every[at] for at in sorted(every, reverse=self.place.newest_first)]
        shown = [
            self.showing.shown(message, self.how)
            for message in found
            if self.place.side(message.store_timestamp) is None
        ]
        kept = [message for message in shown if self.is_wanted(message)]
        is_full = len(kept) > self.most or len(found) >= MESSAGES_MAX
        return SearchPage(
            tuple(kept[: self.most]),
            len(found),
            ended_by="most" if is_full else None,
            reached_ms=found[-1].store_timestamp if found else None,
            problems=tuple(self.problems),
        )

    def by_key(self) -> SearchPage:
        """Return the messages of the index, and beyond its reach those read from the queues."""
        told, floor_ms = self._told_by_indexes()
        if not self.place.newest_first:
            # No message is certain to be the oldest before all are known.
            told = told[::-1] if floor_ms is None else []
        kept = told[: self.most]
        shown = tuple(self.showing.shown(message, self.how) for message in kept)
        reached = kept[-1].store_timestamp if kept else None
        if floor_ms is None and len(told) == len(kept):
            return SearchPage(shown, len(kept), None, None, reached, tuple(self.problems))
        edge = reached if len(kept) < len(told) or floor_ms is None else floor_ms
        self._go_behind(kept, edge)
        if len(kept) == self.most:
            resume = self.place.word(self.topic) if self.place.ranges else None
            why = "most" if resume else None
            return SearchPage(shown, len(kept), resume, why, reached, tuple(self.problems))
        self.most -= len(kept)
        page = self.through_queues(len(kept))
        return replace(
            page,
            messages=shown + page.messages,
            reached_ms=reached if page.reached_ms is None else page.reached_ms,
        )

    def _told_by_indexes(self) -> tuple[list[MessageExt], int | None]:
        """Ask every broker's index until it has given all, or enough, or cannot reach further.

        Returns:
            The wanted messages, the newest first, and the time after which none are missing; None
            where none are missing at all.
        """
        found: list[MessageExt] = []
        floors: list[int] = []
        for name, address in self.lookup.wire.topic_masters(self.topic).items():
            try:
                some, floor_ms = self._told_by_index(name, address)
            except RocketMQError as error:
                self.problems.append(f"broker {name}: {error.message}")
                continue
            found += some
            if floor_ms is not None:
                floors.append(floor_ms)
        floor = max(floors, default=None)
        found.sort(key=_in_time, reverse=True)
        return [m for m in found if floor is None or m.store_timestamp >= floor], floor

    def _told_by_index(self, name: str, address: str) -> tuple[list[MessageExt], int | None]:
        place = self.place
        last_ms = LAST_MS if place.until_ms is None else place.until_ms - 1
        found: list[MessageExt] = []
        looked, floor_ms = 0, None
        for page in self.lookup.pages(name, address, self.topic, str(self.key), last_ms=last_ms):
            looked, floor_ms = looked + len(page.fresh), page.floor_ms
            for message in page.fresh:
                # Apache's index knows only seconds and hashes: later messages and other keys are
                # among them.
                if (
                    place.side(message.store_timestamp) is None
                    and self._is_left(message)
                    and self._is_sought(message, self.showing.shown(message, self.how))
                ):
                    found.append(message)
            if floor_ms is None or floor_ms < (place.since_ms or 0):
                return found, None
            is_enough = place.newest_first and len(found) > self.most
            if is_enough or looked >= self.examined_most or self._is_late():
                break
        return found, floor_ms

    def _is_left(self, message: MessageExt) -> bool:
        """Whether no earlier page contained a message."""
        low, high = self.place.ranges.get(message.message_queue, (0, 0))
        return self.is_new or low <= message.queue_offset < high

    def _is_sought(self, message: MessageExt, shown: ShownMessage) -> bool:
        """Whether a message is wanted: the index finds it by a key or by the sender's id."""
        key = self.key
        has_key = key is None or key in (message.keys or "").split(KEY_SEPARATOR)
        return (has_key or message.msg_id == key) and self.is_wanted(shown)

    def _is_late(self) -> bool:
        return self.reach.clock.monotonic_ms() >= self.deadline

    def _go_behind(self, told: Sequence[MessageExt], edge_ms: int | None) -> None:
        """Continue a search by key after the messages found up to a time."""
        place = self.place
        if edge_ms is not None and place.newest_first:
            until_ms = edge_ms + 1 if place.until_ms is None else min(edge_ms + 1, place.until_ms)
            self.place = replace(place, until_ms=until_ms)
        elif edge_ms is not None and told:
            self.place = replace(place, since_ms=max(edge_ms, place.since_ms or 0))
        if self.is_new:
            self.begin()
        self.place = self.place.behind(told)

    # --- by reading queues -----------------------------------------------------------------------

    def begin(
        self,
        broker_name: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Find the ranges to read of the chosen queues, by the times and the order."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self._chosen(broker_name, queue_id, offset):
            by_broker.setdefault(queue.broker_name, []).append(queue)
        ranges: dict[MessageQueue, Range] = {}
        for name, queues in by_broker.items():
            try:
                lows, highs = (
                    self.reach.client.min_offsets(queues),
                    self.reach.client.max_offsets(queues),
                )
                for queue in queues:
                    low, high = self._range(queue, lows[queue], highs[queue], offset)
                    if low < high:
                        ranges[queue] = (low, high)
            except RocketMQError as error:
                self.problems.append(f"broker {name}: {error.message}")
        self.place = replace(self.place, ranges=ranges)

    def _chosen(
        self, broker_name: str | None, queue_id: int | None, offset: int | None
    ) -> list[MessageQueue]:
        every = self.reach.client.subscribe_queues(self.topic, refresh=True)
        if not every:
            raise ConfigurationError(
                f"topic {self.topic!r} cannot be read: no broker grants it read permission",
                topic=self.topic,
            )
        queues = [
            queue
            for queue in every
            if (broker_name is None or queue.broker_name == broker_name)
            and (queue_id is None or queue.queue_id == queue_id)
        ]
        if not queues:
            brokers = ", ".join(sorted({queue.broker_name for queue in every}))
            most = max(queue.queue_id for queue in every)
            asked = "broker " + repr(broker_name) if queue_id is None else f"queue {queue_id}"
            raise ConfigurationError(
                f"topic {self.topic!r} has no {asked}; it has queues 0 to {most} on {brokers}"
            )
        if offset is not None and len(queues) != 1:
            raise ConfigurationError(
                f"an offset is of one queue; {len(queues)} are chosen: name queue and broker"
            )
        return queues

    def _range(self, queue: MessageQueue, low: int, high: int, offset: int | None) -> Range:
        """Return the range to read of a queue, which may be empty."""
        client = self.reach.client
        if offset is not None and self.place.newest_first:
            high = min(high, offset + 1)
        elif offset is not None:
            low = max(low, offset)
        # Brokers answer a time with the nearest message, or with any one of the same millisecond:
        # the range grows in ever longer steps until it has the first and the last of the times.
        if (since_ms := self.place.since_ms) is not None and low < high:
            first, low = low, min(max(client.search_offset(queue, since_ms), low), high)
            step = 1
            while low > first and not self._is_before(queue, low - 1, high, since_ms):
                low, step = max(first, low - step), step * 2
        if (until_ms := self.place.until_ms) is not None and low < high:
            end, high = (
                high,
                min(max(client.search_offset(queue, until_ms) + 1, low), high),
            )
            step = 1
            while high < end and self._is_before(queue, high, end, until_ms):
                high, step = min(end, high + step), step * 2
        return low, high

    def _is_before(self, queue: MessageQueue, offset: int, high: int, time_ms: int) -> bool:
        for message in self.lookup.read(queue, offset, min(offset + 1, high)):
            return message.store_timestamp < time_ms
        return True

    def through_queues(self, examined: int = 0) -> SearchPage:
        """Return the next page of the messages in the ranges.

        Args:
            examined: how many messages were looked at before.
        """
        place = self.place
        pages = Pages(place.ranges, newest_first=place.newest_first, wanted=self.most)
        found: list[ShownMessage] = []
        reached: int | None = None
        ended_by: str | None = None
        while ended_by is None:
            if len(found) == self.most:
                ended_by = "most"
            elif examined >= self.examined_most:
                ended_by = "examined"
            elif self._is_late():
                ended_by = "time"
            elif (span := pages.next_read()) is not None:
                queue, (low, high) = span
                try:
                    pages.have_read(queue, (low, high), list(self.lookup.read(queue, low, high)))
                except RocketMQError as error:
                    self.problems.append(f"{queue}: {error.message}")
                    pages.put_aside(queue)
            elif (message := pages.take()) is None:
                break
            elif (side := place.side(message.store_timestamp)) is not None:
                if side == "behind":
                    pages.finish(message.message_queue)
            else:
                examined, reached = examined + 1, message.store_timestamp
                shown = self.showing.shown(message, self.how)
                if self._is_sought(message, shown):
                    found.append(shown)
        left = pages.left()
        if self.key and place.newest_first and reached is not None and not self.problems:
            place = replace(place, until_ms=reached + 1)  # from there on the index may reach again
        resume = replace(place, ranges=left).word(self.topic) if left else None
        why = (ended_by or "problem") if left else None
        return SearchPage(tuple(found), examined, resume, why, reached, tuple(self.problems))


def _in_time(message: MessageExt) -> tuple[int, str, int]:
    """Return a sort key that orders the messages of all brokers by time."""
    return message.store_timestamp, message.broker_name, message.commit_log_offset

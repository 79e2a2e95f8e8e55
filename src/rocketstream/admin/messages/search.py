"""The search for messages by id, key, time and offset, bounded, page by page.

Law: joins no group, stores no offset. Filters compare the masked message: they reveal nothing that
masking hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rocketstream import limits
from rocketstream.admin.core.paging import Pages, Range, SearchPlace
from rocketstream.admin.messages.bodies import AUTO, BodyFormat
from rocketstream.admin.messages.by_key import (
    IndexSearch,
    ask_indexes,
    has_key,
    place_of,
    ranges_left,
)
from rocketstream.admin.messages.index_pages import MESSAGES_MAX
from rocketstream.admin.messages.shown import ShownMessage
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.admin.service import question
from rocketstream.errors import ConfigurationError, RocketMQError, SubscriptionError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import TOOLS_CONSUMER_GROUP
from rocketstream.protocol.properties import KEY_SEPARATOR
from rocketstream.protocol.sql92 import Expression, compile_expression

EXAMINED_MAX: Final = 10_000
SEARCH_TIMEOUT_MS: Final = 10_000


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

    def compiled(self) -> Wanted:
        """Return the filter prepared for use.

        Raises:
            ConfigurationError: the condition is not SQL92, or the tag is not a tag.
        """
        return Wanted(self)


class Wanted:
    """A prepared filter."""

    def __init__(self, wanted: MessageFilter) -> None:
        self._key, self._text = wanted.key, wanted.text
        self._tags: frozenset[str] | None = None
        if wanted.tag is not None and wanted.tag.strip() != "*":
            self._tags = frozenset(part.strip() for part in wanted.tag.split("||"))
            if "" in self._tags:
                raise ConfigurationError(f"tag is {wanted.tag!r}; it takes one, or 'a || b'")
        self._sql: Expression | None = None
        if wanted.sql is not None:
            try:
                self._sql = compile_expression(wanted.sql)
            except SubscriptionError as error:
                raise ConfigurationError(error.message) from None

    def __call__(self, message: ShownMessage) -> bool:
        """Return whether a message is wanted."""
        return (
            (self._tags is None or message.tags in self._tags)
            and (self._key is None or self._key in (message.keys or "").split(KEY_SEPARATOR))
            and (self._sql is None or self._sql.matches(message.properties))
            and (self._text is None or _holds(message, self._text))
        )


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
class _Asked:
    """The settings of a search."""

    topic: str
    test: Wanted
    how: BodyFormat
    most: int
    newest_first: bool
    key: str | None = None

    def is_wanted(self, message: MessageExt, shown: ShownMessage) -> bool:
        """Return whether a message is wanted: its key is compared unmasked, all else as shown."""
        return (self.key is None or has_key(message, self.key)) and self.test(shown)


class SearchAdmin(MessageAdmin):
    """The searches of ``Admin``."""

    @question
    def search(
        self,
        topic: str,
        *,
        msg_id: str | None = None,
        key: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        broker_name: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        wanted: MessageFilter | None = None,
        newest_first: bool = True,
        most: int = 32,
        examined_most: int = EXAMINED_MAX,
        timeout_ms: int = SEARCH_TIMEOUT_MS,
        resume: str | None = None,
        how: BodyFormat = AUTO,
    ) -> SearchPage:
        """Return messages of a topic, decoded and masked; bounded in count and time.

        A search by id or key asks the brokers' index. Any other reads the queues between the given
        times, in order of store time over all queues. Queues are read for a key too where the index
        cannot reach: with more than 64 messages of one second, and for the oldest first of very
        many.

        Args:
            topic: the topic; ``%DLQ%group`` and ``%RETRY%group`` too.
            msg_id: the sender's id or the broker's; finds all messages that have it.
            key: one of the messages' keys.
            since_ms: stored at this time or later, ms since 1970.
            until_ms: stored before this time, ms since 1970.
            broker_name: only messages of this broker.
            queue_id: only messages of this queue (of each broker, unless one is named).
            offset: with one queue, begin at this offset; with ``newest_first`` go back from it.
            wanted: leave out all other messages.
            newest_first: whether the newest come first.
            most: how many messages to return at most, 1 to 1,000.
            examined_most: how many messages to look at at most.
            timeout_ms: begin no further read after this time.
            resume: continue where a search of this topic ended, with its ranges and order; ``key``
                and ``wanted`` must be given again.
            how: how bodies are decoded.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConfigurationError: arguments that exclude each other, or a value out of range.
        """
        if not 1 <= most <= limits.SEARCH_MESSAGES_MAX:
            raise ConfigurationError(
                f"most is {most}; it takes 1 to {limits.SEARCH_MESSAGES_MAX} messages"
            )
        if examined_most < 1:
            raise ConfigurationError(f"examined_most is {examined_most}; it takes 1 or more")
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise ConfigurationError("nothing lies between since and until: until is not later")
        asked = _Asked(topic, (wanted or MessageFilter()).compiled(), how, most, newest_first, key)
        is_placed = offset is not None or queue_id is not None
        if (is_placed and (msg_id or key) is not None) or (msg_id is not None and resume):
            raise ConfigurationError("an id or key is looked up in all queues at once")
        deadline = self._clock.monotonic_ms() + timeout_ms
        place: SearchPlace | None = None
        if resume is not None:
            place = SearchPlace.of_word(resume, topic)
            self._client.route(topic, refresh=True)
        if key is not None:
            return self._search_by_key(
                asked, place or SearchPlace(newest_first, since_ms, until_ms, {}),
                place is None, examined_most, deadline,
            )  # fmt: skip
        if msg_id is not None:
            return self._search_by_id(asked, msg_id, since_ms, until_ms)
        problems: list[str] = []
        if place is None:
            queues = self._search_chosen(topic, broker_name, queue_id, offset)
            place = SearchPlace(newest_first, since_ms, until_ms, {})
            place = self._search_begun(place, queues, offset, problems)
        return self._search_page(asked, place, examined_most, deadline, problems)

    @question
    def shown(self, message: MessageExt, how: BodyFormat = AUTO) -> ShownMessage:
        """Return a message as it may be shown: decoded and masked. Sends no request."""
        return self._showing.shown(message, how)

    # --- by the index ----------------------------------------------------------------------------

    def _search_by_id(
        self, asked: _Asked, msg_id: str, since_ms: int | None, until_ms: int | None
    ) -> SearchPage:
        found: dict[tuple[str, int], MessageExt] = {}
        problems: list[str] = []
        for name, address in self._wire.topic_masters(asked.topic).items():
            try:
                some = self._wire.messages_by_key(
                    address, asked.topic, msg_id, MESSAGES_MAX, unique=True
                )
            except RocketMQError as error:
                problems.append(f"broker {name}: {error.message}")
                continue
            for message in some:
                message._broker_name = name
                found[name, message.commit_log_offset] = message
        if not found and (message_at := self._message_by_offset_id(asked.topic, msg_id)):
            found[message_at.broker_name, message_at.commit_log_offset] = message_at
        ordered = sorted(found.values(), key=place_of, reverse=asked.newest_first)
        shown = [
            self._showing.shown(message, asked.how)
            for message in ordered
            if (since_ms is None or message.store_timestamp >= since_ms)
            and (until_ms is None or message.store_timestamp < until_ms)
        ]
        kept = [message for message in shown if asked.test(message)]
        is_full = len(kept) > asked.most or len(ordered) >= MESSAGES_MAX
        return SearchPage(
            tuple(kept[: asked.most]),
            len(ordered),
            ended_by="most" if is_full else None,
            reached_ms=ordered[-1].store_timestamp if ordered else None,
            problems=tuple(problems),
        )

    def _search_by_key(
        self,
        asked: _Asked,
        place: SearchPlace,
        is_new: bool,
        examined_most: int,
        deadline: float,
    ) -> SearchPage:
        """Return the messages of the index, and beyond its reach those read from the queues."""
        asked = replace(asked, newest_first=place.newest_first)

        def is_wanted(message: MessageExt) -> bool:
            if not is_new:
                low, high = place.ranges.get(message.message_queue, (0, 0))
                if not low <= message.queue_offset < high:
                    return False
            return asked.is_wanted(message, self._showing.shown(message, asked.how))

        def has_time(examined: int) -> bool:
            return examined < examined_most and self._clock.monotonic_ms() < deadline

        answer = ask_indexes(
            self,
            self._wire.topic_masters(asked.topic),
            IndexSearch(
                asked.topic, str(asked.key), place.since_ms, place.until_ms, is_wanted,
                asked.most if asked.newest_first else None, has_time,
            ),
        )  # fmt: skip
        told, problems = answer.found, answer.problems
        if not asked.newest_first:
            # No message is certain to be the oldest before all are known.
            told = told[::-1] if answer.floor_ms is None else []
        kept = told[: asked.most]
        shown = tuple(self._showing.shown(message, asked.how) for message in kept)
        reached = kept[-1].store_timestamp if kept else None
        if answer.floor_ms is None and len(told) == len(kept):
            return SearchPage(shown, len(kept), None, None, reached, tuple(problems))
        edge = reached if len(kept) < len(told) or answer.floor_ms is None else answer.floor_ms
        place = self._search_behind(asked, place, is_new, kept, edge, problems)
        if len(kept) == asked.most:
            resume = place.word(asked.topic) if place.ranges else None
            why = "most" if resume else None
            return SearchPage(shown, len(kept), resume, why, reached, tuple(problems))
        rest = replace(asked, most=asked.most - len(kept))
        page = self._search_page(rest, place, examined_most, deadline, problems, len(kept))
        return replace(
            page,
            messages=shown + page.messages,
            reached_ms=reached if page.reached_ms is None else page.reached_ms,
        )

    def _search_behind(
        self,
        asked: _Asked,
        place: SearchPlace,
        is_new: bool,
        told: Sequence[MessageExt],
        edge_ms: int | None,
        problems: list[str],
    ) -> SearchPlace:
        """Return where a search by key continues, after the messages found up to a time."""
        if edge_ms is not None and asked.newest_first:
            until_ms = edge_ms + 1 if place.until_ms is None else min(edge_ms + 1, place.until_ms)
            place = replace(place, until_ms=until_ms)
        elif edge_ms is not None and told:
            place = replace(place, since_ms=max(edge_ms, place.since_ms or 0))
        if is_new:
            queues = self._search_chosen(asked.topic, None, None, None)
            place = self._search_begun(place, queues, None, problems)
        left = ranges_left(place.ranges, told, newest_first=asked.newest_first)
        return replace(place, ranges=left)

    # --- by reading queues -----------------------------------------------------------------------

    def _search_chosen(
        self, topic: str, broker_name: str | None, queue_id: int | None, offset: int | None
    ) -> list[MessageQueue]:
        every = self._client.subscribe_queues(topic, refresh=True)
        if not every:
            raise ConfigurationError(
                f"topic {topic!r} cannot be read: no broker grants it read permission", topic=topic
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
                f"topic {topic!r} has no {asked}; it has queues 0 to {most} on {brokers}"
            )
        if offset is not None and len(queues) != 1:
            raise ConfigurationError(
                f"an offset is of one queue; {len(queues)} are chosen: name queue and broker"
            )
        return queues

    def _search_begun(
        self,
        place: SearchPlace,
        queues: Sequence[MessageQueue],
        offset: int | None,
        problems: list[str],
    ) -> SearchPlace:
        """Return a place with the ranges to read of these queues, by its times and order."""
        ranges = {
            queue: span
            for each in _by_broker(queues)
            for queue, span in self._search_ranges(
                each, place.since_ms, place.until_ms, offset, place.newest_first, problems
            ).items()
        }
        return replace(place, ranges=ranges)

    def _search_ranges(
        self,
        queues: Sequence[MessageQueue],
        since_ms: int | None,
        until_ms: int | None,
        offset: int | None,
        newest_first: bool,
        problems: list[str],
    ) -> dict[MessageQueue, Range]:
        """Return the ranges to read of one broker's queues."""
        ranges: dict[MessageQueue, Range] = {}
        try:
            lows, highs = self._client.min_offsets(queues), self._client.max_offsets(queues)
            for queue in queues:
                low, high = lows[queue], highs[queue]
                if offset is not None and newest_first:
                    high = min(high, offset + 1)
                elif offset is not None:
                    low = max(low, offset)
                if since_ms is not None and low < high:
                    low = self._search_begin(queue, since_ms, low, high)
                if until_ms is not None and low < high:
                    high = self._search_end(queue, until_ms, low, high)
                if low < high:
                    ranges[queue] = (low, high)
        except RocketMQError as error:
            problems.append(f"broker {queues[0].broker_name}: {error.message}")
        return ranges

    def _search_begin(self, queue: MessageQueue, since_ms: int, low: int, high: int) -> int:
        """Return an offset at, or shortly before, the first message of ``since_ms`` or later.

        Brokers answer with the nearest message, or with any one of the same millisecond.
        """
        at, step = min(max(self._client.search_offset(queue, since_ms), low), high), 1
        while at > low and not self._search_is_before(queue, at - 1, high, since_ms):
            at, step = max(low, at - step), step * 2
        return at

    def _search_end(self, queue: MessageQueue, until_ms: int, low: int, high: int) -> int:
        """Return an offset after the last message before ``until_ms``."""
        at, step = min(max(self._client.search_offset(queue, until_ms) + 1, low), high), 1
        while at < high and self._search_is_before(queue, at, high, until_ms):
            at, step = min(high, at + step), step * 2
        return at

    def _search_is_before(self, queue: MessageQueue, offset: int, high: int, time_ms: int) -> bool:
        for message in self._search_read(queue, (offset, min(offset + 1, high))):
            return message.store_timestamp < time_ms
        return True

    def _search_page(
        self,
        asked: _Asked,
        place: SearchPlace,
        examined_most: int,
        deadline: float,
        problems: list[str],
        examined: int = 0,
    ) -> SearchPage:
        pages = Pages(place.ranges, newest_first=place.newest_first, wanted=asked.most)
        found: list[ShownMessage] = []
        reached: int | None = None
        ended_by: str | None = None
        while ended_by is None:
            if len(found) == asked.most:
                ended_by = "most"
            elif examined >= examined_most:
                ended_by = "examined"
            elif self._clock.monotonic_ms() >= deadline:
                ended_by = "time"
            elif (span := pages.next_read()) is not None:
                try:
                    pages.have_read(*span, self._search_read(*span))
                except RocketMQError as error:
                    problems.append(f"{span[0]}: {error.message}")
                    pages.put_aside(span[0])
            elif (message := pages.take()) is None:
                break
            elif (side := place.side(message.store_timestamp)) is not None:
                if side == "behind":
                    pages.finish(message.message_queue)
            else:
                examined, reached = examined + 1, message.store_timestamp
                shown = self._showing.shown(message, asked.how)
                if asked.is_wanted(message, shown):
                    found.append(shown)
        left = pages.left()
        if asked.key is not None and place.newest_first and reached is not None and not problems:
            place = replace(place, until_ms=reached + 1)  # from there on the index may reach again
        resume = replace(place, ranges=left).word(asked.topic) if left else None
        why = (ended_by or "problem") if left else None
        return SearchPage(tuple(found), examined, resume, why, reached, tuple(problems))

    def _search_read(self, queue: MessageQueue, span: Range) -> list[MessageExt]:
        """Return the messages of a range; it may take several pulls."""
        return read_range(self, queue, span)


def _by_broker(queues: Sequence[MessageQueue]) -> list[list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return list(found.values())


def read_range(admin: MessageAdmin, queue: MessageQueue, span: Range) -> list[MessageExt]:
    """Return the messages of a range of a queue, pulled as the operators' tools' own group."""
    found: list[MessageExt] = []
    at, end = span
    address = admin._client.address(queue.broker_name)
    while at < end:
        some, at = admin._wire.pull(address, TOOLS_CONSUMER_GROUP, queue, at, min(32, end - at))
        for message in some:
            if message.queue_offset < end:
                message._broker_name = queue.broker_name
                found.append(message)
    return found

"""The service of messages: viewed, searched, followed, traced, consumed once more (C-538).

Law: no message leaves here unmasked. ``consume`` is the only operation that makes a member act.
"""

from __future__ import annotations

import functools

from rocketstream import limits
from rocketstream.admin.core.joining import member_rows
from rocketstream.admin.core.steps import refuse
from rocketstream.admin.messages.bodies import AUTO, BodyFormat
from rocketstream.admin.messages.lookup import MESSAGES_MAX, Lookup
from rocketstream.admin.messages.paging import Range, SearchPlace
from rocketstream.admin.messages.search import (
    EXAMINED_MAX,
    SEARCH_TIMEOUT_MS,
    TAIL_BEHIND_MAX,
    MessageFilter,
    Search,
    SearchPage,
    TailPlace,
    TailRound,
)
from rocketstream.admin.messages.shown import ShownMessage
from rocketstream.admin.messages.trace import TraceTimeline, read_trace
from rocketstream.admin.messages.track import Tracked
from rocketstream.admin.rows import ConsumedRow, ConsumePlan, TrackRow
from rocketstream.admin.service import Service, change, question
from rocketstream.admin.topics import Topics
from rocketstream.admin.wire import questions
from rocketstream.errors import (
    ConfigurationError,
    RocketMQError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import TRACE_TOPIC


class Messages(Service):
    """``Admin.messages``."""

    @functools.cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self._reach)

    @question
    def view(self, topic: str, msg_id: str) -> MessageExt:
        """Return one message by either of its ids, with masked parts replaced.

        Args:
            topic: the message's topic; needed for the id its sender gave it.
            msg_id: the broker's id (``offset_msg_id``) or the sender's (``msg_id``, UNIQ_KEY).

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        return self._showing.masked(self._lookup.one(topic, msg_id))

    @question
    def query(self, topic: str, key: str, most: int = 32) -> list[MessageExt]:
        """Return the newest messages with a key, the oldest of them first; masked as one viewed.

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        found: list[MessageExt] = []
        for name, address in self._wire.topic_masters(topic).items():
            told = 0
            for page in self._lookup.pages(name, address, topic, key, most=min(most, MESSAGES_MAX)):
                found += page.fresh
                told += len(page.fresh)
                if told >= most:
                    break
        found.sort(key=lambda message: (message.store_timestamp, message.commit_log_offset))
        return [self._showing.masked(message) for message in found[-most:]]

    @question
    def shown(self, message: MessageExt, how: BodyFormat = AUTO) -> ShownMessage:
        """Return a message as it may be shown: decoded and masked. Sends no request."""
        return self._showing.shown(message, how)

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
        is_wanted = (wanted or MessageFilter()).compiled()
        is_placed = offset is not None or queue_id is not None
        if (is_placed and (msg_id or key) is not None) or (msg_id is not None and resume):
            raise ConfigurationError("an id or key is looked up in all queues at once")
        deadline = self._clock.monotonic_ms() + timeout_ms
        place = SearchPlace(newest_first, since_ms, until_ms, {})
        if resume is not None:
            place = SearchPlace.of_word(resume, topic)
            self._client.route(topic, refresh=True)
        search = Search(
            self._reach, self._lookup, self._showing, topic, is_wanted, how, most, place,
            resume is None, examined_most, deadline, key,
        )  # fmt: skip
        if key is not None:
            return search.by_key()
        if msg_id is not None:
            return search.by_id(msg_id)
        if resume is None:
            search.begin(broker_name, queue_id, offset)
        return search.through_queues()

    @question
    def tail(
        self,
        topic: str,
        place: TailPlace | None = None,
        *,
        wanted: MessageFilter | None = None,
        last: int = 0,
        behind_max: int = TAIL_BEHIND_MAX,
        how: BodyFormat = AUTO,
    ) -> TailRound:
        """Return what arrived since the last round; the first round only finds the queues' ends.

        Does not wait: call it again after, say, a fifth of a second, with the place of the previous
        round. Costs one request to each broker, and pulls from the queues that grew. Messages that
        arrive faster than they are read are passed over and counted.

        Args:
            place: the place of the previous round; None begins.
            wanted: leave out all other messages.
            last: begin this many messages before the end of each queue, up to ``behind_max``.
            behind_max: if a queue grew by more messages since the last round, the older ones are
                passed over.

        Raises:
            RouteNotFoundError: in the first round; the topic is unknown.
            ConnectError: in the first round; no name server answered.
            ConfigurationError: the filter cannot be used, or a value is out of range.
        """
        is_wanted = (wanted or MessageFilter()).compiled()
        if behind_max < 1 or not 0 <= last <= behind_max:
            raise ConfigurationError(
                "behind_max must be 1 or more and last from 0 to behind_max; they are "
                f"{behind_max} and {last}"
            )
        problems: list[str] = []
        try:
            spans = self._spans(topic, problems)
        except (TransportError, RouteNotFoundError) as error:
            if place is None:
                raise
            # It was there: name servers are away, or have not heard of its brokers again.
            return TailRound((), place, 0, problems=(error.message,))
        if place is None:
            place = {queue: max(low, high - last) for queue, (low, high) in spans.items()}
        places = dict(place)
        found: list[ShownMessage] = []
        examined = passed = 0
        for queue, (low, high) in sorted(spans.items()):
            at = places.get(queue, low)
            if at > high:  # the topic was deleted and made again
                at = low
            begin = max(at, low, high - behind_max)
            try:
                messages = list(self._lookup.read(queue, begin, high))
            except RocketMQError as error:
                problems.append(f"{queue}: {error.message}")
                continue
            passed += begin - at
            places[queue] = high
            examined += len(messages)
            shown = [self._showing.shown(message, how) for message in messages]
            found += [message for message in shown if is_wanted(message)]
        found.sort(key=lambda m: (m.store_ms, m.broker_name, m.queue_id, m.queue_offset))
        return TailRound(tuple(found), places, examined, passed, tuple(problems))

    def _spans(self, topic: str, problems: list[str]) -> dict[MessageQueue, Range]:
        """Return the range of offsets in each queue, for the brokers that answer."""
        found: dict[MessageQueue, Range] = {}
        for name, address in self._wire.topic_masters(topic).items():
            try:
                told = self._wire.ask(address, questions.ends_of(topic))
            except RocketMQError as error:
                problems.append(f"broker {name}: {error.message}")
                continue
            found |= {queue: (held.min_offset, held.max_offset) for queue, held in told.items()}
        return found

    @question
    def track(self, topic: str, msg_id: str) -> list[TrackRow]:
        """Return the fate of a message in every group that consumes its topic.

        Copies a group sent back are looked for in its retry and dead-letter topics and in the delay
        topic, by the sender's id, which every copy keeps. The search takes one request for each
        topic, and three about the group. A message that was dead-lettered and sent again is
        followed from there.

        Raises:
            OffsetNotFoundError: no broker has such a message.
            RouteNotFoundError: the topic is unknown.
        """
        message = self._lookup.one(topic, msg_id)
        is_place = msg_id == message.offset_msg_id
        tracked = Tracked(self._lookup, message, self._wire.masters(), is_place=is_place)
        return [tracked.row(group) for group in Topics(self._reach).consumers(topic)]

    @question
    def trace(self, topic: str, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> TraceTimeline:
        """Return the events producers and consumers recorded of a message.

        Clients record a message only if their tracing is on; without a record the timeline is
        empty. The store time is asked of the broker. Records of Java's clients and of ours are
        read.

        Args:
            topic: the message's topic.
            msg_id: the sender's id, or the broker's while the message is stored.
            trace_topic: the topic that holds the records.

        Raises:
            RouteNotFoundError: the topic or the trace topic is unknown.
        """
        return read_trace(self._lookup, self._showing.masking, topic, msg_id, trace_topic)

    @question
    def consume_plan(self, group: str, client_id: str, topic: str, msg_id: str) -> ConsumePlan:
        """Return what ``consume`` would do; changes nothing.

        Raises:
            OffsetNotFoundError: there is no such message.
            ConfigurationError: the member is not connected; the error names the connected ones.
        """
        connections = self._wire.connections(group, self._wire.masters()).values()
        members = {member.client_id for member in member_rows(connections)}
        if client_id not in members:
            from rocketstream.suggestions import like  # needed only where a name is wrong

            there = ", ".join(sorted(members)) or "nobody is"
            raise ConfigurationError(
                f"{client_id!r} is not connected as a member of group {group!r}"
                f"{like(client_id, members)}; connected: {there}",
                group=group,
                client_id=client_id,
            )
        message = self.view(topic, msg_id)
        return ConsumePlan(
            group=group,
            client_id=client_id,
            topic=topic,
            msg_id=msg_id,
            keys=message.keys,
            broker_name=message.broker_name,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            stored_ms=message.store_timestamp,
        )

    @change
    def consume(
        self,
        group: str,
        client_id: str,
        topic: str,
        msg_id: str,
        *,
        stored_ms: int | None = None,
    ) -> ConsumedRow:
        """Make one member consume one message now, outside its normal course (309).

        The group's progress does not change. Blocks until the listener returns, for up to 10 s.

        Args:
            topic: the message's topic.
            msg_id: either of the message's two ids.
            stored_ms: when the message that was shown was stored, as its plan or row says: only
                this one is consumed. The broker's id is a place in its log, which another message
                has after a power loss.

        Raises:
            OffsetNotFoundError: there is no such message.
            ReadOnlyError: this Admin is read-only.
            ClientStateError: the message that the id names now was stored at another time.
            BrokerError: the member is not connected to the message's broker or did not answer.
        """
        self._changes.check("message.consume")
        message = self._lookup.one(topic, msg_id)
        if stored_ms is not None and message.store_timestamp != stored_ms:
            stored = f"stored at {message.store_timestamp} ms, not at {stored_ms}"
            refuse("the message is not consumed", (), [f"{msg_id} names another, {stored}"])
        arguments = {"group": group, "client": client_id, "topic": topic, "message": msg_id}
        with self._changes.open("message.consume", arguments) as made:
            result = made.wire.consume_directly(
                message.store_host, group, client_id, message.offset_msg_id
            )
            made.after = {
                "result": str(result.consume_result),
                "spentMs": result.spent_time_mills,
            }
        return ConsumedRow(
            client_id=client_id,
            result=str(result.consume_result),
            order=result.order,
            auto_commit=result.auto_commit,
            spent_ms=result.spent_time_mills,
            remark=self._showing.told_of(message, result.remark),
        )

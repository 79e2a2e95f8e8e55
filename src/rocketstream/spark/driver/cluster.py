"""The driver's questions to a cluster: which queues exist, and where they begin and end.

``streaming`` and ``positions`` decide what follows from the answers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConsumerNotOnlineError,
    RocketMQError,
    RouteNotFoundError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerConnection, TopicList
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
)
from rocketstream.protocol.record import RecordHead
from rocketstream.spark.connections import admin_client
from rocketstream.spark.driver.offsets import Mark
from rocketstream.spark.driver.planning import first_at
from rocketstream.spark.driver.pulls import QueueEntry, ask_entry, entry_at, head_at, pull_one
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.options.reading import matching
from rocketstream.spark.patience import Patience, patiently

logger: logging.Logger = logging.getLogger("rocketstream.spark")

T = TypeVar("T")

_NO_SUCH_QUEUE: Final = "is not exist!"
"""The broker's words for a queue that holds no message: the account and the request are fine."""
_QUEUE_REMOVED: Final = "is illegal"
"""In the broker's words for a queue its topic does not have any more."""
_NO_MESSAGE: Final = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class Cluster:
    """Answers questions about the topics of a read; blocking; to be closed.

    Args:
        options: the options of the read.
        clock: bounds retries.
    """

    def __init__(self, options: ReadOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._client = admin_client(options)
        self._without_index: set[str] = set()

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def queues(self, *, refresh: bool = False, held: Collection[str] = ()) -> list[MessageQueue]:
        """Return the readable queues to read, sorted.

        A pattern selects from the topics the name server lists now, with or without queues.

        Args:
            refresh: ask the name server again.
            held: topics that existed before; such a topic may have no queue at the moment.

        Raises:
            RouteNotFoundError: a topic is unknown.
            ConfigurationError: a topic has no readable queue, or an assigned queue does not exist.
        """
        choice = self._options.choice
        topics: Sequence[str] = choice.names
        if choice.pattern is not None:
            topics = held = self._matching(choice.pattern)
        found: list[MessageQueue] = []
        for topic in topics:
            try:
                queues = self._client.subscribe_queues(topic, refresh=refresh)
            except RouteNotFoundError:
                if topic not in held:
                    raise
                queues = []
            if not queues and topic not in held:
                raise ConfigurationError(
                    f"topic {topic!r} has no readable queue: no broker grants it read permission",
                    topic=topic,
                )
            found += queues
        if choice.queues is None:
            return sorted(found)
        missing = sorted(q for q in choice.queues.difference(found) if q.topic not in held)
        if missing:
            raise ConfigurationError(
                f"option 'assign' names queues that do not exist: {_list(missing)}; there are "
                f"{_list(sorted(found))}",
                option="assign",
            )
        return sorted(choice.queues.intersection(found))

    def _matching(self, pattern: str) -> list[str]:
        """Return the present topics that match a pattern."""
        return matching(
            pattern,
            self._topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            self._topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS),
        )

    def _topic_list(self, code: RequestCode) -> set[str]:
        answer = self._client.request_namesrv(RemotingCommand.request(code))
        return set(TopicList.decode(answer.body).topic_list)

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the oldest offset of each queue."""
        return self._client.min_offsets(queues)

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the end of each queue."""
        return self._client.max_offsets(queues)

    def addresses(self, queues: Iterable[MessageQueue]) -> dict[str, str]:
        """Return the address of each broker of some queues."""
        names = {queue.broker_name for queue in queues}
        return {name: self._client.address(name) for name in sorted(names)}

    def has_master(self, broker_name: str) -> bool:
        """Whether a broker has a master now, not only slaves; True if that cannot be found out."""
        try:
            self._client.master(broker_name, refresh=True)
        except RouteNotFoundError:
            return False
        except (TransportError, BrokerError):
            return True
        return True

    def end_anyway(self, queue: MessageQueue) -> int | None:
        """Return the end of a queue that is in no route; None where its broker does not say."""
        try:
            return self._client.max_offset(queue)
        except (TransportError, BrokerError, RouteNotFoundError):
            return None

    def served(self, broker_name: str, rows: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Return which of a broker's queues can be read there, whatever the name server lists.

        Args:
            broker_name: the broker, of which the master is asked: a slave may know a topic late.
            rows: an offset of each queue.

        Raises:
            TransportError, RouteNotFoundError: it cannot be asked.
            BrokerError: it refuses for another reason than that the topic or the queue is gone.
        """
        address = self._client.master(broker_name, refresh=True)
        pulls = {queue: pull_one(self._options, queue, at) for queue, at in rows.items()}
        found: set[MessageQueue] = set()
        for queue, answer in self._answers(broker_name, pulls).items():
            if answer.code == ResponseCode.SUCCESS or answer.code in _NO_MESSAGE:
                found.add(queue)
            elif not (
                answer.code == ResponseCode.TOPIC_NOT_EXIST
                or _QUEUE_REMOVED in (answer.remark or "")
            ):
                raise broker_error(answer.code, answer.remark, address)
        return found

    # --- rows -------------------------------------------------------------------------------------

    def marks(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark]:
        """Return marks that tell the rows at some offsets from others; deleted rows are left out.

        A broker's index tells the places, and its newest of these rows, pulled, when that was
        stored: whole messages of each queue may be more bytes than the batch that is planned.
        """
        found: dict[MessageQueue, Mark] = {}
        for broker_name, asked in _by_broker(rows).items():
            entries = self._entries(broker_name, asked) if len(asked) > 1 else None
            if entries:
                newest = max(entries, key=lambda queue: entries[queue].place)
                pulled = self._pulled(broker_name, {newest: asked[newest]}).get(newest)
                # Another place: deleted meanwhile, or the queues of a static topic (5.x), which
                # stand for parts of others.
                if pulled is not None and pulled.place == entries[newest].place:
                    found |= {q: Mark(pulled.store_ms, e.place) for q, e in entries.items()}
                    continue
            if entries is None or entries:
                found |= self._pulled(broker_name, asked)
        return found

    def marks_again(
        self,
        rows: Mapping[MessageQueue, int],
        before: Mapping[MessageQueue, Mark],
        doubted: Collection[MessageQueue],
    ) -> dict[MessageQueue, Mark]:
        """Return the marks of rows that were marked before, unchanged where it is the same row.

        Args:
            rows: the offsets of the rows.
            before: their marks.
            doubted: the queues whose broker may have begun its log anew since: rows of equal sizes
                have equal places then, so the places alone do not tell.
        """
        found: dict[MessageQueue, Mark] = {}
        for broker_name, asked in _by_broker(rows).items():
            entries = self._entries(broker_name, asked)
            known = [q for q, e in (entries or {}).items() if e.place == before[q].place]
            unsure = [queue for queue in known if queue in doubted]
            if unsure:
                # Of the newest row the mark is exact. If it is the same the log is, up to there.
                newest = max(unsure, key=lambda queue: before[queue].place)
                pulled = self._pulled(broker_name, {newest: asked[newest]})
                if pulled.get(newest) != before[newest]:
                    known = [queue for queue in known if queue not in doubted]
            found |= {queue: before[queue] for queue in known}
            others = {q: at for q, at in asked.items() if entries is None or q in entries}
            for queue in known:
                del others[queue]
            for queue, mark in self._pulled(broker_name, others).items():
                found[queue] = before[queue] if before[queue].is_of(mark) else mark
        return found

    def row_bytes(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the stored bytes of the rows at some offsets, without deleted ones."""
        found: dict[MessageQueue, int] = {}
        for broker_name, asked in _by_broker(rows).items():
            entries = self._entries(broker_name, asked)
            if entries is not None:
                found |= {q: entry.size for q, entry in entries.items() if entry.is_alone}
                asked = {q: asked[q] for q, entry in entries.items() if not entry.is_alone}
            heads = self._heads(broker_name, asked)
            found |= {queue: head.total_size for queue, head in heads.items()}
        return found

    def _pulled(
        self, broker_name: str, rows: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, Mark]:
        """Return exact marks of a broker's rows."""
        heads = self._heads(broker_name, rows)
        return {q: Mark(head.store_timestamp, head.physical_offset) for q, head in heads.items()}

    def _entries(
        self, broker_name: str, rows: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, QueueEntry] | None:
        """Return the index's entries of a broker's rows; None where it does not show its index."""
        if broker_name in self._without_index:
            return None
        answers = self._answers(broker_name, {q: ask_entry(q, at) for q, at in rows.items()})
        found: dict[MessageQueue, QueueEntry] = {}
        for queue, answer in answers.items():
            if answer.code != ResponseCode.SUCCESS:
                if _NO_SUCH_QUEUE in (answer.remark or ""):
                    continue
                logger.info("broker=%s shows no index: %s", broker_name, answer.remark)
                self._without_index.add(broker_name)
                return None
            entry = entry_at(bytes(answer.body), rows[queue])
            if entry is not None:
                found[queue] = entry
        return found

    def _heads(
        self, broker_name: str, rows: Mapping[MessageQueue, int], *, exactly: bool = True
    ) -> dict[MessageQueue, RecordHead]:
        """Pull one message of each of a broker's queues; ``exactly`` at its offset, or none."""
        pulls = {queue: pull_one(self._options, queue, at) for queue, at in rows.items()}
        found: dict[MessageQueue, RecordHead] = {}
        for queue, answer in self._answers(broker_name, pulls).items():
            if answer.code != ResponseCode.SUCCESS and answer.code not in _NO_MESSAGE:
                raise broker_error(answer.code, answer.remark, self._client.address(broker_name))
            if answer.code == ResponseCode.SUCCESS and answer.body:
                head = head_at(bytes(answer.body), rows[queue] if exactly else None)
                found |= {} if head is None else {queue: head}
        return found

    def _answers(
        self, broker_name: str, questions: Mapping[MessageQueue, RemotingCommand]
    ) -> dict[MessageQueue, RemotingCommand]:
        """Ask a broker about some queues, many requests under way at a time."""
        queues, found = list(questions), dict[MessageQueue, RemotingCommand]()

        def read(place: int, answer: RemotingCommand) -> None:
            answer.body = bytes(answer.body)
            found[queues[place]] = answer

        try:
            address = self._client.address(broker_name)
            self._client.request_each(address, list(questions.values()), read)
        except TransportError:
            # The next attempt must go to where the broker is by then.
            with contextlib.suppress(TransportError, BrokerError, RouteNotFoundError):
                self._client.address(broker_name, refresh=True)
            raise
        return found

    # --- the group --------------------------------------------------------------------------------

    def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Report a group's offsets to the brokers, which have them when this returns.

        Raises:
            TransportError, BrokerError, RouteNotFoundError: a broker was not reached or refused;
                the others have the report.
        """
        self._client.update_consumer_offsets(group, offsets)

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return a group's offsets at the brokers; queues without one are left out."""
        found: dict[MessageQueue, int] = {}
        for broker_name, asked in _by_broker(dict.fromkeys(queues, 0)).items():
            questions = {queue: _ask_committed(group, queue) for queue in asked}
            for queue, answer in self._answers(broker_name, questions).items():
                if answer.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                if answer.code != ResponseCode.SUCCESS:
                    address = self._client.address(broker_name)
                    raise broker_error(answer.code, answer.remark, address)
                offset = answer.header(QueryConsumerOffsetResponseHeader).offset
                found |= {queue: offset} if offset >= 0 else {}
        return found

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, low: int, high: int) -> int:
        """Return the first offset stored at or after a time, ``high`` where there is none.

        The broker's own search returns the nearest offset, any of several of the same millisecond,
        and never the end of the queue (C-372); the search here begins from it.

        Args:
            queue: where to look.
            timestamp_ms: ms since 1970.
            low: the oldest offset of the queue.
            high: the end of the queue.
        """
        if low >= high:
            return high
        hint = self._client.search_offset(queue, timestamp_ms)
        return first_at(low, high, hint, lambda at: self._store_time(queue, at) >= timestamp_ms)

    def members(self, group: str, queues: Iterable[MessageQueue]) -> dict[str, str]:
        """Return the addresses of a group's members by client id, as known to the queues' brokers.

        Raises:
            TransportError, BrokerError, RouteNotFoundError: a broker did not answer.
        """
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        found: dict[str, str] = {}
        for address in self.addresses(queues).values():
            command = RemotingCommand.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            try:
                answer = self._client.request(address, command)
            except ConsumerNotOnlineError:
                continue
            for each in ConsumerConnection.decode(answer.body).connection_set:
                found[each.client_id] = each.client_addr
        return found

    def patiently(self, ask: Callable[[], T], *, topics_known: bool = False) -> T:
        """Ask, and ask again after failures that may pass, for up to ``retryTimeoutMs``.

        Args:
            ask: the question, blocking.
            topics_known: whether a topic without a route means that a broker is away, not a typing
                error.
        """

        def may_pass(error: RocketMQError) -> bool:
            if isinstance(error, RouteNotFoundError):
                return topics_known
            return isinstance(error, (TransportError, BrokerError)) and error.retriable

        return patiently(ask, Patience(self._options.retry_timeout_ms, self._clock), may_pass)

    def _store_time(self, queue: MessageQueue, offset: int) -> int:
        heads = self._heads(queue.broker_name, {queue: offset}, exactly=False)
        # Deleted meanwhile: older than anything that still exists.
        return heads[queue].store_timestamp if heads else -1


def _ask_committed(group: str, queue: MessageQueue) -> RemotingCommand:
    header = QueryConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, bname=queue.broker_name
    )
    return RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)


def _by_broker(rows: Mapping[MessageQueue, int]) -> dict[str, dict[MessageQueue, int]]:
    found: dict[str, dict[MessageQueue, int]] = {}
    for queue, offset in rows.items():
        found.setdefault(queue.broker_name, {})[queue] = offset
    return found


def _list(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues)

"""The driver's questions to a cluster: which queues exist, and where they begin and end.

``streaming`` and ``batch`` decide what follows from the answers.
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
from rocketstream.protocol.headers import GetConsumerConnectionListRequestHeader
from rocketstream.protocol.record import RecordHead
from rocketstream.spark.connections import admin_client, new_pool
from rocketstream.spark.driver.offsets import Mark
from rocketstream.spark.driver.planning import first_at
from rocketstream.spark.driver.pulls import head_at, pull_one
from rocketstream.spark.driver.topics import matching
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.patience import Patience

logger = logging.getLogger("rocketstream.spark")

T = TypeVar("T")

_MARKS_AT_ONCE: Final = 32
"""Most requests sent before the first answer is read: few enough for the buffers of a socket."""
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
        self._pulls = new_pool(options)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
        self._pulls.close()

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

    def marks(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark]:
        """Return marks that tell the rows at some offsets from others; deleted rows are left out.

        One round trip per broker and 32 queues.
        """
        heads = self._heads_of(rows)
        return {q: Mark(head.store_timestamp, head.physical_offset) for q, head in heads.items()}

    def row_bytes(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the stored bytes of the rows at some offsets, without deleted ones."""
        return {queue: head.total_size for queue, head in self._heads_of(rows).items()}

    def _heads_of(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, RecordHead]:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in rows:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        found: dict[MessageQueue, RecordHead] = {}
        for broker_name, queues in by_broker.items():
            for first in range(0, len(queues), _MARKS_AT_ONCE):
                some = queues[first : first + _MARKS_AT_ONCE]
                heads = zip(some, self._heads(broker_name, some, rows), strict=True)
                found |= {q: h for q, h in heads if h is not None}
        return found

    def _heads(
        self,
        broker_name: str,
        queues: Sequence[MessageQueue],
        rows: Mapping[MessageQueue, int],
        *,
        exactly: bool = True,
    ) -> list[RecordHead | None]:
        """Pull one message of each of a broker's queues; ``exactly`` at its offset, or none."""
        address = self._client.address(broker_name)
        answers: dict[int, RemotingCommand] = {}
        try:
            with self._pulls.connection(address) as connection:
                asked = [connection.submit(pull_one(self._options, q, rows[q])) for q in queues]
                for _ in asked:
                    answer = connection.receive(self._options.request_timeout_ms)
                    answers[answer.opaque] = answer
        except TransportError:
            # The next attempt must go to where the broker is by then.
            with contextlib.suppress(TransportError, BrokerError, RouteNotFoundError):
                self._client.address(broker_name, refresh=True)
            raise
        return [
            _first_head(answers[opaque], address, rows[queue] if exactly else None)
            for queue, opaque in zip(queues, asked, strict=True)
        ]

    def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Report a group's offsets to the brokers, one-way.

        Raises:
            TransportError, BrokerError, RouteNotFoundError: a broker cannot be reached; the others
                got the report.
        """
        failure: RocketMQError | None = None
        for queue, offset in offsets.items():
            try:
                self._client.update_consumer_offset(group, queue, offset, oneway=True)
            except (TransportError, BrokerError, RouteNotFoundError) as error:
                failure = error
        if failure is not None:
            raise failure

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return a group's offsets at the brokers; queues without one are left out."""
        asked = {queue: self._client.query_consumer_offset(group, queue) for queue in queues}
        return {queue: offset for queue, offset in asked.items() if offset is not None}

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
        patience = Patience(self._options.retry_timeout_ms, self._clock)
        while True:
            try:
                return ask()
            except (TransportError, BrokerError, RouteNotFoundError) as error:
                passing = topics_known or not isinstance(error, RouteNotFoundError)
                if not (error.retriable and passing) or patience.exhausted():
                    raise
                logger.warning("no answer from the cluster, asking again: %s", error)
                patience.pause()

    def _store_time(self, queue: MessageQueue, offset: int) -> int:
        (head,) = self._heads(queue.broker_name, [queue], {queue: offset}, exactly=False)
        # Deleted meanwhile: older than anything that still exists.
        return -1 if head is None else head.store_timestamp


def _first_head(answer: RemotingCommand, address: str, offset: int | None) -> RecordHead | None:
    if answer.code == ResponseCode.SUCCESS:
        return head_at(bytes(answer.body), offset) if answer.body else None
    if answer.code in _NO_MESSAGE:
        return None
    raise broker_error(answer.code, answer.remark, address)


def _list(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues)

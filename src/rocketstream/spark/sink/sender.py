"""Messages cut into requests, several of them under way, until every message is acknowledged.

Law: requests that must keep their order in a queue are sent one after the other, because brokers
handle the requests of one connection in parallel.

The client's ``SendPolicy`` is not used: it counts the tries of one message that its caller
waits for, here time bounds them for all that a task has under way, and pauses lie between them. A
lost connection fails many requests at once, brokers that failed are avoided by the whole task, and
a request may be sent again although it may be stored, since Spark would send its rows again anyway.
The meaning of one try is the client's: ``choose_queue``, ``outcome_of`` and the codes worth another
try.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.producer.policy import choose_queue, outcome_of, unsafe
from rocketstream.client.producer.settings import RETRY_RESPONSE_CODES, ProducerSettings
from rocketstream.columns.messages import Run, cut
from rocketstream.errors import (
    BrokerError,
    ConnectionLostError,
    ProtocolError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
    SendError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.sends import PreparedSend
from rocketstream.spark.options import WriteOptions
from rocketstream.spark.patience import Patience
from rocketstream.spark.sink.routes import Routes
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool

logger: logging.Logger = logging.getLogger("rocketstream.spark")

AVOIDED_MS: Final = 5_000
"""How long a broker that failed gets no messages that other brokers can take."""
REFUSALS_MAX: Final = 5
"""How often a refusal is retried whose code also stands for permanent ones, and how often messages
that a broker does not call safe: each of those tries stores them once more.
"""
_PASSES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})


@dataclass(slots=True)
class _Parcel:
    """The messages of one request on their way to being acknowledged."""

    prepared: PreparedSend
    queue: MessageQueue | None
    count: int
    patience: Patience
    errors: list[Exception] = field(default_factory=list)
    refusals: int = 0
    last_broker: str | None = None


@dataclass(frozen=True, slots=True)
class _Flight:
    """One try of a parcel: submitted, and not answered yet."""

    parcel: _Parcel
    queue: MessageQueue
    address: str


class Sender:
    """Sends for one task; not thread safe; a context manager.

    Leaving it by an exception gives up messages that are not acknowledged; their outcome is then
    unknown.

    Args:
        options: the options of the write.
        connections: the pool to borrow connections from.
        routes: knows where topics can be written.
        first_queue: the number of the first queue to use where any queue will do.
        clock: bounds retries.
    """

    def __init__(
        self,
        options: WriteOptions,
        connections: BlockingPool,
        routes: Routes,
        first_queue: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = options
        self._pool = connections
        self._routes = routes
        self._clock = clock
        self._rotation = itertools.count(first_queue)
        self._connections: dict[str, tuple[BlockingConnection, ExitStack]] = {}
        self._flying: dict[tuple[str, int], _Flight] = {}
        self._messages_flying = 0
        self._waiting: deque[_Parcel] = deque()
        self._avoided: dict[str, float] = {}
        self._requests = ProducerSettings(
            options.producer_group,
            default_topic_queue_nums=options.default_topic_queue_nums,
            max_message_size=options.max_message_size,
        ).requests()
        self.acknowledged: int = 0
        """How many messages brokers have stored as safely as they are set up to."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for address in list(self._connections):
            self._drop(address)

    def send_run(self, run: Run) -> None:
        """Send messages with the same destination, in as few requests as the options allow.

        Blocks and raises as ``send`` does, and as ``Routes.require_timers`` where they have a
        delivery time of their own.
        """
        if run.delayed and run.block.timed:
            queues = [run.queue] if run.queue else self._routes.queues(run.topic)
            self._routes.require_timers(run.topic, queues)
        count_max = 1 if run.delayed else self._options.send_batch_size
        for begin, end in cut(run.block.ends, self._options.send_batch_bytes, count_max):
            self.send(self._request(run, begin, end), run.queue, end - begin)

    def send(self, prepared: PreparedSend, queue: MessageQueue | None, count: int) -> None:
        """Send ``count`` messages; returns when they are on their way.

        Blocks while as many requests as allowed are under way, and while failures are retried.

        Args:
            prepared: the request.
            queue: the queue the request must go to, after all requests sent there before; None for
                any queue of its topic.
            count: how many messages are in the request.

        Raises:
            SendError: messages sent now or before are not acknowledged, and no retry is left or
                the refusal is final; its ``outcome`` is that of the request it names.
        """
        patience = Patience(self._options.retry_timeout_ms, self._clock)
        self._waiting.append(_Parcel(prepared, queue, count, patience))
        self._get_under_way()

    def finish(self) -> None:
        """Wait until everything sent is acknowledged; raises as ``send`` does."""
        while self._flying or self._waiting:
            self._get_under_way()
            if self._flying:
                self._receive()

    # --- inside -----------------------------------------------------------------------------------

    def _request(self, run: Run, begin: int, end: int) -> PreparedSend:
        body, properties, flag, code = run.block.request(begin, end)
        now = self._clock.now_ms()
        return PreparedSend(self._requests, run.topic, body, properties, "", now, flag, code=code)

    def _get_under_way(self) -> None:
        while self._waiting:
            parcel = self._next_free()
            if parcel is None or not self._has_room(parcel):
                self._receive()
                continue
            self._waiting.remove(parcel)
            self._submit(parcel)

    def _next_free(self) -> _Parcel | None:
        """Return a parcel that may be sent now: an ordered queue has only one request under way."""
        busy = {flight.queue for flight in self._flying.values() if flight.parcel.queue}
        return next((each for each in self._waiting if each.queue not in busy), None)

    def _has_room(self, parcel: _Parcel) -> bool:
        if not self._flying:
            return True
        messages = self._messages_flying + parcel.count
        return (
            len(self._flying) < self._options.sends_in_flight
            and messages <= limits.SENDS_MESSAGES_MAX
        )

    def _submit(self, parcel: _Parcel) -> None:
        queue = self._queue_for(parcel)
        address = ""
        try:
            address = self._routes.address(queue.broker_name)
            connection = self._connection(address)
            opaque = connection.submit(parcel.prepared.command(queue))
        except (TransportError, RouteNotFoundError) as error:
            self._lost(address)
            self._failed(parcel, queue, error)
            return
        except ProtocolError as error:
            raise self._given_up(parcel, [*parcel.errors, error]) from error
        self._flying[address, opaque] = _Flight(parcel, queue, address)
        self._messages_flying += parcel.count

    def _receive(self) -> None:
        """Take one answer, from the connection whose request has been under way longest."""
        address = next(iter(self._flying.values())).address
        connection, _ = self._connections[address]
        try:
            answer = connection.receive(self._options.request_timeout_ms)
        except (TransportError, RemoteProtocolError) as error:
            self._lost(address, error)
            return
        flight = self._flying.pop((address, answer.opaque))
        self._messages_flying -= flight.parcel.count
        self._answered(flight, answer)

    def _answered(self, flight: _Flight, answer: RemotingCommand) -> None:
        parcel, broker = flight.parcel, flight.queue.broker_name
        try:
            doubt = unsafe(parcel.prepared.result(answer, flight.queue, flight.address))
        except BrokerError as error:
            if error.code not in RETRY_RESPONSE_CODES:
                raise self._given_up(parcel, [*parcel.errors, error]) from error
            self._refused(flight, error, counts=error.code not in _PASSES)
        except RemoteProtocolError as error:
            self._failed(parcel, flight.queue, error)
        else:
            if doubt is not None:
                self._refused(flight, doubt, counts=True)
                return
            self.acknowledged += parcel.count
            self._avoided.pop(broker, None)

    def _refused(self, flight: _Flight, error: RocketMQError, *, counts: bool) -> None:
        """Queue a parcel for another try, or give it up where it was refused too often."""
        parcel = flight.parcel
        parcel.refusals += counts
        if parcel.refusals > REFUSALS_MAX:
            raise self._given_up(parcel, [*parcel.errors, error]) from error
        self._failed(parcel, flight.queue, error)

    def _lost(self, address: str, error: RocketMQError | None = None) -> None:
        """Give up the requests on a connection that broke; their outcome is unknown."""
        if error is None:
            error = ConnectionLostError(f"the connection to {address} is gone")
        lost = [key for key in self._flying if key[0] == address]
        flights = [self._flying.pop(key) for key in lost]
        self._messages_flying -= sum(flight.parcel.count for flight in flights)
        # Noted for all parcels before one of them is given up.
        for flight in reversed(flights):
            self._failed(flight.parcel, flight.queue, error)

    def _failed(self, parcel: _Parcel, queue: MessageQueue, error: RocketMQError) -> None:
        """Queue a parcel for another try, or give it up."""
        parcel.errors.append(error)
        if parcel.patience.exhausted():
            raise self._given_up(parcel, parcel.errors) from error
        logger.info("sending again to=%s error=%s", queue, error)
        broker = queue.broker_name
        parcel.last_broker = broker
        self._avoided[broker] = self._clock.monotonic_ms() + AVOIDED_MS
        self._waiting.appendleft(parcel)
        if parcel.queue is not None or not self._healthy(queue.topic):
            parcel.patience.pause()
        self._routes.look_again(broker)

    def _queue_for(self, parcel: _Parcel) -> MessageQueue:
        if parcel.queue is not None:
            return parcel.queue
        topic = parcel.prepared.topic
        queues = self._healthy(topic) or self._routes.queues(topic)
        return choose_queue(queues, lambda: next(self._rotation), parcel.last_broker)

    def _healthy(self, topic: str) -> Sequence[MessageQueue]:
        """Return a topic's queues at brokers that did not fail lately."""
        queues = self._routes.queues(topic)
        now = self._clock.monotonic_ms()
        return [q for q in queues if self._avoided.get(q.broker_name, now) <= now]

    def _connection(self, address: str) -> BlockingConnection:
        """Return the connection to a broker; a new one where the peer closed the idle one."""
        known = self._connections.get(address)
        if known is not None:
            connection = known[0]
            if connection.requests_in_flight or not connection.is_stale():
                return connection
            self._drop(address)
        stack = ExitStack()
        connection = stack.enter_context(self._pool.connection(address))
        self._connections[address] = connection, stack
        return connection

    def _drop(self, address: str) -> None:
        known = self._connections.pop(address, None)
        if known is not None:
            known[1].close()

    def _given_up(self, parcel: _Parcel, errors: Sequence[Exception]) -> SendError:
        topic = parcel.prepared.topic
        return SendError(
            f"{parcel.count} messages for topic {topic!r} are not acknowledged after {len(errors)} "
            f"tries (retryTimeoutMs {self._options.retry_timeout_ms}): {errors[-1]}. "
            f"{self.acknowledged} of this task are; Spark sends all of its rows again",
            outcome_of(errors),
            topic=topic,
        )

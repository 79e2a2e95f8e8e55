"""Pure: how a producer sends: which queue a try goes to, what follows it, what is known at the end.

A send is a generator that tells what to do and is told how it went, as psycopg's; every face
drives the same. Chance, time and routes are handed in (C-457 to C-466, C-469 to C-471,
C-601 to C-603).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rocketstream.client.instance.routes import Queues, RouteTable, unknown_broker
from rocketstream.client.producer.settings import (
    LATENCY_MAX_MS,
    NOT_AVAILABLE_DURATION_MS,
    ProducerSettings,
)
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
    SendConnectError,
    SendError,
    SendOutcome,
    TooManyRequestsError,
)
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.tag_hash import java_hash

# --- the queue of a try ---------------------------------------------------------------------------

QueueChoice = Callable[[tuple[MessageQueue, ...]], MessageQueue]


def choose_queue(
    queues: Sequence[MessageQueue], next_index: Callable[[], int], last_broker: str | None
) -> MessageQueue:
    """Return the next queue of the rotation, after a failure one of another broker (C-460)."""
    for _ in queues:
        queue = queues[next_index() % len(queues)]
        if queue.broker_name != last_broker:
            return queue
    return queues[next_index() % len(queues)]


def queue_of_key(queues: Sequence[MessageQueue], key: object) -> MessageQueue:
    """Return the queue of a sharding key: Java's hash modulo the queues (C-471)."""
    return queues[abs(hash_of(key)) % len(queues)]


def hash_of(value: object) -> int:
    """Return Java's ``hashCode`` of a value.

    Raises:
        ConfigurationError: a value of a type Java has no equal of.
    """
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int):
        if -0x8000_0000 <= value <= 0x7FFF_FFFF:
            return value
        if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            bits = value & 0xFFFF_FFFF_FFFF_FFFF
            folded = (bits ^ bits >> 32) & 0xFFFF_FFFF
            return folded - 0x1_0000_0000 if folded >= 0x8000_0000 else folded
    raise ConfigurationError(
        f"arg must be a str, a bool or an int of 64 bits to be hashed as in Java, not {value!r:.80}"
    )


@dataclass(slots=True)
class SendTarget:
    """Where a message goes: one fixed queue, one picked from all, or the next of the rotation."""

    queue: MessageQueue | None = None
    pick: QueueChoice | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether a retry must not go elsewhere: one try only (C-469, C-470)."""
        return self.queue is not None or self.pick is not None


ANY_QUEUE = SendTarget()


class QueueRotation:
    """Chooses one queue after the other, round and round (C-460). Thread safe.

    Args:
        start: where to begin; any number, a random one so that producers do not move in step.
    """

    __slots__ = ("_counter",)

    def __init__(self, start: int) -> None:
        self._counter = itertools.count(start)

    def choose(
        self, queues: tuple[MessageQueue, ...], target: SendTarget, last_broker: str | None
    ) -> MessageQueue:
        """Return the queue of the next try.

        Args:
            queues: those of the topic.
            target: where the message is to go.
            last_broker: where the try before failed.

        Raises:
            SendError: the user's selector raised (C-470); a ``SendError`` of its own as it is.
        """
        if target.queue is not None:
            return target.queue
        if target.pick is not None:
            try:
                return target.pick(queues)
            except SendError:
                raise
            except Exception as error:
                text = f"the selector of the queue raised {error!r}"
                raise SendError(text, SendOutcome.NOT_SENT) from error
        if last_broker is None:
            return queues[next(self._counter) % len(queues)]
        return choose_queue(queues, self._counter.__next__, last_broker)


# --- brokers in trouble ---------------------------------------------------------------------------


ISOLATION_LATENCY_MS = 10_000
"""A failure counts as this latency: 10 s away by the table, never the ten minutes of C-603."""


@dataclass(frozen=True, slots=True)
class FaultItem:
    """The last try of one broker, and when it may be chosen again.

    Attributes:
        latency_ms: how long its last try took.
        available_at_ms: from when on it may be chosen again.
        reachable: False after a failure of the network, until a try or a probe succeeds.
    """

    broker_name: str
    latency_ms: float
    available_at_ms: float
    reachable: bool


class FaultTable:
    """The brokers something bad was noticed of; safe to share, since items are replaced whole.

    Args:
        latency_max: bounds in ms, ascending.
        not_available_duration: how long a broker is avoided that took at least that bound.
    """

    def __init__(
        self,
        latency_max: Sequence[int] = LATENCY_MAX_MS,
        not_available_duration: Sequence[int] = NOT_AVAILABLE_DURATION_MS,
    ) -> None:
        self._steps = tuple(zip(latency_max, not_available_duration, strict=True))
        self._items: dict[str, FaultItem] = {}

    def duration_ms(self, latency_ms: float) -> float:
        """Return for how long a broker with that latency is avoided (C-465)."""
        for bound, duration in reversed(self._steps):
            if latency_ms >= bound:
                return duration
        return 0.0

    def update(
        self,
        broker_name: str,
        latency_ms: float,
        now_ms: float,
        *,
        isolate: bool = False,
        reachable: bool = True,
    ) -> None:
        """Take in how a try went.

        Args:
            broker_name: whom it went to.
            latency_ms: how long it took.
            now_ms: monotonic time.
            isolate: it failed.
            reachable: False when it was the network that failed.
        """
        duration = self.duration_ms(ISOLATION_LATENCY_MS if isolate else latency_ms)
        if not duration and not isolate and reachable:
            self._items.pop(broker_name, None)  # nothing to remember of a healthy broker
            return
        item = FaultItem(broker_name, latency_ms, now_ms + duration, reachable)
        self._items[broker_name] = item

    def recovered(self, broker_name: str) -> None:
        """Take in that a probe reached the broker: it may be chosen again at once."""
        self._items.pop(broker_name, None)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """Whether the broker may be chosen."""
        item = self._items.get(broker_name)
        return item is None or (item.reachable and now_ms >= item.available_at_ms)

    def unreachable(self) -> list[str]:
        """Return the brokers the network failed for: those worth a probe."""
        return [item.broker_name for item in list(self._items.values()) if not item.reachable]

    def ranked(self, now_ms: float) -> list[str]:
        """Return the listed brokers, the most promising first (C-466)."""
        items = sorted(
            self._items.values(),
            key=lambda item: (
                not self.is_available(item.broker_name, now_ms),
                not item.reachable,
                item.latency_ms,
                item.available_at_ms,
            ),
        )
        return [item.broker_name for item in items]

    def choose(
        self, queues: Sequence[MessageQueue], next_index: Callable[[], int], now_ms: float
    ) -> MessageQueue | None:
        """Return the next queue on an available broker, or None (C-466)."""
        for _ in queues:
            queue = queues[next_index() % len(queues)]
            if self.is_available(queue.broker_name, now_ms):
                return queue
        return None

    def least_bad(
        self, queues: Sequence[MessageQueue], next_index: Callable[[], int], now_ms: float
    ) -> MessageQueue | None:
        """Return a queue on one of the better half of the listed brokers (pickOneAtLeast)."""
        of_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            of_broker.setdefault(queue.broker_name, []).append(queue)
        names = [name for name in self.ranked(now_ms) if name in of_broker]
        if not names:
            return None
        index = next_index()
        better = names[: max(1, len(names) // 2)]
        mine = of_broker[better[index % len(better)]]
        return mine[index // len(better) % len(mine)]


class FaultAvoidingRotation(QueueRotation):
    """A rotation that leaves out brokers in trouble while there are others (C-466).

    Args:
        start: as for ``QueueRotation``.
        table: the brokers in trouble.
        now: returns monotonic milliseconds.
    """

    __slots__ = ("_now", "_table")

    def __init__(self, start: int, table: FaultTable, now: Callable[[], float]) -> None:
        super().__init__(start)
        self._table = table
        self._now = now

    def choose(
        self, queues: tuple[MessageQueue, ...], target: SendTarget, last_broker: str | None
    ) -> MessageQueue:
        """Return the queue of the next try; raises as ``QueueRotation.choose``."""
        if target.is_fixed:
            return super().choose(queues, target, last_broker)
        now = self._now()
        next_index = self._counter.__next__
        return (
            self._table.choose(queues, next_index, now)
            or self._table.least_bad(queues, next_index, now)
            or choose_queue(queues, next_index, last_broker)
        )


# --- what is known --------------------------------------------------------------------------------


def outcome_of(errors: Sequence[Exception]) -> SendOutcome:
    """Return what is known of a message after its tries, the most doubtful try deciding."""
    if any(isinstance(e, _IN_DOUBT) or _may_be_stored(e) for e in errors):
        return SendOutcome.UNKNOWN
    if any(isinstance(e, BrokerError) for e in errors):
        return SendOutcome.REJECTED
    if all(isinstance(e, _NOTHING_LEFT) for e in errors):
        return SendOutcome.NOT_SENT
    return SendOutcome.UNKNOWN


def unsafe(result: SendResult) -> SendError | None:
    """Return why a stored message may still be lost; None if it is as safe as its broker can say.

    A producer's user is told by the status (C-473). A caller that gives an original up because this
    message replaces it, or tells nobody the status, must not count on it: only SEND_OK is an
    acknowledgement there.
    """
    if result.send_status is _SEND_OK:
        return None
    queue, why = result.message_queue, _UNSAFE[result.send_status]
    return SendError(
        f"{queue.broker_name} answered {result.send_status.value} for a message of topic "
        f"{queue.topic!r}: it is stored, but {why}; sending it again may duplicate it",
        SendOutcome.UNKNOWN,
        topic=queue.topic,
        msg_id=result.msg_id,
    ).with_retriable(True)


_SEND_OK = SendStatus.SEND_OK
_UNSAFE = {
    SendStatus.FLUSH_DISK_TIMEOUT: "was not on the broker's disk in time (syncFlushTimeout)",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "no slave had confirmed its copy in time (slaveTimeout)",
    SendStatus.SLAVE_NOT_AVAILABLE: "the broker is to copy it to a slave and has none at hand "
    "(brokerRole SYNC_MASTER)",
}


def _may_be_stored(error: Exception) -> bool:
    """Return whether a broker may hold the message although its send failed.

    One that could not flush answers SERVICE_NOT_AVAILABLE, and may find it when it starts again.
    """
    if isinstance(error, SendError):
        return error.outcome is SendOutcome.UNKNOWN
    return isinstance(error, BrokerError) and error.code == ResponseCode.SERVICE_NOT_AVAILABLE


_IN_DOUBT = (RequestTimeoutError, ConnectionLostError, RemoteProtocolError)
_NOTHING_LEFT = (
    ConnectError,
    TooManyRequestsError,
    RouteNotFoundError,
    LocalProtocolError,
    ClientStateError,  # the client was shut down meanwhile, or the process forked
    ConfigurationError,  # an address that is none
)


# --- what follows what ----------------------------------------------------------------------------

Try = tuple[MessageQueue, str, float]
"""Send to this queue, at this address, and wait for so many milliseconds at most."""
Wanted = Try | None
"""The next thing to do; None: find the route of the topic, or look whether it has changed."""
End = SendResult | Queues | Exception | None
"""The end of a try: its result, its error, or None where nothing is waited for. Of a search for a
route: the queues, or the error."""


_R_co = TypeVar("_R_co", covariant=True)
Steps = Generator[Wanted, End, _R_co]
"""A send: yields what to do, is sent how it went, returns the result or raises a ``SendError``."""


@dataclass(slots=True)
class FailedTry:
    """One try of a send that failed."""

    broker_name: str
    error: Exception


class SendPolicy:
    """How one producer sends. Thread safe; each send is a generator of its own.

    Args:
        settings: those of the producer, which has them here; may be replaced by others.
        rotation: chooses the queue of each try; may be replaced too.
        now: returns monotonic milliseconds.
        port_of: makes of a broker's address the one to send to; None: it is the same.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        rotation: QueueRotation,
        now: Callable[[], float],
        port_of: Callable[[str], str] | None = None,
    ) -> None:
        self.settings = settings
        self.rotation = rotation
        self.now = now
        self._port_of = port_of

    def tries(
        self,
        routes: RouteTable,
        topic: str,
        target: SendTarget,
        timeout_ms: float,
        again: int,
    ) -> Steps[SendResult]:
        """Send one message, by as many tries as it takes and its time allows.

        A message that is stored, but not as wished, is sent elsewhere too if the settings say so
        (C-85); if that brings no result, it is the answer: it is stored (C-461).

        Args:
            routes: the queues of topics, and where brokers are.
            topic: as the servers know it.
            target: where it is to go; a fixed queue or a selector has one try (C-469, C-470).
            timeout_ms: for all tries together (C-80).
            again: most tries after the first.

        Raises:
            SendError: not sent, refused, or unknown; the earlier tries count for its ``outcome``.
        """
        routes.used.add(topic)
        failed: list[FailedTry] = []
        stored: SendResult | None = None
        error: Exception
        last_broker: str | None = None
        started_ms, left_ms = self.now(), timeout_ms
        try:
            while True:
                queues = routes.publish_table.get(topic)
                if queues is None:
                    queues = _found((yield None))
                    left_ms = timeout_ms - (self.now() - started_ms)
                if left_ms <= 0:
                    raise self._error(topic, failed, timeout_ms, left_ms, "timed out")
                queue = self.rotation.choose(queues, target, last_broker)
                address = self._address(routes, queue.broker_name)
                if address is None:
                    end: End = unknown_broker(queue.broker_name)
                else:
                    end = yield queue, address, left_ms
                if isinstance(end, SendResult):
                    doubt = None if end.send_status is _SEND_OK else unsafe(end)
                    if doubt is None or not self.settings.retry_another_broker_when_not_store_ok:
                        return end
                    # It is stored, so whatever the next try brings, the outcome is open.
                    stored, error = end, doubt
                else:
                    error = _error_of(end)
                most = 1 if target.is_fixed else 1 + again
                last_broker = queue.broker_name
                failed.append(FailedTry(last_broker, error))
                left_ms = timeout_ms - (self.now() - started_ms)
                if len(failed) >= most or not self._is_worth_retry(error):
                    raise self._error(topic, failed, timeout_ms, left_ms, "failed") from error
                if isinstance(error, ConnectError) and left_ms > 0:
                    # Brokers go and come one after the other: another may be back since the route
                    # was asked for. If nobody can say, the known queues are tried again.
                    yield None
                    left_ms = timeout_ms - (self.now() - started_ms)
        except SendError as no:
            if stored is not None:
                return stored
            no.parameters.setdefault("topic", topic)
            if failed:
                no.outcome = outcome_of([each.error for each in failed])
            raise

    def oneway(self, routes: RouteTable, topic: str, target: SendTarget) -> Steps[None]:
        """Write one message and do not wait: one try, whose end is None once it is written.

        Raises:
            SendError: it could not be written.
        """
        queue = yield from self.queue(routes, topic, target)
        address = self._address(routes, queue.broker_name)
        if address is None:
            end: End = unknown_broker(queue.broker_name)
        else:
            end = yield queue, address, self.settings.send_msg_timeout_ms
        if isinstance(end, SendError):
            end.parameters.setdefault("topic", topic)
            raise end
        if isinstance(end, Exception):
            text = f"one-way send failed: {end}"
            raise SendError(text, SendOutcome.NOT_SENT, topic=topic) from end

    def queue(self, routes: RouteTable, topic: str, target: SendTarget) -> Steps[MessageQueue]:
        """Choose a queue and do nothing more: the message goes there later, or with others.

        Raises:
            SendError: the topic has no route, or the user's selector raised.
        """
        routes.used.add(topic)
        queues = routes.publish_table.get(topic)
        if queues is None:
            queues = _found((yield None))
        return self.rotation.choose(queues, target, None)

    def _address(self, routes: RouteTable, broker_name: str) -> str | None:
        address = routes.masters.get(broker_name)
        return address if address is None or self._port_of is None else self._port_of(address)

    def _is_worth_retry(self, error: Exception) -> bool:
        return is_worth_retry(error, self.settings.retry_response_codes)

    def _error(
        self,
        topic: str,
        failed: Sequence[FailedTry],
        timeout_ms: float,
        left_ms: float,
        what: str,
    ) -> SendError:
        brokers = [each.broker_name for each in failed]
        errors = [each.error for each in failed]
        last = errors[-1] if errors else None
        # The reason first: logs and screens cut texts, and upstream's words are all alike.
        reason = "there was no time to send" if last is None else str(last)
        text = (
            f"{reason}; Send [{len(brokers)}] times, still {what}, cost "
            f"[{timeout_ms - left_ms:.0f}]ms of [{timeout_ms:.0f}]ms, Topic: {topic}, "
            f"BrokersSent: {brokers}"
        )
        only_connect = bool(errors) and all(isinstance(each, ConnectError) for each in errors)
        kind = SendConnectError if only_connect else SendError
        error = kind(text, outcome_of(errors), topic=topic, brokers=brokers)
        error.__cause__ = last
        return error.with_retriable(last is None or self._is_worth_retry(last))


def is_worth_retry(error: Exception, retry_codes: Collection[int]) -> bool:
    """Return whether another try may bring what one did not (C-87, C-461)."""
    if isinstance(error, BrokerError):
        return error.code in retry_codes
    return isinstance(error, RocketMQError) and error.retriable


def _found(end: End) -> Queues:
    """Return the queues that were found.

    Raises:
        SendError: there are none.
    """
    if isinstance(end, tuple):
        return end
    raise _error_of(end)


def _error_of(end: End) -> Exception:
    """Return the error a try ended with.

    Raises:
        SendError: the end of the whole send, which no other try is to follow.
    """
    if isinstance(end, SendError):
        raise end
    if isinstance(end, Exception):
        return end
    return InternalError(f"a try of a send ended with neither result nor error: {end!r}")

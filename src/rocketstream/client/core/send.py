"""Sending: which queue is next, whether to try again, what is known of the message when it fails.

Law: pure; one rule for the sync, future and asyncio forms (C-457 to C-464, C-601, C-602).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rocketstream.errors import (
    BrokerError,
    ConnectError,
    ConnectionLostError,
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
from rocketstream.late import dataclass
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.tag_hash import java_hash

RETRY_RESPONSE_CODES = frozenset(
    {
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.GO_AWAY),
    }
)
"""Broker codes a send is tried again on (C-87; 2 and 1500 as 5.x does, C-601)."""


def choose_queue(
    queues: Sequence[MessageQueue], next_index: Callable[[], int], last_broker: str | None
) -> MessageQueue:
    """Return the next queue in turn, after a failure one of another broker (C-460)."""
    for _ in queues:
        queue = queues[next_index() % len(queues)]
        if queue.broker_name != last_broker:
            return queue
    return queues[next_index() % len(queues)]


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key: Java's hash modulo the queues (C-471)."""
    return queues[abs(java_hash(sharding_key)) % len(queues)]


@dataclass(slots=True)
class Attempt:
    """One try of a send that failed."""

    broker_name: str
    error: Exception


class SendAttempts:
    """The tries of one message inside one time budget.

    Args:
        topic: for the error text.
        started_ms: monotonic time of the call.
        timeout_ms: budget of all tries together (C-80).
        tries: most tries; 1 for a fixed queue or a selector (C-469, C-470).
        retry_codes: broker codes worth another try.
        elsewhere: a message that is stored, but not as wished, is tried elsewhere too (C-85).
    """

    __slots__ = (
        "_elsewhere", "_failed", "_retry_codes", "_started_ms", "_timeout_ms", "_topic", "_tries",
        "stored",
    )  # fmt: skip
    stored: SendResult | None
    """What the last try brought that was stored, but not as wished (C-85, C-461)."""

    def __init__(
        self,
        topic: str,
        started_ms: float,
        timeout_ms: float,
        tries: int,
        retry_codes: Collection[int] = RETRY_RESPONSE_CODES,
        *,
        elsewhere: bool = False,
    ) -> None:
        self._elsewhere = elsewhere
        self._topic = topic
        self._started_ms = started_ms
        self._timeout_ms = timeout_ms
        self._tries = tries
        self._retry_codes = retry_codes
        self._failed: list[Attempt] = []
        self.stored = None

    @property
    def outcome(self) -> SendOutcome:
        """What is known of the message after the tries so far."""
        return outcome_of([attempt.error for attempt in self._failed])

    @property
    def last_broker(self) -> str | None:
        """Broker of the last failed try."""
        return self._failed[-1].broker_name if self._failed else None

    def remaining_ms(self, now_ms: float) -> float:
        """Return what is left of the budget for the next try.

        Raises:
            SendError: nothing is left; the outcome is that of the tries so far.
        """
        remaining = self._timeout_ms - (now_ms - self._started_ms)
        if remaining <= 0:
            raise self._error(now_ms, "timed out")
        return remaining

    def failed(self, broker_name: str, error: Exception, now_ms: float) -> None:
        """Note a failed try; return if another one may be made.

        Raises:
            SendError: no try is left, or the error is not worth one.
        """
        if isinstance(error, SendError):
            if self._failed:  # it says what became of this try; the earlier ones count too
                error.outcome = self.outcome
            raise error
        self._failed.append(Attempt(broker_name, error))
        if not self._worth_retry(error) or len(self._failed) >= self._tries:
            raise self._error(now_ms, "failed") from error

    def answered(self, broker_name: str, result: SendResult) -> bool:
        """Tell whether a broker's answer ends the send; False: try once more (C-85).

        A message that is stored but not as wished may be repeated elsewhere. If no other try
        brings a result this one is the answer: it is stored (C-461).
        """
        ends = result.send_status is SendStatus.SEND_OK or not self._elsewhere
        if ends or len(self._failed) + 1 >= self._tries:
            return True
        self.stored = result
        # It is stored, so whatever the next try brings, the outcome is open.
        error = RequestTimeoutError(f"stored by {broker_name}, but flush or replication timed out")
        self._failed.append(Attempt(broker_name, error))
        return False

    def _worth_retry(self, error: Exception) -> bool:
        if isinstance(error, BrokerError):
            return error.code in self._retry_codes
        return isinstance(error, RocketMQError) and error.retriable

    def _error(self, now_ms: float, what: str) -> SendError:
        brokers = [attempt.broker_name for attempt in self._failed]
        cost = now_ms - self._started_ms
        last = self._failed[-1].error if self._failed else None
        text = (
            f"Send [{len(brokers)}] times, still {what}, cost [{cost:.0f}]ms of "
            f"[{self._timeout_ms:.0f}]ms, Topic: {self._topic}, BrokersSent: {brokers}"
            + (f": {last}" if last is not None else "")
        )
        outcome = self.outcome
        only_connect = bool(brokers) and all(
            isinstance(attempt.error, ConnectError) for attempt in self._failed
        )
        kind = SendConnectError if only_connect else SendError
        error = kind(text, outcome, topic=self._topic, brokers=brokers)
        error.__cause__ = last
        return error.with_retriable(last is None or self._worth_retry(last))


def outcome_of(errors: Sequence[Exception]) -> SendOutcome:
    """Return what is known of a message after its tries, the most doubtful try deciding."""
    if any(isinstance(e, _IN_DOUBT) or _may_be_stored(e) for e in errors):
        return SendOutcome.UNKNOWN
    if any(isinstance(e, BrokerError) for e in errors):
        return SendOutcome.REJECTED
    if all(isinstance(e, _NOTHING_LEFT) for e in errors):
        return SendOutcome.NOT_SENT
    return SendOutcome.UNKNOWN


def _may_be_stored(error: Exception) -> bool:
    """Tell whether a broker that refused may hold the message all the same.

    One that could not flush answers SERVICE_NOT_AVAILABLE, and may find it when it starts again.
    """
    return isinstance(error, BrokerError) and error.code == ResponseCode.SERVICE_NOT_AVAILABLE


_IN_DOUBT = (RequestTimeoutError, ConnectionLostError, RemoteProtocolError)
_NOTHING_LEFT = (ConnectError, TooManyRequestsError, RouteNotFoundError, LocalProtocolError)


def split_batches(sizes: Sequence[int], bytes_max: int) -> list[slice]:
    """Cut a batch into consecutive parts of at most ``bytes_max`` encoded bytes (C-477).

    A single message over the bound gets a part of its own, which the size check refuses.
    """
    parts: list[slice] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > bytes_max:
            parts.append(slice(start, i))
            start, total = i, 0
        total += size
    if sizes:
        parts.append(slice(start, len(sizes)))
    return parts

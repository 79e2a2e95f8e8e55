"""The rules of sending: the next queue, what may be tried again, what a failure leaves known.

Law: pure; of single questions. What follows what in a send is ``send_policy``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketstream.errors import (
    BrokerError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendOutcome,
    TooManyRequestsError,
)
from rocketstream.model import MessageQueue
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
    """Return the next queue of the rotation, after a failure one of another broker (C-460)."""
    for _ in queues:
        queue = queues[next_index() % len(queues)]
        if queue.broker_name != last_broker:
            return queue
    return queues[next_index() % len(queues)]


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key: Java's hash modulo the queues (C-471)."""
    return queues[abs(java_hash(sharding_key)) % len(queues)]


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
    """Return whether a broker that refused may hold the message all the same.

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

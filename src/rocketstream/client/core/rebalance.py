"""What changes when a member is allotted other queues: which to give up, which to take.

Law: pure. Each assignment makes a new process queue. What an older assignment still brings (a late
pull reply, a listener's result) carries its own process queue, which is dropped: it is discarded.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping

from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.late import dataclass
from rocketstream.model import ConsumeFromWhere, MessageQueue


class RevokeReason(enum.Enum):
    """Why a queue is given up."""

    NOT_ALLOTTED = "NOT_ALLOTTED"
    UNSUBSCRIBED = "UNSUBSCRIBED"
    PULL_EXPIRED = "PULL_EXPIRED"
    DROPPED = "DROPPED"
    """Marked dropped or leaving but still in the table: treated as absent (C-557)."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Give the queue up: mark dropped, persist its offset, forget it (C-179)."""

    message_queue: MessageQueue
    generation: int
    reason: RevokeReason


@dataclass(frozen=True, slots=True)
class Assign:
    """Take the queue: find where to start, then pull."""

    message_queue: MessageQueue


Effect = Revoke | Assign


class StartAt(enum.Enum):
    """Where a queue begins of which the store has no offset."""

    ZERO = "ZERO"
    END = "END"
    TIMESTAMP = "TIMESTAMP"


def start_at(where: ConsumeFromWhere, *, is_retry: bool) -> StartAt:
    """Return where a queue without a stored offset begins (C-189).

    The deprecated values of ``where`` count as LAST_OFFSET.
    """
    if where is ConsumeFromWhere.FIRST_OFFSET:
        return StartAt.ZERO
    if where is ConsumeFromWhere.TIMESTAMP:
        return StartAt.END if is_retry else StartAt.TIMESTAMP
    return StartAt.ZERO if is_retry else StartAt.END


def usable(
    share: Iterable[MessageQueue] | None, topic: str, queues: Collection[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Return a strategy's answer in two parts: the topic's queues, each once, and unknown ones.

    None counts as no queue (C-162). Queues of other topics are left out of both: a configured list
    may serve several topics, each has its turn (C-169).
    """
    known = set(queues)
    own = [mq for mq in dict.fromkeys(share or ()) if mq.topic == topic]
    return [mq for mq in own if mq in known], [mq for mq in own if mq not in known]


def plan(
    table: Mapping[MessageQueue, ProcessQueue],
    topic: str,
    allotted: Collection[MessageQueue],
    now_ms: float,
) -> list[Effect]:
    """Return the changes of one topic, revocations first (C-175)."""
    wanted = set(allotted)
    revoked: list[Revoke] = []
    for mq, queue in table.items():
        if mq.topic != topic:
            continue
        reason = _why_revoke(mq, queue, wanted, now_ms)
        if reason is not None:
            revoked.append(Revoke(mq, queue.generation, reason))
    gone = {effect.message_queue for effect in revoked}
    assigned = [Assign(mq) for mq in sorted(wanted) if mq not in table or mq in gone]
    return [*revoked, *assigned]


def plan_unsubscribed(
    table: Mapping[MessageQueue, ProcessQueue], topics: Collection[str]
) -> list[Revoke]:
    """Return the revocations of queues whose topic is no longer subscribed (C-157).

    Unlike upstream the shell persists their offsets too (C-554).
    """
    return [
        Revoke(mq, queue.generation, RevokeReason.UNSUBSCRIBED)
        for mq, queue in table.items()
        if mq.topic not in topics
    ]


def sorted_members(client_ids: Iterable[str]) -> list[str]:
    """Return member ids as Java sorts them, by UTF-16 code unit, each once (C-161, C-346)."""
    return sorted(set(client_ids), key=lambda cid: cid.encode("utf-16-be", "surrogatepass"))


def _why_revoke(
    mq: MessageQueue, queue: ProcessQueue, wanted: set[MessageQueue], now_ms: float
) -> RevokeReason | None:
    if mq not in wanted:
        return RevokeReason.NOT_ALLOTTED
    if queue.dropped or queue.leaving:
        return RevokeReason.DROPPED
    if queue.is_pull_expired(now_ms):
        return RevokeReason.PULL_EXPIRED
    return None

"""Pure: how a group divides the queues of a topic, and what changes for a member with its share.

Every member computes the same answer from the same sorted lists (C-155, C-161). Each assignment
makes a new process queue. A listener's result of an older one carries its own process queue, which
is dropped, and an answer to a pull is of an older epoch: both are discarded.
"""

from __future__ import annotations

import bisect
import enum
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rocketstream.checks import check_range
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageQueue


class AllocateMessageQueueStrategy(Protocol):
    """How a group divides the queues of a topic; all members must use the same one."""

    @property
    def name(self) -> str:
        """Short name, as upstream reports it."""
        ...

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return the queues of member ``current_cid``; both lists come sorted."""
        ...


class _Shown:
    """A strategy of ours: shown with what it was made of."""

    def __repr__(self) -> str:
        made_of = ", ".join(
            f"{name.removeprefix('_')}={value!r}" for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({made_of})"


def _is_member(current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]) -> bool:
    """Check the arguments as every strategy but CONFIG does (C-165)."""
    if not current_cid:
        raise ConfigurationError("current_cid is empty")
    if not mq_all:
        raise ConfigurationError("mq_all is None or empty")
    if not cid_all:
        raise ConfigurationError("cid_all is None or empty")
    return current_cid in cid_all


class AllocateMessageQueueAveragely(_Shown):
    """Contiguous blocks, the first members getting one more (C-166); the default."""

    name = "AVG"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return the member's block."""
        if not _is_member(current_cid, mq_all, cid_all):
            return []
        share, extra = divmod(len(mq_all), len(cid_all))
        index = cid_all.index(current_cid)
        start = index * share + min(index, extra)
        return mq_all[start : start + share + (index < extra)]


class AllocateMessageQueueAveragelyByCircle(_Shown):
    """One queue each in turn (C-167)."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return every m-th queue, beginning at the member's place."""
        if not _is_member(current_cid, mq_all, cid_all):
            return []
        return mq_all[cid_all.index(current_cid) :: len(cid_all)]


class AllocateMessageQueueByConfig(_Shown):
    """The list given to it, whatever the members are (C-169)."""

    name = "CONFIG"

    def __init__(self, message_queues: Sequence[MessageQueue]) -> None:
        self.message_queues: list[MessageQueue] = list(message_queues)

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return the configured queues."""
        return self.message_queues


class AllocateMessageQueueByMachineRoom(_Shown):
    """Queues of some rooms only; broker names look like ``room@broker`` (C-170)."""

    name = "MACHINE_ROOM"

    def __init__(self, consumer_idcs: Sequence[str]) -> None:
        self.consumer_idcs: frozenset[str] = frozenset(consumer_idcs)

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return the member's block of the rooms' queues, and one of what is left over."""
        if not _is_member(current_cid, mq_all, cid_all):
            return []
        kept = [mq for mq in mq_all if self._room(mq) in self.consumer_idcs]
        share, extra = divmod(len(kept), len(cid_all))
        index = cid_all.index(current_cid)
        block = kept[index * share : (index + 1) * share]
        if extra > index:
            block.append(kept[index + share * len(cid_all)])
        return block

    @staticmethod
    def _room(mq: MessageQueue) -> str | None:
        parts = mq.broker_name.split("@")
        return parts[0] if len(parts) == 2 else None


class MachineRoomResolver(Protocol):
    """Says where brokers and consumers stand."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        """Return the room of the queue's broker."""
        ...

    def consumer_deploy_in(self, client_id: str) -> str:
        """Return the room of a member."""
        ...


class AllocateMachineRoomNearby(_Shown):
    """Each room's queues to the members of that room; those of empty rooms to all (C-171).

    Args:
        allocate_message_queue_strategy: divides the queues of one room.
        machine_room_resolver: says which room a queue and a member are in.
    """

    def __init__(
        self,
        allocate_message_queue_strategy: AllocateMessageQueueStrategy,
        machine_room_resolver: MachineRoomResolver,
    ) -> None:
        if allocate_message_queue_strategy is None:
            raise ConfigurationError("allocate_message_queue_strategy must not be None")
        if machine_room_resolver is None:
            raise ConfigurationError("machine_room_resolver must not be None")
        self._allocate_message_queue_strategy = allocate_message_queue_strategy
        self._machine_room_resolver = machine_room_resolver

    @property
    def name(self) -> str:
        """``MACHINE_ROOM_NEARBY-`` and the inner strategy's name."""
        return f"MACHINE_ROOM_NEARBY-{self._allocate_message_queue_strategy.name}"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return the share of the own room, then that of each room without members."""
        if not _is_member(current_cid, mq_all, cid_all):
            return []
        queues: dict[str, list[MessageQueue]] = {}
        for mq in mq_all:
            room = _room_name(self._machine_room_resolver.broker_deploy_in(mq), f"queue {mq}")
            queues.setdefault(room, []).append(mq)
        members: dict[str, list[str]] = {}
        for cid in cid_all:
            where = self._machine_room_resolver.consumer_deploy_in(cid)
            room = _room_name(where, f"consumer {cid}")
            members.setdefault(room, []).append(cid)
        own = self._machine_room_resolver.consumer_deploy_in(current_cid)
        share = self._share(consumer_group, current_cid, queues.pop(own, []), members[own])
        for room in sorted(queues):
            if room not in members:
                share += self._share(consumer_group, current_cid, queues[room], cid_all)
        return share

    def _share(
        self, group: str, cid: str, queues: list[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if not queues:
            return []
        divide = self._allocate_message_queue_strategy.allocate
        return list(divide(group, cid, queues, members) or ())


def _room_name(room: str, what: str) -> str:
    if not room:
        raise ConfigurationError(f"Machine room is null for {what}")
    return room


class AllocateMessageQueueConsistentHash(_Shown):
    """A ring of hashed member names; few queues move when members change (C-172)."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_node_cnt: int = 10) -> None:
        check_range("virtual_node_cnt", virtual_node_cnt, 0)
        self.virtual_node_cnt = virtual_node_cnt

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return the queues whose next ring position is one of the member's."""
        if not _is_member(current_cid, mq_all, cid_all):
            return []
        ring = {
            ring_hash(f"{cid}-{k}"): cid for cid in cid_all for k in range(self.virtual_node_cnt)
        }
        positions = sorted(ring)
        if not positions:
            return []
        return [mq for mq in mq_all if ring[_next(positions, queue_key(mq))] == current_cid]


def queue_key(mq: MessageQueue) -> str:
    """Return the text a queue is hashed by: upstream's ``MessageQueue.toString``."""
    return f"MessageQueue [topic={mq.topic}, brokerName={mq.broker_name}, queueId={mq.queue_id}]"


def ring_hash(text: str) -> int:
    """Return the first four bytes of the MD5 digest as an unsigned number."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _next(positions: Sequence[int], key: str) -> int:
    return positions[bisect.bisect_left(positions, ring_hash(key)) % len(positions)]


class OwnQueue:
    """A queue that a consumer has, and can leave; one that is no more than this its caller pulls.

    Attributes:
        message_queue: the queue.
        leaving: about to be given up, or no longer ours: nothing new is pulled or handed out.
    """

    __slots__ = ("leaving", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue: MessageQueue = message_queue
        self.leaving: bool = False

    @property
    def is_free(self) -> bool:
        """Whether nobody works on its messages that is to be waited for."""
        return True

    def is_pull_expired(self, now_ms: float) -> bool:
        """Whether its pulls have died (C-176); a caller may take all the time there is."""
        return False

    def leave(self) -> None:
        """Be given up; see ``leaving``."""
        self.leaving = True

    def drop(self) -> None:
        """Be no longer ours."""
        self.leave()

    async def until_free(self) -> None:
        """Wait until nobody works on its messages."""


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
    table: Mapping[MessageQueue, OwnQueue],
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
            revoked.append(Revoke(mq, reason))
    gone = {effect.message_queue for effect in revoked}
    assigned = [Assign(mq) for mq in sorted(wanted) if mq not in table or mq in gone]
    return [*revoked, *assigned]


def plan_unsubscribed(
    table: Mapping[MessageQueue, OwnQueue], topics: Collection[str]
) -> list[Revoke]:
    """Return the revocations of queues whose topic is no longer subscribed (C-157).

    Unlike upstream the shell persists their offsets too (C-554).
    """
    return [Revoke(mq, RevokeReason.UNSUBSCRIBED) for mq in table if mq.topic not in topics]


def sorted_members(client_ids: Iterable[str]) -> list[str]:
    """Return member ids as Java sorts them, by UTF-16 code unit, each once (C-161, C-346)."""
    return sorted(set(client_ids), key=lambda cid: cid.encode("utf-16-be", "surrogatepass"))


def _why_revoke(
    mq: MessageQueue, queue: OwnQueue, wanted: set[MessageQueue], now_ms: float
) -> RevokeReason | None:
    if mq not in wanted:
        return RevokeReason.NOT_ALLOTTED
    if queue.leaving:
        return RevokeReason.DROPPED
    if queue.is_pull_expired(now_ms):
        return RevokeReason.PULL_EXPIRED
    return None

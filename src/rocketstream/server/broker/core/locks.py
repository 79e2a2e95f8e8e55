"""Queue locks: which client holds which queue for ordered consumption.

Pure: times are of a clock that only grows. Upstream: RebalanceLockManager (C-353 to C-356), which
forgets all holders at a restart: there the first member back gets every queue while the others
still rely on their leases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rocketstream.limits import LOCK_GRACE_MS, LOCK_LIVE_MS, QUEUE_LOCKS_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import QueueLockTable
from rocketstream.server.broker.core.room import Room, check_kept


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: float
    since: int = 0
    """Generation of the table from which on the client has the queue."""


class QueueLocks:
    """Leases of queues by group; a lease not renewed for 60 s can be taken over.

    ``generation`` grows when a queue gets another holder or none, so that a writer knows what it
    has saved; renewals do not change it.
    """

    def __init__(
        self,
        live_ms: int = LOCK_LIVE_MS,
        grace_ms: int = LOCK_GRACE_MS,
        held_max: int = QUEUE_LOCKS_MAX,
    ) -> None:
        self._live_ms = live_ms
        self._grace_ms = grace_ms
        self._held_max = held_max
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._closed_until_ms: float | None = None
        self.generation: int = 0

    def load(self, table: QueueLockTable, now_ms: float) -> None:
        """Take over the content of a file: a holder may have its queue at once, others must wait.

        The age of the leases is unknown after the broker was away. Each holder relies on its own
        for 30 s at most, so for that time nobody else gets the queue.
        """
        renewed_ms = now_ms - self._live_ms + self._grace_ms
        for group, holders in table.lock_table.items():
            self._groups[group] = {
                queue: _Lock(client_id, renewed_ms) for queue, client_id in holders.items()
            }
            self._count += len(holders)

    def wait_out(self, now_ms: float) -> None:
        """Make all clients wait until no lease is relied on, since the holders are unknown.

        The generation grows when that time is over, not before: until then nothing may be written
        that a restart would take for the complete table.
        """
        self._closed_until_ms = now_ms + self._grace_ms

    def _is_open(self, now_ms: float) -> bool:
        if self._closed_until_ms is not None and now_ms > self._closed_until_ms:
            self._closed_until_ms = None
            self.generation += 1
        return self._closed_until_ms is None

    def snapshot(self) -> QueueLockTable:
        """Return a copy for a file."""
        return QueueLockTable(
            {
                group: {queue: lock.client_id for queue, lock in held.items()}
                for group, held in self._groups.items()
            }
        )

    @property
    def room(self) -> Room:
        """How many leases there are, and may be."""
        return Room("queue locks", self._count, self._held_max)

    def lock(
        self, group: str, client_id: str, queues: Collection[MessageQueue], now_ms: float
    ) -> set[MessageQueue]:
        """Take or renew the free queues; return all that the client now holds (C-354).

        Raises:
            BrokerError: a name is longer than any that is needed; no queue is locked then.
        """
        check_kept("a group", group)
        check_kept("a client id", client_id)
        for queue in queues:
            check_kept("a topic", queue.topic)
            check_kept("a broker", queue.broker_name)
        if not self._is_open(now_ms):
            return set()
        held = self._groups.setdefault(group, {})
        got = set()
        for queue in queues:
            lock = held.get(queue)
            if lock is None:
                if self._count >= self._held_max:
                    continue
                self._count += 1
            elif lock.client_id != client_id and not self._is_expired(lock, now_ms):
                continue
            if lock is not None and lock.client_id == client_id:
                lock.renewed_ms = now_ms
            else:
                self.generation += 1
                held[queue] = _Lock(client_id, now_ms, self.generation)
            got.add(queue)
        if not held:
            del self._groups[group]
        return got

    def since(self, group: str, queue: MessageQueue) -> int:
        """Return the generation from which on a queue has its present holder."""
        return self._groups[group][queue].since

    def _is_expired(self, lock: _Lock, now_ms: float) -> bool:
        return now_ms - lock.renewed_ms > self._live_ms

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up the client's own leases; others' are left alone (C-355)."""
        held = self._groups.get(group, {})
        self._drop(
            group,
            [q for q in set(queues) if (lock := held.get(q)) and lock.client_id == client_id],
        )

    def expire(self, now_ms: float) -> None:
        """Forget leases nobody renewed; the next client to ask would get those queues anyway."""
        self._is_open(now_ms)
        for group, held in list(self._groups.items()):
            self._drop(group, [q for q, lock in held.items() if self._is_expired(lock, now_ms)])

    def _drop(self, group: str, queues: list[MessageQueue]) -> None:
        if not queues:
            return
        held = self._groups[group]
        for queue in queues:
            del held[queue]
        if not held:
            del self._groups[group]
        self._count -= len(queues)
        self.generation += 1

    def holder(self, group: str, queue: MessageQueue, now_ms: float) -> str | None:
        """Return the client that holds a queue now, or None."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._is_expired(lock, now_ms):
            return None
        return lock.client_id

    def is_locked(self, group: str, now_ms: float) -> bool:
        """Whether any member holds a lease: the group consumes in order."""
        held = self._groups.get(group, {})
        return any(not self._is_expired(lock, now_ms) for lock in held.values())

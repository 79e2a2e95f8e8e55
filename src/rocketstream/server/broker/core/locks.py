"""Who holds which queue for ordered consumption.

Law: pure; times are of a clock that only grows. Upstream: RebalanceLockManager (C-353 to C-356).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocketstream.limits import LOCK_LIVE_MS
from rocketstream.model import MessageQueue


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: float


class QueueLocks:
    """Leases of queues by group; a lease not renewed for 60 s can be taken over."""

    def __init__(self, live_ms: int = LOCK_LIVE_MS) -> None:
        self._live_ms = live_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: float
    ) -> set[MessageQueue]:
        """Take or renew what can be had; return the queues the client now holds (C-354)."""
        held = self._groups.setdefault(group, {})
        got = set()
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or self._is_expired(lock, now_ms):
                held[queue] = _Lock(client_id, now_ms)
                got.add(queue)
        return got

    def _is_expired(self, lock: _Lock, now_ms: float) -> bool:
        return now_ms - lock.renewed_ms > self._live_ms

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up the client's own leases; others' are left alone (C-355)."""
        held = self._groups.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]

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

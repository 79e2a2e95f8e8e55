"""The gate that holds replies, and arrivals with sync flush, until their messages are on the disk.

Law: one registration with the store at a time and one wake-up of the loop per flush, however many
replies wait; a reply is sent exactly once. Upstream: GroupCommitService (C-434).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rocketstream.errors import StoreError
from rocketstream.protocol.codes import ResponseCode
from rocketstream.server.store import MessageStore

logger: logging.Logger = logging.getLogger("rocketstream.server")

Outcome = Callable[[str | None], None]
"""Called with None when flushed; otherwise with ``timeout`` or the text of the failure."""

TIMEOUT = "timeout"


def not_flushed(outcome: str) -> tuple[int, str | None]:
    """Return code and remark of the reply for a message that is stored but not on the disk."""
    if outcome == TIMEOUT:
        return ResponseCode.FLUSH_DISK_TIMEOUT, None
    text = f"the message may be lost, the store failed to flush: {outcome}"
    return ResponseCode.SERVICE_NOT_AVAILABLE, text


@dataclass(slots=True)
class _Waiting:
    end_offset: int
    deadline_s: float
    done: Outcome


class FlushGate:
    """All replies that wait for the flusher; belongs to one loop."""

    def __init__(self, store: MessageStore, timeout_ms: int) -> None:
        self._store = store
        self._timeout_s = timeout_ms / 1000
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def wait(self, end_offset: int, done: Outcome) -> None:
        """Call ``done`` once everything below ``end_offset`` is on the disk, or cannot be."""
        if self._waiting:
            # Readers ask again for what timed out: in the order of offsets the last one's flush is
            # that of all.
            end_offset = max(end_offset, self._waiting[-1].end_offset)
        self._waiting.append(_Waiting(end_offset, self._loop.time() + self._timeout_s, done))
        if not self._asked:
            self._asked = True
            # At the end of this pass of the loop, so that sends that came together are flushed
            # together.
            self._loop.call_soon(self._ask)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_deadlines)

    def _ask(self) -> None:
        if self._closed or not self._waiting:
            self._asked = False
            return
        self._asked = True
        end_offset = self._waiting[-1].end_offset
        self._store.when_flushed(end_offset, lambda error: self._flushed(end_offset, error))

    def _flushed(self, end_offset: int, error: Exception | None) -> None:
        """Take the outcome of a flush (called from the flusher's thread)."""
        try:
            self._loop.call_soon_threadsafe(self._release, end_offset, error)
        except RuntimeError:
            logger.info("a flush ended after the broker's loop did")

    def _release(self, end_offset: int, error: Exception | None) -> None:
        outcome = None if error is None else str(error)
        waiting = self._waiting
        while waiting and (waiting[0].end_offset <= end_offset or outcome is not None):
            waiting.popleft().done(outcome)
        self._ask()

    def _check_deadlines(self) -> None:
        now = self._loop.time()
        waiting = self._waiting
        while waiting and waiting[0].deadline_s <= now:
            waiting.popleft().done(TIMEOUT)
        self._timer = None
        if waiting:
            self._timer = self._loop.call_at(waiting[0].deadline_s, self._check_deadlines)

    def close(self) -> None:
        """Flush once more and send the replies that still wait; blocks."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        outcome = None
        if self._waiting:
            try:
                self._store.flush()
            except StoreError as error:
                outcome = error.message
        while self._waiting:
            self._waiting.popleft().done(outcome)


Arrived = Callable[[str, int, int, int], None]
"""Topic, queue id, new max offset, tagsCode."""


class FlushedArrivals:
    """Reports stored messages once they are flushed, since sync flush makes them readable then.

    Args:
        store: the store of the messages.
        gate: waits for the flusher.
        arrived: called for each message, in the order they were stored.
    """

    def __init__(self, store: MessageStore, gate: FlushGate, arrived: Arrived) -> None:
        self._store = store
        self._gate = gate
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        self._stored: list[tuple[str, int, int, int]] = []

    def __call__(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """Take note of a stored message."""
        if not self._stored:
            # Before the gate registers with the store in this pass: that registration covers this
            # message too.
            self._loop.call_soon(self._wait)
        self._stored.append((topic, queue_id, max_offset, tags_code))

    def _wait(self) -> None:
        stored, self._stored = self._stored, []
        self._ask(self._store.physical_max_offset, stored)

    def _ask(self, end_offset: int, stored: list[tuple[str, int, int, int]]) -> None:
        self._gate.wait(end_offset, lambda outcome: self._flushed(end_offset, stored, outcome))

    def _flushed(
        self, end_offset: int, stored: list[tuple[str, int, int, int]], outcome: str | None
    ) -> None:
        if outcome is None:
            for each in stored:
                self._arrived(*each)
        elif outcome == TIMEOUT:
            # The disk is slow: the senders got an answer that says so, but the messages may still
            # become readable.
            self._loop.call_soon(self._ask, end_offset, stored)

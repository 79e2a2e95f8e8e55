"""Delivering delayed messages when they are due (C-405 to C-411).

Law: sleeps exactly until the next message of a level is due and is woken by arrivals; what is due
and how far a level is, core.schedule decides.
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream.errors import LocalProtocolError, RemoteProtocolError, StoreError
from rocketstream.protocol import names
from rocketstream.protocol.properties import (
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.schedule import DelayedEntry, queue_of_level
from rocketstream.server.broker.core.topics import SCHEDULE_TOPIC
from rocketstream.server.broker.messages import MessageWriter, copy_of, read_stored

logger = logging.getLogger("rocketstream.server")

BATCH = 64
FAILURE_PAUSE_S = 0.1
WAIT_MAX_S = 5.0
"""Looked at least so often, since timers and clocks may part a little."""
_REFUSED_TARGETS = (names.TRANS_HALF_TOPIC, SCHEDULE_TOPIC)


class ScheduleService:
    """One timer per level that has undelivered messages."""

    def __init__(self, controller: BrokerController, writer: MessageWriter) -> None:
        self._controller = controller
        self._schedule = controller.schedule
        self._store = controller.store
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._timers: dict[int, asyncio.TimerHandle | asyncio.Handle] = {}
        self._closed = False

    def start(self) -> None:
        """Look at every level: an earlier run may have left undelivered messages."""
        for level in self._schedule.levels:
            self._soon(level)

    def close(self) -> None:
        """Deliver nothing more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def arrived(self, queue_id: int) -> None:
        """A message was stored in a level's queue."""
        level = queue_id + 1
        if level not in self._timers:
            self._soon(level)

    def _soon(self, level: int) -> None:
        if not self._closed:
            self._timers[level] = self._loop.call_soon(self._run, level)

    def _later(self, level: int, delay_s: float) -> None:
        if not self._closed:
            self._timers[level] = self._loop.call_later(delay_s, self._run, level)

    def _run(self, level: int) -> None:
        self._timers.pop(level, None)
        try:
            self._deliver_due(level)
        except StoreError as error:
            logger.warning("delay level %d waits, the store refuses: %s", level, error)
            self._later(level, FAILURE_PAUSE_S)

    def _deliver_due(self, level: int) -> None:
        queue_id = queue_of_level(level)
        low = self._store.min_offset(SCHEDULE_TOPIC, queue_id)
        high = self._store.max_offset(SCHEDULE_TOPIC, queue_id)
        offset = self._schedule.correct(level, low, high)
        if offset >= high:
            return
        raw = self._store.consume_queue_entries(SCHEDULE_TOPIC, queue_id, offset, BATCH)
        entries = [
            DelayedEntry(offset + index, physical, size, due_ms)
            for index, (physical, size, due_ms) in enumerate(raw)
        ]
        now_ms = self._controller.steady_ms()
        work = self._schedule.due(level, entries, now_ms)
        for entry in work.deliver:
            self._deliver(entry)
            self._schedule.delivered(level, entry.queue_offset + 1)
        if work.next_due_ms is not None:
            self._later(level, min((work.next_due_ms - now_ms) / 1000, WAIT_MAX_S))
        elif entries:
            self._soon(level)

    def _deliver(self, entry: DelayedEntry) -> None:
        record = self._store.read(entry.physical_offset)
        if record is None:
            logger.warning("delayed message at %d is gone", entry.physical_offset)
            return
        try:
            stored = read_stored(record)
            topic = stored.properties.get(PROPERTY_REAL_TOPIC, "")
            queue_id = int(stored.properties.get(PROPERTY_REAL_QID, "0"))
        except (RemoteProtocolError, ValueError) as error:
            logger.error("delayed message at %d is skipped: %s", entry.physical_offset, error)
            return
        if not topic or topic in _REFUSED_TARGETS:
            logger.error("delayed message at %d has no target", entry.physical_offset)
            return
        try:
            self._writer.put(copy_of(stored, topic, queue_id), delayed=False)
        except LocalProtocolError as error:
            logger.error("delayed message at %d is skipped: %s", entry.physical_offset, error)
            return
        self._controller.put_count.total += 1

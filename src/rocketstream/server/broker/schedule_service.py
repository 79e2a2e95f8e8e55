"""The service that delivers delayed messages when they are due (C-405 to C-411).

The service sleeps exactly until the next message of a level is due and is woken by arrivals;
``core.schedule`` decides which messages are due and keeps the progress of levels.

Law: one message that cannot be delivered holds up no other.
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream.errors import (
    DiskFullError,
    FlushFailedError,
    LocalProtocolError,
    RemoteProtocolError,
    StoreError,
)
from rocketstream.protocol import names
from rocketstream.protocol.properties import (
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.schedule import DelayedEntry, queue_of_level
from rocketstream.server.broker.core.topics import SCHEDULE_TOPIC
from rocketstream.server.broker.messages import MessageWriter, StoredMessage, copy_of, read_own

logger: logging.Logger = logging.getLogger("rocketstream.server")

BATCH = 64
FAILURE_PAUSE_S = 0.1
INTERNAL_PAUSE_S = 10.0
TRIES_MAX = 50
"""How often, every 100 ms, a message is tried for a queue that alone refuses it."""
REFUSING_MAX = 1_024
"""Most refusing queues remembered: a message for one of them is tried only once."""
WAIT_MAX_S = 5.0
"""Longest pause between two looks, since timers and clocks may drift apart a little."""
_REFUSED_TARGETS = (names.TRANS_HALF_TOPIC, SCHEDULE_TOPIC)


class ScheduleService:
    """Runs one timer per level that has undelivered messages."""

    def __init__(self, controller: BrokerController, writer: MessageWriter) -> None:
        self._controller = controller
        self._schedule = controller.schedule
        self._store = controller.store
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._timers: dict[int, asyncio.TimerHandle | asyncio.Handle] = {}
        self._closed = False
        self._is_waiting = False
        self._looked: dict[int, int] = {}
        """By level, the offset up to which units were compared with their messages."""
        self._tries: dict[int, int] = {}
        self._refusing: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Examine every level: an earlier run may have left undelivered messages."""
        for level in self._schedule.levels:
            self._soon(level)

    def close(self) -> None:
        """Deliver no more messages."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def arrived(self, queue_id: int) -> None:
        """Take note of a message stored in a level's queue."""
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
            if not self._is_waiting:
                logger.warning(
                    "delivery of delay level %d waits, the store takes no messages: %s",
                    level,
                    error,
                )
            self._is_waiting = True
            self._later(level, FAILURE_PAUSE_S)
        except Exception:
            # A bug of ours met by one message must not end the level (C-405).
            logger.exception("INTERNAL delay level %d", level)
            self._later(level, INTERNAL_PAUSE_S)

    def _deliver_due(self, level: int) -> None:
        queue_id = queue_of_level(level)
        low = self._store.min_offset(SCHEDULE_TOPIC, queue_id)
        high = self._store.max_offset(SCHEDULE_TOPIC, queue_id)
        offset = self._schedule.correct(level, low, high)
        if offset >= high:
            return
        looked = self._looked.get(level, 0)
        self._looked[level] = max(looked, min(offset + BATCH, high))
        self._store.mend(SCHEDULE_TOPIC, queue_id, max(looked, offset), self._looked[level])
        raw = self._store.consume_queue_entries(SCHEDULE_TOPIC, queue_id, offset, BATCH)
        entries = [
            DelayedEntry(offset + index, physical, size, due_ms)
            for index, (physical, size, due_ms) in enumerate(raw)
        ]
        now_ms = self._controller.steady_ms()
        work = self._schedule.due(
            level,
            entries,
            now_ms,
            high,
            lambda each: self._store.store_timestamp(SCHEDULE_TOPIC, queue_id, each.queue_offset),
        )
        for each, due_ms in work.put_right:
            logger.warning(
                "condition=DUE_TIME_PUT_RIGHT delay level %d, offset %d: no level can have its "
                "due time, %d; by when it was stored it is due at %d",
                level, each.queue_offset, each.due_ms, due_ms,
            )  # fmt: skip
        for entry in work.deliver:
            self._deliver(entry, queue_id)
            self._schedule.delivered(level, entry.queue_offset + 1)
        if work.next_due_ms is not None:
            self._later(level, min((work.next_due_ms - now_ms) / 1000, WAIT_MAX_S))
        elif entries:
            self._soon(level)

    def _deliver(self, entry: DelayedEntry, level_queue: int) -> None:
        """Deliver a message, or move it to where an operator finds it.

        Raises:
            StoreError: the store takes no messages now, or this queue does not yet; to be tried
                again.
        """
        try:
            stored = read_own(self._store, SCHEDULE_TOPIC, level_queue, entry.queue_offset)
        except RemoteProtocolError as error:
            logger.error(
                "the delayed message at log offset %d is skipped: %s", entry.physical_offset, error
            )
            return
        if stored is None:
            logger.warning("the delayed message at log offset %d is gone", entry.physical_offset)
            return
        topic = stored.properties.get(PROPERTY_REAL_TOPIC, "")
        queue = stored.properties.get(PROPERTY_REAL_QID, "0")
        why = _problem(topic, queue)
        if why is None:
            queue_id = self._controller.topics.queue_of(topic, int(queue))
            why = self._try(entry, stored, topic, queue_id)
        if why is not None:
            self._park(stored, why)
        self._tries.pop(entry.physical_offset, None)
        self._is_waiting = False

    def _try(
        self, entry: DelayedEntry, stored: StoredMessage, topic: str, queue_id: int
    ) -> str | None:
        """Deliver a message; return why it never can be, None when it was."""
        target = (topic, queue_id)
        try:
            self._writer.put(copy_of(stored, topic, queue_id), delayed=False)
        except LocalProtocolError as error:
            return error.message
        except StoreError as error:
            if isinstance(error, (DiskFullError, FlushFailedError)) or not self._store.is_writable:
                raise
            # The store takes messages, but this queue does not. The failure may pass (too many
            # files are open), but it must not hold up all later messages.
            tries = self._tries[entry.physical_offset] = (
                self._tries.get(entry.physical_offset, 0) + 1
            )
            if tries < TRIES_MAX and target not in self._refusing:
                raise
            if len(self._refusing) < REFUSING_MAX:
                self._refusing.add(target)
            return error.message
        self._refusing.discard(target)
        self._controller.put_count.total += 1
        return None

    def _park(self, stored: StoredMessage, why: str) -> None:
        """Move a message that cannot be delivered to where an operator finds it."""
        topic = names.UNDELIVERED_TOPIC
        self._controller.ensure_topic(topic, 1)
        self._writer.put(copy_of(stored, topic, 0), delayed=False)
        logger.error(
            "condition=DELAYED_MESSAGE_UNDELIVERED topic=%s id=%s moved to %s: %s",
            stored.properties.get(PROPERTY_REAL_TOPIC),
            stored.properties.get(PROPERTY_UNIQ_KEY),
            topic,
            why,
        )


def _problem(topic: str, queue: str) -> str | None:
    """Return why a message cannot have this target; None when it can."""
    if not topic or topic in _REFUSED_TARGETS:
        return f"{topic!r} cannot be the target of a delayed message"
    if not queue.isascii() or not queue.isdigit():
        return f"{queue!r} is not a queue"
    return names.storage_problem(topic)

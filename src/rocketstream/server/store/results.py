"""The store's configuration and results: plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rocketstream import limits
from rocketstream.server.store.retention import RetentionConfig

_LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
DELAY_LEVELS_MS_DEFAULT = tuple(seconds * 1000 for seconds in _LEVELS_S)
"""Upstream's messageDelayLevel, beginning with level 1."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes, limits and flush behaviour of one store; the defaults are upstream's.

    Attributes:
        flush: ``sync`` makes every :meth:`MessageStore.when_flushed` waiter trigger an fsync at
            once (group commit); ``async`` leaves it to the timer.
        keep_interval_ms: how often queues are synced and the checkpoint is written.
        poll_interval_ms: how often the background looks for keys to index and for the need of the
            next log file.
        delay_levels_ms: used only when the schedule queues are rebuilt from the log; must equal the
            broker's delay levels.
        memory_bytes: how far behind the end of the log a record still counts as in memory
            (C-361, C-370); None takes 40 % of the machine's memory.
        queue_maps_max: how many queue files are mapped at once; None takes as many as the limit of
            open files allows.
        verify_bytes_max: how much of the log's end is checked after a clean shutdown.
    """

    commit_log_file_bytes: int = limits.COMMIT_LOG_FILE_BYTES
    consume_queue_file_bytes: int = limits.CONSUME_QUEUE_FILE_BYTES
    flush: Literal["async", "sync"] = "async"
    flush_interval_ms: int = 500
    keep_interval_ms: int = 1000
    poll_interval_ms: int = 100
    index_enabled: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS_DEFAULT
    memory_bytes: int | None = None
    queue_maps_max: int | None = None
    transfer_bytes_in_memory_max: int = limits.TRANSFER_BYTES_IN_MEMORY_MAX
    transfer_count_in_memory_max: int = limits.TRANSFER_COUNT_IN_MEMORY_MAX
    transfer_bytes_on_disk_max: int = 65_536
    transfer_count_on_disk_max: int = 8
    verify_bytes_max: int = 128 * 1024 * 1024
    query_messages_max: int = 64
    retention: RetentionConfig = RetentionConfig()  # noqa: RUF009 (frozen)


Place: TypeAlias = tuple[int, int]
"""Offset in the log and in its queue of a stored message."""


class GetMessageStatus(enum.Enum):
    """Outcome of :meth:`MessageStore.get` (C-367, C-368)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    """The result of a read.

    ``records`` are ranges of whole records, copied out of the log; neighbours in the log come as
    one range, so its length is not the number of messages: ``count`` is. ``on_disk`` tells that the
    last examined entry is far behind the end of the log (C-361).
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes] = field(default_factory=list)
    total_bytes: int = 0
    count: int = 0
    on_disk: bool = False


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Records found by a key (hash collisions included) and how far the index reaches.

    ``complete`` is False while the index lacks records of the log.
    """

    records: list[bytes]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings and actions of opening the store.

    Attributes:
        clean_exit: whether the last user closed the store (no ``abort`` file).
        records_checked: records walked and verified.
        records_dispatched: how many of those were put into consume queues again.
        log_min: first offset of the commit log.
        log_end: offset the next record gets.
        torn_bytes: bytes behind the last complete record that were cut off (a torn tail).
        consume_queues: queues opened.
        entries_dropped: consume queue entries that pointed at or beyond the log's end.
        rebuilt: whether consume queues were dropped and rebuilt from the whole log.
        index_files_dropped: index files that could not be trusted and are rebuilt.
        quarantined: files with the bytes that were set aside (repair, or unflushed damage).
        duration_ms: how long opening took.
    """

    clean_exit: bool
    records_checked: int
    records_dispatched: int
    log_min: int
    log_end: int
    torn_bytes: int
    consume_queues: int
    entries_dropped: int
    rebuilt: bool
    index_files_dropped: int
    quarantined: tuple[Path, ...]
    duration_ms: float

"""The broker's tables on disk: config/*.json in upstream's exact shape.

``state_file`` decides when a table is written, and which part of the log must be on the disk before
it. Topics and groups are written when they change, the others soon after. Upstream: ConfigManager
(C-327 to C-329, C-409).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rocketstream._util.workers import Workers
from rocketstream.errors import BrokerError, StoreDamagedError, StoreError
from rocketstream.limits import LOCK_GRACE_MS
from rocketstream.protocol.bodies import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    QueueLockTable,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.days import DayCounts
from rocketstream.server.broker.editing import Edits, edited
from rocketstream.server.state_file import (
    SOON_S,
    Barrier,
    Encodable,
    StateFile,
    log_barrier,
)
from rocketstream.server.store import ConfigFile, Files

logger: logging.Logger = logging.getLogger("rocketstream.server")
T = TypeVar("T")


class Persistence:
    """The files of one broker."""

    def __init__(
        self, controller: BrokerController, root: Path, files: Files, workers: Workers
    ) -> None:
        self._controller = controller
        self._folder, self._files, self._workers = root / "config", files, workers
        barrier = log_barrier(controller.store)
        table = self._table
        self._topics = table(
            "topics.json",
            TopicConfigSerializeWrapper.decode_file,
            lambda: controller.topics.generation,
            controller.topics.snapshot,
        )
        self._groups = table(
            "subscriptionGroup.json",
            SubscriptionGroupWrapper.decode_file,
            lambda: controller.groups.generation,
            controller.groups.wrapper,
        )
        self._offsets = table(
            "consumerOffset.json",
            ConsumerOffsetTable.decode_file,
            lambda: controller.offsets.generation,
            controller.offsets.snapshot,
            barrier=barrier,
        )
        self._delays = table(
            "delayOffset.json",
            DelayOffsetTable.decode_file,
            lambda: controller.schedule.generation,
            controller.schedule.snapshot,
            controller.config.delay_persist_interval_ms,
            barrier,
        )
        self._filters = table(
            "consumerFilter.json",
            ConsumerFilterTable.decode_file,
            lambda: controller.filters.generation,
            lambda: controller.filters.snapshot(controller.now_ms()),
            controller.config.filter_persist_interval_ms,
        )
        self._locks = table(
            "queueLocks.json",
            QueueLockTable.decode_file,
            lambda: controller.locks.generation,
            controller.locks.snapshot,
            is_exact=True,
        )
        counted = controller.statistics
        self._statistics = table(
            "brokerStats.json",
            DayCounts.decode,
            lambda: counted.generation,
            lambda: counted.days,
        )
        self._edits = table(
            "brokerSettings.json",
            Edits.decode,
            lambda: controller.edits_generation,
            lambda: controller.edits,
        )
        self._tables: tuple[StateFile[Any], ...] = (
            self._topics, self._groups, self._offsets, self._delays, self._filters, self._locks,
            self._statistics, self._edits,
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _table(
        self,
        name: str,
        parse: Callable[[str], T],
        generation: Callable[[], int],
        snapshot: Callable[[], Encodable],
        interval_ms: int | None = None,
        barrier: Barrier | None = None,
        *,
        is_exact: bool = False,
    ) -> StateFile[T]:
        file = ConfigFile(self._folder / name, parse, self._files, has_backup=not is_exact)
        if interval_ms is None:
            interval_ms = self._controller.config.offset_persist_interval_ms
        workers = self._workers
        return StateFile(
            file, generation, snapshot, workers, interval_ms, barrier, is_exact=is_exact
        )

    def load(self) -> None:
        """Fill the tables from the files.

        Raises:
            StoreDamagedError: a file and its backup are broken; the text names them.
            StoreError: a file cannot be read from the disk.
        """
        controller = self._controller
        topics = self._topics.load()
        if topics is not None:
            controller.topics.load(topics)
        groups = self._groups.load()
        if groups is not None:
            controller.groups.load(groups)
        offsets = self._offsets.load()
        if offsets is not None:
            controller.offsets.load(offsets)
        delays = self._delays.load()
        if delays is not None:
            controller.schedule.load(delays)
        filters = self._filters.load()
        if filters is not None:
            for error in controller.filters.load(filters, controller.now_ms()):
                logger.warning("%s: %s", self._filters.path, error.message)
        self._load_statistics()
        self._load_edits()
        is_known = self._load_locks(is_new_store=topics is None)
        for table in self._tables:
            table.loaded()
        if is_known:
            # Written at the start, even if empty: without the file the holders are unknown.
            controller.locks.generation += 1

    def _load_edits(self) -> None:
        """Take over the settings that were changed while the broker ran earlier."""
        controller, kept = self._controller, self._edits.load()
        if kept is None or not kept.values:
            return
        try:
            config = edited(controller.config, kept.values)
        except BrokerError as error:
            text = f"{self._edits.path} cannot be used: {error.message}; mend it or delete it"
            raise StoreDamagedError(text, path=str(self._edits.path)) from error
        controller.edits = kept
        controller.reconfigure(config)
        logger.warning(
            "settings changed while the broker ran override the given ones: %s; delete %s to "
            "undo them",
            ", ".join(f"{name}={value}" for name, value in kept.values.items()),
            self._edits.path,
        )

    def _load_statistics(self) -> None:
        """Continue the counts; if the file cannot be used they begin at zero, from now."""
        try:
            days = self._statistics.load()
        except StoreDamagedError as error:
            logger.warning("counts of earlier days are lost: %s", error)
        else:
            if days is not None:
                self._controller.statistics.load(days)

    def _load_locks(self, *, is_new_store: bool) -> bool:
        """Return whether the lock holders are known; if not, make all clients wait."""
        locks, why = None, "is missing"
        try:
            locks = self._locks.load()
        except StoreError as error:
            why = f"cannot be used ({error.message})"
        else:
            if locks is None and is_new_store:
                return True
        now_ms = self._controller.monotonic_ms()
        if locks is not None:
            self._controller.locks.load(locks, now_ms)
            return True
        self._controller.locks.wait_out(now_ms)
        logger.warning(
            "%s %s: it is not known who holds which queue; queues consumed in order are given to "
            "nobody for %d s",
            self._locks.path, why, LOCK_GRACE_MS // 1000,
        )  # fmt: skip
        return False

    def start(self) -> None:
        """Write every change from now on."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(SOON_S, self._tick)
        now_s = self._loop.time()
        for table in self._tables:
            table.tick(now_s)

    def save_topics(self) -> None:
        """Write topics.json now.

        Raises:
            StoreError: it cannot be written; it will be tried again.
        """
        self._topics.save()

    def save_groups(self) -> None:
        """Write subscriptionGroup.json now.

        Raises:
            StoreError: it cannot be written; it will be tried again.
        """
        self._groups.save()

    def topics_saved(self) -> asyncio.Future[None]:
        """Write topics.json on a worker; done when it holds the topics and proposals of now.

        The future raises a StoreError when the file cannot be written; writing will be tried again.
        """
        return self._topics.saved()

    def edits_saved(self) -> asyncio.Future[None]:
        """Write brokerSettings.json on a worker, like :meth:`topics_saved`."""
        return self._edits.saved()

    def groups_saved(self) -> asyncio.Future[None]:
        """Write subscriptionGroup.json on a worker, like :meth:`topics_saved`."""
        return self._groups.saved()

    def locks_written(self) -> asyncio.Future[bool]:
        """Write queueLocks.json; done when it holds the table of now.

        If it cannot be written it is removed: after a restart all clients then have to wait.
        """
        return self._locks.written()

    def locks_known(self, generation: int) -> bool:
        """Whether a restart finds the locks of a generation, or finds that they are unknown."""
        return self._locks.is_known(generation)

    def offsets_written(self) -> asyncio.Future[bool]:
        """Write consumerOffset.json; done when it holds the table of now."""
        return self._offsets.written()

    def close(self) -> None:
        """Write all unsaved changes; blocks."""
        if self._timer:
            self._timer.cancel()
        for table in self._tables:
            table.stop()
        self._workers.close()
        if self._loop is None:
            return
        is_flushed = True
        try:
            # The log first, since the tables refer to it.
            self._controller.store.flush()
        except StoreError as error:
            logger.error("offsets are left as they were last written: %s", error)
            is_flushed = False
        for table in self._tables:
            try:
                if is_flushed or not table.needs_log:
                    table.close()
            except StoreError as error:
                logger.error("%s", error)

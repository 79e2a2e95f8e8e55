"""The broker's tables on disk: config/*.json in upstream's exact shape (W 3.4).

Law: topics and groups are written when they change; offsets and delay progress now and then, on
a thread of their own, and only when they changed. Upstream: ConfigManager (C-327 to C-329, C-409).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rocketstream._util.workers import Workers
from rocketstream.errors import StoreError
from rocketstream.protocol.bodies import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.store import ConfigFile, Files

logger = logging.getLogger("rocketstream.server")


class Encodable(Protocol):
    """A body with a pretty form."""

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text."""
        ...


class PeriodicFile:
    """One table that is written when its generation has moved since the last write."""

    def __init__(
        self,
        file: ConfigFile,
        generation: Callable[[], int],
        snapshot: Callable[[], Encodable],
        workers: Workers,
        interval_ms: int,
    ) -> None:
        self._file = file
        self._generation = generation
        self._snapshot = snapshot
        self._workers = workers
        self._interval_s = interval_ms / 1000
        self._saved = generation()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Write from now on, every interval in which something changed."""
        if not self._closed:
            self._timer = self._loop.call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        generation = self._generation()
        if generation == self._saved:
            self.start()
            return
        # The snapshot is taken here, where the table lives; only the writing happens elsewhere.
        text = self._snapshot().encode(pretty=True).decode()
        future = self._workers.submit(lambda: self._file.save(text))
        future.add_done_callback(lambda done: self._written(done, generation))

    def _written(self, done: asyncio.Future[None], generation: int) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._saved = generation
        else:
            logger.error("cannot write %s: %s", self._file.path, error)
        self.start()

    def close(self) -> None:
        """Write what is not written yet; blocks."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        generation = self._generation()
        if generation != self._saved:
            self._saved = generation
            self._file.save(self._snapshot().encode(pretty=True).decode())


class Persistence:
    """The files of one broker."""

    def __init__(
        self, controller: BrokerController, root: Path, files: Files, workers: Workers
    ) -> None:
        self._controller = controller
        folder = root / "config"
        self._topics = ConfigFile(folder / "topics.json", files)
        self._groups = ConfigFile(folder / "subscriptionGroup.json", files)
        self._offsets = ConfigFile(folder / "consumerOffset.json", files)
        self._delays = ConfigFile(folder / "delayOffset.json", files)
        self._filters = ConfigFile(folder / "consumerFilter.json", files)
        self._workers = workers
        self._periodic: list[PeriodicFile] = []

    def load(self) -> None:
        """Fill the tables from the files.

        Raises:
            StoreDamagedError: a file and its backup cannot be read; the text names them.
        """
        controller = self._controller
        topics = self._topics.load(TopicConfigSerializeWrapper.decode)
        if topics is not None:
            controller.topics.load(topics)
        groups = self._groups.load(SubscriptionGroupWrapper.decode)
        if groups is not None:
            controller.groups.load(groups)
        offsets = self._offsets.load(ConsumerOffsetTable.decode)
        if offsets is not None:
            controller.offsets.load(offsets)
        delays = self._delays.load(DelayOffsetTable.decode)
        if delays is not None:
            controller.schedule.load(delays)
        filters = self._filters.load(ConsumerFilterTable.decode)
        if filters is not None:
            for error in controller.filters.load(filters, controller.now_ms()):
                logger.warning("%s: %s", self._filters.path, error.message)

    def start(self) -> None:
        """Write the periodic files from now on."""
        controller = self._controller
        self._periodic = [
            PeriodicFile(
                self._offsets,
                lambda: controller.offsets.generation,
                controller.offsets.snapshot,
                self._workers,
                controller.config.offset_persist_interval_ms,
            ),
            PeriodicFile(
                self._delays,
                lambda: controller.schedule.generation,
                controller.schedule.snapshot,
                self._workers,
                controller.config.delay_persist_interval_ms,
            ),
            PeriodicFile(
                self._filters,
                lambda: controller.filters.generation,
                lambda: controller.filters.snapshot(controller.now_ms()),
                self._workers,
                controller.config.filter_persist_interval_ms,
            ),
        ]
        for file in self._periodic:
            file.start()

    def save_topics(self) -> None:
        """Write topics.json now."""
        self._topics.save(self._controller.topics.wrapper().encode(pretty=True).decode())

    def save_groups(self) -> None:
        """Write subscriptionGroup.json now."""
        self._groups.save(self._controller.groups.wrapper().encode(pretty=True).decode())

    def close(self) -> None:
        """Write what is not written yet; blocks."""
        self._workers.close()
        for file in self._periodic:
            try:
                file.close()
            except StoreError as error:
                logger.error("%s", error)

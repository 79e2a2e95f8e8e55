"""Lost rows, as an error or a warning by ``failOnDataLoss``, and rows that cannot be decoded.

The module makes the texts and chooses between error and warning; its callers decide what counts as
a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketstream.columns.table import described
from rocketstream.errors import DataLossError
from rocketstream.model import MessageQueue

logger: logging.Logger = logging.getLogger("rocketstream.spark")


def report_loss(
    fail: bool, queue: MessageQueue, what: str, log: Callable[[str], None] = logger.warning
) -> None:
    """Raise or log that offsets cannot be read any more.

    Raises:
        DataLossError: ``fail`` is set.
    """
    text = f"data loss in {described(queue)}: {what}"
    if fail:
        raise DataLossError(
            f"{text}. Set option failOnDataLoss=false to go on without them", queue=tuple(queue)
        )
    log(f"{text}. Going on without them (failOnDataLoss=false)")


class Losses:
    """The losses of one task: the first of each queue is a warning, later ones are details.

    Args:
        fail: raise at the first one instead.
    """

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._warned: set[MessageQueue] = set()

    def gone(self, queue: MessageQueue, begin: int, end: int, held: tuple[int, int]) -> None:
        """Report offsets the broker says it does not have, and the range it ``held``."""
        self._report(
            queue,
            f"offsets {begin} to {end - 1} are gone; "
            f"the queue now holds {held[0]} to {held[1] - 1}",
        )

    def missing(self, queue: MessageQueue, begin: int, end: int) -> None:
        """Report offsets an answer skips although it should contain every one."""
        self._report(
            queue,
            f"offsets {begin} to {end - 1} are missing in what the broker answered, as where a "
            "log file has vanished",
        )

    def _report(self, queue: MessageQueue, what: str) -> None:
        """Raise or log.

        Raises:
            DataLossError: losses are errors.
        """
        log = logger.debug if queue in self._warned else logger.warning
        self._warned.add(queue)
        report_loss(self._fail, queue, what, log)


class KeptAside:
    """The undecodable records of one task: the first of each queue is a warning, later ones are
    details; each is a row of its own.
    """

    def __init__(self) -> None:
        self._warned: set[MessageQueue] = set()

    def add(self, queue: MessageQueue, offset: int | None, error: str) -> None:
        """Log one record."""
        log = logger.debug if queue in self._warned else logger.warning
        self._warned.add(queue)
        where = "an offset not known" if offset is None else f"offset {offset}"
        log("undecodable record at %s of %s: %s", where, described(queue), error)

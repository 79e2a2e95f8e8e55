"""A listener for streaming queries that reports how far their RocketMQ sources are.

The listener runs in the user's own process, so its log is seen there, unlike that of the source's
process.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql import functions
from pyspark.sql.streaming import StreamingQueryListener

from rocketstream.spark.measures import OBSERVATION, Measures, ReadProgress

logger: logging.Logger = logging.getLogger("rocketstream.spark.progress")


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Logs a line per micro-batch of each RocketMQ source, and its warnings.

    ``spark.streams.addListener(ProgressListener(callback))``. Queries without such a source are
    left alone.

    Parameters
    ----------
    callback
        Called with a ``ReadProgress`` for each micro-batch and source, including batches without
        rows, on Spark's listener thread, so it should return soon. An error it raises is logged.
    log
        Takes the line of a micro-batch that read rows; by default it goes to the logger
        ``rocketstream.spark.progress`` as information. Warnings go to that logger as warnings,
        which Python writes to stderr by default.
    """

    def __init__(
        self,
        callback: Callable[[ReadProgress], object] | None = None,
        *,
        log: Callable[[str], object] = logger.info,
    ) -> None:
        self._callback = callback
        self._log = log
        self._measures = Measures()

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: nothing was read yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Report one micro-batch."""
        try:
            records = self._measures.of(json.loads(event.progress.json))
            for record in records:
                self._tell(record)
        except Exception:
            logger.exception("the progress of a query could not be told")

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: Spark reports progress now and then while a query is idle."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the run of the query."""
        self._measures.forget(str(event.runId))

    def _tell(self, record: ReadProgress) -> None:
        for text in record.warnings:
            logger.warning("%s: %s", record.query or record.query_id, text)
        if record.rows:
            self._log(str(record))
        if self._callback is not None:
            self._callback(record)


def observe_bytes(frame: Any) -> Any:
    """Return a streaming DataFrame whose bytes ``ProgressListener`` can report.

    Spark counts the rows of a source, not its bytes. This makes Spark sum up the lengths of
    ``body`` on the way, at some tens of nanoseconds a row. In a query with several sources only
    one of them may be observed.

    Parameters
    ----------
    frame
        Of ``spark.readStream.format("rocketmq")``, with the column ``body``.
    """
    return frame.observe(OBSERVATION, functions.sum(functions.length("body")).alias("bytes"))

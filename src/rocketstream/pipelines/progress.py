"""The counts of a landing so far, from the progress Spark reports of its query.

Pure: Spark's JSON in, counts out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

READ: Final = "rocketstream_read"
LANDED: Final = "rocketstream_landed"
"""Names of Spark's two observations: rows as decoded, and rows as written."""


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """One micro-batch.

    Attributes
    ----------
    batch : int
        The number Spark gave it.
    rows : int
        Messages read.
    landed : int
        Rows written; the other messages were dead letters, repeats, or left out by the query.
    malformed : int
        Messages whose body did not decode.
    late : int
        Rows left out because they were older than the watermark.
    seconds : float
        How long the micro-batch took.
    rows_per_second : float
        Messages read a second.
    behind : int or None
        Messages in the topics that are not read yet; None where Spark does not report them.
    """

    batch: int
    rows: int
    landed: int
    malformed: int
    late: int
    seconds: float
    rows_per_second: float
    behind: int | None


@dataclass(slots=True)
class IngestProgress:
    """Counts of this run, after each micro-batch.

    Attributes
    ----------
    rows : int
        Messages read, malformed ones included.
    landed : int
        Rows written to the table.
    malformed : int
        Messages whose body did not decode.
    late : int
        Rows left out because they were older than the watermark.
    batches : int
        Micro-batches with rows.
    last : BatchMetrics or None
        The last micro-batch with rows.
    """

    rows: int = 0
    landed: int = 0
    malformed: int = 0
    late: int = 0
    batches: int = 0
    last: BatchMetrics | None = None
    _seen: set[int] = field(default_factory=set, repr=False)

    @property
    def rows_per_second(self) -> float:
        """Rate of the last micro-batch."""
        return self.last.rows_per_second if self.last is not None else 0.0

    def add(self, progress: Mapping[str, Any]) -> bool:
        """Add a query's progress (Spark's JSON); return whether it is a new batch with rows."""
        batch = int(progress["batchId"])
        observed = progress.get("observedMetrics") or {}
        read, landed = observed.get(READ) or {}, observed.get(LANDED) or {}
        rows, written = int(read.get("rows") or 0), int(landed.get("rows") or 0)
        if batch in self._seen or not (rows or written):
            return False
        self._seen.add(batch)
        self.last = BatchMetrics(
            batch,
            rows,
            written,
            int(read.get("malformed") or 0),
            _late(progress),
            int((progress.get("durationMs") or {}).get("triggerExecution") or 0) / 1000,
            float(progress.get("processedRowsPerSecond") or 0.0),
            _behind(progress),
        )
        self.rows += rows
        self.landed += written
        self.malformed += self.last.malformed
        self.late += self.last.late
        self.batches += 1
        return True


def _late(progress: Mapping[str, Any]) -> int:
    operators = progress.get("stateOperators") or []
    return sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators)


def _behind(progress: Mapping[str, Any]) -> int | None:
    """Return how many messages lie between a batch's end and the ends of the queues."""
    total = 0
    for source in progress.get("sources") or []:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if not isinstance(end, dict) or not isinstance(latest, dict):
            return None
        reached = dict(_queues(end.get("q")))
        total += sum(max(0, at - reached.get(queue, at)) for queue, at in _queues(latest.get("q")))
    return total


def _queues(tree: Any) -> list[tuple[tuple[str, str, str], int]]:
    return [
        ((topic, broker, queue), int(offset))
        for topic, brokers in (tree or {}).items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    ]

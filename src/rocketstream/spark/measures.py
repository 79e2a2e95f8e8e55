"""The lag, rates, age and warnings of RocketMQ sources, read from Spark's progress reports.

Pure: the JSON of one progress event in, records out. A figure the event does not contain is None.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.spark.driver.offsets import StreamOffset, ranges_between
from rocketstream.spark.driver.runner import WARNINGS

OBSERVATION: Final = "rocketstream"
"""Name of the observed metrics that count bytes; Spark itself counts rows only."""
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """One micro-batch of one RocketMQ source.

    Attributes:
        query: name of the query, None where it has none.
        query_id: stays the same as long as the checkpoint is used.
        run_id: the id of this run of the query.
        batch_id: number of the micro-batch.
        source: number of the source within the query, from 0.
        topics: topics the source reads.
        rows: rows read; more than ``offsets`` where the query reads its batch several times.
        offsets: how many offsets the batch spans. Missing rows were filtered, lost, or not asked
            for by the query.
        rows_per_second: rows per second of the batch's time; None where it read none.
        batch_ms: how long the batch took, None where Spark did not say.
        lag: messages beyond the end of the batch; None before Spark 4.2, which does not report it.
            A queue the stream has not begun counts as a whole.
        lag_by_topic: the same by topic.
        newest_ms: when the newest row of the batch was stored, ms since 1970 by the broker's
            clock; None where there is none.
        age_ms: how old that row was when the batch was done.
        bytes: bytes of the bodies read, where the query observes them (``observe_bytes``).
        mb_per_second: million bytes of bodies a second.
        warnings: the source's warnings since the previous batch; from Spark 4.2 on.
    """

    query: str | None
    query_id: str
    run_id: str
    batch_id: int
    source: int
    topics: tuple[str, ...]
    rows: int
    offsets: int
    rows_per_second: float | None
    batch_ms: int | None
    lag: int | None
    lag_by_topic: Mapping[str, int] = field(default_factory=dict)
    newest_ms: int | None = None
    age_ms: int | None = None
    bytes: int | None = None
    mb_per_second: float | None = None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"batch {self.batch_id}", f"{self.rows:,} rows"]
        if self.rows_per_second is not None:
            parts.append(f"{self.rows_per_second:,.0f} rows/s")
        if self.mb_per_second is not None:
            parts.append(f"{self.mb_per_second:,.1f} MB/s")
        parts.append("lag unknown" if self.lag is None else f"lag {self.lag:,}")
        if self.age_ms is not None:
            parts.append(f"newest row {self.age_ms / 1_000:,.1f} s old")
        if self.rows < self.offsets:
            parts.append(f"{self.offsets - self.rows:,} offsets without a row")
        name = self.query or self.query_id
        return f"{name}, {', '.join(self.topics)}: {', '.join(parts)}"


class Measures:
    """Reads progress events; remembers which warnings it has reported."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], int] = {}

    def of(self, progress: Mapping[str, Any]) -> list[ReadProgress]:
        """Return a record per RocketMQ source of a progress event; other sources are left out."""
        records = []
        for number, source in enumerate(progress.get("sources") or ()):
            end = _offset(source.get("endOffset"))
            if end is not None and end.ends:
                records.append(self._record(progress, number, source, end))
        return records

    def forget(self, run_id: str) -> None:
        """Forget a run that has ended."""
        for key in [key for key in self._told if key[0] == run_id]:
            del self._told[key]

    def _record(
        self,
        progress: Mapping[str, Any],
        number: int,
        source: Mapping[str, Any],
        end: StreamOffset,
    ) -> ReadProgress:
        start = _offset(source.get("startOffset")) or StreamOffset({})
        latest = _offset(source.get("latestOffset"))
        by_topic = {} if latest is None else _lag_by_topic(end, latest)
        moved = ranges_between(start, end)
        stored = [end.marks[span.queue].store_ms for span in moved if span.queue in end.marks]
        newest_ms = max(stored, default=None)
        batch_ms = (progress.get("durationMs") or {}).get("triggerExecution")
        done_ms = _done_ms(progress.get("timestamp"), batch_ms)
        rows = int(source.get("numInputRows") or 0)
        seconds = batch_ms / 1_000 if batch_ms else None
        size = _observed_bytes(progress) if rows else None
        run_id = str(progress.get("runId"))
        return ReadProgress(
            query=progress.get("name"),
            query_id=str(progress.get("id")),
            run_id=run_id,
            batch_id=int(progress.get("batchId") or 0),
            source=number,
            topics=tuple(sorted({queue.topic for queue in end.ends})),
            rows=rows,
            offsets=sum(span.count for span in moved),
            rows_per_second=rows / seconds if rows and seconds else None,
            batch_ms=batch_ms,
            lag=None if latest is None else sum(by_topic.values()),
            lag_by_topic=by_topic,
            newest_ms=newest_ms,
            age_ms=None if newest_ms is None or done_ms is None else max(0, done_ms - newest_ms),
            bytes=size,
            mb_per_second=size / _MB / seconds if size is not None and seconds else None,
            warnings=self._new_warnings((run_id, number), source.get("latestOffset")),
        )

    def _new_warnings(self, key: tuple[str, int], latest: Any) -> tuple[str, ...]:
        told = self._told.get(key, 0)
        value = _parsed(latest)
        pairs = value.get(WARNINGS, ()) if isinstance(value, dict) else ()
        new = [(int(number), str(text)) for number, text in pairs if int(number) > told]
        if new:
            self._told[key] = max(number for number, _ in new)
        return tuple(text for _, text in sorted(new))


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _offset(value: Any) -> StreamOffset | None:
    """Return an offset of ours; None for an offset of another source."""
    parsed = _parsed(value)
    if not isinstance(parsed, dict):
        return None
    try:
        return StreamOffset.from_json(parsed)
    except ConfigurationError:
        return None


def _lag_by_topic(end: StreamOffset, latest: StreamOffset) -> dict[str, int]:
    lag: dict[str, int] = {}
    for queue, newest in latest.ends.items():
        behind = max(0, newest - end.ends.get(queue, 0))
        lag[queue.topic] = lag.get(queue.topic, 0) + behind
    return lag


def _done_ms(begun: Any, batch_ms: int | None) -> int | None:
    """Return when a batch was done, ms since 1970."""
    if not isinstance(begun, str) or batch_ms is None:
        return None
    moment = datetime.datetime.fromisoformat(begun)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1_000) + batch_ms


def _observed_bytes(progress: Mapping[str, Any]) -> int | None:
    row = (progress.get("observedMetrics") or {}).get(OBSERVATION)
    size = row.get("bytes") if isinstance(row, Mapping) else None
    return None if size is None else int(size)

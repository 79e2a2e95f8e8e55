"""Visits to a shop: clicks of one visitor, until ten minutes go by without one.

A processor of Spark's ``transformWithState`` keeps the open visits of each visitor and sets a timer
to the end of each. Timers go by the times of the clicks: one fires when the stream has seen a click
five minutes (the watermark) younger than it, and the visit is written, once. Clicks may come in any
order; one for a time that is over is left out, and counted. Needs Spark 4.1 and Python's protobuf.
Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/spark/sessions.py) or without
one: it then starts an embedded server of its own.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from rocketstream import Message, Producer

TOPIC = "example-clicks"
OPENING = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
GAP_MS = 600_000
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""Timers and several states of one key are kept there; Spark's default store refuses them."""


@dataclass(frozen=True)
class Click:
    """A page a visitor looked at, so many minutes after the opening."""

    visitor: str
    page: str
    minute: int


class Visit(NamedTuple):
    """From the first to the last of its clicks, in milliseconds; the state Spark keeps."""

    first_ms: int
    last_ms: int
    clicks: int


FIRST = [Click("Ann", "/", 0), Click("Ben", "/", 1), Click("Ann", "/hats", 4), Click("Ann", "/", 9)]
# Ann's visit would have ended with minute 19; the youngest click, of minute 25, closes Ben's alone.
SECOND = [Click("Ann", "/hats", 17), Click("Ben", "/", 20), Click("Ben", "/pay", 25)]
# Minute 23 comes late, but in time. The last click closes all visits but its own.
THIRD = [Click("Ann", "/pay", 23), Click("Ben", "/", 24), Click("Cy", "/", 60)]
# Minute 30 is over: the stream has seen minute 60. The last click closes Cy's visit.
FOURTH = [Click("Ann", "/", 30), Click("Cy", "/", 90)]
PARTS = (FIRST, SECOND, THIRD, FOURTH)


def merged(visits: Iterable[Visit]) -> list[Visit]:
    """Return visits of one visitor in order, those less than ten minutes apart as one."""
    found: list[Visit] = []
    for visit in sorted(visits):
        if found and visit.first_ms - found[-1].last_ms < GAP_MS:
            before = found.pop()
            last = max(before.last_ms, visit.last_ms)
            visit = Visit(before.first_ms, last, before.clicks + visit.clicks)
        found.append(visit)
    return found


class Visits(StatefulProcessor):  # type: ignore[misc]  # pyspark has no types here
    """The open visits of each visitor, with a timer at the end of each."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getListState("open", "first_ms LONG, last_ms LONG, clicks INT")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        before = [Visit(*values) for values in self._open.get()]
        after = merged([*before, *(Visit(row.at_ms, row.at_ms, 1) for row in rows)])
        self._open.put(after)
        for visit in before:
            self._handle.deleteTimer(visit.last_ms + GAP_MS)
        for visit in after:
            self._handle.registerTimer(visit.last_ms + GAP_MS)
        return iter(())

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        visits = [Visit(*values) for values in self._open.get()]
        end_ms = expiredTimerInfo.getExpiryTimeInMs()
        over = [visit for visit in visits if visit.last_ms + GAP_MS <= end_ms]
        if len(over) < len(visits):
            self._open.put([visit for visit in visits if visit not in over])
        else:
            self._open.clear()  # an empty list is refused
        for visit in over:
            yield Row(visitor=key[0], **visit._asdict())


def click(namesrv_addr: str, topic: str, clicks: Iterable[Click]) -> None:
    """Send clicks."""
    with Producer("example-site", namesrv_addr=namesrv_addr) as producer:
        for each in clicks:
            at = (OPENING + timedelta(minutes=each.minute)).isoformat()
            body = json.dumps({"visitor": each.visitor, "page": each.page, "at": at})
            producer.send(Message(topic, body, keys=each.visitor))


def close_visits(
    spark: Any, namesrv_addr: str, topic: str, place: Path, rows_per_batch: int = 100_000
) -> int:
    """Take in what was sent since the last time; return how many clicks were too late."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv_addr)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .schema("body BINARY")
        .load()
    )
    body = F.from_json(F.col("body").cast("string"), "visitor STRING, page STRING, at TIMESTAMP")
    visits = (
        messages.select(body.alias("click"))
        .select("click.visitor", "click.at", F.unix_millis("click.at").alias("at_ms"))
        .withWatermark("at", "5 minutes")
        .groupBy("visitor")
        .transformWithState(
            Visits(),
            outputStructType="visitor STRING, first_ms LONG, last_ms LONG, clicks INT",
            outputMode="Append",
            timeMode="EventTime",
        )
    )
    query = (
        visits.writeStream.format("parquet")
        .option("path", str(place / "visits"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(
        operator.numRowsDroppedByWatermark
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


def closed(spark: Any, place: Path) -> list[tuple[str, int, int, int]]:
    """Return visitor, first and last minute and clicks of each visit that is over."""
    opening_ms = int(OPENING.timestamp() * 1_000)
    rows = spark.read.parquet(str(place / "visits")).orderBy("first_ms", "visitor").collect()
    return [
        (
            row.visitor,
            (row.first_ms - opening_ms) // 60_000,
            (row.last_ms - opening_ms) // 60_000,
            row.clicks,
        )
        for row in rows
    ]


def main() -> None:
    """Send clicks four times, take them in after each, and say which visits are over."""
    from rocketstream.spark import prepare

    prepare(local=True)
    with ExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        builder = SparkSession.builder.master("local[2]").appName("sessions")
        builder = builder.config("spark.sql.shuffle.partitions", "2")
        spark = builder.config(STATE_STORE, ROCKSDB).getOrCreate()
        stack.callback(spark.stop)
        sent = late = 0
        for clicks in PARTS:
            click(namesrv_addr, TOPIC, clicks)
            sent += len(clicks)
            late += close_visits(spark, namesrv_addr, TOPIC, place)
            over = closed(spark, place)
            counted = sum(number for *_, number in over)
            print(f"{sent} clicks sent: {len(over)} visits over with {counted}, {late} late")
        for visitor, first, last, number in over:
            print(f"minutes {first:>2} to {last:>2}  {visitor}  {number} clicks")


if __name__ == "__main__":
    main()

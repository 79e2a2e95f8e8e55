"""Takings of shops, by the minute they were made in, though messages come late.

Sales are messages with the time they were made at. Spark keeps a window open until it has seen a
sale ten minutes younger (the watermark); what comes for a closed window is left out, and counted.
Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/spark/windows.py) or without
one: it then starts an embedded server of its own.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rocketstream import Message, Producer

TOPIC = "example-sales"
OPENING = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Sale:
    """What a shop took, so many minutes after the opening."""

    shop: str
    price: int
    minute: int


IN_TIME = [Sale(shop, 10, minute) for minute in range(30) for shop in ("Oslo", "Rome")]
# The youngest sale so far is of minute 29: windows that end after minute 19 are still open.
LATE = [Sale("Oslo", 100, 20), Sale("Rome", 100, 24), Sale("Rome", 10, 39)]
# Now those that end after minute 29: that of minute 2 is long closed. The last sale closes all.
TOO_LATE = [Sale("Oslo", 1_000, 2), Sale("Rome", 1_000, 26), Sale("Oslo", 10, 90)]


def sell(namesrv_addr: str, topic: str, sales: Iterable[Sale]) -> None:
    """Send sales."""
    with Producer("example-shops", namesrv_addr=namesrv_addr) as producer:
        for sale in sales:
            at = (OPENING + timedelta(minutes=sale.minute)).isoformat()
            body = json.dumps({"shop": sale.shop, "price": sale.price, "at": at})
            producer.send(Message(topic, body, keys=sale.shop))


def add_up(spark: Any, namesrv_addr: str, topic: str, place: Path) -> int:
    """Take in what was sent since the last time; return how many rows were too late.

    Spark adds up the rows of a task before it looks at the watermark, so a row may stand for
    several sales of one shop and window.
    """
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv_addr)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .schema("body BINARY")
        .load()
    )
    sale = F.from_json(F.col("body").cast("string"), "shop STRING, price INT, at TIMESTAMP")
    windows = (
        messages.select(sale.alias("sale"))
        .select("sale.*")
        .withWatermark("at", "10 minutes")
        .groupBy(F.window("at", "5 minutes"), "shop")
        .agg(F.count("*").alias("sales"), F.sum("price").alias("takings"))
    )
    query = (
        windows.select("window.start", "shop", "sales", "takings")
        .writeStream.format("parquet")
        .option("path", str(place / "takings"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .outputMode("append")  # a window is written once: when it is closed
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(
        operator.numRowsDroppedByWatermark
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


def takings(spark: Any, place: Path) -> dict[tuple[int, str], tuple[int, int]]:
    """Return sales and takings of each closed window, by its first minute and shop."""
    rows = spark.read.parquet(str(place / "takings")).orderBy("start", "shop").collect()
    return {
        (int((row.start.timestamp() - OPENING.timestamp()) // 60), row.shop): (
            row.sales,
            row.takings,
        )
        for row in rows
    }


def main() -> None:
    """Sell three times, add up after each, and say what came too late."""
    from pyspark.sql import SparkSession

    from rocketstream.spark import prepare

    prepare()
    with ExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        builder = SparkSession.builder.master("local[2]").appName("windows")
        spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        stack.callback(spark.stop)
        sent = dropped = 0
        for sales in (IN_TIME, LATE, TOO_LATE):
            sell(namesrv_addr, TOPIC, sales)
            sent += len(sales)
            dropped += add_up(spark, namesrv_addr, TOPIC, place)
            closed = takings(spark, place)
            counted = sum(number for number, _ in closed.values())
            print(f"{sent} sales sent: {len(closed)} windows closed with {counted}, {dropped} late")
        for (minute, shop), (number, price) in closed.items():
            print(f"minutes {minute:>2} to {minute + 4:>2}  {shop}  {number:>2} sales  {price:>4}")


if __name__ == "__main__":
    main()

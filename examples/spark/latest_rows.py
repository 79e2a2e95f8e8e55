"""A MySQL table from the changes Debezium sends, on any Spark and with files of Parquet alone.

Every micro-batch writes the rows anew: those of the last version and those that changed, the
newest of each by its place in the binlog. A version belongs to one micro-batch, so one that is run
again, after a crash, finds what it found before and replaces what it wrote. Changes may come in
any order: deleted rows are kept, marked, so that an older change does not bring them back.

Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/spark/latest_rows.py) or without
one: it then starts an embedded server of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rocketstream import Message, Producer

TOPIC = "example-customer-changes"
ROW = "STRUCT<id: BIGINT, name: STRING, city: STRING>"
DEBEZIUM = (
    f"op STRING, before {ROW}, after {ROW}, source STRUCT<file: STRING, pos: BIGINT, row: INT>"
)
STATE = (
    "id BIGINT, name STRING, city STRING, deleted BOOLEAN, "
    "place STRUCT<file: STRING, pos: BIGINT, row: INT>"
)
VERSIONS_KEPT = 2
Row = Mapping[str, Any]


def envelope(pos: int, before: Row | None, after: Row | None) -> str:
    """Return a change at a place in the binlog, as Debezium's MySQL connector tells it."""
    op = "d" if after is None else "c" if before is None else "u"
    source = {"connector": "mysql", "file": "mysql-bin.000003", "pos": pos, "row": 0}
    return json.dumps({"op": op, "before": before, "after": after, "source": source})


def send(namesrv_addr: str, topic: str, bodies: Iterable[str]) -> None:
    """Send changes."""
    with Producer("example-debezium", namesrv_addr=namesrv_addr) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def take_in(spark: Any, namesrv_addr: str, topic: str, home: Path) -> None:
    """Bring the table up to date with what was sent since the last time; blocks."""
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

    reader = spark.readStream.format("rocketmq").option("nameServer", namesrv_addr)
    reader = reader.option("topic", topic).option("startingOffsets", "earliest")
    # A body that is no such change ends the query: one left out would make the table wrong. None is
    # an object with its schema and the change in it, as Debezium may be set to send.
    text = F.col("body").cast("string")
    body = F.from_json(text, DEBEZIUM, {"mode": "FAILFAST"})
    read = reader.schema("body BINARY").load().select(text.alias("text"), body.alias("m"))
    row, place = F.coalesce("m.after", "m.before"), F.col("m.source")
    wrong = F.raise_error(F.concat(F.lit("no change of a row: "), "text"))
    changes = read.select(
        F.when(row["id"].isNotNull() & place["pos"].isNotNull(), row).otherwise(wrong).alias("row"),
        (F.col("m.op") == "d").alias("deleted"),
        place.alias("place"),
    ).select("row.*", "deleted", "place")
    query = (
        changes.writeStream.foreachBatch(lambda rows, batch: write_version(rows, batch, home))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def write_version(changes: Any, batch_id: int, home: Path) -> None:
    """Write the version of a micro-batch from the one before it."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = changes.sparkSession
    older = [number for number in versions(home) if number < batch_id]
    before = (
        spark.read.schema(STATE).parquet(str(home / "rows" / str(older[-1])))
        if older
        else spark.createDataFrame([], STATE)
    )
    newest = F.max_by(F.struct("name", "city", "deleted", "place"), "place")
    rows = before.unionByName(changes).groupBy("id").agg(newest.alias("row"))
    rows.select("id", "row.*").write.mode("overwrite").parquet(str(home / "rows" / str(batch_id)))
    for number in older[: 1 - VERSIONS_KEPT]:
        shutil.rmtree(home / "rows" / str(number))


def versions(home: Path) -> list[int]:
    """Return the numbers of the versions that are whole, the newest last."""
    return sorted(int(done.parent.name) for done in (home / "rows").glob("*/_SUCCESS"))


def table(spark: Any, home: Path) -> list[tuple[int, str, str]]:
    """Return the rows of the newest version that are there still."""
    rows = spark.read.schema(STATE).parquet(str(home / "rows" / str(versions(home)[-1])))
    found = rows.where("NOT deleted").orderBy("id").collect()
    return [(row.id, row.name, row.city) for row in found]


def main() -> None:
    """Send changes in two parts, out of order, and show the table after each."""
    from pyspark.sql import SparkSession

    from rocketstream.spark import prepare

    ann, ben = {"id": 1, "name": "Ann", "city": "Oslo"}, {"id": 2, "name": "Ben", "city": "Rome"}
    first = [
        envelope(100, None, ann),
        envelope(300, ann, {**ann, "city": "Bonn"}),
        envelope(400, ben, None),
        envelope(200, None, ben),  # overtaken by its deletion
    ]
    second = [envelope(150, ann, {**ann, "city": "Kiel"}), envelope(350, ben, {**ben, "city": "X"})]
    prepare()
    with ExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        builder = SparkSession.builder.master("local[2]").appName("latest rows")
        spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        stack.callback(spark.stop)
        for bodies in (first, second):
            send(namesrv_addr, TOPIC, bodies)
            take_in(spark, namesrv_addr, TOPIC, home)
            print(f"{len(bodies)} changes taken in, the table is {table(spark, home)}")


if __name__ == "__main__":
    main()

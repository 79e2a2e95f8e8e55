"""A MySQL table, and its history, from the changes Canal sends (flat messages, JSON).

Changes may come in any order: the binlog's time, Canal's number of the message and the row's place
in it tell which is the newest of a row, and a deletion stays known after the row is gone. A body
that is no such JSON ends the pipeline: leaving a change out would make the table wrong.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

if not hasattr(dp, "create_auto_cdc_flow"):
    raise RuntimeError(
        "this pipeline needs dp.create_auto_cdc_flow, which pyspark has from 4.2 on; "
        "examples/spark/latest_rows.py does the same without it, and without MERGE"
    )

spark = SparkSession.active()
CANAL = (
    "type STRING, es BIGINT, id BIGINT, isDdl BOOLEAN, "
    "data ARRAY<MAP<STRING, STRING>>, old ARRAY<MAP<STRING, STRING>>"
)


def change(row: Column, deleted: Column) -> Column:
    """One change of one row; Canal sends every value as text."""
    return F.struct(
        row["id"].cast("bigint").alias("id"),
        row["name"].alias("name"),
        row["city"].alias("city"),
        deleted.alias("deleted"),
    )


@dp.temporary_view()
def changes() -> DataFrame:
    """A row for every row that changed, and one more where a row got another key."""
    reader = spark.readStream.format("rocketmq").option("topic", "example-customers")
    reader = reader.option("nameServer", spark.conf.get("example.nameServer"))
    messages = reader.option("startingOffsets", "earliest").schema("body BINARY").load()
    body = F.from_json(F.col("body").cast("string"), CANAL, {"mode": "FAILFAST"})
    named = messages.select(F.col("body").cast("string").alias("text"), body.alias("m"))
    # A statement that defines a table has no rows; any other body without them is no change.
    wrong = F.raise_error(F.concat(F.lit("no change of Canal's: "), "text"))
    data = F.when(F.col("m.data").isNull() & ~F.coalesce("m.isDdl", F.lit(False)), wrong)
    rows = named.select(
        "m.type", "m.es", "m.id", "m.old",
        F.posexplode(F.coalesce(data, "m.data")).alias("place", "row"),
    )  # fmt: skip
    row, deleted = F.col("row"), F.col("type") == "DELETE"
    old_id = F.try_element_at("old", F.col("place") + 1)["id"]
    moved = F.when(
        old_id != row["id"], change(F.map_concat(F.create_map(F.lit("id"), old_id)), F.lit(True))
    )
    both = F.array_compact(F.array(change(row, deleted), moved))
    # May be null, as far as Spark knows: the history's columns are, and it compares types.
    place = F.when(F.col("place") >= 0, F.col("place")).alias("place")
    order = F.struct("es", "id", place).alias("order")
    return rows.select(order, F.explode(both).alias("change")).select("change.*", "order")


for table, kind in (("customers", 1), ("customers_history", 2)):
    dp.create_streaming_table(table)
    dp.create_auto_cdc_flow(
        target=table,
        source="changes",
        keys=["id"],
        sequence_by="order",
        apply_as_deletes="deleted",
        except_column_list=["deleted", "order"],
        stored_as_scd_type=kind,
    )

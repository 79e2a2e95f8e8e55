"""Orders in, bills out: each order that can be read becomes a bill, every other one is handed back.

A flow reads a topic by ``format("rocketmq")``, a sink writes one; the two flows here are two
streams, each with its own place in the topic.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

spark = SparkSession.active()
SERVER = {"nameServer": spark.conf.get("example.nameServer")}
ORDER = "id BIGINT, city STRING, price INT"

dp.create_sink("bills", "rocketmq", {**SERVER, "topic": "example-bills"})
dp.create_sink("returned", "rocketmq", {**SERVER, "topic": "example-returned"})


@dp.temporary_view()
def orders() -> DataFrame:
    """Every order as it came, and what can be read of it."""
    reader = spark.readStream.format("rocketmq").options(**SERVER, topic="example-orders")
    messages = reader.option("startingOffsets", "earliest").load()
    order = F.from_json(F.col("body").cast("string"), ORDER)
    return messages.select("body", "keys", order.alias("order"))


def readable() -> Column:
    """Whether an order says which one it is and what it costs."""
    return F.col("order.id").isNotNull() & F.col("order.price").isNotNull()


@dp.append_flow(target="bills")
def bill() -> DataFrame:
    """A bill with a quarter of tax; bills of one city keep to one queue."""
    total = (F.col("order.price") * 125 / 100).alias("total")
    return (
        spark.readStream.table("orders")
        .where(readable())
        .select(
            F.to_json(F.struct("order.id", total)).alias("body"),
            F.array(F.col("order.id").cast("string")).alias("keys"),
            F.col("order.city").alias("shardingKey"),
        )
    )


@dp.append_flow(target="returned")
def hand_back() -> DataFrame:
    """What is no order, as it came."""
    return spark.readStream.table("orders").where(~readable()).select("body", "keys")

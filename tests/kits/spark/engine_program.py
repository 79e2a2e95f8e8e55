"""Reads, streams, writes and consumes on an engine: ``MASTER NAMESRV TOPIC COPY ROOT``.

``MASTER`` is a Spark master, or ``connect`` for Spark Connect. Prints the rows of a batch read of
``TOPIC``, of a stream of it into Parquet, and of ``COPY`` after the rows were written there; then
how many different tries a listener had of ``TOPIC``, a hundredth of them failing once, and how
often it called a message good that an operator had it consume.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rocketstream.admin import Admin
from rocketstream.errors import BrokerError, RequestTimeoutError
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeFromWhere
from rocketstream.spark import SparkPushConsumer
from rocketstream.spark.setup.preparation import local_python
from tests.kits.spark.support import CONNECT_ON_ANY_PORT
from tests.plugins.spark import session_builder

MEMORY_MB = 1024
FAILING = 7
LONG_S = 120


def session(master: str, root: Path) -> Any:
    """A session on that engine; its executors find this package as the driver does."""
    if master == "connect":
        os.environ["PYSPARK_PYTHON"] = local_python()
        os.environ.update(CONNECT_ON_ANY_PORT)
        return SparkSession.builder.remote("local[2]").getOrCreate()
    builder = session_builder(root).master(master)
    builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    builder = builder.config("spark.executor.memory", f"{MEMORY_MB}m")
    return builder.getOrCreate()


def consume(
    spark: Any, name_server: str, topic: str, root: Path, msg_id: str, expected: int
) -> None:
    """Print how many tries there were in the end, and what became of a message on request."""
    notes = root / "notes"
    notes.mkdir()

    def listener(messages: list[Any], context: Any) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        number, tries = int(message.body), message.reconsume_times
        (notes / f"{number}-{tries}").touch()
        context.delay_level_when_next_consume = 1
        if number % 100 == FAILING and tries == 0:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = SparkPushConsumer(
        f"group-{topic}",
        spark,
        str(root / "listener-checkpoint"),
        namesrv_addr=name_server,
        listener=listener,
        subscription={topic: "*"},
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    with consumer, Admin(name_server) as admin:
        for _ in range(LONG_S):
            if len(list(notes.iterdir())) == expected or consumer.await_termination(1_000):
                break
        print(len(list(notes.iterdir())))
        client_id = str(consumer.client_id)
        print(int(asked_of(admin, f"group-{topic}", client_id, topic, msg_id) == "CR_SUCCESS"))


def asked_of(admin: Admin, group: str, client_id: str, topic: str, msg_id: str) -> str:
    """Have a member consume a message; a broker waits ten seconds for it, a busy Spark longer."""
    for _ in range(6):
        try:
            return admin.messages.consume(group, client_id, topic, msg_id).result
        except (BrokerError, RequestTimeoutError) as error:
            refused = error
    raise refused


def main(master: str, name_server: str, topic: str, copy: str, root: Path) -> None:
    """Print the three counts."""
    spark = session(master, root)
    options = {"nameServer": name_server, "startingOffsets": "earliest"}
    rows = spark.read.format("rocketmq").options(topic=topic, **options).load()
    print(rows.select("body").distinct().count())

    stream = spark.readStream.format("rocketmq").options(topic=topic, **options).load()
    writer = stream.writeStream.format("parquet").option("path", str(root / "table"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    print(spark.read.parquet(str(root / "table")).select("body").distinct().count())

    written = rows.select("body", "keys").write.format("rocketmq").mode("append")
    written.options(nameServer=name_server, topic=copy).save()
    again = spark.read.format("rocketmq").options(topic=copy, **options).load()
    print(again.select("body").distinct().count())
    (good,) = rows.where("body = '0'").collect()
    count = rows.count()
    consume(spark, name_server, topic, root, good.msgId, count + count // 100)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))

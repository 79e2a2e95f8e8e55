"""One pipeline, three brokers: Apache's 4.9.7, its 5.5.0 and ours give the same table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from rocketstream import (
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    SendResult,
    TransactionListener,
    TransactionProducer,
)
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import BROKER_NAME, SHORT_DELAYS, ApacheCluster
from tests.kits.apache.referee import Referee
from tests.kits.spark.support import run_to_end
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
COMPRESSIONS = ("ZLIB", "LZ4", "ZSTD")
QUEUES = 4
Tables = tuple[list[dict[str, Any]], list[dict[str, Any]]]


class Brokers(Protocol):
    """What the messages are sent to and the table is read from."""

    @property
    def namesrv_addr(self) -> str:
        """The name server."""
        ...


@dataclass
class Labels:
    """What each message is called, by the id its producer gave it, and how many a queue has."""

    names: dict[str, str] = field(default_factory=dict)
    counts: Counter[MessageQueue] = field(default_factory=Counter)

    def note(self, name: str, result: SendResult) -> None:
        """Remember what was sent; the messages of a batch are numbered."""
        ids = result.msg_id.split(",")
        self.names.update({each: f"{name} {number}" for number, each in enumerate(ids)})
        self.counts[result.message_queue] += len(ids)


class Decided(TransactionListener):
    """Local transactions that end as their message says."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        state: LocalTransactionState = arg
        return state

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


def settle(brokers: Brokers, labels: Labels) -> None:
    """Wait until all is there: some time after its send, its delay, its commit."""
    with BlockingAdminClient(brokers.namesrv_addr) as admin:
        wait_until(
            lambda: all(admin.max_offset(queue) == end for queue, end in labels.counts.items()),
            f"{labels.counts}",
        )


def send_first(brokers: Brokers, topic: str, labels: Labels) -> None:
    """Single messages with all they can have, batches, a delayed one, ordered and great ones."""
    queues = [MessageQueue(topic, BROKER_NAME, queue_id) for queue_id in range(QUEUES)]
    with Producer("same", namesrv_addr=brokers.namesrv_addr) as producer:
        late = Message(topic, "late", tags="A", keys="late", delay_level=1)
        labels.note("delayed", producer.send(late, message_queue=queues[3]))
        singles = [
            Message(topic, '{"id": 1, "city": "Oslo"}', tags="A", keys=["k1", "k2"], flag=-7),
            Message(topic, b"\x00\xff\x01\x02", tags="红", properties={"价格": "1 = 1", "p": "ü"}),
            Message(topic, "bare"),
            Message(topic, " ", keys="key", properties={"long": "x" * 5_000}),
        ]
        for number, message in enumerate(singles):
            labels.note(f"single {number}", producer.send(message, message_queue=queues[0]))
        batch = [
            Message(topic, f"batch {n}", tags="AB"[n % 2], keys=f"b{n}", properties={"n": str(n)})
            for n in range(50)
        ]
        for result in producer.send_batch(batch, message_queue=queues[2]):
            labels.note("batch", result)
        settle(brokers, labels)
        for n in range(12):
            ordered = Message(topic, f"step {n}", keys=f"order-{n % 3}")
            labels.note(f"ordered {n}", producer.send(ordered, sharding_key=f"order-{n % 3}"))
    for kind in COMPRESSIONS:
        with Producer(
            f"same-{kind}", namesrv_addr=brokers.namesrv_addr, compress_type=kind
        ) as producer:
            great = Message(topic, b"great " * 20_000, tags="A")
            labels.note(kind, producer.send(great, message_queue=queues[1]))


def send_transactions(brokers: Brokers, topic: str, labels: Labels) -> None:
    """One that is committed, one that is not, one more that is."""
    with TransactionProducer(
        "same-tx", namesrv_addr=brokers.namesrv_addr, transaction_listener=Decided()
    ) as producer:
        for number, state in enumerate((COMMIT, ROLLBACK, COMMIT)):
            message = Message(topic, f"paid {number}", tags="A", keys=f"t{number}")
            result = producer.send_message_in_transaction(message, state)
            if state is COMMIT:
                labels.note(f"paid {number}", result)
            settle(brokers, labels)


def send_more(brokers: Brokers, topic: str, labels: Labels) -> None:
    """Into the old queues and the new ones."""
    with Producer("same-more", namesrv_addr=brokers.namesrv_addr) as producer:
        for n in range(12):
            queue = MessageQueue(topic, BROKER_NAME, n % (QUEUES + 2))
            result = producer.send(
                Message(topic, f"more {n}", tags="AB"[n % 2]), message_queue=queue
            )
            labels.note(f"more {n}", result)


def land(spark: Any, brokers: Brokers, topics: str, folder: Path, **options: Any) -> None:
    """Append what is there to a Parquet table, some rows a micro-batch."""
    stream = spark.readStream.format("rocketmq").option("nameServer", brokers.namesrv_addr)
    stream = stream.options(
        topics=topics, startingOffsets="earliest", maxOffsetsPerTrigger=30, **options
    )
    writer = stream.load().writeStream.format("parquet").option("path", str(folder / "table"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    run_to_end(writer.trigger(availableNow=True))


OWN_PLACES = ("storeTimestamp", "bornTimestamp", "storeHost", "bornHost", "commitLogOffset")
"""Columns that say when and where: no two runs have them in common."""


def table_of(spark: Any, folder: Path, labels: Labels) -> list[dict[str, Any]]:
    """The table, by topic, queue and offset, without times and places; ids as what they are of."""
    found = []
    rows = spark.read.parquet(str(folder / "table")).drop(*OWN_PLACES)
    for row in rows.orderBy("topic", "queueId", "queueOffset").collect():
        values = row.asDict()
        values["msgId"] = labels.names[values["msgId"]]
        values["properties"] = {
            name: labels.names.get(value, value) for name, value in values["properties"].items()
        }
        found.append(values)
    return found


def tables(
    spark: Any, brokers: Brokers, create: Callable[[str, int], Any], name: str, root: Path
) -> Tables:
    """Fill two topics and land them in two runs, the first one grown in between; all and by tag."""
    labels, paid = Labels(), f"{name}-paid"
    create(name, QUEUES)
    create(paid, 1)
    send_first(brokers, name, labels)
    send_transactions(brokers, paid, labels)
    land(spark, brokers, f"{name},{paid}", root / "all")
    land(spark, brokers, f"{name},{paid}", root / "tagged", tags="A || 红")
    create(name, QUEUES + 2)
    send_more(brokers, name, labels)
    settle(brokers, labels)
    land(spark, brokers, f"{name},{paid}", root / "all")
    land(spark, brokers, f"{name},{paid}", root / "tagged", tags="A || 红")
    return table_of(spark, root / "all", labels), table_of(spark, root / "tagged", labels)


DIFFERING_PROPERTIES: dict[str, set[str]] = {
    "4.9.7": set(),
    "5.5.0": {
        "TRACE_ON", "MSG_REGION", "WAIT", "CLUSTER", "REAL_TOPIC", "REAL_QID", "__transactionId__",
    },
}  # fmt: skip
"""What a broker of that version adds to a message or takes out of it, and ours does not."""


def _rows(tables: Tables) -> list[dict[str, Any]]:
    """Both tables without what brokers write into properties."""
    own = set().union(*DIFFERING_PROPERTIES.values())
    return [
        row | {"properties": {n: v for n, v in row["properties"].items() if n not in own}}
        for table in tables
        for row in table
    ]


def _differing(theirs: Tables, ours: Tables) -> set[str]:
    """The names of properties that are not the same on both."""
    pairs = zip(theirs[0], ours[0], strict=True)
    return {name for a, b in pairs for name, _ in a["properties"].items() ^ b["properties"].items()}


def test_a_pipeline_gives_the_same_table_on_every_broker(
    spark: Any, apache: Referee, apache_cluster: ApacheCluster, tmp_path: Path
) -> None:
    """Each of Apache's against ours, so all three."""
    name = apache_cluster.unique("same")
    theirs = tables(spark, apache_cluster, apache_cluster.create_topic, name, tmp_path / "theirs")
    with EmbeddedCluster(delay_levels=SHORT_DELAYS) as embedded:
        ours = tables(
            spark,
            embedded,
            lambda topic, queues: embedded.create_topic(topic, queues=queues),
            name,
            tmp_path / "ours",
        )
    assert _rows(theirs) == _rows(ours)
    assert _differing(theirs, ours) == DIFFERING_PROPERTIES[apache.version]

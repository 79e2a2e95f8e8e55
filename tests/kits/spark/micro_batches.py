"""A query without Spark: the calls Spark makes of a source, in its order, on a real cluster.

A stream's checkpoint is kept as the text Spark would keep, so a restart knows what Spark's would
and nothing else. Rows are the numbers in the bodies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from pyspark.sql.types import BinaryType, StructField, StructType

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.source import RocketMQDataSource
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.spark.support import Sent, send
from tests.plugins.waiting import wait_until

SCHEMA = StructType([StructField("body", BinaryType())])
BATCHES_MAX = 100


def lower(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark hands them over."""
    return {name.lower(): str(value) for name, value in options.items()}


def rows_of(reader: Any, partitions: Sequence[Any]) -> list[int]:
    """What tasks read, in the order of the partitions."""
    return [
        int(body)
        for partition in partitions
        for batch in reader.read(partition)
        for body in batch.column(0).to_pylist()
    ]


class Reachable(Protocol):
    """A cluster, of ours or Apache's."""

    @property
    def namesrv_addr(self) -> str: ...


def batch_rows(cluster: Reachable, **options: Any) -> list[int]:
    """What a batch read gives, sorted; repeats stay. Losses are told at once."""
    return rows_by({"nameServer": cluster.namesrv_addr, "retryTimeoutMs": 0} | options)


def rows_by(options: dict[str, Any]) -> list[int]:
    """What a batch read with just these options gives, sorted; repeats stay."""
    reader = RocketMQDataSource(lower(options)).reader(SCHEMA)
    return sorted(rows_of(reader, reader.partitions()))


class Query:
    """A streaming query; the offset and commit logs of its checkpoint outlive ``stop``.

    Args:
        cluster: what it reads.
        options: of the source; losses are told at once, new queues seen at once.
    """

    def __init__(self, cluster: Reachable, **options: Any) -> None:
        self._cluster = cluster
        self._options = {"retryTimeoutMs": 0, "queueRefreshMs": 0} | options
        self.offset_log: list[str] = []
        self.committed = 0
        self.rows: list[int] = []
        self.planned: list[int] = []
        self._reader: Any = None
        self._task_reader: Any = None
        self._initial: str | None = None

    def start(self, *, available_now: bool = False, **options: Any) -> Query:
        """Start on the checkpoint; a batch that was begun is read again."""
        given = lower({"nameServer": self._cluster.namesrv_addr} | self._options | options)
        self._reader = RocketMQDataSource(given).streamReader(SCHEMA)
        self._task_reader = RocketMQDataSource(given).streamReader(SCHEMA)
        if available_now:
            self._reader.prepareForTriggerAvailableNow()
        self._limit = self._reader.getDefaultReadLimit()
        self._initial = None
        if len(self.offset_log) > self.committed:
            self._read_last()
        return self

    def stop(self) -> None:
        """End the source's process, as far as it is here."""
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    def restart(self, **options: Any) -> Query:
        """Stop and start."""
        self.stop()
        return self.start(**options)

    def plan(self) -> bool:
        """Write the end of a next batch to the offset log; False when there is nothing new."""
        if not self.offset_log:
            self._initial = json.dumps(self._reader.initialOffset())
            end = self._latest(self._initial)
            self._reader.initialOffset()
        else:
            end = self._latest(self.offset_log[-1])
            if end == self.offset_log[-1]:
                return False
        self.offset_log.append(end)
        return True

    def batch(self) -> list[int] | None:
        """Run one micro-batch; its rows, None when there is nothing new."""
        return self._read_last() if self.plan() else None

    def drain(self) -> list[int]:
        """Run batches until there is nothing new; all rows so far, sorted, repeats stay."""
        for _ in range(BATCHES_MAX):
            if self.batch() is None:
                return sorted(self.rows)
        raise AssertionError(f"still not at its end after {BATCHES_MAX} batches")

    def read(self) -> list[int]:
        """Read the batch that was planned."""
        return self._read_last()

    def _latest(self, start: str) -> str:
        return json.dumps(self._reader.latestOffset(json.loads(start), self._limit))

    def _read_last(self) -> list[int]:
        number = len(self.offset_log) - 1
        if number:
            start = self.offset_log[number - 1]
        else:
            # Spark keeps no initial offset: it asks again, whatever has come since.
            start = self._initial or json.dumps(self._reader.initialOffset())
        partitions = self._reader.partitions(json.loads(start), json.loads(self.offset_log[number]))
        self.planned.append(len(partitions))
        rows = rows_of(self._task_reader, partitions)
        self.rows += rows
        self.committed = len(self.offset_log)
        return sorted(rows)


class Topics:
    """Fills, deletes and ages the topics of one embedded cluster on a clock set by hand."""

    def __init__(self) -> None:
        # Files have the machine's time, and are compared with this clock when they expire.
        self.clock = ManualClock(SYSTEM_CLOCK.now_ms())
        self.cluster = EmbeddedCluster(
            clock=self.clock, commit_log_file_bytes=16 * 1024, auto_create_topics=False
        )

    def put(
        self, topic: str, rows: Sequence[int], queue: int | None = None, queues: int = 5
    ) -> None:
        """Send numbers, to one queue or each to the next of ``queues``; then time passes."""
        places: dict[int, list[Sent]] = {}
        for number, value in enumerate(rows):
            place = number % queues if queue is None else queue
            places.setdefault(place, []).append(Sent(b"%d" % value, {"WAIT": "true"}))
        for place, messages in places.items():
            send(self.cluster, topic, place, messages)
        # Little: a broker that was not heard of for two minutes leaves the route.
        self.clock.advance(10)

    def made(self, topic: str, rows: Sequence[int], queues: int = 1) -> None:
        """Create a topic, and send numbers as ``put`` does."""
        self.cluster.create_topic(topic, queues=queues)
        self.put(topic, rows, queues=queues)

    def made_anew(self, topic: str, rows: Sequence[int] = ()) -> None:
        """Delete a topic and create it with one queue, which holds these numbers."""
        self.delete(topic)
        self.made(topic, rows)

    def delete(self, topic: str) -> None:
        """Delete a topic at the broker and the name server."""
        self.ask(self.cluster.broker_addr, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
        self.ask(self.cluster.namesrv_addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic)

    def expire(self, topic: str) -> None:
        """Let a year pass, until the queue of a topic begins with a later row than its first."""
        self.clock.advance(365 * 86_400_000)
        self.cluster.create_topic(topic, queues=1)  # as it is, so that the broker is heard of
        queue = MessageQueue(topic, "broker-a", 0)
        with BlockingAdminClient(self.cluster.namesrv_addr) as client:

            def is_gone() -> bool:
                # What is not flushed yet stays.
                self.ask(self.cluster.broker_addr, RequestCode.DELETE_EXPIRED_COMMITLOG)
                return client.min_offset(queue) > 0

            wait_until(is_gone, "deleted log files")

    def ask(self, address: str, code: int, **fields: str) -> None:
        """Send an admin request."""
        command = RemotingCommand(code)
        command.ext_fields = fields
        with BlockingConnection(address) as connection:
            answer = connection.request(command, 10_000)
        assert answer.code == 0, answer

"""Spark's batch and stream writers: record batches in, acknowledged messages out.

Law: only picklable values are kept; ``commit`` and ``abort`` are called on other instances than
``write``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql import datasource as api

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import unique_ids
from rocketstream.client.producer.message import beyond_levels
from rocketstream.client.producer.policy import queue_of_key
from rocketstream.columns.messages import Encoder, Rules, new_ids, runs
from rocketstream.columns.values import Words
from rocketstream.errors import InternalError
from rocketstream.spark.format import Shipped, called_by_spark
from rocketstream.spark.options import WriteOptions
from rocketstream.spark.sink.columns import NOT_FOR_USERS, Identity
from rocketstream.spark.sink.routes import Routes
from rocketstream.spark.sink.sender import Sender
from rocketstream.spark.worker import kept, pool, prepare

if TYPE_CHECKING:
    import pyarrow as pa

logger: logging.Logger = logging.getLogger("rocketstream.spark")

# Set by Spark's StreamExecution for the jobs of a micro-batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_WRITES_TOLD_MAX: Final = 16
_RESERVED: Final = "rename it, or give option reservedProperties=drop to leave such names out"

StreamArrowWriter: Any = getattr(api, "DataSourceStreamArrowWriter", None)
"""Spark's class; None before 4.1."""
if TYPE_CHECKING:
    _StreamWriter = api.DataSourceStreamArrowWriter
else:
    _StreamWriter = StreamArrowWriter or object


@dataclass(frozen=True, slots=True)
class Sink:
    """A write as it travels to the executors.

    Attributes:
        options: the user's options.
        columns: where each of our columns is in a row.
        write_id: the id of a batch write; a streaming query has its own id.
    """

    options: WriteOptions
    columns: dict[str, int]
    write_id: str


def task_encoder(
    columns: Mapping[str, int],
    body_bytes_max: int,
    identity: Identity,
    new_ids: Callable[[int], Any],
    *,
    drop_reserved: bool = False,
) -> Encoder:
    """Return the encoder of a task; it warns once a write of delay levels beyond the brokers'.

    Args:
        columns: where each of our columns is in a row.
        body_bytes_max: the largest body in bytes.
        identity: whose messages they are.
        new_ids: returns a string array with the number of new UNIQ_KEYs asked for.
        drop_reserved: whether properties with reserved names are left out instead of refused.
    """

    def beyond(level: int) -> None:
        kept(
            "told of level", identity.query_id,
            lambda: logger.warning("column delayLevel: %s", beyond_levels(level)),
            _WRITES_TOLD_MAX,
        )  # fmt: skip

    words = Words(f" of partition {identity.partition}", "option maxMessageSize", _RESERVED)
    rules = Rules(columns, body_bytes_max, NOT_FOR_USERS, words, drop_reserved, identity.text())
    return Encoder(rules, new_ids, beyond)


def write_rows(
    sink: Sink,
    batches: Iterable[pa.RecordBatch],
    identity: Identity,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Send the rows of one partition; return how many, all of them acknowledged.

    Blocks on the network; failures that may pass are retried for ``retryTimeoutMs``.

    Raises:
        MessageInvalidError: a row cannot become a message; nothing of its record batch was sent.
        SendError: messages are not acknowledged.
        RouteNotFoundError, ConfigurationError: a topic cannot be written to.
    """
    options = sink.options
    generator = unique_ids()
    encoder = task_encoder(
        sink.columns, options.max_message_size, identity,
        lambda count: new_ids(generator, count, clock.now_ms),
        drop_reserved=options.drop_reserved,
    )  # fmt: skip
    first_queue = identity.partition + identity.batch_id
    with (
        Routes(options, clock) as routes,
        Sender(options, pool(options), routes, first_queue, clock) as sender,
    ):
        for batch in batches:
            block = encoder.block(batch)
            # All runs first: a row with a queue that does not exist must stop the other rows too.
            for run in list(runs(block, options.topic, routes.queues, queue_of_key)):
                sender.send_run(run)
        sender.finish()
        return sender.acknowledged


@dataclass
class SinkCommit(Shipped, api.WriterCommitMessage):  # type: ignore[misc]
    """A task's report to the driver: how many messages brokers acknowledged."""

    rows: int

    _way = ("worker", "driver")


class RocketMQWriter(Shipped, api.DataSourceArrowWriter):  # type: ignore[misc]
    """Sends the rows of a batch write."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send one partition's rows; returns when all are acknowledged."""
        identity = Identity(self._sink.write_id, 0, _task().partitionId())
        prepare()
        return SinkCommit(write_rows(self._sink, iterator, identity))

    def abort(self, messages: Sequence[SinkCommit | None]) -> None:
        """Log that messages already sent stay."""
        _say_aborted(messages)


class RocketMQStreamWriter(Shipped, _StreamWriter):  # type: ignore[misc, valid-type]
    """Sends the rows of a stream's micro-batches."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send one partition of a micro-batch; returns when all rows are acknowledged."""
        task = _task()
        query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise InternalError("Spark does not say which query and batch this task belongs to")
        identity = Identity(query_id, int(batch_id), task.partitionId())
        prepare()
        return SinkCommit(write_rows(self._sink, iterator, identity))

    def commit(self, messages: Sequence[SinkCommit | None], batchId: int) -> None:
        """Do nothing: brokers have acknowledged every message already."""

    def abort(self, messages: Sequence[SinkCommit | None], batchId: int) -> None:
        """Log that messages already sent stay."""
        _say_aborted(messages)


def _task() -> Any:
    task = TaskContext.get()
    if task is None:
        raise InternalError("rows are written outside of a Spark task")
    return task


def _say_aborted(messages: Sequence[SinkCommit | None]) -> None:
    rows = sum(message.rows for message in messages if message is not None)
    logger.warning("write failed; messages=%d of finished tasks stay in their topics", rows)

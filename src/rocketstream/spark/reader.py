"""Spark's batch and stream readers: the calls of pyspark, answered by the modules below.

Law: pyspark's classes and nothing of substance. One signature serves Spark 4.0 to 4.3; ``reader``
and ``read`` run in other processes than the rest, so only what pickles is kept.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.arrow.decode import decode
from rocketstream.spark.arrow.whole import Checks
from rocketstream.spark.cluster import Cluster
from rocketstream.spark.fetch import fetch
from rocketstream.spark.losses import Losses, report_loss
from rocketstream.spark.offsets import StreamOffset
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.planning import plan
from rocketstream.spark.scan import PartitionPlan, QueueRange, Scan
from rocketstream.spark.streaming import StreamSource
from rocketstream.spark.worker import prepare

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # Spark 4.0 and 4.1: no limits, availableNow is one batch of everything
    limits = None


class _Absent:
    """Stands in for what a Spark version does not have."""


_AvailableNow: Any = limits.SupportsTriggerAvailableNow if limits else _Absent

BATCH_BYTES: int = 2 * 1024 * 1024
"""Pulled bytes decoded into one record batch; Spark is fastest between 1 and 4 MB."""
_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_SIGTERM_EXIT = 143


class RocketMQPartition(api.InputPartition):  # type: ignore[misc]
    """One Spark partition; ``value`` is its ``PartitionPlan``."""

    value: PartitionPlan


class RocketMQReader(api.DataSourceReader):  # type: ignore[misc]
    """Reads fixed ranges of queues.

    Spark 4.1 and later plan once per ``load()``: where ``latest`` is stays as it was at the first
    action on that DataFrame. ``pushFilters`` is left alone on purpose: Spark keeps pushed filters
    for other scans of the same ``load()`` and returns wrong rows.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[api.InputPartition]:
        """Resolve the ranges and plan them; blocks on the network."""
        cluster = Cluster(self._scan.options)
        try:
            return _input_partitions(self._scan, batch_ranges(self._scan.options, cluster), cluster)
        finally:
            cluster.close()

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows."""
        return read_partition(self._scan, partition)


class RocketMQStreamReader(_AvailableNow, api.DataSourceStreamReader):  # type: ignore[misc]
    """Reads a stream in micro-batches of exact ranges.

    One instance lives in a process of its own as long as the query and answers for offsets; the
    instance that reads on executors is another one and gets everything by its partition.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._open_source: StreamSource | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where the stream begins."""
        return self._source().initial().to_json()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself when there is nothing new."""
        begin = None if start is None else StreamOffset.from_json(start)
        end = self._source().latest(begin, getattr(limit, "max_rows", None))
        return start if start is not None and end is begin else end.to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of ``maxOffsetsPerTrigger``."""
        rows_max = self._scan.options.max_offsets_per_trigger
        if limits is None:
            raise ConfigurationError("limits need Spark 4.2")
        return limits.ReadAllAvailable() if rows_max is None else limits.ReadMaxRows(rows_max)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all queues, for the query's progress."""
        newest = self._source().newest()
        return None if newest is None else newest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at what is there now."""
        self._source().prepare_available_now()

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[api.InputPartition]:
        """Plan one micro-batch."""
        source = self._source()
        ranges = source.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return _input_partitions(self._scan, ranges, source.cluster)

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows."""
        return read_partition(self._scan, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Report progress; never raises, since that would end the query."""
        self._source().commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._open_source is not None:
            self._open_source.stop()

    def _source(self) -> StreamSource:
        if self._open_source is None:
            stop_on_sigterm()
            options = self._scan.options
            self._open_source = StreamSource(options, Cluster(options))
        return self._open_source


def read_partition(scan: Scan, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as record batches; runs on an executor."""
    planned = partition.value
    if planned is None:  # Spark puts this in where there is no partition
        return
    prepare()
    yield from read_rows(scan, planned)


def read_rows(
    scan: Scan, planned: PartitionPlan, clock: Clock = SYSTEM_CLOCK
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a plan as record batches, every offset accounted for."""
    losses = Losses(scan.options.fail_on_data_loss)
    checks = Checks(
        losses.missing if scan.tags is None else None, body_crc=scan.options.check_body_crc
    )
    pieces, size = [], 0
    for piece in fetch(scan, planned, losses, clock):
        pieces.append(piece)
        size += len(piece.body)
        if size >= BATCH_BYTES:
            yield from decode(pieces, scan.columns, scan.tags, checks)
            pieces, size = [], 0
    if pieces:
        yield from decode(pieces, scan.columns, scan.tags, checks)


def batch_ranges(options: ReadOptions, cluster: Cluster) -> list[QueueRange]:
    """Return what a batch reads, checked against what the queues hold.

    Raises:
        DataLossError: offsets named by the user are not there and ``failOnDataLoss`` is set.
    """

    def ask() -> list[QueueRange]:
        queues = cluster.queues()
        begins = cluster.resolve(options.start, queues, "startingOffsets")
        ends = cluster.resolve(options.end, queues, "endingOffsets")
        if options.start.kind == "offsets" or options.end.kind == "offsets":
            _clip(options.fail_on_data_loss, cluster, begins, ends)
        return [
            QueueRange(queue, begins[queue], ends[queue])
            for queue in queues
            if begins[queue] < ends[queue]
        ]

    return cluster.patiently(ask)


def _clip(
    fail: bool, cluster: Cluster, begins: dict[MessageQueue, int], ends: dict[MessageQueue, int]
) -> None:
    lows, highs = cluster.min_offsets(begins), cluster.max_offsets(begins)
    for queue, begin in begins.items():
        low, high = lows[queue], highs[queue]
        if begin < low or ends[queue] > high:
            report_loss(
                fail,
                queue,
                f"offsets {begin} to {ends[queue] - 1} were asked for, "
                f"but the queue holds {low} to {high - 1}",
            )
        begins[queue], ends[queue] = max(begin, low), min(ends[queue], high)


def _input_partitions(
    scan: Scan, ranges: Sequence[QueueRange], cluster: Cluster
) -> list[api.InputPartition]:
    cores = os.cpu_count() or 1
    planned = plan(ranges, cores, scan.options.min_partitions)
    addresses = cluster.patiently(
        lambda: cluster.addresses(span.queue for span in ranges), topics_known=True
    )
    return [
        RocketMQPartition(
            PartitionPlan(
                spans, {s.queue.broker_name: addresses[s.queue.broker_name] for s in spans}
            )
        )
        for spans in planned
    ] or [RocketMQPartition(PartitionPlan((), {}))]


def stop_on_sigterm() -> None:
    """Let SIGTERM end this process the orderly way, if it is Spark's source runner.

    Spark ends the runner with SIGTERM and never calls ``stop()`` itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and is_source_runner() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_on_signal)


def is_source_runner() -> bool:
    """Tell whether this process is Spark's streaming source runner."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _RUNNER in sys.modules or getattr(spec, "name", "") == _RUNNER


def _exit_on_signal(_signal: int, _frame: object) -> None:
    sys.exit(_SIGTERM_EXIT)

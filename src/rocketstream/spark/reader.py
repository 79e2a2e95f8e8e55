"""Spark's batch and stream readers: ``driver`` answers their calls and, in tasks, ``executor``.

Law: ``reader`` and ``read`` run in other processes than the rest, so only picklable values are
kept. One signature serves Spark 4.0 to 4.3.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api

from rocketstream.errors import NotSupportedError
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.driver.planning import partition_plans
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.driver.runner import WARNINGS, WarningTail, stop_on_sigterm
from rocketstream.spark.driver.streaming import CORES, StreamSource
from rocketstream.spark.executor.fetch import read_partition
from rocketstream.spark.format import AvailableNow, Shipped, called_by_spark, limits
from rocketstream.spark.options import ReadOptions, StoreOptions
from rocketstream.spark.scan import PartitionPlan, QueueRange, Scan, tags_hint
from rocketstream.spark.store.rows import StoreScan, read_store
from rocketstream.spark.store.snapshot import (
    Snapshot,
    StorePlan,
    partition_count,
    store_plans,
    store_ranges,
)

if TYPE_CHECKING:
    import pyarrow as pa


logger: logging.Logger = logging.getLogger("rocketstream.spark")


class RocketMQPartition(Shipped, api.InputPartition):  # type: ignore[misc]
    """One Spark partition; ``value`` is its ``PartitionPlan``."""

    value: PartitionPlan


class RocketMQReader(Shipped, api.DataSourceReader):  # type: ignore[misc]
    """Reads fixed ranges of queues.

    Spark 4.1 and later plan once per ``load()``: ``latest`` stays as it was at the first action on
    that DataFrame. ``pushFilters`` is left alone on purpose: Spark keeps pushed filters for other
    scans of the same ``load()`` and returns wrong rows.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    @called_by_spark
    def partitions(self) -> Sequence[api.InputPartition]:
        """Resolve the ranges and plan them; blocks on the network."""
        _warn_of_tags(self._scan.options)
        cluster = Cluster(self._scan.options)
        try:
            ranges = batch_ranges(self._scan.options, cluster)
            return input_partitions(self._scan, ranges, cluster)
        finally:
            cluster.close()

    @called_by_spark
    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows."""
        yield from read_partition(self._scan, partition.value)


class StorePartition(Shipped, api.InputPartition):  # type: ignore[misc]
    """One Spark partition of a store; ``value`` is its ``StorePlan``."""

    value: StorePlan


class StoreReader(Shipped, api.DataSourceReader):  # type: ignore[misc]
    """Reads a store directory as it is when the read is planned; no broker is asked."""

    def __init__(self, scan: StoreScan) -> None:
        self._scan = scan

    @called_by_spark
    def partitions(self) -> Sequence[api.InputPartition]:
        """Plan the ranges of the store; reads the index, and the log beyond it."""
        options = self._scan.options
        _warn_of_tags(options)
        with contextlib.closing(Snapshot(options)) as snapshot:
            ranges = store_ranges(options, snapshot)
            rows = sum(span.count for span in ranges)
            count = partition_count(rows, CORES, options.min_partitions)
            plans = store_plans(snapshot, ranges, count)
        return [StorePartition(plan) for plan in plans or [StorePlan(())]]

    @called_by_spark
    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows."""
        yield from read_store(self._scan, partition.value)


class RocketMQStreamReader(
    Shipped,
    AvailableNow,
    api.DataSourceStreamReader,  # type: ignore[misc]
):
    """Reads a stream in micro-batches of exact ranges.

    One instance lives in a process of its own as long as the query, and answers questions about
    offsets. The instance that reads on executors is another one and gets everything from its
    partition.
    """

    def __init__(self, scan: Scan) -> None:
        if limits is None and scan.options.limits.given:
            raise NotSupportedError(
                f"option {scan.options.limits.given[0]!r} needs PySpark 4.2: before it Spark asks "
                "for everything there is. Use PySpark 4.2, or leave the option out"
            )
        self._scan = scan
        self._open_source: StreamSource | None = None
        self._warnings: WarningTail | None = None

    @called_by_spark
    def initialOffset(self) -> dict[str, Any]:
        """Return where the stream begins."""
        return self._source().initial().to_json()

    @called_by_spark
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself when there is nothing new."""
        begin = None if start is None else StreamOffset.from_json(start)
        limited = limit is not None and not isinstance(limit, limits.ReadAllAvailable)
        end = self._source().latest(begin, limited)
        return start if start is not None and end is begin else end.to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return a limit if the user set one; the source itself knows which.

        Spark passes it to ``latestOffset``, unless a trigger asks for everything.
        """
        own = self._scan.options.limits
        if own.rows_max is not None:
            return limits.ReadMaxRows(own.rows_max)
        if own.bytes_max is not None:
            return limits.ReadMaxBytes(own.bytes_max)
        return (
            limits.ReadAllAvailable() if own.rows_min is None else limits.ReadMinRows(own.rows_min)
        )

    @called_by_spark
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all queues, for the query's progress, and the warnings.

        Only a listener in the user's process reads it; warnings of this process are seen nowhere
        else.
        """
        newest = self._source().newest()
        if newest is None:
            return None
        told = [] if self._warnings is None else self._warnings.told()
        return newest.to_json() | ({WARNINGS: told} if told else {})

    @called_by_spark
    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the present ends."""
        self._source().prepare_available_now()

    @called_by_spark
    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[api.InputPartition]:
        """Plan one micro-batch."""
        source, planned = self._source(), StreamOffset.from_json(end)
        ranges = source.ranges(StreamOffset.from_json(start), planned)
        return input_partitions(self._scan, ranges, source.cluster, planned.partitions)

    @called_by_spark
    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows."""
        yield from read_partition(self._scan, partition.value)

    @called_by_spark
    def commit(self, end: dict[str, Any]) -> None:
        """Report progress; never raises, since that would end the query."""
        self._source().commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._open_source is not None:
            self._open_source.stop()
        if self._warnings is not None:
            self._warnings.detach()

    def _source(self) -> StreamSource:
        if self._open_source is None:
            stop_on_sigterm()
            self._warnings = WarningTail()
            self._warnings.attach()
            options = self._scan.options
            _warn_of_tags(options)
            self._open_source = StreamSource(options, Cluster(options))
        return self._open_source


def _warn_of_tags(options: ReadOptions | StoreOptions) -> None:
    """Warn of tags that are probably meant otherwise: they select nothing without an error."""
    hint = tags_hint(options.tags)
    if hint is not None:
        logger.warning("option 'tags': %s", hint)


def input_partitions(
    scan: Scan, ranges: Sequence[QueueRange], cluster: Cluster, chosen: int | None = None
) -> list[api.InputPartition]:
    """Return the partitions of some ranges, planned; waits for brokers that are away.

    Args:
        scan: the read.
        ranges: what to read.
        cluster: knows the addresses of brokers.
        chosen: how many partitions were chosen when the ranges were first planned.
    """
    queues = [span.queue for span in ranges]
    addresses = cluster.patiently(lambda: cluster.addresses(queues), topics_known=True)
    plans = partition_plans(scan.options, ranges, CORES, addresses, chosen)
    return [RocketMQPartition(plan) for plan in plans]

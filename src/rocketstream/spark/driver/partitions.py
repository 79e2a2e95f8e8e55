"""The share of the ranges each task gets, with the addresses of their brokers."""

from __future__ import annotations

from collections.abc import Sequence

from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.planning import plan
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.parallelism import default_parallelism
from rocketstream.spark.scan import PartitionPlan, QueueRange


def partition_plans(
    options: ReadOptions, ranges: Sequence[QueueRange], cluster: Cluster
) -> list[PartitionPlan]:
    """Return one plan per Spark partition; an empty plan where there is nothing to read."""
    planned = plan(
        ranges, default_parallelism(), options.min_partitions, options.max_records_per_partition
    )
    addresses = cluster.patiently(
        lambda: cluster.addresses(span.queue for span in ranges), topics_known=True
    )
    return [
        PartitionPlan(spans, {s.queue.broker_name: addresses[s.queue.broker_name] for s in spans})
        for spans in planned
    ] or [PartitionPlan((), {})]

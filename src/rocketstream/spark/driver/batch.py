"""What a batch reads: the ranges its options mean now, checked against what the queues hold.

Law: asks the cluster and compares; a batch has no memory.
"""

from __future__ import annotations

from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.losses import report_loss
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.scan import QueueRange


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

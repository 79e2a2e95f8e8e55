"""The ranges a batch reads: its options as offsets of now, checked against the queues' bounds."""

from __future__ import annotations

import logging

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.resolving import Resolver
from rocketstream.spark.losses import described, report_loss
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.scan import QueueRange

logger = logging.getLogger("rocketstream.spark")


def batch_ranges(
    options: ReadOptions, cluster: Cluster, clock: Clock = SYSTEM_CLOCK
) -> list[QueueRange]:
    """Return the ranges a batch reads, checked against the queues' bounds.

    Raises:
        ConfigurationError: the options name queues that do not exist, or ends before beginnings.
        DataLossError: offsets given by the user, or by the group, no longer exist and
            ``failOnDataLoss`` is set.
    """
    resolver = Resolver(cluster, options, clock.now_ms())
    named = {options.start.kind, options.end.kind}

    def ask() -> list[QueueRange]:
        queues = cluster.queues()
        if not queues:
            logger.warning("there is nothing to read: %s", options.choice.text)
        begins, ends = resolver.begins(queues), resolver.ends(queues)
        if options.start.kind != "group":  # a queue that went past the end has nothing left to read
            _refuse_reversed(cluster, begins, ends)
        if named & {"offsets", "group"}:
            _clip(options.fail_on_data_loss, cluster, begins, ends)
        return [
            QueueRange(queue, begins[queue], ends[queue])
            for queue in queues
            if begins[queue] < ends[queue]
        ]

    return cluster.patiently(ask)


def _refuse_reversed(
    cluster: Cluster, begins: dict[MessageQueue, int], ends: dict[MessageQueue, int]
) -> None:
    """Refuse an end before a beginning: the queue would silently be left out.

    An end before the oldest existing row is not refused, because rows expire; a beginning after the
    last row is a loss.
    """
    reversed_ = [queue for queue, begin in begins.items() if ends[queue] < begin]
    lows = cluster.min_offsets(reversed_) if reversed_ else {}
    highs = cluster.max_offsets(reversed_) if reversed_ else {}
    for queue in reversed_:
        if lows[queue] < begins[queue] <= highs[queue]:
            raise ConfigurationError(
                f"the read of {described(queue)} begins at offset {begins[queue]} and ends at "
                f"{ends[queue]}: give 'startingOffsets', or a starting time, before the end",
                queue=tuple(queue),
            )


def _clip(
    fail: bool, cluster: Cluster, begins: dict[MessageQueue, int], ends: dict[MessageQueue, int]
) -> None:
    lows, highs = cluster.min_offsets(begins), cluster.max_offsets(begins)
    for queue, begin in begins.items():
        low, high = lows[queue], highs[queue]
        if begin < low or max(begin, ends[queue]) > high:
            to = f"to {ends[queue] - 1} " if ends[queue] > begin else "and on "
            report_loss(
                fail,
                queue,
                f"offsets {begin} {to}were asked for, but the queue holds {low} to {high - 1}",
            )
        begins[queue], ends[queue] = max(begin, low), min(ends[queue], high)

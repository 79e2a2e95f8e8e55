"""Where a read begins and ends: positions of the options as offsets of the existing queues.

A ``Cluster`` has the facts; no socket is touched here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.columns.table import described
from rocketstream.errors import ConfigurationError, TransportError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.planning import refuse_reversed
from rocketstream.spark.losses import report_loss
from rocketstream.spark.options import (
    EARLIEST,
    LATEST,
    Position,
    QueueTable,
    ReadOptions,
    since_1970,
)
from rocketstream.spark.scan import QueueRange

logger: logging.Logger = logging.getLogger("rocketstream.spark")

Offsets = dict[MessageQueue, int]


class Resolver:
    """Resolves positions at one moment.

    Args:
        cluster: the cluster to ask.
        options: the options of the read.
        now_ms: the time that relative times count from, ms since 1970.
    """

    def __init__(self, cluster: Cluster, options: ReadOptions, now_ms: int) -> None:
        self._cluster = cluster
        self._options = options
        self._now_ms = now_ms

    def begins(self, queues: Sequence[MessageQueue]) -> Offsets:
        """Return where each queue begins; blocks.

        Raises:
            ConfigurationError: the position names queues that do not exist, or a time after the
                last message and the strategy is ``error``.
        """
        return self._resolve(self._options.start, queues, "starting")

    def ends(self, queues: Sequence[MessageQueue]) -> Offsets:
        """Return where each queue ends; blocks and raises as ``begins``."""
        return self._resolve(self._options.end, queues, "ending")

    def _resolve(self, position: Position, queues: Sequence[MessageQueue], side: str) -> Offsets:
        # A queue without a named end is read whole.
        otherwise = EARLIEST if side == "starting" else LATEST
        table = position.table or QueueTable({})
        match position.kind:
            case "earliest":
                return self._cluster.min_offsets(queues)
            case "latest":
                return self._cluster.max_offsets(queues)
            case "group":
                return self._of_group(queues)
            case "offsets":
                _check_named(table, queues, f"{side}Offsets")
                return self._at_ends({q: _or(table.of(q), otherwise) for q in queues})
            case "timestamps":
                _check_named(table, queues, f"{side}OffsetsByTimestamp")
                times = {q: point for q in queues if (point := table.of(q)) is not None}
            case "timestamp":
                times = dict.fromkeys(queues, position.timestamp_ms)
        rest = self._at_ends({queue: otherwise for queue in queues if queue not in times})
        return rest | self._at_times(times, position.must_match)

    def _at_ends(self, table: Offsets) -> Offsets:
        """Return offsets in which markers for an end of the queue are replaced by its offset."""
        resolved = dict(table)
        ends = {EARLIEST: self._cluster.min_offsets, LATEST: self._cluster.max_offsets}
        for mark, ask in ends.items():
            marked = [queue for queue, offset in table.items() if offset == mark]
            resolved.update(ask(marked) if marked else {})
        return resolved

    def _of_group(self, queues: Sequence[MessageQueue]) -> Offsets:
        group = self._options.group or ""
        committed = self._cluster.committed(group, queues)
        rest = [queue for queue in queues if queue not in committed]
        if rest:
            texts = "; ".join(described(queue) for queue in rest)
            logger.warning("group %r has no offset, so it is at the earliest: %s", group, texts)
        return committed | (self._cluster.min_offsets(rest) if rest else {})

    def _at_times(self, times: Offsets, must_match: bool) -> Offsets:
        if not times:
            return {}
        lows, highs = self._cluster.min_offsets(times), self._cluster.max_offsets(times)
        found: Offsets = {}
        for queue, point in times.items():
            moment, low, high = since_1970(point, self._now_ms), lows[queue], highs[queue]
            found[queue] = self._cluster.offset_at(queue, moment, low, high)
            if found[queue] >= high and must_match:
                raise ConfigurationError(
                    f"{described(queue)} holds no message stored at or after {moment} ms since "
                    "1970; give an earlier time, or option "
                    "startingOffsetsByTimestampStrategy=latest to begin with what comes",
                    queue=tuple(queue),
                )
        return found


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _check_named(table: QueueTable, queues: Sequence[MessageQueue], option: str) -> None:
    """Refuse names of queues that do not exist: a typing error would go unnoticed.

    Raises:
        ConfigurationError: a queue does not exist; the error lists the existing ones.
    """
    strange = table.strangers(queues)
    if strange:
        raise ConfigurationError(
            f"option {option!r} names queues that do not exist: {', '.join(strange)}; there are "
            f"{', '.join('/'.join(map(str, queue)) for queue in queues)}",
            option=option,
        )


def stream_begins(options: ReadOptions, cluster: Cluster, begins: Offsets) -> Offsets:
    """Return where a stream begins: at the end of a queue that ends before the offset asked for.

    What is before the oldest row is kept: whoever reads that range tells the loss.

    Raises:
        DataLossError: a queue ends before the offset given by the user, or by the group, and
            ``failOnDataLoss`` is set.
        TransportError: the queue's broker has no master now, and a slave may be behind it.
    """
    if options.start.kind not in {"offsets", "group"} or not begins:
        return begins
    lows, highs = cluster.min_offsets(begins), cluster.max_offsets(begins)
    beyond = {queue: begin for queue, begin in begins.items() if begin > highs[queue]}
    for broker_name, queue in {queue.broker_name: queue for queue in beyond}.items():
        if not cluster.has_master(broker_name):
            raise TransportError(
                f"broker {broker_name!r} has no master now, and its slave, which may be behind, "
                f"holds {described(queue)} up to {highs[queue] - 1}: the stream is to begin at "
                f"offset {begins[queue]}"
            )
    if beyond:  # a slave may have answered for a master that is back now
        highs |= cluster.max_offsets(beyond)
    for queue, begin in beyond.items():
        low, high = lows[queue], highs[queue]
        if begin > high:
            report_loss(
                options.fail_on_data_loss,
                queue,
                f"option 'startingOffsets' ({options.start.kind}) begins at offset {begin}, but "
                f"the queue holds {low} to {high - 1}: there are no offsets {high} to {begin - 1}",
            )
    return {queue: min(begin, highs[queue]) for queue, begin in begins.items()}


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
    reversed_ = [queue for queue, begin in begins.items() if ends[queue] < begin]
    lows = cluster.min_offsets(reversed_) if reversed_ else {}
    highs = cluster.max_offsets(reversed_) if reversed_ else {}
    for queue in reversed_:
        refuse_reversed(queue, begins[queue], ends[queue], lows[queue], highs[queue])


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

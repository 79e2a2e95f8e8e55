"""A stream's driver side: how far each micro-batch goes, without Spark.

Spark's calls are as measured, not as documented: Spark asks for ``initial`` again at any time and
for ``latest`` every 11 ms, ``commit`` lags a batch, and an exception ends the query. Spark's
checkpoint is the truth; the group's offsets at the brokers are a report.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.continuity import Continuity, QueueEnds, topics_of
from rocketstream.spark.driver.held_pulls import HeldPulls
from rocketstream.spark.driver.offsets import Mark, StreamOffset, following, ranges_between
from rocketstream.spark.driver.planning import Admission, partition_count
from rocketstream.spark.driver.positions import Resolver, stream_begins
from rocketstream.spark.driver.reporting import Reporter, check_checkpoint
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.scan import QueueRange

logger: logging.Logger = logging.getLogger("rocketstream.spark")

CORES: Final = os.cpu_count() or 1
"""How many tasks are taken to run at a time: Spark tells a source nothing of its executors where a
read is planned, and many run on this machine alone.
"""
IDLE_WAIT_MS: Final = 100
"""While nothing is new Spark asks again after 11 ms; we listen this long before we answer."""
IDLE_GAP_MS: Final = 50
"""How long ago Spark's last question was at most, if it only asks again and again: 11 ms and what
the query's other sources take. One that runs batches asks less often, and is not kept waiting by a
source with nothing new; of several idle sources one waits, for all.
"""
IDLE_ENDS_MS: Final = 5_000
"""How old the known ends may be while the brokers hold pulls that would report new messages."""
_LOOKS_MAX: Final = 3
HELD_BACK_ENDS_MS: Final = 500
"""How old the known ends may be while rows wait for ``minOffsetsPerTrigger``."""

Ends = dict[MessageQueue, int]


class StreamSource:
    """Decides the offsets of a stream; used by one thread.

    Args:
        options: the options of the stream.
        cluster: the cluster to ask; also kept as attribute.
        clock: measures ages and waits.
        held_pulls: reports new messages while the stream is idle; None for one of its own.
    """

    def __init__(
        self,
        options: ReadOptions,
        cluster: Cluster,
        clock: Clock = SYSTEM_CLOCK,
        held_pulls: HeldPulls | None = None,
    ) -> None:
        self._options = options
        self.cluster = cluster
        self._clock = clock
        self._initial: StreamOffset | None = None
        self._planned: StreamOffset | None = None
        self._own: StreamOffset | None = None
        self._target: Ends | None = None
        self._ends = QueueEnds(cluster, options.queue_refresh_ms, clock)
        self._continuity = Continuity(options, cluster, self._ends, clock)
        self._admission = Admission(options.limits, cluster.row_bytes, clock)
        self._starts: Ends = {}
        self._reporter = Reporter(options, cluster, clock)
        self._idle_at = float("-inf")
        self._quiet_since: StreamOffset | None = None
        self._held_pulls = held_pulls or HeldPulls(options, cluster, clock)
        self._stopped = threading.Event()

    # --- what Spark asks --------------------------------------------------------------------------

    def initial(self) -> StreamOffset:
        """Return where the stream begins; resolved once, and the same from then on."""
        if self._initial is None:
            resolver = Resolver(self.cluster, self._options, self._clock.now_ms())
            topics = frozenset(self._options.topics)

            def resolve() -> StreamOffset:
                if topics != topics_of(self._ends.queues(topics)):
                    self._ends.forget_queues()  # asked again here so that a wrong name raises
                begins = resolver.begins(self._ends.queues(()))
                ends = stream_begins(self._options, self.cluster, begins)
                return StreamOffset(ends, initial=True, marks=self._marks(ends))

            self._initial = self.cluster.patiently(resolve)
        return self._initial

    def prepare_available_now(self) -> None:
        """Make the present ends the last ones that are ever returned.

        Spark asks for this before it looks for a checkpoint. A topic without a route may be in the
        checkpoint while its broker is away, so ``latest`` waits for it; ``initial`` refuses it.
        """
        topics = frozenset(self._options.topics)
        self._target = dict(self.cluster.patiently(lambda: self._ends.fresh(topics)))

    def latest(self, start: StreamOffset | None, limited: bool) -> StreamOffset:
        """Return the end of the next batch, or ``start`` itself when there is nothing new.

        Args:
            start: end of the previous batch; None on Spark 4.0 and 4.1, which do not pass it.
            limited: whether the limits of the options apply.

        Raises:
            ConfigurationError: the group whose offsets are reported has live members, or ``start``
                is another group's or source's.
            DataLossError: a queue is gone, or is not the one in ``start``, and ``failOnDataLoss``
                is set.
            TransportError, BrokerError: the cluster was out of reach for ``retryTimeoutMs``.
        """
        if start is None:
            start = self._planned or self.initial()
        check_checkpoint(self._options, start)
        self._claim(start)
        self._reporter.report_if_due(start, self._ends.known)
        end = start if self._is_quiet(start) else self._next(start, limited)
        if end is start and self._target is None:
            end = self._wait_for_news(start, limited)
        self._quiet_since = start if end is start else None
        self._own = self._own if end is start else end
        self._idle_at = self._clock.monotonic_ms() if end is start else float("-inf")
        return end

    def newest(self) -> StreamOffset | None:
        """Return the ends of all queues as last seen, for Spark's progress report."""
        return StreamOffset(dict(self._ends.last)) if self._ends.last else None

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """Return the ranges a batch reads.

        Raises:
            ConfigurationError: ``end`` is another group's or source's.
            DataLossError: a queue of the batch is gone, or is not the one that was planned, and
                ``failOnDataLoss`` is set.
        """
        self._idle_at = float("-inf")
        check_checkpoint(self._options, end)  # ``start`` may be resolved anew, from the options
        self._planned = end
        # This is also how a restart on 4.0 and 4.1 says where it is: both are one then.
        ranges = ranges_between(start, end)
        if not ranges:
            return []

        def there() -> list[QueueRange]:
            found = self._continuity.reachable(ranges)
            # A batch of an earlier run may have been planned long ago.
            return found if end == self._own else self._continuity.unchanged(found, end.marks)

        return self.cluster.patiently(there, topics_known=True)

    def commit(self, end: StreamOffset) -> None:
        """Note that everything before ``end`` is done: a batch of the query, maybe of others'
        rows alone."""
        self._idle_at = float("-inf")
        self._reporter.report(end, self._ends.known)

    def stop(self) -> None:
        """Stop waiting and close the connections."""
        self._stopped.set()
        self._held_pulls.close()
        self.cluster.close()

    def _claim(self, start: StreamOffset) -> None:
        if self._reporter.has_claim:
            return
        held = topics_of(start.ends)
        self.cluster.patiently(
            lambda: self._reporter.claim(self._ends.queues(held)), topics_known=True
        )

    # --- the next end -----------------------------------------------------------------------------

    def _next(self, start: StreamOffset, limited: bool) -> StreamOffset:
        """Return the next end; waits while the cluster is out of reach.

        An exception would end the query, and "nothing new" would end an availableNow query before
        its time; blocking here does neither, and Spark can stop the query meanwhile.
        """
        return self.cluster.patiently(lambda: self._step(start, limited), topics_known=True)

    def _step(self, start: StreamOffset, limited: bool) -> StreamOffset:
        ends = self._within_target(start, self._continuity.ends(start))
        begins = self._continuity.begins(start, ends)
        begins |= self._starts_of(ends, start.ends)
        if limited:
            final = self._target is not None
            ends = self._admission.admitted(begins, ends, final=final)
        moved = {queue: end for queue, end in ends.items() if end > begins[queue]}
        if not moved:
            return start
        self._admission.triggered()
        starts = {queue: at for queue, at in begins.items() if start.ends.get(queue) != at}
        deleted = self._continuity.deleted(start)
        end = following(start, moved, starts, self._marks(moved), deleted)
        if self._options.min_partitions is not None:
            return end
        return replace(end, partitions=partition_count(ranges_between(start, end), CORES, None))

    def _within_target(self, start: StreamOffset, ends: Ends) -> Ends:
        """Return the ends a batch may reach: those of the queues, within the target of
        availableNow."""
        target = self._target
        if target is None:
            return ends
        # A queue that was away when the target was taken: its rows existed before.
        target.update({q: ends[q] for q in start.ends if q in ends and q not in target})
        return {queue: min(end, target[queue]) for queue, end in ends.items() if queue in target}

    def _marks(self, ends: Ends) -> dict[MessageQueue, Mark]:
        """Return the marks of the rows before some ends."""
        return self.cluster.marks({queue: end - 1 for queue, end in ends.items() if end > 0})

    def _is_quiet(self, start: StreamOffset) -> bool:
        """Whether nothing came after ``start`` lately: then the ends are asked for only on news."""
        if self._target is not None or start != self._quiet_since:
            return False
        age_ms = HELD_BACK_ENDS_MS if self._admission.holds_back else IDLE_ENDS_MS
        return self._ends.are_younger(age_ms, topics_of(start.ends))

    def _wait_for_news(self, start: StreamOffset, limited: bool) -> StreamOffset:
        """Wait for messages, if Spark only asks again and again."""
        lately = self._clock.monotonic_ms() - self._idle_at <= IDLE_GAP_MS
        wait_ms = IDLE_WAIT_MS if lately and not self._stopped.is_set() else 0
        if self._admission.holds_back:
            # Each message would count as news, and none could go into a batch yet.
            self._held_pulls.rest(wait_ms)
            return start
        for _ in range(_LOOKS_MAX):
            if not self._held_pulls.news(self._ends.last, wait_ms):
                return start
            self._ends.forget_ends()
            end = self._next(start, limited)
            if end is not start:
                return end
            # The cluster may have been away for long: only listening decides that nothing is new.
        return start

    def _starts_of(self, ends: Ends, known: Mapping[MessageQueue, int]) -> Ends:
        """Return where queues begin that appeared while the stream ran: at their oldest message.

        This beginning is kept as it was when they appeared: messages deleted before they were read
        are a loss, reported when the range is read. Only a queue that was deleted and made again
        begins earlier than before.
        """
        queues = [queue for queue in ends if queue not in known]
        self._starts = {q: at for q, at in self._starts.items() if q not in known}
        asked = [queue for queue in queues if ends[queue] != self._starts.get(queue)]
        for queue, low in (self.cluster.min_offsets(asked) if asked else {}).items():
            self._starts[queue] = min(low, self._starts.get(queue, low))
        return {queue: self._starts[queue] for queue in queues}

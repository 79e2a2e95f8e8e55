"""A stream's driver side: how far each micro-batch goes, without Spark.

Law: follows Spark's calls as measured, not as documented: ``initial`` is asked again whenever it
likes, ``latest`` every 11 ms, ``commit`` lags a batch, and an exception ends the query. Spark's
checkpoint is the truth; the group's offsets at the brokers are a report.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import BrokerError, RouteNotFoundError, TransportError
from rocketstream.model import MessageQueue
from rocketstream.spark.cluster import Cluster
from rocketstream.spark.losses import report_loss
from rocketstream.spark.offsets import StreamOffset, following, ranges_between
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.planning import QueueRange, admit
from rocketstream.spark.worker import Patience

logger = logging.getLogger("rocketstream.spark")

ENDS_LIFETIME_MS: Final = 100
"""How old the known ends of queues may be."""
IDLE_WAIT_MS: Final = 100
IDLE_POLL_MS: Final = 20
"""While nothing is new Spark asks again after 11 ms; we look this often and answer that late."""
IDLE_GAP_MS: Final = 1_000
BEHIND_MS: Final = 3_000
"""How long a queue may seem shorter than it was: a broker that is just coming back."""

Ends = dict[MessageQueue, int]


class StreamSource:
    """Decides the offsets of a stream; used by one thread.

    Args:
        options: of the stream.
        cluster: what to ask; also kept as attribute.
        clock: ages and waits.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self.cluster = cluster
        self._clock = clock
        self._initial: StreamOffset | None = None
        self._planned: StreamOffset | None = None
        self._target: Ends | None = None
        self._ends: Ends = {}
        self._ends_at = float("-inf")
        self._queues_at = float("-inf")
        self._queues: list[MessageQueue] = []
        self._starts: Ends = {}
        self._reported: Mapping[MessageQueue, int] = {}
        self._idle_at = float("-inf")
        self._given_up: set[MessageQueue] = set()
        self._stopped = threading.Event()

    # --- what Spark asks --------------------------------------------------------------------------

    def initial(self) -> StreamOffset:
        """Return where the stream begins; resolved once, the same ever after."""
        if self._initial is None:
            option = "startingOffsets"
            position = self._options.start

            def resolve() -> Ends:
                return self.cluster.resolve(position, self._known_queues(), option)

            self._initial = StreamOffset(self.cluster.patiently(resolve), initial=True)
        return self._initial

    def prepare_available_now(self) -> None:
        """Make the ends of this moment the last ones ever returned."""
        self._target = self.cluster.patiently(self._fresh_ends)

    def latest(self, start: StreamOffset | None, rows_max: int | None) -> StreamOffset:
        """Return the end of the next batch, or ``start`` itself when there is nothing new.

        Args:
            start: end of the batch before; None on Spark 4.0 and 4.1, which do not tell.
            rows_max: most offsets to admit, None for all.

        Raises:
            DataLossError: a queue ends before ``start`` and ``failOnDataLoss`` is set.
            TransportError, BrokerError: the cluster was out of reach for ``retryTimeoutMs``.
        """
        if start is None:
            start = self._planned or self.initial()
        self._report(start)
        end = self._next(start, rows_max)
        if end is start and self._target is None:
            end = self._wait_for_news(start, rows_max)
        self._idle_at = self._clock.monotonic_ms() if end is start else float("-inf")
        return end

    def newest(self) -> StreamOffset | None:
        """Return the ends of all queues as last seen, for Spark's progress report."""
        return StreamOffset(dict(self._ends)) if self._ends else None

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """Return what a batch reads."""
        # On 4.0 and 4.1 this is also how a restart tells where it is: both are the same then.
        self._planned = end
        return ranges_between(start, end)

    def commit(self, end: StreamOffset) -> None:
        """Take note that everything before ``end`` is done."""
        self._report(end)

    def stop(self) -> None:
        """End waiting and close the connections."""
        self._stopped.set()
        self.cluster.close()

    # --- the next end -----------------------------------------------------------------------------

    def _next(self, start: StreamOffset, rows_max: int | None) -> StreamOffset:
        """Return the next end; a cluster out of reach is waited for.

        An exception would end the query, and "nothing new" would end an availableNow query before
        its time; blocking here does neither, and Spark can stop the query meanwhile.
        """
        return self.cluster.patiently(lambda: self._step(start, rows_max), topics_known=True)

    def _step(self, start: StreamOffset, rows_max: int | None) -> StreamOffset:
        ends = self._reachable_ends(start)
        starts = self._starts_of([queue for queue in ends if queue not in start.ends])
        begins = starts | {queue: start.ends[queue] for queue in ends if queue in start.ends}
        if rows_max is not None:
            ends = admit(begins, ends, rows_max)
        moved = {queue: end for queue, end in ends.items() if end > begins[queue]}
        return following(start, moved, starts) if moved else start

    def _reachable_ends(self, start: StreamOffset) -> Ends:
        """Return the ends a batch may go to: what is there, within the target of availableNow."""
        ends = self._recent_ends()
        if self._behind(start, ends):
            ends = self._wait_for_return(start)
        if self._target is None:
            return ends
        return {q: min(end, self._target[q]) for q, end in ends.items() if q in self._target}

    def _wait_for_news(self, start: StreamOffset, rows_max: int | None) -> StreamOffset:
        """Wait for messages, if Spark does nothing but ask."""
        deadline = self._clock.monotonic_ms() + IDLE_WAIT_MS
        if deadline - self._idle_at > IDLE_GAP_MS + IDLE_WAIT_MS:
            return start
        end = start
        while end is start and self._clock.monotonic_ms() < deadline and not self._stopped.is_set():
            self._stopped.wait(IDLE_POLL_MS / 1000)
            self._ends_at = float("-inf")
            end = self._next(start, rows_max)
        return end

    def _recent_ends(self) -> Ends:
        if self._clock.monotonic_ms() - self._ends_at > ENDS_LIFETIME_MS:
            self._fresh_ends()
        return self._ends

    def _fresh_ends(self) -> Ends:
        self._ends = self.cluster.max_offsets(self._known_queues())
        self._ends_at = self._clock.monotonic_ms()
        return self._ends

    def _known_queues(self) -> list[MessageQueue]:
        """Return the queues of the route; one that left it keeps its place in the offsets."""
        now = self._clock.monotonic_ms()
        if now - self._queues_at > self._options.queue_refresh_ms:
            try:
                self._queues = self.cluster.queues(refresh=True)
            except TransportError as error:
                if not self._queues:
                    raise
                logger.warning("queues not looked up anew: %s", error)
            self._queues_at = now
        return self._queues

    def _starts_of(self, queues: list[MessageQueue]) -> Ends:
        """Return where queues begin that appeared under way: at their oldest message."""
        missing = [queue for queue in queues if queue not in self._starts]
        if missing:
            self._starts.update(self.cluster.min_offsets(missing))
        return {queue: self._starts[queue] for queue in queues}

    # --- queues that shrink -----------------------------------------------------------------------

    def _behind(self, start: StreamOffset, ends: Ends) -> list[MessageQueue]:
        return [
            queue
            for queue, end in ends.items()
            if end < start.ends.get(queue, 0) and queue not in self._given_up
        ]

    def _wait_for_return(self, start: StreamOffset) -> Ends:
        patience = Patience(min(BEHIND_MS, self._options.retry_timeout_ms), self._clock)
        while behind := self._behind(start, self._fresh_ends()):
            if patience.exhausted():
                self._given_up.update(behind)
                for queue in behind:
                    report_loss(
                        self._options.fail_on_data_loss,
                        queue,
                        f"read up to offset {start.ends[queue]}, but the queue now ends at "
                        f"{self._ends[queue]}: the topic was recreated, or the broker lost "
                        f"data; nothing is read from it before offset {start.ends[queue]}",
                    )
            patience.pause()
        return self._ends

    # --- the group's progress ---------------------------------------------------------------------

    def _report(self, offset: StreamOffset) -> None:
        group = self._options.group
        if group is None or offset.initial or offset.ends == self._reported:
            return
        news = {q: end for q, end in offset.ends.items() if self._reported.get(q) != end}
        try:
            self.cluster.report(group, news)
            self._reported = offset.ends
        except (TransportError, BrokerError, RouteNotFoundError) as error:
            logger.warning("progress of group=%s not reported: %s", group, error)

"""Continuity: whether the queues in a checkpoint still exist, and are still the same.

The cluster's answers are kept for a moment (``QueueEnds``), so it is asked no more than needed.

Law: a problem that may pass is waited for, then the loss is named; a row is never skipped silently.
A queue that was replaced continues with the first row stored after the last row read. Only a queue
whose broker is there and holds nothing of it is deleted; every other one may come back.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from rocketstream._util.clock import Clock
from rocketstream.columns.table import described
from rocketstream.errors import (
    DataLossError,
    RocketMQError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import Mark, Marks, StreamOffset
from rocketstream.spark.driver.planning import first_at
from rocketstream.spark.losses import report_loss
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import QueueRange

logger: logging.Logger = logging.getLogger("rocketstream.spark")

ENDS_LIFETIME_MS: Final = 100
"""How old the known ends of queues may be."""


class QueueEnds:
    """The queues of a stream's topics and their ends; used by one thread.

    Args:
        cluster: the cluster to ask.
        refresh_ms: how old the list of queues may be.
        clock: measures the age of answers.
    """

    def __init__(self, cluster: Cluster, refresh_ms: float, clock: Clock) -> None:
        self._cluster = cluster
        self._refresh_ms = refresh_ms
        self._clock = clock
        self.last: dict[MessageQueue, int] = {}
        """The ends as last seen."""
        self._ends_at = float("-inf")
        self._queues: list[MessageQueue] = []
        self._queues_at = float("-inf")

    @property
    def known(self) -> Sequence[MessageQueue]:
        """The queues of the route as last seen."""
        return self._queues

    def recent(self, held: Collection[str]) -> dict[MessageQueue, int]:
        """Return ends at most 100 ms old; blocks, and raises the errors of the cluster's answers.

        Args:
            held: topics with known offsets; such a topic may have no route.
        """
        if self._clock.monotonic_ms() - self._ends_at > ENDS_LIFETIME_MS:
            self.fresh(held)
        return self.last

    def are_younger(self, age_ms: float, held: Collection[str]) -> bool:
        """Whether the ends are that young, and of the existing queues; blocks as ``queues``."""
        if self._clock.monotonic_ms() - self._ends_at > age_ms:
            return False
        try:
            return self.last.keys() == set(self.queues(held))
        except RocketMQError:
            return False  # the caller that asks for the ends gets the error again, and handles it

    def fresh(self, held: Collection[str]) -> dict[MessageQueue, int]:
        """Return newly asked ends."""
        self.last = self._cluster.max_offsets(self.queues(held))
        self._ends_at = self._clock.monotonic_ms()
        return self.last

    def queues(self, held: Collection[str]) -> list[MessageQueue]:
        """Return the queues of the route, at most ``refresh_ms`` old."""
        now = self._clock.monotonic_ms()
        if now - self._queues_at > self._refresh_ms:
            try:
                self._queues = self._cluster.queues(refresh=True, held=held)
            except TransportError as error:
                if not self._queues:
                    raise
                logger.warning("queues not looked up anew: %s", error)
            self._queues_at = now
        return self._queues

    def forget_ends(self) -> None:
        """Ask for the ends again with the next question."""
        self._ends_at = float("-inf")

    def forget_queues(self) -> None:
        """Ask for queues and ends again with the next question."""
        self._queues_at = self._ends_at = float("-inf")


BEHIND_MS: Final = 3_000
"""How long a queue may appear shorter than before, or removed from a broker that is still in the
route: a broker that is just coming back looks like that.
"""

Ends = dict[MessageQueue, int]


class _Restart(NamedTuple):
    """Where a replaced queue continues, as long as the checkpoint names the old one."""

    end: int
    mark: Mark | None
    begin: int


class Continuity:
    """Compares the existing queues with the offsets of a stream; used by one thread.

    Args:
        options: the options of the stream.
        cluster: the cluster to ask.
        ends: the queues' ends, shared with the planning part.
        clock: waits.
    """

    def __init__(
        self, options: ReadOptions, cluster: Cluster, ends: QueueEnds, clock: Clock
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._ends = ends
        self._clock = clock
        self._absent: set[MessageQueue] = set()
        self._deleted: set[MessageQueue] = set()
        self._asked: set[MessageQueue] = set()
        self._left_out: set[MessageQueue] = set()
        self._restarts: dict[MessageQueue, _Restart] = {}
        self._compared: set[MessageQueue] = set()
        """Queues known to be the same all the time since they were compared with the checkpoint."""

    def ends(self, start: StreamOffset) -> Ends:
        """Return the ends of the existing queues, waiting for those that are missing.

        Raises:
            DataLossError: a queue with unread rows left the route, or ends before the offset that
                was read, and ``failOnDataLoss`` is set.
        """
        held = topics_of(start.ends)
        self._keep_only(start)
        try:
            ends = self._ends.recent(held)
        except TransportError:
            self._compared.clear()  # the broker that comes back may hold another log
            raise
        self._absent.difference_update(ends)
        missing = [queue for queue in self._asked_for(start) if queue not in ends]
        if set(missing) - self._absent:
            for queue in self._wait_for(missing, held):
                self._judge_absent(queue, start.ends[queue])
            ends = self._ends.recent(held)
            self._absent.difference_update(ends)
        if behind := self._behind(start, ends):
            self._compared.difference_update(behind)
            ends = self._wait_for_return(start)
        return ends

    def deleted(self, start: StreamOffset) -> set[MessageQueue]:
        """Return the queues in ``start`` of topics that match the pattern no more, being deleted.

        As of the last ``ends``. A topic of such a name that comes later is a new one. Without a
        pattern there is none: a topic that is named is expected to come back.
        """
        if self._options.choice.pattern is None:
            return set()
        topics = topics_of(self._ends.known)
        gone = self._deleted & self._absent & start.ends.keys()
        return {queue for queue in gone if queue.topic not in topics}

    def begins(self, start: StreamOffset, ends: Mapping[MessageQueue, int]) -> Ends:
        """Return the offset at which each queue in ``start`` continues.

        Raises:
            DataLossError: a queue is not the one that was read, and ``failOnDataLoss`` is set.
        """
        known = {queue: end for queue, end in ends.items() if queue in start.ends}
        self._forget_mistakes(start, known)
        self._compare(start, ends)
        return {queue: self._begin(start, queue) for queue in ends if queue in start.ends}

    def reachable(self, ranges: Sequence[QueueRange]) -> list[QueueRange]:
        """Return the ranges of a planned batch whose queues exist; waits for brokers that are away.

        A batch is done when it was read without a range, so one is left out on the word of its
        broker alone: a queue that is in no route may be that of a broker that comes back.

        Raises:
            DataLossError: a queue does not exist, and ``failOnDataLoss`` is set; or its broker
                cannot be asked, whatever is set.
        """
        known = set(self._ends.queues(topics_of([span.queue for span in ranges])))
        missing: dict[str, list[QueueRange]] = {}
        for span in ranges:
            if span.queue not in known:
                missing.setdefault(span.queue.broker_name, []).append(span)
        left_out = {
            span
            for broker_name, spans in missing.items()
            for span in self._not_served(broker_name, spans)
        }
        return [span for span in ranges if span not in left_out]

    def _not_served(self, broker_name: str, spans: Sequence[QueueRange]) -> list[QueueRange]:
        """Return those of a broker's planned ranges that it does not have."""
        rows = {span.queue: span.begin for span in spans}
        served: set[MessageQueue] = set()
        away: RocketMQError | None = None
        try:
            served = self._cluster.patiently(
                lambda: self._cluster.served(broker_name, rows), topics_known=True
            )
        except (TransportError, RouteNotFoundError) as error:
            away = error
        gone = [span for span in spans if span.queue not in served]
        for span in gone:
            what = f"offsets {span.begin} to {span.end - 1} of a micro-batch already planned"
            if away is None:
                why = "the queue has left the route, and its broker does not have it"
            elif self._options.fail_on_data_loss or self._options.choice.wants(span.queue):
                raise _unasked(span.queue, what, away)
            else:
                why = "its broker cannot be asked, and the options no longer select the queue"
            self._lost(span.queue, f"{what} cannot be read: {why}")
            self._note_absent(span.queue)
        return gone

    def unchanged(self, ranges: Sequence[QueueRange], marks: Marks) -> list[QueueRange]:
        """Return the ranges of a batch that an earlier run planned, without rows of other topics.

        Args:
            ranges: the ranges; their queues exist.
            marks: the marks of their last rows, where these could be read.

        Raises:
            DataLossError: a row is another than was planned, and ``failOnDataLoss`` is set.
        """
        lasts = {span.queue: span.end - 1 for span in ranges if span.queue in marks}
        now = self._cluster.marks_again(lasts, marks, lasts) if lasts else {}
        left = [
            span
            if span.queue not in marks or now.get(span.queue) == marks[span.queue]
            else self._left_of(span, marks[span.queue], span.queue in now)
            for span in ranges
        ]
        return [span for span in left if span.begin < span.end]

    def _left_of(self, span: QueueRange, mark: Mark, replaced: bool) -> QueueRange:
        """Return a range without the rows stored after it was planned; its last row was ``mark``.

        Args:
            span: the range.
            mark: the mark of its last row as planned.
            replaced: whether another row has that offset now; otherwise there is none.
        """
        first = self._first_after(span.queue, mark)
        high = self._cluster.max_offsets([span.queue])[span.queue]
        if not replaced and first >= min(span.end, high):
            return span  # expired, or not back yet: the task waits, and tells the loss
        end = max(span.begin, min(first, span.end - 1))
        self._lost(
            span.queue,
            f"offsets {end} to {span.end - 1} of a micro-batch already planned cannot be read: "
            f"its last row was {_text(mark)}, and the rows now at these offsets came later: the "
            "topic was recreated, or the broker lost data",
        )
        return QueueRange(span.queue, span.begin, end)

    def _keep_only(self, start: StreamOffset) -> None:
        """Forget queues that the checkpoint has dropped."""
        for queues in (self._absent, self._deleted, self._asked):
            queues.intersection_update(start.ends)
        self._restarts = {q: each for q, each in self._restarts.items() if q in start.ends}

    def _asked_for(self, start: StreamOffset) -> list[MessageQueue]:
        """Return the queues of ``start`` to read, without those the user no longer asks for."""
        choice = self._options.choice
        fresh = sorted(set(start.ends).difference(self._asked, self._left_out))
        left_out = [queue for queue in fresh if not choice.wants(queue)]
        self._asked.update(set(fresh).difference(left_out))
        if left_out:
            self._left_out.update(left_out)
            logger.warning(
                "the options no longer select (they select %s) these queues of the checkpoint: "
                "%s; they are read no further, and their offsets are kept",
                choice.text,
                "; ".join(map(described, left_out)),
            )
        return [queue for queue in start.ends if queue not in self._left_out]

    # --- queues that are not in the route ---------------------------------------------------------

    def _wait_for(self, queues: Sequence[MessageQueue], held: frozenset[str]) -> list[MessageQueue]:
        """Wait for queues to come back and return those that do not.

        A broker that is down leaves the route and comes back, so it is waited for up to
        ``retryTimeoutMs``; a queue whose broker is in the route, or is there and holds nothing of
        it, has been removed.
        """
        away = Patience(self._options.retry_timeout_ms, self._clock)
        taken = Patience(min(BEHIND_MS, self._options.retry_timeout_ms), self._clock)
        told = False
        removed: set[MessageQueue] | None = None
        while True:
            self._ends.forget_queues()
            known = self._ends.queues(held)
            missing = [queue for queue in queues if queue not in known]
            self._compared.difference_update(missing)
            brokers = {(queue.topic, queue.broker_name) for queue in known}
            over, brief = away.exhausted(), taken.exhausted()
            awaited = [
                queue
                for queue in missing
                if queue not in self._absent
                and not over
                and not (brief and (queue.topic, queue.broker_name) in brokers)
            ]
            if brief:
                removed = self._empty_at_brokers(awaited) if removed is None else removed
                awaited = [queue for queue in awaited if queue not in removed]
            if not awaited:
                return missing
            if not told:
                texts = "; ".join(described(queue) for queue in awaited)
                logger.warning("waiting for queues that left the route: %s", texts)
                told = True
            away.pause()

    def _empty_at_brokers(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Return the queues of which their broker, whose master is there, holds nothing."""
        found: set[MessageQueue] = set()
        for name in {queue.broker_name for queue in queues}:
            if not self._cluster.has_master(name):
                continue
            for queue in queues:
                if queue.broker_name == name:
                    end = self._cluster.end_anyway(queue)
                    if end is None:
                        break  # each question to a broker that is silent takes its time
                    if end == 0:
                        found.add(queue)
        return found

    def _note_absent(self, queue: MessageQueue) -> int | None:
        """Note that a queue is not there; return its end at its broker, if that says it."""
        self._absent.add(queue)
        self._deleted.discard(queue)
        end = self._cluster.end_anyway(queue)
        if end == 0 and self._cluster.has_master(queue.broker_name):
            self._deleted.add(queue)
        return end

    def _judge_absent(self, queue: MessageQueue, read_to: int) -> None:
        if queue in self._absent:
            return
        end = self._note_absent(queue)
        if end == read_to:
            logger.warning(
                "%s has left the route; all of it was read, up to offset %s",
                described(queue),
                read_to,
            )
            return
        if end is None:
            held = "its broker cannot be asked whether it holds more; start it again if it is down"
        else:
            held = f"its broker says it ends at {end}"
        self._lost(queue, f"the queue has left the route; it was read up to {read_to}, and {held}")

    # --- queues that are others -------------------------------------------------------------------

    def _begin(self, start: StreamOffset, queue: MessageQueue) -> int:
        end = start.ends[queue]
        restart = self._restarts.get(queue)
        if restart and (restart.end, restart.mark) == (end, start.marks.get(queue)):
            return restart.begin
        return end

    def _behind(self, start: StreamOffset, ends: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        return [
            queue
            for queue, end in ends.items()
            if queue in start.ends and end < self._begin(start, queue)
        ]

    def _wait_for_return(self, start: StreamOffset) -> Ends:
        held = topics_of(start.ends)
        timeout_ms = self._options.retry_timeout_ms
        brief = Patience(min(BEHIND_MS, timeout_ms), self._clock)
        long = Patience(timeout_ms, self._clock)
        while behind := self._behind(start, self._ends.fresh(held)):
            # A slave may lag behind its master while that is away, and then holds less.
            brokers = {queue.broker_name for queue in behind}
            over, short = long.exhausted(), brief.exhausted()
            led = short and all(map(self._cluster.has_master, brokers))
            if over or led:
                for queue in behind:
                    self._restart(start, queue, self._shorter(start, queue, led))
                break
            long.pause()
        return self._ends.last

    def _shorter(self, start: StreamOffset, queue: MessageQueue, led: bool) -> str:
        reason = "the topic was recreated, or the broker lost data"
        if not led and not self._cluster.has_master(queue.broker_name):
            reason += ", or a slave that is behind answers for its master, which is away"
        return (
            f"read up to offset {start.ends[queue]}, but the queue now ends at "
            f"{self._ends.last[queue]}: {reason}"
        )

    def _forget_mistakes(self, start: StreamOffset, ends: Mapping[MessageQueue, int]) -> None:
        """Let a queue continue where it was left if the last row read exists again after all."""
        rows = {
            queue: start.ends[queue] - 1
            for queue, end in ends.items()
            if self._begin(start, queue) != start.ends.get(queue)
            and queue in start.marks
            and end >= start.ends[queue]
        }
        for queue, mark in self._marks_again(start, rows).items():
            if mark == start.marks[queue]:
                del self._restarts[queue]
                logger.warning(
                    "%s has the last row read once more: reading goes on from offset %s",
                    described(queue),
                    start.ends[queue],
                )

    def _compare(self, start: StreamOffset, ends: Mapping[MessageQueue, int]) -> None:
        """Compare the last rows read with those now at their offsets, where something is new."""
        rows = {
            queue: start.ends[queue] - 1
            for queue, end in ends.items()
            if queue in start.marks
            and self._begin(start, queue) == start.ends[queue]
            and (end > start.ends[queue] or queue not in self._compared)
        }
        now = self._marks_again(start, rows)
        for queue, mark in now.items():
            before = start.marks[queue]
            if mark != before:
                self._restart(
                    start,
                    queue,
                    f"the last row read, offset {rows[queue]}, was {_text(before)}, but is now "
                    f"{_text(mark)}: the topic was recreated, or the broker lost data; rows before "
                    f"offset {start.ends[queue]} were never read",
                )
        self._compared.update(ends)

    def _marks_again(
        self, start: StreamOffset, rows: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, Mark]:
        doubted = set(rows).difference(self._compared)
        return self._cluster.marks_again(rows, start.marks, doubted) if rows else {}

    def _restart(self, start: StreamOffset, queue: MessageQueue, what: str) -> None:
        if self._options.fail_on_data_loss:
            self._lost(queue, what)
        mark = start.marks.get(queue)
        begin = self._first_after(queue, mark)
        self._lost(queue, f"{what}. It is read from offset {begin} on")
        self._restarts[queue] = _Restart(start.ends[queue], mark, begin)

    def _first_after(self, queue: MessageQueue, mark: Mark | None) -> int:
        """Return the first offset whose row was stored after the last row read."""
        low = self._cluster.min_offsets([queue])[queue]
        high = self._cluster.max_offsets([queue])[queue]
        if mark is None:
            return low

        def newer(offset: int) -> bool:
            found = self._cluster.marks({queue: offset}).get(queue)
            return found is None or not mark.covers(found)

        return first_at(low, high, low, newer)

    def _lost(self, queue: MessageQueue, what: str) -> None:
        report_loss(self._options.fail_on_data_loss, queue, what)


def topics_of(queues: Mapping[MessageQueue, int] | Sequence[MessageQueue]) -> frozenset[str]:
    """Return the topics of some queues."""
    return frozenset(queue.topic for queue in queues)


def _unasked(queue: MessageQueue, what: str, away: RocketMQError) -> DataLossError:
    """Return the error for planned offsets that a broker may have or not."""
    broker = repr(queue.broker_name)
    return DataLossError(
        f"{described(queue)}: {what} cannot be read, since broker {broker} cannot be asked: "
        f"{away}. Start it again, and then the query, which goes on there: failOnDataLoss=false "
        "leaves out only what a broker says is gone. If it never comes back, start an empty broker "
        "of its name, or run the query once with option 'assign' naming the queues of the others, "
        "either with failOnDataLoss=false",
        queue=tuple(queue),
    )


def _text(mark: Mark) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(mark.store_ms / 1000, datetime.UTC)
        stored = moment.isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        stored = f"{mark.store_ms} ms"
    return f"stored at {stored} at {mark.place} of the log"

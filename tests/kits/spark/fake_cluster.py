"""A cluster made of dictionaries, for what a stream's driver side decides."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from rocketstream.errors import RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.held_pulls import HeldPulls
from rocketstream.spark.driver.offsets import Mark, StreamOffset
from rocketstream.spark.driver.streaming import StreamSource
from rocketstream.spark.options import read_options
from rocketstream.spark.patience import Patience
from rocketstream.testing.clock import ManualClock

A, B, C = (MessageQueue("T", "broker", queue_id) for queue_id in range(3))
READ_ON = {"failOnDataLoss": "false", "queueRefreshMs": "0"}
"""The options of a stream that goes on after a loss, and looks for queues each time."""


def pause(patience: Patience) -> None:
    """Stand in for waiting: half a second on a clock set by hand."""
    clock = patience._clock
    assert isinstance(clock, ManualClock)
    clock.advance(500)


class FakeHeldPulls(HeldPulls):
    """Hears at once of what is new in the dictionaries; silence takes the time it is given."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster_of_dictionaries = cluster

    def news(self, ends: Mapping[MessageQueue, int], timeout_ms: float) -> bool:
        cluster = self._cluster_of_dictionaries
        cluster.clock.advance(timeout_ms)
        table = cluster.table
        return any(table[queue][1] != end for queue, end in ends.items() if queue in table)

    def rest(self, timeout_ms: float) -> None:
        self._cluster_of_dictionaries.clock.advance(timeout_ms)

    def close(self) -> None:
        pass


class FakeCluster(Cluster):
    """Queues as [min, max], with the failures a test asks for."""

    def __init__(self, **options: str) -> None:
        self.table: dict[MessageQueue, list[int]] = {A: [0, 100], B: [5, 50]}
        self.reports: list[dict[MessageQueue, int]] = []
        self.failures: list[Exception] = []
        self.questions = 0
        self.elsewhere: dict[MessageQueue, int] = {}
        self.unlisted: set[MessageQueue] = set()
        self.late_from: dict[MessageQueue, int] = {}
        self.late_ms = 1_000_000
        self.led = True
        self.others: dict[str, str] = {}
        self.asked_for_members = 0
        self.group: dict[MessageQueue, int] = {}
        self.marked: list[dict[MessageQueue, int]] = []
        self.clock = ManualClock()
        given = {"nameServer": "h:1", "topic": "T", "startingOffsets": "earliest"} | options
        if "topicPattern" in options:
            del given["topic"]
        self._options = read_options(given, "stream")
        self._clock = self.clock
        self.held_pulls = FakeHeldPulls(self)
        self.source = StreamSource(self._options, self, self.clock, self.held_pulls)

    def queues(self, *, refresh: bool = False, held: Collection[str] = ()) -> list[MessageQueue]:
        return sorted(self.table)

    def has_master(self, broker_name: str) -> bool:
        return self.led

    def end_anyway(self, queue: MessageQueue) -> int | None:
        return self.elsewhere.get(queue)

    def marks(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark]:
        """Stored one a millisecond, a kilobyte each, later and further on in later epochs."""
        self.marked.append(dict(rows))
        there = {q: at for q, at in rows.items() if self.table[q][0] <= at < self.table[q][1]}
        late = {
            q: self.late_ms if at >= self.late_from.get(q, at + 1) else 0 for q, at in there.items()
        }
        return {q: Mark(late[q] + at, 1_000 * (late[q] + at)) for q, at in there.items()}

    def marks_again(
        self,
        rows: Mapping[MessageQueue, int],
        before: Mapping[MessageQueue, Mark],
        doubted: Collection[MessageQueue],
    ) -> dict[MessageQueue, Mark]:
        return self.marks(rows)

    def again(self, queue: MessageQueue, end: int, begin: int = 0) -> None:
        """Make rows anew from ``begin`` to ``end``: another topic, or what follows a lost tail."""
        self.table[queue] = [min(begin, self.table[queue][0]), end]
        self.late_from[queue] = begin

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self.table[queue][0] for queue in queues}

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        self.questions += 1
        if self.failures:
            raise self.failures.pop(0)
        return {queue: self.table[queue][1] for queue in queues}

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self.group[queue] for queue in queues if queue in self.group}

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, low: int, high: int) -> int:
        """Offset n was stored at n seconds."""
        return min(high, max(low, -(-timestamp_ms // 1_000)))

    def members(self, group: str, queues: Iterable[MessageQueue]) -> dict[str, str]:
        self.asked_for_members += 1
        return dict(self.others)

    def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.reports.append(dict(offsets))

    def close(self) -> None:
        self.reports.append({})

    def served(self, broker_name: str, rows: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Those in the route, and others that are not; of what is elsewhere it says it is gone."""
        there = self.unlisted.union(self.table)
        if not there.union(self.elsewhere).issuperset(rows):
            raise RouteNotFoundError(f"broker {broker_name!r} is not registered")
        return there.intersection(rows)

    # what Spark does

    def row_bytes(self, rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """A kilobyte in queue 0, a hundred bytes elsewhere, where there is a row."""
        there = {q: at for q, at in rows.items() if self.table[q][0] <= at < self.table[q][1]}
        return {queue: 1_000 if queue == A else 100 for queue in there}

    def latest(self, start: StreamOffset | None, limited: bool = False) -> StreamOffset:
        """Ask for the next end, 200 ms after the last question."""
        self.clock.advance(200)
        return self.source.latest(start, limited)

    def start(self) -> StreamOffset:
        """A first batch, done."""
        end = self.latest(self.source.initial())
        self.source.ranges(self.source.initial(), end)
        return end


def restarted(cluster: FakeCluster, end: StreamOffset, **options: str) -> FakeCluster:
    """The same cluster seen by a new run of the query, which has only the checkpoint's text."""
    again = FakeCluster(**options)
    again.table, again.elsewhere = cluster.table, cluster.elsewhere
    again.late_from = cluster.late_from
    assert StreamOffset.from_json(json.loads(json.dumps(end.to_json()))) == end
    return again

"""The counts of a broker: by topic, queue and group, over minutes, hours and days.

``core`` defines the windows. The store's queues themselves count stored messages, so that a send
costs nothing extra. Upstream: BrokerStatsManager, BrokerStats (codes 28 and 315).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from rocketstream._util.clock import Clock
from rocketstream.limits import STATISTICS_MAX
from rocketstream.protocol.bodies import BrokerStatsData, BrokerStatsItem
from rocketstream.server.broker.core.days import DayCounts
from rocketstream.server.broker.core.sampled import (
    INTERVALS_MS,
    Pace,
    SampledTotals,
    Totals,
    Window,
)
from rocketstream.server.broker.core.stats import Counter
from rocketstream.server.store import MessageStore
from rocketstream.transport.sharing import Sharing, Steps

KEEP_INTERVAL_MS = 10_000
"""How often changed counts of days are persisted."""
_MINUTE_MS = 60_000
RESTING_MS = 600_000
"""A count that has not changed for so long makes room for a new one, where no more are kept."""
FORGOTTEN_MS = 24 * 3_600_000
"""A count that has not changed for so long is forgotten: no window has anything of it."""

_BROKER_PUTS = ("", -1)
_BROKER_GETS = ("", -1, "")

_GetKey = tuple[str, int, str]
_BackKey = tuple[str, str]


class _Tally:
    __slots__ = ("bytes", "calls", "changed_ms", "nums", "spent_ms")

    def __init__(self) -> None:
        self.changed_ms = 0.0
        self.nums = self.bytes = self.calls = 0
        self.spent_ms = 0.0

    def totals(self) -> Totals:
        return Totals(self.nums, self.bytes, self.calls, int(self.spent_ms))


class BrokerStatistics:
    """The counts of one broker, confined to its loop."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.puts: Counter = Counter()
        """Messages stored for clients: sends, retries, and delayed ones when due."""
        self.gets: Counter = Counter()
        """Messages handed to consumers."""
        self.found: Counter = Counter()
        """Pulls that found messages."""
        self.missed: Counter = Counter()
        """Pulls that found no message."""
        self.sharing: Sharing | None = None
        """Shares the loop between the steps of a sample; None takes it in one step."""
        self.longest_get_ms: float = 0.0
        # In the order in which they last changed.
        self._pulled: OrderedDict[_GetKey, _Tally] = OrderedDict()
        self._sent_back: OrderedDict[_BackKey, _Tally] = OrderedDict()
        self._tables: tuple[OrderedDict[Any, _Tally], ...] = (self._pulled, self._sent_back)
        self._samples = SampledTotals()
        began_ms = clock.monotonic_ms()
        for counter in (self.puts, self.gets, self.found, self.missed):
            counter.sample(began_ms)
        self._due_ms = [began_ms + interval_ms for interval_ms in INTERVALS_MS]
        self._rolled_ms = self._kept_ms = self._sampled_ms = began_ms
        self._counted = (0, 0)
        now_ms = clock.now_ms()
        self.days: DayCounts = DayCounts(since_ms=now_ms, day=_day(now_ms))
        self._kept_days = self.days
        self.generation: int = 0
        """Grows when the counts of days must be persisted."""

    # --- counting --------------------------------------------------------------------------------

    def looked(self, spent_ms: float, *, found: bool) -> None:
        """Record a read of the store."""
        if found:
            self.found.total += 1
        else:
            self.missed.total += 1
        if spent_ms > self.longest_get_ms:
            self.longest_get_ms = spent_ms

    def pulled(
        self, topic: str, queue_id: int, group: str, count: int, size: int, spent_ms: float
    ) -> None:
        """Record the messages a pull brought."""
        self.gets.total += count
        tally = self._tally(self._pulled, (topic, queue_id, group))
        tally.nums += count
        tally.bytes += size
        tally.calls += 1
        tally.spent_ms += spent_ms

    def sent_back(self, topic: str, group: str) -> None:
        """Record that a group could not consume a message of a topic and sent it back."""
        tally = self._tally(self._sent_back, (topic, group))
        tally.nums += 1
        tally.calls += 1

    def _tally(self, table: OrderedDict[Any, _Tally], key: _GetKey | _BackKey) -> _Tally:
        tally = table.get(key)
        if tally is None:
            tally = _Tally()
            if len(table) >= STATISTICS_MAX and not self._drop_resting(table, RESTING_MS):
                return tally  # it counts only towards the whole broker
            table[key] = tally
        else:
            table.move_to_end(key)
        tally.changed_ms = self._sampled_ms
        return tally

    def _drop_resting(self, table: OrderedDict[Any, _Tally], rest_ms: float) -> bool:
        """Forget what has rested longest, if that is long enough; return whether it is."""
        key, tally = next(iter(table.items()), (None, None))
        if tally is None or self._sampled_ms - tally.changed_ms < rest_ms:
            return False
        del table[key]
        self._samples.drop(key)
        return True

    def _forgetting(self) -> Steps:
        for table in self._tables:
            while self._drop_resting(table, FORGOTTEN_MS):
                yield

    def topic_deleted(self, topic: str) -> None:
        """Forget the counts of a topic, whose queues the store has forgotten."""
        self._forget(lambda key: key[0] == topic)

    def group_deleted(self, group: str) -> None:
        """Forget the counts of a group."""
        self._forget(lambda key: key[-1] == group)

    def _forget(self, is_gone: Callable[[tuple[str | int, ...]], bool]) -> None:
        self._samples.forget(is_gone)
        for table in self._tables:
            for key in [key for key in table if is_gone(key)]:
                del table[key]

    # --- sampling --------------------------------------------------------------------------------

    def sample(self) -> None:
        """Take the samples that are due; called every second."""
        now_ms = self._sampled_ms = self._clock.monotonic_ms()
        for counter in (self.puts, self.gets, self.found, self.missed):
            counter.sample(now_ms)
        if now_ms - self._rolled_ms >= _MINUTE_MS:
            self._rolled_ms = now_ms
            self._store.put_times.roll(self.puts.total)
        for pace in Pace:
            if now_ms >= self._due_ms[pace]:
                self._due_ms[pace] = now_ms + INTERVALS_MS[pace]
                self._run(self._samples.taking(pace, now_ms, self._totals()))
                if pace is Pace.DAY:
                    self._run(self._forgetting())
        self.count_days()
        if now_ms - self._kept_ms >= KEEP_INTERVAL_MS:
            self._kept_ms = now_ms
            self.keep()

    def _run(self, steps: Steps) -> None:
        if self.sharing is not None:
            self.sharing.start(steps)
        else:
            for _ in steps:
                pass

    def count_days(self) -> None:
        """Add the counts since the last call to the counts of days."""
        puts, gets = self.puts.total, self.gets.total
        before = self._counted
        self._counted = (puts, gets)
        day = _day(self._clock.now_ms())
        self.days = self.days.counted(day, puts - before[0], gets - before[1])

    def keep(self) -> None:
        """Persist the counts of days, if they have changed."""
        self.count_days()
        self.generation += self.days != self._kept_days
        self._kept_days = self.days

    def load(self, days: DayCounts) -> None:
        """Continue the counts of an earlier run."""
        self.days = self._kept_days = days

    def _totals(self) -> Iterator[tuple[Hashable, Totals]]:
        yield _BROKER_PUTS, Totals(self.puts.total)
        yield _BROKER_GETS, Totals(self.gets.total)
        for topic, queue_id, counted in self._store.counted():
            yield (topic, queue_id), Totals(*counted)
        for table in self._tables:
            for key, tally in tuple(table.items()):  # in steps: groups and topics come meanwhile
                if table.get(key) is tally:  # and go
                    yield key, tally.totals()

    # --- showing ---------------------------------------------------------------------------------

    def view(self, name: str, key: str, cluster: str, queues: int) -> BrokerStatsData | None:
        """Return a statistic by upstream's name and key; None when it was never counted.

        Args:
            name: such as ``TOPIC_PUT_NUMS``.
            key: ``topic``, ``topic@group``, and so on; the cluster's name for the whole broker.
            cluster: name of the cluster.
            queues: how many queues the topic of the key has.
        """
        keys = [k for k in _keys(name, key, cluster, queues) if self._is_counted(k)]
        if not keys:
            return None
        return BrokerStatsData(*(_item(name, self._samples.window(pace, keys)) for pace in Pace))

    def _is_counted(self, key: tuple[str | int, ...]) -> bool:
        if key in (_BROKER_PUTS, _BROKER_GETS):
            return bool((self.puts if key == _BROKER_PUTS else self.gets).total)
        if key in self._pulled or key in self._sent_back:
            return True
        topic, queue_id = key[0], key[1]
        return (
            len(key) == 2
            and isinstance(topic, str)
            and isinstance(queue_id, int)
            and self._store.counted_in(topic, queue_id)[0] > 0
        )

    def pulled_per_second(self, topic: str, group: str, queues: int) -> float:
        """Return the messages per second a group pulled from a topic in the last minute."""
        keys = [(topic, queue_id, group) for queue_id in range(queues)]
        window = self._samples.window(Pace.MINUTE, keys)
        return _per_second(window.grown.nums, window)


def topic_of(name: str, key: str) -> str:
    """Return the topic a statistic's key is about."""
    parts = key.split("@")
    return parts[1] if name == "GROUP_GET_LATENCY" and len(parts) == 3 else parts[0]


def _keys(name: str, key: str, cluster: str, queues: int) -> Iterable[tuple[str | int, ...]]:
    parts = key.split("@")
    every = range(queues)
    if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
        return (
            [_BROKER_PUTS if name == "BROKER_PUT_NUMS" else _BROKER_GETS] if key == cluster else []
        )
    if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE") and len(parts) == 1:
        return [(parts[0], queue_id) for queue_id in every]
    if name == "SNDBCK_PUT_NUMS" and len(parts) == 2:
        return [(parts[0], parts[1])]
    if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY") and len(parts) == 2:
        return [(parts[0], queue_id, parts[1]) for queue_id in every]
    if name == "GROUP_GET_LATENCY" and len(parts) == 3:
        return [(parts[1], queue_id, parts[2]) for queue_id in _number(parts[0])]
    if name in ("QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE") and len(parts) == 2:
        return [(parts[0], queue_id) for queue_id in _number(parts[1])]
    if name in ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE") and len(parts) == 3:
        return [(parts[0], queue_id, parts[2]) for queue_id in _number(parts[1])]
    return []


def _number(text: str) -> list[int]:
    return [int(text)] if text.isascii() and text.isdigit() and len(text) < 10 else []


def _item(name: str, window: Window) -> BrokerStatsItem:
    grown = window.grown
    if name.endswith("_SIZE"):
        total = grown.bytes
    else:
        total = grown.spent_ms if name.endswith("_LATENCY") else grown.nums
    average = total / grown.calls if grown.calls else 0.0
    return BrokerStatsItem(total, _per_second(total, window), average)


def _per_second(total: int, window: Window) -> float:
    return total * 1000 / window.span_ms if window.span_ms else 0.0


def _day(now_ms: int) -> int:
    """Return the local day of a time."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().toordinal()

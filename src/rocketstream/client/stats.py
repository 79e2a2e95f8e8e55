"""How fast a client pulls and consumes, over the last minute and hour (ConsumerStatsManager).

Sums are added from any thread under short locks, and read for the running info (C-540).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from rocketstream._util.clock import Clock
from rocketstream.protocol.bodies import ConsumeStatus
from rocketstream.protocol.namespace import without_namespace

SAMPLE_INTERVAL_MS = 10_000
_MINUTE_SAMPLES = 7
_HOUR_SAMPLE_INTERVAL_MS = 600_000
_HOUR_SAMPLES = 7


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure over a span of time: its sum, per second, and per call."""

    sum: int = 0
    per_second: float = 0.0
    per_call: float = 0.0


_NOTHING = Rate()


class StatsItem:
    """Sums of one figure with samples of the last minute (every 10 s) and hour (every 10 min)."""

    __slots__ = ("_calls", "_hour", "_lock", "_minute", "_value")

    def __init__(self, now_ms: float) -> None:
        self._lock = threading.Lock()
        self._value = 0
        self._calls = 0
        # A figure that begins now was zero one interval ago; so no span is ever empty.
        self._minute = deque([(now_ms - SAMPLE_INTERVAL_MS, 0, 0)], maxlen=_MINUTE_SAMPLES)
        self._hour = deque([(now_ms - _HOUR_SAMPLE_INTERVAL_MS, 0, 0)], maxlen=_HOUR_SAMPLES)

    def add(self, value: int, calls: int = 1) -> None:
        """Add the figure of one call, or the sum of several."""
        with self._lock:
            self._value += value
            self._calls += calls

    def sample(self, now_ms: float) -> bool:
        """Note where the sums stand, every 10 s; return whether the last hour added anything."""
        with self._lock:
            now = (now_ms, self._value, self._calls)
            self._minute.append(now)
            if now_ms - self._hour[-1][0] >= _HOUR_SAMPLE_INTERVAL_MS:
                self._hour.append(now)
            return len(self._hour) < _HOUR_SAMPLES or self._hour[0][1:] != now[1:]

    def minute(self, now_ms: float) -> Rate:
        """Return what came in the last minute."""
        return self._since(self._minute, now_ms)

    def hour(self, now_ms: float) -> Rate:
        """Return what came in the last hour."""
        return self._since(self._hour, now_ms)

    def _since(self, samples: deque[tuple[float, int, int]], now_ms: float) -> Rate:
        with self._lock:
            began_ms, value, calls = samples[0]
            value, calls = self._value - value, self._calls - calls
        span_ms = max(now_ms - began_ms, 1.0)
        return Rate(value, value * 1000 / span_ms, value / calls if calls else 0.0)


_PULL_RT, _PULL_TPS, _CONSUME_RT, _OK_TPS, _FAILED_TPS = range(5)


class ConsumerStats:
    """Rates of the consumers of one client instance, by group and topic. Thread safe.

    Groups and topics may be named with or without ``namespace``; it makes no difference.
    """

    def __init__(self, clock: Clock, namespace: str | None = None) -> None:
        self._clock = clock
        self._namespace = namespace
        self._items: dict[tuple[int, str, str], StatsItem] = {}

    def inc_pull_rt(self, group: str, topic: str, rt_ms: float) -> None:
        """Add the duration of one pull that found messages, ms."""
        self._item(_PULL_RT, group, topic).add(int(rt_ms))

    def inc_pull_tps(self, group: str, topic: str, messages: int) -> None:
        """Add the messages one pull brought."""
        self._item(_PULL_TPS, group, topic).add(messages)

    def inc_consume_rt(self, group: str, topic: str, rt_ms: float, calls: int = 1) -> None:
        """Add the duration of one listener call, ms, or of several together."""
        self._item(_CONSUME_RT, group, topic).add(int(rt_ms), calls)

    def inc_consume_ok_tps(self, group: str, topic: str, messages: int) -> None:
        """Add the messages one listener call finished."""
        self._item(_OK_TPS, group, topic).add(messages)

    def inc_consume_failed_tps(self, group: str, topic: str, messages: int) -> None:
        """Add the messages one listener call failed."""
        self._item(_FAILED_TPS, group, topic).add(messages)

    def consume_status(self, group: str, topic: str) -> ConsumeStatus:
        """Return the rates of a group for a topic as the running info has them.

        Messages per second and mean milliseconds of the last minute; a listener that was not
        called in it has the mean of the last hour; failed messages are those of the last hour.
        """
        now_ms = self._clock.monotonic_ms()
        consume_rt = self._minute(_CONSUME_RT, group, topic, now_ms)
        if not consume_rt.sum:
            consume_rt = self._hour(_CONSUME_RT, group, topic, now_ms)
        return ConsumeStatus(
            pull_rt=self._minute(_PULL_RT, group, topic, now_ms).per_call,
            pull_tps=self._minute(_PULL_TPS, group, topic, now_ms).per_second,
            consume_rt=consume_rt.per_call,
            consume_ok_tps=self._minute(_OK_TPS, group, topic, now_ms).per_second,
            consume_failed_tps=self._minute(_FAILED_TPS, group, topic, now_ms).per_second,
            consume_failed_msgs=self._hour(_FAILED_TPS, group, topic, now_ms).sum,
        )

    def sample(self) -> None:
        """Note where all sums stand, every 10 s; those of an hour without calls are dropped."""
        now_ms = self._clock.monotonic_ms()
        for key, item in list(self._items.items()):
            if not item.sample(now_ms):
                self._items.pop(key, None)

    def forget(self, group: str) -> None:
        """Drop the figures of a group that is gone."""
        group = without_namespace(group, self._namespace)
        for key in list(self._items):
            if key[1] == group:
                self._items.pop(key, None)

    def _minute(self, kind: int, group: str, topic: str, now_ms: float) -> Rate:
        item = self._items.get(self._key(kind, group, topic))
        return item.minute(now_ms) if item is not None else _NOTHING

    def _hour(self, kind: int, group: str, topic: str, now_ms: float) -> Rate:
        item = self._items.get(self._key(kind, group, topic))
        return item.hour(now_ms) if item is not None else _NOTHING

    def _item(self, kind: int, group: str, topic: str) -> StatsItem:
        key = self._key(kind, group, topic)
        item = self._items.get(key)
        if item is None:
            # setdefault is one step: two threads that make one both add to the one that stays.
            item = self._items.setdefault(key, StatsItem(self._clock.monotonic_ms()))
        return item

    def _key(self, kind: int, group: str, topic: str) -> tuple[int, str, str]:
        namespace = self._namespace
        if namespace:
            group, topic = without_namespace(group, namespace), without_namespace(topic, namespace)
        return kind, group, topic

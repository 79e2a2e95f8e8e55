"""Pure: plain sends gathered into batches: which go together, when they leave, what a flush awaits.

Items are opaque, times are monotonic milliseconds handed in. Upstream's
ProduceAccumulator, but a message waits only while others are under way, and order is kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from rocketstream import limits
from rocketstream.errors import SendError, SendOutcome
from rocketstream.model import PROPERTY_DELAY, TIMER_PROPERTIES
from rocketstream.protocol.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_MSG_TYPE,
    PROPERTY_PGROUP,
    PROPERTY_TRAN_MSG,
)

T = TypeVar("T")

_ALONE: Final = TIMER_PROPERTIES | {
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_MSG_TYPE,
    PROPERTY_PGROUP,
    PROPERTY_TRAN_MSG,
}


def may_be_gathered(properties: Mapping[str, str], flag: int) -> bool:
    """Return whether a batch can carry a message as it is.

    Delayed, timed and transactional messages, replies and what belongs to a producer group cannot
    be in one; a flag of more than 32 bits would spoil it for the others.
    """
    return _ALONE.isdisjoint(properties) and -0x8000_0000 <= flag <= 0x7FFF_FFFF


def each_alone(error: SendError) -> bool:
    """Return whether the messages of a batch that failed are to be sent one by one.

    So where none of it is stored and trying the same again would not help: what is wrong may be
    one message, or that it is a batch, and the others must not suffer for it.
    """
    return error.outcome is not SendOutcome.UNKNOWN and not error.retriable


@dataclass(slots=True)
class Batch(Generic[T]):
    """Messages that leave together, in the order they came; one that goes alone is one of one.

    Attributes:
        lane: where they go.
        terms: what they have in common besides.
        due_ms: when it leaves at the latest.
        expires_ms: when its first message has waited as long as its sender allows.
        items: the messages.
        body_bytes: their bodies together.
        record_bytes: what they take in the request.
        has_left: whether it is on its way, or was.
    """

    lane: Hashable
    terms: Hashable
    due_ms: float
    expires_ms: float
    items: list[T] = field(default_factory=list)
    body_bytes: int = 0
    record_bytes: int = 0
    has_left: bool = False


class _Lane(Generic[T]):
    """Messages that wait for one place to go to, and how many batches are on their way there."""

    __slots__ = ("closed", "keeps_order", "key", "open", "under_way")

    def __init__(self, key: Hashable, *, keeps_order: bool) -> None:
        self.key = key
        self.keeps_order = keeps_order
        self.open: Batch[T] | None = None
        self.closed: deque[Batch[T]] = deque()
        self.under_way = 0

    def close(self) -> None:
        last, self.open = self.open, None
        if last is not None:
            self.closed.append(last)


class Gathering(Generic[T]):
    """Batches in the making, by lane. The caller makes one call at a time.

    A lane is any queue of a topic, or one certain queue. A message that finds nothing of its lane
    under way may leave at once. Else it is gathered until its batch is full, or the batches under
    way are answered, or the delay is over. Of a lane that keeps order one batch is under way at a
    time: were a batch refused and its messages sent one by one, the next would overtake them.

    Args:
        bytes_max: bodies together that make a batch full; the last may go over it.
        records_bytes_max: what one request may carry.
        delay_ms: how long a message waits at most, where its lane keeps no order.
        messages_max: of one batch.
    """

    def __init__(
        self,
        bytes_max: int,
        records_bytes_max: int,
        delay_ms: float,
        messages_max: int = limits.GATHERED_MESSAGES_MAX,
    ) -> None:
        self._bytes_max = bytes_max
        self._records_bytes_max = records_bytes_max
        self._delay_ms = delay_ms
        self._messages_max = messages_max
        self._lanes: dict[Hashable, _Lane[T]] = {}
        self._ready: dict[Hashable, _Lane[T]] = {}
        self._times: list[tuple[float, int, Batch[T]]] = []
        self._made = 0

    def add(
        self,
        item: T,
        lane_key: Hashable,
        terms: Hashable,
        body_bytes: int,
        record_bytes: int,
        now_ms: float,
        timeout_ms: float,
        *,
        keeps_order: bool = False,
        alone: bool = False,
    ) -> bool:
        """Take a message in; return whether something may leave now (``take``).

        Args:
            item: the message.
            lane_key: where it goes.
            terms: messages with others are not in one batch with it.
            body_bytes, record_bytes: its body, and what it takes in a request.
            now_ms: the time.
            timeout_ms: how long its sender waits for the outcome.
            keeps_order: the lane is one queue.
            alone: it goes by itself, after what the lane holds already.
        """
        lane = self._lanes.get(lane_key)
        if lane is None:
            lane = self._lanes[lane_key] = _Lane(lane_key, keeps_order=keeps_order)
        batch = lane.open
        if batch is not None and (
            alone
            or batch.terms != terms
            or batch.record_bytes + record_bytes > self._records_bytes_max
        ):
            lane.close()
            batch = None
        if batch is None:
            batch = self._begin(lane, terms, now_ms, timeout_ms)
        batch.body_bytes += body_bytes
        batch.record_bytes += record_bytes
        batch.items.append(item)
        if batch.body_bytes >= self._bytes_max or alone or len(batch.items) >= self._messages_max:
            lane.close()
        if not lane.under_way or (lane.closed and not lane.keeps_order):
            self._ready[lane_key] = lane
            return True
        return False

    def _begin(self, lane: _Lane[T], terms: Hashable, now_ms: float, timeout_ms: float) -> Batch[T]:
        expires_ms = now_ms + timeout_ms
        batch: Batch[T] = Batch(lane.key, terms, now_ms + self._delay_ms, expires_ms)
        # Where order is kept only the answer to what is under way lets the next go, or its end.
        at_ms = expires_ms if lane.keeps_order else min(batch.due_ms, expires_ms)
        self._made += 1
        heappush(self._times, (at_ms, self._made, batch))
        # Last: where a signal handler raised in a call before, an empty batch would leave.
        lane.open = batch
        return batch

    def took(self, item: T, lane_key: Hashable) -> bool:
        """Return whether an ``add`` that raised, as a signal handler can have it, took the item.

        Its batch may leave then and takes no more: it may be full, or one that goes alone.
        """
        lane = self._lanes.get(lane_key)
        if lane is None:
            return False
        if lane.open is not None and lane.open.items[-1] is item:
            lane.close()
        if not lane.closed or lane.closed[-1].items[-1] is not item:
            return False
        self._ready[lane_key] = lane
        return True

    def take(self, now_ms: float, *, everything: bool = False) -> list[Batch[T]]:
        """Return what leaves now, to be sent in this order; each is ``done`` once it is answered.

        Args:
            now_ms: the time.
            everything: whatever may leave without spoiling the order, full or not.
        """
        times, ready = self._times, self._ready
        while times and times[0][0] <= now_ms:
            batch = heappop(times)[2]
            if not batch.has_left and batch.lane in self._lanes:
                ready[batch.lane] = self._lanes[batch.lane]
        lanes = self._lanes if everything else ready
        leaving: list[Batch[T]] = []
        for lane in list(lanes.values()):
            last = lane.open
            if last is not None and (
                everything
                or not lane.under_way
                or last.expires_ms <= now_ms
                or (last.due_ms <= now_ms and not lane.keeps_order)
            ):
                lane.close()
            self._let_go(lane, now_ms, leaving)
        ready.clear()
        return leaving

    @staticmethod
    def _let_go(lane: _Lane[T], now_ms: float, leaving: list[Batch[T]]) -> None:
        closed = lane.closed
        if lane.keeps_order and closed:
            going = [] if lane.under_way else [closed.popleft()]
            # Whose time is up fails at once and stores nothing, so it need not wait for its turn.
            going += [batch for batch in closed if batch.expires_ms <= now_ms]
            lane.closed = deque(batch for batch in closed if batch.expires_ms > now_ms)
        else:
            going = list(closed)
            closed.clear()
        for batch in going:
            batch.has_left = True
        lane.under_way += len(going)
        leaving += going

    def done(self, batch: Batch[T]) -> bool:
        """Note that a batch is answered, or has failed; return whether something may leave now."""
        lane = self._lanes[batch.lane]
        lane.under_way -= 1
        if lane.under_way:
            return False
        if lane.open is not None or lane.closed:
            self._ready[lane.key] = lane
            return True
        del self._lanes[lane.key]
        self._ready.pop(lane.key, None)
        return False

    def next_ms(self) -> float:
        """Return when to ``take`` again though nothing happened; infinity for never."""
        times = self._times
        while times and times[0][2].has_left:
            heappop(times)
        return times[0][0] if times else math.inf

    def give_up(self) -> list[T]:
        """Return the messages that were not sent, and hold none any more."""
        left: list[T] = []
        for lane in self._lanes.values():
            lane.close()
            for batch in lane.closed:
                batch.has_left = True
                left += batch.items
            lane.closed.clear()
        self._ready.clear()
        return left


class Begun:
    """Counts by flush, so that what begins after one does not hold it up.

    Whoever begins something keeps the value of ``now``, and calls ``ended`` with it at the end if
    ``waits`` is True then. While nobody flushes nothing else is to be done.

    Attributes:
        now: the number that what begins now keeps.
        waits: whether something that began before a flush is still under way.
    """

    __slots__ = ("_earlier", "now", "waits")

    def __init__(self) -> None:
        self.now: int = 0
        self.waits: bool = False
        self._earlier: dict[int, int] = {}

    def flush(self, under_way: int) -> int:
        """Begin a flush; what keeps a number below the one returned began before it.

        Args:
            under_way: how many have begun and not ended.
        """
        since_last = under_way - sum(self._earlier.values())
        if since_last:
            self._earlier[self.now] = since_last
            self.now += 1
            self.waits = True
        return self.now

    def ended(self, begun: int) -> bool:
        """Count the end of something while ``waits``; return whether a flush may be over."""
        left = self._earlier.get(begun, 0) - 1
        if left < 0:  # it began after every flush
            return False
        if left:
            self._earlier[begun] = left
            return False
        del self._earlier[begun]
        self.waits = bool(self._earlier)
        return True

    def left(self, flush: int) -> int:
        """Return how many that began before a flush have not ended."""
        return sum(count for begun, count in self._earlier.items() if begun < flush)

"""Pulls held at the ends of queues, which report new messages without polling.

A broker answers a held pull when a message arrives, as it does for consumers. Each answer is a hint
to ask for the ends. A pull that cannot be held, and any failure, counts as a hint too, but no more
often than a queue may be asked.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import BrokerError, RocketMQError, RouteNotFoundError, TransportError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import ResponseCode
from rocketstream.spark.connections import new_connection
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.pulls import pull_one
from rocketstream.spark.options import ReadOptions
from rocketstream.transport.blocking_connection import BlockingConnection, wait_for_answers

logger: logging.Logger = logging.getLogger("rocketstream.spark")

HOLD_MS: Final = 15_000
"""How long a broker holds a pull: shorter than it lets a connection be idle."""
REST_MS: Final = 1_000
"""How long a queue is left alone whose pull is not held, or whose broker is away: together with the
question for its end that may follow, two requests a second.
"""
RETRY_MS: Final = 50
"""How often, while no pull is held, the driver checks whether a broker may be asked again."""

_NO_NEWS: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


class _Held(NamedTuple):
    """A pull under way: its queue, and since when, by the monotonic clock."""

    queue: MessageQueue
    offset: int
    since_ms: float


@dataclass(slots=True)
class _Line:
    """A connection to a broker, and the pulls held on it by request id."""

    connection: BlockingConnection
    since_ms: float
    held: dict[int, _Held] = field(default_factory=dict)


class HeldPulls:
    """Waits for messages at the ends of queues; used by one thread; close it.

    Args:
        options: the options of the read.
        cluster: knows the addresses of brokers.
        clock: measures pauses.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._cluster = cluster
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._held: set[MessageQueue] = set()
        self._told: dict[MessageQueue, int] = {}
        self._told_at = float("-inf")
        self._hung_up_young: set[str] = set()
        self._cut_off: set[str] = set()
        self._rests_until: dict[MessageQueue, float] = {}
        self._never = threading.Event()

    def close(self) -> None:
        """Close every connection."""
        for broker_name in list(self._lines):
            self._hang_up(broker_name)

    def news(self, ends: Mapping[MessageQueue, int], timeout_ms: float) -> bool:
        """Return whether a queue may have grown beyond its end; waits up to ``timeout_ms`` for it.

        Args:
            ends: the ends as last seen.
            timeout_ms: how long to wait; without an answer for that long there is no news.
        """
        heard = self._listen(ends, timeout_ms)
        now = self._clock.monotonic_ms()
        if not heard and not self._held.issuperset(ends):
            # Without a held pull nobody would report messages there.
            heard = bool(self._cut_off) or now - self._told_at >= REST_MS
        if heard:
            self._told_at = now
        return heard

    def _listen(self, ends: Mapping[MessageQueue, int], timeout_ms: float) -> bool:
        deadline = self._clock.monotonic_ms() + timeout_ms
        while not self._hold(ends):
            left = deadline - self._clock.monotonic_ms()
            if not self._lines:
                self.rest(min(max(0.0, left), RETRY_MS))
            lines = {line.connection: name for name, line in self._lines.items()}
            ready = wait_for_answers(list(lines), max(0.0, left))
            if any(self._hear(lines[connection], ends) for connection in ready):
                return True
            if left <= 0:
                return False
        return True

    def rest(self, timeout_ms: float) -> None:
        """Wait without listening."""
        self._never.wait(timeout_ms / 1000)

    def _hold(self, ends: Mapping[MessageQueue, int]) -> bool:
        """Hold a pull at each end; return True where that is not possible."""
        now = self._clock.monotonic_ms()
        missing: dict[str, list[MessageQueue]] = {}
        for queue, end in ends.items():
            if queue in self._held:
                continue
            if self._told.pop(queue, None) == end:
                # The message of the last answer is not in the known end yet; it must not count
                # twice.
                self._rests_until[queue] = now + REST_MS
            if self._rests_until.get(queue, 0.0) <= now:
                missing.setdefault(queue.broker_name, []).append(queue)
        trouble = False
        for broker_name, queues in missing.items():
            try:
                line = self._line(broker_name, queues)
                for queue in queues:
                    pull = pull_one(self._options, queue, ends[queue], HOLD_MS)
                    line.held[line.connection.submit(pull)] = _Held(queue, ends[queue], now)
                    self._held.add(queue)
                self._cut_off.discard(broker_name)
            except (TransportError, BrokerError, RouteNotFoundError) as error:
                self._cut_off.add(broker_name)
                logger.info("cannot hold pulls at broker=%s: %s", broker_name, error)
                self._hang_up(broker_name)
                self._rests_until.update(dict.fromkeys(queues, now + REST_MS))
                trouble = True
        return trouble

    def _line(self, broker_name: str, queues: list[MessageQueue]) -> _Line:
        """Return the connection to a broker's present address."""
        address = self._cluster.addresses(queues)[broker_name]
        line = self._lines.get(broker_name)
        if line is not None and line.connection.address != address:
            self._hang_up(broker_name)
            line = None
        if line is None:
            line = self._lines[broker_name] = _Line(
                new_connection(self._options, address), self._clock.monotonic_ms()
            )
        return line

    def _hear(self, broker_name: str, ends: Mapping[MessageQueue, int]) -> bool:
        """Take one answer; return True if it is news."""
        line = self._lines[broker_name]
        try:
            answer = line.connection.receive(self._options.request_timeout_ms)
        except RocketMQError as error:
            logger.info("lost the pulls held at broker=%s: %s", broker_name, error)
            self._hang_up(broker_name)
            return True
        queue, offset, since_ms = line.held.pop(answer.opaque)
        self._held.discard(queue)
        now = self._clock.monotonic_ms()
        if answer.code == ResponseCode.SUCCESS:
            # An answer to a pull from before the queue was read further is no news.
            news = offset >= ends.get(queue, offset + 1)
            if news:
                self._told[queue] = offset
            return news
        if now - since_ms < REST_MS:
            self._rests_until[queue] = now + REST_MS
        return answer.code not in _NO_NEWS

    def _hang_up(self, broker_name: str) -> None:
        line = self._lines.pop(broker_name, None)
        if line is None:
            return
        self._cut_off.add(broker_name)
        # A broker that restarts is listened to at once; one that keeps hanging up is not.
        now = self._clock.monotonic_ms()
        young = now - line.since_ms < REST_MS
        rests_until = now + REST_MS if young and broker_name in self._hung_up_young else now
        (self._hung_up_young.add if young else self._hung_up_young.discard)(broker_name)
        for held in line.held.values():
            self._held.discard(held.queue)
            self._rests_until[held.queue] = rests_until
        with contextlib.suppress(RocketMQError):
            line.connection.close()

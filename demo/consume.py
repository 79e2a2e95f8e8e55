"""The consumer group of two members: a listener that keeps live totals, and refuses some flights.

Law: messages in, totals out; at-least-once delivery is made exact by the flights' ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from demo.produce import TOPIC
from demo.totals import Totals
from demo.trouble import RefusedError, refuses
from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, MessageExt, PushConsumer

GROUP = "flight-totals"
MEMBERS = 2
MAX_RECONSUME_TIMES = 2
DEAD_LETTER_GROUP = "flight-dead-letters"


@dataclass(frozen=True, slots=True)
class Counts:
    """What the group has done so far."""

    consumed: int
    refused: int
    retried: int
    repeated: int


class FlightListener:
    """Counts each flight once, whichever member gets it; raises for the chosen ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._refused = 0
        self._retried = 0
        self._repeated = 0
        self.totals = Totals()

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Take messages; raising sends them to be consumed again later."""
        for message in messages:
            flight = orjson.loads(message.body)
            self._check(flight["id"], message.reconsume_times)
            with self._lock:
                self._count(flight, message.reconsume_times)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def _check(self, flight_id: int, reconsume_times: int) -> None:
        if refuses(flight_id, reconsume_times):
            with self._lock:
                self._refused += 1
            raise RefusedError(f"flight {flight_id} refused, delivery {reconsume_times + 1}")

    def _count(self, flight: dict[str, int | str | None], reconsume_times: int) -> None:
        flight_id = int(flight["id"] or 0)
        if flight_id in self._seen:
            self._repeated += 1
            return
        self._seen.add(flight_id)
        self._retried += reconsume_times > 0
        dep, arr = flight["dep_delay"], flight["arr_delay"]
        self.totals.add(
            str(flight["carrier"]),
            None if dep is None else int(dep),
            None if arr is None else int(arr),
        )

    def counts(self) -> Counts:
        """Return the figures now."""
        with self._lock:
            return Counts(len(self._seen), self._refused, self._retried, self._repeated)

    def by_carrier(self) -> list[tuple[str, int, int, int]]:
        """Return carrier, flights, minutes of departure delay and flights with one known."""
        with self._lock:
            rows = [
                (carrier, entry.flights, entry.dep_delay, entry.dep_known)
                for carrier, entry in self.totals.carriers.items()
            ]
        return sorted(rows, key=lambda row: -row[1])


def member(namesrv: str, listener: FlightListener) -> PushConsumer:
    """Return one member of the group, not started; it is a context manager."""
    consumer = PushConsumer(
        GROUP,
        namesrv_addr=namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=MAX_RECONSUME_TIMES,
        consume_thread_min=1,
        consume_thread_max=1,
    )
    consumer.subscribe(TOPIC)
    consumer.register_message_listener(listener)
    return consumer


def read_dead_letters(
    namesrv: str, topic: str, count: int, wait: Callable[[Callable[[], bool]], None]
) -> Totals:
    """Return the totals of the ``count`` messages of a dead-letter topic.

    Args:
        namesrv: name server address.
        topic: ``%DLQ%`` and the group's name.
        count: how many there are.
        wait: returns when what it is given returns true.
    """
    totals = Totals()
    seen: set[int] = set()
    lock = threading.Lock()

    def listen(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        for message in messages:
            flight = orjson.loads(message.body)
            with lock:
                if flight["id"] not in seen:
                    totals.add(flight["carrier"], flight["dep_delay"], flight["arr_delay"])
                    seen.add(flight["id"])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def complete() -> bool:
        with lock:
            return len(seen) >= count

    consumer = PushConsumer(
        DEAD_LETTER_GROUP,
        namesrv_addr=namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_thread_min=1,
        consume_thread_max=1,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(listen)
    with consumer:
        consumer.start()
        wait(complete)
    return totals

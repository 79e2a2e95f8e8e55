"""Sends every flight: batches per queue, each aircraft always in the same queue.

Law: CSV rows in, acknowledged messages and the CSV's totals out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from demo.errors import DemoError, Interrupts
from demo.flights import Flight, queue_of, read_flights
from demo.totals import Totals
from rocketstream import Message, MessageQueue, Producer
from rocketstream.errors import RocketMQError

TOPIC = "flights"
QUEUES = 8
BATCH = 250
"""Messages of one batch: about 100 KB."""


def message_of(flight: Flight) -> Message:
    """Return the message of a flight: JSON body, origin as tag, flight and date as key."""
    return Message(TOPIC, flight.body(), tags=flight.origin, keys=flight.key)


class FlightSender:
    """Collects messages per queue and sends each full batch; one thread, so order is kept."""

    def __init__(self, producer: Producer, queues: list[MessageQueue]) -> None:
        self._producer = producer
        self._queues = queues
        self._pending: list[list[Message]] = [[] for _ in queues]
        self.sent = 0

    def add(self, flight: Flight) -> None:
        """Queue a flight; sends when its queue's batch is full."""
        index = queue_of(flight.aircraft, len(self._queues))
        pending = self._pending[index]
        pending.append(message_of(flight))
        if len(pending) >= BATCH:
            self._send(index)

    def flush(self) -> None:
        """Send what is left."""
        for index, pending in enumerate(self._pending):
            if pending:
                self._send(index)

    def _send(self, index: int) -> None:
        batch = self._pending[index]
        self._producer.send(batch, message_queue=self._queues[index])
        self.sent += len(batch)
        self._pending[index] = []


def produce(
    producer: Producer, count: int, interrupts: Interrupts, on_sent: Callable[[int], None]
) -> Totals:
    """Send the first ``count`` flights and return the CSV's totals of them.

    Args:
        producer: a started producer.
        count: how many flights.
        interrupts: looked at after every batch.
        on_sent: called with the number sent so far.

    Raises:
        DemoError: the broker did not take a batch.
    """
    queues = sorted(producer.fetch_publish_message_queues(TOPIC))
    sender = FlightSender(producer, queues)
    totals = Totals()
    shown = 0
    try:
        for flight in islice(read_flights(), count):
            values = flight.values
            totals.add(flight.carrier, _minutes(values["dep_delay"]), _minutes(values["arr_delay"]))
            sender.add(flight)
            if sender.sent != shown:
                shown = sender.sent
                on_sent(shown)
                interrupts.check()
        sender.flush()
    except RocketMQError as error:
        raise DemoError(f"sending stopped after {sender.sent:,} flights: {error}") from error
    on_sent(sender.sent)
    return totals


def _minutes(value: int | str | None) -> int | None:
    return None if value is None else int(value)

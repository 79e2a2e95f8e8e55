"""Pure: a simulated history as the other checker has it, in the form that Jepsen's Kafka workload
reads.

A send belongs to the producer that its key names, a delivery to one life of its member. Left out
are sends to topics no group has to consume whole, and, as there, what is tried again. Every group
counts as one that subscribes: it may skip and go back from poll to poll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from rocketstream.model import MessageQueue
from rocketstream.testing.history import events
from rocketstream.testing.history.events import Event
from tests.outside.edn import Numbers
from tests.outside.history import (
    COMMIT,
    DONE,
    LATER,
    ROLLBACK,
    Content,
    Decision,
    Delivery,
    Fault,
    Group,
    History,
    Place,
    Send,
)

_NS = 1_000_000
"""Nanoseconds of a millisecond."""


def history_of(happened: Iterable[Event]) -> History:
    """Return the sends, deliveries, decisions, groups and deaths of a simulated run."""
    return _Reading().all(sorted(happened, key=lambda event: event.at))


class _Reading:
    def __init__(self) -> None:
        self._queues, self._calls = Numbers(), Numbers()
        self._lives: Counter[str] = Counter()
        self._sends: dict[str, Send] = {}
        self._given: dict[events.MessageDelivered, Delivery] = {}
        self._made = History(flush="sync")

    def all(self, happened: list[Event]) -> History:
        declared = [each for each in happened if isinstance(each, events.GroupDeclared)]
        whole = [each for each in declared if each.selects_all and each.from_first]
        topics = {topic for each in whole for topic in each.topics}
        self._made.groups = [self._group(each) for each in declared]
        for event in happened:
            if isinstance(event, events.SendInvoked) and event.topic in topics:
                self._invoked(event)
            elif isinstance(event, events.SendAcknowledged):
                self._ended(event, "SEND_OK", event.queue, event.offset)
            elif isinstance(event, events.SendFailed):
                self._ended(event, event.outcome.name)
            elif isinstance(event, events.TransactionDecided):
                state = COMMIT if event.commit else ROLLBACK
                decision = Decision(event.key, state, _ns(event.at))
                self._made.decisions.append(decision)
            else:
                self._consumed(event)
        self._made.sends = list(self._sends.values())
        self._made.deliveries = list(self._given.values())
        return self._made

    def _group(self, event: events.GroupDeclared) -> Group:
        shades = () if event.where is None else (event.where[1],)
        kind = "orderly" if event.orderly else "concurrent"
        return Group(event.group, kind, min(event.topics), tuple(event.tags), shades)

    def _place(self, queue: MessageQueue, offset: int) -> Place:
        return Place(queue.topic, self._queues.of(queue[1:]), offset)

    def _invoked(self, event: events.SendInvoked) -> None:
        how = "transaction" if event.transactional else "delayed" if event.due_ms else "sync"
        self._sends[event.key] = Send(
            event.key,
            event.key.rpartition("-")[0],
            Content(event.topic, event.tags, event.key, (), ""),
            _ns(event.at),
            how,
            retries=event.tries - 1,
            delay_s=event.due_ms / 1000,
        )

    def _ended(
        self,
        event: events.SendAcknowledged | events.SendFailed,
        outcome: str,
        queue: MessageQueue | None = None,
        offset: int = -1,
    ) -> None:
        if event.key in self._sends:
            place = None if queue is None else self._place(queue, offset)
            self._sends[event.key] = replace(
                self._sends[event.key], ended=_ns(event.at), outcome=outcome, place=place
            )

    def _consumed(self, event: Event) -> None:
        if isinstance(event, events.MessageDelivered):
            if event.key in self._sends:
                self._given[event] = Delivery(
                    event.key,
                    event.group,
                    f"{event.member}#{self._lives[event.member]} of {event.group}",
                    self._place(event.queue, event.offset),
                    self._sends[event.key].content,
                    _ns(event.at),
                    self._calls.of((event.member, event.call, event.at)),
                    tries=event.reconsume_times,
                )
        elif isinstance(event, events.ListenerReturned):
            if event.delivery in self._given:
                self._given[event.delivery] = replace(
                    self._given[event.delivery],
                    ended=_ns(event.at),
                    verdict=DONE if event.success else LATER,
                )
        elif isinstance(event, events.ProcessDied):
            self._lives[event.process] += 1
        elif isinstance(event, events.BrokerDied):
            self._made.faults.append(Fault("kill", "broker", _ns(event.at)))


def _ns(at_ms: float) -> int:
    return round(at_ms * _NS)

"""Pure: the form of a rule: its name, the sentence it stands for, and what breaks it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.outside.history import Delivery, History, Place

Finds = Callable[[History], Iterator[str]]


@dataclass(frozen=True)
class Promise:
    """A rule: ``finds`` yields one text for each thing in a history that breaks it."""

    name: str
    sentence: str
    page: str
    finds: Finds


@dataclass(frozen=True)
class Anomaly:
    """Something in a history that a rule forbids."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


RULES: dict[str, Promise] = {}


def promise(name: str, sentence: str, page: str = "guarantees") -> Callable[[Finds], Finds]:
    """Make a function a rule."""

    def add(finds: Finds) -> Finds:
        assert name not in RULES
        RULES[name] = Promise(name, sentence, page, finds)
        return finds

    return add


Queue = tuple[str, int]


def standing(history: History) -> Mapping[Queue, dict[int, str]]:
    """Tell which message stands where, as far as a producer or a consumer was told."""
    found: dict[Queue, dict[int, str]] = defaultdict(dict)
    for ident, place in places(history):
        found[place.topic, place.queue].setdefault(place.offset, ident)
    return found


def places(history: History) -> Iterator[tuple[str, Place]]:
    """Each message with each place somebody was told it has."""
    for send in history.sends:
        if send.place is not None and send.is_stored:
            yield send.ident, send.place
    for delivery in history.deliveries:
        yield delivery.ident, delivery.place


def calls(history: History, group: str) -> Mapping[Queue, list[list[Delivery]]]:
    """The calls of a group's listeners by queue, each with its messages, in the order of time."""
    found: dict[tuple[str, int, Queue], list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        if delivery.group == group:
            queue = delivery.place.topic, delivery.place.queue
            found[delivery.by, delivery.call, queue].append(delivery)
    by_queue: dict[Queue, list[list[Delivery]]] = defaultdict(list)
    for (_, _, queue), call in sorted(found.items(), key=lambda each: each[1][0].began):
        by_queue[queue].append(call)
    return by_queue


def finished(history: History, group: str, verdicts: tuple[str, ...]) -> Mapping[Place, int]:
    """When the message at each place was first finished by a group."""
    found: dict[Place, int] = {}
    for delivery in history.deliveries:
        if delivery.group == group and delivery.verdict in verdicts and delivery.ended is not None:
            at = found.get(delivery.place)
            found[delivery.place] = delivery.ended if at is None else min(at, delivery.ended)
    return found


def since_start(history: History, at: int) -> str:
    """A time as a reader compares it with the logs of a round: seconds from its first event."""
    first = min(
        [send.began for send in history.sends] + [life.started for life in history.members],
        default=at,
    )
    return f"{(at - first) / 1e9:.3f} s"

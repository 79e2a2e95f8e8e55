"""Simulated histories are valid to Jepsen's rules too, and what is planted in them is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from rocketstream.testing.history import events
from rocketstream.testing.history.events import (
    Event,
    MessageDelivered,
    SendAcknowledged,
    TransactionDecided,
)
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.runs import run_world, simulated
from tests.outside import edn
from tests.outside.kafka_rules import judge
from tests.scenarios.draws import draw_options
from tests.scenarios.workloads import SCENARIOS
from tests.simulation.jepsen import history_of

RUNS = (
    ("clustering", 0),
    ("orderly", 1),
    ("pulling", 1),
    ("sending", 1),
    ("transactions", 5),
    ("delayed", 2),
)
"""Scenarios and seeds, without a loss of power."""


@cache
def happened(scenario: str, seed: int) -> Sequence[Event]:
    with simulated(seed, draw_options(seed, scenario)) as world:
        Cluster(world)
        result = run_world(world, SCENARIOS[scenario](world))
        assert result.ok, result.report()
        assert not world.may_lose
        return tuple(world.history)


def violated(history: Sequence[Event]) -> set[str]:
    made = history_of(history)
    return set(judge(edn.operations(made), edn.may_repeat(made)).cases)


@pytest.mark.parametrize(("scenario", "seed"), RUNS)
def test_a_simulated_history_is_valid_to_jepsens_rules(scenario: str, seed: int) -> None:
    history = happened(scenario, seed)
    made = history_of(history)
    operations = edn.operations(made)
    assert judge(operations, edn.may_repeat(made)).texts == []
    assert sum(len(each.sends) for each in operations if each.type == "ok") >= 10
    assert sum(len(each.polls) for each in operations if each.type == "ok") >= 10


def test_the_history_is_written_as_jepsen_reads_it() -> None:
    lines = edn.text(history_of(happened("pulling", 1))).splitlines()
    assert len(lines) > 100
    assert lines[0].startswith("{:index 0, :time 0, :type :invoke, :process 0, :f :")
    assert any(":type :ok" in line and ":value [[:send 0 [" in line for line in lines)


Given = MessageDelivered


def changed(history: Sequence[Event], change: Callable[[Given], Given | None]) -> list[Event]:
    """Return a history with other deliveries in the places of some, or none."""
    made: list[Event] = []
    others: dict[Given, Given | None] = {}
    for event in history:
        if isinstance(event, MessageDelivered):
            other = others[event] = change(event)
            made += [] if other is None else [other]
        elif isinstance(event, events.ListenerReturned):
            now = others[event.delivery]
            made += [] if now is None else [dataclasses.replace(event, delivery=now)]
        else:
            made.append(event)
    return made


def plain(history: Sequence[Event]) -> list[Given]:
    """First copies of messages whose place was told, in the order of a queue, once each."""
    told = {e.key for e in history if isinstance(e, SendAcknowledged) and e.queue is not None}
    given = [e for e in history if isinstance(e, MessageDelivered) and e.key in told]
    of_topic = [e for e in given if not e.queue.topic.startswith("%")]
    queue = of_topic[0].queue
    places = {e.offset: e for e in of_topic if e.queue == queue}
    return [places[offset] for offset in sorted(places)]


def lose_the_first(history: Sequence[Event]) -> Sequence[Event]:
    lost = plain(history)[0].key
    return changed(history, lambda each: None if each.key == lost else each)


def lose_the_last(history: Sequence[Event]) -> Sequence[Event]:
    lost = plain(history)[-1].key
    return changed(history, lambda each: None if each.key == lost else each)


def give_another(history: Sequence[Event]) -> Sequence[Event]:
    """One delivery has the message of another place."""
    one, other = plain(history)[:2]
    return changed(
        history, lambda each: dataclasses.replace(each, key=other.key) if each is one else each
    )


def give_again_elsewhere(history: Sequence[Event]) -> Sequence[Event]:
    """A message that was tried once stands at a second offset."""
    one = plain(history)[0]
    again = dataclasses.replace(one, at=history[-1].at, offset=10_000, call=10_000)
    return [
        *(
            dataclasses.replace(e, tries=1) if isinstance(e, events.SendInvoked) else e
            for e in history
        ),
        again,
    ]


def give_what_was_rolled_back(history: Sequence[Event]) -> Sequence[Event]:
    (key, *_) = (e.key for e in history if isinstance(e, TransactionDecided) and not e.commit)
    one = next(e for e in history if isinstance(e, MessageDelivered))
    end = history[-1].at
    given = dataclasses.replace(one, at=end, key=key, offset=10_000, call=10_000)
    return [*history, given, events.ListenerReturned(end + 1, given, success=True)]


def give_backwards(history: Sequence[Event]) -> Sequence[Event]:
    return _at_the_end(history, plain(history)[1::-1])


def give_with_a_gap(history: Sequence[Event]) -> Sequence[Event]:
    return _at_the_end(history, plain(history)[:3:2])


def _at_the_end(history: Sequence[Event], given: Sequence[Given]) -> Sequence[Event]:
    """Add one call of a listener more."""
    end, group, member = history[-1].at, given[0].group, given[0].member
    more = [
        dataclasses.replace(each, at=end, group=group, member=member, call=10_000) for each in given
    ]
    return [*history, *more, *(events.ListenerReturned(end + 1, each, True) for each in more)]


def store_out_of_order(history: Sequence[Event]) -> Sequence[Event]:
    """A producer's first message to a queue stands behind its last."""
    acks = [e for e in history if isinstance(e, SendAcknowledged) and e.queue is not None]
    first = acks[0]
    own = first.key.rpartition("-")[0]
    last = [e for e in acks if e.queue == first.queue and e.key.rpartition("-")[0] == own][-1]
    keys = {first.key: last.key, last.key: first.key}

    def swapped(event: Event) -> Event:
        if event is first or event is last:
            other = last if event is first else first
            return dataclasses.replace(event, offset=other.offset)
        return event

    return changed(
        [swapped(event) for event in history],
        lambda each: dataclasses.replace(each, key=keys.get(each.key, each.key)),
    )


PLANTS: list[tuple[str, Callable[[Sequence[Event]], Sequence[Event]], tuple[str, int]]] = [
    ("lost-write", lose_the_first, ("clustering", 0)),
    ("unseen", lose_the_last, ("clustering", 0)),
    ("inconsistent-offsets", give_another, ("clustering", 0)),
    ("duplicate", give_again_elsewhere, ("pulling", 1)),
    ("G1a", give_what_was_rolled_back, ("transactions", 5)),
    ("int-nonmonotonic-poll", give_backwards, ("pulling", 1)),
    ("int-poll-skip", give_with_a_gap, ("pulling", 1)),
    ("nonmonotonic-send", store_out_of_order, ("orderly", 1)),
]


@pytest.mark.parametrize(("name", "plant", "run"), PLANTS, ids=[name for name, *_ in PLANTS])
def test_an_anomaly_planted_in_a_simulated_history_is_found(
    name: str, plant: Callable[[Sequence[Event]], Sequence[Event]], run: tuple[str, int]
) -> None:
    history = happened(*run)
    assert violated(history) == set()
    assert name in violated(plant(history))

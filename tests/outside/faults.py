"""Pure: what is done to a round, and when: drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

BROKER, NETWORK = "broker", "network"
SWALLOW = "swallow"


@dataclass(frozen=True, order=True)
class Planned:
    """A fault of a plan, in seconds from its beginning."""

    at_s: float
    what: str
    target: str
    for_s: float
    how_much: float = 0.0


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how often it is drawn, and for how long it may last."""

    what: str
    target: str
    weight: float
    shortest_s: float
    longest_s: float


KINDS = (
    Kind("kill", BROKER, 3, 0.1, 4),
    Kind("stop", BROKER, 1, 0.1, 3),
    Kind("freeze", BROKER, 2, 0.5, 6),
    Kind("kill", "producer", 2, 0.1, 2),
    Kind("kill", "consumer", 4, 0.1, 5),
    Kind("stop", "consumer", 3, 0.1, 5),
    Kind("freeze", "consumer", 3, 0.5, 12),
    Kind("freeze", "producer", 1, 0.5, 5),
    Kind("cut", NETWORK, 2, 0, 0),
    Kind("refuse", NETWORK, 2, 0.2, 4),
    Kind("hold", NETWORK, 2, 0.2, 6),
    Kind(SWALLOW, NETWORK, 1, 0, 0),
    Kind("slow", NETWORK, 2, 1, 5),
)
DISK = (
    Kind("slow-disk", BROKER, 2, 1, 5),
    Kind("clock", BROKER, 2, 0, 0),
)


def plan(
    seed: int,
    seconds: float,
    producers: Sequence[str],
    consumers: Sequence[str],
    kinds: Sequence[Kind] = KINDS,
) -> list[Planned]:
    """Draw the faults of a round: one every two seconds or so, some at the same time."""
    chance = random.Random(seed)
    planned = []
    at = 1.0
    while at < seconds:
        kind = chance.choices(kinds, [each.weight for each in kinds])[0]
        target = {"producer": producers, "consumer": consumers}.get(kind.target, [kind.target])
        length = chance.uniform(kind.shortest_s, kind.longest_s)
        planned.append(
            Planned(
                round(at, 3), kind.what, chance.choice(target), round(length, 3), chance.random()
            )
        )
        at += chance.expovariate(1 / 2.0)
    return planned

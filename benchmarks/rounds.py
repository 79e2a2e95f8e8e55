"""When a benchmark is done: rounds in one process, until those of every side have become steady.

Law: pure; knows neither processes nor what is measured. A side is a function that does one round
and returns its figure.

A side is *steady* when its last six rounds say the same: the medians of the elder and the younger
three differ by at most 8 %, and they show no trend (of the fifteen pairs of them at most twelve go
the same way; a drift below 2 % is none). The first round never counts: it is the cold one, told by
itself. What is reported is median and range of the last six. It ends when all sides are steady
at once, or after sixteen rounds, and then says of a side, if it is so, that it is not steady.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """How steadiness is decided: over the last ``2 * half`` rounds, the first excepted."""

    half: int = 3
    drift_max: float = 0.08
    """Share by which the medians of elder and younger half may differ."""
    drift_free: float = 0.02
    """A drift up to this is no trend, however regular."""
    one_way_max: float = 0.8
    """Share of all pairs of rounds that may go the same way."""
    most: int = 16
    """Rounds after which it ends in any case."""

    @property
    def window(self) -> int:
        """Rounds that are looked at, and reported."""
        return 2 * self.half


USUAL = Rule()
SHORT = Rule(half=2, drift_max=0.15, one_way_max=0.99, most=8)
"""For curves of many points, where the shape counts and not a point."""


@dataclass(frozen=True)
class Rounds:
    """What one side did, round by round, in the unit of its benchmark."""

    all: tuple[float, ...]
    rule: Rule = USUAL

    @property
    def cold(self) -> float:
        """The first round, in a process that has just started."""
        return self.all[0]

    @property
    def kept(self) -> tuple[float, ...]:
        """The rounds that are reported: the last of them, and never the first if there are more."""
        return self.all[1:][-self.rule.window :] or self.all

    @property
    def steady(self) -> bool:
        """Whether the rounds that are reported said the same."""
        return is_steady(self.all, self.rule)

    @property
    def median(self) -> float:
        """Median of the rounds that are reported."""
        return statistics.median(self.kept)

    def times(self, factor: float) -> Rounds:
        """The same in another unit."""
        return Rounds(tuple(value * factor for value in self.all), self.rule)


def is_steady(rounds: Sequence[float], rule: Rule = USUAL) -> bool:
    """Whether the last of these rounds, the first never counting, neither drift nor tend."""
    last = rounds[1:][-rule.window :]
    if len(last) < rule.window:
        return False
    elder, younger = statistics.median(last[: rule.half]), statistics.median(last[rule.half :])
    if not elder or not younger:
        return elder == younger
    drift = abs(younger - elder) / min(elder, younger)
    if drift <= rule.drift_free:
        return True
    return drift <= rule.drift_max and one_way(last) <= rule.one_way_max


def one_way(values: Sequence[float]) -> float:
    """Share of all pairs, earlier and later, that go the more frequent way: 1.0 rises always."""
    pairs = list(itertools.combinations(values, 2))
    rising = sum(later > earlier for earlier, later in pairs)
    falling = sum(later < earlier for earlier, later in pairs)
    return max(rising, falling) / len(pairs)


def in_turn(sides: Mapping[str, Callable[[], float]], rule: Rule = USUAL) -> dict[str, Rounds]:
    """Let the sides do rounds in turn until each is steady, so that a drift hits all alike.

    Every second time they go in the other order, so that none always follows the same one.
    """
    done: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rule.most):
        names = list(sides) if number % 2 == 0 else list(reversed(list(sides)))
        for name in names:
            done[name].append(float(sides[name]()))
        if all(is_steady(values, rule) for values in done.values()):
            break
    return {name: Rounds(tuple(values), rule) for name, values in done.items()}


def steady(run_round: Callable[[], float], rule: Rule = USUAL) -> Rounds:
    """Do rounds of one side until it is steady."""
    return in_turn({"ours": run_round}, rule)["ours"]

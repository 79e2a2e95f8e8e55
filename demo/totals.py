"""What is compared in the end: flights and summed delays per carrier, exact whole numbers.

Law: pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class CarrierTotals:
    """One carrier's figures; a delay that is not known adds nothing and is counted apart."""

    flights: int = 0
    dep_delay: int = 0
    dep_known: int = 0
    arr_delay: int = 0
    arr_known: int = 0

    def plus(self, other: CarrierTotals) -> CarrierTotals:
        """Return the sum of both."""
        return CarrierTotals(
            self.flights + other.flights,
            self.dep_delay + other.dep_delay,
            self.dep_known + other.dep_known,
            self.arr_delay + other.arr_delay,
            self.arr_known + other.arr_known,
        )


@dataclass(slots=True)
class Totals:
    """Figures per carrier."""

    carriers: dict[str, CarrierTotals] = field(default_factory=dict)

    def add(self, carrier: str, dep_delay: int | None, arr_delay: int | None) -> None:
        """Count one flight."""
        entry = self.carriers.get(carrier)
        if entry is None:
            entry = self.carriers[carrier] = CarrierTotals()
        entry.flights += 1
        if dep_delay is not None:
            entry.dep_delay += dep_delay
            entry.dep_known += 1
        if arr_delay is not None:
            entry.arr_delay += arr_delay
            entry.arr_known += 1

    def plus(self, other: Totals) -> Totals:
        """Return the sum of both."""
        names = self.carriers.keys() | other.carriers.keys()
        none = CarrierTotals()
        return Totals(
            {
                name: self.carriers.get(name, none).plus(other.carriers.get(name, none))
                for name in names
            }
        )

    @property
    def flights(self) -> int:
        """Flights of all carriers."""
        return sum(entry.flights for entry in self.carriers.values())

    @property
    def dep_delay(self) -> int:
        """Minutes of departure delay, all carriers."""
        return sum(entry.dep_delay for entry in self.carriers.values())

    @property
    def arr_delay(self) -> int:
        """Minutes of arrival delay, all carriers."""
        return sum(entry.arr_delay for entry in self.carriers.values())


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the flights in one group; each flight is in one of the three.

    Attributes:
        first: consumed at the first delivery.
        retried: consumed at a later one.
        dead: given up.
    """

    first: int
    retried: int
    dead: int

    @property
    def flights(self) -> int:
        """Flights of all outcomes."""
        return self.first + self.retried + self.dead


_FIGURES = ("flights", "dep_delay", "dep_known", "arr_delay", "arr_known")


def differences(wanted: Totals, found: Totals) -> list[str]:
    """Return every figure in which ``found`` differs from ``wanted``, one line each."""
    lines = []
    none = CarrierTotals()
    for carrier in sorted(wanted.carriers.keys() | found.carriers.keys()):
        for figure in _FIGURES:
            want = getattr(wanted.carriers.get(carrier, none), figure)
            have = getattr(found.carriers.get(carrier, none), figure)
            if want != have:
                lines.append(f"{carrier} {figure}: {have:,} instead of {want:,} ({have - want:+,})")
    return lines


def from_rows(rows: Iterable[Mapping[str, int | str | None]]) -> Totals:
    """Return totals from a table's rows: carrier and the five figures, sums may be None."""
    totals = Totals()
    for row in rows:
        totals.carriers[str(row["carrier"])] = CarrierTotals(
            *(int(row[figure] or 0) for figure in _FIGURES)
        )
    return totals


def mismatches(
    sent: Totals, found: Mapping[str, Totals], outcomes: Mapping[str, Outcomes], wanted: Outcomes
) -> list[str]:
    """Return everything that is not as it must be, one line each; nothing when all is equal.

    Args:
        sent: what the CSV holds.
        found: what each way from there ended with, by its name.
        outcomes: what became of the flights, by the consumers' name.
        wanted: what must have become of them.
    """
    lines = [f"{name}: {line}" for name in found for line in differences(sent, found[name])]
    for name, have in outcomes.items():
        for outcome in fields(Outcomes):
            got, want = getattr(have, outcome.name), getattr(wanted, outcome.name)
            if got != want:
                lines.append(f"{name}, {outcome.name}: {got:,} flights instead of {want:,}")
    return lines

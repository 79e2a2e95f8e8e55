"""What the demo shows: steps, progress bars with rate and remaining time, tables.

Law: renders numbers it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from demo.chart import FLIGHTS_MIN, average, ranked
from demo.totals import Outcomes, Totals

if TYPE_CHECKING:
    from demo.watch import GroupProgress

_CARRIER_CELL = 25
"""Characters of one carrier's figures, its distance to the next included."""
CarrierRows = Callable[[], list[tuple[str, int, int, int]]]


class RateColumn(ProgressColumn):
    """Average per second since the task began."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Render the rate, blank until there is one."""
        elapsed = task.finished_time or task.elapsed
        speed = task.completed / elapsed if elapsed else 0
        return Text(f"{speed:>9,.0f} {self._unit}/s" if speed else "", style="cyan")


class Screen:
    """The terminal of one run."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, emoji=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, emoji=False, width=120)

    def step(self, number: int, title: str) -> None:
        """Begin a step."""
        self.console.print(f"\n[bold]{number}. {title}[/bold]")

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(f"   {text}", markup=False)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show that something without a measure is going on."""
        with self.console.status(text):
            yield

    def bars(self, unit: str) -> Progress:
        """Return progress bars with counts, rate and remaining time."""
        narrow = self.console.width < 100
        return Progress(
            TextColumn("   {task.description:<8}"),
            BarColumn(bar_width=10 if narrow else 30),
            MofNCompleteColumn(),
            RateColumn(unit),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("[dim]{task.fields[note]}"),
            console=self.console,
        )

    @contextmanager
    def live(self, bars: Progress, carriers: CarrierRows) -> Iterator[None]:
        """Show the bars and, below, the listener's totals per carrier as they grow."""

        def picture() -> Group:
            return Group(bars, Text(), _carrier_table(carriers(), self.console.width))

        with Live(
            get_renderable=picture, console=self.console, refresh_per_second=4, transient=False
        ):
            yield

    def outcomes(self, columns: Mapping[str, Outcomes]) -> None:
        """Print what became of the flights, one column for each kind of consumer."""
        table = _table("What became of the flights", *columns)
        for name, title in (
            ("first", "consumed at the first delivery"),
            ("retried", "refused, then consumed"),
            ("dead", "refused again and again: dead letter"),
        ):
            table.add_row(f"   {title}", *(f"{getattr(c, name):,}" for c in columns.values()))
        self.console.print(table)

    def causes(self, columns: Mapping[str, Mapping[str, int]]) -> None:
        """Print dead letters by cause, one column for each group."""
        table = _table("Cause", *columns)
        for cause in dict.fromkeys(name for found in columns.values() for name in found):
            table.add_row(f"   {cause}", *(f"{c.get(cause, 0):,}" for c in columns.values()))
        self.console.print(table)

    def proof(self, columns: Sequence[tuple[str, Totals]], equal: bool) -> None:
        """Print the totals side by side."""
        table = _table(
            "From", "Flights", "Carriers", "Departure\ndelay, min", "Arrival\ndelay, min"
        )
        for name, totals in columns:
            table.add_row(
                f"   {name}",
                f"{totals.flights:,}",
                str(len(totals.carriers)),
                f"{totals.dep_delay:,}",
                f"{totals.arr_delay:,}",
            )
        self.console.print(table)
        if equal:
            self.console.print("   [green]all figures of all carriers agree[/green]")

    def delays(
        self, delays: dict[str, dict[int, tuple[int, float]]], airlines: dict[str, str]
    ) -> None:
        """Print average delays by carrier and hour, coloured by how late."""
        hours = list(range(5, 24))
        wide = self.console.width >= 110
        padding = (0, 1, 0, 0) if wide else 0
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
        table.add_column("")
        for hour in hours:
            table.add_column(f"{hour:02d}", justify="right", min_width=2, no_wrap=True)
        table.add_column("all", justify="right", no_wrap=True)
        if wide:
            table.add_column("Carrier", no_wrap=True)
        for carrier in ranked(delays):
            cells = [_delay_cell(*delays[carrier].get(hour, (0, 0.0))) for hour in hours]
            mean = average(delays[carrier])
            row = [Text(carrier, style="bold"), *cells, Text(f"{mean:.0f}", style="bold")]
            if wide:
                row.append(Text(airlines.get(carrier, "")))
            table.add_row(*row)
        self.console.print(table)

    def progress(self, rows: Sequence[GroupProgress]) -> None:
        """Print how far groups are."""
        table = _table("Group", "Consumed", "Lag", "Oldest\nwaits, s", "Dead\nletters")
        for row in rows:
            table.add_row(
                f"   {row.group}",
                _known(row.consumed),
                _known(row.lag),
                _known(row.seconds),
                _known(row.dead),
            )
        self.console.print(table)
        for row in rows:
            if row.error is not None:
                self.say(f"{row.group}: {row.error}")


def _table(first: str, *others: str) -> Table:
    """Return a table of one column of words and others of figures, none of them ever cropped."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"   {first}", no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _known(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:,.0f}"


def _carrier_table(rows: list[tuple[str, int, int, int]], width: int) -> Table:
    """Return carriers with flights and average departure delay, as many to a line as fit."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    columns = max(1, min(4, width // _CARRIER_CELL))
    for _ in range(columns):
        table.add_column(no_wrap=True)
    cells = [
        Text.assemble(
            "   ", (carrier, "bold"), f" {flights:>7,} ", (f"{_mean(delay, known)} min", "dim")
        )
        for carrier, flights, delay, known in rows
    ]
    for start in range(0, len(cells), columns):
        table.add_row(*cells[start : start + columns])
    return table


def _mean(total: int, count: int) -> str:
    return f"{total / count:>4.1f}" if count else "   -"


def _delay_cell(flights: int, delay: float) -> Text:
    if flights < FLIGHTS_MIN:
        return Text("·", style="dim")
    style = "green" if delay < 5 else "" if delay < 15 else "yellow" if delay < 25 else "red"
    return Text(str(round(delay)), style=style)

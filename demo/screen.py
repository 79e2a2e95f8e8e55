"""What the demo shows: steps, progress bars with rate and remaining time, tables.

Law: renders numbers it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from demo.totals import Totals

if TYPE_CHECKING:
    from rocketstream.admin import LagRow

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
        return Progress(
            TextColumn("   {task.description:<10}"),
            BarColumn(bar_width=30),
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
            return Group(bars, Text(), _carrier_table(carriers()))

        with Live(
            get_renderable=picture, console=self.console, refresh_per_second=4, transient=False
        ):
            yield

    def proof(self, columns: Sequence[tuple[str, Totals]], equal: bool) -> None:
        """Print the totals side by side."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("   From")
        for title in ("Flights", "Carriers", "Departure delay, min", "Arrival delay, min"):
            table.add_column(title, justify="right")
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
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("")
        for hour in hours:
            table.add_column(f"{hour:02d}", justify="right", min_width=2, no_wrap=True)
        table.add_column("all", justify="right", no_wrap=True)
        if self.console.width >= 110:
            table.add_column("Carrier", no_wrap=True)
        for carrier in ranked(delays):
            cells = [_delay_cell(*delays[carrier].get(hour, (0, 0.0))) for hour in hours]
            mean = average(delays[carrier])
            row = [Text(carrier, style="bold"), *cells, Text(f"{mean:.0f}", style="bold")]
            if self.console.width >= 110:
                row.append(Text(airlines.get(carrier, "")))
            table.add_row(*row)
        self.console.print(table)

    def lag(self, rows: Sequence[LagRow]) -> None:
        """Print a group's progress per queue."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("   Broker")
        for title in ("Queue", "Broker offset", "Committed offset", "Lag"):
            table.add_column(title, justify="right")
        for row in rows:
            table.add_row(
                f"   {row.broker_name}",
                str(row.queue_id),
                f"{row.broker_offset:,}",
                "unknown" if row.consumer_offset is None else f"{row.consumer_offset:,}",
                "unknown" if row.lag is None else f"{row.lag:,}",
            )
        self.console.print(table)


def _carrier_table(rows: list[tuple[str, int, int, int]]) -> Table:
    """Return carriers with flights and average departure delay, four to a line."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
    cells = [
        Text.assemble(
            "   ", (carrier, "bold"), f" {flights:>7,} ", (f"{_mean(delay, known)} min", "dim")
        )
        for carrier, flights, delay, known in rows
    ]
    for start in range(0, len(cells), 4):
        table.add_row(*cells[start : start + 4])
    return table


def _mean(total: int, count: int) -> str:
    return f"{total / count:>4.1f}" if count else "   -"


def _delay_cell(flights: int, delay: float) -> Text:
    if flights < FLIGHTS_MIN:
        return Text("·", style="dim")
    style = "green" if delay < 5 else "" if delay < 15 else "yellow" if delay < 25 else "red"
    return Text(str(round(delay)), style=style)

"""Tables, numbers and times as people read them, and the JSON form of rows.

Law: renders values handed in; asks nobody anything.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "unknown"
NONE = "-"
_PIPE_COLUMNS = 1_000
"""Width when stdout is not a terminal: tables take what they need and are never cut."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: heading, and whether it holds numbers (set to the right)."""

    title: str
    number: bool = False
    keep: bool = False
    """Never folded over several lines in a narrow terminal."""


def console() -> Console:
    """Return a console on the present stdout."""
    from rich.console import Console

    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else _PIPE_COLUMNS,
        highlight=False,
        emoji=False,
        markup=False,
    )


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, footer: str | None = None
) -> None:
    """Print a table, and a line below it."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.number else "left",
            overflow="fold",
            no_wrap=column.number or column.keep,
        )
    for row in rows:
        table.add_row(*row)
    out = console()
    out.print(table)
    if footer:
        out.print(footer, soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line to stdout at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print_line(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_json(row: Any) -> dict[str, Any]:
    """Return a row (a dataclass) with its names in camelCase, as RocketMQ's own JSON has them."""
    return {_camel(f.name): getattr(row, f.name) for f in dataclasses.fields(row)}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def number(value: int | None) -> str:
    """Return a count with thousands separated, or ``unknown``."""
    return UNKNOWN if value is None else f"{value:,}"


def moment(timestamp_ms: int | None, none: str = NONE) -> str:
    """Return a time in the local zone to the second, or what stands for none."""
    if timestamp_ms is None:
        return none
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def duration(milliseconds: int | None) -> str:
    """Return a span like ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``3 h 10 min``, ``2 d 4 h``."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 1_000:
        return f"{milliseconds} ms" if milliseconds else "0"
    seconds = milliseconds / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minute:02d} min"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour} h"


def plural(count: int, word: str) -> str:
    """Return ``1 queue``, ``8 queues``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def each(rows: Iterable[Any], render: Callable[[Any], Sequence[str]]) -> list[Sequence[str]]:
    """Return the cells of every row."""
    return [render(row) for row in rows]

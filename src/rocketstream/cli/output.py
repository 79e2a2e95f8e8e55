"""Tables, fields, sentences and JSON on standard output; one line on standard error.

``tables`` decides which columns fit.
"""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rocketstream.cli.tables import Cell, Column, fold, lay, shown, shown_json, width

_ROOM_DEFAULT: Final = 80
_LABEL_MAX: Final = 40
_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class _Look:
    """The output settings of this run of the command; ``reset`` when it begins."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the options of an earlier command."""
        self.wide = False


look = _Look()
"""``look.wide``: tables take their full width on every terminal; ``--wide`` sets it."""


def room() -> int | None:
    """Return the cells of a line; None where lines may be as long as they take."""
    if look.wide or not sys.stdout.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _ROOM_DEFAULT
    except (OSError, ValueError):
        return _ROOM_DEFAULT


def coloured() -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR or TERM say no."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def let_all_through() -> None:
    """Let stdout and stderr spell out characters their encoding lacks (LANG=C) instead of
    failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def render(
    rows: Iterable[Any], columns: Sequence[Column], as_json: bool, *, footer: str | None = None
) -> None:
    """Print rows as JSON, or as a table with a line below it.

    Args:
        rows: dataclasses, or tables ready for JSON.
        columns: how a row's cells are made.
        as_json: ``--json``.
        footer: the line.
    """
    if as_json:
        print_json([row if isinstance(row, dict) else json_of(row) for row in rows])
    else:
        cells = [[column.cell(row) for column in columns] for row in rows]
        print_table(columns, cells, footer=footer)


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, footer: str | None = None
) -> None:
    """Print a table that fits the terminal, and a line below it.

    Names and numbers are never cut: columns of little importance are left out, and a line says
    which and how to see them; where the rest does not fit either, each row is stacked into lines.
    """
    space = room()
    laid = lay(columns, list(rows), space, rule="─" if _can_print("─") else "-")
    colours = coloured()
    lines = ["".join(_painted(cell, colours) for cell in line).rstrip() for line in laid.lines]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if footer:
        print_line(footer)
    if laid.left_out:
        titles = ", ".join(laid.left_out)
        print_prose(f"(not shown at this width: {titles}; --wide or --json shows all)")


def _painted(cell: Cell, colours: bool) -> str:
    if not colours or cell.colour is None:
        return cell.text
    return f"\x1b[{_STYLES[cell.colour]}m{cell.text}\x1b[0m"


def print_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print ``label  value`` lines, the values below each other; long text folds under itself."""
    cells = [(shown(label), shown(value)) for label, value in pairs]
    indent = min(max((width(label) for label, _ in cells), default=0), _LABEL_MAX) + 2
    space = room()
    for label, value in cells:
        head = label + " " * max(2, indent - width(label))
        lines = [value] if space is None else fold(value, max(space - indent, 1))
        for at, line in enumerate(lines):
            print_line((head if at == 0 else " " * indent) + line)


def print_prose(text: str) -> None:
    """Print sentences, folded between words where a terminal is narrower."""
    space = room()
    for line in [text] if space is None else fold(text, space):
        print_line(line)


def print_line(text: str) -> None:
    """Print one line (or several) to stdout at once; control characters are spelled out."""
    sys.stdout.write(shown(text, lines=True) + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print_line(_dumped(value, indent=2))


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return _dumped(value, separators=(",", ":"))


def _dumped(value: Any, **form: Any) -> str:
    import json  # a table needs none

    text = shown_json(json.dumps(value, ensure_ascii=False, **form))
    if text.isascii() or _can_print(text):
        return text
    return json.dumps(value, ensure_ascii=True, **form)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def json_of(row: Any) -> dict[str, Any]:
    """Return a row (a dataclass) with its names in camelCase, as RocketMQ's own JSON has them."""
    return {_camel(f.name): getattr(row, f.name) for f in dataclasses.fields(row)}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)

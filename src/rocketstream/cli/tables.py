"""Tables made for a width: whole, with columns left out, or rows stacked into lines.

Pure: cells in, lines out, safe for a terminal: no character of them steers it.

Law: no number and no name is ever cut. (``rich.table`` takes 1.4 s of processor for a thousand
queues, this 0.07 s.)
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocketstream._util.unseen import JOINERS, spelled_out

ALWAYS: Final = 9
"""The importance of a column that is never left out."""
GAP: Final = 2
_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_FOLD_MIN: Final = 24
"""Text is not folded narrower than this to save a column."""
_SHRINK_MAX: Final = 3
"""A cell is folded into about so many lines; beyond, columns go or rows are stacked."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: heading.
        cell: makes the text of a row.
        number: set to the right, never folded.
        keep: a name people copy: never folded over several lines.
        importance: 1 (first to be left out in a narrow terminal) to 9 (never left out). Where
            half of the columns, or those of importance 9, do not fit, rows are stacked and show
            everything.
        colour: name of a colour for a cell (``red``, ``green``, ``yellow``, ``dim``, ``bold``) or
            None; used on terminals only.
    """

    title: str
    cell: Callable[[Any], str] = str
    number: bool = False
    keep: bool = False
    importance: int = ALWAYS
    colour: Callable[[str], str | None] | None = None


Count: Final = functools.partial(Column, number=True)
Name: Final = functools.partial(Column, keep=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of a line: its text, padded, and its colour."""

    text: str
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class Laid:
    """A table made for a width.

    Attributes:
        lines: of each printed line the pieces, without line break.
        left_out: titles of columns that did not fit.
    """

    lines: list[list[Cell]]
    left_out: tuple[str, ...] = ()


def lay(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    room: int | None,
    *,
    rule: str = "─",
) -> Laid:
    """Return the lines of a table.

    Args:
        rows: cells, as many per row as there are columns.
        room: cells of the terminal's width; None: as wide as it takes.
        rule: the character the line below the headings is made of.
    """
    texts = [[shown(cell) for cell in row] for row in rows]
    natural = widths(columns, texts)
    if room is None:
        sizes: dict[int, int] | None = dict(enumerate(natural))
    else:
        least = [
            _floor(column, [row[i] for row in texts], natural[i])
            for i, column in enumerate(columns)
        ]
        sizes = fitted(columns, natural, least, room, fewest=len(columns) / 2)
    if sizes is None:
        return Laid(_stacked(columns, texts, room or 80))
    left_out = tuple(column.title for i, column in enumerate(columns) if i not in sizes)
    return Laid(_table(columns, texts, sizes, rule), left_out)


def widths(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is where nothing gives way."""
    return [
        max([width(column.title), *(width(row[i]) for row in texts)])
        for i, column in enumerate(columns)
    ]


def fitted(
    columns: Sequence[Column],
    natural: Sequence[int],
    least: Sequence[int],
    room: int,
    *,
    fewest: float = 1,
) -> dict[int, int] | None:
    """Return the columns that fit, and how wide each is; None where too few would.

    Args:
        columns: the columns; the least important are left out first.
        natural: how wide each is where nothing gives way.
        least: how narrow each may be folded.
        room: cells of a line.
        fewest: of no fewer columns than these is one left out.
    """
    chosen = list(range(len(columns)))
    while sum(least[i] + GAP for i in chosen) - GAP > room:
        lowest = min(columns[i].importance for i in chosen)
        if lowest >= ALWAYS or len(chosen) - 1 < fewest:
            return None
        chosen.remove(max(i for i in chosen if columns[i].importance == lowest))
    sizes = {i: natural[i] for i in chosen}
    for _ in range(sum(sizes.values()) + GAP * (len(chosen) - 1) - room):
        # The widest of those that can fold gives way first.
        widest = max((i for i in chosen if sizes[i] > least[i]), key=lambda i: sizes[i])
        sizes[widest] -= 1
    return sizes


def _floor(column: Column, cells: list[str], size: int) -> int:
    if column.number or column.keep:
        return size
    words = max((width(word) for cell in cells for word in cell.split(" ")), default=0)
    return min(size, max(width(column.title), words, _FOLD_MIN, -(-size // _SHRINK_MAX)))


def _table(
    columns: Sequence[Column],
    texts: list[list[str]],
    sizes: dict[int, int],
    rule: str,
) -> list[list[Cell]]:
    chosen = list(sizes)
    last = chosen[-1] if chosen else -1

    def piece(i: int, text: str, colour: str | None) -> list[Cell]:
        blank = " " * (sizes[i] - width(text))
        end = [] if i == last else [Cell(" " * GAP)]
        if columns[i].number:
            return [Cell(blank), Cell(text, colour), *end]
        return [Cell(text, colour), *([] if i == last else [Cell(blank)]), *end]

    def line(cells: dict[int, str], colours: dict[int, str | None]) -> list[Cell]:
        return [one for i in chosen for one in piece(i, cells[i], colours[i])]

    bold: dict[int, str | None] = dict.fromkeys(chosen, "bold")
    plain: dict[int, str | None] = dict.fromkeys(chosen)
    lines = [
        line({i: columns[i].title for i in chosen}, bold),
        line({i: rule * sizes[i] for i in chosen}, plain),
    ]
    for row in texts:
        colours = {i: _colour(columns[i], row[i]) for i in chosen}
        folded = {i: fold(row[i], sizes[i]) for i in chosen}
        for number in range(max(len(part) for part in folded.values()) if folded else 0):
            there = {i: part[number] if number < len(part) else "" for i, part in folded.items()}
            lines.append(line(there, colours))
    return lines


def _stacked(columns: Sequence[Column], texts: list[list[str]], room: int) -> list[list[Cell]]:
    """Each row as lines of ``Title: value``, its first one at the margin."""
    lines: list[list[Cell]] = []
    for row in texts:
        line: list[Cell] = []
        used = 0
        for column, text in zip(columns, row, strict=True):
            if not text:
                continue
            label = f"{column.title}: "
            wanted = width(label) + width(text)
            if line and used + GAP + wanted <= room:
                line.append(Cell(" " * GAP))
                used += GAP
            else:
                if line:
                    lines.append(line)
                line = [Cell("  ")] if line else []
                used = 2 if line else 0
            # A text wider than a whole line is left to the terminal to wrap: it stays one word.
            line += [Cell(label, "dim"), Cell(text, _colour(column, text))]
            used += wanted
        lines.append(line)
    return lines


def _colour(column: Column, text: str) -> str | None:
    return column.colour(text) if column.colour is not None else None


def fold(text: str, room: int, *, within: bool = False) -> list[str]:
    """Return the text in lines of at most ``room`` cells, broken between words.

    Args:
        room: cells of a line.
        within: a word that is wider is broken too; else it has a line that is as wide as it is.
    """
    if width(text) <= room:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if not lines[-1] or width(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
        while within and width(lines[-1]) > room:
            cut = next(
                n for n in range(len(lines[-1]), 0, -1) if width(lines[-1][:n]) <= room or n == 1
            )
            lines[-1:] = [lines[-1][:cut], lines[-1][cut:]]
    return lines


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return the text with control characters spelled out: ``\x1b``, ``\n``, ``\u202e``.

    Names and bodies come from anybody; a terminal would obey an escape sequence in them, and a
    direction mark makes a name look like another one.

    Args:
        lines: line breaks and tabs stay.
    """
    return spelled_out(text, kept="\n\t" if lines else "", joiners=True)


def shown_json(text: str) -> str:
    r"""Return JSON with the steering characters JSON lets through written as ``\u009b``."""
    return text if text.isascii() and "\x7f" not in text else _UNSAFE_IN_JSON.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def width(text: str) -> int:
    """Return how many cells of a terminal the text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if char in JOINERS or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1

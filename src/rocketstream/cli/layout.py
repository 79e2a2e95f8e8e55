"""The layout of a table in a terminal: whole, with columns left out, or rows stacked into lines.

Pure: cells in, lines out.

Law: no number and no name is ever cut: text folds between words only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream.cli.shown import shown, width

ALWAYS: Final = 9
"""The importance of a column that is never left out."""
_GAP: Final = 2
_FOLD_MIN: Final = 24
"""Text is not folded narrower than this to save a column."""
_SHRINK_MAX: Final = 3
"""A cell is folded into about so many lines; beyond, columns go or rows are stacked."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: heading.
        number: set to the right, never folded.
        keep: a name people copy: never folded over several lines.
        importance: 1 (first to be left out in a narrow terminal) to 9 (never left out). Where
            half of the columns, or those of importance 9, do not fit, rows are stacked and show
            everything.
        colour: name of a colour for a cell (``red``, ``green``, ``yellow``, ``dim``, ``bold``) or
            None; used on terminals only.
    """

    title: str
    number: bool = False
    keep: bool = False
    importance: int = ALWAYS
    colour: Callable[[str], str | None] | None = None


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
        columns: the columns.
        rows: cells, as many per row as there are columns.
        room: cells of the terminal's width; None: as wide as it takes.
        rule: the character the line below the headings is made of.
    """
    texts = [[shown(cell) for cell in row] for row in rows]
    chosen = list(range(len(columns)))
    while True:
        sizes = _sizes(columns, texts, chosen, room)
        if sizes is not None:
            left_out = tuple(c.title for i, c in enumerate(columns) if i not in chosen)
            return Laid(_table(columns, texts, chosen, sizes, rule), left_out)
        least = min((columns[i].importance for i in chosen), default=ALWAYS)
        if least >= ALWAYS or room is None or 2 * (len(chosen) - 1) < len(columns):
            return Laid(_stacked(columns, texts, room or 80))
        chosen.remove(max(i for i in chosen if columns[i].importance == least))


def _sizes(
    columns: Sequence[Column], texts: list[list[str]], chosen: list[int], room: int | None
) -> dict[int, int] | None:
    """Return the width of each chosen column, None where they do not fit."""
    sizes = {i: max([width(columns[i].title), *(width(row[i]) for row in texts)]) for i in chosen}
    if room is None:
        return sizes
    over = sum(sizes.values()) + _GAP * (len(chosen) - 1) - room
    if over <= 0:
        return sizes
    floors = {i: _floor(columns[i], [row[i] for row in texts], sizes[i]) for i in chosen}
    if sum(sizes[i] - floors[i] for i in chosen) < over:
        return None
    while over > 0:  # the widest of those that can fold gives way first
        widest = max((i for i in chosen if sizes[i] > floors[i]), key=lambda i: sizes[i])
        sizes[widest] -= 1
        over -= 1
    return sizes


def _floor(column: Column, cells: list[str], size: int) -> int:
    if column.number or column.keep:
        return size
    words = max((width(word) for cell in cells for word in cell.split(" ")), default=0)
    return min(size, max(width(column.title), words, _FOLD_MIN, -(-size // _SHRINK_MAX)))


def _table(
    columns: Sequence[Column],
    texts: list[list[str]],
    chosen: list[int],
    sizes: dict[int, int],
    rule: str,
) -> list[list[Cell]]:
    last = chosen[-1] if chosen else -1

    def piece(i: int, text: str, colour: str | None) -> list[Cell]:
        blank = " " * (sizes[i] - width(text))
        end = [] if i == last else [Cell(" " * _GAP)]
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
            if line and used + _GAP + wanted <= room:
                line.append(Cell(" " * _GAP))
                used += _GAP
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


def fold(text: str, room: int) -> list[str]:
    """Return the text in lines of at most ``room`` cells, broken between words only."""
    if width(text) <= room:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and width(longer) > room:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]

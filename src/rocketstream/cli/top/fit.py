"""A table made for a width that changes: columns give way, names fold, nothing is cut.

Pure: cells in, texts of equal width out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream.cli.layout import fold
from rocketstream.cli.shown import shown, width

ALWAYS: Final = 9
"""The importance of a column that never gives way."""
GAP: Final = 2
NAME_MIN: Final = 12
"""Names are folded over several lines down to this width before a column gives way for them."""

Rank = tuple[int, float, str]
"""The sort key of a cell: unknown last, then the number, then the text."""


def rank(value: float | None) -> Rank:
    """Return the sort key of a figure; an unknown one comes last either way."""
    return (1, 0.0, "") if value is None else (0, float(value), "")


def rank_text(text: str) -> Rank:
    """Return the sort key of a name."""
    return (0, 0.0, text)


@dataclass(frozen=True, slots=True)
class Head:
    """One column.

    Attributes:
        title: heading.
        number: set to the right; never folded.
        importance: 1 gives way first, 9 never.
        down: sorted from the greatest on when it is chosen.
    """

    title: str
    number: bool = False
    importance: int = ALWAYS
    down: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        key: the name of its group, topic or broker; enter opens it.
        cells: as many as there are columns.
        ranks: the sort keys of the cells.
        style: of the whole row.
        styles: of single cells, by column.
    """

    key: str
    cells: tuple[str, ...]
    ranks: tuple[Rank, ...]
    style: str = ""
    styles: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table made for a width.

    Attributes:
        chosen: indexes of the columns shown.
        sizes: their widths.
        lines: of each row the texts of the chosen columns, padded, lines separated by a break.
        heights: lines of each row.
    """

    chosen: tuple[int, ...]
    sizes: tuple[int, ...]
    lines: tuple[tuple[str, ...], ...]
    heights: tuple[int, ...]


def fit(heads: Sequence[Head], rows: Sequence[Row], room: int) -> Fitted:
    """Return the table for a terminal of ``room`` cells.

    Where even the columns that never give way do not fit, they are wider than the terminal.
    """
    cells = [[shown(cell) for cell in row.cells] for row in rows]
    natural = [
        max([width(head.title), *(width(row[i]) for row in cells)]) for i, head in enumerate(heads)
    ]
    least = [
        size
        if head.number or head.importance < ALWAYS
        else min(size, max(NAME_MIN, len(head.title)))
        for head, size in zip(heads, natural, strict=True)
    ]
    chosen = list(range(len(heads)))
    while sum(least[i] + GAP for i in chosen) - GAP > room:
        lowest = min(heads[i].importance for i in chosen)
        if lowest >= ALWAYS:
            break
        chosen.remove(max(i for i in chosen if heads[i].importance == lowest))
    sizes = {i: natural[i] for i in chosen}
    over = sum(sizes.values()) + GAP * (len(chosen) - 1) - room
    while over > 0 and any(sizes[i] > least[i] for i in chosen):
        widest = max((i for i in chosen if sizes[i] > least[i]), key=lambda i: sizes[i])
        sizes[widest] -= 1
        over -= 1
    lines: list[tuple[str, ...]] = []
    heights: list[int] = []
    for row in cells:
        folded = [_folded(row[i], sizes[i]) for i in chosen]
        heights.append(max(len(part) for part in folded))
        lines.append(
            tuple(
                "\n".join(_padded(text, sizes[i], heads[i].number) for text in part)
                for i, part in zip(chosen, folded, strict=True)
            )
        )
    return Fitted(tuple(chosen), tuple(sizes[i] for i in chosen), tuple(lines), tuple(heights))


def _padded(text: str, size: int, number: bool) -> str:
    blank = " " * (size - width(text))
    return blank + text if number else text + blank


def _folded(text: str, size: int) -> list[str]:
    """Return a text in lines of a width: broken between words, and within one that is longer."""
    if width(text) <= size:
        return [text]
    lines: list[str] = []
    for line in fold(text, size):
        lines.append("")
        for char in line:
            if width(lines[-1] + char) > size:
                lines.append("")
            lines[-1] += char
    return lines

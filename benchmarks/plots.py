"""A page of plots: how processor time grows along an axis, or memory with time.

Law: draws points that others measured; matplotlib is imported only to draw.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = 4


@dataclass(frozen=True)
class Point:
    """A measured point: the median of its rounds; µs of client and broker a message."""

    panel: str
    series: str
    x: float
    y: float
    client_us: float | None = None
    server_us: float | None = None


@dataclass(frozen=True)
class Panel:
    """One of the page's plots: what its axes are called."""

    name: str
    x: str
    y: str
    log: bool = False
    over_time: bool = False


def drawn(points: Sequence[Point], panels: Sequence[Panel], file: Path, title: str) -> None:
    """Draw the panels there are points for on one page, if matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        sys.stderr.write("  without matplotlib, so without plots: benchmarks/requirements.txt\n")
        return
    matplotlib.use("Agg")
    # The same points are the same file, and its text is text.
    matplotlib.rcParams.update({"svg.hashsalt": file.name, "svg.fonttype": "none"})
    from matplotlib import pyplot

    wanted = [panel for panel in panels if any(each.panel == panel.name for each in points)]
    if not wanted:
        return
    columns = min(COLUMNS, len(wanted))
    rows = -(-len(wanted) // columns)
    page, axes = pyplot.subplots(
        rows, columns, figsize=(4.4 * columns, 3.9 * rows), squeeze=False, layout="constrained"
    )
    try:
        for place, panel in zip(axes.flat, wanted, strict=False):
            _draw(place, panel, [each for each in points if each.panel == panel.name])
        for place in axes.flat[len(wanted) :]:
            place.set_visible(False)
        page.suptitle(title)
        page.savefig(file, metadata={"Date": None})
    finally:
        pyplot.close(page)


def _draw(place: Any, panel: Panel, points: Sequence[Point]) -> None:
    """One panel: processor time of clients, that of brokers dotted; or what else was measured."""
    for number, series in enumerate(dict.fromkeys(each.series for each in points)):
        its = sorted((each for each in points if each.series == series), key=lambda each: each.x)
        xs, color = [each.x for each in its], f"C{number}"
        clients, brokers = [each.client_us for each in its], [each.server_us for each in its]
        ys = [each.y for each in its] if None in clients else clients
        form = "-" if panel.over_time else "o-"
        place.plot(xs, ys, form, color=color, label=series, markersize=3)
        if None not in brokers:
            place.plot(xs, brokers, "o:", color=color, markersize=2)
    if not panel.over_time:
        place.set_xscale("log")
        xs = sorted({each.x for each in points})
        place.set_xticks(xs, [short(x) for x in xs])
        place.set_xticks([], minor=True)
    place.set_xlabel(panel.x)
    place.set_ylabel(panel.y)
    if panel.log:
        place.set_yscale("log")
    else:
        place.set_ylim(0, 1.3 * place.get_ylim()[1])  # room for the legend
    place.grid(alpha=0.3)
    place.legend(fontsize=6, loc="best" if panel.log else "upper left")


def short(value: float) -> str:
    """A number on an axis: 250, 10 k, 1.5 M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"

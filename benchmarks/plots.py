"""A page of plots: how cost grows along an axis, or memory with time.

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
    """A measured point: median and range of its rounds, and µs of client and broker a message."""

    panel: str
    series: str
    x: float
    y: float
    low: float
    high: float
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
    """One panel: rates in their ranges; processor time of clients dashed, of brokers dotted."""
    beside = None
    for number, series in enumerate(dict.fromkeys(each.series for each in points)):
        its = sorted((each for each in points if each.series == series), key=lambda each: each.x)
        xs, color = [each.x for each in its], f"C{number}"
        form = "-" if panel.over_time else "o-"
        place.plot(xs, [each.y for each in its], form, color=color, label=series, markersize=3)
        lows, highs = [each.low for each in its], [each.high for each in its]
        if lows != highs:
            place.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)
        for form, costs in (
            ("--", [each.client_us for each in its]), (":", [each.server_us for each in its])
        ):  # fmt: skip
            if None not in costs:
                beside = beside or place.twinx()
                beside.plot(xs, costs, form, color=color, linewidth=1)
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
        place.set_ylim(0, 1.3 * max(each.high for each in points))  # room for the legend
        place.yaxis.set_major_formatter(lambda value, _: short(value))
    if beside is not None:
        if panel.log:
            beside.set_yscale("log")
        else:
            beside.set_ylim(bottom=0)
        beside.set_ylabel("µs a message (dashed, dotted)", fontsize=7)
    place.grid(alpha=0.3)
    place.legend(fontsize=6, loc="best" if panel.log else "upper left")


def short(value: float) -> str:
    """A number on an axis: 250, 10 k, 1.5 M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"

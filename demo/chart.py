"""The picture: average departure delay by carrier and hour as a heat map.

Law: numbers in, a PNG out.
"""

from __future__ import annotations

from pathlib import Path

FLIGHTS_MIN = 20
"""Cells with fewer flights say nothing about a carrier and stay empty."""
_COLOURS_AT_MINUTES = 40


def draw(
    path: Path, delays: dict[str, dict[int, tuple[int, float]]], airlines: dict[str, str]
) -> None:
    """Write the chart.

    Args:
        path: the PNG file.
        delays: flights and average delay in minutes, by carrier and hour.
        airlines: names of the carriers.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    carriers = ranked(delays)
    hours = list(range(5, 24))
    grid = np.full((len(carriers), len(hours)), np.nan)
    for y, carrier in enumerate(carriers):
        for x, hour in enumerate(hours):
            flights, delay = delays[carrier].get(hour, (0, 0.0))
            if flights >= FLIGHTS_MIN:
                grid[y, x] = delay
    figure, axes = plt.subplots(figsize=(12, 7), layout="constrained")
    colours = plt.get_cmap("YlOrRd").with_extremes(bad="#f0f0f0")
    image = axes.imshow(grid, aspect="auto", cmap=colours, vmin=0, vmax=_COLOURS_AT_MINUTES)
    for y in range(len(carriers)):
        for x in range(len(hours)):
            if not np.isnan(grid[y, x]):
                dark = grid[y, x] > _COLOURS_AT_MINUTES * 0.65
                axes.text(
                    x, y, str(round(grid[y, x])), ha="center", va="center", fontsize=9,
                    color="white" if dark else "black",
                )  # fmt: skip
    axes.set_xticks(range(len(hours)), [f"{hour:02d}" for hour in hours])
    axes.set_yticks(range(len(carriers)), [f"{airlines.get(c, c)}  {c}" for c in carriers])
    axes.set_xlabel("Scheduled hour of departure")
    axes.set_ylabel("Carrier, most delayed first")
    axes.set_title(
        "Average departure delay of flights leaving New York in 2013, in minutes", pad=12
    )
    bar = figure.colorbar(image, ax=axes, pad=0.015, extend="max")
    bar.set_label(f"Minutes late (grey: fewer than {FLIGHTS_MIN} flights)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def ranked(delays: dict[str, dict[int, tuple[int, float]]]) -> list[str]:
    """Return the carriers, the one with the greatest average delay first."""
    return sorted(delays, key=lambda carrier: -average(delays[carrier]))


def average(hours: dict[int, tuple[int, float]]) -> float:
    """Return the average delay over all hours, weighted by flights."""
    flights = sum(count for count, _ in hours.values())
    return sum(count * delay for count, delay in hours.values()) / flights if flights else 0.0

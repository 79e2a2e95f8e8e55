"""Figures as rows of the tables of docs/performance.md, so that nobody copies a number by hand.

Law: pure; a figure's JSON line in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Line: TypeAlias = tuple[str, dict[str, Any]]
"""A suite, and the JSON line of one of its figures."""
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
"""What stands around the table in a page."""
VERSIONS = ("Python", "uvloop", "orjson", "confluent-kafka")
HEAD = (
    "| Work | Rocketstream: median (range) of the steady rounds | cold | Peer | cold | Ratio "
    "| processor µs a message, ours / peer; server with each | `python -m benchmarks …` |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def merged(elder: Sequence[Line], newer: Sequence[Line], order: Sequence[str]) -> list[Line]:
    """All figures, of a suite the newer ones, the suites in their order."""
    fresh = {suite for suite, _ in newer}
    lines = [line for line in elder if line[0] not in fresh and line[0] in order] + list(newer)
    return sorted(lines, key=lambda line: order.index(line[0]))


def replaced(page: str, table: str) -> str:
    """The page with another table between its marks.

    Raises:
        ValueError: it has no marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{head}{begin}{table}{end}{tail}"


def rows(lines: Sequence[Line]) -> Iterator[str]:
    """What the figures were taken with, and a row for each."""
    yield taken(lines)
    yield HEAD
    for suite, line in lines:
        ours, peer = line["ours"], line.get("peer")
        unit = line["unit"]
        cells = [
            line["benchmark"],
            side(ours, unit),
            cold(ours, unit),
            f"{peer['name']} {side(peer, unit)}" if peer else "–",
            cold(peer, unit) if peer else "–",
            f"**{bare(line['ratio'])}**" if "ratio" in line else "–",
            processor(line),
            f"`{suite}`",
        ]
        yield f"| {' | '.join(cells)} |\n"


def taken(lines: Sequence[Line]) -> str:
    """One sentence on machine, versions and how much was measured."""
    if not lines:
        return ""
    facts = lines[-1][1]["machine"]
    scales = sorted({line["scale"] for _, line in lines if "scale" in line})
    versions = {"Python": facts["python"], **facts["packages"]}
    words = [f"{facts['cores']} cores", str(facts["system"])]
    words += [f"{name} {versions[name]}" for name in VERSIONS if name in versions]
    words += [f"`--scale {scale:g}`" for scale in scales]
    return f"Taken on {', '.join(words)}.\n\n"


def side(found: Mapping[str, Any], unit: str) -> str:
    """Median and range, with the words that say when it is to be doubted."""
    if "median" not in found:
        return "–"
    text = f"{number(found['median'], unit)} ({bare(found['min'])}–{bare(found['max'])})"
    if found.get("steady") is False:
        text += f", not steady after {found['rounds']} rounds"
    return text


def cold(found: Mapping[str, Any], unit: str) -> str:
    """The first round, where there were rounds."""
    return number(found["cold"], unit) if "cold" in found else "–"


def number(value: float, unit: str) -> str:
    """A figure with its unit: ``25.3 k msg/s``."""
    return f"{bare(value)} {unit}"


def bare(value: float) -> str:
    """Three digits that count, thousands as k."""
    if abs(value) >= 10_000:
        return f"{value / 1_000:,.0f} k"
    if abs(value) >= 1_000:
        return f"{value / 1_000:.2f} k"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def processor(line: Mapping[str, Any]) -> str:
    """``22 / 80; 34 / 36``: clients, and the server while it served each."""
    found = []
    for key in ("cpu_us", "server_us"):
        sides = [line[name] for name in (f"ours_{key}", f"peer_{key}") if name in line]
        if sides:
            found.append(" / ".join(bare(value) for value in sides))
    return "; ".join(found) or "–"

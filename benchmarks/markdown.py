"""Figures as rows of the tables of README and docs/performance.md, so that nobody copies a number.

Law: pure; a figure's JSON lines in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]
"""The JSON line of a figure, with ``suite``, ``scale`` and the machine."""
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
"""What stands around the table in a page."""
VERSIONS = ("Python", "uvloop", "orjson", "confluent-kafka", "aiokafka")
NOT_STEADY = "not steady"
BUSY = 0.25
"""Share of the processors that others may have had in the median round of a ratio."""
HEAD = (
    "| Work | Machine | Rocketstream: median (range) of the steady rounds | cold | Peer | cold "
    "| Ratio | processor µs a message, ours / peer; server with each | `python -m benchmarks …` |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def merged(elder: Sequence[Line], newer: Sequence[Line], order: Sequence[str]) -> list[Line]:
    """All figures, of a suite on a machine the newer ones, the suites in their order.

    Figures of one name stand together, in the order in which each first came.
    """
    fresh = {(line["suite"], _machine(line)) for line in newer}
    lines = [line for line in elder if (line["suite"], _machine(line)) not in fresh]
    lines = [line for line in [*lines, *newer] if line["suite"] in order]
    names = list(dict.fromkeys(map(_same, lines)))
    return sorted(lines, key=lambda line: (order.index(line["suite"]), names.index(_same(line))))


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
    """The table of docs/performance.md: the figures were taken with this, and a row for each."""
    yield taken(lines)
    yield HEAD
    for line in lines:
        ours, peer = line["ours"], line.get("peer")
        unit = line["unit"]
        cells = [
            line["benchmark"],
            _machine(line),
            side(ours, unit),
            cold(ours, unit),
            f"{peer['name']} {side(peer, unit)}" if peer else "–",
            cold(peer, unit) if peer else "–",
            ratio(line),
            processor(line),
            f"`{line['suite']}`",
        ]
        yield _row(cells)


def short_rows(lines: Sequence[Line], wanted: Sequence[str]) -> Iterator[str]:
    """The table of README: the wanted figures that have a peer, each machine's ratio of its own."""
    shown = [line for line in lines if line["benchmark"] in wanted and "peer" in line]
    machines = sorted(set(map(_machine, shown)))
    heads = ["Work", "Next to", *(f"Ratio, {name}" for name in machines)]
    yield _row(heads)
    yield f"{'|---' * len(heads)}|\n"
    for key in dict.fromkeys(map(_same, shown)):
        found = {_machine(line): line for line in shown if _same(line) == key}
        unit = next(iter(found.values()))["unit"]
        ratios = [ratio(found[name]) if name in found else "–" for name in machines]
        yield _row([f"{key[1]}, {unit}", key[2], *ratios])


def taken(lines: Sequence[Line]) -> str:
    """One sentence for each machine: versions, and how much was measured."""
    texts = []
    for name in sorted(set(map(_machine, lines))):
        its = [line for line in lines if _machine(line) == name]
        facts = its[-1]["machine"]
        scales = sorted({line["scale"] for line in its})
        versions = {"Python": facts["python"]}
        for line in its:
            versions |= line["machine"]["packages"]
        words = [f"{facts['cores']} cores", str(facts["system"])]
        if "squares_s" in facts:
            words.append(f"five million squares in Python take {facts['squares_s']:.2g} s")
        words += [f"{name} {versions[name]}" for name in VERSIONS if name in versions]
        words += [f"`--scale {scale:g}`" for scale in scales]
        texts.append(f"Machine {name}: {', '.join(words)}.\n")
    return "".join(texts) + "\n" if texts else ""


def ratio(line: Mapping[str, Any]) -> str:
    """Ours over the peer's; none where one was not steady, or others had much of the machine."""
    if "ratio" not in line:
        return "–"
    if any(line.get(f"{who}_others", 0.0) > BUSY for who in ("ours", "peer")):
        return "machine busy"
    if any(line[who].get("steady") is False for who in ("ours", "peer")):
        return NOT_STEADY
    return f"**{bare(line['ratio'])}**"


def side(found: Mapping[str, Any], unit: str) -> str:
    """Median and range, with the words that say when it is to be doubted."""
    if "median" not in found:
        return "–"
    text = f"{number(found['median'], unit)} ({bare(found['min'])}–{bare(found['max'])})"
    if found.get("steady") is False:
        text += f", {NOT_STEADY} after {found['rounds']} rounds"
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
    return "; ".join(filter(None, (_both(line, key) for key in ("cpu_us", "server_us")))) or "–"


def _both(line: Mapping[str, Any], key: str) -> str:
    sides = [line[name] for name in (f"ours_{key}", f"peer_{key}") if name in line]
    return " / ".join(map(bare, sides))


def _machine(line: Mapping[str, Any]) -> str:
    return str(line["machine"]["name"])


def _same(line: Mapping[str, Any]) -> tuple[str, str, str]:
    """What figures of several machines have in common: suite, work and peer."""
    return line["suite"], line["benchmark"], line.get("peer", {}).get("name", "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"

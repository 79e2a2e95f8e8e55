"""`make bench`: every measurement in one run, next to its peer where there is one.

Law: chooses what to run and prints; the measuring is in `suites`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figure
from benchmarks.markdown import Line, merged, number, replaced, rows, side
from benchmarks.rounds import USUAL
from benchmarks.setting import Settings
from benchmarks.suites import SUITES, TABLE

RESULTS = ROOT / "benchmarks" / "results"


def show(figure: Figure) -> dict[str, Any]:
    """Print a figure as its JSON line and as one line for people; return the former."""
    line = figure.line()
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    text = f"  {figure.benchmark}: {side(line['ours'], figure.unit)}"
    if "cold" in line["ours"]:
        text += f", cold {number(line['ours']['cold'], figure.unit)}"
    if "peer" in line:
        text += f"   {figure.peer_name}: {side(line['peer'], figure.unit)}"
        text += f"   ratio {line['ratio']:.2f}"
    sys.stderr.write(text + "\n")
    return line


def run(name: str, settings: Settings, done: list[Line]) -> bool:
    """Run one suite; tell whether it went well."""
    began = time.monotonic()
    try:
        for figure in SUITES[name](settings):
            done.append((name, show(figure)))
    except Exception as error:
        sys.stderr.write(f"  {name} failed: {error}\n")
        return False
    sys.stderr.write(f"  {name} took {time.monotonic() - began:.0f} s\n")
    return True


def options() -> argparse.Namespace:
    """Read and check the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", help=f"all, or of these: {', '.join(SUITES)}; table: those of the "
        "first table of docs/performance.md"
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, help="launches of what has no rounds")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies message counts")
    parser.add_argument("--rounds-max", type=int, default=USUAL.most, metavar="N",
                        help="end after N rounds even when they are not steady")  # fmt: skip
    parser.add_argument("--no-peer", action="store_true", help="leave Apache's programs out")
    parser.add_argument("--markdown", action="store_true", help="at the end print table rows")
    parser.add_argument("--into", type=Path, metavar="PAGE",
                        help="put them, and those figures.jsonl has, into a page")  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER",
                        help="where figures.jsonl and the plots go [%(default)s]")  # fmt: skip
    given = parser.parse_args()
    named = given.suites or list(SUITES)
    given.suites = [each for name in named for each in (TABLE if name == "table" else [name])]
    unknown = [name for name in given.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are table, {', '.join(SUITES)}")
    if given.rounds_max < USUAL.window + 1:
        parser.error(f"--rounds-max {given.rounds_max}: at least {USUAL.window + 1} are looked at")
    return given


def main() -> int:
    """Run the chosen suites; a suite that fails is told and the others still run."""
    given = options()
    # Whoever ends it ends its brokers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = 0
    done: list[Line] = []
    given.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rocketstream-bench-") as folder:
        settings = Settings(
            Path(folder),
            given.runs,
            given.scale,
            not given.no_peer,
            replace(USUAL, most=given.rounds_max),
            given.results,
        )
        with settings.stack:
            for name in given.suites:
                failed += not run(name, settings, done)
    write(given, done)
    return 1 if failed else 0


def write(given: argparse.Namespace, done: Sequence[Line]) -> None:
    """Keep the figures beside those of other suites, and put them where they were asked for."""
    for name, line in done:
        line["suite"], line["scale"] = name, given.scale
    file = given.results / "figures.jsonl"
    kept = merged(read(file), done, list(SUITES))
    file.write_text("".join(json.dumps(line) + "\n" for _, line in kept), encoding="utf-8")
    if given.markdown:
        sys.stdout.write(f"\n{''.join(rows(done))}")
    if given.into is not None:
        table = [(name, line) for name, line in kept if name in TABLE]
        text = given.into.read_text(encoding="utf-8")
        given.into.write_text(replaced(text, "".join(rows(table))), encoding="utf-8")


def read(file: Path) -> list[Line]:
    """The figures an earlier run has kept."""
    if not file.exists():
        return []
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [(line["suite"], line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())

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

from benchmarks.harness import ROOT, Figure, squares_s
from benchmarks.markdown import Line, merged, number, ratio, replaced, rows, short_rows, side
from benchmarks.rounds import USUAL
from benchmarks.setting import Settings
from benchmarks.suites import SHORT, SHOWN, SUITES, TABLE

RESULTS = ROOT / "benchmarks" / "results"
KEPT = ROOT / "benchmarks" / "figures.jsonl"
"""The figures the pages show, of every machine."""
IMAGES = ROOT / "docs" / "images"
QUICK, QUICK_ROUNDS = 0.5, 9
"""Scale and rounds with which the suites of `make bench` are done in half an hour on two cores."""
QUICK_BEGIN_S = 25 * 60
"""After so long, on a machine that is slow or busy, none of them is begun."""


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
        text += f"   ratio {ratio(line).strip('*')}"
    sys.stderr.write(text + "\n")
    return line


def run(name: str, settings: Settings, done: list[Line]) -> bool:
    """Run one suite; tell whether it went well."""
    began = time.monotonic()
    try:
        for figure in SUITES[name](settings):
            done.append({"suite": name, "scale": settings.scale, **show(figure)})
    except Exception as error:
        sys.stderr.write(f"  {name} failed: {error}\n")
        return False
    sys.stderr.write(f"  {name} took {time.monotonic() - began:.0f} s\n")
    return True


def options() -> argparse.Namespace:
    """Read and check the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", help="none: those of half an hour; all; table: those of "
        f"the first table of docs/performance.md; or of these: {', '.join(SUITES)}"
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, help="launches of what has no rounds")
    parser.add_argument("--scale", type=float, help="multiplies message counts "
                        f"[1, of half an hour {QUICK}]")  # fmt: skip
    parser.add_argument("--rounds-max", type=int, metavar="N",
                        help="end after N rounds even when they are not steady "
                        f"[{USUAL.most}, of half an hour {QUICK_ROUNDS}]")  # fmt: skip
    parser.add_argument("--no-peer", action="store_true", help="leave Apache's programs out")
    parser.add_argument("--keep", metavar="MACHINE",
                        help="put figures and pictures into README and docs, "
                        "those of a machine named so")  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER",
                        help="where figures.jsonl goes, and pictures without --keep "
                        "[%(default)s]")  # fmt: skip
    given = parser.parse_args()
    given.short = not given.suites
    given.scale = given.scale or (QUICK if given.short else 1.0)
    given.rounds_max = given.rounds_max or (QUICK_ROUNDS if given.short else USUAL.most)
    names = {"all": list(SUITES), "table": TABLE}
    named = given.suites or SHORT
    given.suites = [each for name in named for each in names.get(name, [name])]
    unknown = [name for name in given.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are all, table, {', '.join(SUITES)}")
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
    began = time.monotonic()
    machine = {"name": given.keep or "here", "squares_s": squares_s()}
    with tempfile.TemporaryDirectory(prefix="rocketstream-bench-") as folder:
        settings = Settings(
            Path(folder),
            given.runs,
            given.scale,
            not given.no_peer,
            replace(USUAL, most=given.rounds_max),
            given.results,
            IMAGES if given.keep else given.results,
        )
        with settings.stack:
            for name in given.suites:
                if given.short and time.monotonic() - began > QUICK_BEGIN_S:
                    sys.stderr.write(f"  {name} left out: the half hour is over\n")
                    continue
                failed += not run(name, settings, done)
                for line in done:
                    line["machine"] |= machine
                # As they come: whoever ends a run of hours has what was measured.
                keep(given.results / "figures.jsonl", done, list(SUITES))
                if given.keep:
                    write_pages(keep(KEPT, done, TABLE))
    table = short_rows(done, SHOWN) if given.short else rows(done)
    sys.stdout.write(f"\n{''.join(table)}")
    return 1 if failed else 0


def keep(file: Path, done: Sequence[Line], order: Sequence[str]) -> list[Line]:
    """Put figures beside those of other suites and machines into a file, and return them all."""
    elder = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = merged([json.loads(line) for line in elder], done, order)
    file.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    return kept


def write_pages(lines: Sequence[Line]) -> None:
    """Write the tables of README and docs/performance.md."""
    for page, table in pages(lines).items():
        text = page.read_text(encoding="utf-8")
        page.write_text(replaced(text, table), encoding="utf-8")


def pages(lines: Sequence[Line]) -> dict[Path, str]:
    """The pages with a table of figures, and their tables."""
    return {
        ROOT / "README.md": "".join(short_rows(lines, SHOWN)),
        ROOT / "docs" / "performance.md": "".join(rows(lines)),
    }


if __name__ == "__main__":
    sys.exit(main())

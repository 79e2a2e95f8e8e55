"""`make bench`: every measurement in one run, next to its peer where there is one.

Law: chooses what to run and prints; the measuring is in `suites`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.setting import Settings
from benchmarks.suites import SUITES


def show(figure: Figure) -> None:
    """Print a figure as its JSON line and as one line for people."""
    sys.stdout.write(json.dumps(figure.line()) + "\n")
    ours = figure.line()["ours"]
    text = f"  {figure.benchmark}: {ours.get('median', '-')} {figure.unit}"
    if figure.peer:
        peer = figure.line()["peer"]
        text += f"   {figure.peer_name}: {peer['median']} {figure.unit}   ratio {figure.ratio:.2f}"
    sys.stderr.write(text + "\n")


def run(name: str, settings: Settings) -> bool:
    """Run one suite; tell whether it went well."""
    began = time.monotonic()
    try:
        for figure in SUITES[name](settings):
            show(figure)
    except Exception as error:
        sys.stderr.write(f"  {name} failed: {error}\n")
        return False
    sys.stderr.write(f"  {name} took {time.monotonic() - began:.0f} s\n")
    return True


def main() -> int:
    """Run the chosen suites; a suite that fails is told and the others still run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", default=list(SUITES), help=", ".join(SUITES))
    parser.add_argument("--runs", type=int, default=3, help="runs of each side, taken in turn")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies message counts")
    parser.add_argument("--no-peer", action="store_true", help="leave Apache's programs out")
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rocketstream-bench-") as folder:
        settings = Settings(Path(folder), options.runs, options.scale, not options.no_peer)
        with settings.stack:
            for name in options.suites:
                failed += not run(name, settings)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

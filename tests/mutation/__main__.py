"""Change the product in small ways and see the nearest tests fail: `make check-mutants`.

`python -m tests.mutation [AREA ...] [--sample 100] [--seed 1] [--only TEXT] [--minutes 5]`.
Law: fails when fewer than 95 of a hundred changes of an area are noticed; what nobody can notice
stands in `equivalents.txt` with its reason and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutation.areas import AREAS, ROOT
from tests.mutation.equivalents import equivalents
from tests.mutation.running import SURVIVED, UNREACHED, UNSURE

NOTICED_MIN = 0.95


def survives(change: dict[str, Any]) -> bool:
    """Tell whether no test noticed a change."""
    return change["answer"] in (SURVIVED, UNREACHED, UNSURE)


def is_equivalent(change: dict[str, Any]) -> bool:
    """Tell whether a change is listed as one nobody can notice."""
    return (change["module"], change["where"], change["old"], change["new"]) in equivalents()


def _kind(answer: str) -> str:
    return "by a failing test" if answer.startswith("failed") else f"by a {answer}"


def table(told: dict[str, Any]) -> tuple[str, float]:
    """Return an area's modules with what was noticed, the survivors, and the share noticed."""
    counted, noticed, lines = Counter[str](), Counter[str](), []
    for change in told["changes"]:
        if survives(change) and is_equivalent(change):
            continue
        counted[change["module"]] += 1
        noticed[change["module"]] += not survives(change)
    for module, count in sorted(counted.items()):
        lines.append(f"{module:58} {noticed[module]:5} of {count:5}")
    total = sum(counted.values())
    share = sum(noticed.values()) / total if total else 1.0
    lines.append(f"{told['area']:58} {sum(noticed.values()):5} of {total:5}  {share:.1%}")
    how = Counter(_kind(change["answer"]) for change in told["changes"] if not survives(change))
    lines.append(
        "  noticed: " + ", ".join(f"{kind} {count}" for kind, count in sorted(how.items()))
    )
    for change in told["changes"]:
        if survives(change) and not is_equivalent(change):
            place = f"src/{change['module'].replace('.', '/')}.py:{change['line']}"
            where = change["where"] or "the module"
            lines.append(
                f"  {change['answer']}: {place} ({where}, {change['tests']} tests) "
                f"{change['old']} -> {change['new']}"
            )
    for name in told["unfit"]:
        lines.append(f"  left out, since it fails without any change: {name}")
    return "\n".join(lines), share


def run(area: str, words: argparse.Namespace) -> dict[str, Any]:
    """Run an area in a process of its own; blocks.

    Raises:
        RuntimeError: it could not be run, for example since a test cannot be collected.
    """
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "told.json"
        done = subprocess.run(
            [
                *(sys.executable, "-W", "ignore", "-m", "tests.mutation.running", area),
                *("--sample", str(words.sample), "--seed", str(words.seed)),
                *("--processes", str(words.processes), "--only", words.only),
                *("--minutes", str(words.minutes), "--out", str(out)),
            ],
            cwd=ROOT,
            # Threads do not live on in a fork: libraries must not start any when imported.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{area} could not be run:\n{done.stdout}")
        told: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return told


def main() -> int:
    """Run areas; 1 when one is below what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [area.name for area in AREAS]
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(names)}; all when none is given")
    parser.add_argument("--sample", type=int, default=100, help="changes an area; 0: every one")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--processes", type=int, default=2, help="changes at once")
    parser.add_argument("--only", default="", help="changes whose module:line has this text")
    parser.add_argument("--minutes", type=float, default=0, help="at most so long an area")
    words = parser.parse_args()
    if unknown := set(words.areas) - set(names):
        parser.error(f"no such area: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    low = []
    for area in words.areas or names:
        text, share = table(run(area, words))
        sys.stdout.write(f"{text}\n\n")
        sys.stdout.flush()
        if share < NOTICED_MIN:
            low.append(area)
    if low:
        sys.stdout.write(f"below {NOTICED_MIN:.0%}: {', '.join(low)}\n")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())

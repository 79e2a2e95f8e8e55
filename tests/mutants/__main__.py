"""Find every planted defect: `python -m tests.mutants [NAME ...] [--seeds 2000] [--processes 2]`.

Law: a seed that finds a mutant keeps every promise without it; what is not found fails the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 2_000


@dataclass(frozen=True)
class Found:
    """How a mutant was found; ``seeds`` is how many it took, None when it was not."""

    mutant: Mutant
    seeds: int | None
    what: str
    seconds: float


def find(mutant: Mutant, seeds: int = SEEDS, first: int = 0) -> Found:
    """Run seeds with a mutant until one fails that does not fail without it; blocks."""
    began, seed = time.monotonic(), first
    while seed < first + seeds:
        answer = _child("tests.mutants.child", mutant.name, str(seed), str(first + seeds))
        if answer is None:
            break
        seed = int(answer["seed"])
        if _child("tests.mutants.clean", mutant.scenario, str(seed)) is None:
            what = str(answer["failure"]).splitlines()[0]
            return Found(mutant, seed - first + 1, what, time.monotonic() - began)
        seed += 1
    return Found(mutant, None, "not found", time.monotonic() - began)


def _child(module: str, *words: str) -> dict[str, Any] | None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(words)} failed:\n{done.stderr}")
    answer: dict[str, Any] | None = json.loads(done.stdout.splitlines()[-1])
    return answer


def table(found: Sequence[Found]) -> str:
    """Return the mutants with the seeds each took."""
    width = max(len(each.mutant.name) for each in found)
    lines = [f"{'mutant':{width}}  seeds  seconds  found as"]
    for each in found:
        took = f"{each.seeds or '-':>5}  {each.seconds:7.1f}"
        lines.append(f"{each.mutant.name:{width}}  {took}  {each.what[:100]}")
    return "\n".join(lines)


def main() -> int:
    """Find them all; 1 when one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants; none: all that must be found")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="most seeds for one mutant")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--processes", type=int, default=2, help="mutants at once")
    words = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if (mutant.name in words.names if words.names else not mutant.unseen)
    ]
    with ThreadPoolExecutor(words.processes) as pool:
        found = list(pool.map(lambda mutant: find(mutant, words.seeds, words.first), chosen))
    sys.stdout.write(table(found) + "\n")
    missed = [each.mutant for each in found if each.seeds is None]
    for mutant in missed:
        sys.stdout.write(f"not found: {mutant.name}: {mutant.breaks}\n")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())

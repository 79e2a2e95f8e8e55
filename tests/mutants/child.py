"""One mutant in a process of its own: `python -m tests.mutants.child NAME FIRST LAST`.

Law: plants before it imports the product; writes one JSON line: the first seed that failed, with
what was found, or null.
"""

from __future__ import annotations

import json
import sys

from tests.mutants.catalogue import MUTANTS
from tests.mutants.plant import plant


def main() -> None:
    """Run seeds until one fails."""
    name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    plant(mutant)
    from tests.scenarios.campaign import run_seed

    for seed in range(first, last):
        result = run_seed(seed, scenario=mutant.scenario)
        told = "\n".join([result.failure, *result.anomalies])
        if not result.ok and mutant.is_shown_by(told):
            sys.stdout.write(json.dumps({"seed": seed, "failure": result.failure}) + "\n")
            return
    sys.stdout.write("null\n")


if __name__ == "__main__":
    main()

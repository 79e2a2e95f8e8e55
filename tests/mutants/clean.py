"""A seed without any mutant: `python -m tests.mutants.clean SCENARIO SEED`.

Law: writes one JSON line: what failed, or null.
"""

from __future__ import annotations

import json
import sys

from tests.scenarios.campaign import run_seed


def main() -> None:
    """Run it."""
    result = run_seed(int(sys.argv[2]), scenario=sys.argv[1])
    sys.stdout.write(json.dumps(None if result.ok else {"failure": result.failure}) + "\n")


if __name__ == "__main__":
    main()

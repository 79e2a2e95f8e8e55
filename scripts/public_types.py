"""Name every symbol that a user can import and whose type pyright does not know; none passes.

``make types`` runs it in the environment, with ``tests/typing/requirements.txt`` in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "rocketstream"
UNSEEN = "rocketstream.frameworks.airflow."
"""Its base classes are Airflow's, which is not in this environment."""


def main() -> int:
    """Return 1 where a symbol is not known."""
    bin_dir = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as elsewhere:  # here the package would be no installed one
        done = subprocess.run(
            [bin_dir / "pyright", "--outputjson", "--ignoreexternal", "--verifytypes", PACKAGE],
            cwd=elsewhere,
            env=os.environ | {"PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    unknown = [
        each
        for each in symbols
        if (each["isTypeAmbiguous"] or not each["isTypeKnown"])
        and not each["name"].startswith(UNSEEN)
    ]
    for each in unknown:
        print(each["name"])
        for said in each.get("diagnostics", ()):
            print("   ", " ".join(said["message"].split()))
    print(f"{len(symbols) - len(unknown)} of {len(symbols)} symbols have a known type")
    return 1 if unknown or not symbols else 0


if __name__ == "__main__":
    sys.exit(main())

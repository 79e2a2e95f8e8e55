"""Entry point of the ``rocketstream`` command.

Law: imports nothing that may be missing before it has said how to install it.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Sequence

_NEEDED = ("click", "rich")
GARBAGE_THRESHOLD = 20_000
"""Collections while importing take a sixth of a short command's time; 700 is Python's own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the program name; None takes the process's.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command line needs {' and '.join(missing)}, which the core install "
            "leaves out; run: pip install 'rocketstream[cli]'\n"
        )
        return 1
    if argv is None:
        # The process's own start: importing makes much that lives on and little garbage.
        gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])
    from rocketstream.cli.app import run

    return run(sys.argv[1:] if argv is None else list(argv))

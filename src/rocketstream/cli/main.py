"""Entry point of the ``rocketstream`` command.

Law: imports no package that may be missing before it has named the way to install it, and next to
nothing before Ctrl-C is handled.
"""

from __future__ import annotations

import sys

from rocketstream.cli import signals

TYPE_CHECKING = False  # see ``signals``
if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED = ("click", "rich")
GARBAGE_THRESHOLD = 20_000
"""Collections while importing take a sixth of a short command's time; 700 is Python's own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the program name; None takes the process's, and then Ctrl-C,
            standard streams and garbage collection are set up too.
    """
    if argv is not None:
        return _missing() or _run(list(argv))
    interruptible = signals.is_ours()
    if interruptible:
        signals.end_at_once()
    try:
        return _as_process(interruptible)
    except KeyboardInterrupt:  # before or after the code that handles it
        return signals.INTERRUPTED


def _as_process(interruptible: bool) -> int:
    import gc

    # Importing makes much that lives on and little garbage.
    gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])
    code = _missing()
    if code:
        return code
    from rocketstream.cli import app, failure

    failure.open_missing()
    if interruptible:
        signals.end_in_order()
    code = app.run(sys.argv[1:])
    if interruptible:
        signals.end_at_once()
    failure.give_up_unwritten()
    return code


def _missing() -> int:
    import importlib.util

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing and sys.stderr is not None:
        sys.stderr.write(
            f"error: the command line needs {' and '.join(missing)}, which the core install "
            "leaves out; run: pip install 'rocketstream[cli]'\n"
        )
    return 1 if missing else 0


def _run(argv: list[str]) -> int:
    from rocketstream.cli.app import run

    return run(argv)

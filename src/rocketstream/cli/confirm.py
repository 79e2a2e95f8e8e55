"""The question before something is changed.

Law: no other module asks for confirmation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rocketstream.cli.declare import BadParameter
from rocketstream.cli.failure import say
from rocketstream.cli.shown import shown
from rocketstream.errors import ConfigurationError


def confirm(what: Sequence[str], yes: bool) -> None:
    """Show the changes and go on only when the user agrees.

    Lines and question go to stderr, so that ``--json`` output stays JSON.

    Args:
        what: the changes, a line each.
        yes: agreed to beforehand (``--yes``): the lines are shown, nothing is asked.

    Raises:
        BadParameter: there is no terminal to ask on; exit code 2.
        ConfigurationError: the user said no; exit code 1.
    """
    for line in what:
        say(shown(line))
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadParameter(
            "nothing was changed: there is no terminal to ask on; give --yes to change it "
            "without being asked"
        )
    sys.stderr.write("Do it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigurationError("you did not say yes; nothing was changed")

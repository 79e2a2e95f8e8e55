"""``rocketstream top``: a live view of groups, topics and brokers in the terminal.

``views`` decides the content.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated

from rocketstream.cli.declare import BadParameter, Commands, Option
from rocketstream.cli.options import DEFAULT_NAMESRV, Namesrv
from rocketstream.errors import ConfigurationError


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(top, epilog="Example: `rocketstream top --filter billing`; in it, `?` shows the keys")


def top(
    interval: Annotated[
        float,
        Option(
            "--interval",
            min=1,
            metavar="SECONDS",
            help="From one sweep over the cluster to the next; a slow sweep stretches it.",
        ),
    ] = 5,
    wanted: Annotated[
        str, Option("--filter", metavar="TEXT", help="Show only names with this text.")
    ] = "",
    view: Annotated[
        str, Option("--view", metavar="groups|topics|brokers", help="What to show first.")
    ] = "groups",
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Watch groups, topics and brokers live: who is behind, since when, and how fast it moves.

    The cluster is asked by one sweep at a time, however often the screen is drawn.
    """
    if importlib.util.find_spec("textual") is None:
        raise ConfigurationError(
            "top needs textual, which this install leaves out; run: pip install 'rocketstream[top]'"
        )
    if view not in ("groups", "topics", "brokers"):
        raise BadParameter(f"--view is {view!r}; accepted are groups, topics, brokers")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadParameter("top needs a terminal; `rocketstream group list` shows the groups once")
    from rocketstream.cli.top.running import run

    run(namesrv, interval, wanted, view)

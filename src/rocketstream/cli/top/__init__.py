"""``rocketstream top``: a live view of groups, topics and brokers in the terminal.

``views`` decides the content.
"""

from __future__ import annotations

import importlib.util
import sys

import click
from click import BadParameter

from rocketstream.cli.commands import asks, interval, option
from rocketstream.errors import ConfigurationError


@click.command(epilog="Example: `rocketstream top --filter billing`; in it, `?` shows the keys")
@interval(default=5)
@option(
    "--filter TEXT", "Show only names with this text.", to="wanted", default="", show_default=False
)
@option("--view groups|topics|brokers", "What to show first.", click.Choice, default="groups")
@asks
def top(interval: float, wanted: str, view: str, namesrv: str) -> None:
    """Watch groups, topics and brokers live: who is behind, since when, and how fast it moves.

    The cluster is asked by one sweep at a time, however often the screen is drawn.
    """
    if importlib.util.find_spec("textual") is None:
        raise ConfigurationError(
            "top needs textual, which this install leaves out; run: pip install 'rocketstream[top]'"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadParameter("top needs a terminal; `rocketstream group list` shows the groups once")
    from rocketstream.cli.top.screen import run

    run(namesrv, interval, wanted, view)

"""``rocketstream group …``: the commands on groups, and the modules they are in."""

from __future__ import annotations

from typing import Final

from rocketstream.cli.declare import Commands

COMMANDS: Final = {
    "list": "group_list",
    "lag": "group_lag",
    "why": "group_why",
    "members": "group_members",
    "running-info": "group_members",
    "reset": "group_reset",
    "clone": "group_reset",
    "undo": "group_reset",
    "settings": "group_settings",
    "create": "group_settings",
    "update": "group_settings",
    "pause": "group_settings",
    "resume": "group_settings",
    "delete": "group_settings",
}
"""Each command and the module it is in, in the order help shows them."""


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("group", "Consumer groups and how far behind they are.")
    commands.add_later(COMMANDS)
    app.add_command(commands)

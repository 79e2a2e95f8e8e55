"""``rocketstream completion SHELL``, and the command that its scripts call.

Law: on any error a shell gets no names and no noise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

from rocketstream.cli.completing import SCRIPTS, TIMEOUT_MS, complete
from rocketstream.cli.declare import Argument, BadParameter, Commands
from rocketstream.cli.looking import brokers_of
from rocketstream.cli.options import DEFAULT_NAMESRV
from rocketstream.cli.output import print_line
from rocketstream.errors import RocketMQError


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(completion, epilog='Example: `eval "$(rocketstream completion bash)"` in ~/.bashrc')


def completion(
    shell: Annotated[
        str, Argument(metavar="bash|zsh|fish", help="The shell to print the script for.")
    ],
) -> None:
    """Print a script by which a shell completes commands, options, and topic and group names."""
    if shell not in SCRIPTS:
        raise BadParameter(f"{shell!r} is given; accepted are {', '.join(SCRIPTS)}")
    print_line(SCRIPTS[shell].rstrip())


def answer(root: Any, words: Sequence[str]) -> None:
    """Print the words that may come next, one a line."""
    for word in complete(root, words, partial(_names, _name_server(words))):
        print_line(word)


def _name_server(words: Sequence[str]) -> str:
    for option, value in pairwise(words):
        if option in ("-n", "--namesrv"):
            return value
    return os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV


def _names(namesrv: str, kind: str) -> list[str]:
    try:
        with brokers_of(namesrv, TIMEOUT_MS) as admin:
            if kind == "topics":
                return admin.topics.names()
            if kind == "groups":
                return admin.groups.names()
            return sorted({row.broker_name for row in admin.brokers.all()})
    except (RocketMQError, OSError):
        return []

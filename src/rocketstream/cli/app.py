"""The command tree, its help texts, and how it is run."""

from __future__ import annotations

import os
from typing import Annotated, Final

from rocketstream import __version__
from rocketstream.cli import completion, reach, viewing
from rocketstream.cli.completing import ASKING
from rocketstream.cli.declare import BadParameter, Commands, Exit, Option
from rocketstream.cli.failure import EXIT_USAGE, guard
from rocketstream.cli.output import let_all_through, look, print_line, shown
from rocketstream.client.credentials import (
    ACCESS_KEY_VARIABLE,
    KEY_FILE_VARIABLE,
    SECRET_KEY_VARIABLE,
    read_credentials,
)

COMMANDS: Final = {
    "serve": "serve",
    "store": "store",
    "topic": "topic",
    "send": "send",
    "consume": "consume",
    "group": "group",
    "message": "message",
    "dlq": "dlq",
    "top": "top",
    "metrics": "metrics",
    "mcp": "mcp",
    "alerts": "alerts",
    "dashboard": "dashboard",
    "cluster": "cluster",
    "broker": "broker",
    "producer": "producer",
    "namesrv": "name_server",
    "export": "transfer",
    "import": "transfer",
    "ingest": "ingest",
    "backfill": "backfill",
    "spark-env": "spark_env",
    "completion": "completion",
}
"""Each command and the module it is in, in the order help shows them.

Only the module of the command that runs is imported: all of them take longer than most commands.
"""

_EPILOG = (
    "Example: `rocketstream serve` in one terminal; in another "
    "`rocketstream send greetings hello`, then "
    "`rocketstream consume greetings --group g --from earliest --max 1`."
)


def _print_version(asked: bool) -> None:
    if asked:
        print_line(f"rocketstream {__version__}")
        raise Exit


def _options(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
    namesrv: Annotated[
        str,
        Option(
            "--namesrv",
            "-n",
            metavar="HOST:PORT",
            help="Name server for the command; may also be given after the command.",
        ),
    ] = "",
    key_file: Annotated[
        str,
        Option(
            reach.KEY_FILE_OPTION,
            metavar="FILE",
            help="File with accessKey and secretKey of a cluster with access control; "
            f"without it the variables {KEY_FILE_VARIABLE}, or {ACCESS_KEY_VARIABLE} and "
            f"{SECRET_KEY_VARIABLE}. May also be given after the command.",
        ),
    ] = "",
) -> None:
    """Take the options that stand before the command."""
    if namesrv:
        os.environ["NAMESRV_ADDR"] = namesrv
    if key_file:
        read_credentials(key_file)  # told now, not at the first look of a command that goes on
        os.environ[KEY_FILE_VARIABLE] = key_file


app = Commands(
    "rocketstream",
    "RocketMQ for Python: serve, send, consume, look at progress, land topics with Spark.",
    callback=_options,
    epilog=_EPILOG,
    settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_later(COMMANDS)
app.view = viewing.add_views


def _as_text(word: str) -> str:
    """Return an argument with its bytes read as UTF-8, not as the locale read them."""
    try:
        return os.fsencode(word).decode() if not word.isascii() else word
    except UnicodeEncodeError:
        return word
    except UnicodeDecodeError:
        raise BadParameter(
            f"{shown(word)} is not UTF-8; arguments are text (send takes bytes with --file, or "
            "with --stdin and --whole)"
        ) from None


def run(argv: list[str]) -> int:
    """Run the command line; returns the exit code, raises nothing."""
    let_all_through()
    look.reset()

    def action() -> int:
        if argv[:1] == [ASKING]:
            completion.answer(app, argv[1:])
            return 0
        given = reach.to_the_front(argv or ["--help"])
        words = viewing.with_seconds([_as_text(word) for word in given])
        try:
            with app.make_context("rocketstream", words) as context:
                app.invoke(context)
        except Exit as ended:
            return ended.exit_code
        return 0

    return guard(action) if argv else guard(action) or EXIT_USAGE

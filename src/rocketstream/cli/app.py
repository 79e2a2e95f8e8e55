"""The command tree, its help texts, and how it is run.

Law: wiring only; each command's work is in its own module.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rocketstream.cli import (
    backfill,
    consume,
    dlq,
    group,
    ingest,
    message,
    send,
    serve,
    spark_env,
    topic,
)
from rocketstream.cli.failure import guard
from rocketstream.cli.output import print_line

_EPILOG = (
    "Example: `rocketstream serve` in one terminal; in another "
    "`rocketstream send greetings hello`, then "
    "`rocketstream consume greetings --group g --from earliest --max 1`."
)

app = typer.Typer(
    name="rocketstream",
    help="RocketMQ for Python: serve, send, consume, look at progress, land topics with Spark.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        print_line(f"rocketstream {metadata.version('rocketstream')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
    namesrv: Annotated[
        str,
        typer.Option(
            "--namesrv",
            "-n",
            metavar="HOST:PORT",
            help="Name server for the command; may also stand behind it.",
        ),
    ] = "",
) -> None:
    """Take the options that stand before the command."""
    if namesrv:
        os.environ["NAMESRV_ADDR"] = namesrv


serve.add_to(app)
topic.add_to(app)
send.add_to(app)
consume.add_to(app)
group.add_to(app)
message.add_to(app)
dlq.add_to(app)
ingest.add_to(app)
backfill.add_to(app)
spark_env.add_to(app)


def run(argv: list[str]) -> int:
    """Run the command line; returns the exit code, raises nothing."""

    def action() -> int:
        if not argv:
            app(["--help"], prog_name="rocketstream", standalone_mode=False)
            return 2
        result = app(argv, prog_name="rocketstream", standalone_mode=False)
        return result if isinstance(result, int) else 0

    return guard(action)

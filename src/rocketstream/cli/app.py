"""The ``rocketstream`` command: its commands, the options before them, and how it is run."""

from __future__ import annotations

import logging
import os
from typing import Final

import click
from click import BadParameter

from rocketstream import __version__
from rocketstream.cli.commands import Commands, argument, option, use_key_file
from rocketstream.cli.failure import EXIT_USAGE, guard
from rocketstream.cli.output import let_all_through, look, print_line
from rocketstream.cli.tables import shown
from rocketstream.client.credentials import (
    ACCESS_KEY_VARIABLE,
    KEY_FILE_VARIABLE,
    SECRET_KEY_VARIABLE,
)

COMMANDS: Final = {
    "serve": "serve:serve",
    "store": "serve:store",
    "topic": "topic:topic",
    "send": "send:send",
    "consume": "consume:consume",
    "group": "group:group",
    "message": "message:message",
    "dlq": "dlq:dlq",
    "top": "top:top",
    "metrics": "metrics:metrics",
    "mcp": "metrics:mcp",
    "alerts": "metrics:alerts",
    "dashboard": "dashboard:dashboard",
    "cluster": "cluster:cluster",
    "broker": "cluster:broker",
    "producer": "cluster:producer",
    "namesrv": "cluster:name_server",
    "export": "cluster:export",
    "import": "cluster:import_",
    "ingest": "ingest:ingest",
    "backfill": "backfill:backfill",
    "compact": "compact:compact",
    "spark-env": "landing:spark_env",
    "completion": "app:completion",
}
"""Each command and where it is, in the order help shows them: one that runs imports no other."""
COMPLETE_VARIABLE: Final = "_ROCKETSTREAM_COMPLETE"
"""Set by the scripts of ``completion``, which are click's."""


def _print_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        print_line(f"rocketstream {__version__}")
        context.exit()


@click.group(
    "rocketstream",
    cls=Commands,
    later=COMMANDS,
    help="RocketMQ for Python: serve, send, consume, look at progress, land topics with Spark.",
    epilog="Example: `rocketstream serve` in one terminal; in another "
    "`rocketstream send greetings hello`, then "
    "`rocketstream consume greetings --group g --from earliest --max 1`.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@option(
    "--version",
    "Print the version and end.",
    is_eager=True,
    expose_value=False,
    callback=_print_version,
)
@option(
    "--namesrv, -n HOST:PORT", "Name server for the command; may also be given after the command."
)
@option(
    "--key-file FILE",
    "File with accessKey and secretKey of a cluster with access control; "
    f"without it the variables {KEY_FILE_VARIABLE}, or {ACCESS_KEY_VARIABLE} and "
    f"{SECRET_KEY_VARIABLE}. May also be given after the command.",
    click.Path(),
    expose_value=False,
    callback=use_key_file,
)
def app(namesrv: str | None) -> None:
    """Take the options that stand before the command."""
    if namesrv:
        os.environ["NAMESRV_ADDR"] = namesrv


@click.command(epilog='Example: `eval "$(rocketstream completion bash)"` in ~/.bashrc')
@argument("bash|zsh|fish", "The shell to print the script for.", click.Choice, to="shell")
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands, options, and topic and group names."""
    print_line(script(shell).rstrip())


def script(shell: str) -> str:
    """Return click's completion script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(app, {}, "rocketstream", COMPLETE_VARIABLE).source()


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


def _complete(asked: str) -> int:
    """Print what may come next, and nothing else: a shell shows warnings amid a typed line."""
    from click.shell_completion import shell_complete

    logging.disable()
    return shell_complete(app, {}, "rocketstream", COMPLETE_VARIABLE, asked)


def run(argv: list[str]) -> int:
    """Run the command line; returns the exit code, raises nothing."""
    let_all_through()
    look.reset()

    if asked := os.environ.pop(COMPLETE_VARIABLE, None):
        return _complete(asked)

    def action() -> int:
        try:
            words = [_as_text(word) for word in argv or ["--help"]]
            with app.make_context("rocketstream", words) as context:
                app.invoke(context)
        except click.exceptions.Exit as ended:
            return ended.exit_code
        return 0

    return guard(action) if argv else guard(action) or EXIT_USAGE

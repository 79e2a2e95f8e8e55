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
    "serve": ("serve:serve", "Run a name server and a broker until Ctrl-C or SIGTERM."),
    "store": ("serve:store", "The files of a message store on this machine."),
    "topic": (
        "topic:topic",
        "Create, change and delete topics, list them, see what their queues hold.",
    ),
    "send": (
        "send:send",
        "Send messages: BODY, or one per line of --file or --stdin (blank lines are skipped).",
    ),
    "consume": (
        "consume:consume",
        "Print the bodies of a topic's messages, one a line, until Ctrl-C.",
    ),
    "group": ("group:group", "Consumer groups and how far behind they are."),
    "message": (
        "message:message",
        "Messages: find, follow and trace them, see who consumed them.",
    ),
    "dlq": ("dlq:dlq", "Dead letters: what groups gave up."),
    "top": (
        "top:top",
        "Watch groups, topics and brokers live: who is behind, since when, and how fast it moves.",
    ),
    "metrics": (
        "metrics:metrics",
        "Show metrics in Prometheus' format: rocketmq-exporter's names, a 5.x broker's, and ours.",
    ),
    "mcp": (
        "metrics:mcp",
        "Give agents tools that look at the cluster (Model Context Protocol, on stdin and stdout).",
    ),
    "alerts": (
        "metrics:alerts",
        "Tell webhooks when a group's verdict changes, until Ctrl-C: each change once.",
    ),
    "dashboard": (
        "dashboard:dashboard",
        "Show a cluster in a browser, live: groups and why they are behind, topics, messages, dead "
        "letters.",
    ),
    "cluster": ("cluster:cluster", "Clusters: their brokers and name servers."),
    "broker": ("cluster:broker", "Brokers: load, disk, version, settings."),
    "producer": ("cluster:producer", "Connected producers."),
    "namesrv": (
        "cluster:name_server",
        "Name servers: what each of them knows, their settings.",
    ),
    "export": (
        "cluster:export",
        "Write settings of topics and groups, and the offsets of groups, to a file.",
    ),
    "import": (
        "cluster:import_",
        "Make the topics, groups and offsets of a cluster those of a file; deletes nothing.",
    ),
    "ingest": (
        "ingest:ingest",
        "Land topics as a table with Spark, each message exactly once in tables of files.",
    ),
    "backfill": (
        "backfill:backfill",
        "Land a closed range of topics as a table: from brokers, or straight from a store "
        "directory.",
    ),
    "compact": (
        "compact:compact",
        "Put what `ingest` has landed into fewer, greater files, beside the landing and its "
        "readers.",
    ),
    "spark-env": (
        "landing:spark_env",
        "Print the settings with which a Spark program finds Java and the `rocketmq` source.",
    ),
    "completion": (
        "app:completion",
        "Print a script by which a shell completes commands, options, and topic and group names.",
    ),
}
"""Each command, where it is, and its summary, in the order help shows them.

Only the module of the command that runs is imported: all of them take longer than most commands.
"""
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

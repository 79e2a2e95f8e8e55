"""``rocketstream export`` and ``import``: topics, groups and offsets as a file.

``Admin`` decides what differs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from rocketstream.admin.core.words import plural
from rocketstream.cli.changing import FORCE, Change, changes
from rocketstream.cli.commands import argument, asks, names, option, pairs
from rocketstream.cli.output import print_json, print_line
from rocketstream.errors import ConfigurationError


@click.command(epilog="Example: `rocketstream export cluster.json`")
@argument("FILE", "Where to write it; `-` prints it.", click.Path())
@option(
    "--topic, -t TOPIC",
    "Only this one; repeatable.",
    to="topics",
    multiple=True,
    shell_complete=names("topics"),
)
@option(
    "--group, -g GROUP",
    "Only this one; repeatable.",
    to="groups",
    multiple=True,
    shell_complete=names("groups"),
)
@asks
def export(file: str, topics: tuple[str, ...], groups: tuple[str, ...], namesrv: str) -> None:
    """Write settings of topics and groups, and the offsets of groups, to a file.

    No messages. The brokers' own topics and groups, and the retry and dead-letter topics that
    brokers make themselves, are left out.
    """
    from rocketstream.admin import Admin

    with Admin(namesrv, read_only=True) as admin:
        found = admin.changes.export(list(topics) or None, list(groups) or None)
    if file == "-":
        print_json(found.to_json())
        return
    _write(Path(file), json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
    names = {topic for _, topic in found.topics}
    consumers = {group for _, group in found.groups} | {group for group, _ in found.offsets}
    print_line(
        f"{file}: {plural(len(names), 'topic')}, {plural(len(consumers), 'group')}, "
        f"{plural(len(found.offsets), 'offset')}"
    )


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


@click.command("import", epilog="Example: `rocketstream import cluster.json --dry-run`")
@argument("FILE", "What `export` wrote.", click.Path())
@option("--no-offsets", "Leave groups where they are.")
@option(
    "--broker FILE=CLUSTER",
    "Which broker of the cluster a broker of the file stands for; repeatable.",
    to="brokers",
    multiple=True,
)
@changes(force=FORCE)
def import_(file: str, no_offsets: bool, brokers: tuple[str, ...], change: Change) -> None:
    """Make the topics, groups and offsets of a cluster those of a file; deletes nothing.

    Shows every difference and asks. Offsets fit where the messages are the same; those beyond the
    end of a queue are left out.
    """
    given = pairs("--broker", brokers, "FILE=CLUSTER")
    with change.admin() as admin:
        change.finish(admin, admin.changes.import_plan(file, offsets=not no_offsets, brokers=given))

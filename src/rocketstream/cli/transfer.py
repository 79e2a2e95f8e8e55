"""``rocketstream export`` and ``import``: topics, groups and offsets as a file.

``Admin`` decides what differs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

from rocketstream.cli.changing import AuditFile, DryRun, Yes, changing_admin
from rocketstream.cli.declare import Argument, BadParameter, Commands, Option
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import plural, print_json, print_line
from rocketstream.cli.planned import finish
from rocketstream.errors import ConfigurationError


def add_to(app: Commands) -> None:
    """Add the commands."""
    app.add(export, "export", epilog="Example: `rocketstream export cluster.json`")
    app.add(import_, "import", epilog="Example: `rocketstream import cluster.json --dry-run`")


def export(
    file: Annotated[str, Argument(metavar="FILE", help="Where to write it; `-` prints it.")],
    topics: Annotated[
        list[str],
        Option("--topic", "-t", metavar="TOPIC", help="Only this one; repeatable."),
    ] = [],  # noqa: B006 - click reads it, nobody changes it
    groups: Annotated[
        list[str],
        Option("--group", "-g", metavar="GROUP", help="Only this one; repeatable."),
    ] = [],  # noqa: B006 - click reads it, nobody changes it
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Write settings of topics and groups, and the offsets of groups, to a file.

    No messages. The brokers' own topics and groups, and the retry and dead-letter topics that
    brokers make themselves, are left out.
    """
    from rocketstream.admin import Admin

    with Admin(namesrv, read_only=True) as admin:
        found = admin.changes.export(topics or None, groups or None)
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


def import_(
    file: Annotated[str, Argument(metavar="FILE", help="What `export` wrote.")],
    no_offsets: Annotated[
        bool, Option("--no-offsets", help="Leave groups where they are.")
    ] = False,
    brokers: Annotated[
        list[str],
        Option(
            "--broker",
            metavar="FILE=CLUSTER",
            help="Which broker of the cluster a broker of the file stands for; repeatable.",
        ),
    ] = [],  # noqa: B006 - click reads it, nobody changes it
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Annotated[bool, Option("--force", help="Do it even where it would be refused.")] = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Make the topics, groups and offsets of a cluster those of a file; deletes nothing.

    Shows every difference and asks. Offsets fit where the messages are the same; those beyond the
    end of a queue are left out.
    """
    given = {}
    for text in brokers:
        old, equals, new = text.partition("=")
        if not (equals and old and new):
            raise BadParameter(f"--broker is {text!r}; it takes FILE=CLUSTER")
        given[old] = new
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.import_plan(file, offsets=not no_offsets, brokers=given)
        finish(admin, plan, dry_run=dry_run, yes=yes, force=force, as_json_=as_json_)

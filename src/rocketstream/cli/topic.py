"""``rocketstream topic create|list|status``.

Law: options in, rows of ``Admin`` out.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    NONE,
    UNKNOWN,
    Column,
    as_json,
    moment,
    number,
    plural,
    print_json,
    print_line,
    print_table,
)

_PERMISSIONS = {"rw": 6, "r": 4, "w": 2}


def add_to(app: typer.Typer) -> None:
    """Add the command group."""
    commands = typer.Typer(
        help="Create topics, list them, see what their queues hold.", no_args_is_help=True
    )
    commands.command(epilog="Example: `rocketstream topic create orders --queues 8`")(create)
    commands.command("list", epilog="Example: `rocketstream topic list --all --json`")(list_topics)
    commands.command(epilog="Example: `rocketstream topic status orders`")(status)
    app.add_typer(commands, name="topic")


def create(
    topic: Topic,
    queues: Annotated[
        int, typer.Option("--queues", "-q", min=1, help="Queues on each broker.")
    ] = 8,
    permission: Annotated[
        str, typer.Option("--perm", metavar="rw|r|w", help="What clients may do with it.")
    ] = "rw",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Create a topic on every broker, or change the queues of one that exists."""
    from rocketstream.admin import Admin

    if permission not in _PERMISSIONS:
        raise typer.BadParameter(f"--perm is {permission!r}; accepted are rw, r, w")
    with Admin(namesrv) as admin:
        rows = admin.topic_create(topic, queues, _PERMISSIONS[permission])
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    brokers = ", ".join(row.broker_name for row in rows)
    print_line(f"created {topic}: {plural(queues, 'queue')} on {brokers}")


def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show retry, dead letter and system topics too.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """List the topics of the cluster."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        rows = admin.topic_list()
    shown = rows if everything else [row for row in rows if row.kind == "normal"]
    if as_json_:
        print_json([as_json(row) for row in shown])
        return
    hidden = len(rows) - len(shown)
    hint = f" ({hidden} retry, dead letter and system topics hidden; --all shows them)"
    print_table(
        [
            Column("Topic", keep=True),
            Column("Kind"),
            Column("Read queues", number=True),
            Column("Write queues", number=True),
            Column("Permission"),
            Column("Brokers"),
        ],
        [
            (
                row.topic,
                row.kind,
                number(row.read_queues),
                number(row.write_queues),
                row.permission or UNKNOWN,
                ", ".join(row.brokers) or UNKNOWN,
            )
            for row in shown
        ],
        footer=plural(len(shown), "topic") + (hint if hidden else ""),
    )


def status(topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show the offsets and the newest message's time of each queue of a topic."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        rows = admin.topic_status(topic)
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_table(
        [
            Column("Broker", keep=True),
            Column("Queue", number=True),
            Column("Min offset", number=True),
            Column("Max offset", number=True),
            Column("Messages", number=True),
            Column("Last update", keep=True),
        ],
        [
            (
                row.broker_name,
                str(row.queue_id),
                number(row.min_offset),
                number(row.max_offset),
                number(row.message_count),
                moment(row.last_update_ms, NONE),
            )
            for row in rows
        ],
        footer=f"{topic}: {plural(sum(row.message_count for row in rows), 'message')} "
        f"in {plural(len(rows), 'queue')}",
    )

"""``rocketstream group list|lag|members|running-info``; reset and clone are beside it.

Law: options in, rows of ``Admin`` out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rocketstream.cli import group_reset
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    duration,
    moment,
    number,
    plural,
    print_json,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from rocketstream.admin.rows import GroupRow, LagRow, RunningInfoRow


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


def add_to(app: typer.Typer) -> None:
    """Add the command group."""
    commands = typer.Typer(
        help="Consumer groups and how far behind they are.", no_args_is_help=True
    )
    commands.command("list", epilog="Example: `rocketstream group list --json`")(list_groups)
    commands.command(epilog="Example: `rocketstream group lag billing --topic orders`")(lag)
    commands.command(epilog="Example: `rocketstream group members billing`")(members)
    commands.command(
        "running-info", epilog="Example: `rocketstream group running-info billing --stack`"
    )(running_info)
    group_reset.add_to(commands)
    app.add_typer(commands, name="group")


def list_groups(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """List the consumer groups with members, topics and lag."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        rows = admin.group_list()
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_table(
        [
            Column("Group", keep=True),
            Column("Members", number=True),
            Column("Model"),
            Column("Lag", number=True),
            Column("Topics"),
        ],
        [_group_cells(row) for row in rows],
        footer=plural(len(rows), "group"),
    )


def _group_cells(row: GroupRow) -> tuple[str, ...]:
    nothing = row.lag is None and not row.queues_unknown
    lag = NONE if nothing else number(row.lag)
    if row.queues_unknown and row.lag is not None:
        lag += f" + {plural(row.queues_unknown, 'queue')} unknown"
    return (
        row.group,
        number(row.members),
        row.message_model or NONE,
        lag,
        ", ".join(row.topics) or NONE,
    )


def lag(
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="The group; all groups when left out.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only the queues of this topic.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show per queue how many messages and how much time a group is behind."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        groups = [group] if group is not None else [row.group for row in admin.group_list()]
        rows = [row for name in groups for row in admin.group_lag(name, topic)]
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_lag(rows, named=group is None)


def print_lag(rows: list[LagRow], *, named: bool) -> None:
    """Print lag rows as a table; ``named`` adds a column with the group."""
    from rocketstream.admin import total_lag

    columns = [
        Column("Topic", keep=True),
        Column("Broker", keep=True),
        Column("Queue", number=True),
        Column("Broker offset", number=True),
        Column("Committed", number=True),
        Column("Lag", number=True),
        Column("Time lag", number=True),
        Column("Last consumed", keep=True),
        Column("Owner"),
    ]
    if named:
        columns.insert(0, Column("Group", keep=True))
    known, unknown = total_lag(rows)
    footer = f"total lag {number(known if rows else 0)} in {plural(len(rows), 'queue')}"
    if unknown:
        footer += f"; {plural(unknown, 'queue')} without a committed offset not counted"
    print_table(columns, [_lag_cells(row, named) for row in rows], footer=footer)


def _lag_cells(row: LagRow, named: bool) -> tuple[str, ...]:
    cells = (
        row.topic,
        row.broker_name,
        str(row.queue_id),
        number(row.broker_offset),
        NONE if row.consumer_offset is None else number(row.consumer_offset),
        number(row.lag),
        duration(row.time_lag_ms),
        moment(row.last_consumed_ms),
        row.client_id or NONE,
    )
    return (row.group, *cells) if named else cells


def members(group: Group, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show the connected members of a group and what they subscribe."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        row = admin.group_connections(group)
    if as_json_:
        shown = as_json(row)
        shown["members"] = [as_json(member) for member in row.members]
        shown["subscriptions"] = [as_json(each) for each in row.subscriptions]
        print_json(shown)
        return
    print_table(
        [
            Column("Client", keep=True),
            Column("Address", keep=True),
            Column("Language"),
            Column("Version", number=True),
        ],
        [(m.client_id, m.address, m.language, str(m.version)) for m in row.members],
    )
    for each in row.subscriptions:
        print_line(f"subscribes {each.topic} {each.expression_type} {each.expression}")
    print_line(f"{plural(len(row.members), 'member')}, {row.message_model}, {row.consume_type}")


def running_info(
    group: Group,
    client: Annotated[
        str | None,
        typer.Argument(metavar="CLIENT", help="Client id of one member; all when left out."),
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stack", help="Also show the stacks of its threads.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Ask members what they are doing: queues, rates, settings."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        rows = admin.running_info(group, client, stacks=stacks)
    if as_json_:
        print_json([_running_json(row) for row in rows])
        return
    for row in rows:
        _print_running(row)


def _running_json(row: RunningInfoRow) -> dict[str, object]:
    shown = as_json(row)
    shown["subscriptions"] = [as_json(each) for each in row.subscriptions]
    shown["queues"] = [as_json(each) for each in row.queues]
    return shown


def _print_running(row: RunningInfoRow) -> None:
    print_line(f"{row.client_id} of group {row.group}")
    print_table(
        [
            Column("Topic", keep=True),
            Column("Broker", keep=True),
            Column("Queue", number=True),
            Column("Committed", number=True),
            Column("Cached", number=True),
            Column("Locked"),
            Column("Last pull", keep=True),
            Column("Last consumed", keep=True),
        ],
        [
            (
                queue.topic,
                queue.broker_name,
                str(queue.queue_id),
                number(queue.commit_offset),
                number(queue.cached),
                "yes" if queue.locked else "no",
                moment(queue.last_pull_ms),
                moment(queue.last_consume_ms),
            )
            for queue in row.queues
        ],
        footer=plural(len(row.queues), "queue"),
    )
    for topic, rates in row.rates.items():
        print_line(f"{topic}: " + ", ".join(f"{name} {rate:g}" for name, rate in rates.items()))
    for name, value in row.properties.items():
        print_line(f"{name} = {value}")
    if row.stacks:
        print_line(row.stacks)

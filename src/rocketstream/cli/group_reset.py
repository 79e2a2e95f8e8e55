"""``rocketstream group reset|clone``: moving groups, shown before done.

Law: a plan is printed first; nothing that passes unconsumed messages happens without --force.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    number,
    plural,
    print_json,
    print_line,
    print_table,
)
from rocketstream.cli.start import parse_start
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.admin.rows import ResetRow

TO_EARLIEST_MS, TO_LATEST_MS = 0, -1

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would change; change nothing.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Also pass messages the group has not consumed.")
]


def add_to(commands: typer.Typer) -> None:
    """Add the commands to ``group``."""
    commands.command(
        epilog="Example: `rocketstream group reset billing orders --to-time 2024-05-01T12:00:00`"
    )(reset)
    commands.command(epilog="Example: `rocketstream group clone billing billing-v2 --dry-run`")(
        clone
    )


def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")],
    topic: Topic,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIMESTAMP",
            help="The message stored nearest to a time: 2024-05-01T12:00:00, with or without "
            "zone, or milliseconds since 1970.",
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="The oldest message of each queue.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="The end of each queue: skip what waits.")
    ] = False,
    dry_run: DryRun = False,
    force: Force = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Move a group back or forward in a topic.

    Connected members move themselves and pause for about ten seconds; where nobody is connected
    the stored offsets are replaced.
    """
    from rocketstream.admin import Admin

    timestamp_ms = _target(to_time, to_earliest, to_latest)
    with Admin(namesrv) as admin:
        plan = admin.group_reset_plan(group, topic, timestamp_ms)
        if not dry_run:
            _refuse_skipping(plan, group, force)
            plan = admin.group_reset(group, topic, timestamp_ms, force=force)
    _show(plan, group, done=not dry_run, as_json_=as_json_)


def _target(to_time: str | None, to_earliest: bool, to_latest: bool) -> int:
    if (to_time is not None) + to_earliest + to_latest != 1:
        raise typer.BadParameter("give one of --to-time, --to-earliest and --to-latest")
    if to_time is None:
        return TO_EARLIEST_MS if to_earliest else TO_LATEST_MS
    timestamp_ms = parse_start(to_time, "--to-time").timestamp_ms
    if timestamp_ms is None:
        raise typer.BadParameter(f"--to-time is {to_time!r}; it takes a time")
    return timestamp_ms


def _refuse_skipping(plan: Sequence[ResetRow], group: str, force: bool) -> None:
    skipped = sum(row.skipped for row in plan)
    if skipped and not force:
        queues = sum(1 for row in plan if row.skipped)
        raise ConfigurationError(
            f"group {group!r} would never consume {plural(skipped, 'message')} in "
            f"{plural(queues, 'queue')}; --dry-run shows them, --force does it"
        )


def clone(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group to copy from.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group to copy to.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only this topic; all when left out.")
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Give a group the offsets of another one."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        plan = admin.group_clone_plan(source, target, topic)
        if not dry_run:
            admin.group_clone(source, target, topic, force=force)
            plan = [dataclasses.replace(row, by="broker") for row in plan]
    _show(plan, target, done=not dry_run, as_json_=as_json_)


def _show(rows: Sequence[ResetRow], group: str, *, done: bool, as_json_: bool) -> None:
    if as_json_:
        more = [{"skipped": row.skipped, "again": row.again} for row in rows]
        print_json([as_json(row) | each for row, each in zip(rows, more, strict=True)])
        return
    print_table(
        [
            Column("Topic", keep=True),
            Column("Broker", keep=True),
            Column("Queue", number=True),
            Column("Committed", number=True),
            Column("New offset", number=True),
            Column("Again", number=True),
            Column("Skipped", number=True),
        ],
        [_cells(row) for row in rows],
    )
    again, skipped = sum(row.again for row in rows), sum(row.skipped for row in rows)
    what = f"{plural(again, 'message')} again, {plural(skipped, 'message')} skipped"
    if not done:
        print_line(f"dry run: {group} would consume {what}; nothing was changed")
    elif any(row.by == "members" for row in rows):
        print_line(f"{group}: {what}; its members move within some ten seconds")
    else:
        print_line(f"{group}: {what}")


def _cells(row: ResetRow) -> tuple[str, ...]:
    return (
        row.topic,
        row.broker_name,
        str(row.queue_id),
        NONE if row.consumer_offset is None else number(row.consumer_offset),
        number(row.target_offset),
        number(row.again),
        number(row.skipped),
    )

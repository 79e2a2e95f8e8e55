"""``rocketstream group list``: every group with its waiting, failed and dead messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstream.cli.declare import Commands
from rocketstream.cli.looking import groups_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    UNKNOWN,
    Column,
    as_json,
    number,
    plural,
    print_json,
    print_prose,
    print_table,
    span,
)

if TYPE_CHECKING:
    from rocketstream.admin.rows import GroupRow


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add(list_groups, "list", epilog="Example: `rocketstream group list --json`")


def list_groups(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """List the consumer groups: lag in messages and time, retries, dead letters, members.

    Lag counts what waits in the topics and in the retry topic. Retrying: in the retry topic, or
    failed and waiting for its delay. Expired: deleted before it was consumed.
    """
    with groups_of(namesrv) as admin:
        rows = admin.groups.all()
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_table(
        [
            Column("Group", keep=True),
            Column("Lag", number=True, colour=waits),
            Column("Time lag", number=True, importance=8),
            Column("Retrying", number=True, importance=7, colour=waits),
            Column("Dead letters", number=True, importance=8, colour=lost),
            Column("Expired", number=True, importance=5, colour=lost),
            Column("Members", number=True, importance=6),
            Column("Model", importance=2),
            Column("Topics", importance=3),
        ],
        [_cells(row) for row in rows],
        footer=plural(len(rows), "group"),
    )
    for why in dict.fromkeys(error for row in rows for error in row.errors):
        print_prose(f"not known: {why}")


def waits(cell: str) -> str | None:
    """Return the colour of a count of messages that wait."""
    return None if cell in ("0", NONE) else "yellow"


def lost(cell: str) -> str | None:
    """Return the colour of a count of messages that are lost to a group unless somebody acts."""
    return None if cell in ("0", NONE) else "red"


def retrying(retries: int | None, delayed: int | None, exact: bool) -> str:
    """Return how many messages will be tried again, ``12+`` where there may be more."""
    if retries is None and delayed is None:
        return UNKNOWN
    more = "" if exact and retries is not None and delayed is not None else "+"
    return number((retries or 0) + (delayed or 0)) + more


def _cells(row: GroupRow) -> tuple[str, ...]:
    nothing = row.lag is None and not row.queues_unknown and not row.errors
    lag = NONE if nothing else number(row.lag)
    if row.queues_unknown and row.lag is not None:
        lag += f" + {plural(row.queues_unknown, 'queue')} unknown"
    return (
        row.group,
        lag,
        NONE if nothing else span(row.time_lag_ms),
        retrying(row.retrying, row.delayed, row.delayed_is_exact),
        number(row.dead_letters),
        NONE if row.expired is None else number(row.expired),
        number(row.members),
        row.message_model or NONE,
        ", ".join(row.topics) or NONE,
    )

"""``rocketstream topic …``: making, changing and deleting topics, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from rocketstream.admin.core.words import NONE, UNKNOWN, moment, number, plural
from rocketstream.cli.changing import FORCE, PERMISSIONS, Change, changes
from rocketstream.cli.commands import (
    Commands,
    Watched,
    Whole,
    looking,
    option,
    pairs,
    shows,
    together,
)
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.output import print_json, print_line, render
from rocketstream.cli.tables import Column, Count, Name
from rocketstream.errors import ClientStateError

topic: Commands = Commands(
    "topic", help="Create, change and delete topics, list them, see what their queues hold."
)
_marks = together(
    option("--order/--no-order", "Mark it as ordered for RocketMQ's tools (5.x).", default=None),
    option(
        "--attribute NAME=VALUE",
        "An attribute of 5.x, `message.type=FIFO`; `NAME=` removes one.",
        to="attributes",
        multiple=True,
    ),
)


def _permission(default: str | None) -> Callable[[Any], Any]:
    return option(
        "--perm rw|r|w",
        "What clients may do with it.",
        click.Choice,
        to="permission",
        default=default,
    )


@topic.command(epilog="Example: `rocketstream topic create orders --queues 8`")
@topic_argument
@option("--queues, -q N", "Queues on each broker.", Whole(1), default=8)
@_permission("rw")
@_marks
@changes(yes="For scripts: nothing is asked anyway, it only adds something.")
def create(
    topic: str,
    queues: int,
    permission: str,
    order: bool | None,
    attributes: tuple[str, ...],
    change: Change,
) -> None:
    """Create a topic on every broker. One that is there already is left alone (`topic update`)."""
    kept = {name: value for name, value in _attributes(attributes).items() if value is not None}
    perm = PERMISSIONS[permission]
    with change.admin() as admin:
        plan = admin.changes.topic_create_plan(
            topic, queues, perm, order=bool(order), attributes=kept
        )
        if change.dry_run:
            change.finish(admin, plan)
            return
        done = admin.changes.apply(plan)
        late = [each for each in done.differing if each.note]
        rows = [] if late else admin.topics.route(topic)
    for each in late:
        raise ClientStateError(f"topic {topic!r} at {each.step.where}: {each.note}")
    if change.as_json:
        print_json(rows)
        return
    brokers = ", ".join(row.broker_name for row in rows)
    what = "created" if plan.changes else "there is already"
    print_line(f"{what} {topic}: {plural(queues, 'queue')} on {brokers}")


@topic.command(epilog="Example: `rocketstream topic update orders --queues 16`")
@topic_argument
@option("--queues, -q N", "Read and write queues on each broker.", Whole(1))
@option("--read-queues N", "Queues consumers read.", Whole(1))
@option("--write-queues N", "Queues producers send to.", Whole(1))
@_permission(None)
@_marks
@changes(force=FORCE)
def update(
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    order: bool | None,
    attributes: tuple[str, ...],
    change: Change,
) -> None:
    """Change queues, permission or attributes of a topic on every broker that has it.

    To have fewer queues without leaving messages behind: shrink the write queues first, the read
    queues when these are consumed.
    """
    with change.admin() as admin:
        plan = admin.changes.topic_update_plan(
            topic,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            perm=None if permission is None else PERMISSIONS[permission],
            order=order,
            attributes=_attributes(attributes),
        )
        change.finish(admin, plan)


@topic.command(epilog="Example: `rocketstream topic delete orders --dry-run`")
@topic_argument
@changes(force=FORCE)
def delete(topic: str, change: Change) -> None:
    """Delete a topic with its messages, from every broker and name server.

    Shows what is lost and asks. Refused while members subscribe it; the brokers' own topics are
    never deleted.
    """
    with change.admin() as admin:
        change.finish(admin, admin.changes.topic_delete_plan(topic))


def _attributes(texts: Sequence[str]) -> dict[str, str | None]:
    """Return ``NAME=VALUE`` pairs; ``NAME=`` removes one."""
    return {name: value or None for name, value in pairs("--attribute", texts).items()}


@topic.command("list", cls=Watched, epilog="Example: `rocketstream topic list --all --json`")
@option("--all, -a", "Show retry, dead letter and system topics too.", to="everything")
@shows(watch=True)
def list_topics(everything: bool, namesrv: str, as_json: bool) -> None:
    """List the topics of the cluster."""
    with looking(namesrv) as admin:
        rows = admin.topics.all()
    kept = rows if everything else [row for row in rows if row.kind == "normal"]
    hidden = len(rows) - len(kept)
    hint = f" ({hidden} retry, dead letter and system topics hidden; --all shows them)"
    columns = (
        Name("Topic", lambda row: row.topic),
        Column("Kind", lambda row: row.kind),
        Count("Read queues", lambda row: number(row.read_queues)),
        Count("Write queues", lambda row: number(row.write_queues)),
        Column("Permission", lambda row: row.permission or UNKNOWN),
        Column("Brokers", lambda row: ", ".join(row.brokers) or UNKNOWN),
    )
    render(kept, columns, as_json, footer=plural(len(kept), "topic") + (hint if hidden else ""))


@topic.command(cls=Watched, epilog="Example: `rocketstream topic status orders`")
@topic_argument
@shows(watch=True)
def status(topic: str, namesrv: str, as_json: bool) -> None:
    """Show the offsets and the newest message's time of each queue of a topic."""
    with looking(namesrv) as admin:
        rows = admin.topics.status(topic)
    columns = (
        Name("Broker", lambda row: row.broker_name),
        Count("Queue", lambda row: str(row.queue_id)),
        Count("Min offset", lambda row: number(row.min_offset)),
        Count("Max offset", lambda row: number(row.max_offset)),
        Count("Messages", lambda row: number(row.message_count)),
        Name("Last update", lambda row: moment(row.last_update_ms)),
    )
    held = plural(sum(row.message_count for row in rows), "message")
    render(rows, columns, as_json, footer=f"{topic}: {held} in {plural(len(rows), 'queue')}")


@topic.command(epilog="Example: `rocketstream topic route orders`")
@topic_argument
@shows()
def route(topic: str, namesrv: str, as_json: bool) -> None:
    """Show which brokers have a topic, with how many queues, and what clients may do there."""
    with looking(namesrv) as admin:
        rows = admin.topics.route(topic)
    columns = (
        Name("Broker", lambda row: row.broker_name),
        Name("Address", lambda row: row.address or NONE),
        Count("Read queues", lambda row: number(row.read_queues)),
        Count("Write queues", lambda row: number(row.write_queues)),
        Column("Permission", lambda row: row.permission, importance=5),
    )
    render(rows, columns, as_json, footer=plural(len(rows), "broker"))


@topic.command(epilog="Example: `rocketstream topic consumers orders`")
@topic_argument
@shows()
def consumers(topic: str, namesrv: str, as_json: bool) -> None:
    """Show which consumer groups have progress in a topic, or members that subscribe it."""
    with looking(namesrv) as admin:
        groups = admin.topics.consumers(topic)
    if as_json:
        print_json(list(groups))
        return
    for group in groups:
        print_line(group)
    print_line(plural(len(groups), "group"))

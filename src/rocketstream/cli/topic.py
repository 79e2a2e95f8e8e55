"""``rocketstream topic create|update|delete|list|status``."""

from __future__ import annotations

from typing import Annotated

from rocketstream.cli.changing import AuditFile, DryRun, Yes, changing_admin
from rocketstream.cli.declare import BadParameter, Commands, Option
from rocketstream.cli.looking import brokers_of
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
from rocketstream.cli.planned import finish, split_pair
from rocketstream.errors import ClientStateError

Order = Annotated[
    bool | None,
    Option("--order/--no-order", help="Mark it as ordered for RocketMQ's tools (5.x)."),
]
Attributes = Annotated[
    list[str],
    Option(
        "--attribute",
        metavar="NAME=VALUE",
        help="An attribute of 5.x, `message.type=FIFO`; `NAME=` removes one.",
    ),
]
Force = Annotated[bool, Option("--force", help="Do it even where it would be refused.")]
_PERMISSIONS = {"rw": 6, "r": 4, "w": 2}


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands(
        "topic", "Create, change and delete topics, list them, see what their queues hold."
    )
    commands.add(create, epilog="Example: `rocketstream topic create orders --queues 8`")
    commands.add(update, epilog="Example: `rocketstream topic update orders --queues 16`")
    commands.add(delete, epilog="Example: `rocketstream topic delete orders --dry-run`")
    commands.add(list_topics, "list", epilog="Example: `rocketstream topic list --all --json`")
    commands.add(status, epilog="Example: `rocketstream topic status orders`")
    commands.add_later({"route": "topic_route", "consumers": "topic_route"})
    app.add_command(commands)


def create(
    topic: Topic,
    queues: Annotated[int, Option("--queues", "-q", min=1, help="Queues on each broker.")] = 8,
    permission: Annotated[
        str, Option("--perm", metavar="rw|r|w", help="What clients may do with it.")
    ] = "rw",
    order: Order = None,
    attributes: Attributes = [],  # noqa: B006 - click reads it, nobody changes it
    dry_run: DryRun = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Create a topic on every broker. One that is there already is left alone (`topic update`)."""
    perm = _perm(permission)
    kept = {name: value for name, value in _pairs(attributes).items() if value is not None}
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.topic_create_plan(
            topic, queues, perm, order=bool(order), attributes=kept
        )
        if dry_run:
            finish(admin, plan, dry_run=True, yes=True, force=False, as_json_=as_json_)
            return
        done = admin.changes.apply(plan)
        late = [each for each in done.differing if each.note]
        rows = [] if late else admin.topics.route(topic)
    for each in late:
        raise ClientStateError(f"topic {topic!r} at {each.step.where}: {each.note}")
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    brokers = ", ".join(row.broker_name for row in rows)
    what = "created" if plan.changes else "there is already"
    print_line(f"{what} {topic}: {plural(queues, 'queue')} on {brokers}")


def update(
    topic: Topic,
    queues: Annotated[
        int | None,
        Option("--queues", "-q", min=1, help="Read and write queues on each broker."),
    ] = None,
    read_queues: Annotated[
        int | None, Option("--read-queues", min=1, help="Queues consumers read.")
    ] = None,
    write_queues: Annotated[
        int | None, Option("--write-queues", min=1, help="Queues producers send to.")
    ] = None,
    permission: Annotated[
        str | None, Option("--perm", metavar="rw|r|w", help="What clients may do with it.")
    ] = None,
    order: Order = None,
    attributes: Attributes = [],  # noqa: B006 - click reads it, nobody changes it
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Change queues, permission or attributes of a topic on every broker that has it.

    To have fewer queues without leaving messages behind: shrink the write queues first, the read
    queues when these are consumed.
    """
    perm = None if permission is None else _perm(permission)
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.topic_update_plan(
            topic,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            perm=perm,
            order=order,
            attributes=_pairs(attributes),
        )
        finish(admin, plan, dry_run=dry_run, yes=yes, force=force, as_json_=as_json_)


def delete(
    topic: Topic,
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Delete a topic with its messages, from every broker and name server.

    Shows what is lost and asks. Refused while members subscribe it; the brokers' own topics are
    never deleted.
    """
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.topic_delete_plan(topic)
        finish(admin, plan, dry_run=dry_run, yes=yes, force=force, as_json_=as_json_)


def _perm(text: str) -> int:
    if text not in _PERMISSIONS:
        raise BadParameter(f"--perm is {text!r}; accepted are rw, r, w")
    return _PERMISSIONS[text]


def _pairs(texts: list[str]) -> dict[str, str | None]:
    """Return ``NAME=VALUE`` pairs; ``NAME=`` removes one."""
    found: dict[str, str | None] = {}
    for text in texts:
        name, value = split_pair("--attribute", text)
        found[name] = value or None
    return found


def list_topics(
    everything: Annotated[
        bool, Option("--all", "-a", help="Show retry, dead letter and system topics too.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """List the topics of the cluster."""
    with brokers_of(namesrv) as admin:
        rows = admin.topics.all()
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
    with brokers_of(namesrv) as admin:
        rows = admin.topics.status(topic)
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

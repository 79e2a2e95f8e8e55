"""``rocketstream group reset|clone|undo``: moving groups, shown before it is done.

``Admin`` decides which moves are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from rocketstream.cli.changing import AuditFile, DryRun, Yes, changing_admin
from rocketstream.cli.confirm import confirm
from rocketstream.cli.declare import Argument, BadParameter, Commands, Exit, Option
from rocketstream.cli.failure import EXIT_FAILED, say
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    NONE,
    UNKNOWN,
    Column,
    number,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
)
from rocketstream.cli.start import parse_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstream.admin import Admin, ResetDone, ResetPlan, ResetRow, ResetTarget
    from rocketstream.model import MessageQueue

Force = Annotated[
    bool,
    Option(
        "--force",
        help="Do it even where it would be refused: messages that would never be consumed, "
        "members that cannot be told, a group that moved since it was shown.",
    ),
]
NewGroup = Annotated[
    bool,
    Option("--new-group", help="Create the group if no broker knows it."),
]
NoWait = Annotated[
    bool, Option("--no-wait", help="Do not wait until connected members have moved.")
]


def add_to(commands: Commands) -> None:
    """Add the commands to ``group``."""
    commands.add(
        reset,
        epilog="Example: `rocketstream group reset billing orders --to-time 2024-05-01T12:00:00`",
    )
    commands.add(clone, epilog="Example: `rocketstream group clone billing billing-v2 --dry-run`")
    commands.add(
        undo,
        epilog="Example: `rocketstream group undo "
        "~/.local/state/rocketstream/undo/billing-1714564800000-1f2e3d4c.json`",
    )


def reset(
    group: Annotated[str, Argument(metavar="GROUP", help="The consumer group.")],
    topic: Topic,
    to_time: Annotated[
        str | None,
        Option(
            "--to-time",
            metavar="TIMESTAMP",
            help="The message stored nearest to a time: 2024-05-01T12:00:00, with or without "
            "zone, or milliseconds since 1970; the end where all are older.",
        ),
    ] = None,
    to_earliest: Annotated[
        bool, Option("--to-earliest", help="The oldest message of each queue.")
    ] = False,
    to_latest: Annotated[
        bool, Option("--to-latest", help="The end of each queue: skip what waits.")
    ] = False,
    to_offset: Annotated[
        int | None, Option("--to-offset", metavar="N", min=0, help="This offset.")
    ] = None,
    shift: Annotated[
        int | None,
        Option("--shift", metavar="N", help="N messages in each queue: forward, or back (`-100`)."),
    ] = None,
    copy_of: Annotated[
        str | None, Option("--copy-of", metavar="GROUP", help="Where another group is.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        Option(
            "--queue",
            "-q",
            metavar="[BROKER:]ID",
            help="Only this queue; repeatable. Without a broker: the queue of this id on "
            "every broker.",
        ),
    ] = None,
    new_group: NewGroup = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    no_wait: NoWait = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Move a group back or forward in a topic.

    Shows where each queue goes, what that repeats and skips, and asks. Connected members are moved
    too: where brokers cannot move them (4.x) each gets a request, and Java's members pause for
    about ten seconds. A file that takes it back is written first (`group undo`).
    """
    target = _target(to_time, to_earliest, to_latest, to_offset, shift, copy_of)
    with changing_admin(namesrv, audit_file) as admin:
        queues = _queues(admin, topic, queue) if queue else None
        plan = admin.changes.reset_plan(group, topic, target, queues, new_group=new_group)
        _finish(admin, plan, dry_run, yes, force, no_wait, as_json_)


def _target(
    to_time: str | None,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift: int | None,
    copy_of: str | None,
) -> ResetTarget:
    from rocketstream.admin import ResetTarget

    given = [to_time, to_earliest or None, to_latest or None, to_offset, shift, copy_of]
    if sum(each is not None for each in given) != 1:
        raise BadParameter(
            "give one of --to-time, --to-earliest, --to-latest, --to-offset, --shift and --copy-of"
        )
    if to_earliest:
        return ResetTarget.earliest()
    if to_latest:
        return ResetTarget.latest()
    if to_offset is not None:
        return ResetTarget.offset(to_offset)
    if shift is not None:
        return ResetTarget.shift(shift)
    if copy_of is not None:
        return ResetTarget.copy_of(copy_of)
    timestamp_ms = parse_start(to_time or "", "--to-time").timestamp_ms
    if timestamp_ms is None:
        raise BadParameter(f"--to-time is {to_time!r}; it takes a time")
    return ResetTarget.time(timestamp_ms)


def _queues(admin: Admin, topic: str, texts: Sequence[str]) -> list[MessageQueue]:
    """Return the queues ``--queue`` names: ``3``, or ``broker-a:3``."""
    from rocketstream.model import MessageQueue

    brokers = [row.broker_name for row in admin.topics.route(topic)]
    found: list[MessageQueue] = []
    for text in texts:
        broker, colon, queue_id = text.rpartition(":")
        if not queue_id.isdecimal() or (colon and broker not in brokers):
            raise BadParameter(
                f"--queue is {text!r}; it takes a queue id, or BROKER:ID with a broker of the "
                f"topic: {', '.join(brokers)}"
            )
        on = [broker] if colon else brokers
        found += [MessageQueue(topic, each, int(queue_id)) for each in on]
    return found


def clone(
    source: Annotated[str, Argument(metavar="SOURCE", help="The group to copy from.")],
    target: Annotated[str, Argument(metavar="TARGET", help="The group to copy to.")],
    topic: Annotated[
        str | None, Option("--topic", "-t", help="Only this topic; all when left out.")
    ] = None,
    new_group: NewGroup = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    no_wait: NoWait = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Give a group the offsets of another one."""
    from rocketstream.admin import ResetTarget

    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.reset_plan(
            target, topic, ResetTarget.copy_of(source), new_group=new_group
        )
        _finish(admin, plan, dry_run, yes, force, no_wait, as_json_)


def undo(
    file: Annotated[str, Argument(metavar="FILE", help="What a reset wrote before it began.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    no_wait: NoWait = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Take a reset back: every queue goes where it was before."""
    with changing_admin(namesrv, audit_file) as admin:
        _finish(admin, admin.changes.undo(file), dry_run, yes, force, no_wait, as_json_)


def _finish(
    admin: Admin,
    plan: ResetPlan,
    dry_run: bool,
    yes: bool,
    force: bool,
    no_wait: bool,
    as_json_: bool,
) -> None:
    """Show a plan; ask; carry it out; show the result."""
    if dry_run:
        _show(plan, as_json_)
        return
    if not as_json_:
        _show_rows(plan)
    if not plan.moves:
        if as_json_:
            print_json(plan_json(plan))
        else:
            print_line(f"{plan.group} is there already: nothing was changed")
        return
    refused = plan.problems and not force
    # A refused plan is not asked about: apply says why.
    confirm([] if refused else _what(plan), yes or bool(refused))
    from rocketstream.admin.changes.resets import WAIT_MS

    if plan.is_online and not no_wait and not refused:
        say(
            "waiting until its members have moved; Ctrl-C ends only the wait, --no-wait "
            "leaves it out"
        )
    done = admin.changes.reset_apply(plan, force=force, wait_ms=0 if no_wait else WAIT_MS)
    _show_done(done, as_json_, waited=not (no_wait and plan.is_online))
    if done.differing:
        raise Exit(EXIT_FAILED)


def _what(plan: ResetPlan) -> list[str]:
    """Return what will be done, a line each."""
    moved = sum(row.moves for row in plan.rows)
    lines = [
        f"group {plan.group} goes to {plan.target.describe()} in {plural(moved, 'queue')}: "
        f"{plural(plan.repeated, 'message')} again, {plural(plan.skipped, 'message')} skipped",
        plan.how(),
    ]
    if plan.expired:
        lines.append(
            f"{plural(plan.expired, 'message')} it has not consumed are no longer kept; no reset "
            "brings them back"
        )
    return [
        *lines,
        *(f"warning: {each}" for each in plan.warnings),
        *(f"problem: {each}" for each in plan.problems),
    ]


def _show(plan: ResetPlan, as_json_: bool) -> None:
    if as_json_:
        print_json(plan_json(plan))
        return
    _show_rows(plan)
    if not plan.moves:
        print_line(f"{plan.group} is there already: there is nothing to change")
        return
    for line in _what(plan):
        print_prose(line)
    print_line("dry run: nothing was changed")


def _show_rows(plan: ResetPlan) -> None:
    """Show a row for each queue; a value that is the same, or empty, in all of them has no
    column."""
    topics = {row.topic for row in plan.rows}
    columns = [Column("Queue", keep=True), Column("From", number=True), Column("To", number=True)]
    columns += [Column("Again", number=True), Column("Skipped", number=True)]
    expired, clamped = plan.expired > 0, any(row.clamped for row in plan.rows)
    if len(topics) > 1:
        columns.insert(0, Column("Topic", keep=True))
    if expired:
        columns.append(Column("Expired", number=True))
    if clamped:
        columns.append(Column("Note"))
    rows = []
    for row in plan.rows:
        cells = [
            f"{row.broker_name}:{row.queue_id}",
            NONE if row.from_offset is None else number(row.from_offset),
            number(row.to_offset),
            number(row.repeated),
            number(row.skipped),
        ]
        head = [row.topic] if len(topics) > 1 else []
        tail = [number(row.expired)] if expired else []
        rows.append([*head, *cells, *tail, *([row.clamped or ""] if clamped else [])])
    if len(topics) == 1:
        print_line(f"group {plan.group} in topic {topics.pop()}")
    print_table(columns, rows)


def _show_done(done: ResetDone, as_json_: bool, *, waited: bool) -> None:
    if as_json_:
        print_json(_done_json(done))
        return
    for each in done.rows:
        if each.moved is not True:
            row = each.row
            where = f"{row.topic} {row.broker_name}:{row.queue_id}"
            stored = UNKNOWN if each.stored_offset is None else number(each.stored_offset)
            say(f"warning: {where} stands at {stored}, sent to {row.to_offset:,}: {each.note}")
    for row in done.left:
        where = f"{row.topic} {row.broker_name}:{row.queue_id}"
        print_line(f"{where} left alone: the group has passed {row.to_offset:,} by itself")
    moved = sum(each.moved is True for each in done.rows)
    if waited:
        print_line(
            f"{done.plan.group}: {moved} of {plural(len(done.rows), 'queue')} read back there"
        )
    else:
        print_line(f"{done.plan.group}: its members are on their way; not waited for")
    if done.undo_path:
        print_line(f"to take it back: rocketstream group undo {done.undo_path}")


def plan_json(plan: ResetPlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "group": plan.group,
        "topic": plan.topic,
        "target": plan.target.describe(),
        "how": plan.how(),
        "members": list(plan.members),
        "newGroup": plan.new_group,
        "repeated": plan.repeated,
        "skipped": plan.skipped,
        "expired": plan.expired,
        "problems": list(plan.problems),
        "warnings": list(plan.warnings),
        "queues": [_row_json(row) for row in plan.rows],
    }


def _row_json(row: ResetRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "brokerName": row.broker_name,
        "queueId": row.queue_id,
        "minOffset": row.min_offset,
        "maxOffset": row.max_offset,
        "fromOffset": row.from_offset,
        "toOffset": row.to_offset,
        "repeated": row.repeated,
        "skipped": row.skipped,
        "expired": row.expired,
        "clamped": row.clamped,
        "by": str(row.by),
    }


def _done_json(done: ResetDone) -> dict[str, Any]:
    return {
        "group": done.plan.group,
        "undo": done.undo_path,
        "queues": [
            {
                **_row_json(each.row),
                "storedOffset": each.stored_offset,
                "moved": each.moved,
                "note": each.note,
            }
            for each in done.rows
        ],
        "leftAlone": [_row_json(row) for row in done.left],
    }

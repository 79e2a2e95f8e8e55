"""``rocketstream group …``: moving, making, changing, pausing and deleting groups.

Everything is shown before it is done; ``Admin`` decides what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click import BadParameter
from click.exceptions import Exit

from rocketstream.admin.core.words import NONE, UNKNOWN, number, plural, word
from rocketstream.cli.changing import FORCE, Change, changes, setting_text
from rocketstream.cli.commands import (
    Whole,
    argument,
    looking,
    names,
    option,
    pairs,
    parse_start,
    shows,
    together,
)
from rocketstream.cli.commands import group as group_argument
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.failure import EXIT_FAILED, say
from rocketstream.cli.output import print_json, print_line, print_table, render
from rocketstream.cli.tables import Column, Count, Name

if TYPE_CHECKING:
    from rocketstream.admin import Admin, ResetDone, ResetPlan, ResetTarget
    from rocketstream.model import MessageQueue

# --- moving ---------------------------------------------------------------------------------------

_FORCE_MOVE: Final = (
    "Do it even where it would be refused: messages that would never be consumed, members that "
    "cannot be told, a group that moved since it was shown."
)
_new_group = option("--new-group", "Create the group if no broker knows it.")
_no_wait = option("--no-wait", "Do not wait until connected members have moved.")
_target_options = together(
    option(
        "--to-time TIMESTAMP",
        "The message stored nearest to a time: 2024-05-01T12:00:00, with or without "
        "zone, or milliseconds since 1970; the end where all are older.",
    ),
    option("--to-earliest", "The oldest message of each queue."),
    option("--to-latest", "The end of each queue: skip what waits."),
    option("--to-offset N", "This offset.", Whole(0)),
    option("--shift N", "N messages in each queue: forward, or back (`-100`).", int),
    option("--copy-of GROUP", "Where another group is.", shell_complete=names("groups")),
)


@click.command(
    epilog="Example: `rocketstream group reset billing orders --to-time 2024-05-01T12:00:00`"
)
@group_argument
@topic_argument
@_target_options
@option(
    "--queue, -q [BROKER:]ID",
    "Only this queue; repeatable. Without a broker: the queue of this id on every broker.",
    to="queues",
    multiple=True,
)
@_new_group
@changes(force=_FORCE_MOVE)
@_no_wait
def reset(
    group: str,
    topic: str,
    queues: tuple[str, ...],
    new_group: bool,
    no_wait: bool,
    change: Change,
    **target: Any,
) -> None:
    """Move a group back or forward in a topic.

    Shows where each queue goes, what that repeats and skips, and asks. Connected members are moved
    too: where brokers cannot move them (4.x) each gets a request, and Java's members pause for
    about ten seconds. A file that takes it back is written first (`group undo`).
    """
    goal = _target(target)
    with change.admin() as admin:
        only = _queues(admin, topic, queues) if queues else None
        plan = admin.changes.reset_plan(group, topic, goal, only, new_group=new_group)
        _move(admin, plan, change, no_wait)


def _target(given: Mapping[str, Any]) -> ResetTarget:
    from rocketstream.admin import ResetKind, ResetTarget

    chosen = [name for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise BadParameter(
            "give one of --to-time, --to-earliest, --to-latest, --to-offset, --shift and --copy-of"
        )
    kind = ResetKind(chosen[0].removeprefix("to_").removesuffix("_of"))
    value: Any = given[chosen[0]]
    if kind is ResetKind.TIME:
        value = parse_start(value, "--to-time").timestamp_ms
        if value is None:
            raise BadParameter(f"--to-time is {given['to_time']!r}; it takes a time")
    elif value is True:
        value = None
    return ResetTarget.of(kind, value)


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


@click.command(epilog="Example: `rocketstream group clone billing billing-v2 --dry-run`")
@argument("SOURCE", "The group to copy from.", shell_complete=names("groups"))
@argument("TARGET", "The group to copy to.", shell_complete=names("groups"))
@option("--topic, -t TEXT", "Only this topic; all when left out.", shell_complete=names("topics"))
@_new_group
@changes(force=_FORCE_MOVE)
@_no_wait
def clone(
    source: str, target: str, topic: str | None, new_group: bool, no_wait: bool, change: Change
) -> None:
    """Give a group the offsets of another one."""
    from rocketstream.admin import ResetTarget

    with change.admin() as admin:
        plan = admin.changes.reset_plan(
            target, topic, ResetTarget.copy_of(source), new_group=new_group
        )
        _move(admin, plan, change, no_wait)


@click.command(
    epilog="Example: `rocketstream group undo "
    "~/.local/state/rocketstream/undo/billing-east-1714564800000-1f2e3d4c.json`"
)
@argument("FILE", "What a reset wrote before it began.", click.Path())
@changes(force=_FORCE_MOVE)
@_no_wait
def undo(file: str, no_wait: bool, change: Change) -> None:
    """Take a reset back: every queue goes where it was before."""
    with change.admin() as admin:
        _move(admin, admin.changes.undo(file), change, no_wait)


def _move(admin: Admin, plan: ResetPlan, change: Change, no_wait: bool) -> None:
    """Show a plan; ask; carry it out; show the result."""
    nothing = "there is nothing to change" if change.dry_run else "nothing was changed"
    if not change.agreed(
        plan,
        show=lambda: _show_rows(plan),
        what=_what(plan),
        nothing=None if plan.moves else f"{plan.group} is there already: {nothing}",
    ):
        return
    from rocketstream.admin.changes.resets import WAIT_MS

    if plan.is_online and not no_wait and (change.force or not plan.problems):
        say(
            "waiting until its members have moved; Ctrl-C ends only the wait, --no-wait "
            "leaves it out"
        )
    done = admin.changes.reset_apply(plan, force=change.force, wait_ms=0 if no_wait else WAIT_MS)
    _show_done(done, change.as_json, waited=not (no_wait and plan.is_online))
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


def _show_rows(plan: ResetPlan) -> None:
    """Show a row for each queue; a value that is the same, or empty, in all of them has no
    column."""
    topics = {row.topic for row in plan.rows}
    columns = [
        Name("Queue", lambda row: f"{row.broker_name}:{row.queue_id}"),
        Count("From", lambda row: NONE if row.from_offset is None else number(row.from_offset)),
        Count("To", lambda row: number(row.to_offset)),
        Count("Again", lambda row: number(row.repeated)),
        Count("Skipped", lambda row: number(row.skipped)),
    ]
    if plan.expired > 0:
        columns.append(Count("Expired", lambda row: number(row.expired)))
    if any(row.clamped for row in plan.rows):
        columns.append(Column("Note", lambda row: row.clamped or ""))
    if len(topics) > 1:
        columns.insert(0, Name("Topic", lambda row: row.topic))
    if len(topics) == 1:
        print_line(f"group {plan.group} in topic {topics.pop()}")
    render(plan.rows, columns, False)


def _show_done(done: ResetDone, as_json: bool, *, waited: bool) -> None:
    if as_json:
        print_json(done)
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
        print_line(f"to take it back: rocketstream group undo {word(str(done.undo_path))}")


# --- settings -------------------------------------------------------------------------------------

_values = option(
    "--set, -s NAME=VALUE",
    "A setting by RocketMQ's name, `retryQueueNums=2`; repeatable.",
    to="values",
    multiple=True,
)


@click.command(epilog="Example: `rocketstream group settings billing`")
@group_argument
@shows()
def settings(group: str, namesrv: str, as_json: bool) -> None:
    """Show a group's settings at each broker, by RocketMQ's names."""
    with looking(namesrv) as admin:
        found = admin.groups.settings(group)
    if as_json:
        print_json(found)
        return
    if not found:
        print_line(f"{group} has stored offsets, but no broker keeps settings of it")
        return
    brokers = sorted(found)
    each_name = dict.fromkeys(name for raw in found.values() for name in raw)
    print_table(
        [Name("Setting"), *(Name(broker) for broker in brokers)],
        [
            (name, *(setting_text(found[broker].get(name), none="") for broker in brokers))
            for name in each_name
            if name != "groupName"
        ],
    )


@click.command(epilog="Example: `rocketstream group create billing -s retryQueueNums=2`")
@group_argument
@_values
@changes(yes="For scripts: nothing is asked anyway, it only adds something.", force=FORCE)
def create(group: str, values: tuple[str, ...], change: Change) -> None:
    """Make a consumer group on every broker."""
    wanted = _parsed(values)
    with change.admin() as admin:
        change.finish(admin, admin.changes.group_create_plan(group, wanted), asks=False)


@click.command(epilog="Example: `rocketstream group update billing -s retryQueueNums=2`")
@group_argument
@_values
@changes(force=FORCE)
def update(group: str, values: tuple[str, ...], change: Change) -> None:
    """Change settings of a group on every broker; `group settings` shows them.

    The most asked for: `retryQueueNums`, `consumeEnable`, `consumeBroadcastEnable`, and on 5.x
    `consumeMessageOrderly`. `retryMaxTimes` counts only for members that send no number of their
    own: clients of ours and Java's send `max_reconsume_times`.
    """
    wanted = _parsed(values)
    if not wanted:
        raise BadParameter("give at least one --set NAME=VALUE")
    with change.admin() as admin:
        change.finish(admin, admin.changes.group_update_plan(group, wanted))


@click.command(epilog="Example: `rocketstream group pause billing`")
@group_argument
@changes()
def pause(group: str, change: Change) -> None:
    """Stop the brokers from giving messages to the members of a group, until `group resume`.

    Works for members in any language, and for the whole group only: RocketMQ has no request that
    pauses one member. They finish what they have pulled; their progress stays.
    """
    with change.admin() as admin:
        change.finish(admin, admin.changes.group_pause_plan(group))


@click.command(epilog="Example: `rocketstream group resume billing`")
@group_argument
@changes()
def resume(group: str, change: Change) -> None:
    """End a pause: members go on where they are, within some seconds."""
    with change.admin() as admin:
        change.finish(admin, admin.changes.group_resume_plan(group))


@click.command(epilog="Example: `rocketstream group delete billing --dry-run`")
@group_argument
@option("--dead-letters", "Delete its dead letters too.")
@changes(force=FORCE)
def delete(group: str, dead_letters: bool, change: Change) -> None:
    """Delete a group: its settings, its progress, what waits to be consumed again.

    Shows what is lost and asks. Refused while members are connected: they would make it again.
    """
    with change.admin() as admin:
        change.finish(admin, admin.changes.group_delete_plan(group, dead_letters=dead_letters))


def _parsed(values: Sequence[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` pairs; true, false and whole numbers as such."""
    found: dict[str, Any] = {}
    for name, value in pairs("--set", values).items():
        if value in ("true", "false"):
            found[name] = value == "true"
        else:
            found[name] = int(value) if re.fullmatch(r"-?[0-9]+", value) else value
    return found

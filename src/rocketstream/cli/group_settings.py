"""``rocketstream group settings|create|update|pause|resume|delete``."""

from __future__ import annotations

from typing import Annotated, Any

from rocketstream.cli.changing import AuditFile, DryRun, Yes, changing_admin
from rocketstream.cli.declare import Argument, BadParameter, Commands, Option
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import Column, print_json, print_line, print_table
from rocketstream.cli.planned import finish, setting_text, split_pair

Group = Annotated[str, Argument(metavar="GROUP", help="The consumer group.")]
Force = Annotated[bool, Option("--force", help="Do it even where it would be refused.")]
Settings = Annotated[
    list[str],
    Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="A setting by RocketMQ's name, `retryMaxTimes=5`; repeatable.",
    ),
]


def add_to(commands: Commands) -> None:
    """Add the commands to ``group``."""
    commands.add(settings, epilog="Example: `rocketstream group settings billing`")
    commands.add(create, epilog="Example: `rocketstream group create billing -s retryMaxTimes=5`")
    commands.add(update, epilog="Example: `rocketstream group update billing -s retryMaxTimes=5`")
    commands.add(pause, epilog="Example: `rocketstream group pause billing`")
    commands.add(resume, epilog="Example: `rocketstream group resume billing`")
    commands.add(delete, epilog="Example: `rocketstream group delete billing --dry-run`")


def settings(group: Group, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show a group's settings at each broker, by RocketMQ's names."""
    from rocketstream.admin import Admin

    with Admin(namesrv, read_only=True) as admin:
        found = admin.groups.settings(group)
    if as_json_:
        print_json(found)
        return
    if not found:
        print_line(f"{group} has stored offsets, but no broker keeps settings of it")
        return
    brokers = sorted(found)
    each_name = list(dict.fromkeys(name for raw in found.values() for name in raw))
    print_table(
        [Column("Setting", keep=True), *(Column(broker, keep=True) for broker in brokers)],
        [
            (name, *(setting_text(found[broker].get(name), none="") for broker in brokers))
            for name in each_name
            if name != "groupName"
        ],
    )


def create(
    group: Group,
    values: Settings = [],  # noqa: B006 - click reads it, nobody changes it
    dry_run: DryRun = False,
    force: Force = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Make a consumer group on every broker."""
    wanted = _parsed(values)
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.group_create_plan(group, wanted)
        finish(admin, plan, dry_run=dry_run, yes=True, force=force, as_json_=as_json_, asks=False)


def update(
    group: Group,
    values: Settings = [],  # noqa: B006 - click reads it, nobody changes it
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Change settings of a group on every broker; `group settings` shows them.

    The most asked for: `retryMaxTimes` (then a message is a dead letter), `retryQueueNums`,
    `consumeEnable`, `consumeBroadcastEnable`, and on 5.x `consumeMessageOrderly`.
    """
    wanted = _parsed(values)
    if not wanted:
        raise BadParameter("give at least one --set NAME=VALUE")
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.group_update_plan(group, wanted)
        finish(admin, plan, dry_run=dry_run, yes=yes, force=force, as_json_=as_json_)


def pause(
    group: Group,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Stop the brokers from giving messages to the members of a group, until `group resume`.

    Works for members in any language, and for the whole group only: RocketMQ has no request that
    pauses one member. They finish what they have pulled; their progress stays.
    """
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.group_pause_plan(group)
        finish(admin, plan, dry_run=dry_run, yes=yes, force=False, as_json_=as_json_)


def resume(
    group: Group,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """End a pause: members go on where they are, within some seconds."""
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.group_resume_plan(group)
        finish(admin, plan, dry_run=dry_run, yes=yes, force=False, as_json_=as_json_)


def delete(
    group: Group,
    dead_letters: Annotated[
        bool, Option("--dead-letters", help="Delete its dead letters too.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Delete a group: its settings, its progress, what waits to be consumed again.

    Shows what is lost and asks. Refused while members are connected: they would make it again.
    """
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.changes.group_delete_plan(group, dead_letters=dead_letters)
        finish(admin, plan, dry_run=dry_run, yes=yes, force=force, as_json_=as_json_)


def _parsed(values: list[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` pairs; true, false and whole numbers as such."""
    found: dict[str, Any] = {}
    for text in values:
        name, value = split_pair("--set", text)
        if value in ("true", "false"):
            found[name] = value == "true"
        elif value.lstrip("-").isdecimal():
            found[name] = int(value)
        else:
            found[name] = value
    return found

"""``rocketstream dlq list|causes|redrive``: dead letters, their causes, and sending them again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from rocketstream.cli.changing import AuditFile, DryRun, changing_admin
from rocketstream.cli.confirm import confirm
from rocketstream.cli.consume import message_json
from rocketstream.cli.declare import Argument, BadParameter, Commands, Option
from rocketstream.cli.failure import say
from rocketstream.cli.message_options import Mask, looking_admin, print_messages, time_ms
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    json_line,
    moment,
    number,
    plural,
    print_json,
    print_line,
    print_table,
)
from rocketstream.protocol.names import retry_topic

if TYPE_CHECKING:
    from rocketstream.admin import Admin, LetterCause, LetterFilter, RedrivePlan, RedriveResult
    from rocketstream.protocol.message_ext import MessageExt

_UNKNOWN_ORIGIN = "(origin not known)"
_CAUSES_NAMED_MAX = 8
_TOLD_EVERY = 1_000
"""A long redrive says how far it is after so many letters."""

Since = Annotated[
    str | None,
    Option(
        "--since",
        metavar="TIME",
        help="Only letters given up then or later: 2024-05-01T12:00:00 (local without a zone), "
        "milliseconds since 1970, or 90s, 10m, 2h, 3d ago.",
    ),
]
Until = Annotated[
    str | None, Option("--until", metavar="TIME", help="Only letters given up before.")
]
LetterTag = Annotated[str | None, Option("--tag", help="Only letters with this tag.")]
LetterKey = Annotated[str | None, Option("--key", help="Only letters with this key.")]
Origin = Annotated[
    str | None,
    Option("--topic", "-t", metavar="TOPIC", help="Only letters of this origin."),
]
Cause = Annotated[
    str | None,
    Option(
        "--cause",
        metavar="CAUSE",
        help="Only letters of this cause: its id or text in `rocketstream dlq causes`, or the "
        "class of the exception.",
    ),
]
Where = Annotated[
    str | None,
    Option(
        "--where",
        metavar="PLACE",
        help="Only letters whose exception was raised there: FILE or FILE:LINE.",
    ),
]
Group = Annotated[str, Argument(metavar="GROUP", help="The consumer group that gave them up.")]


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("dlq", "Dead letters: what groups gave up.")
    commands.add(
        list_letters,
        "list",
        epilog="Examples: `rocketstream dlq list` counts each group's · "
        "`rocketstream dlq list billing --cause ValueError` shows letters",
    )
    commands.add(causes, epilog="Example: `rocketstream dlq causes billing`")
    commands.add(
        redrive,
        epilog="Examples: `rocketstream dlq redrive billing` shows what would be sent · "
        "`rocketstream dlq redrive billing --cause 3f81c09a --rate 100 --yes` sends some",
    )
    app.add_command(commands)


def list_letters(
    group: Annotated[
        str | None, Argument(metavar="[GROUP]", help="Show letters of this group.")
    ] = None,
    cause: Cause = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    tag: LetterTag = None,
    key: LetterKey = None,
    origin: Origin = None,
    most: Annotated[int, Option("--max", "-m", min=1, max=1_000, help="So many.")] = 32,
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """List the groups that gave messages up and how many are kept; or letters of one group."""
    wanted = _filter(since, until, tag, key, origin, cause, where)
    if group is None:
        if not wanted.is_all:
            raise BadParameter("name the group whose letters are meant")
        _list_groups(namesrv, as_json_)
        return
    with looking_admin(namesrv, mask) as admin:
        letters = admin.letters.of_cause(group, wanted, most=most)
    if as_json_:
        print_json([letter.as_json() for letter in letters])
        return
    print_messages(letters, time_title="Given up")
    print_line(plural(len(letters), "letter"))


def causes(
    group: Group,
    cause: Cause = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    tag: LetterTag = None,
    key: LetterKey = None,
    origin: Origin = None,
    most: Annotated[
        int, Option("--examine", metavar="N", min=1, help="Of each queue the newest N.")
    ] = 100_000,
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show a group's dead letters by cause: the exception, its place, how many, since when.

    Consumers write causes with send_back_cause=True; letters of others are told apart by origin,
    tag and number of tries.
    """
    wanted = _filter(since, until, tag, key, origin, cause, where)
    with looking_admin(namesrv, mask) as admin:
        found = admin.letters.by_cause(group, wanted, most=most)
    if as_json_:
        print_json(
            {
                "group": found.group,
                "letters": found.letters,
                "kept": found.kept,
                "isComplete": found.is_complete,
                "causes": [_cause_json(each) for each in found],
            }
        )
        return
    print_table(
        [
            Column("Cause", keep=True),
            Column("Letters", number=True),
            Column("Sent again", number=True, importance=6),
            Column("First", keep=True, importance=5),
            Column("Last", keep=True, importance=7),
            Column("What", importance=8),
        ],
        [
            (
                each.id,
                number(each.count),
                number(each.redriven),
                moment(each.first_ms),
                moment(each.last_ms),
                _what(each),
            )
            for each in found
        ],
    )
    rest = "" if found.is_complete else " (of each queue the newest; --examine takes more)"
    print_line(f"{plural(found.letters, 'letter')} of {group}{rest}")
    if len(found):
        print_line(f"`rocketstream dlq redrive {group} --cause {found[0].id}` shows the first")


def _what(cause: LetterCause) -> str:
    if cause.is_told:
        where = f" at {cause.where}" if cause.where else ""
        stale = f" ({cause.stale:,} at an earlier try)" if cause.stale else ""
        return cause.cause + where + stale
    topic = next(iter(cause.topics)) or "an unknown topic"
    tries = plural(cause.tries or 0, "time")
    return f"not told: from {topic}, tag {cause.tag or NONE}, sent back {tries}"


def _cause_json(cause: LetterCause) -> dict[str, Any]:
    return as_json(cause) | {
        "topics": {topic or _UNKNOWN_ORIGIN: n for topic, n in cause.topics.items()},
        "example": cause.example.as_json(),
    }


def _list_groups(namesrv: str, as_json_: bool) -> None:
    from rocketstream.admin import Admin

    counts: dict[str, int] = {}
    untold: set[str] = set()
    with Admin(namesrv) as admin:
        for row in admin.groups.progress(owners=False):
            if row.topic is None and row.error is not None:
                untold.add(row.error)
            if row.kind != "dead letter" or row.group is None or row.max_offset is None:
                continue
            kept = row.max_offset - (row.min_offset or 0)
            counts[row.group] = counts.get(row.group, 0) + kept
    rows = sorted(((count, group) for group, count in counts.items() if count), reverse=True)
    for text in sorted(untold):
        say(f"warning: not counted: {text}")
    if as_json_:
        print_json([{"group": group, "letters": count} for count, group in rows])
        return
    print_table(
        [Column("Group", keep=True), Column("Dead letters", number=True)],
        [(group, number(count)) for count, group in rows],
        footer=plural(len(rows), "group"),
    )


def redrive(
    group: Group,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Send them without asking or showing them.")
    ] = False,
    dry_run: DryRun = False,
    to: Annotated[
        str | None,
        Option("--to", metavar="TOPIC", help="Send to this topic, not to the origin."),
    ] = None,
    to_group: Annotated[
        bool,
        Option(
            "--to-group",
            help="Only this group consumes them again, through its retry topic; other groups "
            "of the origin see nothing.",
        ),
    ] = False,
    cause: Cause = None,
    where: Where = None,
    origin: Origin = None,
    since: Since = None,
    until: Until = None,
    tag: LetterTag = None,
    key: LetterKey = None,
    limit: Annotated[
        int | None, Option("--limit", "-m", min=1, help="Send this many letters at most.")
    ] = None,
    rate: Annotated[
        float | None,
        Option("--rate", metavar="N", help="Send this many messages a second at most."),
    ] = None,
    progress: Annotated[
        str | None,
        Option(
            "--progress",
            metavar="NAME",
            help="Group whose offsets keep the place of this redrive. With a group of your "
            "own, letters that other redrives have sent are sent again too. Default: one "
            "made from the filters.",
        ),
    ] = None,
    mask: Mask = None,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Send dead letters back to the topics they were consumed from.

    Shows what would be sent, and asks; without a terminal it only shows, and --yes sends. The place
    is kept at the brokers, so a redrive that was interrupted goes on, and letters already sent are
    not sent again.
    """
    if rate is not None and rate <= 0:
        raise BadParameter(f"--rate is {rate:g}; it takes messages a second above 0")
    if to is not None and to_group:
        raise BadParameter("give --to or --to-group, not both")
    if dry_run and yes:
        raise BadParameter("give --yes or --dry-run, not both")
    wanted = _filter(since, until, tag, key, origin, cause, where)
    target = retry_topic(group) if to_group else to
    chosen: dict[str, Any] = {"to": target, "limit": limit, "progress": progress}
    with changing_admin(namesrv, audit_file, mask) as admin:
        _check_cause(admin, group, cause)
        if not yes:
            plan = admin.letters.redrive_plan(group, wanted, **chosen)
            asks = not dry_run and plan.letters and sys.stdin.isatty() and sys.stderr.isatty()
            _show(plan, as_json_, asks=bool(asks))
            if not asks:
                return
            pace = "" if rate is None else f", {rate:g} a second at most"
            confirm([f"{plural(plan.letters, 'letter')} of {group} will be sent{pace}"], False)
        told = _Told(as_json_)
        result = admin.letters.redrive(group, wanted, **chosen, rate=rate, on_sent=told.sent)
    _finish(group, result, as_json_)


def _check_cause(admin: Admin, group: str, cause: str | None) -> None:
    """Refuse a cause that no letter has: a redrive of it would send nothing and look well."""
    from rocketstream.admin import LetterFilter

    if cause is None or admin.letters.of_cause(group, LetterFilter(cause=cause), most=1):
        return
    known = [each.id for each in admin.letters.by_cause(group)][:_CAUSES_NAMED_MAX]
    raise BadParameter(
        f"--cause is {cause!r}, which no dead letter of {group} has; there are {', '.join(known)} "
        f"(`rocketstream dlq causes {group}` shows them)"
        if known
        else f"--cause is {cause!r}, and {group} has no dead letters"
    )


def _filter(
    since: str | None,
    until: str | None,
    tag: str | None,
    key: str | None,
    origin: str | None,
    cause: str | None,
    where: str | None,
) -> LetterFilter:
    from rocketstream.admin import LetterFilter

    return LetterFilter(
        since_ms=time_ms(since, "--since"),
        until_ms=time_ms(until, "--until"),
        tag=tag,
        key=key,
        origin=origin,
        cause=cause,
        where=where,
    )


def _show(plan: RedrivePlan, as_json_: bool, *, asks: bool) -> None:
    if as_json_ and not asks:
        print_json(
            {
                "group": plan.group,
                "progress": plan.progress,
                "letters": plan.letters,
                "leftOut": plan.left_out,
                "byTopic": {topic or _UNKNOWN_ORIGIN: n for topic, n in plan.by_topic.items()},
                "first": [message_json(letter) for letter in plan.shown],
                "problems": list(plan.problems),
                "earlier": list(plan.earlier),
                "alreadySent": plan.already_sent,
            }
        )
        return
    if as_json_:
        return
    print_table(
        [Column("To topic", keep=True), Column("Letters", number=True)],
        [(topic or _UNKNOWN_ORIGIN, number(n)) for topic, n in _most_first(plan.by_topic)],
    )
    if plan.shown:
        print_line("")
        print_table(
            [
                Column("Id", keep=True),
                Column("Given up", keep=True),
                Column("Tries", number=True),
                Column("Tag"),
                Column("Keys"),
                Column("Body"),
            ],
            [_cells(letter) for letter in plan.shown],
        )
    left_out = f", {plural(plan.left_out, 'other')} left out" if plan.left_out else ""
    for problem in plan.problems:
        say(f"warning: {problem}; --to names another topic")
    if plan.already_sent:
        say(
            f"{plural(plan.already_sent, 'letter')} left alone: sent before by a redrive "
            f"({', '.join(plan.earlier) or 'that was killed'})"
        )
    if asks:
        return
    hint = "nothing was sent; --yes sends them" if plan.letters else "nothing to send"
    print_line(f"{plural(plan.letters, 'letter')} of {plan.group}{left_out}: {hint}")


def _cells(letter: MessageExt) -> tuple[str, ...]:
    body = bytes(letter.body[:40]).decode("utf-8", "replace")
    return (
        letter.msg_id or NONE,
        moment(letter.store_timestamp),
        str(letter.reconsume_times),
        letter.tags or NONE,
        letter.keys or NONE,
        "".join(c if c.isprintable() else "·" for c in body),
    )


class _Told:
    """Tells what is sent as it goes."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._count = 0

    def sent(self, letter: MessageExt, message: Any) -> None:
        """One letter was sent."""
        self._count += 1
        if self._as_json:
            row = {
                "msgId": letter.msg_id,
                "topic": message.topic,
                "from": message.properties["REDRIVEN_FROM"],
            }
            print_line(json_line(row))
        elif self._count % _TOLD_EVERY == 0:
            print_line(f"{plural(self._count, 'letter')} sent")


def _finish(group: str, result: RedriveResult, as_json_: bool) -> None:
    for status, count in result.odd.items():
        say(
            f"warning: {plural(count, 'letter')} stored with {status}, which a crash may lose; "
            "the next run looks for them, and sends what is not there"
        )
    if as_json_:
        return
    for topic, count in _most_first(result.by_topic):
        print_line(f"{number(count)} to {topic}")
    if result.already_sent:
        print_line(f"{plural(result.already_sent, 'letter')} left alone: sent before")
    rest = "" if result.is_complete else "; more are left"
    print_line(f"{plural(result.sent, 'letter')} of {group} sent{rest}")


def _most_first(by_topic: Any) -> list[tuple[Any, int]]:
    return sorted(by_topic.items(), key=lambda pair: (-pair[1], pair[0] or ""))

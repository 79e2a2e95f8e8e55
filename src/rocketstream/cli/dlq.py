"""``rocketstream dlq list|redrive``: what groups gave up, and sending it back.

Law: options in, rows and results of ``Admin`` out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketstream.cli.consume import message_json
from rocketstream.cli.failure import say
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    Column,
    json_line,
    moment,
    number,
    plural,
    print_json,
    print_line,
    print_table,
)
from rocketstream.cli.start import parse_start

if TYPE_CHECKING:
    from rocketstream.admin import LetterFilter, RedrivePlan, RedriveResult
    from rocketstream.protocol.message_ext import MessageExt

_UNKNOWN_ORIGIN = "(origin not known)"
_TOLD_EVERY = 1_000
"""A long redrive says how far it is after so many letters."""

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIMESTAMP",
        help="Only letters given up then or later: 2024-05-01T12:00:00, with or without zone, or "
        "milliseconds since 1970.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command group."""
    commands = typer.Typer(help="Dead letters: what groups gave up.", no_args_is_help=True)
    commands.command("list", epilog="Example: `rocketstream dlq list --json`")(list_letters)
    commands.command(
        epilog="Examples: `rocketstream dlq redrive billing` shows what would be sent · "
        "`rocketstream dlq redrive billing --yes --rate 100` sends it"
    )(redrive)
    app.add_typer(commands, name="dlq")


def list_letters(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """List the groups that gave messages up, and how many are kept."""
    from rocketstream.admin import Admin

    counts: dict[str, int] = {}
    untold: set[str] = set()
    with Admin(namesrv) as admin:
        for row in admin.progress(owners=False):
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
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="The consumer group that gave them up.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Send them; without it, look.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Send to this topic, not to the origin."),
    ] = None,
    to_group: Annotated[
        bool,
        typer.Option(
            "--to-group",
            help="Have this group alone consume them again, through its retry topic; other groups "
            "of the origin see nothing.",
        ),
    ] = False,
    origin: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only letters of this origin."),
    ] = None,
    since: Since = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIMESTAMP", help="Only letters given up before."),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only letters with this tag.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only letters with this key.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-m", min=1, help="At most so many letters.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most so many messages a second."),
    ] = None,
    progress: Annotated[
        str | None,
        typer.Option(
            "--progress",
            metavar="NAME",
            help="Group whose offsets keep the place; one made from the filters when left out.",
        ),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Send dead letters back to the topics they were consumed from.

    Shows what would be sent; --yes sends it. The place is kept at the brokers, so a redrive that
    was interrupted goes on, and what was sent is not sent again.
    """
    if rate is not None and rate <= 0:
        raise typer.BadParameter(f"--rate is {rate:g}; it takes messages a second above 0")
    from rocketstream.admin import Admin
    from rocketstream.protocol.names import retry_topic

    if to is not None and to_group:
        raise typer.BadParameter("give --to or --to-group, not both")
    target = retry_topic(group) if to_group else to
    wanted = _filter(since, until, tag, key, origin)
    chosen: dict[str, Any] = {"to": target, "limit": limit, "progress": progress}
    with Admin(namesrv) as admin:
        if not yes:
            _show(admin.redrive_plan(group, wanted, **chosen), as_json_)
            return
        told = _Told(as_json_)
        result = admin.redrive(group, wanted, **chosen, rate=rate, on_sent=told.sent)
    _finish(group, result, as_json_)


def _filter(
    since: str | None, until: str | None, tag: str | None, key: str | None, origin: str | None
) -> LetterFilter:
    from rocketstream.admin import LetterFilter

    return LetterFilter(
        since_ms=_moment(since, "--since"),
        until_ms=_moment(until, "--until"),
        tag=tag,
        key=key,
        origin=origin,
    )


def _moment(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    timestamp_ms = parse_start(text, option).timestamp_ms
    if timestamp_ms is None:
        raise typer.BadParameter(f"{option} is {text!r}; it takes a time")
    return timestamp_ms


def _show(plan: RedrivePlan, as_json_: bool) -> None:
    if as_json_:
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
            }
        )
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
    if plan.earlier:
        say(
            f"warning: redrives with other filters ({', '.join(plan.earlier)}) may have sent some "
            "of these: they would be sent again"
        )
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
        say(f"warning: {plural(count, 'letter')} stored with {status}")
    if as_json_:
        return
    for topic, count in _most_first(result.by_topic):
        print_line(f"{number(count)} to {topic}")
    rest = "" if result.is_complete else "; more are left"
    print_line(f"{plural(result.sent, 'letter')} of {group} sent{rest}")


def _most_first(by_topic: Any) -> list[tuple[Any, int]]:
    return sorted(by_topic.items(), key=lambda pair: (-pair[1], pair[0] or ""))

"""``rocketstream dlq list|causes|redrive``: dead letters, their causes, and sending them again."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from click import BadParameter

from rocketstream.admin.core.words import NONE, moment, number, plural, word
from rocketstream.cli.changing import Change, changes
from rocketstream.cli.commands import (
    TIME,
    Commands,
    Watched,
    Whole,
    argument,
    looking,
    names,
    option,
    shows,
    together,
)
from rocketstream.cli.consume import message_json
from rocketstream.cli.failure import say
from rocketstream.cli.message import mask, print_messages
from rocketstream.cli.output import (
    json_line,
    print_json,
    print_line,
    print_table,
    render,
)
from rocketstream.cli.tables import Column, Count, Name

if TYPE_CHECKING:
    from rocketstream.admin import Admin, LetterCause, LetterFilter, RedrivePlan, RedriveResult
    from rocketstream.protocol.message_ext import MessageExt

dlq: Commands = Commands("dlq", help="Dead letters: what groups gave up.")
_UNKNOWN_ORIGIN = "(origin not known)"
_CAUSES_NAMED_MAX = 8
_TOLD_EVERY = 1_000
"""A long redrive says how far it is after so many letters."""
_group = argument("GROUP", "The consumer group that gave them up.", shell_complete=names("groups"))


def chooses(function: Callable[..., Any]) -> Any:
    """Give a command the options that choose letters; it gets them as ``wanted``."""

    @functools.wraps(function)
    def call(
        *args: Any,
        cause: str | None,
        where: str | None,
        since_ms: int | None,
        until_ms: int | None,
        tag: str | None,
        key: str | None,
        origin: str | None,
        **given: Any,
    ) -> None:
        from rocketstream.admin import LetterFilter

        wanted = LetterFilter(
            since_ms=since_ms,
            until_ms=until_ms,
            tag=tag,
            key=key,
            origin=origin,
            cause=cause,
            where=where,
        )
        function(*args, wanted=wanted, **given)

    return together(
        option(
            "--cause CAUSE",
            "Only letters of this cause: its id or text in `rocketstream dlq causes`, or the "
            "class of the exception.",
        ),
        option(
            "--where PLACE", "Only letters whose exception was raised there: FILE or FILE:LINE."
        ),
        option(
            "--since TIME",
            "Only letters given up then or later: 2024-05-01T12:00:00 (local without a zone), "
            "milliseconds since 1970, or 90s, 10m, 2h, 3d ago.",
            TIME,
            to="since_ms",
        ),
        option("--until TIME", "Only letters given up before.", TIME, to="until_ms"),
        option("--tag TEXT", "Only letters with this tag."),
        option("--key TEXT", "Only letters with this key."),
        option(
            "--topic, -t TOPIC",
            "Only letters of this origin.",
            to="origin",
            shell_complete=names("topics"),
        ),
    )(call)


@dlq.command(
    "list",
    cls=Watched,
    epilog="Examples: `rocketstream dlq list` counts each group's · "
    "`rocketstream dlq list billing --cause ValueError` shows letters",
)
@argument("[GROUP]", "Show letters of this group.", shell_complete=names("groups"))
@chooses
@option("--max, -m N", "So many.", Whole(1, 1_000), to="most", default=32)
@mask
@shows(watch=True)
def list_letters(
    group: str | None,
    wanted: LetterFilter,
    most: int,
    mask: str | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """List the groups that gave messages up and how many are kept; or letters of one group."""
    if group is None:
        if not wanted.is_all:
            raise BadParameter("name the group whose letters are meant")
        _list_groups(namesrv, as_json)
        return
    with looking(namesrv, mask) as admin:
        letters = admin.letters.of_cause(group, wanted, most=most)
    if as_json:
        print_json(letters)
        return
    print_messages(letters, time_title="Given up")
    print_line(plural(len(letters), "letter"))


@dlq.command(epilog="Example: `rocketstream dlq causes billing`")
@_group
@chooses
@option("--examine N", "Of each queue the newest N.", Whole(1), to="most", default=100_000)
@mask
@shows()
def causes(
    group: str,
    wanted: LetterFilter,
    most: int,
    mask: str | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """Show a group's dead letters by cause: the exception, its place, how many, since when.

    Consumers write causes with send_back_cause=True; letters of others are told apart by origin,
    tag and number of tries.
    """
    with looking(namesrv, mask) as admin:
        found = admin.letters.by_cause(group, wanted, most=most)
    if as_json:
        print_json(found)
        return
    columns = (
        Name("Cause", lambda each: each.id),
        Count("Letters", lambda each: number(each.count)),
        Count("Sent again", lambda each: number(each.redriven), importance=6),
        Name("First", lambda each: moment(each.first_ms), importance=5),
        Name("Last", lambda each: moment(each.last_ms), importance=7),
        Column("What", _what, importance=8),
    )
    render(found, columns, False)
    rest = "" if found.is_complete else " (of each queue the newest; --examine takes more)"
    print_line(f"{plural(found.letters, 'letter')} of {group}{rest}")
    if len(found):
        print_line(
            f"`rocketstream dlq redrive {word(group)} --cause {found[0].id}` shows the first"
        )


def _what(cause: LetterCause) -> str:
    if cause.is_told:
        where = f" at {cause.where}" if cause.where else ""
        stale = f" ({cause.stale:,} at an earlier try)" if cause.stale else ""
        return cause.cause + where + stale
    topic = next(iter(cause.topics)) or "an unknown topic"
    tries = plural(cause.tries or 0, "time")
    return f"not told: from {topic}, tag {cause.tag or NONE}, sent back {tries}"


def _list_groups(namesrv: str, as_json: bool) -> None:
    counts: dict[str, int] = {}
    untold: set[str] = set()
    with looking(namesrv) as admin:
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
    if as_json:
        print_json([{"group": group, "letters": count} for count, group in rows])
        return
    columns = (
        Name("Group", lambda row: row[1]),
        Count("Dead letters", lambda row: number(row[0])),
    )
    render(rows, columns, False, footer=plural(len(rows), "group"))


@dlq.command(
    epilog="Examples: `rocketstream dlq redrive billing` shows what would be sent · "
    "`rocketstream dlq redrive billing --cause 3f81c09a --rate 100 --yes` sends some"
)
@_group
@option("--to TOPIC", "Send to this topic, not to the origin.", shell_complete=names("topics"))
@option(
    "--to-group",
    "Only this group consumes them again, through its retry topic; other groups "
    "of the origin see nothing.",
)
@chooses
@option("--limit, -m N", "Send this many letters at most.", Whole(1))
@option("--rate N", "Send this many messages a second at most.", float)
@option(
    "--progress NAME",
    "Group whose offsets keep the place of this redrive. With a group of your "
    "own, letters that other redrives have sent are sent again too. Default: one "
    "made from the filters.",
)
@mask
@changes(yes="Send them without asking or showing them.")
def redrive(
    group: str,
    to: str | None,
    to_group: bool,
    wanted: LetterFilter,
    limit: int | None,
    rate: float | None,
    progress: str | None,
    mask: str | None,
    change: Change,
) -> None:
    """Send dead letters back to the topics they were consumed from.

    Shows what would be sent, and asks; without a terminal it only shows, and --yes sends. The place
    is kept at the brokers, so a redrive that was interrupted goes on, and letters already sent are
    not sent again.
    """
    if rate is not None and rate <= 0:
        raise BadParameter(f"--rate is {rate:g}; it takes messages a second above 0")
    from rocketstream.protocol.names import retry_topic

    if to is not None and to_group:
        raise BadParameter("give --to or --to-group, not both")
    if change.dry_run and change.yes:
        raise BadParameter("give --yes or --dry-run, not both")
    target = retry_topic(group) if to_group else to
    chosen: dict[str, Any] = {"to": target, "limit": limit, "progress": progress}
    with change.admin(mask) as admin:
        _check_cause(admin, group, wanted.cause)
        plan: RedrivePlan | None = None
        if not change.yes:
            plan = admin.letters.redrive_plan(group, wanted, **chosen)
            asks = (
                not change.dry_run and plan.letters and sys.stdin.isatty() and sys.stderr.isatty()
            )
            _show(plan, change.as_json, asks=bool(asks))
            if not asks:
                return
            pace = "" if rate is None else f", {rate:g} a second at most"
            change.confirm([f"{plural(plan.letters, 'letter')} of {group} will be sent{pace}"])
        result = admin.letters.redrive(
            group, wanted, **chosen, rate=rate, on_sent=_Told(change.as_json).sent, as_shown=plan
        )
    _finish(group, result, change.as_json)


def _check_cause(admin: Admin, group: str, cause: str | None) -> None:
    """Refuse a cause that no letter has: a redrive of it would send nothing and look well."""
    from rocketstream.admin import LetterFilter

    if cause is None or admin.letters.of_cause(group, LetterFilter(cause=cause), most=1):
        return
    known = [each.id for each in admin.letters.by_cause(group)][:_CAUSES_NAMED_MAX]
    raise BadParameter(
        f"--cause is {cause!r}, which no dead letter of {group} has; there are {', '.join(known)} "
        f"(`rocketstream dlq causes {word(group)}` shows them)"
        if known
        else f"--cause is {cause!r}, and {group} has no dead letters"
    )


def _show(plan: RedrivePlan, as_json: bool, *, asks: bool) -> None:
    if as_json and not asks:
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
    if as_json:
        return
    print_table(
        [Name("To topic"), Count("Letters")],
        [(topic or _UNKNOWN_ORIGIN, number(n)) for topic, n in _most_first(plan.by_topic)],
    )
    if plan.shown:
        print_line("")
        print_table(
            [
                Name("Id"),
                Name("Given up"),
                Count("Tries"),
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


def _finish(group: str, result: RedriveResult, as_json: bool) -> None:
    for status, count in result.odd.items():
        say(
            f"warning: {plural(count, 'letter')} stored with {status}, which a crash may lose; "
            "the next run looks for them, and sends what is not there"
        )
    if as_json:
        return
    for topic, count in _most_first(result.by_topic):
        print_line(f"{number(count)} to {topic}")
    if result.already_sent:
        print_line(f"{plural(result.already_sent, 'letter')} left alone: sent before")
    rest = "" if result.is_complete else "; more are left"
    print_line(f"{plural(result.sent, 'letter')} of {group} sent{rest}")


def _most_first(by_topic: Any) -> list[tuple[Any, int]]:
    return sorted(by_topic.items(), key=lambda pair: (-pair[1], pair[0] or ""))

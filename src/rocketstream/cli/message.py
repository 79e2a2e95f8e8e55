"""``rocketstream message view|query|search|track|consume``; ``tail`` and ``trace`` are apart."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from rocketstream.cli.changing import AuditFile, Yes, changing_admin
from rocketstream.cli.confirm import confirm
from rocketstream.cli.declare import Argument, Commands, Option
from rocketstream.cli.failure import say
from rocketstream.cli.message_options import (
    Format,
    Grep,
    Mask,
    ProtoMessage,
    Schema,
    SinceTime,
    Sql,
    Tag,
    UntilTime,
    body_format,
    looking_admin,
    message_filter,
    print_message,
    print_messages,
    time_ms,
)
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    moment,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
    span,
)
from rocketstream.errors import RocketMQError

if TYPE_CHECKING:
    from rocketstream.admin import SearchPage

MessageId = Annotated[
    str, Argument(metavar="ID", help="The sender's id of the message, or the broker's.")
]
_ENDED = {
    "most": "there are more",
    "examined": "not everything was looked at",
    "time": "it took too long",
    "problem": "something could not be read",
}


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("message", "Messages: find, follow and trace them, see who consumed them.")
    commands.add(view, epilog="Example: `rocketstream message view orders 7F0000…`")
    commands.add(query, epilog="Example: `rocketstream message query orders order-1001`")
    commands.add(
        search,
        epilog="Examples: `rocketstream message search orders --since 10m --tag eu` · "
        "`rocketstream message search orders --queue 3 --offset 1042 --oldest-first`",
    )
    commands.add(track, epilog="Example: `rocketstream message track orders 7F0000…`")
    commands.add(
        consume,
        epilog="Example: `rocketstream message consume orders 7F0000… --group billing "
        "--client 10.0.0.9@4242`",
    )
    commands.add_later({"tail": "message_tail", "trace": "message_trace"})
    app.add_command(commands)


def view(
    topic: Topic,
    msg_id: MessageId,
    format_: Format = None,
    schema: Schema = None,
    message_name: ProtoMessage = None,
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show one message with everything known of it."""
    how = body_format(format_, schema, message_name)
    from rocketstream.errors import OffsetNotFoundError

    with looking_admin(namesrv, mask) as admin:
        found = admin.messages.search(topic, msg_id=msg_id, how=how, newest_first=False)
    _warn(found)
    if not found.messages:
        raise OffsetNotFoundError(22, f"no message {msg_id!r} in topic {topic!r}")
    if as_json_:
        print_json(found.messages[0].as_json())
        return
    print_message(found.messages[0])
    if len(found.messages) > 1:
        more = plural(len(found.messages) - 1, "later message")
        print_prose(
            f"(the topic has {more} with this id: sent twice, or sent again; "
            f"`rocketstream message search {topic} --id {msg_id}` lists all)"
        )


def query(
    topic: Topic,
    key: Annotated[str, Argument(metavar="KEY", help="One key of the messages.")],
    most: Annotated[int, Option("--max", min=1, max=1_000, help="Show this many at most.")] = 32,
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Find messages by a key."""
    with looking_admin(namesrv, mask) as admin:
        found = admin.messages.search(topic, key=key, most=most)
    _warn(found)
    messages = found.messages[::-1]
    if as_json_:
        print_json([message.as_json() for message in messages])
    else:
        print_messages(messages)
        print_line(plural(len(messages), "message"))
    if found.ended_by is not None:
        # Beside the rows: with --json these are a list, which has no place for it.
        onward = "" if found.resume is None else f" --resume {found.resume}"
        say(
            f"warning: these are the newest {len(messages)} and there may be more: --max shows up "
            "to 1000; to go on where this ended: "
            f"rocketstream message search {shlex.quote(topic)} --key {shlex.quote(key)}{onward}"
        )


def search(
    topic: Topic,
    msg_id: Annotated[
        str | None,
        Option(
            "--id",
            metavar="ID",
            help="The message with this id; it is looked up, not searched for.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        Option(
            "--key",
            metavar="KEY",
            help="Messages with this key; they are looked up, not searched for.",
        ),
    ] = None,
    since: SinceTime = None,
    until: UntilTime = None,
    queue_id: Annotated[
        int | None, Option("--queue", "-q", min=0, help="Only in this queue.")
    ] = None,
    broker: Annotated[
        str | None, Option("--broker", metavar="NAME", help="Only at this broker.")
    ] = None,
    offset: Annotated[
        int | None,
        Option("--offset", min=0, help="From this offset of the queue on."),
    ] = None,
    tag: Tag = None,
    sql: Sql = None,
    grep: Grep = None,
    oldest_first: Annotated[
        bool, Option("--oldest-first", help="The oldest first, not the newest.")
    ] = False,
    most: Annotated[
        int, Option("--max", "-m", min=1, max=1_000, help="Show this many at most.")
    ] = 32,
    examined: Annotated[
        int, Option("--examine", metavar="N", min=1, help="Look at this many messages at most.")
    ] = 10_000,
    resume: Annotated[
        str | None,
        Option("--resume", metavar="WORD", help="Go on where a search ended."),
    ] = None,
    format_: Format = None,
    schema: Schema = None,
    message_name: ProtoMessage = None,
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Find messages by id, key, time, offset or text.

    Reads queues from where the brokers' indexes point to; joins no group.
    """
    chosen: dict[str, Any] = {
        "since_ms": time_ms(since, "--since"),
        "until_ms": time_ms(until, "--until"),
        "how": body_format(format_, schema, message_name),
        "wanted": message_filter(tag, None, sql, grep),
    }
    with looking_admin(namesrv, mask) as admin:
        page = admin.messages.search(
            topic, msg_id=msg_id, key=key, queue_id=queue_id, broker_name=broker, offset=offset,
            newest_first=not oldest_first, most=most, examined_most=examined, resume=resume,
            **chosen,
        )  # fmt: skip
    _show(page, as_json_)


def _warn(page: SearchPage) -> None:
    """Warn of brokers that could not be asked.

    Raises:
        RocketMQError: no broker could be asked: an empty result would look like no messages.
    """
    if page.problems and not page.messages and not page.examined:
        raise RocketMQError("; ".join(page.problems))
    for problem in page.problems:
        say(f"warning: {problem}")


def _show(page: SearchPage, as_json_: bool) -> None:
    _warn(page)
    if as_json_:
        print_json(
            {
                "messages": [message.as_json() for message in page.messages],
                "examined": page.examined,
                "endedBy": page.ended_by,
                "reachedTimestamp": page.reached_ms,
                "resume": page.resume,
                "problems": list(page.problems),
            }
        )
        return
    print_messages(page.messages)
    print_line(f"{plural(len(page.messages), 'message')} of {page.examined:,} looked at")
    if page.ended_by is not None:
        print_prose(f"{_ENDED[page.ended_by]}, from {moment(page.reached_ms)} on")
    if page.resume is not None:
        print_line(f"--resume {page.resume}")


_COLOURS = {
    "CONSUMED": "green",
    "DEAD_LETTERED": "red",
    "RETRYING": "yellow",
    "UNKNOWN": "yellow",
}


def track(
    topic: Topic, msg_id: MessageId, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False
) -> None:
    """Show what became of a message in each group: consumed, in retry, dead-lettered, not yet."""
    with looking_admin(namesrv, None) as admin:
        rows = admin.messages.track(topic, msg_id)
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_table(
        [
            Column("Group", keep=True),
            Column("Status", keep=True, colour=lambda text: _COLOURS.get(text.strip())),
            Column("Tries", number=True, importance=6),
            Column("Since", keep=True, importance=4),
            Column("Next try", keep=True, importance=5),
            Column("Description", importance=7),
        ],
        [
            (
                row.group,
                row.status,
                NONE if row.tries is None else str(row.tries),
                moment(row.since_ms),
                moment(row.due_ms),
                row.description or NONE,
            )
            for row in rows
        ],
        footer=plural(len(rows), "group"),
    )


def consume(
    topic: Topic,
    msg_id: MessageId,
    group: Annotated[str, Option("--group", "-g", help="The consumer group.")],
    client: Annotated[
        str,
        Option("--client", "-c", help="Client id, as `rocketstream group members` shows it."),
    ],
    yes: Yes = False,
    audit_file: AuditFile = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Make one member consume one message now; the group's progress does not change."""
    with changing_admin(namesrv, audit_file) as admin:
        plan = admin.messages.consume_plan(group, client, topic, msg_id)
        place = f"{plan.topic} {plan.broker_name}:{plan.queue_id} offset {plan.queue_offset}"
        confirm(
            [
                f"{client} of group {group} runs its listener on {msg_id} ({place}, stored "
                f"{moment(plan.stored_ms)}), also if it has done so before",
                "the group's progress does not change",
            ],
            yes,
        )
        row = admin.messages.consume(group, client, topic, msg_id)
    if as_json_:
        print_json(as_json(row))
        return
    remark = f": {row.remark}" if row.remark else ""
    print_line(f"{row.client_id} {row.result} after {span(row.spent_ms)}{remark}")

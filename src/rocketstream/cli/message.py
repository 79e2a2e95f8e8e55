"""``rocketstream message view|query|track|consume``.

Law: options in, rows of ``Admin`` out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rocketstream.cli.consume import message_json
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    duration,
    moment,
    plural,
    print_json,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt

MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="The sender's id of the message, or the broker's.")
]


def add_to(app: typer.Typer) -> None:
    """Add the command group."""
    commands = typer.Typer(
        help="Single messages: find them, see who consumed them.", no_args_is_help=True
    )
    commands.command(epilog="Example: `rocketstream message view orders 7F0000…`")(view)
    commands.command(epilog="Example: `rocketstream message query orders order-1001`")(query)
    commands.command(epilog="Example: `rocketstream message track orders 7F0000…`")(track)
    commands.command(
        epilog="Example: `rocketstream message consume orders 7F0000… --group billing "
        "--client 10.0.0.9@4242`"
    )(consume)
    app.add_typer(commands, name="message")


def view(
    topic: Topic, msg_id: MessageId, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False
) -> None:
    """Show one message with everything known of it."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        message = admin.message_view(topic, msg_id)
    shown = message_json(message) | {
        "offsetMsgId": message.offset_msg_id,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
    }
    if as_json_:
        print_json(shown)
        return
    for name, value in shown.items():
        print_line(f"{name}: {value}")


def query(
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One key of the messages.")],
    most: Annotated[int, typer.Option("--max", min=1, max=64, help="Show that many.")] = 32,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Find messages by a key."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        messages = admin.message_query(topic, key, most)
    if as_json_:
        print_json([message_json(message) for message in messages])
        return
    print_table(
        [
            Column("Id", keep=True),
            Column("Queue", number=True),
            Column("Offset", number=True),
            Column("Stored", keep=True),
            Column("Tag"),
            Column("Bytes", number=True),
        ],
        [_cells(message) for message in messages],
        footer=plural(len(messages), "message"),
    )


def _cells(message: MessageExt) -> tuple[str, ...]:
    return (
        message.msg_id,
        str(message.queue_id),
        str(message.queue_offset),
        moment(message.store_timestamp),
        message.tags or NONE,
        str(len(message.body)),
    )


def track(
    topic: Topic, msg_id: MessageId, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False
) -> None:
    """Show which groups have consumed a message."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        rows = admin.message_track(topic, msg_id)
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_table(
        [Column("Group", keep=True), Column("Status", keep=True), Column("Description")],
        [(row.group, row.status, row.description or NONE) for row in rows],
        footer=plural(len(rows), "group"),
    )


def consume(
    topic: Topic,
    msg_id: MessageId,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")],
    client: Annotated[
        str,
        typer.Option("--client", "-c", help="Client id, as `rocketstream group members` shows it."),
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Make one member consume one message now; the group's progress does not change."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        row = admin.consume_message(group, client, topic, msg_id)
    if as_json_:
        print_json(as_json(row))
        return
    remark = f": {row.remark}" if row.remark else ""
    print_line(f"{row.client_id} {row.result} after {duration(row.spent_ms)}{remark}")

"""The options of commands about messages, of decoding and masking, and a message as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream._util.when import TIMES, moment_ms
from rocketstream.cli.declare import BadParameter, Option
from rocketstream.cli.output import NONE, Column, moment, print_fields, print_table, shown

if TYPE_CHECKING:
    from rocketstream.admin import Admin, BodyFormat, MessageFilter, ShownMessage

_BODY_CELLS: Final = 40

Mask = Annotated[
    str | None,
    Option(
        "--mask",
        metavar="FILE",
        envvar="ROCKETSTREAM_MASK",
        help="Masking rules (TOML): which parts of messages are not to be seen. Where a rule "
        "cannot be applied nothing of the body is shown.",
    ),
]
Format = Annotated[
    str | None,
    Option(
        "--format",
        metavar="text|json|hex|avro|protobuf",
        help="How bodies are read; without it as JSON or text, else in hex.",
    ),
]
Schema = Annotated[
    str | None,
    Option("--schema", metavar="FILE", help="Avro schema (.avsc) or Protobuf descriptor set."),
]
ProtoMessage = Annotated[
    str | None,
    Option("--message", metavar="NAME", help="Full name of the Protobuf message."),
]
Tag = Annotated[
    str | None, Option("--tag", metavar='"A || B"', help="Only with this tag, or these.")
]
Sql = Annotated[
    str | None,
    Option("--sql", metavar="CONDITION", help='Only where this holds, like "price > 5".'),
]
Grep = Annotated[
    str | None,
    Option("--grep", metavar="TEXT", help="Only with this text in body or a property."),
]
SinceTime = Annotated[
    str | None,
    Option(
        "--since",
        metavar="TIME",
        help="Stored then or later: 2024-05-01T12:00:00 (local without a zone), milliseconds "
        "since 1970, or 90s, 10m, 2h, 3d ago.",
    ),
]
UntilTime = Annotated[
    str | None, Option("--until", metavar="TIME", help="Stored before; as --since.")
]


def looking_admin(namesrv: str, mask: str | None) -> Admin:
    """Return an Admin that masks by the rules of a file, or by none."""
    from rocketstream.admin import Admin, Masking

    return Admin(namesrv, masking=Masking.from_file(mask) if mask else Masking())


def body_format(name: str | None, schema: str | None, message: str | None) -> BodyFormat:
    """Return how bodies are read, as the options say."""
    from rocketstream.admin import BodyFormat

    return BodyFormat.parse(name, schema, message)


def message_filter(
    tag: str | None, key: str | None, sql: str | None, text: str | None
) -> MessageFilter:
    """Return which messages are wanted, as the options say."""
    from rocketstream.admin import MessageFilter

    return MessageFilter(tag=tag, key=key, sql=sql, text=text)


def time_ms(text: str | None, option: str) -> int | None:
    """Return the time an option names, ms since 1970; None where it is not given.

    Raises:
        BadParameter: the value cannot be read as a time.
    """
    if text is None:
        return None
    try:
        return moment_ms(text, SYSTEM_CLOCK.now_ms())
    except ValueError as error:
        raise BadParameter(f"{option} is {text!r}; it takes {TIMES} ({error})") from None


def print_messages(messages: Sequence[ShownMessage], *, time_title: str = "Stored") -> None:
    """Print a table of messages, a line each."""
    print_table(
        [
            Column(time_title, keep=True, importance=7),
            Column("Queue", number=True, importance=8),
            Column("Offset", number=True, importance=8),
            Column("Id", keep=True),
            Column("Tag", importance=5),
            Column("Keys", importance=4),
            Column("Tries", number=True, importance=2),
            Column("Bytes", number=True, importance=3),
            Column("Body", importance=6),
        ],
        [
            (
                moment(message.store_ms),
                str(message.queue_id),
                str(message.queue_offset),
                message.msg_id,
                message.tags or NONE,
                message.keys or NONE,
                str(message.reconsume_times),
                str(message.body.size),
                body_cell(message),
            )
            for message in messages
        ],
    )


def body_cell(message: ShownMessage) -> str:
    """Return the beginning of a body on one line, or why it is not shown."""
    body = message.body
    if body.kind == "hidden":
        return "(hidden)"
    text = "".join(c if c.isprintable() else "·" for c in body.text[: _BODY_CELLS + 1])
    return text if len(text) <= _BODY_CELLS else text[:_BODY_CELLS] + "…"


def print_message(message: ShownMessage) -> None:
    """Print everything known of one message."""
    body = message.body
    said = body.kind + (f", {body.problem}" if body.problem else "")
    part = body.part()
    cut = f", {part}" if part else ""
    print_fields(
        [
            ("topic", message.topic),
            ("msgId", message.msg_id),
            ("offsetMsgId", message.offset_msg_id),
            ("broker", f"{message.broker_name or NONE} ({message.store_host})"),
            ("queue", str(message.queue_id)),
            ("offset", str(message.queue_offset)),
            ("tag", message.tags or NONE),
            ("keys", message.keys or NONE),
            ("born", f"{moment(message.born_ms)} at {message.born_host}"),
            ("stored", moment(message.store_ms)),
            ("tries before", str(message.reconsume_times)),
            *((f"property {name}", value) for name, value in sorted(message.properties.items())),
            *(("masked by", rule) for rule in message.masked_by),
            ("body", f"{body.size:,} bytes, {said}{cut}"),
        ]
    )
    if body.text:
        import sys

        sys.stdout.write("\n" + shown(_laid_out(message), lines=True) + "\n")


def _laid_out(message: ShownMessage) -> str:
    body = message.body
    if body.value is None or body.is_cut:
        return body.text
    import json

    return json.dumps(body.value, ensure_ascii=False, indent=2, default=str)

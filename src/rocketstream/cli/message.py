"""``rocketstream message …``: finding messages, following a topic, what became of one.

Law: joins no group, stores nothing.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rocketstream.admin.core.words import NONE, moment, plural, span, word
from rocketstream.cli.changing import Change, changes
from rocketstream.cli.commands import (
    JSON_LINES,
    TIME,
    Commands,
    Seconds,
    Whole,
    argument,
    looking,
    names,
    option,
    shows,
    together,
    words,
)
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.failure import say
from rocketstream.cli.output import (
    json_line,
    print_fields,
    print_json,
    print_line,
    print_prose,
    render,
)
from rocketstream.cli.tables import Column, Count, Name, shown
from rocketstream.errors import RocketMQError

if TYPE_CHECKING:
    from rocketstream.admin import SearchPage, ShownMessage, TraceTimeline

message: Commands = Commands(
    "message", help="Messages: find, follow and trace them, see who consumed them."
)
_BODY_CELLS: Final = 40
_ENDED = {
    "most": "there are more",
    "examined": "not everything was looked at",
    "time": "it took too long",
    "problem": "something could not be read",
}

# --- shared with dead letters -----------------------------------------------------

mask: Final = option(
    "--mask FILE",
    "Masking rules (TOML): which parts of messages are not to be seen. Where a rule "
    "cannot be applied nothing of the body is shown.",
    click.Path(),
    envvar="ROCKETSTREAM_MASK",
    show_envvar=True,
)
message_id: Final = argument("ID", "The sender's id of the message, or the broker's.", to="msg_id")
conditions: Final = together(
    option('--tag "A || B"', "Only with this tag, or these."),
    option("--sql CONDITION", 'Only where this holds, like "price > 5".'),
    option("--grep TEXT", "Only with this text in body or a property."),
)


def decodes(function: Callable[..., Any]) -> Any:
    """Give a command the options that say how bodies are read; it gets them as ``how``."""

    @functools.wraps(function)
    def call(
        *args: Any, format: str | None, schema: str | None, message_name: str | None, **given: Any
    ) -> None:
        from rocketstream.admin import BodyFormat

        function(*args, how=BodyFormat.parse(format, schema, message_name), **given)

    return together(
        option(
            "--format text|json|hex|avro|protobuf",
            "How bodies are read; without it as JSON or text, else in hex.",
            shell_complete=words("avro", "hex", "json", "protobuf", "text"),
        ),
        option("--schema FILE", "Avro schema (.avsc) or Protobuf descriptor set.", click.Path()),
        option("--message NAME", "Full name of the Protobuf message.", to="message_name"),
    )(call)


def print_messages(messages: Sequence[ShownMessage], *, time_title: str = "Stored") -> None:
    """Print a table of messages, a line each."""
    columns = (
        Name(time_title, lambda each: moment(each.store_ms), importance=7),
        Count("Queue", lambda each: str(each.queue_id), importance=8),
        Count("Offset", lambda each: str(each.queue_offset), importance=8),
        Name("Id", lambda each: each.msg_id),
        Column("Tag", lambda each: each.tags or NONE, importance=5),
        Column("Keys", lambda each: each.keys or NONE, importance=4),
        Count("Tries", lambda each: str(each.reconsume_times), importance=2),
        Count("Bytes", lambda each: str(each.body.size), importance=3),
        Column("Body", body_cell, importance=6),
    )
    render(messages, columns, False)


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
        sys.stdout.write("\n" + shown(_laid_out(message), lines=True) + "\n")


def _laid_out(message: ShownMessage) -> str:
    body = message.body
    if body.value is None or body.is_cut:
        return body.text
    import json

    return json.dumps(body.value, ensure_ascii=False, indent=2, default=str)


# --- finding --------------------------------------------------------------------------------------


@message.command(epilog="Example: `rocketstream message view orders 7F0000…`")
@topic_argument
@message_id
@decodes
@mask
@shows()
def view(topic: str, msg_id: str, how: Any, mask: str | None, namesrv: str, as_json: bool) -> None:
    """Show one message with everything known of it."""
    from rocketstream.errors import OffsetNotFoundError

    with looking(namesrv, mask) as admin:
        found = admin.messages.search(topic, msg_id=msg_id, how=how, newest_first=False)
    _warn(found)
    if not found.messages:
        raise OffsetNotFoundError(22, f"no message {msg_id!r} in topic {topic!r}")
    if as_json:
        print_json(found.messages[0])
        return
    print_message(found.messages[0])
    if len(found.messages) > 1:
        more = plural(len(found.messages) - 1, "later message")
        print_prose(
            f"(the topic has {more} with this id: sent twice, or sent again; "
            f"`rocketstream message search {word(topic)} --id {word(msg_id)}` lists all)"
        )


@message.command(epilog="Example: `rocketstream message query orders order-1001`")
@topic_argument
@argument("KEY", "One key of the messages.")
@option("--max N", "Show this many at most.", Whole(1, 1_000), to="most", default=32)
@mask
@shows()
def query(topic: str, key: str, most: int, mask: str | None, namesrv: str, as_json: bool) -> None:
    """Find messages by a key."""
    with looking(namesrv, mask) as admin:
        found = admin.messages.search(topic, key=key, most=most)
    _warn(found)
    messages = found.messages[::-1]
    if as_json:
        print_json(messages)
    else:
        print_messages(messages)
        print_line(plural(len(messages), "message"))
    if found.ended_by is not None:
        # Beside the rows: with --json these are a list, which has no place for it.
        onward = "" if found.resume is None else f" --resume {found.resume}"
        say(
            f"warning: these are the newest {len(messages)} and there may be more: --max shows up "
            "to 1000; to go on where this ended: "
            f"rocketstream message search {word(topic)} --key {word(key)}{onward}"
        )


@message.command(
    epilog="Examples: `rocketstream message search orders --since 10m --tag eu` · "
    "`rocketstream message search orders --queue 3 --offset 1042 --oldest-first`"
)
@topic_argument
@option("--id ID", "The message with this id; it is looked up, not searched for.", to="msg_id")
@option("--key KEY", "Messages with this key; they are looked up, not searched for.")
@option(
    "--since TIME",
    "Stored then or later: 2024-05-01T12:00:00 (local without a zone), milliseconds "
    "since 1970, or 90s, 10m, 2h, 3d ago.",
    TIME,
    to="since_ms",
)
@option("--until TIME", "Stored before; as --since.", TIME, to="until_ms")
@option("--queue, -q N", "Only in this queue.", Whole(0), to="queue_id")
@option("--broker NAME", "Only at this broker.", to="broker_name", shell_complete=names("brokers"))
@option("--offset N", "From this offset of the queue on.", Whole(0))
@conditions
@option("--oldest-first", "The oldest first, not the newest.")
@option("--max, -m N", "Show this many at most.", Whole(1, 1_000), to="most", default=32)
@option(
    "--examine N",
    "Look at this many messages at most.",
    Whole(1),
    to="examined_most",
    default=10_000,
)
@option("--resume WORD", "Go on where a search ended.")
@decodes
@mask
@shows()
def search(
    topic: str,
    tag: str | None,
    sql: str | None,
    grep: str | None,
    oldest_first: bool,
    mask: str | None,
    namesrv: str,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Find messages by id, key, time, offset or text.

    Reads queues from where the brokers' indexes point to; joins no group.
    """
    from rocketstream.admin import MessageFilter

    wanted = MessageFilter(tag=tag, sql=sql, text=grep)
    with looking(namesrv, mask) as admin:
        page = admin.messages.search(topic, wanted=wanted, newest_first=not oldest_first, **chosen)
    _show(page, as_json)


def _warn(page: SearchPage) -> None:
    """Warn of brokers that could not be asked.

    Raises:
        RocketMQError: no broker could be asked: an empty result would look like no messages.
    """
    if page.problems and not page.messages and not page.examined:
        raise RocketMQError("; ".join(page.problems))
    for problem in page.problems:
        say(f"warning: {problem}")


def _show(page: SearchPage, as_json: bool) -> None:
    _warn(page)
    if as_json:
        print_json(page)
        return
    print_messages(page.messages)
    print_line(f"{plural(len(page.messages), 'message')} of {page.examined:,} looked at")
    if page.ended_by is not None:
        print_prose(f"{_ENDED[page.ended_by]}, from {moment(page.reached_ms)} on")
    if page.resume is not None:
        print_line(f"--resume {page.resume}")


# --- what became of one ---------------------------------------------------------------------------

_COLOURS = {
    "CONSUMED": "green",
    "DEAD_LETTERED": "red",
    "RETRYING": "yellow",
    "UNKNOWN": "yellow",
}


@message.command(epilog="Example: `rocketstream message track orders 7F0000…`")
@topic_argument
@message_id
@shows()
def track(topic: str, msg_id: str, namesrv: str, as_json: bool) -> None:
    """Show what became of a message in each group: consumed, in retry, dead-lettered, not yet."""
    with looking(namesrv) as admin:
        rows = admin.messages.track(topic, msg_id)
    columns = (
        Name("Group", lambda row: row.group),
        Name("Status", lambda row: row.status, colour=_COLOURS.get),
        Count("Tries", lambda row: NONE if row.tries is None else str(row.tries), importance=6),
        Name("Since", lambda row: moment(row.since_ms), importance=4),
        Name("Next try", lambda row: moment(row.due_ms), importance=5),
        Column("Description", lambda row: row.description or NONE, importance=7),
    )
    render(rows, columns, as_json, footer=plural(len(rows), "group"))


@message.command(
    epilog="Example: `rocketstream message consume orders 7F0000… --group billing "
    "--client 10.0.0.9@4242`"
)
@topic_argument
@message_id
@option("--group, -g TEXT", "The consumer group.", required=True, shell_complete=names("groups"))
@option("--client, -c TEXT", "Client id, as `rocketstream group members` shows it.", required=True)
@changes(dry_run=False)
def consume(topic: str, msg_id: str, group: str, client: str, change: Change) -> None:
    """Make one member consume one message now; the group's progress does not change."""
    with change.admin() as admin:
        plan = admin.messages.consume_plan(group, client, topic, msg_id)
        place = f"{plan.topic} {plan.broker_name}:{plan.queue_id} offset {plan.queue_offset}"
        change.confirm(
            [
                f"{client} of group {group} runs its listener on {msg_id} ({place}, stored "
                f"{moment(plan.stored_ms)}), also if it has done so before",
                "the group's progress does not change",
            ]
        )
        row = admin.messages.consume(group, client, topic, msg_id, stored_ms=plan.stored_ms)
    if change.as_json:
        print_json(row)
        return
    remark = f": {row.remark}" if row.remark else ""
    print_line(f"{row.client_id} {row.result} after {span(row.spent_ms)}{remark}")


# --- following, and the way of one ---------------------------------------------------------------

_PAUSE_S = 0.2
_BAR_CELLS = 24
_OUTCOMES = {"SUCCESS": "green", "stored": "green", "UNFINISHED": "yellow"}


@message.command(
    epilog="Examples: `rocketstream message tail orders` · "
    "`rocketstream message tail orders --grep refused --json | jq .body`"
)
@topic_argument
@conditions
@option("--key KEY", "Only with this key.")
@option("--last N", "Begin this many messages before each queue's end.", Whole(0, 1_000), default=0)
@option("--max, -m N", "End after this many messages.", Whole(1), to="limit")
@option("--idle SECONDS", "End after this time without a message.", Seconds(0.1), to="idle_s")
@decodes
@mask
@shows(help=JSON_LINES)
def tail(
    topic: str,
    tag: str | None,
    sql: str | None,
    grep: str | None,
    key: str | None,
    last: int,
    limit: int | None,
    idle_s: float | None,
    how: Any,
    mask: str | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """Follow a topic: print what arrives, until Ctrl-C.

    Takes nothing from any group. Messages that arrive faster than they can be shown are passed
    over, and counted.
    """
    from rocketstream.admin import MessageFilter

    wanted = MessageFilter(tag=tag, key=key, sql=sql, text=grep)
    printed, quiet_s = 0, 0.0
    told: tuple[str, ...] = ()
    pause = threading.Event()
    with looking(namesrv, mask) as admin:
        found = admin.messages.tail(topic, wanted=wanted, last=last, how=how)
        while True:
            if found.problems != told:
                told = found.problems
                for problem in told:
                    say(f"warning: {problem}")
            if found.passed_over:
                say(f"warning: {plural(found.passed_over, 'message')} passed over: too fast")
            for message in found.messages:
                if as_json:
                    print_line(json_line(message))
                else:
                    body = message.body.text or f"({message.body.problem or 'empty'})"
                    head = f"{moment(message.store_ms)} {message.queue_id}/{message.queue_offset}"
                    print_line(" ".join(filter(None, (head, message.tags, body))))
                printed += 1
                if printed == limit:
                    return
            quiet_s = 0.0 if found.messages else quiet_s + _PAUSE_S
            if idle_s is not None and quiet_s >= idle_s:
                return
            pause.wait(_PAUSE_S)
            found = admin.messages.tail(topic, found.place, wanted=wanted, how=how)


@message.command(epilog="Example: `rocketstream message trace orders 7F0000…`")
@topic_argument
@message_id
@option("--trace-topic TOPIC", "Where clients record what they do.", default="RMQ_SYS_TRACE_TOPIC")
@mask
@shows()
def trace(
    topic: str, msg_id: str, trace_topic: str, mask: str | None, namesrv: str, as_json: bool
) -> None:
    """Show a message's way: sent, stored, and each try of each group, with cost and outcome.

    Clients record it where their tracing is on (enable_msg_trace=True, Java: enableMsgTrace).
    """
    with looking(namesrv, mask) as admin:
        told = admin.messages.trace(topic, msg_id, trace_topic=trace_topic)
    for problem in told.problems:
        say(f"warning: {problem}")
    if as_json:
        print_json(told)
        return
    rows = sorted(_rows(told), key=lambda row: row[0])
    first = rows[0][0] if rows else 0
    whole = max((at + (cost or 0) for at, cost, *_ in rows), default=0) - first
    columns = (
        Count("After", lambda row: span(row[0] - first)),
        Name("What", lambda row: row[2]),
        Count("Took", lambda row: "-" if row[1] is None else span(row[1])),
        Name("Outcome", lambda row: row[3], colour=lambda t: _OUTCOMES.get(t, "red")),
        Name("Group", lambda row: row[4], importance=8),
        Name("Client", lambda row: row[5], importance=4),
        Name("", lambda row: _bar(row[0] - first, row[1] or 0, whole), importance=5),
    )
    render(rows, columns, False)
    if told.is_empty:
        print_line("no client recorded anything of it: is tracing on there?")
    if rows:
        groups = plural(len(told.by_group()), "group")
        tries = plural(len(told.tries), "try", "tries")
        print_line(f"from {moment(first, exact=True)} on; {tries} by {groups}")


_Row = tuple[int, int | None, str, str, str, str]


def _rows(told: TraceTimeline) -> Iterator[_Row]:
    for send in told.sends:
        outcome = "stored" if send.is_stored else "not stored"
        what = "send" if send.kind == "normal" else f"send ({send.kind})"
        yield send.began_ms, send.cost_ms, what, outcome, send.group or "-", send.client or "-"
    if told.store_ms is not None:
        yield told.store_ms, None, "store", "stored", "-", told.store_host or "-"
    for end in told.ends:
        yield end.at_ms, None, "end", end.state, end.group or "-", "-"
    for each in told.tries:
        times = f" (retry {each.retry_times})" if each.retry_times else ""
        at = each.began_ms or 0
        yield at, each.cost_ms, f"consume{times}", each.outcome, each.group, each.client or "-"


def _bar(at: int, cost: int, whole: int) -> str:
    """Return where in the whole time something took place."""
    if whole <= 0:
        return "■"
    begin = round(at / whole * (_BAR_CELLS - 1))
    cells = max(1, round(cost / whole * _BAR_CELLS))
    return "·" * begin + "■" * min(cells, _BAR_CELLS - begin)

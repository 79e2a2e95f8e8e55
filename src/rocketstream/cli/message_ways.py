"""``rocketstream message tail|trace``: messages as they arrive, and one message's way.

Law: joins no group, stores nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rocketstream.admin.core.words import moment, plural, span
from rocketstream.cli.commands import JSON_LINES, Seconds, Whole, option, shows
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.failure import say
from rocketstream.cli.message import conditions, decodes, looking_admin, mask, message_id
from rocketstream.cli.output import json_line, print_json, print_line, render
from rocketstream.cli.tables import Column

if TYPE_CHECKING:
    from rocketstream.admin import TraceTimeline

_PAUSE_S = 0.2
_BAR_CELLS = 24
_COLOURS = {"SUCCESS": "green", "stored": "green", "UNFINISHED": "yellow"}


@click.command(
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
    with looking_admin(namesrv, mask) as admin:
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


@click.command(epilog="Example: `rocketstream message trace orders 7F0000…`")
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
    with looking_admin(namesrv, mask) as admin:
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
        Column("After", lambda row: span(row[0] - first), number=True),
        Column("What", lambda row: row[2], keep=True),
        Column("Took", lambda row: "-" if row[1] is None else span(row[1]), number=True),
        Column("Outcome", lambda row: row[3], keep=True, colour=lambda t: _COLOURS.get(t, "red")),
        Column("Group", lambda row: row[4], keep=True, importance=8),
        Column("Client", lambda row: row[5], keep=True, importance=4),
        Column("", lambda row: _bar(row[0] - first, row[1] or 0, whole), keep=True, importance=5),
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

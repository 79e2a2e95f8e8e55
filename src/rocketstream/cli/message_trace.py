"""``rocketstream message trace TOPIC ID``: a message's way as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from rocketstream.cli.declare import Argument, Commands, Option
from rocketstream.cli.failure import say
from rocketstream.cli.message_options import Mask, looking_admin
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    Column,
    as_json,
    moment,
    plural,
    print_json,
    print_line,
    print_table,
    span,
)

if TYPE_CHECKING:
    from rocketstream.admin import TraceTimeline

_BAR_CELLS = 24
_COLOURS = {"SUCCESS": "green", "stored": "green", "UNFINISHED": "yellow"}


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add(trace, epilog="Example: `rocketstream message trace orders 7F0000…`")


def trace(
    topic: Topic,
    msg_id: Annotated[
        str, Argument(metavar="ID", help="The sender's id of the message, or the broker's.")
    ],
    trace_topic: Annotated[
        str,
        Option("--trace-topic", metavar="TOPIC", help="Where clients record what they do."),
    ] = "RMQ_SYS_TRACE_TOPIC",
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show a message's way: sent, stored, and each try of each group, with cost and outcome.

    Clients record it where their tracing is on (enable_msg_trace=True, Java: enableMsgTrace).
    """
    with looking_admin(namesrv, mask) as admin:
        told = admin.messages.trace(topic, msg_id, trace_topic=trace_topic)
    for problem in told.problems:
        say(f"warning: {problem}")
    if as_json_:
        print_json(_json(told))
        return
    rows = sorted(_rows(told), key=lambda row: row[0])
    first = rows[0][0] if rows else 0
    last = max((at + (cost or 0) for at, cost, *_ in rows), default=0)
    print_table(
        [
            Column("After", number=True),
            Column("What", keep=True),
            Column("Took", number=True),
            Column("Outcome", keep=True, colour=lambda text: _COLOURS.get(text.strip(), "red")),
            Column("Group", keep=True, importance=8),
            Column("Client", keep=True, importance=4),
            Column("", keep=True, importance=5),
        ],
        [
            (
                span(at - first),
                what,
                "-" if cost is None else span(cost),
                outcome,
                group,
                client,
                _bar(at - first, cost or 0, last - first),
            )
            for at, cost, what, outcome, group, client in rows
        ],
    )
    if told.is_empty:
        print_line("no client recorded anything of it: is tracing on there?")
    if rows:
        begun = moment(first, exact=True)
        groups = plural(len(told.by_group()), "group")
        tries = "1 try" if len(told.tries) == 1 else f"{len(told.tries):,} tries"
        print_line(f"from {begun} on; {tries} by {groups}")


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


def _json(told: TraceTimeline) -> dict[str, object]:
    return {
        "topic": told.topic,
        "msgId": told.msg_id,
        "storeTimestamp": told.store_ms,
        "storeHost": told.store_host,
        "sends": [as_json(send) for send in told.sends],
        "tries": [as_json(each) for each in told.tries],
        "ends": [as_json(end) for end in told.ends],
        "problems": list(told.problems),
    }

"""``rocketstream message tail TOPIC``: print arriving messages until Ctrl-C.

Law: joins no group, stores nothing.
"""

from __future__ import annotations

import threading
from typing import Annotated

from rocketstream.cli.declare import Commands, Option
from rocketstream.cli.failure import say
from rocketstream.cli.message_options import (
    Format,
    Grep,
    Mask,
    ProtoMessage,
    Schema,
    Sql,
    Tag,
    body_format,
    looking_admin,
    message_filter,
)
from rocketstream.cli.options import DEFAULT_NAMESRV, JsonLines, Namesrv, Topic
from rocketstream.cli.output import json_line, moment, plural, print_line

_PAUSE_S = 0.2


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add(
        tail,
        epilog="Examples: `rocketstream message tail orders` · "
        "`rocketstream message tail orders --grep refused --json | jq .body`",
    )


def tail(
    topic: Topic,
    tag: Tag = None,
    key: Annotated[str | None, Option("--key", metavar="KEY", help="Only with this key.")] = None,
    sql: Sql = None,
    grep: Grep = None,
    last: Annotated[
        int,
        Option(
            "--last", min=0, max=1_000, help="Begin this many messages before each queue's end."
        ),
    ] = 0,
    limit: Annotated[
        int | None, Option("--max", "-m", min=1, help="End after this many messages.")
    ] = None,
    idle_s: Annotated[
        float | None,
        Option("--idle", metavar="SECONDS", min=0.1, help="End after this time without a message."),
    ] = None,
    format_: Format = None,
    schema: Schema = None,
    message_name: ProtoMessage = None,
    mask: Mask = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: JsonLines = False,
) -> None:
    """Follow a topic: print what arrives, until Ctrl-C.

    Takes nothing from any group. Messages that arrive faster than they can be shown are passed
    over, and counted.
    """
    wanted = message_filter(tag, key, sql, grep)
    how = body_format(format_, schema, message_name)
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
                    print_line(json_line(message.as_json()))
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

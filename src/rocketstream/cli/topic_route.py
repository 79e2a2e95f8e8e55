"""``rocketstream topic route|consumers``: where a topic's queues are, and its consumer groups."""

from __future__ import annotations

from rocketstream.cli.declare import Commands
from rocketstream.cli.looking import brokers_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    number,
    plural,
    print_json,
    print_line,
    print_table,
)


def add_to(commands: Commands) -> None:
    """Add the commands to ``topic``."""
    commands.add(route, epilog="Example: `rocketstream topic route orders`")
    commands.add(consumers, epilog="Example: `rocketstream topic consumers orders`")


def route(topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show which brokers have a topic, with how many queues, and what clients may do there."""
    with brokers_of(namesrv) as admin:
        rows = admin.topics.route(topic)
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_table(
        [
            Column("Broker", keep=True),
            Column("Address", keep=True),
            Column("Read queues", number=True),
            Column("Write queues", number=True),
            Column("Permission", importance=5),
        ],
        [
            (
                row.broker_name,
                row.address or NONE,
                number(row.read_queues),
                number(row.write_queues),
                row.permission,
            )
            for row in rows
        ],
        footer=plural(len(rows), "broker"),
    )


def consumers(topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show which consumer groups have progress in a topic, or members that subscribe it."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        groups = admin.topics.consumers(topic)
    if as_json_:
        print_json(list(groups))
        return
    for group in groups:
        print_line(group)
    print_line(plural(len(groups), "group"))

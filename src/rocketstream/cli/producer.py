"""``rocketstream producer list|connections``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from rocketstream.cli.declare import Argument, Commands
from rocketstream.cli.looking import brokers_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Topic
from rocketstream.cli.output import (
    Column,
    as_json,
    moment,
    plural,
    print_json,
    print_prose,
    print_table,
)

if TYPE_CHECKING:
    from rocketstream.admin.cluster import ProducerRow


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("producer", "Connected producers.")
    commands.add(list_producers, "list", epilog="Example: `rocketstream producer list`")
    commands.add(connections, epilog="Example: `rocketstream producer connections checkout orders`")
    app.add_command(commands)


def list_producers(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """List the connected producers of all groups (brokers from 4.9.4 on tell them)."""
    with brokers_of(namesrv) as admin:
        rows = admin.producers.all()
    _print(rows, as_json_, "no producer is connected")


def connections(
    group: Annotated[str, Argument(metavar="GROUP", help="The producer group.")],
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show the connected producers of a group, as the brokers of a topic know them."""
    with brokers_of(namesrv) as admin:
        rows = admin.producers.connections(group, topic)
    _print(rows, as_json_, f"no producer of group {group!r} is connected to a broker of {topic!r}")


def _print(rows: Sequence[ProducerRow], as_json_: bool, nobody: str) -> None:
    from rocketstream.protocol.codes import version_name

    if as_json_:
        print_json([_json(row) for row in rows])
        return
    if not rows:
        print_prose(f"{nobody}; brokers know producers by their heartbeats alone")
        return
    print_table(
        [
            Column("Group", keep=True),
            Column("Client", keep=True),
            Column("Address", keep=True, importance=5),
            Column("Language", importance=2),
            Column("Version", keep=True, importance=4),
            Column("Brokers", importance=3),
            Column("Last heartbeat", keep=True, importance=1),
        ],
        [
            (
                row.group,
                row.client_id,
                row.address,
                row.language,
                version_name(row.version),
                ", ".join(row.brokers),
                moment(row.last_heartbeat_ms),
            )
            for row in rows
        ],
        footer=plural(len(rows), "producer"),
    )


def _json(row: ProducerRow) -> dict[str, Any]:
    from rocketstream.protocol.codes import version_name

    return as_json(row) | {"versionName": version_name(row.version)}

"""``rocketstream namesrv list|config``."""

from __future__ import annotations

from typing import Annotated

from rocketstream.cli.broker import print_settings
from rocketstream.cli.cluster import print_name_servers
from rocketstream.cli.declare import Commands, Option
from rocketstream.cli.looking import brokers_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import as_json, print_json, print_line
from rocketstream.errors import ConnectError


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("namesrv", "Name servers: what each of them knows, their settings.")
    commands.add(
        list_name_servers, "list", epilog="Example: `rocketstream namesrv list -n 'a:9876;b:9876'`"
    )
    commands.add(config, epilog="Example: `rocketstream namesrv config --order`")
    app.add_command(commands)


def list_name_servers(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show for each of the name servers given whether it answers and which brokers it knows."""
    with brokers_of(namesrv) as admin:
        rows = admin.cluster.name_servers()
    if all(row.brokers is None for row in rows):
        raise ConnectError("; ".join(f"name server {row.address}: {row.error}" for row in rows))
    if as_json_:
        print_json([as_json(row) for row in rows])
        return
    print_name_servers(rows)


def config(
    order: Annotated[
        bool,
        Option("--order", help="The queues of ordered topics (its key-value settings)."),
    ] = False,
    match: Annotated[
        str | None,
        Option("--match", metavar="TEXT", help="Only settings whose name contains this."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show the settings of the first name server that answers, or those of ordered topics."""
    with brokers_of(namesrv) as admin:
        rows = admin.cluster.name_servers()
    there = [row for row in rows if row.brokers is not None]
    if not there:
        raise ConnectError("; ".join(f"name server {row.address}: {row.error}" for row in rows))
    settings = there[0].order_topics if order else there[0].config
    if settings is None:
        raise ConnectError(f"name server {there[0].address} does not tell its settings")
    if not settings and not as_json_:
        print_line("no ordered topic has queues of its own" if order else "it tells no setting")
        return
    print_settings(settings, match, as_json_)

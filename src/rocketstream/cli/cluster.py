"""``rocketstream cluster list|status``.

Law: totals are sums of the known figures, and name the brokers that are missing in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketstream.admin.core.words import per_second, percent
from rocketstream.cli.broker import broker_json, disk_colour, print_brokers
from rocketstream.cli.declare import Commands
from rocketstream.cli.looking import brokers_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    number,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
)

if TYPE_CHECKING:
    from rocketstream.admin.cluster import BrokerStatusRow, NameServerRow


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("cluster", "Clusters: their brokers and name servers.")
    commands.add(list_clusters, "list", epilog="Example: `rocketstream cluster list --json`")
    commands.add(status, epilog="Example: `rocketstream cluster status --watch 5`")
    app.add_command(commands)


def list_clusters(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """List the clusters the name server knows, with totals over their brokers."""
    with brokers_of(namesrv) as admin:
        rows = admin.brokers.status()
    clusters: dict[str, list[BrokerStatusRow]] = {}
    for row in rows:
        clusters.setdefault(row.cluster, []).append(row)
    totals = {name: _Totals(found) for name, found in sorted(clusters.items())}
    if as_json_:
        print_json([{"cluster": name} | total.json() for name, total in totals.items()])
        return
    print_table(
        [
            Column("Cluster", keep=True),
            Column("Brokers", number=True, importance=6),
            Column("Processes", number=True, importance=3),
            Column("Not answering", number=True),
            Column("Put/s", number=True),
            Column("Get/s", number=True),
            Column("Fullest disk", number=True, colour=disk_colour),
        ],
        [(name, *total.cells()) for name, total in totals.items()],
        footer=plural(len(totals), "cluster"),
    )
    for row in rows:
        if row.error is not None:
            print_prose(f"{row.broker_name} ({row.address}): {row.error}")


class _Totals:
    """The sums of a cluster's brokers; rates are those of masters that answered."""

    def __init__(self, rows: list[BrokerStatusRow]) -> None:
        told = [row.figures for row in rows if row.figures is not None]
        masters = [r.figures for r in rows if r.is_master and r.figures is not None]
        self.brokers = len({row.broker_name for row in rows})
        self.processes = len(rows)
        self.silent = len(rows) - len(told)
        self.put_tps = _sum(each.put_tps for each in masters)
        self.get_tps = _sum(each.get_tps for each in told)
        self.disk = max((f.disk_used for f in told if f.disk_used is not None), default=None)

    def cells(self) -> tuple[str, ...]:
        return (
            number(self.brokers),
            number(self.processes),
            number(self.silent) if self.silent else NONE,
            per_second(self.put_tps),
            per_second(self.get_tps),
            percent(self.disk),
        )

    def json(self) -> dict[str, object]:
        return {
            "brokers": self.brokers,
            "processes": self.processes,
            "notAnswering": self.silent,
            "putTps": self.put_tps,
            "getTps": self.get_tps,
            "diskUsed": self.disk,
        }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def status(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show the brokers and name servers: load, disk, versions, and what does not answer."""
    with brokers_of(namesrv) as admin:
        brokers = admin.brokers.status()
        servers = admin.cluster.name_servers()
    if as_json_:
        print_json(
            {
                "brokers": [broker_json(row) for row in brokers],
                "nameServers": [as_json(row) for row in servers],
            }
        )
        return
    print_brokers(brokers)
    print_line("")
    print_name_servers(servers)


def print_name_servers(rows: list[NameServerRow]) -> None:
    """Print one line per name server, and where they differ."""
    everywhere = {address for row in rows for address in row.brokers or ()}
    for row in rows:
        if row.brokers is None:
            print_prose(f"name server {row.address}: {row.error}")
            continue
        missing = sorted(everywhere.difference(row.brokers))
        lacks = f", but not {', '.join(missing)}, which others know" if missing else ""
        known = plural(len(row.brokers), "broker process", "broker processes")
        print_prose(f"name server {row.address} knows {known}{lacks}")

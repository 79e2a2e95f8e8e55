"""``rocketstream cluster|broker|producer|namesrv``: who is there, and how loaded; also ``export``
and ``import``: topics, groups and offsets of a cluster as a file.

Law: totals are sums of the known figures, and name the brokers that are missing in them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.core.words import (
    NONE,
    UNKNOWN,
    moment,
    number,
    per_second,
    percent,
    plural,
    size,
    span,
)
from rocketstream.cli.changing import FORCE, Change, changes
from rocketstream.cli.commands import (
    Commands,
    Watched,
    argument,
    asks,
    looking,
    names,
    option,
    pairs,
    shows,
)
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.output import (
    json_of,
    print_fields,
    print_json,
    print_line,
    print_prose,
    render,
)
from rocketstream.cli.tables import Column, Count, Name
from rocketstream.errors import ConfigurationError, ConnectError

if TYPE_CHECKING:
    from rocketstream.admin.cluster import BrokerStatusRow, NameServerRow, ProducerRow

DISK_FULL = 0.85
"""From here on a broker of 4.9 or 5.x deletes before time (diskSpaceCleanForciblyRatio)."""
_broker = argument("BROKER", "Name or address of the broker.", shell_complete=names("brokers"))
_match = option("--match TEXT", "Only settings whose name contains this.")

# --- clusters -------------------------------------------------------------------------------------

cluster: Commands = Commands("cluster", help="Clusters: their brokers and name servers.")


@cluster.command("list", cls=Watched, epilog="Example: `rocketstream cluster list --json`")
@shows(watch=True)
def list_clusters(namesrv: str, as_json: bool) -> None:
    """List the clusters the name server knows, with totals over their brokers."""
    with looking(namesrv) as admin:
        rows = admin.brokers.status()
    names = sorted({row.cluster for row in rows})
    totals = [_totals(name, [row for row in rows if row.cluster == name]) for name in names]
    columns = (
        Name("Cluster", lambda row: row.cluster),
        Count("Brokers", lambda row: number(row.brokers), importance=6),
        Count("Processes", lambda row: number(row.processes), importance=3),
        Count("Not answering", lambda row: number(row.not_answering or None, NONE)),
        Count("Put/s", lambda row: per_second(row.put_tps)),
        Count("Get/s", lambda row: per_second(row.get_tps)),
        Count("Fullest disk", lambda row: percent(row.disk_used), colour=disk_colour),
    )
    render(totals, columns, as_json, footer=plural(len(totals), "cluster"))
    if not as_json:
        _print_silent(rows)


@dataclass(frozen=True, slots=True)
class _Totals:
    """The sums of a cluster's brokers; rates are those of masters that answered."""

    cluster: str
    brokers: int
    processes: int
    not_answering: int
    put_tps: float | None
    get_tps: float | None
    disk_used: float | None


def _totals(cluster: str, rows: list[BrokerStatusRow]) -> _Totals:
    told = [row.figures for row in rows if row.figures is not None]
    masters = [row.figures for row in rows if row.is_master and row.figures is not None]
    return _Totals(
        cluster,
        brokers=len({row.broker_name for row in rows}),
        processes=len(rows),
        not_answering=len(rows) - len(told),
        put_tps=_sum(each.put_tps for each in masters),
        get_tps=_sum(each.get_tps for each in told),
        disk_used=max((f.disk_used for f in told if f.disk_used is not None), default=None),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@cluster.command(cls=Watched, epilog="Example: `rocketstream cluster status --watch 5`")
@shows(watch=True)
def status(namesrv: str, as_json: bool) -> None:
    """Show the brokers and name servers: load, disk, versions, and what does not answer."""
    with looking(namesrv) as admin:
        brokers = admin.brokers.status()
        servers = admin.cluster.name_servers()
    if as_json:
        print_json({"brokers": brokers, "nameServers": servers})
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


# --- brokers --------------------------------------------------------------------------------------

broker: Commands = Commands("broker", help="Brokers: load, disk, version, settings.")


@broker.command("list", cls=Watched, epilog="Example: `rocketstream broker list --watch`")
@shows(watch=True)
def list_brokers(namesrv: str, as_json: bool) -> None:
    """List the brokers with what they store and fetch a second, disk and version."""
    with looking(namesrv) as admin:
        rows = admin.brokers.status()
    if as_json:
        print_json(rows)
    else:
        print_brokers(rows)


def print_brokers(rows: Sequence[BrokerStatusRow]) -> None:
    """Print one line per broker process, and why some did not answer."""
    now_ms = SYSTEM_CLOCK.now_ms()

    def told(row: BrokerStatusRow, name: str) -> Any:
        return None if row.figures is None else getattr(row.figures, name)

    def up(row: BrokerStatusRow) -> str:
        booted_ms = told(row, "booted_ms")
        return UNKNOWN if booted_ms is None else span(now_ms - booted_ms)

    columns = (
        Name("Cluster", lambda row: row.cluster, importance=2),
        Name("Broker", lambda row: row.broker_name),
        Column("Role", _role, importance=5),
        Name("Address", lambda row: row.address, importance=6),
        Name("Version", lambda row: told(row, "version") or UNKNOWN, importance=4),
        Count("Put/s", lambda row: per_second(told(row, "put_tps"))),
        Count("Get/s", lambda row: per_second(told(row, "get_tps"))),
        Count("Disk", lambda row: percent(told(row, "disk_used")), colour=disk_colour),
        Count("Up", up, importance=3),
    )
    footer = plural(len(rows), "broker process", "broker processes")
    render(rows, columns, False, footer=footer)
    _print_silent(rows)


def _print_silent(rows: Iterable[BrokerStatusRow]) -> None:
    for row in rows:
        if row.error is not None:
            print_prose(f"{row.broker_name} ({row.address}): {row.error}")


def _role(row: BrokerStatusRow) -> str:
    return "master" if row.is_master else f"slave {row.broker_id}"


def disk_colour(cell: str) -> str | None:
    """Return the colour of a share of a disk as ``percent`` writes it."""
    full = cell.endswith("%") and float(cell[:-1]) >= DISK_FULL * 100
    return "red" if full else None


@broker.command(
    "status", cls=Watched, epilog="Example: `rocketstream broker status broker-a --all`"
)
@_broker
@option("--all, -a", "Also show all it tells, by upstream's names.", to="everything")
@shows(watch=True)
def broker_status(broker: str, everything: bool, namesrv: str, as_json: bool) -> None:
    """Show what a broker tells of itself: rates, disk, what waits, how long it is up."""
    with looking(namesrv) as admin:
        rows = admin.brokers.status(broker)
    if as_json:
        print_json(rows)
        return
    for place, row in enumerate(rows):
        if place:
            print_line("")
        _print_one(row, everything)


def _print_one(row: BrokerStatusRow, everything: bool) -> None:
    who = ("Broker", f"{row.broker_name}, {_role(row)} at {row.address}, of {row.cluster}")
    told = row.figures
    if told is None:
        print_fields([who, ("Not known", row.error or UNKNOWN)])
        return
    waiting = [
        f"{name} {pool.waiting:,}"
        + (f" (first for {span(pool.head_wait_ms)})" if pool.head_wait_ms else "")
        for name, pool in sorted(told.pools.items())
        if pool.waiting
    ]
    print_fields(
        [
            who,
            ("Version", told.version or UNKNOWN),
            ("Started", moment(told.booted_ms, UNKNOWN)),
            ("Stored", f"{per_second(told.put_tps)} messages/s; {number(told.put_total)} in all"),
            ("Fetched", f"{per_second(told.get_tps)} messages/s; {number(told.get_total)} in all"),
            ("Disk used", percent(told.disk_used)),
            ("Commit log", f"{size(told.log_bytes)}, since {moment(told.earliest_ms)}"),
            ("Requests waiting", ", ".join(waiting) or ("none" if told.pools else UNKNOWN)),
        ]
    )
    if told.active is False:
        print_line("not active: it takes no messages")
    if everything:
        print_line("")
        print_fields(sorted(row.facts.items()))


@broker.command("config", epilog="Example: `rocketstream broker config broker-a --match flush`")
@_broker
@_match
@shows()
def broker_config(broker: str, match: str | None, namesrv: str, as_json: bool) -> None:
    """Show the settings a broker runs with, by upstream's names."""
    with looking(namesrv) as admin:
        settings = admin.brokers.config(broker)
    print_settings(settings, match, as_json)


def print_settings(settings: dict[str, str], match: str | None, as_json: bool) -> None:
    """Print settings sorted by name.

    Raises:
        ConfigurationError: no name contains ``match``.
    """
    word = (match or "").lower()
    chosen = {name: settings[name] for name in sorted(settings) if word in name.lower()}
    if settings and not chosen:
        raise ConfigurationError(f"no setting has {match!r} in its name; there are {len(settings)}")
    if as_json:
        print_json(chosen)
        return
    print_fields(chosen.items())


# --- name servers ---------------------------------------------------------------------------------

name_server: Commands = Commands(
    "namesrv", help="Name servers: what each of them knows, their settings."
)


@name_server.command(
    "list", cls=Watched, epilog="Example: `rocketstream namesrv list -n 'a:9876;b:9876'`"
)
@shows(watch=True)
def list_name_servers(namesrv: str, as_json: bool) -> None:
    """Show for each of the name servers given whether it answers and which brokers it knows."""
    rows = _name_servers(namesrv)
    if as_json:
        print_json(rows)
    else:
        print_name_servers(rows)


def _name_servers(namesrv: str) -> list[NameServerRow]:
    with looking(namesrv) as admin:
        rows = admin.cluster.name_servers()
    if all(row.brokers is None for row in rows):
        raise ConnectError("; ".join(f"name server {row.address}: {row.error}" for row in rows))
    return rows


@name_server.command("config", epilog="Example: `rocketstream namesrv config --order`")
@option("--order", "The queues of ordered topics (its key-value settings).")
@_match
@shows()
def name_server_config(order: bool, match: str | None, namesrv: str, as_json: bool) -> None:
    """Show the settings of the first name server that answers, or those of ordered topics."""
    first = next(row for row in _name_servers(namesrv) if row.brokers is not None)
    settings = first.order_topics if order else first.config
    if settings is None:
        raise ConnectError(f"name server {first.address} does not tell its settings")
    if not settings and not as_json:
        print_line("no ordered topic has queues of its own" if order else "it tells no setting")
        return
    print_settings(settings, match, as_json)


# --- producers ------------------------------------------------------------------------------------

producer: Commands = Commands("producer", help="Connected producers.")


@producer.command("list", cls=Watched, epilog="Example: `rocketstream producer list`")
@shows(watch=True)
def list_producers(namesrv: str, as_json: bool) -> None:
    """List the connected producers of all groups (brokers from 4.9.4 on tell them)."""
    with looking(namesrv) as admin:
        rows = admin.producers.all()
    _print_producers(rows, as_json, "no producer is connected")


@producer.command(
    cls=Watched, epilog="Example: `rocketstream producer connections checkout orders`"
)
@argument("GROUP", "The producer group.", shell_complete=names("groups"))
@topic_argument
@shows(watch=True)
def connections(group: str, topic: str, namesrv: str, as_json: bool) -> None:
    """Show the connected producers of a group, as the brokers of a topic know them."""
    with looking(namesrv) as admin:
        rows = admin.producers.connections(group, topic)
    nobody = f"no producer of group {group!r} is connected to a broker of {topic!r}"
    _print_producers(rows, as_json, nobody)


def _print_producers(rows: Sequence[ProducerRow], as_json: bool, nobody: str) -> None:
    from rocketstream.protocol.codes import version_name

    if as_json:
        print_json([json_of(row) | {"versionName": version_name(row.version)} for row in rows])
        return
    if not rows:
        print_prose(f"{nobody}; brokers know producers by their heartbeats alone")
        return
    columns = (
        Name("Group", lambda row: row.group),
        Name("Client", lambda row: row.client_id),
        Name("Address", lambda row: row.address, importance=5),
        Column("Language", lambda row: row.language, importance=2),
        Name("Version", lambda row: version_name(row.version), importance=4),
        Column("Brokers", lambda row: ", ".join(row.brokers), importance=3),
        Name("Last heartbeat", lambda row: moment(row.last_heartbeat_ms), importance=1),
    )
    render(rows, columns, False, footer=plural(len(rows), "producer"))


@click.command(epilog="Example: `rocketstream export cluster.json`")
@argument("FILE", "Where to write it; `-` prints it.", click.Path())
@option(
    "--topic, -t TOPIC",
    "Only this one; repeatable.",
    to="topics",
    multiple=True,
    shell_complete=names("topics"),
)
@option(
    "--group, -g GROUP",
    "Only this one; repeatable.",
    to="groups",
    multiple=True,
    shell_complete=names("groups"),
)
@asks
def export(file: str, topics: tuple[str, ...], groups: tuple[str, ...], namesrv: str) -> None:
    """Write settings of topics and groups, and the offsets of groups, to a file.

    No messages. The brokers' own topics and groups, and the retry and dead-letter topics that
    brokers make themselves, are left out.
    """
    with looking(namesrv) as admin:
        found = admin.changes.export(list(topics) or None, list(groups) or None)
    if file == "-":
        print_json(found.to_json())
        return
    _write(Path(file), json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
    names = {topic for _, topic in found.topics}
    consumers = {group for _, group in found.groups} | {group for group, _ in found.offsets}
    print_line(
        f"{file}: {plural(len(names), 'topic')}, {plural(len(consumers), 'group')}, "
        f"{plural(len(found.offsets), 'offset')}"
    )


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


@click.command("import", epilog="Example: `rocketstream import cluster.json --dry-run`")
@argument("FILE", "What `export` wrote.", click.Path())
@option("--no-offsets", "Leave groups where they are.")
@option(
    "--broker FILE=CLUSTER",
    "Which broker of the cluster a broker of the file stands for; repeatable.",
    to="brokers",
    multiple=True,
)
@changes(force=FORCE)
def import_(file: str, no_offsets: bool, brokers: tuple[str, ...], change: Change) -> None:
    """Make the topics, groups and offsets of a cluster those of a file; deletes nothing.

    Shows every difference and asks. Offsets fit where the messages are the same; those beyond the
    end of a queue are left out.
    """
    given = pairs("--broker", brokers, "FILE=CLUSTER")
    with change.admin() as admin:
        change.finish(admin, admin.changes.import_plan(file, offsets=not no_offsets, brokers=given))

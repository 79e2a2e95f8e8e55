"""``rocketstream broker list|status|config``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.core.words import per_second, percent
from rocketstream.cli.declare import Argument, Commands, Option
from rocketstream.cli.looking import brokers_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    UNKNOWN,
    Column,
    as_json,
    moment,
    number,
    plural,
    print_fields,
    print_json,
    print_line,
    print_prose,
    print_table,
    size,
    span,
)
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.admin.cluster import BrokerStatusRow

Broker = Annotated[str, Argument(metavar="BROKER", help="Name or address of the broker.")]
DISK_FULL = 0.85
"""From here on a broker of 4.9 or 5.x deletes before time (diskSpaceCleanForciblyRatio)."""


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("broker", "Brokers: load, disk, version, settings.")
    commands.add(list_brokers, "list", epilog="Example: `rocketstream broker list --watch`")
    commands.add(status, epilog="Example: `rocketstream broker status broker-a --all`")
    commands.add(config, epilog="Example: `rocketstream broker config broker-a --match flush`")
    app.add_command(commands)


def list_brokers(namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """List the brokers with what they store and fetch a second, disk and version."""
    with brokers_of(namesrv) as admin:
        rows = admin.brokers.status()
    if as_json_:
        print_json([broker_json(row) for row in rows])
        return
    print_brokers(rows)


def print_brokers(rows: Sequence[BrokerStatusRow]) -> None:
    """Print one line per broker process, and why some did not answer."""
    now_ms = SYSTEM_CLOCK.now_ms()
    print_table(
        [
            Column("Cluster", keep=True, importance=2),
            Column("Broker", keep=True),
            Column("Role", importance=5),
            Column("Address", keep=True, importance=6),
            Column("Version", keep=True, importance=4),
            Column("Put/s", number=True),
            Column("Get/s", number=True),
            Column("Disk", number=True, colour=disk_colour),
            Column("Up", number=True, importance=3),
        ],
        [_cells(row, now_ms) for row in rows],
        footer=plural(len(rows), "broker process", "broker processes"),
    )
    for row in rows:
        if row.error is not None:
            print_prose(f"{row.broker_name} ({row.address}): {row.error}")


def disk_colour(cell: str) -> str | None:
    """Return the colour of a share of a disk as ``percent`` writes it."""
    full = cell.endswith("%") and float(cell[:-1]) >= DISK_FULL * 100
    return "red" if full else None


def _cells(row: BrokerStatusRow, now_ms: int) -> tuple[str, ...]:
    told = row.figures
    return (
        row.cluster,
        row.broker_name,
        "master" if row.is_master else f"slave {row.broker_id}",
        row.address,
        (told.version if told else None) or UNKNOWN,
        per_second(told.put_tps if told else None),
        per_second(told.get_tps if told else None),
        percent(told.disk_used if told else None),
        UNKNOWN if told is None or told.booted_ms is None else span(now_ms - told.booted_ms),
    )


def broker_json(row: BrokerStatusRow) -> dict[str, Any]:
    """Return a broker as JSON."""
    shown = as_json(row)
    if row.figures is not None:
        shown["figures"] = as_json(row.figures)
        pools = row.figures.pools.items()
        shown["figures"]["pools"] = {name: as_json(pool) for name, pool in pools}
    return shown


def status(
    broker: Broker,
    everything: Annotated[
        bool, Option("--all", "-a", help="Also show all it tells, by upstream's names.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show what a broker tells of itself: rates, disk, what waits, how long it is up."""
    with brokers_of(namesrv) as admin:
        rows = admin.brokers.status(broker)
    if as_json_:
        print_json([broker_json(row) for row in rows])
        return
    for place, row in enumerate(rows):
        if place:
            print_line("")
        _print_one(row, everything)


def _print_one(row: BrokerStatusRow, everything: bool) -> None:
    role = "master" if row.is_master else f"slave {row.broker_id}"
    who = ("Broker", f"{row.broker_name}, {role} at {row.address}, of {row.cluster}")
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


def config(
    broker: Broker,
    match: Annotated[
        str | None,
        Option("--match", metavar="TEXT", help="Only settings whose name contains this."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show the settings a broker runs with, by upstream's names."""
    with brokers_of(namesrv) as admin:
        settings = admin.brokers.config(broker)
    print_settings(settings, match, as_json_)


def print_settings(settings: dict[str, str], match: str | None, as_json_: bool) -> None:
    """Print settings sorted by name.

    Raises:
        ConfigurationError: no name contains ``match``.
    """
    word = (match or "").lower()
    chosen = {name: settings[name] for name in sorted(settings) if word in name.lower()}
    if settings and not chosen:
        raise ConfigurationError(f"no setting has {match!r} in its name; there are {len(settings)}")
    if as_json_:
        print_json(chosen)
        return
    print_fields(chosen.items())

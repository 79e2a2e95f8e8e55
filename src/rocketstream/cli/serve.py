"""``rocketstream serve``: the embedded name server and broker in the foreground.

Law: options in, one ready line out; the servers live in ``rocketstream.server``.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rocketstream.cli.output import print_line

DEFAULT_STORE = Path("~/.rocketstream/store")


class Flush(StrEnum):
    """When a message is acknowledged: once in memory, or once on disk."""

    ASYNC = "async"
    SYNC = "sync"


DelayLevels = Annotated[
    str | None,
    typer.Option(
        metavar='"1s 5s …"',
        help="Delays of level 1, 2, …; units s, m, h, d. Default: RocketMQ's 18 levels.",
    ),
]
TransactionTimeout = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="SECONDS",
        help="Age from which a producer is asked about an undecided transaction.",
    ),
]
TransactionCheckInterval = Annotated[
    float,
    typer.Option(min=0.1, metavar="SECONDS", help="How often producers are asked about them."),
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="Open a damaged store: what is damaged is set aside in STORE/quarantine.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Example: `rocketstream serve --store ./store --flush sync`. Then in another "
        "terminal: `rocketstream send greetings hello`."
    )(serve)


def serve(
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; loopback unless --insecure."),
    ] = "127.0.0.1",
    namesrv_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Name server port; 0 takes a free one.")
    ] = 9876,
    broker_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Broker port; 0 takes a free one.")
    ] = 10911,
    store: Annotated[
        Path, typer.Option(file_okay=False, metavar="DIR", help="Directory of the message store.")
    ] = DEFAULT_STORE,
    flush: Annotated[
        Flush,
        typer.Option(help="sync: acknowledge when on disk; async: flush twice a second."),
    ] = Flush.ASYNC,
    delay_levels: DelayLevels = None,
    transaction_timeout: TransactionTimeout = 6.0,
    transaction_check_interval: TransactionCheckInterval = 60.0,
    auto_create: Annotated[
        bool,
        typer.Option(
            "--auto-create/--no-auto-create",
            help="Create unknown topics when something is sent to them.",
        ),
    ] = True,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address clients are told, when it is not --host."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address others can reach; there is no login."),
    ] = False,
    repair: Repair = False,
) -> None:
    """Run a name server and a broker until Ctrl-C or SIGTERM.

    Prints one line, `ready namesrv=HOST:PORT broker=HOST:PORT store=DIR`, as soon as clients can
    connect. Ends with code 0 after everything is on disk.
    """
    from rocketstream.server.embedded import EmbeddedCluster, ReadyInfo
    from rocketstream.server.embedded import serve as run_server

    def ready(info: ReadyInfo) -> None:
        print_line(
            f"ready namesrv={info.namesrv_addr} broker={info.broker_addr} store={info.store_dir}"
        )

    cluster = EmbeddedCluster(
        store.expanduser().absolute(),
        host=host,
        advertise_host=advertise,
        namesrv_port=namesrv_port,
        broker_port=broker_port,
        flush="sync" if flush is Flush.SYNC else "async",
        delay_levels=delay_levels,
        transaction_timeout_ms=round(transaction_timeout * 1000),
        transaction_check_interval_ms=round(transaction_check_interval * 1000),
        auto_create_topics=auto_create,
        insecure=insecure,
        repair=repair,
    )
    with suppress(KeyboardInterrupt):  # a signal that comes before the servers listen for it
        run_server(cluster, ready)

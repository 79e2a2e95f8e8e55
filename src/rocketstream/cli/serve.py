"""``rocketstream serve``: the embedded name server and broker in the foreground.

Law: options in, one ready line out; the servers live in ``rocketstream.server``.
"""

from __future__ import annotations

import ipaddress
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


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Example: `rocketstream serve --store ./store --flush sync`. Then in another "
        "terminal: `rocketstream send greetings hello`."
    )(serve)


def serve(
    host: Annotated[
        str,
        typer.Option(help="Address to listen on and to tell clients; loopback unless --insecure."),
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
    delay_levels: Annotated[
        str | None,
        typer.Option(
            metavar='"1s 5s …"',
            help="Delays of level 1, 2, …; units s, m, h, d. Default: RocketMQ's 18 levels.",
        ),
    ] = None,
    auto_create: Annotated[
        bool,
        typer.Option(
            "--auto-create/--no-auto-create",
            help="Create unknown topics when something is sent to them.",
        ),
    ] = True,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address others can reach; there is no login."),
    ] = False,
) -> None:
    """Run a name server and a broker until Ctrl-C or SIGTERM.

    Prints one line, `ready namesrv=HOST:PORT broker=HOST:PORT store=DIR`, as soon as clients can
    connect. Ends with code 0 after everything is on disk.
    """
    _check_host(host, insecure)
    from rocketstream.server.embedded import serve as run_server

    def ready(namesrv_addr: str, broker_addr: str, store_dir: Path) -> None:
        print_line(f"ready namesrv={namesrv_addr} broker={broker_addr} store={store_dir}")

    run_server(
        store_dir=store.expanduser(),
        host=host,
        namesrv_port=namesrv_port,
        broker_port=broker_port,
        flush=flush.value,
        delay_levels=delay_levels,
        auto_create_topics=auto_create,
        on_ready=ready,
    )


def _check_host(host: str, insecure: bool) -> None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        loopback = host == "localhost"
    else:
        if address.is_unspecified:
            raise typer.BadParameter(
                f"--host is {host}, which nobody can connect to; give this machine's own address"
            )
        loopback = address.is_loopback
    if not loopback and not insecure:
        raise typer.BadParameter(
            f"--host is {host}, which others can reach and use without any login; "
            "add --insecure if that is meant, or use 127.0.0.1"
        )

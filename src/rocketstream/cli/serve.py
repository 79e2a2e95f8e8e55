"""``rocketstream serve``: the embedded name server and broker in the foreground.

Standard output gets one line when clients can connect; the servers live in ``rocketstream.server``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rocketstream._util.home import expanded
from rocketstream.cli import serve_options as given
from rocketstream.cli.declare import BadParameter, Commands
from rocketstream.cli.failure import say
from rocketstream.cli.output import print_line
from rocketstream.cli.serve_tls import TlsWishes, tls_of
from rocketstream.errors import RocketMQError
from rocketstream.protocol.addresses import parse_addresses
from rocketstream.protocol.names import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from rocketstream.server.embedded import EmbeddedCluster, ReadyInfo
    from rocketstream.server.store import RetentionConfig


_SURVIVES = {
    given.Flush.ASYNC: (
        "flush=async: what was acknowledged survives the end of this process, but the last half "
        "second of it not a power loss; --flush sync survives that as well, and is slower"
    ),
    given.Flush.SYNC: (
        "flush=sync: what was acknowledged survives the end of this process and a power loss"
    ),
}


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(
        serve,
        epilog="Example: `rocketstream serve --store ./store --flush sync`. Then in another "
        "terminal: `rocketstream send greetings hello`.",
    )


def serve(
    host: given.Host = "127.0.0.1",
    namesrv_port: given.NamesrvPort = 9876,
    broker_port: given.BrokerPort = 10911,
    store: given.Store = given.DEFAULT_STORE,
    join: given.Join = None,
    only: given.OnlyWhat = None,
    brokers: given.Brokers = 1,
    broker_name: given.BrokerName = "broker-a",
    cluster_name: given.ClusterName = DEFAULT_CLUSTER,
    flush: given.FlushWhen = given.Flush.ASYNC,
    delay_levels: given.DelayLevels = None,
    transaction_timeout: given.TransactionTimeout = 6.0,
    transaction_check_interval: given.TransactionCheckInterval = 60.0,
    offset_interval: given.OffsetInterval = 5.0,
    retention: given.Retention = None,
    delete_at: given.DeleteAt = [4],  # noqa: B006 - read, never changed
    auto_create: given.AutoCreate = True,
    advertise: given.Advertise = None,
    insecure: given.Insecure = False,
    acl: given.Acl = None,
    admin_without_tls: given.AdminWithoutTls = False,
    tls_mode: given.TlsModeOption = given.TlsModes.PERMISSIVE,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    tls_client_auth: given.TlsClientAuth = given.ClientAuths.NONE,
    tls_client_ca: given.TlsClientCa = None,
    tls_test_certificate: given.TlsTestCertificate = None,
    repair: given.Repair = False,
    dashboard: given.Dashboard = False,
    dashboard_port: given.DashboardPort = 8976,
    dashboard_write: given.DashboardWrite = False,
) -> None:
    """Run a name server and a broker until Ctrl-C or SIGTERM.

    Prints one line, `ready namesrv=HOST:PORT broker=HOST:PORT store=DIR`, as soon as clients can
    connect, and with --dashboard a second, `dashboard URL`; on stderr, which flush is on and what
    survives it. Ends with code 0 after everything is on disk. With --join it is one more broker of
    a name server that runs already.
    """
    from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS
    from rocketstream.server.embedded import EmbeddedCluster, EmbeddedSettings

    wishes = TlsWishes(
        tls_mode, tls_cert, tls_key, tls_client_auth, tls_client_ca, tls_test_certificate
    )
    settings = EmbeddedSettings(
        host=host,
        advertise_host=advertise,
        namesrv_port=namesrv_port,
        namesrv_addrs=_joined(join, only),
        brokers=0 if only is given.Only.NAMESRV else brokers,
        broker_name=broker_name,
        cluster_name=cluster_name,
        broker_port=broker_port,
        flush="sync" if flush is given.Flush.SYNC else "async",
        delay_levels=delay_levels or DEFAULT_DELAY_LEVELS,
        transaction_timeout_ms=round(transaction_timeout * 1000),
        transaction_check_interval_ms=round(transaction_check_interval * 1000),
        offset_persist_interval_ms=round(offset_interval * 1000),
        retention=_retention(retention, delete_at),
        auto_create_topics=auto_create,
        insecure=insecure,
        acl=None if acl is None else acl.absolute(),
        admin_without_tls=admin_without_tls,
        tls=tls_of(wishes, host, advertise),
        repair=repair,
    )
    cluster = EmbeddedCluster(expanded(store).absolute(), settings)
    with ExitStack() as beside:

        def shown(info: ReadyInfo) -> None:
            _show(beside, info.namesrv_addr, dashboard_port, dashboard_write, info.store_dir)

        _run(cluster, flush, shown if dashboard else None)


def _retention(kept_ms: int | None, delete_at: list[int]) -> RetentionConfig:
    from rocketstream.server.store import RetentionConfig

    kept_ms = RetentionConfig().file_reserved_ms if kept_ms is None else kept_ms
    return RetentionConfig(
        file_reserved_ms=kept_ms, delete_when_hours=tuple(dict.fromkeys(delete_at))
    )


def _joined(join: str | None, only: given.Only | None) -> tuple[str, ...]:
    """Return the name servers to join; none where one is started here."""
    if only is given.Only.BROKER and not join:
        raise BadParameter("a broker alone needs a name server to join: give --join HOST:PORT")
    if only is given.Only.NAMESRV and join:
        raise BadParameter("--only namesrv starts a name server, --join joins one: give one")
    return tuple(parse_addresses(join)) if join else ()


def _run(
    cluster: EmbeddedCluster, flush: given.Flush, shown: Callable[[ReadyInfo], None] | None
) -> None:
    """Serve until a signal stops it; ``shown`` serves the dashboard once clients can connect."""
    from rocketstream.cli.dashboard import check_installed
    from rocketstream.server.embedded import serve as run_server

    def ready(info: ReadyInfo) -> None:
        broker = f" broker={','.join(info.broker_addrs)}" if info.broker_addrs else ""
        print_line(f"ready namesrv={info.namesrv_addr}{broker} store={info.store_dir}")
        if broker:
            say(_SURVIVES[flush])
        if shown is not None:
            shown(info)

    if shown is not None:
        check_installed()
    with suppress(KeyboardInterrupt):  # a signal that comes before the servers listen for it
        run_server(cluster, ready)


def _show(open_: ExitStack, namesrv: str, port: int, write: bool, store: Path) -> None:
    """Serve the dashboard beside the servers; an error that prevents it is only printed."""
    from rocketstream.cli.dashboard import Wishes, serving

    history = store / "dashboard" / "history.db"
    # One broker beside it in this process: it may be asked often.
    wishes = Wishes(namesrv, port=port, write=write, history=history, interval_s=2.0)
    try:
        server = open_.enter_context(serving(wishes))
    except RocketMQError as error:
        say(f"warning: no dashboard: {error.message}")
        return
    print_line(f"dashboard {server.url}")

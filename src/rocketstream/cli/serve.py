"""``rocketstream serve`` and ``store check``: the embedded servers, and the files they keep.

Standard output gets one line when clients can connect; the servers live in ``rocketstream.server``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import BadParameter
from click.exceptions import Exit

from rocketstream._util.home import expanded
from rocketstream.admin.core.words import plural
from rocketstream.cli.commands import (
    DIRECTORY,
    PORT,
    SPAN,
    THERE,
    Commands,
    Seconds,
    Whole,
    option,
    shows,
)
from rocketstream.cli.dashboard import DEFAULT_PORT as DASHBOARD_PORT
from rocketstream.cli.failure import EXIT_FAILED, say
from rocketstream.cli.output import json_line, print_line
from rocketstream.errors import RocketMQError
from rocketstream.protocol.addresses import parse_addresses
from rocketstream.protocol.names import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from rocketstream.server.embedded import EmbeddedCluster, ReadyInfo
    from rocketstream.server.store import RetentionConfig
    from rocketstream.server.tls import ServerTls

DEFAULT_STORE: Final = Path("~/.rocketstream/store")
PASSWORD_VARIABLE: Final = "ROCKETSTREAM_TLS_KEY_PASSWORD"
_SURVIVES = {
    "async": (
        "flush=async: what was acknowledged survives the end of this process, but the last half "
        "second of it not a power loss; --flush sync survives that as well, and is slower"
    ),
    "sync": "flush=sync: what was acknowledged survives the end of this process and a power loss",
}
_store = option("--store DIR", "Directory of the message store.", DIRECTORY, default=DEFAULT_STORE)


@click.command(
    epilog="Example: `rocketstream serve --store ./store --flush sync`. Then in another "
    "terminal: `rocketstream send greetings hello`."
)
@option(
    "--host TEXT",
    "Address to listen on; others than loopback take --acl and enforced TLS.",
    default="127.0.0.1",
)
@option("--namesrv-port N", "Name server port; 0 takes a free one.", PORT, default=9876)
@option("--broker-port N", "Broker port; 0 takes a free one.", PORT, default=10911)
@_store
@option("--join HOST:PORT", "Join this name server (`;` between several) instead of starting one.")
@option(
    "--only [namesrv|broker]",
    "namesrv: no broker; broker: no name server, with --join.",
    click.Choice,
)
@option(
    "--brokers N",
    "Brokers to start: broker-a, broker-b, …, each in STORE/NAME, ports ten apart.",
    Whole(1, 26),
    default=1,
)
@option("--broker-name NAME", "What the broker is called.", default="broker-a")
@option("--cluster-name NAME", "The cluster the broker belongs to.", default=DEFAULT_CLUSTER)
@option(
    "--flush [async|sync]",
    "sync: acknowledge when on disk; async: flush twice a second.",
    click.Choice,
    default="async",
)
@option(
    '--delay-levels "1s 5s …"',
    "Delays of level 1, 2, …; units s, m, h, d. Default: RocketMQ's 18 levels.",
)
@option(
    "--transaction-timeout SECONDS",
    "Age from which a producer is asked about an undecided transaction.",
    Seconds(0),
    default=6.0,
)
@option(
    "--transaction-check-interval SECONDS",
    "How often producers are asked about undecided transactions.",
    Seconds(0.1),
    default=60.0,
)
@option(
    "--offset-interval SECONDS",
    "How long committed offsets wait at most to be written to disk.",
    Seconds(0.001),
    default=5.0,
)
@option(
    "--retention SPAN",
    "How long messages are kept: 90s, 5m, 2h, 3d. A file goes as a whole. Default: 72h.",
    SPAN,
)
@option(
    "--delete-at HOUR",
    "Hour of the day in which old messages go; repeatable.",
    Whole(0, 23),
    multiple=True,
    default=[4],
)
@option(
    "--auto-create/--no-auto-create",
    "Create unknown topics when something is sent to them.",
    default=True,
)
@option("--advertise HOST", "Address clients are told, when it is not --host.")
@option("--insecure", "Allow an address others can reach without --acl and enforced TLS.")
@option(
    "--acl PATH",
    "Accounts: a plain_acl.yml, or the directory it is in. Requests to the broker are signed then.",
    click.Path(exists=True, path_type=Path),
)
@option(
    "--admin-without-tls",
    "Serve an admin of --acl from other machines without TLS too: whoever sees a request "
    "can send it again as any other.",
)
@option(
    "--tls-mode [disabled|permissive|enforcing]",
    "permissive: plain connections too, on the same ports.",
    click.Choice,
    default="permissive",
)
@option("--tls-cert FILE", "Speak TLS; PEM file.", THERE)
@option(
    "--tls-key FILE",
    f"Key of --tls-cert, when it is in a file of its own; its password in {PASSWORD_VARIABLE}.",
    THERE,
)
@option(
    "--tls-client-auth [none|optional|require]",
    "Whether clients show a certificate of --tls-client-ca.",
    click.Choice,
    default="none",
)
@option(
    "--tls-client-ca FILE",
    "Certificates of those who must have signed clients' certificates; PEM file.",
    THERE,
)
@option(
    "--tls-test-certificate DIR",
    "Make certificates for tests in DIR and speak TLS; clients trust DIR/ca.pem.",
    DIRECTORY,
)
@option("--repair", "Open a damaged store: what is damaged is set aside in STORE/quarantine.")
@option(
    "--dashboard",
    "Also serve the dashboard of this cluster, on loopback; see `rocketstream dashboard`.",
)
@option(
    "--dashboard-port N", "Port of --dashboard; 0 takes a free one.", PORT, default=DASHBOARD_PORT
)
@option("--dashboard-write", "Let groups be changed from the dashboard.")
def serve(store: Path, flush: str, **given: Any) -> None:
    """Run a name server and a broker until Ctrl-C or SIGTERM.

    Prints one line, `ready namesrv=HOST:PORT broker=HOST:PORT store=DIR`, as soon as clients can
    connect, and with --dashboard a second, `dashboard URL`; on stderr, which flush is on and what
    survives it. Ends with code 0 after everything is on disk. With --join it is one more broker of
    a name server that runs already.
    """
    from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS
    from rocketstream.server.embedded import EmbeddedCluster, EmbeddedSettings

    _check_dashboard(given)
    tls = _tls(given)
    settings = EmbeddedSettings(
        host=given["host"],
        advertise_host=given["advertise"],
        namesrv_port=given["namesrv_port"],
        namesrv_addrs=_joined(given["join"], given["only"]),
        brokers=0 if given["only"] == "namesrv" else given["brokers"],
        broker_name=given["broker_name"],
        cluster_name=given["cluster_name"],
        broker_port=given["broker_port"],
        flush="sync" if flush == "sync" else "async",
        delay_levels=given["delay_levels"] or DEFAULT_DELAY_LEVELS,
        transaction_timeout_ms=round(given["transaction_timeout"] * 1000),
        transaction_check_interval_ms=round(given["transaction_check_interval"] * 1000),
        offset_persist_interval_ms=round(given["offset_interval"] * 1000),
        retention=_retention(given["retention"], given["delete_at"]),
        auto_create_topics=given["auto_create"],
        insecure=given["insecure"],
        acl=None if given["acl"] is None else given["acl"].absolute(),
        admin_without_tls=given["admin_without_tls"],
        tls=tls,
        repair=given["repair"],
    )
    cluster = EmbeddedCluster(expanded(store).absolute(), settings)
    with ExitStack() as beside:

        def shown(info: ReadyInfo) -> None:
            port, write = given["dashboard_port"], given["dashboard_write"]
            _show(beside, info.namesrv_addr, port, write, info.store_dir)

        _run(cluster, flush, shown if given["dashboard"] else None)


def _check_dashboard(given: Mapping[str, Any]) -> None:
    if given["dashboard"]:
        return
    if given["dashboard_write"]:
        raise BadParameter("--dashboard-write needs --dashboard")
    if given["dashboard_port"] != DASHBOARD_PORT:
        raise BadParameter("--dashboard-port is the port of --dashboard, which is not given")


def _retention(kept_ms: int | None, delete_at: Sequence[int]) -> RetentionConfig:
    from rocketstream.server.store import RetentionConfig

    kept_ms = RetentionConfig().file_reserved_ms if kept_ms is None else kept_ms
    return RetentionConfig(
        file_reserved_ms=kept_ms, delete_when_hours=tuple(dict.fromkeys(delete_at))
    )


def _joined(join: str | None, only: str | None) -> tuple[str, ...]:
    """Return the name servers to join; none where one is started here."""
    if only == "broker" and not join:
        raise BadParameter("a broker alone needs a name server to join: give --join HOST:PORT")
    if only == "namesrv" and join:
        raise BadParameter("--only namesrv starts a name server, --join joins one: give one")
    return tuple(parse_addresses(join)) if join else ()


def _run(cluster: EmbeddedCluster, flush: str, shown: Callable[[ReadyInfo], None] | None) -> None:
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
    wishes = Wishes((namesrv,), port=port, write=write, history=history, interval_s=2.0)
    try:
        server = open_.enter_context(serving(wishes))
    except RocketMQError as error:
        say(f"warning: no dashboard: {error.message}")
        return
    print_line(f"dashboard {server.url}")


def _tls(given: dict[str, Any]) -> ServerTls | None:
    """Return how the servers speak TLS, None when nothing about it was said.

    Raises:
        BadParameter: options that do not go together.
        ConfigurationError: certificates cannot be made.
    """
    cert, key, client_ca = given["tls_cert"], given["tls_key"], given["tls_client_ca"]
    test_certificate = given["tls_test_certificate"]
    _check_tls(given)
    if test_certificate is None and cert is None:
        return None
    from rocketstream.server.certificates import LOOPBACK, make_test_certificates
    from rocketstream.server.tls import ServerTls

    if test_certificate is not None:
        hosts = dict.fromkeys((*LOOPBACK, *filter(None, (given["host"], given["advertise"]))))
        made = make_test_certificates(test_certificate.absolute(), tuple(hosts))
        cert, key = made.cert_file, made.key_file
        if given["tls_client_auth"] != "none":
            client_ca = client_ca or made.ca_file
        say(
            "certificates for tests: clients set ROCKETMQ_TLS_ENABLE=true "
            f"ROCKETMQ_TLS_CA_FILE={made.ca_file}"
        )
    return ServerTls(
        cert_file=cert,
        key_file=key,
        key_password=os.environ.get(PASSWORD_VARIABLE) or None,
        mode=given["tls_mode"],
        client_auth=given["tls_client_auth"],
        client_ca_file=client_ca,
    )


def _check_tls(given: dict[str, Any]) -> None:
    cert, key = given["tls_cert"], given["tls_key"]
    test_certificate = given["tls_test_certificate"]
    if cert is not None and test_certificate is not None:
        raise BadParameter("--tls-cert and --tls-test-certificate are both given; give one")
    if cert is not None or test_certificate is not None:
        if key is not None and cert is None:
            raise BadParameter("--tls-key is the key of --tls-cert, which is not given")
        return
    for name, is_said in (
        ("--tls-mode enforcing", given["tls_mode"] == "enforcing"),
        ("--tls-key", key is not None),
        ("--tls-client-auth", given["tls_client_auth"] != "none"),
        ("--tls-client-ca", given["tls_client_ca"] is not None),
    ):
        if is_said:
            raise BadParameter(f"{name} needs --tls-cert, or --tls-test-certificate")


# --- the files ------------------------------------------------------------------------------------

store: Commands = Commands("store", help="The files of a message store on this machine.")


@store.command(epilog="Example: `rocketstream store check --store ./store --rate 50`")
@_store
@option(
    "--rate MIB",
    "Read at most this many MiB of the log in a second, beside a broker that runs.",
    Whole(1),
)
@shows(asking=False)
def check(store: Path, rate: int | None, as_json: bool) -> None:
    """Check every record, every queue's units and every state file; change nothing.

    Prints a line for each damage, and ends with code 1 then. After a clean stop a broker looks at
    the last 128 MiB of the log only. The store may be in use; what comes meanwhile is left out.
    """
    from rocketstream.server.store_check import StoreCheck

    work = StoreCheck(expanded(store).absolute(), rate * 1024 * 1024 if rate else None)
    found = 0
    for line in work.findings():
        found += 1
        print_line(json_line({"finding": line}) if as_json else line)
    if as_json:
        print_line(json_line({"records": work.records, "findings": found}))
    else:
        print_line(f"{plural(work.records, 'record')} checked, {plural(found, 'finding')}")
    if found:
        raise Exit(EXIT_FAILED)

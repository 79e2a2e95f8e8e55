"""``rocketstream dashboard``: the cluster in a browser, and the tokens of its users.

Standard output gets one line, with the address; the pages live in ``rocketstream.dashboard``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocketstream._util.home import expanded, user_name
from rocketstream.cli.commands import (
    DEFAULT_NAMESRV,
    FILE,
    PORT,
    THERE,
    Commands,
    Seconds,
    argument,
    audit_file,
    key_file,
    option,
    words,
)
from rocketstream.cli.failure import say
from rocketstream.cli.output import print_line
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.admin import Masking
    from rocketstream.dashboard import Cluster
    from rocketstream.dashboard.running import DashboardServer
    from rocketstream.watch import History

DEFAULT_PORT = 8976
_NEEDED = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "jinja2": "jinja2",
    "python_multipart": "python-multipart",
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings of serving a dashboard; see the options of the command.

    Attributes:
        namesrvs: the name servers of each cluster, ``HOST:PORT`` or ``NAME=HOST:PORT``.
    """

    namesrvs: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    write: bool = False
    tokens: Path | None = None
    history: Path | None = None
    interval_s: float = 10.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_host: tuple[str, ...] = ()
    mask: Path | None = None
    audit_file: str | None = None
    insecure: bool = False


@click.group(
    cls=Commands,
    invoke_without_command=True,
    help="Show a cluster in a browser, live: groups and why they are behind, topics, messages, "
    "dead letters.",
    epilog="Example: `rocketstream dashboard -n 10.0.0.5:9876`, then open the address it prints.",
)
@option(
    "--namesrv, -n [NAME=]HOST:PORT",
    "Name server of the cluster, several separated by ';'. Repeatable: one dashboard of "
    "several clusters.",
    to="namesrvs",
    multiple=True,
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    default=(DEFAULT_NAMESRV,),
)
@key_file
@option(
    "--host TEXT",
    "Address to listen on; another than loopback needs TLS and --tokens.",
    default="127.0.0.1",
)
@option("--port N", "Port; 0 takes a free one.", PORT, default=DEFAULT_PORT)
@option("--write", "Let groups be changed from it; without this option it only shows.")
@option("--tokens FILE", "Who may log in; `rocketstream dashboard token` writes it.", FILE)
@option(
    "--history FILE",
    "File of the charts, bounded, so that they survive a restart. Default: one for each "
    "name server in ~/.rocketstream/history.",
    FILE,
)
@option(
    "--interval SECONDS",
    "From one sweep of the cluster to the next.",
    Seconds(1),
    to="interval_s",
    default=10.0,
)
@option("--tls-cert FILE", "Certificate, PEM.", THERE)
@option("--tls-key FILE", "Its key, PEM.", THERE)
@option(
    "--allow-host NAME",
    "A name by which browsers may open it, besides its address; repeatable.",
    multiple=True,
)
@option(
    "--mask FILE",
    "Masking rules (TOML): which parts of messages nobody is to see.",
    FILE,
    envvar="ROCKETSTREAM_MASK",
    show_envvar=True,
)
@audit_file
@option("--insecure", "Allow an address others can reach without TLS or login.")
@click.pass_context
def dashboard(context: click.Context, /, **given: Any) -> None:
    """Serve the dashboard until Ctrl-C or SIGTERM; prints its address, opens no browser."""
    if context.invoked_subcommand is not None:
        return
    from rocketstream.cli.signals import until_signal

    wishes = Wishes(**given)
    with suppress(KeyboardInterrupt), serving(wishes) as server, until_signal() as wait:
        print_line(f"dashboard {server.url}")
        wait()


@dashboard.command(
    epilog="Example: `rocketstream dashboard token alice --role look,act --tokens tokens.json`"
)
@argument("NAME", "Who the token is for.")
@option("--tokens FILE", "The file; created if there is none.", FILE, required=True)
@option(
    "--role look|act|export",
    "What it allows; several separated by commas.",
    default="look",
    shell_complete=words("act", "export", "look"),
)
def token(name: str, tokens: Path, role: str) -> None:
    """Make a token, write its hash to the file, and print it: this once.

    A token of the same name is replaced, which ends what was begun with it. A running dashboard
    reads the file again by itself.
    """
    from rocketstream.dashboard.users import add_token, read_roles

    roles = read_roles(role)
    made = add_token(tokens, name, roles)
    say(f"{name} may {', '.join(sorted(roles))}; the token is shown this once:")
    print_line(made)


@contextmanager
def serving(wishes: Wishes) -> Iterator[DashboardServer]:
    """Serve a dashboard while the context lasts.

    Raises:
        ConfigurationError: a package is missing, or a wish cannot be granted.
        PortInUseError: the port is taken.
    """
    check_installed()

    from rocketstream.admin import Masking
    from rocketstream.dashboard import Settings, TokenFile, create_app
    from rocketstream.dashboard.guard import check_exposure
    from rocketstream.dashboard.running import DashboardServer

    check_exposure(
        wishes.host,
        has_tokens=wishes.tokens is not None,
        is_tls=wishes.tls_cert is not None,
        insecure=wishes.insecure,
        may_write=wishes.write,
    )
    settings = Settings(
        may_write=wishes.write,
        tokens=None if wishes.tokens is None else TokenFile(wishes.tokens),
        is_tls=wishes.tls_cert is not None,
        host=wishes.host,
        names=frozenset(name.lower().rstrip(".") for name in wishes.allow_host),
        refresh_s=min(max(wishes.interval_s, 2.0), 5.0),
        user=user_name(),
    )

    masking = Masking.from_file(str(wishes.mask)) if wishes.mask is not None else Masking()
    if wishes.history is not None and len(wishes.namesrvs) > 1:
        raise ConfigurationError(
            "--history names the file of one cluster; with several leave it out: each has its own"
        )
    with ExitStack() as open_:
        clusters = [_cluster(wishes, each, masking, open_) for each in wishes.namesrvs]
        # Collectors are entered after the socket listens: a port that is taken costs no sweep.
        server = DashboardServer(
            create_app(*clusters, settings=settings),
            *(wishes.host, wishes.port, wishes.tls_cert, wishes.tls_key),
        )
        open_.callback(server.close)
        for cluster in clusters:
            open_.enter_context(cluster.collector)
        yield server.start()


def _cluster(wishes: Wishes, given: str, masking: Masking, open_: ExitStack) -> Cluster:
    """Return the cluster that ``HOST:PORT`` or ``NAME=HOST:PORT`` names; its history is open."""
    from rocketstream.admin import Admin, AuditLog
    from rocketstream.dashboard import Cluster
    from rocketstream.watch import Collector

    name, equals, namesrv = given.partition("=")
    if not equals:
        name = namesrv = given

    def admin() -> Admin:
        return Admin(namesrv, read_only=True, masking=masking)

    def changing(who: str) -> Admin:
        audit = AuditLog(wishes.audit_file, who=who, face="dashboard")
        return Admin(namesrv, audit=audit, masking=masking)

    history, writes = _history(wishes.history, namesrv)
    open_.enter_context(history)
    collector = Collector(
        admin,
        interval_s=wishes.interval_s,
        history=history if writes else None,
        past=history.past,
    )
    return Cluster(name, collector, admin, history, changing)


def check_installed() -> None:
    """Refuse to begin without the packages the dashboard needs.

    Raises:
        ConfigurationError: they are named, with what installs them.
    """
    missing = [told for name, told in _NEEDED.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the dashboard needs {', '.join(missing)}; run: pip install 'rocketstream[dashboard]'"
        )


def _history(path: Path | None, namesrv: str) -> tuple[History, bool]:
    """Return the history to show, and whether to write it: another dashboard's is only shown."""
    from rocketstream.watch import History, default_history

    path = default_history(namesrv) if path is None else expanded(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return History(path), True
    except ConfigurationError as error:
        if not path.is_file():
            raise
        say(f"warning: {error.message}; its charts are shown")
        return History(path, read_only=True), False

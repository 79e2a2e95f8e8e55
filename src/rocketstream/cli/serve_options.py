"""The options of ``rocketstream serve``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from rocketstream.cli.declare import Option
from rocketstream.cli.start import parse_span

DEFAULT_STORE = Path("~/.rocketstream/store")


class Flush(StrEnum):
    """When a message is acknowledged: once in memory, or once on disk."""

    ASYNC = "async"
    SYNC = "sync"


class Only(StrEnum):
    """One kind of server alone."""

    NAMESRV = "namesrv"
    BROKER = "broker"


class TlsModes(StrEnum):
    """Whether clients may connect without TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuths(StrEnum):
    """Whether clients show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


Host = Annotated[
    str,
    Option(help="Address to listen on; others than loopback take --acl and enforced TLS."),
]
Insecure = Annotated[
    bool,
    Option("--insecure", help="Allow an address others can reach without --acl and enforced TLS."),
]
Acl = Annotated[
    Path | None,
    Option(
        "--acl",
        exists=True,
        metavar="PATH",
        help="Accounts: a plain_acl.yml, or the directory it is in. Requests to the broker are "
        "signed then.",
    ),
]
AdminWithoutTls = Annotated[
    bool,
    Option(
        "--admin-without-tls",
        help="Serve an admin of --acl from other machines without TLS too: whoever sees a request "
        "can send it again as any other.",
    ),
]
TlsModeOption = Annotated[
    TlsModes,
    Option("--tls-mode", help="permissive: plain connections too, on the same ports."),
]
TlsCert = Annotated[
    Path | None,
    Option("--tls-cert", exists=True, dir_okay=False, metavar="FILE", help="Speak TLS; PEM file."),
]
TlsKey = Annotated[
    Path | None,
    Option(
        "--tls-key",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="Key of --tls-cert, when it is in a file of its own; its password in "
        "ROCKETSTREAM_TLS_KEY_PASSWORD.",
    ),
]
TlsClientAuth = Annotated[
    ClientAuths,
    Option("--tls-client-auth", help="Whether clients show a certificate of --tls-client-ca."),
]
TlsClientCa = Annotated[
    Path | None,
    Option(
        "--tls-client-ca",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="Certificates of those who must have signed clients' certificates; PEM file.",
    ),
]
TlsTestCertificate = Annotated[
    Path | None,
    Option(
        "--tls-test-certificate",
        file_okay=False,
        metavar="DIR",
        help="Make certificates for tests in DIR and speak TLS; clients trust DIR/ca.pem.",
    ),
]
NamesrvPort = Annotated[int, Option(min=0, max=65535, help="Name server port; 0 takes a free one.")]
BrokerPort = Annotated[int, Option(min=0, max=65535, help="Broker port; 0 takes a free one.")]
Store = Annotated[
    Path, Option(file_okay=False, metavar="DIR", help="Directory of the message store.")
]
Join = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT",
        help="Join this name server (`;` between several) instead of starting one.",
    ),
]
OnlyWhat = Annotated[
    Only | None,
    Option("--only", help="namesrv: no broker; broker: no name server, with --join."),
]
Brokers = Annotated[
    int,
    Option(
        min=1,
        max=26,
        help="Brokers to start: broker-a, broker-b, …, each in STORE/NAME, ports ten apart.",
    ),
]
BrokerName = Annotated[str, Option(metavar="NAME", help="What the broker is called.")]
ClusterName = Annotated[str, Option(metavar="NAME", help="The cluster the broker belongs to.")]
FlushWhen = Annotated[
    Flush, Option("--flush", help="sync: acknowledge when on disk; async: flush twice a second.")
]
DelayLevels = Annotated[
    str | None,
    Option(
        metavar='"1s 5s …"',
        help="Delays of level 1, 2, …; units s, m, h, d. Default: RocketMQ's 18 levels.",
    ),
]
TransactionTimeout = Annotated[
    float,
    Option(
        min=0.0,
        metavar="SECONDS",
        help="Age from which a producer is asked about an undecided transaction.",
    ),
]
TransactionCheckInterval = Annotated[
    float,
    Option(
        min=0.1,
        metavar="SECONDS",
        help="How often producers are asked about undecided transactions.",
    ),
]
OffsetInterval = Annotated[
    float,
    Option(
        min=0.001,
        metavar="SECONDS",
        help="How long committed offsets wait at most to be written to disk.",
    ),
]
Retention = Annotated[
    int | None,
    Option(
        parser=parse_span,
        metavar="SPAN",
        help="How long messages are kept: 90s, 5m, 2h, 3d. A file goes as a whole. Default: 72h.",
    ),
]
DeleteAt = Annotated[
    list[int],
    Option(
        min=0, max=23, metavar="HOUR", help="Hour of the day in which old messages go; repeatable."
    ),
]
Repair = Annotated[
    bool,
    Option(
        "--repair",
        help="Open a damaged store: what is damaged is set aside in STORE/quarantine.",
    ),
]
AutoCreate = Annotated[
    bool,
    Option(
        "--auto-create/--no-auto-create",
        help="Create unknown topics when something is sent to them.",
    ),
]
Advertise = Annotated[
    str | None,
    Option(metavar="HOST", help="Address clients are told, when it is not --host."),
]
Dashboard = Annotated[
    bool,
    Option(
        "--dashboard",
        help="Also serve the dashboard of this cluster, on loopback; see `rocketstream dashboard`.",
    ),
]
DashboardPort = Annotated[
    int, Option(min=0, max=65535, help="Port of --dashboard; 0 takes a free one.")
]
DashboardWrite = Annotated[
    bool, Option("--dashboard-write", help="Let groups be changed from the dashboard.")
]

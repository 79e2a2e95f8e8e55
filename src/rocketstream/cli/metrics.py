"""``rocketstream metrics``: figures for Prometheus, printed once or served.

``rocketstream.watch`` has the figures.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from rocketstream.cli.declare import BadParameter, Commands, Option
from rocketstream.cli.failure import say
from rocketstream.cli.options import DEFAULT_NAMESRV, Namesrv
from rocketstream.cli.output import print_line

Listen = Annotated[
    str | None,
    Option(
        "--listen",
        metavar="HOST:PORT",
        help="Serve them at http://HOST:PORT/metrics until Ctrl-C instead of printing them once; "
        "port 0 takes a free one.",
    ),
]
Interval = Annotated[
    float,
    Option(
        "--interval",
        min=1,
        metavar="SECONDS",
        help="From one sweep over the cluster to the next; a slow sweep stretches it.",
    ),
]
HistoryFile = Annotated[
    Path | None,
    Option(
        "--history", metavar="FILE", help="Also write lag, rates and verdicts to this SQLite file."
    ),
]


AlertsFile = Annotated[
    Path | None,
    Option(
        "--alerts",
        metavar="FILE",
        help="Alerts (TOML): also tell its webhooks of verdicts that change.",
    ),
]


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(metrics, epilog="Example: `rocketstream metrics --listen 127.0.0.1:5557`")


def metrics(
    listen: Listen = None,
    interval: Interval = 10,
    per_queue: Annotated[
        bool,
        Option("--per-queue/--per-topic", help="Tell lag of every queue, or summed per topic."),
    ] = True,
    history: HistoryFile = None,
    alerts: AlertsFile = None,
    insecure: Annotated[
        bool,
        Option("--insecure", help="Allow an address others can reach; there is no login."),
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Show metrics in Prometheus' format: rocketmq-exporter's names, a 5.x broker's, and ours.

    With --listen they are those of the last sweep: a scrape asks no broker.
    """
    if listen is None:
        for name, given in (("--history", history), ("--alerts", alerts)):
            if given is not None:
                raise BadParameter(f"{name} needs --listen: printing once shows no change")
        _print_once(namesrv, per_queue)
        return
    _serve(namesrv, listen, interval, per_queue, history, alerts, insecure)


def _print_once(namesrv: str, per_queue: bool) -> None:
    from rocketstream.admin import Admin
    from rocketstream.admin.core.verdicts import judge
    from rocketstream.errors import ConnectError
    from rocketstream.watch import Update
    from rocketstream.watch.metrics import render

    with Admin(namesrv) as admin:
        state = admin.cluster.state()
    if state.error is not None:
        raise ConnectError(state.error)
    verdicts = {name: judge([group]) for name, group in state.groups.items()}
    print_line(render(Update(state, verdicts), queues=per_queue).rstrip("\n"))


def _serve(
    namesrv: str,
    listen: str,
    interval: float,
    per_queue: bool,
    history: Path | None,
    alerts: Path | None,
    insecure: bool,
) -> None:
    import threading

    from rocketstream.admin import Admin
    from rocketstream.watch import Collector, History, kept_past
    from rocketstream.watch.alerts import Alerts, default_memory, load_config
    from rocketstream.watch.exporter import Exporter

    host, port = host_and_port(listen)
    with ExitStack() as stack:
        record = None if history is None else stack.enter_context(History(history))
        collector = Collector(
            lambda: Admin(namesrv),
            interval_s=interval,
            history=record,
            past=None if record is not None else lambda: kept_past(namesrv),
        )
        exporter = stack.enter_context(
            Exporter(collector, host, port, insecure=insecure, queues=per_queue)
        )
        if alerts is not None:
            telling = Alerts(load_config(alerts), namesrv, memory=default_memory(alerts, namesrv))
            stack.enter_context(telling).follow(collector)
        stack.enter_context(collector)
        host, port = exporter.address
        shown = f"[{host}]" if ":" in host else host
        print_line(f"ready http://{shown}:{port}/metrics")
        say(f"asking {namesrv} every {interval:g} s; Ctrl-C ends it")
        threading.Event().wait()


def host_and_port(text: str) -> tuple[str, int]:
    """Return the parts of ``HOST:PORT``; ``[::1]:80`` is one too.

    Raises:
        BadParameter: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise BadParameter(f"--listen is {text!r}; accepted is HOST:PORT, such as 127.0.0.1:5557")
    return host.removeprefix("[").removesuffix("]"), int(port)

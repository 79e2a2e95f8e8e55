"""``rocketstream metrics``, ``alerts`` and ``mcp``: what programs, people and agents are told.

``rocketstream.watch`` has the figures, and decides which notices are sent, and when; the tools of
agents live in ``rocketstream.agents``.

Law: while agents are served, stdout is the protocol's alone.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from pathlib import Path

import click
from click import BadParameter

from rocketstream.admin.core.words import plural
from rocketstream.cli import signals
from rocketstream.cli.commands import FILE, Seconds, asks, audit_file, interval, looking, option
from rocketstream.cli.failure import say
from rocketstream.cli.output import print_line
from rocketstream.errors import ConfigurationError


@click.command(epilog="Example: `rocketstream metrics --listen 127.0.0.1:5557`")
@option(
    "--listen HOST:PORT",
    "Serve them at http://HOST:PORT/metrics until Ctrl-C instead of printing them once; "
    "port 0 takes a free one.",
)
@interval(default=10)
@option("--per-queue/--per-topic", "Tell lag of every queue, or summed per topic.", default=True)
@option("--history FILE", "Also write lag, rates and verdicts to this SQLite file.", FILE)
@option("--alerts FILE", "Alerts (TOML): also tell its webhooks of verdicts that change.", FILE)
@option("--insecure", "Allow an address others can reach; there is no login.")
@asks
def metrics(
    listen: str | None,
    interval: float,
    per_queue: bool,
    history: Path | None,
    alerts: Path | None,
    insecure: bool,
    namesrv: str,
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
    from rocketstream.admin.core.verdicts import judge
    from rocketstream.errors import ConnectError
    from rocketstream.watch import Update
    from rocketstream.watch.metrics import render

    with looking(namesrv) as admin:
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


@click.command(epilog="Example: `rocketstream alerts --config alerts.toml --dry-run`")
@option(
    "--config, -c FILE",
    "Who is told of what (TOML); see docs/monitoring.md.",
    click.Path(path_type=Path),
    required=True,
)
@option("--dry-run", "Send a test to every webhook, say how each went, and end.")
@interval(default=10)
@asks
def alerts(config: Path, dry_run: bool, interval: float, namesrv: str) -> None:
    """Tell webhooks when a group's verdict changes, until Ctrl-C: each change once."""
    from rocketstream.watch.alerts import load_config

    read = load_config(config)
    if dry_run:
        from rocketstream.errors import ConfigurationError
        from rocketstream.watch.alerts import send_test

        done = send_test(read, namesrv)
        for name, sent in done.items():
            print_line(f"{name}: {'taken' if sent.error is None else sent.error}")
        failed = [name for name, sent in done.items() if sent.error is not None]
        if failed:
            raise ConfigurationError(f"the test was not taken by {', '.join(failed)}")
        return
    import threading

    from rocketstream.admin import Admin
    from rocketstream.watch import Collector, kept_past
    from rocketstream.watch.alerts import Alerts, default_memory

    with Alerts(read, namesrv, memory=default_memory(config, namesrv)) as telling:
        collector = Collector(
            lambda: Admin(namesrv), interval_s=interval, past=lambda: kept_past(namesrv)
        )
        telling.follow(collector)
        with collector:
            say(
                f"asking {namesrv} every {interval:g} s for {plural(len(read.rules), 'rule')}; "
                "Ctrl-C ends it"
            )
            threading.Event().wait()


@click.command(
    epilog='Example, in an agent\'s settings: `{"command": "rocketstream", "args": ["mcp", '
    '"-n", "127.0.0.1:9876"]}`'
)
@option(
    "--write",
    "Also have tools that change something: each shows what it would do, and a person "
    "approves it at the agent's client, or at this terminal.",
)
@option(
    "--trust-agent",
    "With --write: ask no person; the model alone decides, whatever text it has read.",
)
@option(
    "--mask FILE",
    "Masking rules (TOML): which parts of messages no agent is to see.",
    FILE,
    envvar="ROCKETSTREAM_MASK",
    show_envvar=True,
)
@option(
    "--interval SECONDS", "From one sweep of the cluster to the next.", Seconds(1), default=10.0
)
@audit_file
@asks
def mcp(
    write: bool,
    trust_agent: bool,
    mask: Path | None,
    interval: float,
    audit_file: str | None,
    namesrv: str,
) -> None:
    """Give agents tools that look at the cluster (Model Context Protocol, on stdin and stdout).

    It ends when its stdin does. It listens on no port; whoever starts it may use it.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError(
            "the agents' server needs mcp; run: pip install 'rocketstream[mcp]'"
        )
    if trust_agent and not write:
        raise ConfigurationError("--trust-agent is about changes: give it with --write")
    import asyncio

    from rocketstream.admin import Admin, AuditLog
    from rocketstream.admin.aio import Admin as AsyncAdmin
    from rocketstream.admin.messages.masking import Masking
    from rocketstream.agents.server import serve_stdio

    rules = Masking.from_file(str(mask)) if mask is not None else Masking()

    def make_admin() -> Admin:
        return Admin(namesrv, read_only=True, masking=rules)

    writer = None
    if write:
        audit_path = AuditLog(audit_file).path

        def writer(approved: str) -> AsyncAdmin:
            audit = AuditLog(audit_path, face="agents", approved=approved)
            return AsyncAdmin(namesrv, audit=audit, masking=rules)

        who = "without asking anybody" if trust_agent else "when a person approves"
        say(f"agents may change {namesrv} {who}; changes are written to {audit_path}")
    signals.arm_immediate_exit()
    admin = AsyncAdmin(namesrv, read_only=True, masking=rules)
    asyncio.run(
        serve_stdio(
            namesrv, make_admin, admin, writer, trust_agent=trust_agent, interval_s=interval
        )
    )

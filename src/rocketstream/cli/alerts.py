"""``rocketstream alerts``: webhooks that hear of groups whose verdict changes.

``rocketstream.watch`` decides which notices are sent, and when.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rocketstream.cli.declare import Commands, Option
from rocketstream.cli.failure import say
from rocketstream.cli.options import DEFAULT_NAMESRV, Namesrv
from rocketstream.cli.output import plural, print_line


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(alerts, epilog="Example: `rocketstream alerts --config alerts.toml --dry-run`")


def alerts(
    config: Annotated[
        Path,
        Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Who is told of what (TOML); see docs/monitoring.md.",
        ),
    ],
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Send a test to every webhook, say how each went, and end."),
    ] = False,
    interval: Annotated[
        float,
        Option(
            "--interval",
            min=1,
            metavar="SECONDS",
            help="From one sweep over the cluster to the next; a slow sweep stretches it.",
        ),
    ] = 10,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
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

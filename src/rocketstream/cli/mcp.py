"""``rocketstream mcp``: the cluster as tools for agents, over the Model Context Protocol.

Law: stdout is the protocol's alone. The tools live in ``rocketstream.agents``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from rocketstream.cli import signals
from rocketstream.cli.commands import FILE, Seconds, asks, audit_file, option
from rocketstream.cli.failure import say
from rocketstream.errors import ConfigurationError


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

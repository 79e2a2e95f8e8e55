"""Write docs/requests.md: which request codes the embedded server answers, from its own tables.

Run `python -m scripts.request_table` after adding a handler; a test fails when the page is stale.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rocketstream.protocol.codes import RequestCode
from rocketstream.server.broker.broker import Broker
from rocketstream.server.broker.config import BrokerConfig
from rocketstream.server.nameserver.server import NameServer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "requests.md"
HEAD = """# Requests the embedded server answers

Generated from the dispatch tables by `python -m scripts.request_table`. Any other code gets
response code 3 (`REQUEST_CODE_NOT_SUPPORTED`), never a made-up success.
"""

REFUSED = {
    (50, 51, 52, 53, 54): "Answered where the broker has accounts (`--acl`, docs/security.md). "
    "Apache's broker without accounts answers 52 not at all.",
    (13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 301, 302): "Defined, but answered with code 3 "
    "by Apache's 4.9 broker too.",
    (
        370,
    ): "Of 5.x clients: taking a timed message back. Such messages are refused; docs/embedded.md "
    "says why.",
    (
        400,
        901,
        904,
    ): "Requests of 5.x clients and brokers: server-side balance, broker groups. A 4.9 "
    "server answers code 3, after which those clients do without.",
}


def refused() -> str:
    """The codes that are refused, and why."""
    rows = []
    for codes, why in REFUSED.items():
        names = ", ".join(f"{code} {RequestCode(code).name}" for code in codes)
        rows.append(f"* {names}: {why}")
    return "\n".join(["## Refused", "", *rows, ""])


async def broker_codes(folder: Path) -> list[int]:
    """Start a broker without a name server and return the codes of its table."""
    broker = Broker(BrokerConfig(broker_port=0), folder)
    await broker.start()
    try:
        return broker.codes
    finally:
        await broker.close()


def table(title: str, codes: list[int]) -> str:
    """One Markdown table of codes and names."""
    rows = [f"| {code} | {RequestCode(code).name} |" for code in codes]
    return "\n".join([f"## {title}", "", "| code | request |", "|---|---|", *rows, ""])


def page() -> str:
    """Return the text the page must have."""
    with tempfile.TemporaryDirectory() as folder:
        broker = asyncio.run(broker_codes(Path(folder)))
    name_server = NameServer(port=0).dispatcher.codes
    tables = [table("Broker", broker), table("Name server", name_server)]
    return "\n".join([HEAD, *tables, refused()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

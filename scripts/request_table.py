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


async def broker_codes(folder: Path) -> list[int]:
    """Start a broker without a name server and return the codes of its table."""
    broker = Broker(BrokerConfig(port=0), folder)
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
    return "\n".join([HEAD, table("Broker", broker), table("Name server", name_server)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""A cluster, and the agents' server with a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import TextContent

from rocketstream.admin import Admin, AuditLog
from rocketstream.admin import aio as admin_aio
from rocketstream.admin.messages.masking import Masking
from rocketstream.agents.server import serving
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.watch import Collector


class Tools:
    """A server's tools, called as an agent would."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        """Return what a tool answers; a refusal fails."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Return why a tool refuses."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        (said,) = result.content
        assert isinstance(said, TextContent)
        return said.text


@asynccontextmanager
async def tools(
    namesrv_addr: str, *, audit: Path | None = None, masking: Masking | None = None
) -> AsyncIterator[Tools]:
    """Run a server, one that may write if it has an audit file."""
    log = None if audit is None else AuditLog(audit, face="agents")
    async with (
        admin_aio.Admin(
            namesrv_addr, audit=log, read_only=log is None, masking=masking or Masking()
        ) as admin,
        serving(
            admin, lambda: Collector(lambda: Admin(namesrv_addr)), write=log is not None
        ) as server,
        Client(server) as client,
    ):
        yield Tools(client)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        asyncio.run(asyncio.wait_for(story(), 60))
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None  # what failed, not the tasks it failed in


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    store = tmp_path_factory.mktemp("agents") / "store"
    with EmbeddedCluster(store_dir=store, store_config=SMALL_STORE) as cluster:
        yield cluster

"""A cluster, and the agents' server with a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.types import ElicitRequestParams, ElicitResult, TextContent

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin import Admin, AuditLog
from rocketstream.admin import aio as admin_aio
from rocketstream.admin.messages.masking import Masking
from rocketstream.admin.safety import Previews
from rocketstream.agents.approval import Approver
from rocketstream.agents.changing import Changing
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


class Person:
    """Answers what a client asks, one answer after the other, and remembers the questions."""

    def __init__(self, *answers: ElicitResult) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        self.asked.append(params.message)
        return self.answers.pop(0) if self.answers else YES


YES = ElicitResult(action="accept", content={"carry_out": True})


@asynccontextmanager
async def tools(
    namesrv_addr: str,
    *,
    audit: Path | None = None,
    masking: Masking | None = None,
    person: ElicitationFnT | None = None,
    terminal: Callable[[], int | None] = lambda: None,
    trust_agent: bool = False,
    mode: str = "auto",
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[Tools]:
    """Run a server, one that may write if it has an audit file, and a client of it.

    Args:
        person: answers the client's questions; None is a client that cannot ask anybody.
    """

    def writer(approved: str) -> admin_aio.Admin:
        return admin_aio.Admin(
            namesrv_addr, audit=AuditLog(audit, face="agents", approved=approved)
        )

    async with admin_aio.Admin(namesrv_addr, read_only=True, masking=masking or Masking()) as admin:
        changing = None
        if audit is not None:
            approver = Approver(clock, trust_agent=trust_agent, terminal=terminal)
            changing = Changing(admin, writer, approver, namesrv_addr, Previews(clock), clock)
        async with (
            serving(
                admin, lambda: Collector(lambda: Admin(namesrv_addr)), changing=changing
            ) as server,
            Client(server, mode=mode, elicitation_callback=person) as client,
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

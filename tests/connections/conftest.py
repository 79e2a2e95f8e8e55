"""Fixtures: event loops of both kinds, and both ends of TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

import pytest

from rocketstream._util.loops import new_event_loop
from rocketstream.transport.tls import client_context, server_context
from tests.kits.threaded_server import CERT, KEY, Run

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine on a fresh loop of each kind; 30 s at most."""
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield lambda coro: runner.run(asyncio.wait_for(coro, 30))


@pytest.fixture(scope="session")
def server_tls() -> ssl.SSLContext:
    return server_context(str(CERT), str(KEY))


@pytest.fixture(scope="session")
def client_tls() -> ssl.SSLContext:
    return client_context(ca_file=str(CERT), check_hostname=True)

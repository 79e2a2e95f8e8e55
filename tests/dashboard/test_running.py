"""The server under the dashboard: clients that send half a request keep nobody out."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from rocketstream.dashboard import running
from rocketstream.dashboard.running import CONNECTIONS_MAX, DashboardServer

WAIT_S = 30


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers everything with 200."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


async def reads(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers once it has the whole request."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
    await answers(scope, receive, send)


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\ntok"


def half_a_request(server: DashboardServer, half: bytes = HEAD) -> socket.socket:
    place = urlsplit(server.url)
    client = socket.create_connection((str(place.hostname), place.port), WAIT_S)
    client.sendall(half)
    return client


@pytest.mark.parametrize("half", [HEAD, BODY])
def test_more_half_requests_than_connections_keep_nobody_out(half: bytes) -> None:
    with DashboardServer(reads) as server, ExitStack() as stack:
        clients = [
            stack.enter_context(half_a_request(server, half)) for _ in range(CONNECTIONS_MAX + 50)
        ]
        for client in clients[:50]:
            _rest(client)
        for _ in range(3):
            with urllib.request.urlopen(server.url, timeout=WAIT_S) as answer:
                assert (answer.status, answer.read()) == (200, b"here")


def test_a_rest_that_stays_away_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of the second request of a connection, and of a body."""
    monkeypatch.setattr(running, "REQUEST_S", 0.05)
    with DashboardServer(reads) as server:
        with half_a_request(server, BODY) as client:
            assert _rest(client) == b""
        with half_a_request(server) as client:
            assert _rest(client) == b""
        with half_a_request(server) as client:
            client.sendall(b"\r\nGET / HTTP/1.1\r\n")
            assert _rest(client).endswith(b"here\r\n0\r\n\r\n")


def _rest(client: socket.socket) -> bytes:
    """Return what comes until the server closes, in order or not."""
    found = b""
    try:
        while data := client.recv(4096):
            found += data
    except ConnectionResetError:
        pass
    return found

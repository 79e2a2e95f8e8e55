"""Who is met at a port that is no remoting port is named, with what to do, by both connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rocketstream._util.loops import LoopThread
from rocketstream.errors import ConnectError, RocketMQError
from rocketstream.protocol.addresses import stranger
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.server import RemotingServer
from tests.kits.threaded_server import echo, request

WAIT_MS = 10_000
SETTINGS = bytes.fromhex("000012 04 00 00000000 000300000080 00040010 0000 00060000 2000")
HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
ALERT = bytes.fromhex("15 0303 0002 0246")


@contextmanager
def answering(words: bytes | None) -> Iterator[str]:
    """Serve one connection: answer its first bytes with words and close; None: say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(WAIT_MS / 1000)
                peer.recv(1 << 16)
                if words is None:
                    done.wait(WAIT_MS / 1000)
                elif words:
                    peer.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def ask_blocking(address: str, timeout_ms: float, context: ssl.SSLContext | None = None) -> None:
    with BlockingConnection(address, ssl_context=context) as connection:
        connection.request(request(), timeout_ms)


def ask_on_a_loop(address: str, timeout_ms: float, context: ssl.SSLContext | None = None) -> None:
    async def ask() -> None:
        client = RemotingClient(ssl_context=context)
        try:
            await client.request(address, request(), timeout_ms)
        finally:
            await client.close()

    asyncio.run(ask())


Ask = Callable[..., None]
FACES = pytest.mark.parametrize("ask", [ask_blocking, ask_on_a_loop])


@FACES
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (HTTP, r"an HTTP server answers there"),
        (SETTINGS, r"an HTTP/2 server answers there, such as a Proxy's gRPC port \(usually 8081\)"),
        (ALERT, r"TLS is spoken there; give use_tls=True"),
        (b"", r"closed by the peer.*servers that take only TLS close plain ones"),
    ],
)
def test_strangers_are_named_by_their_first_bytes(ask: Ask, words: bytes, told: str) -> None:
    with answering(words) as address, pytest.raises(RocketMQError, match=told):
        ask(address, WAIT_MS)


@FACES
def test_a_peer_that_never_says_anything_may_be_at_another_port(ask: Ask) -> None:
    """An HTTP server waits for the rest of a line, and a broker's port of copies for a slave."""
    with answering(None) as address, pytest.raises(RocketMQError, match=r"in time; nothing has ev"):
        ask(address, 1)


@FACES
def test_tls_at_a_plain_port_is_named(ask: Ask, client_tls: ssl.SSLContext) -> None:
    """Also where the plain server closes at once, as RocketMQ's do: it reads a frame of 369 MB."""
    for words in (HTTP, b""):
        with answering(words) as address, pytest.raises(ConnectError, match="no TLS seems to be"):
            ask(address, WAIT_MS, client_tls)


@FACES
def test_a_certificate_that_is_not_trusted_is_another_matter(
    ask: Ask, server_tls: ssl.SSLContext
) -> None:
    served = RemotingServer(echo, ssl_context=server_tls, tls_mode="enforcing")
    with running(served), pytest.raises(ConnectError, match=r"(?i)certificate") as refused:
        ask(served.address, WAIT_MS, ssl.create_default_context())
    assert "no TLS seems" not in str(refused.value)


@contextmanager
def running(server: RemotingServer) -> Iterator[None]:
    with LoopThread("strangers") as loop:
        loop.run(server.start())
        try:
            yield
        finally:
            loop.run(server.close())


@pytest.mark.parametrize("header", [0, 1, 255, 256, 65_536])
def test_frames_of_rocketmqs_are_no_strangers(header: int) -> None:
    """Whatever the length of frame and header, and in both forms of headers."""
    for body in range(300):
        command = RemotingCommand.request(RequestCode.HEART_BEAT, body=bytes(body))
        command.remark = "x" * header
        assert stranger(command.frame()[:9]) is None

"""TLS and plain on one port, by the first byte (W 1.6)."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError, ConnectError, TransportError
from rocketstream.protocol.addresses import format_address
from rocketstream.server.certificates import make_test_certificates
from rocketstream.server.tls import ServerTls
from rocketstream.testing import ManualClock
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.server import RemotingServer
from rocketstream.transport.tls import (
    TlsMode,
    client_context,
    environment_context,
    server_context,
)
from tests.kits.threaded_server import CERT, KEY, Run, ThreadedServer, echo, request

LONG_MS = 20_000


@asynccontextmanager
async def serving(
    mode: TlsMode, context: ssl.SSLContext | None, **settings: Any
) -> AsyncIterator[RemotingServer]:
    server = RemotingServer(echo, ssl_context=context, tls_mode=mode, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def ask(server: RemotingServer, context: ssl.SSLContext | None) -> bytes:
    client = RemotingClient(ssl_context=context, connect_timeout_ms=5000)
    try:
        body = bytes(range(256)) * 8000
        answer = await client.request(server.address, request(body=body), LONG_MS)
        assert answer.body == body
        return b"ok"
    finally:
        await client.close()


def test_permissive_serves_both_on_one_port(
    run: Run, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        async with serving("permissive", server_tls) as server:
            answers = await asyncio.gather(
                *(ask(server, context) for context in (None, client_tls) * 4)
            )
            assert answers == [b"ok"] * 8

    run(main())


def test_enforcing_takes_tls_only(
    run: Run, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        async with serving("enforcing", server_tls) as server:
            assert await ask(server, client_tls) == b"ok"
            with pytest.raises(TransportError):
                await ask(server, None)

    run(main())


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
def test_without_tls_a_handshake_is_closed(
    run: Run, mode: TlsMode, client_tls: ssl.SSLContext, server_tls: ssl.SSLContext
) -> None:
    """Permissive without a certificate is the same as disabled."""

    async def main() -> None:
        async with serving(mode, server_tls if mode == "disabled" else None) as server:
            assert await ask(server, None) == b"ok"
            with pytest.raises(ConnectError):
                await ask(server, client_tls)

    run(main())


def test_untrusted_certificate_is_refused_by_the_client(
    run: Run, server_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        async with serving("permissive", server_tls) as server:
            with pytest.raises(ConnectError, match=r"(?i)certificate"):
                await ask(server, client_context())
            assert await ask(server, client_context(verify=False)) == b"ok"

    run(main())


def test_client_certificate_is_asked_for_when_required(
    run: Run, client_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        strict = server_context(
            str(CERT), str(KEY), client_auth="require", client_ca_file=str(CERT)
        )
        async with serving("enforcing", strict) as server:
            with pytest.raises(TransportError):
                await ask(server, client_tls)
            known = client_context(ca_file=str(CERT), cert_file=str(CERT), key_file=str(KEY))
            assert await ask(server, known) == b"ok"

    run(main())


def test_silent_and_vanished_peers_do_not_hold_the_server_up(
    run: Run, server_tls: ssl.SSLContext
) -> None:
    """A peer that sends nothing has no protocol yet; close must end it all the same."""

    async def main() -> None:
        async with serving("permissive", server_tls) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            _, gone = await asyncio.open_connection(server.host, server.port)
            gone.close()
            broken_reader, broken = await asyncio.open_connection(server.host, server.port)
            broken.write(b"\x16\x03\x01\x00\x02no handshake at all")
            await broken_reader.read()
            assert await ask(server, None) == b"ok"
            await server.close()
            assert await reader.read() == b""
            writer.close()
            broken.close()

    run(main())


def test_connections_are_bounded_while_their_first_byte_is_awaited(
    run: Run, server_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        async with serving("permissive", server_tls, connections_max=1) as server:
            _, silent = await asyncio.open_connection(server.host, server.port)
            reader, writer = await asyncio.open_connection(server.host, server.port)
            assert await reader.read() == b""
            silent.close()
            writer.close()

    run(main())


def test_blocking_connection_and_pool_speak_tls(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    body = bytes(range(256)) * 8000
    with ThreadedServer(ssl_context=server_tls) as server:
        with BlockingConnection(server.address, ssl_context=client_tls) as connection:
            assert connection.request(request(body=body), LONG_MS).body == body
            part = body[:10_000]  # eight answers of 2 MB would not be taken by who only writes
            for _ in range(8):
                connection.submit(request(body=part))
            for _ in range(8):
                assert connection.receive(LONG_MS).body == part
            assert not connection.is_stale()
            assert connection.request(request(body=b"x"), LONG_MS).body == b"x"
        with BlockingPool(ssl_context=client_tls) as pool:
            for _ in range(3):
                assert pool.request(server.address, request(body=b"y"), LONG_MS).body == b"y"
            assert len(server.server.connections) <= 2


def test_blocking_connection_to_a_deaf_peer_times_out(client_tls: ssl.SSLContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = format_address(*deaf.getsockname())
        with pytest.raises(ConnectError, match="no answer within 50 ms"):
            BlockingConnection(address, connect_timeout_ms=50, ssl_context=client_tls)


def test_bad_settings_name_the_file_or_the_choice(
    tmp_path: Path, server_tls: ssl.SSLContext
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    calls: list[Callable[[], object]] = [
        lambda: client_context(ca_file=str(junk)),
        lambda: client_context(ca_file=str(tmp_path / "absent.pem")),
        lambda: server_context(str(junk)),
        lambda: client_context(cert_file=str(CERT), key_file=str(junk)),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"junk\.pem|absent\.pem"):
            call()
    with pytest.raises(ConfigurationError, match="require"):
        server_context(str(CERT), str(KEY), client_auth="always")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="permissive"):
        RemotingServer(echo, ssl_context=server_tls, tls_mode="on")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="ssl_context"):
        RemotingServer(echo, tls_mode="enforcing")


# --- settings of servers and clients -------------------------------------------------------------


def test_made_certificates_are_kept_while_they_are_good_for_the_hosts(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=1_800_000_000_000)
    made = make_test_certificates(tmp_path, clock=clock)
    first = made.cert_file.read_bytes()
    assert make_test_certificates(tmp_path, clock=clock).cert_file.read_bytes() == first
    if os.name == "posix":
        assert stat.S_IMODE(made.key_file.stat().st_mode) == 0o600
    make_test_certificates(tmp_path, ("localhost", "broker.test"), clock)
    second = made.cert_file.read_bytes()
    assert second != first
    clock.advance(366 * 86_400_000)
    make_test_certificates(tmp_path, ("localhost",), clock)
    assert made.cert_file.read_bytes() not in (first, second)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "sometimes"}, "give one of disabled, permissive, enforcing"),
        ({"client_ca_file": "ca.pem"}, "no client is asked for a certificate"),
        ({"client_auth": "perhaps"}, "give one of none, optional, require"),
    ],
)
def test_tls_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    tls = ServerTls(cert_file=CERT, key_file=KEY, **settings)
    with pytest.raises(ConfigurationError, match=said):
        _use(tls)


def test_the_environment_says_how_clients_speak_tls() -> None:
    on = {"ROCKETMQ_TLS_ENABLE": "true"}
    assert environment_context({}) is None
    assert environment_context({"ROCKETMQ_TLS_CA_FILE": str(CERT)}) is None, "not switched on"
    verified = environment_context(on | {"ROCKETMQ_TLS_CA_FILE": str(CERT)})
    assert verified is not None
    assert verified.verify_mode is ssl.CERT_REQUIRED
    assert verified.cert_store_stats()["x509"] == 1
    unverified = environment_context(on | {"ROCKETMQ_TLS_VERIFY": "false"})
    assert unverified is not None
    assert unverified.verify_mode is ssl.CERT_NONE
    with pytest.raises(ConfigurationError, match=r"ROCKETMQ_TLS_VERIFY must be true or false"):
        environment_context(on | {"ROCKETMQ_TLS_VERIFY": "no"})
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem"):
        environment_context(on | {"ROCKETMQ_TLS_CA_FILE": "nowhere.pem"})


def _use(tls: ServerTls) -> None:
    tls.check()
    tls.context()

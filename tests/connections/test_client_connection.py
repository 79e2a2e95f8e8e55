"""A client's connection: answers in their quick form are matched as all others are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rocketstream.errors import ConnectError, ConnectionLostError, TooManyRequestsError
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.sends import StoredAnswer
from rocketstream.transport.client import ClientConnection
from rocketstream.transport.connection import ConnectionLimits

LONG_MS = 20_000


class Pipe:
    """As much of a transport as a connection asks for."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name != "socket" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Sink:
    """Remembers what it was told, and how."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def __call__(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        self.error = error
        if answer is not None:
            ext = answer.ext_fields or {}
            how = "quick" if isinstance(answer, StoredAnswer) else "general"
            self.told.append((how, ext.get("queueOffset", str(answer.code))))
        self.then()

    def then(self) -> None:
        """Do what a test wants."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def connection(loop: asyncio.AbstractEventLoop) -> Iterator[ClientConnection]:
    connection = ClientConnection(loop, bounds=ConnectionLimits(requests_in_flight_max=100))
    connection.connection_made(cast(asyncio.BaseTransport, Pipe()))
    yield connection
    connection.connection_lost(None)


def asked(connection: ClientConnection, count: int) -> list[Sink]:
    """Send that many; their opaques are those of ``answered`` from 1 on."""
    sinks = [Sink() for _ in range(count)]
    for sink in sinks:
        connection.request_callback(RemotingCommand.request(310), LONG_MS, sink)
    return sinks


def answered(opaque: int, offset: int, code: int = 0) -> bytes:
    answer = RemotingCommand.response(code, None if not code else "no")
    answer.opaque = opaque
    if not code:
        answer.ext_fields = {"msgId": f"{offset:032X}", "queueId": "1", "queueOffset": str(offset)}
    return answer.frame()


def test_the_first_answer_teaches_the_form_of_the_others(connection: ClientConnection) -> None:
    sinks = asked(connection, 4)
    connection.data_received(b"".join(answered(n, 10 + n) for n in (1, 3, 2)))
    connection.data_received(answered(4, 14))
    assert [sink.told for sink in sinks] == [
        [("general", "11")], [("quick", "12")], [("quick", "13")], [("quick", "14")],
    ]  # fmt: skip
    assert connection.requests_in_flight == 0


@pytest.mark.parametrize("size", [1, 3, 7, 100, 150, 151, 152, 500])
def test_however_bytes_arrive_each_answer_reaches_its_sender_once(
    connection: ClientConnection, size: int
) -> None:
    """Between them one that refuses, and one that nobody waits for."""
    sinks = asked(connection, 6)
    frames = [
        answered(1, 101), answered(2, 102), answered(3, 0, code=2), answered(77, 5),
        answered(4, 104), answered(6, 106), answered(5, 105),
    ]  # fmt: skip
    data = b"".join(frames)
    for at in range(0, len(data), size):
        connection.data_received(data[at : at + size])
    assert [[said for _, said in sink.told] for sink in sinks] == [
        ["101"], ["102"], ["2"], ["104"], ["105"], ["106"],
    ]  # fmt: skip
    assert connection.requests_in_flight == 0


def test_a_sender_that_raises_does_not_keep_the_others_from_their_answers(
    connection: ClientConnection, caplog: pytest.LogCaptureFixture
) -> None:
    sinks = asked(connection, 3)
    connection.data_received(answered(1, 1))
    sinks[1].then = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    connection.data_received(answered(2, 2) + answered(3, 3))
    assert sinks[2].told == [("quick", "3")]
    assert "the callback for an answer" in caplog.text


def test_a_sender_may_close_the_connection(connection: ClientConnection) -> None:
    """What comes behind is not taken; who still waits is told."""
    sinks = asked(connection, 4)
    connection.data_received(answered(1, 1))
    sinks[1].then = lambda: connection.close("enough")  # type: ignore[method-assign]
    connection.data_received(answered(2, 2) + answered(3, 3))
    assert sinks[2].told == []
    assert isinstance(sinks[2].error, ConnectionLostError)
    assert isinstance(sinks[3].error, ConnectionLostError)


def test_sends_have_the_bounds_of_all_requests(
    connection: ClientConnection, loop: asyncio.AbstractEventLoop
) -> None:
    asked(connection, 100)
    with pytest.raises(TooManyRequestsError):
        asked(connection, 1)
    connection.close("the end")
    with pytest.raises(ConnectError):
        asked(connection, 1)
    loop.run_until_complete(asyncio.sleep(0))


def test_a_request_too_many_for_a_peer_that_does_not_read_is_refused_not_called_back(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """``request_callback`` never calls back before it has returned; those before it fail."""
    bounds = ConnectionLimits(write_buffer_bytes_max=1_000)
    connection = ClientConnection(loop, bounds=bounds)
    connection.connection_made(cast(asyncio.BaseTransport, Pipe()))
    (earlier,) = asked(connection, 1)
    connection.pause_writing()
    called: list[Exception | None] = []
    with pytest.raises(ConnectError, match="does not read"):
        connection.request_callback(
            RemotingCommand.request(1, None, bytes(1_000)),
            LONG_MS,
            lambda answer, error: called.append(error),
        )
    assert called == []
    assert isinstance(earlier.error, ConnectionLostError)
    assert connection.requests_in_flight == 0
    connection.connection_lost(None)

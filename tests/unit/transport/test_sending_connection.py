"""A client's connection: answers read at once are matched as all others are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rocketstream.errors import ConnectError, ConnectionLostError, TooManyRequestsError
from rocketstream.protocol.answer_form import StoredForm, StoredValues
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import encode_frame
from rocketstream.transport.connection import ConnectionLimits
from rocketstream.transport.sending_connection import SendingConnection, StoredSink

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


class Sink(StoredSink):
    """Remembers what it was told, and how."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def stored(self, form: StoredForm, values: StoredValues) -> None:
        self.told.append(("at once", values[1].decode()))

    def __call__(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        self.error = error
        if answer is not None:
            ext = answer.ext_fields or {}
            self.told.append(("general", ext.get("queueOffset", str(answer.code))))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def connection(loop: asyncio.AbstractEventLoop) -> Iterator[SendingConnection]:
    connection = SendingConnection(loop, bounds=ConnectionLimits(requests_in_flight_max=100))
    connection.connection_made(cast(asyncio.BaseTransport, Pipe()))
    yield connection
    connection.connection_lost(None)


def asked(connection: SendingConnection, count: int) -> list[Sink]:
    """Send that many; their opaques are those of ``answered`` from 1 on."""
    sinks = [Sink() for _ in range(count)]
    for sink in sinks:
        connection.request_ready(lambda opaque: b"frame %d" % opaque, LONG_MS, sink)
    return sinks


def answered(opaque: int, offset: int, code: int = 0) -> bytes:
    answer = RemotingCommand.response(code, None if not code else "no")
    answer.opaque = opaque
    if not code:
        answer.ext_fields = {"msgId": f"{offset:032X}", "queueId": "1", "queueOffset": str(offset)}
    return encode_frame(answer)


def test_the_first_answer_teaches_the_form_of_the_others(connection: SendingConnection) -> None:
    sinks = asked(connection, 4)
    connection.data_received(b"".join(answered(n, 10 + n) for n in (1, 3, 2)))
    connection.data_received(answered(4, 14))
    assert [sink.told for sink in sinks] == [
        [("general", "11")], [("at once", "12")], [("at once", "13")], [("at once", "14")],
    ]  # fmt: skip
    assert connection.requests_in_flight == 0


@pytest.mark.parametrize("size", [1, 3, 7, 100, 150, 151, 152, 500])
def test_however_bytes_arrive_each_answer_reaches_its_sender_once(
    connection: SendingConnection, size: int
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


def test_answers_to_other_requests_stay_commands(connection: SendingConnection) -> None:
    """A request whose answer looks like that to a send gets it whole."""
    (sink,) = asked(connection, 1)
    connection.data_received(answered(1, 1))
    got: list[RemotingCommand | None] = []
    connection.request_callback(
        RemotingCommand.request(310), LONG_MS, lambda answer, _: got.append(answer)
    )
    connection.data_received(answered(2, 2))
    assert sink.told == [("general", "1")]
    assert [answer is not None and answer.opaque for answer in got] == [2]


def test_a_sender_that_raises_does_not_keep_the_others_from_their_answers(
    connection: SendingConnection, caplog: pytest.LogCaptureFixture
) -> None:
    sinks = asked(connection, 3)
    connection.data_received(answered(1, 1))
    sinks[1].stored = lambda form, values: 1 / 0  # type: ignore[method-assign,assignment]
    connection.data_received(answered(2, 2) + answered(3, 3))
    assert sinks[2].told == [("at once", "3")]
    assert "the callback for an answer" in caplog.text


def test_a_sender_may_close_the_connection(connection: SendingConnection) -> None:
    """What comes behind is not taken; who still waits is told."""
    sinks = asked(connection, 4)
    connection.data_received(answered(1, 1))
    sinks[1].stored = lambda form, values: connection.close("enough")  # type: ignore[method-assign]
    connection.data_received(answered(2, 2) + answered(3, 3))
    assert sinks[2].told == []
    assert isinstance(sinks[2].error, ConnectionLostError)
    assert isinstance(sinks[3].error, ConnectionLostError)


def test_ready_frames_have_the_bounds_of_all_requests(
    connection: SendingConnection, loop: asyncio.AbstractEventLoop
) -> None:
    asked(connection, 100)
    with pytest.raises(TooManyRequestsError):
        asked(connection, 1)
    connection.close("the end")
    with pytest.raises(ConnectError):
        asked(connection, 1)
    loop.run_until_complete(asyncio.sleep(0))


def test_hooks_see_everything(loop: asyncio.AbstractEventLoop) -> None:
    """With somebody who looks at requests or answers there are no ready frames."""
    seen = SendingConnection(loop, after_response=lambda *_: None)
    signed = SendingConnection(loop, before_request=lambda *_: None)
    assert not seen.takes_ready
    assert not signed.takes_ready
    assert SendingConnection(loop).takes_ready

"""kill -9 of the embedded broker under load: what was acknowledged is there, nothing else is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import TransportError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import encode_properties
from rocketstream.testing.history import Recorder, Sending
from rocketstream.testing.history import check as check_history
from rocketstream.testing.history.events import SendAcknowledged
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.kills import (
    BROKER,
    QUEUES,
    TIMEOUT_MS,
    TOPIC,
    Gate,
    Server,
    create_topic,
    everything,
    running,
)

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(300)]

KILLS = 25
PIPELINE = 16


class Load(threading.Thread):
    """Sends to one queue, several requests under way, until the connection breaks."""

    def __init__(
        self, address: str, name: str, queue_id: int, recorder: Recorder, enough: Gate
    ) -> None:
        super().__init__(name=f"load-{name}")
        self._address = address
        self._name = name
        self._queue_id = queue_id
        self._recorder = recorder
        self._enough = enough
        self.unexpected: Exception | None = None

    def run(self) -> None:
        try:
            with BlockingConnection(self._address) as connection:
                self._send(connection)
        except TransportError:
            pass  # the server was killed: what is not acknowledged by now never will be
        except Exception as error:
            self.unexpected = error

    def _send(self, connection: BlockingConnection) -> None:
        under_way: dict[int, Sending] = {}
        for number in range(1_000_000):
            key = f"{self._name}-{number}"
            sending = self._recorder.sending(key, TOPIC)
            body = body_of(key, 1 + number % 60)
            under_way[connection.submit(send_command(self._queue_id, key, body))] = sending
            if len(under_way) >= PIPELINE:
                self._acknowledge(connection.receive(TIMEOUT_MS), under_way)

    def _acknowledge(self, answer: RemotingCommand, under_way: dict[int, Sending]) -> None:
        sending = under_way.pop(answer.opaque)
        assert answer.code == 0, f"send answered {answer!r}"
        ext = answer.ext_fields or {}
        queue = MessageQueue(TOPIC, BROKER, int(ext["queueId"]))
        sending.acknowledged_at(queue, int(ext["queueOffset"]))
        self._enough.count()


def body_of(key: str, times: int) -> bytes:
    return key.encode() * times


def new_recorder() -> Recorder:
    return Recorder(SYSTEM_CLOCK.monotonic_ms)


def send_command(queue_id: int, message_id: str, body: bytes) -> RemotingCommand:
    header = SendMessageRequestHeader(
        producer_group="chaos-producer",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=encode_properties({"UNIQ_KEY": message_id, "KEYS": message_id, "WAIT": "true"}),
    )
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)
    command.ext_fields = header.to_ext_v2()
    return command


def check(address: str, recorder: Recorder) -> int:
    """Hold what the broker has against what was sent; return how many messages it has."""
    history = list(recorder.events)
    reader = Recorder(recorder.now, history.append)
    held = 0
    for queue, messages in everything(address).items():
        assert [m.queue_offset for m in messages] == list(range(len(messages))), f"gap in {queue}"
        for message in messages:
            message.check_crc()
            key = message.keys or ""
            assert message.body == body_of(key, len(message.body) // len(key)), f"{key} is changed"
        reader.log(queue, 0, messages)
        held += len(messages)
    anomalies = check_history(history)
    assert not anomalies, "\n".join(map(str, anomalies))
    return held


def load_until_killed(server: Server, round_: int, recorder: Recorder) -> None:
    """Send to every queue at once and kill the server in the middle of it."""
    gate = Gate(60 + round_ * 37 % 250)
    senders = [
        Load(server.broker_addr, f"r{round_}q{queue_id}", queue_id, recorder, gate)
        for queue_id in range(QUEUES)
    ]
    for sender in senders:
        sender.start()
    opened = gate.opened.wait(timeout=60)
    server.kill()
    for sender in senders:
        sender.join(timeout=30)
    failures = [sender.unexpected for sender in senders if sender.unexpected]
    assert not failures, failures
    assert opened, "too few acknowledgements in 60 s"


def test_killed_broker_keeps_every_acknowledged_message(tmp_path: Path) -> None:
    """25 times kill -9 on one store, by turns with sync and async flush: acknowledged messages stay
    where they were acknowledged, nothing is there twice, torn or never sent (W 5.1, 5.7)."""
    recorder = new_recorder()
    for round_ in range(KILLS):
        with running(tmp_path / "store", ("sync", "async")[round_ % 2]) as server:
            if round_ == 0:
                create_topic(server.broker_addr)
            check(server.broker_addr, recorder)
            load_until_killed(server, round_, recorder)

    with running(tmp_path / "store") as server:
        held = check(server.broker_addr, recorder)
    acknowledged = sum(isinstance(event, SendAcknowledged) for event in recorder.events)
    assert held >= acknowledged >= 60 * KILLS


def test_server_killed_as_soon_as_it_is_ready_recovers(tmp_path: Path) -> None:
    """A kill right after recovery leaves the store as it was."""
    recorder = new_recorder()
    with running(tmp_path / "store") as server:
        create_topic(server.broker_addr)
        load_until_killed(server, 0, recorder)
    for _ in range(3):
        with running(tmp_path / "store") as server:
            server.kill()
    with running(tmp_path / "store") as server:
        check(server.broker_addr, recorder)

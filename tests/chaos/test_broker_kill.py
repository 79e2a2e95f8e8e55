"""kill -9 of the embedded broker under load: what was acknowledged is there, nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketstream.errors import TransportError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.properties import encode_properties
from rocketstream.transport.blocking import BlockingConnection

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 25
QUEUES = 4
PIPELINE = 16
TOPIC = "chaos"
TIMEOUT_MS = 10_000


@dataclass
class Server:
    """A `rocketstream serve` process."""

    process: subprocess.Popen[str]
    broker_addr: str

    def kill(self) -> None:
        """kill -9, of the whole group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)


@contextmanager
def running(store: Path) -> Iterator[Server]:
    """Start a server on the store and wait for its ready line; it is killed at the end."""
    command = [sys.executable, "-m", "rocketstream", "serve", "--store", str(store)]
    command += ["--namesrv-port", "0", "--broker-port", "0", "--flush", "sync"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        server = Server(process, "")
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), f"the server said {line!r}"
            words = dict(word.split("=", 1) for word in line.split()[1:])
            server.broker_addr = words["broker"]
            yield server
        finally:
            if process.poll() is None:
                server.kill()


@dataclass
class Ledger:
    """What was sent, and what of it was acknowledged: digest and place by message id."""

    sent: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Load(threading.Thread):
    """Sends to one queue, several requests under way, until the connection breaks."""

    def __init__(
        self, address: str, name: str, queue_id: int, ledger: Ledger, enough: Gate
    ) -> None:
        super().__init__(name=f"load-{name}")
        self._address = address
        self._name = name
        self._queue_id = queue_id
        self._ledger = ledger
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
        under_way: dict[int, str] = {}
        for number in range(1_000_000):
            message_id = f"{self._name}-{number}"
            body = message_id.encode() * (1 + number % 60)
            with self._ledger.lock:
                self._ledger.sent[message_id] = digest(body)
            under_way[connection.submit(send_command(self._queue_id, message_id, body))] = (
                message_id
            )
            if len(under_way) >= PIPELINE:
                self._acknowledge(connection.receive(TIMEOUT_MS), under_way)

    def _acknowledge(self, answer: RemotingCommand, under_way: dict[int, str]) -> None:
        message_id = under_way.pop(answer.opaque)
        assert answer.code == 0, f"send answered {answer!r}"
        ext = answer.ext_fields or {}
        with self._ledger.lock:
            place = (self._ledger.sent[message_id], int(ext["queueId"]), int(ext["queueOffset"]))
            self._ledger.acknowledged[message_id] = place
        self._enough.count()


class Gate:
    """Opens after a number of acknowledgements: the moment of a kill, by progress, not by time."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._lock = threading.Lock()
        self.opened = threading.Event()

    def count(self) -> None:
        """One more acknowledgement."""
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self.opened.set()


def digest(body: bytes) -> str:
    return f"{len(body)}:{zlib.crc32(body)}"


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


def create_topic(address: str) -> None:
    header = CreateTopicRequestHeader(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=QUEUES,
        write_queue_nums=QUEUES,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    with BlockingConnection(address) as connection:
        assert connection.request(command, TIMEOUT_MS).code == 0


def everything(address: str) -> dict[MessageQueue, list[MessageExt]]:
    """Read every queue from its first offset to its end."""
    with BlockingConnection(address) as connection:
        return {
            MessageQueue(TOPIC, "broker-a", queue_id): read_queue(connection, queue_id)
            for queue_id in range(QUEUES)
        }


def read_queue(connection: BlockingConnection, queue_id: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    offset = 0
    while True:
        header = PullMessageRequestHeader(
            consumer_group="chaos-reader",
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=1024,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        answer = connection.request(command, TIMEOUT_MS)
        if answer.code != 0:
            return found
        found += decode_messages(bytes(answer.body))
        offset = int((answer.ext_fields or {})["nextBeginOffset"])


def check(address: str, ledger: Ledger) -> int:
    """Compare what the broker holds with the ledger; return how many messages it holds."""
    stored: dict[str, tuple[str, int, int]] = {}
    for queue, messages in everything(address).items():
        assert [m.queue_offset for m in messages] == list(range(len(messages))), f"gap in {queue}"
        for message in messages:
            message.check_crc()
            assert message.msg_id not in stored, f"{message.msg_id} is stored twice"
            place = (digest(message.body), message.queue_id, message.queue_offset)
            stored[message.msg_id] = place
    lost = {i: p for i, p in ledger.acknowledged.items() if stored.get(i) != p}
    assert not lost, f"{len(lost)} acknowledged messages lost or moved: {list(lost.items())[:5]}"
    invented = {i: p for i, p in stored.items() if ledger.sent.get(i) != p[0]}
    assert not invented, f"{len(invented)} messages never sent: {list(invented.items())[:5]}"
    return len(stored)


def load_until_killed(server: Server, round_: int, ledger: Ledger) -> None:
    """Send to every queue at once and kill the server in the middle of it."""
    gate = Gate(60 + round_ * 37 % 250)
    senders = [
        Load(server.broker_addr, f"r{round_}q{queue_id}", queue_id, ledger, gate)
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
    """25 times kill -9 on one store with sync flush: acknowledged messages stay where they were
    acknowledged, nothing is there twice, torn or never sent (W 5.1, 5.7)."""
    ledger = Ledger()
    for round_ in range(KILLS):
        with running(tmp_path / "store") as server:
            if round_ == 0:
                create_topic(server.broker_addr)
            check(server.broker_addr, ledger)
            load_until_killed(server, round_, ledger)

    with running(tmp_path / "store") as server:
        held = check(server.broker_addr, ledger)
    assert len(ledger.acknowledged) >= 60 * KILLS
    assert held >= len(ledger.acknowledged)


def test_server_killed_as_soon_as_it_is_ready_recovers(tmp_path: Path) -> None:
    """A kill right after recovery leaves the store as it was."""
    ledger = Ledger()
    with running(tmp_path / "store") as server:
        create_topic(server.broker_addr)
        load_until_killed(server, 0, ledger)
    for _ in range(3):
        with running(tmp_path / "store") as server:
            server.kill()
    with running(tmp_path / "store") as server:
        check(server.broker_addr, ledger)

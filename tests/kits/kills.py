"""A server process that a test kills, the moment of the kill, and what its store has afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import CreateTopicRequestHeader, PullMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.transport.blocking_connection import BlockingConnection

QUEUES = 4
TOPIC, BROKER = "chaos", "broker-a"
TIMEOUT_MS = 10_000


@dataclass
class Server:
    """A `rocketstream serve` process."""

    process: subprocess.Popen[str]
    broker_addr: str
    namesrv_addr: str

    def kill(self) -> None:
        """kill -9, of the whole group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)


@contextmanager
def running(store: Path, flush: str = "sync") -> Iterator[Server]:
    """Start a server on the store and wait for its ready line; it is killed at the end."""
    command = [sys.executable, "-m", "rocketstream", "serve", "--store", str(store)]
    command += ["--namesrv-port", "0", "--broker-port", "0", "--flush", flush]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        server = Server(process, "", "")
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), f"the server said {line!r}"
            words = dict(word.split("=", 1) for word in line.split()[1:])
            server.broker_addr, server.namesrv_addr = words["broker"], words["namesrv"]
            yield server
        finally:
            if process.poll() is None:
                server.kill()


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
            MessageQueue(TOPIC, BROKER, queue_id): read_queue(connection, queue_id)
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

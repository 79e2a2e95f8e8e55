"""The cluster a behaviour test runs against, whichever server it is.

Law: everything is asked over the wire, so a backend is an address; no case knows which one it is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import CreateTopicRequestHeader
from rocketstream.protocol.names import AUTO_CREATE_TOPIC
from tests.plugins.apache import shared_cluster
from tests.plugins.kept import kept
from tests.plugins.waiting import wait_until

DELAY_LEVELS = " ".join(["100ms"] * 18)
QUICK_CHECKS = {
    "transactionTimeOut": "500",
    "transactionCheckInterval": "1000",
}
"""Settings of a broker that asks early about undecided transactions."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Cluster:
    """Where the servers are.

    Attributes:
        namesrv_addr: ``host:port`` of the name server.
    """

    namesrv_addr: str

    def create_topic(self, name: str, queues: int) -> None:
        """Create a topic; its route answers when this returns."""
        with BlockingAdminClient(self.namesrv_addr) as client:
            broker = client.route(AUTO_CREATE_TOPIC).broker_datas[0]
            header = CreateTopicRequestHeader(
                name, AUTO_CREATE_TOPIC, queues, queues, 6, "SINGLE_TAG", 0, False
            )
            command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            client.request(broker.broker_addrs[0], command)
            wait_until(lambda: _has_route(client, name), f"route of {name}")

    def committed(self, group: str, topic: str, queues: int) -> list[int]:
        """Return a group's committed offset of each queue of a topic, -1 where there is none."""
        with BlockingAdminClient(self.namesrv_addr) as client:
            broker = client.route(topic).broker_datas[0].broker_name
            return [_or_none(client, group, MessageQueue(topic, broker, i)) for i in range(queues)]

    def ends(self, topic: str, queues: int) -> list[int]:
        """Return the end of each queue of a topic."""
        with BlockingAdminClient(self.namesrv_addr) as client:
            broker = client.route(topic).broker_datas[0].broker_name
            return [client.max_offset(MessageQueue(topic, broker, i)) for i in range(queues)]


def _has_route(client: BlockingAdminClient, topic: str) -> bool:
    try:
        return bool(client.route(topic).queue_datas)
    except RouteNotFoundError:
        return False


def _or_none(client: BlockingAdminClient, group: str, mq: MessageQueue) -> int:
    offset = client.query_consumer_offset(group, mq)
    return -1 if offset is None else offset


@contextmanager
def embedded(directory: Path) -> Iterator[Cluster]:
    """Run the embedded servers in a process of their own."""
    command = [sys.executable, "-m", "tests.kits.serve", str(directory / "s"), DELAY_LEVELS]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError("the embedded servers did not start; see their output above")
            yield Cluster(address)
        finally:
            process.stdin.close()
            process.wait(30)


def running(
    backend: str, folders: pytest.TempPathFactory, settings: Mapping[str, str] | None = None
) -> Cluster:
    """Return the servers of a backend, shared by all cases; skips where they cannot be had.

    Args:
        backend: ``embedded``, or ``apache-`` and a version.
        folders: makes their folders.
        settings: of Apache's broker, besides those it has in all tests.
    """
    _, _, version = backend.partition("-")
    if version:
        return Cluster(shared_cluster(version, folders, settings).namesrv_addr)
    return kept(backend, lambda: embedded(folders.mktemp(backend)))

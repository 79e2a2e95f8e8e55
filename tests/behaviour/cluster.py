"""The cluster a behaviour test runs against, whichever server it is.

Law: what the cases may ask of a backend; no case knows which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketstream.client.blocking import BlockingAdminClient
from rocketstream.errors import OffsetNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster

DELAY_LEVELS = " ".join(["100ms"] * 18)


@dataclass(frozen=True)
class Cluster:
    """Where the servers are and how to prepare a topic.

    Attributes:
        namesrv_addr: ``host:port`` of the name server.
        create_topic: ``create_topic(name, queues)``; its route answers when this returns.
    """

    namesrv_addr: str
    create_topic: Callable[[str, int], None]

    def committed(self, group: str, topic: str, queues: int) -> list[int]:
        """Return a group's committed offset of each queue of a topic, -1 where there is none."""
        with BlockingAdminClient(self.namesrv_addr) as client:
            route = client.route(topic)
            broker = route.broker_datas[0].broker_name
            return [_or_none(client, group, MessageQueue(topic, broker, i)) for i in range(queues)]

    def ends(self, topic: str, queues: int) -> list[int]:
        """Return the end of each queue of a topic."""
        with BlockingAdminClient(self.namesrv_addr) as client:
            broker = client.route(topic).broker_datas[0].broker_name
            return [client.max_offset(MessageQueue(topic, broker, i)) for i in range(queues)]


def _or_none(client: BlockingAdminClient, group: str, mq: MessageQueue) -> int:
    try:
        offset = client.query_consumer_offset(group, mq)
    except OffsetNotFoundError:
        return -1
    return -1 if offset is None else offset


@contextmanager
def embedded(directory: Path) -> Iterator[Cluster]:
    """Run the embedded servers."""
    with EmbeddedCluster(
        directory / "store", delay_levels=DELAY_LEVELS, store_config=SMALL_STORE
    ) as cluster:
        yield Cluster(cluster.namesrv_addr, lambda name, queues: cluster.create_topic(name, queues))

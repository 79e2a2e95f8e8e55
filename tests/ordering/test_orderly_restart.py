"""A broker that goes away under a group that consumes in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream import Message
from rocketstream.errors import SendError
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from tests.kits.faces import Producer, PushConsumer
from tests.kits.listeners import numbered, own
from tests.kits.orderly import Ordered, orderly_consumer
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


def test_orderly_members_do_not_overlap_when_the_broker_comes_back(tmp_path: Path) -> None:
    """Covers C-356: the first member back does not get the queues the other still consumes."""
    store, queues, count = tmp_path / "store", 4, 600
    with EmbeddedCluster(store, store_config=SMALL_STORE) as cluster:
        namesrv, broker = cluster.namesrv_addr, cluster.broker_addr
        cluster.create_topic("T", queues=queues)
        producer = Producer("pg", namesrv_addr=namesrv)
        producer.start()
        for message in numbered("T", range(count)):
            producer.send(message)
        seen = Ordered()
        members = [
            orderly_consumer(namesrv, "g", "T", seen, instance_name=name) for name in ("m1", "m2")
        ]
        for member in members:
            member.start()
        wait_until(lambda: shares(members) == [2, 2], "two queues each")
        before = [own_queues(member) for member in members]
    ports = [int(address.rpartition(":")[2]) for address in (namesrv, broker)]
    with EmbeddedCluster(
        store, store_config=SMALL_STORE, namesrv_port=ports[0], broker_port=ports[1]
    ):
        wait_until(lambda: _sent(producer), "a send after the restart")
        for message in numbered("T", range(count, 2 * count)):
            producer.send(message)
        seen.wait(lambda seen: set(map(str, range(2 * count))) <= set(seen.bodies))
        assert not seen.overlaps
        wait_until(lambda: [own_queues(m) for m in members] == before, "the queues of before")
        for member in members:
            member.shutdown()
        producer.shutdown()


def own_queues(consumer: PushConsumer) -> list[int]:
    return sorted(own(consumer, "T"))


def shares(members: list[PushConsumer]) -> list[int]:
    return [len(own_queues(member)) for member in members]


def _sent(producer: Producer) -> bool:
    try:
        producer.send(Message("T", b"probe"))
    except SendError:
        return False
    return True

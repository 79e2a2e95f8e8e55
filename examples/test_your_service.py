"""Testing your own service: the fixture brings a cluster that is gone when the test ends."""

from __future__ import annotations

from rocketstream import Message, Producer
from rocketstream.server.embedded import EmbeddedCluster


def place_order(namesrv_addr: str, number: int) -> str:
    """Stands for your own code."""
    with Producer("shop", namesrv_addr=namesrv_addr) as producer:
        return producer.send(Message("orders", f"order {number}")).msg_id


def test_an_order_is_sent(rocketmq_cluster: EmbeddedCluster) -> None:
    """A fresh server for this test alone, on free ports, in a temporary directory."""
    rocketmq_cluster.create_topic("orders", queues=2)
    assert place_order(rocketmq_cluster.namesrv_addr, 7)
